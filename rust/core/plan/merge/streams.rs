//! The access of policies to tokens: equality and, if needed, ids.

use crate::error::Result;
use crate::plan::Turns;
use crate::streams::AnyStreams;

/// The token streams of turns, and their lengths.
#[derive(Clone, Copy)]
pub struct Streams<'a> {
    /// The tokens.
    pub tokens: &'a dyn AnyStreams,
    /// Their lengths.
    pub turns: &'a Turns,
}

impl Streams<'_> {
    /// Length of the common prefix of a turn's stream and the prompt of a later turn.
    ///
    /// # Errors
    /// Those of the columns.
    pub fn common_prefix(&self, last: usize, next: usize) -> Result<usize> {
        let len = self.turns.stream_len(last);
        self.common(last, next, 0, len.min(self.turns.prompt_lens()[next]))
    }

    /// Number of equal tokens in the streams of two turns from a position on, up to the first
    /// difference and at most `len`.
    ///
    /// # Errors
    /// Those of the columns.
    pub fn common(&self, a: usize, b: usize, from: usize, len: usize) -> Result<usize> {
        self.tokens.common_len(self.turns, [a, b], from, len)
    }

    /// Read the ids of a turn's stream from a position on.
    ///
    /// # Errors
    /// Those of the columns.
    pub fn read(&self, turn: usize, from: usize, out: &mut [i64]) -> Result<()> {
        self.tokens.read(turn, from, out)
    }
}
