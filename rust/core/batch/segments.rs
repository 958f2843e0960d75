//! Where sequences begin in arrays that several of them share: `cu_seqlens` and what goes with it.

use crate::error::{Error, Result};
use crate::plan::{BinLayout, Extent, Grid, Placement};

/// The segments of packed rows.
#[derive(Default)]
pub(super) struct Segments {
    extents: Vec<Extent>,
    /// The lengths of those of every output row, counted in tokens.
    in_tokens: Vec<Vec<usize>>,
    /// Counted in places; none where these are not rounded up.
    in_places: Vec<Vec<usize>>,
}

impl Segments {
    /// Of a batch's placement; none if it is not packed.
    ///
    /// # Errors
    /// More tokens than int32 can count, in an array that several sequences share.
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

    /// Where segments begin if the output rows are laid end to end, and where the last ends.
    pub fn offsets(&self, padded: bool) -> Vec<usize> {
        cumulative(self.lens(padded).iter().flatten().copied())
    }

    /// The length of the longest segment.
    pub fn longest(&self, padded: bool) -> usize {
        let lens = self.lens(padded).iter().flatten();
        lens.copied().max().unwrap_or(0)
    }

    /// Where segments begin in every output row, and where the last ends.
    pub fn offsets_by_row(&self, padded: bool) -> Vec<Vec<i32>> {
        let as_i32 = |count: usize| i32::try_from(count).unwrap_or(i32::MAX); // they were counted
        let of_row = |lens: &Vec<usize>| {
            let ends = cumulative(lens.iter().copied());
            ends.into_iter().map(as_i32).collect()
        };
        self.lens(padded).iter().map(of_row).collect()
    }

    /// Where positions count: every segment from 0 on, with its padding.
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

/// Where the rows of a jagged grid begin, and where the last ends.
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
