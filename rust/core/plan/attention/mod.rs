//! Attention over token streams, as two integers a position.
//!
//! Position q of an output row looks at k if and only if `k <= q < subtree_end[k]`; a window compares
//! depths. Rows that share nothing are trees of one path, whose subtrees end where the row does.

mod block_tables;
mod ranges;

pub use block_tables::BlockTables;
pub use ranges::AttentionRange;

use super::layout::Form;
use super::placement::{Grid, Placement, Segment};
use crate::error::{Error, Result};

/// A run of positions on the path from a root to the segment at hand.
struct Run {
    depth: usize,
    /// Counted over the whole grid.
    place: usize,
    len: usize,
}

impl Placement {
    /// Where the subtree of each position ends in its output row. Padding sees itself only.
    ///
    /// # Errors
    /// [`Error::WideAttention`] where rows are wider than int32 can count.
    pub fn subtree_ends(&self) -> Result<Vec<i32>> {
        let grid = &self.sequence;
        let width = self.attention_width()?;
        let mut ends = vec![0; grid.positions()];
        for row in ends.chunks_exact_mut(grid.width().max(1)) {
            for (end, after) in row.iter_mut().zip(1..=width) {
                *end = after;
            }
        }
        let mut path: Vec<Run> = Vec::new();
        // Where the last segment ends, counted over the whole grid.
        let mut end = 0;
        for segment in grid.segments() {
            let depth = self.first_depth(segment);
            let place = segment.dst_row * grid.width() + segment.dst_col;
            let is_new_row = end <= segment.dst_row * grid.width();
            close(
                &mut path,
                if is_new_row { 0 } else { depth },
                end,
                grid,
                &mut ends,
            );
            if segment.len > 0 {
                path.push(Run {
                    depth,
                    place,
                    len: segment.len,
                });
                end = place + segment.len;
            }
        }
        close(&mut path, 0, end, grid, &mut ends);
        Ok(ends)
    }

    /// How many tokens each position has before it in its sequence. That of padding is 0.
    ///
    /// # Errors
    /// As [`Self::subtree_ends`].
    pub fn depths(&self) -> Result<Vec<i32>> {
        let grid = &self.sequence;
        self.attention_width()?;
        let mut depths = vec![0; grid.positions()];
        for segment in grid.segments() {
            let place = segment.dst_row * grid.width() + segment.dst_col;
            let of_segment = &mut depths[place..place + segment.len];
            for (depth, value) in (self.first_depth(segment)..).zip(of_segment) {
                *value = to_i32(depth);
            }
        }
        Ok(depths)
    }

    /// Positions of an output row, which int32 can count.
    fn attention_width(&self) -> Result<i32> {
        let width = self.sequence.width();
        i32::try_from(width).map_err(|_| Error::WideAttention { width })
    }

    /// The depth of a segment's first token. Parts of a split row do not see each other.
    fn first_depth(&self, segment: &Segment) -> usize {
        match self.layout.form() {
            Form::Packed => 0,
            Form::Padded | Form::Jagged | Form::Tree => segment.from,
        }
    }
}

/// Cut the path off at a depth: the subtrees of what is taken away end there.
fn close(path: &mut Vec<Run>, depth: usize, end: usize, grid: &Grid, ends: &mut [i32]) {
    while let Some(run) = path.pop() {
        let kept = depth.saturating_sub(run.depth).min(run.len);
        if kept < run.len {
            let column = end - run.place / grid.width() * grid.width();
            ends[run.place + kept..run.place + run.len].fill(to_i32(column));
        }
        if kept > 0 {
            path.push(Run { len: kept, ..run });
            break;
        }
    }
}

/// Columns and depths are no larger than a width, which was checked, or the longest row.
fn to_i32(count: usize) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}
