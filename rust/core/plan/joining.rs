//! Joining: the plans of several processes as one, with rows in the order of the plans.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::plan::merge::{Break, Difference, Merge};
use crate::plan::{Assembly, Chosen, Piece, Row, Turns};

impl Assembly {
    /// The turns of several plans in order, and the rows made of them.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`] without a turn, and [`Error::InvalidPlan`] without a row.
    pub fn joined(plans: &[(&Turns, &Self)]) -> Result<(Turns, Self)> {
        let lens = |lens: fn(&Turns) -> &[usize]| {
            let parts = plans.iter().map(|(turns, _)| lens(turns));
            parts.collect::<Vec<_>>().concat()
        };
        let mut numbers = Vec::new();
        let (mut rows, mut pieces, mut piece_offsets) = (Vec::new(), Vec::new(), vec![0]);
        let mut first_turn = 0;
        for (own_turns, assembly) in plans {
            rows.extend(
                assembly
                    .rows()
                    .iter()
                    .map(|row| Row { source: row.source.map(|turn| first_turn + turn), ..*row }),
            );
            let (own, offsets) = assembly.piece_table();
            piece_offsets.extend(offsets[1..].iter().map(|offset| pieces.len() + offset));
            pieces
                .extend(own.iter().map(|piece| Piece { turn: first_turn + piece.turn, ..*piece }));
            let own = (0..own_turns.count()).map(|index| first_turn + own_turns.number(index));
            numbers.extend(own);
            first_turn += own_turns.total();
        }
        let chosen = (numbers.len() < first_turn).then_some(Chosen { numbers, total: first_turn });
        let (prompt_lens, response_lens) = (lens(Turns::prompt_lens), lens(Turns::response_lens));
        let turns = Turns::among(prompt_lens, response_lens, chosen.map(Arc::new))?;
        Ok((turns, Self::new(rows, pieces, piece_offsets)?))
    }
}

impl Merge {
    /// The trajectories of several plans in order.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] for plans that merge rewards in different ways, have no rows, or more
    /// tokens than can be counted.
    pub fn joined(merges: &[&Self]) -> Result<Self> {
        let plans: Vec<_> = merges.iter().map(|own| (&own.turns, &own.assembly)).collect();
        let (turns, assembly) = Assembly::joined(&plans)?;
        let rewards = merges[0].rewards;
        if merges.iter().any(|own| own.rewards != rewards) {
            let reason = "its parts merge rewards in different ways".to_owned();
            return Err(Error::InvalidPlan(reason));
        }
        let mut joined = Self {
            turns,
            assembly,
            ends: Vec::new(),
            trajectories: Vec::new(),
            turn_rows: Vec::new(),
            breaks: Vec::new(),
            rewards,
        };
        for own in merges {
            let (first_turn, first_row) = (joined.turn_rows.len(), joined.trajectories.len());
            let first_trajectory = joined.ends.len();
            let trajectories = own.trajectories.iter();
            joined.trajectories.extend(trajectories.map(|own| first_trajectory + own));
            joined.ends.extend(own.ends.iter().map(|end| first_turn + end));
            let rows = own.turn_rows.iter();
            joined.turn_rows.extend(rows.map(|row| row.map(|row| first_row + row)));
            joined.breaks.extend(own.breaks.iter().map(|own| Break {
                turn: first_turn + own.turn,
                difference: Difference { from: first_turn + own.difference.from, ..own.difference },
                ..own.clone()
            }));
        }
        joined.checked()
    }
}
