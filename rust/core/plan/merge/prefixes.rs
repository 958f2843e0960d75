//! The turns of merged rows, with the tokens that each has in common with its row.

use super::Merge;

/// A turn, and how many tokens of its row begin as its own do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// The turn.
    pub turn: usize,
    /// Number of tokens; all of the turn's, unless a later one was realigned.
    pub len: usize,
}

/// The turns of each row, in order.
#[derive(Debug)]
pub struct Prefixes {
    turns: Vec<Prefix>,
    /// Row `i` has `offsets[i]..offsets[i + 1]`.
    offsets: Vec<usize>,
}

impl Prefixes {
    /// The turns of a row.
    pub fn row(&self, row: usize) -> &[Prefix] {
        &self.turns[self.offsets[row]..self.offsets[row + 1]]
    }
}

impl Merge {
    /// The turns of all rows.
    pub fn prefixes(&self) -> Prefixes {
        let rows = self.assembly.rows().len();
        let mut offsets = vec![0; rows + 1];
        for row in self.turn_rows.iter().flatten() {
            offsets[row + 1] += 1;
        }
        for row in 0..rows {
            offsets[row + 1] += offsets[row];
        }
        let mut ends = offsets[1..].to_vec();
        let mut turns = vec![Prefix { turn: 0, len: 0 }; offsets[rows]];
        // Backwards: a realigned turn leaves its row's earlier turns the tokens in front of the
        // difference.
        let mut most = vec![usize::MAX; rows];
        let mut breaks = self.breaks.iter().rev().peekable();
        for (turn, row) in self.turn_rows.iter().enumerate().rev() {
            let found = breaks.next_if(|found| found.turn == turn);
            let &Some(row) = row else { continue };
            ends[row] -= 1;
            let len = self.turns.stream_len(turn).min(most[row]);
            turns[ends[row]] = Prefix { turn, len };
            if let Some(found) = found.filter(|found| found.is_realigned) {
                most[row] = most[row].min(found.difference.position);
            }
        }
        Prefixes { turns, offsets }
    }
}
