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
    /// As [`Placement::subtree_ends`].
    pub fn attention_ranges(&self) -> Result<Vec<AttentionRange>> {
        let grid = &self.sequence;
        let ends = self.subtree_ends()?;
        let mut ranges = Vec::new();
        for segment in grid.segments() {
            let row = segment.dst_row * grid.width();
            let mut begin = row + segment.dst_col;
            let of_segment = &ends[begin..begin + segment.len];
            // Positions whose subtrees end at one place are a path.
            for path in of_segment.chunk_by(PartialEq::eq) {
                let keys = begin..begin + path.len();
                let subtree_end = row + usize::try_from(path[0]).unwrap_or(0);
                begin = keys.end;
                ranges.push(AttentionRange {
                    queries: keys.clone(),
                    keys: keys.clone(),
                    is_causal: true,
                });
                if subtree_end > keys.end {
                    ranges.push(AttentionRange {
                        queries: keys.end..subtree_end,
                        keys,
                        is_causal: false,
                    });
                }
            }
        }
        Ok(ranges)
    }
}
