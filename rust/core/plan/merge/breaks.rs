//! Breaks: where a turn does not go on from the tokens before it, and what stands there.

use std::ops::Range;

use super::{Difference, Streams};
use crate::error::Result;
use crate::plan::Turns;

/// Ids that are kept on either side of a difference.
const AROUND: usize = 5;

/// A turn whose prompt differs from the group that it could have gone on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    /// The turn.
    pub turn: usize,
    /// The group's last turn, and the first position that differs.
    pub difference: Difference,
    /// Whether the turn joined all the same.
    pub is_realigned: bool,
    /// The group's ids around the position.
    pub expected: Vec<i64>,
    /// The prompt's ids around it.
    pub found: Vec<i64>,
}

/// What a break looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakKind {
    /// The prompt ends although the group goes on.
    Shorter,
    /// It differs inside the last response, or was realigned.
    Drift,
    /// It differs anywhere else.
    Diverged,
}

impl Break {
    /// Read what stands at a difference.
    ///
    /// # Errors
    /// What the columns raise.
    pub fn read(
        streams: &Streams,
        turn: usize,
        difference: Difference,
        is_realigned: bool,
    ) -> Result<Self> {
        let read = |turn, window: Range<usize>| -> Result<_> {
            let mut ids = vec![0; window.len()];
            streams.read(turn, window.start, &mut ids)?;
            Ok(ids)
        };
        let [expected, found] = difference.windows(turn, streams.turns);
        Ok(Self {
            turn,
            difference,
            is_realigned,
            expected: read(difference.from, expected)?,
            found: read(turn, found)?,
        })
    }

    /// What the break looks like.
    pub fn kind(&self, turns: &Turns) -> BreakKind {
        let Difference { from, position } = self.difference;
        if position == turns.prompt_lens()[self.turn] {
            BreakKind::Shorter
        } else if self.is_realigned || position >= turns.prompt_lens()[from] {
            BreakKind::Drift
        } else {
            BreakKind::Diverged
        }
    }

    /// The first of the positions of which ids are kept.
    pub fn window_start(&self) -> usize {
        self.difference.position.saturating_sub(AROUND)
    }
}

impl Difference {
    /// Whether a later turn can differ there from an earlier one.
    pub fn fits(&self, turn: usize, turns: &Turns) -> bool {
        self.from < turn
            && turn < turns.count()
            && self.position < turns.stream_len(self.from)
            && self.position <= turns.prompt_lens()[turn]
    }

    /// The positions around it that both have.
    ///
    /// # Panics
    /// If it does not fit such a turn.
    pub fn windows(&self, turn: usize, turns: &Turns) -> [Range<usize>; 2] {
        let start = self.position.saturating_sub(AROUND);
        let end = self.position + AROUND + 1;
        let lens = [turns.stream_len(self.from), turns.prompt_lens()[turn]];
        lens.map(|len| start..end.min(len))
    }
}
