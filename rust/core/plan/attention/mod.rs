//! Attention over token streams, as two integers per position.
//!
//! Position q of an output row attends to k if and only if `k <= q < subtree_end[k]`; a window
//! compares depths. Rows that share nothing are trees of one path, whose subtrees end with the row.

mod block_tables;
mod paths;

pub use block_tables::BlockTables;
pub use paths::{AttentionPaths, PathSegment};

use std::ops::Range;

use super::layout::Form;
use super::placement::{Grid, Placement, Segment};
use crate::error::{Error, Result};
use crate::memory::{filled, with_room};

impl Placement {
    /// The end of each position's subtree in its output row. Padding attends to itself only.
    ///
    /// # Errors
    /// As [`Self::subtrees`].
    pub fn subtree_ends(&self) -> Result<Vec<i32>> {
        let runs = self.subtrees()?;
        let mut ends = filled(runs.positions(), |_| 0)?;
        for row in ends.chunks_exact_mut(runs.width().max(1)) {
            for (end, after) in row.iter_mut().zip(1..) {
                *end = after;
            }
        }
        for run in runs.segments() {
            let place = run.dst_row * runs.width() + run.dst_col;
            ends[place..place + run.len].fill(to_i32(run.from));
        }
        Ok(ends)
    }

    /// Runs of tokens whose subtrees end at one column, given as `from`.
    ///
    /// # Errors
    /// [`Error::WideAttention`] if rows are too wide for int32.
    pub fn subtrees(&self) -> Result<Grid> {
        let grid = &self.sequence;
        self.check_width()?;
        // From the last to the first: a token's subtree ends before the next segment that leaves
        // the path at the token or earlier.
        let mut runs = with_room(2 * grid.segments().len())?;
        let rows = grid.segments().chunk_by(|a, b| a.dst_row == b.dst_row);
        for of_row in rows.rev() {
            // The ends of subtrees by depths, the deepest last; and the next segment's depth.
            let (mut ends, mut next) = (with_room(of_row.len())?, 0);
            for segment in of_row.iter().rev().filter(|segment| segment.len > 0) {
                ends.push((next, segment.dst_col + segment.len));
                next = self.first_depth(segment);
                let mut below = next + segment.len;
                while let Some(&(depth, end)) = ends.last() {
                    let first = depth.max(next);
                    if first < below {
                        runs.push(Segment {
                            from: end,
                            len: below - first,
                            dst_col: segment.dst_col + (first - next),
                            ..*segment
                        });
                        below = first;
                    }
                    if ends.pop_if(|(depth, _)| *depth >= next).is_none() {
                        break;
                    }
                }
            }
        }
        runs.reverse();
        Ok(grid.with_segments(runs))
    }

    /// Number of tokens before each position in its sequence; 0 for padding.
    ///
    /// # Errors
    /// As [`Self::subtree_ends`].
    pub fn depths(&self) -> Result<Vec<i32>> {
        let grid = &self.sequence;
        self.check_width()?;
        let mut depths = filled(grid.positions(), |_| 0)?;
        for segment in grid.segments() {
            let place = segment.dst_row * grid.width() + segment.dst_col;
            let of_segment = &mut depths[place..place + segment.len];
            for (depth, value) in (self.first_depth(segment)..).zip(of_segment) {
                *value = to_i32(depth);
            }
        }
        Ok(depths)
    }

    /// Check that positions of an output row fit int32.
    fn check_width(&self) -> Result<()> {
        let width = self.sequence.width();
        match i32::try_from(width) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::WideAttention { width }),
        }
    }

    /// The depth of a segment's first token. Parts of a split row do not attend to each other.
    fn first_depth(&self, segment: &Segment) -> usize {
        match self.layout.form() {
            Form::Packed => 0,
            Form::Padded | Form::Jagged | Form::Tree => segment.from,
        }
    }
}

/// The count as int32: columns and depths are at most the checked width, or the longest row.
fn to_i32(count: usize) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

/// The count as usize: ends, depths and offsets are not negative.
fn to_usize(count: i32) -> usize {
    count.try_into().unwrap_or(0)
}

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
        let mut ranges = with_room(2 * runs.segments().len())?;
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
                ranges.push(AttentionRange { queries: behind, keys, is_causal: false });
            }
        }
        Ok(ranges)
    }
}
