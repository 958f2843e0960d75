//! Turns continue a group whose tokens are all a prefix of their prompt.

use super::{Decision, Difference, Group, Policy, Streams};
use crate::error::Result;

/// One group is open at a time; a turn that does not continue it opens the next. `SkyRL` merges
/// step-wise outputs in this way.
#[derive(Debug, Clone, Copy)]
pub struct Exact;

impl Policy for Exact {
    fn decide(&mut self, turn: usize, groups: &[Group], streams: &Streams) -> Result<Decision> {
        let Some(open) = groups.last() else {
            return Ok(Decision::Open(None));
        };
        let position = streams.common_prefix(open.last, turn)?;
        if position == streams.turns.stream_len(open.last) {
            return Ok(Decision::Join(groups.len() - 1));
        }
        let from = open.last;
        Ok(Decision::Open(Some(Difference { from, position })))
    }
}
