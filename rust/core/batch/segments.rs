//! Segments of packed arrays: `cu_seqlens` and related tables.

use crate::error::{Error, Result};
use crate::plan::{BinLayout, Extent, Grid, Placement};

/// The segments of packed rows.
#[derive(Default)]
pub(super) struct Segments {
    extents: Vec<Extent>,
    /// Segment lengths of every output row, in tokens.
    in_tokens: Vec<Vec<usize>>,
    /// The same in places; none if lengths are not rounded up.
    in_places: Vec<Vec<usize>>,
}

impl Segments {
    /// The segments of a batch's placement; none if it is not packed.
    ///
    /// # Errors
    /// More tokens than int32 can count in a packed array.
    pub fn of_placement(placement: &Placement) -> Result<Self> {
        let sequence = &placement.sequence;
        let tokens = sequence.positions();
        let is_shared = !placement.layout.is_padded();
        if is_shared && i32::try_from(tokens).is_err() {
            return Err(Error::TooManyTokens { tokens });
        }
        let Some(bin_layout) = placement.bin_layout else {
            return Ok(Self::default());
        };
        let extents = bin_layout.extents(sequence);
        let in_places = match bin_layout.multiple_of {
            1 => Vec::new(),
            _ => bin_layout.segment_lens(sequence, &extents, true),
        };
        Ok(Self {
            in_tokens: bin_layout.segment_lens(sequence, &extents, false),
            in_places,
            extents,
        })
    }

    /// Segment offsets over the concatenated output rows, with the end of the last.
    pub fn offsets(&self, padded: bool) -> Vec<usize> {
        cumulative(self.lens(padded).iter().flatten().copied())
    }

    /// The length of the longest segment.
    pub fn longest(&self, padded: bool) -> usize {
        let lens = self.lens(padded).iter().flatten();
        lens.copied().max().unwrap_or(0)
    }

    /// Segment offsets in every output row, with the end of the last.
    pub fn offsets_by_row(&self, padded: bool) -> Vec<Vec<i32>> {
        let as_i32 = |count: usize| i32::try_from(count).unwrap_or(i32::MAX); // they were counted
        let of_row = |lens: &Vec<usize>| {
            let ends = cumulative(lens.iter().copied());
            ends.into_iter().map(as_i32).collect()
        };
        self.lens(padded).iter().map(of_row).collect()
    }

    /// The grid for positions: each segment with its padding counts from 0.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn positions(&self, sequence: &Grid) -> Result<Grid> {
        BinLayout::positions(sequence, &self.extents)
    }

    fn lens(&self, padded: bool) -> &[Vec<usize>] {
        if padded {
            &self.in_places
        } else {
            &self.in_tokens
        }
    }
}

/// Row offsets of a jagged grid, with the end of the last.
pub(super) fn row_offsets(grid: &Grid) -> Vec<usize> {
    let starts = grid.segments().iter().map(|segment| segment.dst_col);
    starts.chain([grid.width()]).collect()
}

fn cumulative(lens: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut end = 0;
    let ends = lens.map(|len| {
        end += len;
        end
    });
    std::iter::once(0).chain(ends).collect()
}
