//! Context parallelism: the positions of packed rows that a rank holds.

use super::placement::{Grid, Segment};
use super::{BinSpan, Layout, Placement};
use crate::error::{Error, Result};

/// One of the context-parallel ranks that share every sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpRank {
    /// Number of ranks. Not 0.
    pub size: usize,
    /// Index of this rank, from 0.
    pub rank: usize,
}

/// Consecutive positions, counted row by row over the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The first position.
    pub begin: usize,
    /// Number of positions.
    pub len: usize,
}

impl CpRank {
    /// The rank's chunks of packed rows, in order, with the same number of positions in every row.
    /// Every place of a sequence, and the padding after the last, is cut into `2 * size` chunks of
    /// equal length; rank r has chunks r and `2 * size - 1 - r`. A single rank has everything.
    ///
    /// # Errors
    /// [`Error::NoChunks`], and [`Error::InvalidPlan`] if rows are not packed.
    pub fn chunks(self, placement: &Placement) -> Result<Vec<Chunk>> {
        let bin_layout = placement.bin_layout.filter(|_| placement.layout == Layout::Packed);
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
        for span in bin_layout.spans(sequence) {
            let len = self.chunk_len(&span)?;
            let place = span.dst_row * sequence.width() + span.dst_col;
            let begins =
                [self.rank, 2 * self.size - 1 - self.rank].map(|index| place + index * len);
            chunks.extend(begins.map(|begin| Chunk { begin, len }));
        }
        Ok(chunks)
    }

    fn chunk_len(self, span: &BinSpan) -> Result<usize> {
        match self.size.checked_mul(2) {
            Some(count) if span.len.is_multiple_of(count) => Ok(span.len / count),
            _ => Err(Error::NoChunks {
                size: self.size,
                bin: span.dst_row,
                column: span.dst_col,
                len: span.len,
            }),
        }
    }
}

impl Grid {
    /// The same output rows, with only these chunks of their positions; every row has the same
    /// number of them.
    ///
    /// A chunk that begins in the padding after a segment gets an empty segment first, so that
    /// padding follows a segment of its own.
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
            // Segments that end before the chunk.
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
            let begins_inside = rest.first().is_some_and(|next| begin_of(next) <= chunk.begin);
            let is_in_row = |segment: &&Segment| segment.dst_row == chunk.begin / self.width();
            if let Some(segment) = before.filter(is_in_row).filter(|_| !begins_inside) {
                segments.push(place(segment, segment.len, 0, 0));
            }
            for segment in rest.iter().take_while(|segment| begin_of(segment) < end) {
                let begin = begin_of(segment).max(chunk.begin);
                let len = (begin_of(segment) + segment.len).min(end).saturating_sub(begin);
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
