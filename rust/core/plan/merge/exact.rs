//! Turns go on where all tokens before stand at the beginning of their prompt.

use super::{Difference, Group, Policy, Step, Streams};
use crate::column::Tokens;
use crate::error::Error;

/// One group is open at a time; a turn that does not go on with it opens the next. This is how
/// `SkyRL` merges step-wise outputs.
#[derive(Debug, Clone, Copy)]
pub struct Exact;

impl<C: Tokens<Error: From<Error>>> Policy<C> for Exact {
    fn step(
        &mut self,
        turn: usize,
        groups: &[Group],
        streams: &Streams<C>,
    ) -> Result<Step, C::Error> {
        let Some(open) = groups.last() else {
            return Ok(Step::Open(None));
        };
        let position = streams.common_prefix(open.last, turn)?;
        if position == streams.turns.stream_len(open.last) {
            return Ok(Step::Join(groups.len() - 1));
        }
        let from = open.last;
        Ok(Step::Open(Some(Difference { from, position })))
    }
}
