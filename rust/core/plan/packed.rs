//! The packed layout: each output row is a bin of consecutive sequences.

use super::placement::{Grid, Segment};
use super::widths::{BinWidth, rounded_width};
use crate::error::{Error, Result};
use crate::plan::{Assembly, Bins, Shift, Span};

/// Maximum number of empty bins in a plan from elsewhere.
pub(super) const MAX_EMPTY_BINS: usize = 1 << 20;

/// Treatment of the padding after the last sequence of an output row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaddingAs {
    /// A segment of its own.
    OwnSegment,
    /// A part of the last segment.
    LastSegment,
    /// Nothing.
    NoSegment,
    /// A segment of its own, whose positions continue those of the last one.
    ContinuedSegment,
}

/// Layout options of bins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BinLayout {
    /// The place of every sequence is rounded up to a multiple of this. Not 0.
    pub multiple_of: usize,
    /// The token whose value of a response-aligned field stands at a position.
    pub shift: Shift,
    /// Treatment of the padding after the last sequence.
    pub padding_as: PaddingAs,
}

/// The place of a sequence in an output row, or the padding after the last one. The spans of a
/// row are consecutive and cover it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BinSpan {
    /// Output row.
    pub dst_row: usize,
    /// Output column.
    pub dst_col: usize,
    /// Positions, padding included.
    pub len: usize,
    /// Positions that hold tokens of the segment.
    pub tokens: usize,
    /// True if it is a segment of attention.
    pub is_segment: bool,
    /// Position of its first token.
    pub from: usize,
}

impl Grid {
    /// The token streams of rows in their bins. Spans that begin a place begin at a multiple, and
    /// the place of the last span of a bin ends at one.
    ///
    /// # Errors
    /// [`Error::BinTooWide`], [`Error::WidthTooLarge`] and [`Error::TooLarge`].
    pub(super) fn of_bins(
        bins: &Bins,
        multiple_of: usize,
        begins_place: impl Fn(&Span) -> bool,
        width: BinWidth,
    ) -> Result<Self> {
        let too_large = || Error::TooLarge { rows: bins.count(), width: usize::MAX };
        let rounded = |end: usize| {
            let end = end.checked_next_multiple_of(multiple_of);
            end.ok_or_else(too_large)
        };
        let mut segments = Vec::with_capacity(bins.spans.len());
        let mut widest = width.least;
        for bin in 0..bins.count() {
            let mut end = 0_usize;
            for span in bins.spans(bin) {
                if begins_place(span) {
                    end = rounded(end)?;
                }
                segments.push(Segment {
                    row: span.index,
                    from: span.from,
                    len: span.len,
                    dst_row: bin,
                    dst_col: end,
                });
                end = end.checked_add(span.len).ok_or_else(too_large)?;
            }
            end = rounded(end)?;
            match width.fixed {
                Some(width) if end > width => {
                    return Err(Error::BinTooWide { bin, found: end, width });
                }
                _ => widest = widest.max(end),
            }
        }
        let width = match width.fixed {
            Some(_) => rounded_width(bins.count(), ("pad_to", width.fixed), widest, 1)?,
            None => widest.checked_next_multiple_of(width.multiple_of).ok_or_else(too_large)?,
        };
        Self::of_segments(bins.count(), width, segments)
    }
}

impl BinLayout {
    /// The responses in the form of whole sequences: each value stands at its token or, shifted, at
    /// the token before it in the same bin.
    pub(super) fn responses(self, assembly: &Assembly, sequences: &Grid) -> Result<Grid> {
        let shift = usize::from(self.shift == Shift::NextToken);
        let segments = sequences.segments().iter().map(|segment| {
            let prompt_len = assembly.rows()[segment.row].prompt_len;
            let end = segment.from + segment.len;
            // In tokens of the row's stream.
            let first = prompt_len.max(segment.from + shift).min(end);
            Segment {
                from: first.saturating_sub(prompt_len),
                len: end - first,
                dst_col: segment.dst_col + (first - segment.from).saturating_sub(shift),
                ..*segment
            }
        });
        let segments = segments.collect();
        Grid::of_segments(sequences.rows(), sequences.width(), segments)
    }

    /// The spans of sequences and of the padding after them.
    #[must_use]
    pub fn spans(self, sequences: &Grid) -> Vec<BinSpan> {
        let mut spans = Vec::new();
        let mut segments = sequences.segments().iter().peekable();
        for dst_row in 0..sequences.rows() {
            let first = spans.len();
            let mut end = 0;
            while let Some(segment) = segments.next_if(|segment| segment.dst_row == dst_row) {
                let len = segment.len.next_multiple_of(self.multiple_of);
                end = segment.dst_col + len;
                spans.push(BinSpan {
                    dst_row,
                    dst_col: segment.dst_col,
                    len,
                    tokens: segment.len,
                    is_segment: true,
                    from: 0,
                });
            }
            let rest = sequences.width().saturating_sub(end);
            let is_continued = self.padding_as == PaddingAs::ContinuedSegment;
            let before = spans[first..].last().filter(|_| is_continued);
            let from = before.map_or(0, |last| last.len);
            match spans[first..].last_mut() {
                _ if rest == 0 => {}
                Some(last) if self.padding_as == PaddingAs::LastSegment => last.len += rest,
                _ => spans.push(BinSpan {
                    dst_row,
                    dst_col: end,
                    len: rest,
                    tokens: rest,
                    // Without a sequence there is no segment to extend.
                    is_segment: is_continued || self.padding_as == PaddingAs::OwnSegment,
                    from,
                }),
            }
        }
        spans
    }

    /// True if the places of sequences fit the grid.
    pub(super) fn fits(self, sequences: &Grid) -> bool {
        let Self { multiple_of, .. } = self;
        let has_tokens = sequences.segments().iter().any(|segment| segment.len > 0);
        if multiple_of == 0 || (has_tokens && multiple_of > sequences.width()) {
            return false;
        }
        // No packer leaves this many bins empty, but tables from elsewhere may hold any numbers.
        if sequences.rows() > sequences.segments().len() + MAX_EMPTY_BINS {
            return false;
        }
        let spans = self.spans(sequences);
        let end = |span: &BinSpan| span.dst_col + span.len;
        let follow =
            |two: &[BinSpan]| two[0].dst_row < two[1].dst_row || end(&two[0]) == two[1].dst_col;
        spans.windows(2).all(follow) && spans.iter().all(|it| end(it) <= sequences.width())
    }

    /// The grid of position ids: every segment counts its positions, padding included.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn positions(sequences: &Grid, spans: &[BinSpan]) -> Result<Grid> {
        let segments = spans.iter().filter(|span| span.is_segment).map(|span| Segment {
            row: span.dst_row,
            from: span.from,
            len: span.len,
            dst_row: span.dst_row,
            dst_col: span.dst_col,
        });
        Grid::of_segments(sequences.rows(), sequences.width(), segments.collect())
    }

    /// The lengths of the segments of every output row: in tokens, or in positions of their places
    /// if `padded`.
    #[must_use]
    pub fn segment_lens(
        self,
        sequences: &Grid,
        spans: &[BinSpan],
        padded: bool,
    ) -> Vec<Vec<usize>> {
        let mut lens = vec![Vec::new(); sequences.rows()];
        for span in spans.iter().filter(|span| span.is_segment) {
            // Without rounding, a place is longer than its tokens only by padding of the row.
            let is_place = padded || self.multiple_of == 1;
            lens[span.dst_row].push(if is_place { span.len } else { span.tokens });
        }
        lens
    }

    /// Number of response tokens without a place since a packer split their sequence before them.
    #[must_use]
    pub fn num_lost(self, assembly: &Assembly, sequences: &Grid) -> usize {
        let begins_part = |segment: &&Segment| {
            segment.from > 0
                && segment.len > 0
                && segment.from >= assembly.rows()[segment.row].prompt_len
        };
        match self.shift {
            Shift::None => 0,
            Shift::NextToken => sequences.segments().iter().filter(begins_part).count(),
        }
    }
}

impl Grid {
    /// The same grid without the last position of every segment: no token follows there.
    #[must_use]
    pub fn without_last(&self) -> Self {
        self.map_segments(|segment| Segment { len: segment.len.saturating_sub(1), ..*segment })
    }

    /// The same grid with every segment counting from 0.
    #[must_use]
    pub fn restarting(&self) -> Self {
        self.map_segments(|segment| Segment { from: 0, ..*segment })
    }
}
