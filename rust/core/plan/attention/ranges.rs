//! Attention by ranges: pairs of a span of queries and the span of keys that it attends to.

use std::ops::Range;

use super::Placement;
use crate::error::Result;

/// A span of queries and the span of keys that it attends to, both counted over all output rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionRange {
    /// The queries.
    pub queries: Range<usize>,
    /// The keys.
    pub keys: Range<usize>,
    /// True if a query attends only to keys up to its own position; both spans are equal then.
    pub is_causal: bool,
}

impl Placement {
    /// The ranges of the mask. A pair of positions lies in at most one of them; pairs of padding
    /// lie in none.
    ///
    /// # Errors
    /// As [`Placement::subtrees`].
    pub fn attention_ranges(&self) -> Result<Vec<AttentionRange>> {
        let runs = self.subtrees()?;
        let mut ranges = Vec::with_capacity(2 * runs.segments().len());
        for run in runs.segments() {
            let row = run.dst_row * runs.width();
            let keys = row + run.dst_col..row + run.dst_col + run.len;
            let behind = keys.end..row + run.from;
            ranges.push(AttentionRange {
                queries: keys.clone(),
                keys: keys.clone(),
                is_causal: true,
            });
            if !behind.is_empty() {
                ranges.push(AttentionRange {
                    queries: behind,
                    keys,
                    is_causal: false,
                });
            }
        }
        Ok(ranges)
    }
}
