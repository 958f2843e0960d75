//! Attention by ranges: which spans of queries look at which spans of keys.

use std::ops::Range;

use super::Placement;
use crate::error::Result;

/// A span of queries that looks at a span of keys, both counted over all output rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionRange {
    /// The queries.
    pub queries: Range<usize>,
    /// The keys.
    pub keys: Range<usize>,
    /// Whether a query looks at keys up to its own place only: then both are the same span.
    pub is_causal: bool,
}

impl Placement {
    /// The ranges of the mask. Each pair of positions lies in one of them at most; those of padding, in
    /// none.
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
