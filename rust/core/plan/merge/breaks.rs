//! Breaks: positions at which a turn does not continue the tokens before it, and the ids there.

use std::ops::Range;

use super::{Difference, Streams};
use crate::error::Result;
use crate::plan::Turns;

/// Number of ids kept on either side of a difference.
const AROUND: usize = 5;

/// A turn whose prompt differs from the group that it could have continued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    /// The turn.
    pub turn: usize,
    /// The group's last turn, and the first position that differs.
    pub difference: Difference,
    /// True if the turn joined nevertheless.
    pub is_realigned: bool,
    /// The group's ids around the position.
    pub expected: Vec<i64>,
    /// The prompt's ids around it.
    pub found: Vec<i64>,
}

/// The kind of a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakKind {
    /// The prompt ends before the group.
    Shorter,
    /// It differs inside the last response, or was realigned.
    Drift,
    /// It differs anywhere else.
    Diverged,
}

impl Break {
    /// Read the ids around a difference.
    ///
    /// # Errors
    /// Those of the columns.
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

    /// The kind of the break.
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

    /// The first position whose id is kept.
    pub fn window_start(&self) -> usize {
        self.difference.position.saturating_sub(AROUND)
    }
}

impl Difference {
    /// True if `turn` can differ there from the earlier turn.
    pub fn fits(&self, turn: usize, turns: &Turns) -> bool {
        self.from < turn
            && turn < turns.count()
            && self.position < turns.stream_len(self.from)
            && self.position <= turns.prompt_lens()[turn]
    }

    /// The positions around it, in the earlier turn's stream and in the prompt of `turn`.
    ///
    /// # Panics
    /// If the difference does not fit the turn.
    pub fn windows(&self, turn: usize, turns: &Turns) -> [Range<usize>; 2] {
        let start = self.position.saturating_sub(AROUND);
        let end = self.position + AROUND + 1;
        let lens = [turns.stream_len(self.from), turns.prompt_lens()[turn]];
        lens.map(|len| start..end.min(len))
    }
}
