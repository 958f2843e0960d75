//! Context parallelism: which positions of packed rows a rank has.

use super::placement::{Grid, Segment};
use super::{Extent, Layout, Placement};
use crate::error::{Error, Result};

/// One of the ranks that share every sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpRank {
    /// How many there are. Not 0.
    pub size: usize,
    /// Which of them, from 0 on.
    pub rank: usize,
}

/// Positions that follow each other, counted row by row over the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The first.
    pub begin: usize,
    /// How many.
    pub len: usize,
}

impl CpRank {
    /// The chunks that the rank has of packed rows, in order, of each as many positions: every place of a
    /// sequence, and the padding after the last, is cut into twice as many chunks of one length as there
    /// are ranks, of which rank r has that of number r and the one that is as far from the end. A single
    /// rank has everything.
    ///
    /// # Errors
    /// [`Error::NoChunks`], and [`Error::InvalidPlan`] where rows are not packed.
    pub fn chunks(self, placement: &Placement) -> Result<Vec<Chunk>> {
        let bin_layout = { placement.bin_layout }.filter(|_| placement.layout == Layout::Packed);
        let Some(bin_layout) = bin_layout else {
            let reason = "context parallelism cuts packed rows, and no others".to_owned();
            return Err(Error::InvalidPlan(reason));
        };
        let sequence = &placement.sequence;
        if self.size == 1 {
            let len = sequence.positions();
            return Ok(vec![Chunk { begin: 0, len }]);
        }
        let mut chunks = Vec::new();
        for extent in bin_layout.extents(sequence) {
            let len = self.chunk_len(&extent)?;
            let place = extent.dst_row * sequence.width() + extent.dst_col;
            let begins =
                [self.rank, 2 * self.size - 1 - self.rank].map(|index| place + index * len);
            chunks.extend(begins.map(|begin| Chunk { begin, len }));
        }
        Ok(chunks)
    }

    fn chunk_len(self, extent: &Extent) -> Result<usize> {
        match self.size.checked_mul(2) {
            Some(count) if extent.len.is_multiple_of(count) => Ok(extent.len / count),
            _ => Err(Error::NoChunks {
                size: self.size,
                bin: extent.dst_row,
                column: extent.dst_col,
                len: extent.len,
            }),
        }
    }
}

impl Grid {
    /// The same output rows with these chunks of their positions alone, of which every row has as many.
    ///
    /// Where a chunk begins after a segment, with the padding that follows it, an empty segment stands in
    /// front: so padding stands after a segment of its own.
    #[must_use]
    pub fn only(&self, chunks: &[Chunk]) -> Self {
        let positions: usize = chunks.iter().map(|chunk| chunk.len).sum();
        let width = positions / self.rows().max(1);
        let begin_of = |segment: &Segment| segment.dst_row * self.width() + segment.dst_col;
        let mut segments = Vec::new();
        let (mut rest, mut at) = (self.segments(), 0);
        let mut before: Option<&Segment> = None;
        for chunk in chunks.iter().filter(|chunk| chunk.len > 0) {
            let end = chunk.begin + chunk.len;
            // Those that end before the chunk.
            while let Some((segment, later)) = rest.split_first()
                && begin_of(segment) + segment.len <= chunk.begin
            {
                before = Some(segment).filter(|segment| segment.len > 0).or(before);
                rest = later;
            }
            let place = |segment: &Segment, from: usize, len: usize, position: usize| Segment {
                row: segment.row,
                from: segment.from + from,
                len,
                dst_row: (at + position) / width,
                dst_col: (at + position) % width,
            };
            let begins_inside = rest
                .first()
                .is_some_and(|next| begin_of(next) <= chunk.begin);
            let is_in_row = |segment: &&Segment| segment.dst_row == chunk.begin / self.width();
            if let Some(segment) = before.filter(is_in_row).filter(|_| !begins_inside) {
                segments.push(place(segment, segment.len, 0, 0));
            }
            for segment in rest.iter().take_while(|segment| begin_of(segment) < end) {
                let begin = begin_of(segment).max(chunk.begin);
                let len = (begin_of(segment) + segment.len)
                    .min(end)
                    .saturating_sub(begin);
                if len > 0 {
                    let from = begin - begin_of(segment);
                    segments.push(place(segment, from, len, begin - chunk.begin));
                }
            }
            at += chunk.len;
        }
        self.of_width(width, segments)
    }
}
