//! What policies see of tokens: whether they are equal and, where that is not enough, their ids.

use crate::column::{At, Tokens, read_stream};
use crate::plan::Turns;

/// The token streams of turns: prompt + response.
#[derive(Debug)]
pub struct Streams<'a, C> {
    /// The prompts' tokens.
    pub prompts: &'a C,
    /// The responses' tokens.
    pub responses: &'a C,
    /// Their lengths.
    pub turns: &'a Turns,
}

impl<C: Tokens> Streams<'_, C> {
    /// How many tokens the stream of a turn and the prompt of a later one begin with in common.
    ///
    /// # Errors
    /// What the columns raise.
    pub fn common_prefix(&self, last: usize, next: usize) -> Result<usize, C::Error> {
        let len = self.turns.stream_len(last);
        self.common(last, next, 0, len.min(self.turns.prompt_lens()[next]))
    }

    /// How many of `len` tokens from a position on are the same in the streams of two turns, before
    /// the first that is not.
    ///
    /// # Errors
    /// What the columns raise.
    pub fn common(&self, a: usize, b: usize, from: usize, len: usize) -> Result<usize, C::Error> {
        let end = from + len;
        let mut at = from;
        while at < end {
            let ((a, a_at, a_len), (b, b_at, b_len)) = (self.part(a, at), self.part(b, at));
            let len = a_len.min(b_len).min(end - at);
            let common = a.common_len(a_at, b, b_at, len)?;
            at += common;
            if common < len {
                break;
            }
        }
        Ok(at - from)
    }

    /// The column in which a position of a stream is, its place there, and how many tokens follow.
    fn part(&self, turn: usize, position: usize) -> (&C, At, usize) {
        let prompt_len = self.turns.prompt_lens()[turn];
        let at = |token| At { turn, token };
        if position < prompt_len {
            (self.prompts, at(position), prompt_len - position)
        } else {
            let token = position - prompt_len;
            let len = self.turns.response_lens()[turn] - token;
            (self.responses, at(token), len)
        }
    }

    /// Read ids of a turn's stream from a position on.
    ///
    /// # Errors
    /// What the columns raise.
    pub fn read(&self, turn: usize, from: usize, out: &mut [i64]) -> Result<(), C::Error> {
        read_stream(self.prompts, self.responses, turn, from, out)
    }
}
