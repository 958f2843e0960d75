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
        let prompt_len = self.turns.prompt_lens()[last];
        let limit = self.turns.prompt_lens()[next];
        let at = |turn, token| At { turn, token };
        let len = prompt_len.min(limit);
        let in_prompt = { self.prompts }.common_len(at(last, 0), self.prompts, at(next, 0), len)?;
        if in_prompt < prompt_len {
            return Ok(in_prompt);
        }
        let len = self.turns.response_lens()[last].min(limit - prompt_len);
        let next = at(next, prompt_len);
        let in_response = { self.responses }.common_len(at(last, 0), self.prompts, next, len)?;
        Ok(prompt_len + in_response)
    }

    /// Read ids of a turn's stream from a position on.
    ///
    /// # Errors
    /// What the columns raise.
    pub fn read(&self, turn: usize, from: usize, out: &mut [i64]) -> Result<(), C::Error> {
        read_stream(self.prompts, self.responses, turn, from, out)
    }
}
