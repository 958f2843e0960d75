//! The placement: positions of rows in the output.

use super::tree;
use crate::error::{Error, Result};
use crate::memory::gathered;
use crate::plan::{Assembly, BinLayout, BinWidth, Bins, Form, Layout, Row, Span};

/// Maximum number of positions: exceeds the bytes of any memory.
pub(super) const MAX_POSITIONS: usize = 1 << 56;

/// A span of a row at a place in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The row of the assembly.
    pub row: usize,
    /// First token of the span, as an offset in the row's token stream or in its response, by the
    /// grid.
    pub from: usize,
    /// Number of tokens.
    pub len: usize,
    /// Output row.
    pub dst_row: usize,
    /// Output column.
    pub dst_col: usize,
}

/// An output of `rows` x `width` positions and its segments; the rest is padding.
///
/// Segments are ordered by place and do not overlap, so one pass writes every position once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    rows: usize,
    width: usize,
    segments: Vec<Segment>,
}

/// A span of a grid that can be written separately: the unit for polling and for threads.
#[derive(Debug, Clone, Copy)]
pub struct GridSlice<'a> {
    /// First position, counted row by row over the grid.
    pub begin: usize,
    /// One past the last position.
    pub end: usize,
    /// The segments that lie in it.
    pub segments: &'a [Segment],
    /// Width of the grid.
    pub width: usize,
}

/// The edge at which rows of a grid are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// Rows begin at the left edge, with padding after them.
    Left,
    /// Rows end at the right edge, with padding in front.
    Right,
}

/// The places of rows: of their token streams, and of their responses for response-aligned fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The layout of the grids.
    pub layout: Layout,
    /// Places of token streams; also of sequence-aligned fields.
    pub sequence: Grid,
    /// Places of responses.
    pub response: Grid,
    /// Layout options of bins, if the layout is packed.
    pub bin_layout: Option<BinLayout>,
}

impl Placement {
    /// A placement of an assembly's rows from its two grids, checked.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] when a segment's row is not in the assembly, or is shorter than it.
    pub fn new(
        assembly: &Assembly,
        layout: Layout,
        sequence: Grid,
        response: Grid,
        bin_layout: Option<BinLayout>,
    ) -> Result<Self> {
        let check = |grid: &Grid, len: fn(&Row) -> usize, kind: &str| {
            let fits = |segment: &Segment| {
                let end = segment.from.checked_add(segment.len);
                match (assembly.rows().get(segment.row), end) {
                    (Some(row), Some(end)) => end <= len(row),
                    _ => false,
                }
            };
            match grid.segments.iter().position(|segment| !fits(segment)) {
                None => Ok(()),
                Some(index) => {
                    Err(Error::InvalidPlan(format!("{kind} segment {index} reads beyond its row")))
                }
            }
        };
        check(&sequence, |row| row.prompt_len + row.response_len, "sequence")?;
        check(&response, |row| row.response_len, "response")?;
        if layout.is_jagged() && (sequence.rows, response.rows) != (1, 1) {
            let reason = "a jagged layout must have one row".to_owned();
            return Err(Error::InvalidPlan(reason));
        }
        if let Some(bin_layout) = bin_layout {
            // Everything else follows from the token streams.
            let fits = bin_layout.fits(&sequence)
                && bin_layout.responses(assembly, &sequence)? == response;
            if !fits {
                let reason = "its bins do not match its segments".to_owned();
                return Err(Error::InvalidPlan(reason));
            }
        }
        if layout.form() == Form::Tree {
            tree::check(assembly, &sequence, &response)?;
        }
        if bin_layout.is_some() != layout.is_packed() {
            let reason = "packing must be given for the packed layout, and for no other".to_owned();
            return Err(Error::InvalidPlan(reason));
        }
        Ok(Self { layout, sequence, response, bin_layout })
    }

    /// Lay out an assembly's rows in bins: of a fixed `width`, or as wide as the widest bin and at
    /// least `least`.
    ///
    /// # Errors
    /// [`Error::BinTooWide`], [`Error::TooLarge`] and those of [`Bins::check`].
    pub fn packed(
        assembly: &Assembly,
        bins: &Bins,
        bin_layout: BinLayout,
        width: BinWidth,
    ) -> Result<Self> {
        let lens: Vec<_> = assembly.rows().iter().map(Row::len).collect();
        bins.check(&lens)?;
        Self::of_bins(assembly, bins, bin_layout, width)
    }

    /// One output row, for attention alone: no response is in it. Its width is that of the tokens,
    /// rounded up to a multiple, and at most that of all output rows.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] for an output row that does not exist; [`Error::NoMemory`].
    pub fn of_bin(&self, bin: usize, multiple_of: usize) -> Result<Self> {
        if bin >= self.sequence.rows {
            return Err(Error::InvalidPlan(format!("there is no output row {bin}")));
        }
        let all = self.sequence.segments();
        let [begin, end] = [bin, bin + 1].map(|bin| all.partition_point(|it| it.dst_row < bin));
        let moved = |segment: &Segment| Segment { dst_row: 0, ..*segment };
        let segments = gathered(all[begin..end].iter().map(moved))?;
        let used = segments.last().map_or(0, |last| last.dst_col + last.len);
        let rounded = used.max(1).checked_next_multiple_of(multiple_of.max(1));
        let width = rounded.unwrap_or(usize::MAX).min(self.sequence.width);
        Ok(Self {
            layout: self.layout,
            sequence: Grid::of_segments(1, width, segments)?,
            response: Grid::of_segments(1, 0, Vec::new())?,
            bin_layout: self.bin_layout,
        })
    }

    /// As [`Self::packed`], for bins that are known to hold these rows.
    ///
    /// # Errors
    /// [`Error::BinTooWide`] and [`Error::TooLarge`].
    pub(super) fn of_bins(
        assembly: &Assembly,
        bins: &Bins,
        bin_layout: BinLayout,
        width: BinWidth,
    ) -> Result<Self> {
        let begins_place = |_: &Span| true;
        let sequence = Grid::of_bins(bins, bin_layout.multiple_of, begins_place, width)?;
        Ok(Self {
            layout: Layout::Packed,
            response: bin_layout.responses(assembly, &sequence)?,
            sequence,
            bin_layout: Some(bin_layout),
        })
    }
}

/// The number of positions of a grid, for which numbers of 16 bytes could lie in memory.
///
/// # Errors
/// [`Error::TooLarge`].
fn positions_of(rows: usize, width: usize) -> Result<usize> {
    let most = isize::MAX.unsigned_abs() / 16;
    let is_small = |positions: &usize| *positions <= most && rows.max(width) <= most;
    let positions = rows.checked_mul(width).filter(is_small);
    positions.ok_or(Error::TooLarge { rows, width })
}

impl Grid {
    /// A grid from its table, checked.
    ///
    /// # Errors
    /// [`Error::TooLarge`], and [`Error::InvalidPlan`] when segments overlap, are not ordered by
    /// place or leave the grid.
    pub fn new(rows: usize, width: usize, segments: Vec<Segment>) -> Result<Self> {
        let positions = positions_of(rows, width)?;
        let mut end = 0;
        for (index, segment) in segments.iter().enumerate() {
            let begin =
                segment.dst_row.checked_mul(width).and_then(|row| row.checked_add(segment.dst_col));
            let next = begin.and_then(|begin| begin.checked_add(segment.len));
            match (begin, next) {
                (Some(begin), Some(next))
                    if begin >= end
                        && next <= positions
                        && segment.dst_col.saturating_add(segment.len) <= width =>
                {
                    end = next;
                }
                _ => {
                    return Err(Error::InvalidPlan(format!(
                        "segment {index} of {} tokens at row {}, column {} overlaps the one \
                         before it or leaves the {rows} x {width} grid",
                        segment.len, segment.dst_row, segment.dst_col
                    )));
                }
            }
        }
        Ok(Self { rows, width, segments })
    }

    /// One segment per row, at one edge of the grid.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    ///
    /// # Panics
    /// If a length exceeds the width.
    pub fn aligned(
        lens: impl ExactSizeIterator<Item = usize>,
        width: usize,
        edge: Edge,
    ) -> Result<Self> {
        let rows = lens.len();
        let segment = |(row, len)| Segment {
            row,
            from: 0,
            len,
            dst_row: row,
            dst_col: match edge {
                Edge::Left => 0,
                Edge::Right => width - len,
            },
        };
        Self::of_segments(rows, width, lens.enumerate().map(segment).collect())
    }

    /// One long row of consecutive segments.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn jagged(lens: impl ExactSizeIterator<Item = usize>) -> Result<Self> {
        let rows = lens.len();
        let mut end = 0_usize;
        // With its length from the start: growing takes as long again.
        let mut segments = Vec::with_capacity(rows);
        for (row, len) in lens.enumerate() {
            segments.push(Segment { row, from: 0, len, dst_row: 0, dst_col: end });
            end = end.checked_add(len).ok_or(Error::TooLarge { rows, width: usize::MAX })?;
        }
        Self::of_segments(1, end, segments)
    }

    /// All positions in one row, and one more after the last.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn flattened(&self) -> Result<Self> {
        let whole = self.whole();
        let segments = self.segments.iter().map(|segment| Segment {
            dst_row: 0,
            dst_col: whole.position_of(segment),
            ..*segment
        });
        Self::of_segments(1, self.positions() + 1, segments.collect())
    }

    /// The same grid with changed segments, each inside the original one.
    pub(super) fn map_segments(&self, change: impl Fn(&Segment) -> Segment) -> Self {
        Self { segments: self.segments.iter().map(change).collect(), ..*self }
    }

    /// The same grid without empty segments.
    #[must_use]
    pub fn without_empty(&self) -> Self {
        let segments = self.segments.iter().filter(|segment| segment.len > 0);
        self.with_segments(segments.copied().collect())
    }

    /// The places of the rows of these numbers, ascending, as of rows numbered from 0. Rows are in
    /// order in the grid.
    #[must_use]
    pub fn of_rows(&self, numbers: &[usize]) -> Self {
        let mut segments = Vec::with_capacity(numbers.len());
        for (row, &number) in numbers.iter().enumerate() {
            let first = self.segments.partition_point(|segment| segment.row < number);
            let of_row = self.segments[first..].iter();
            let of_row = of_row.take_while(|segment| segment.row == number);
            segments.extend(of_row.map(|segment| Segment { row, ..*segment }));
        }
        self.with_segments(segments)
    }

    /// The same grid with other segments that are right by construction.
    pub(super) fn with_segments(&self, segments: Vec<Segment>) -> Self {
        Self { segments, ..*self }
    }

    /// The same number of output rows of another width, with segments that are right by
    /// construction.
    pub(super) fn of_width(&self, width: usize, segments: Vec<Segment>) -> Self {
        let rows = self.rows;
        Self { rows, width, segments }
    }

    /// Two segments per row; prompts end and responses begin at one column.
    pub(super) fn two_segment(
        rows: &[Row],
        prompt_width: usize,
        response_width: usize,
    ) -> Result<Self> {
        let segments = rows.iter().enumerate().flat_map(|(index, row)| {
            let prompt = Segment {
                row: index,
                from: 0,
                len: row.prompt_len,
                dst_row: index,
                dst_col: prompt_width - row.prompt_len,
            };
            let response = Segment {
                from: row.prompt_len,
                len: row.response_len,
                dst_col: prompt_width,
                ..prompt
            };
            [prompt, response]
        });
        let width = prompt_width.saturating_add(response_width);
        Self::of_segments(rows.len(), width, segments.collect())
    }

    /// A grid of segments that are right by construction.
    pub(super) fn of_segments(rows: usize, width: usize, segments: Vec<Segment>) -> Result<Self> {
        positions_of(rows, width)?;
        Ok(Self { rows, width, segments })
    }

    /// The grid without its last column, which must be empty.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] if a segment reaches it.
    pub fn without_last_column(&self) -> Result<Self> {
        let width = self.width.saturating_sub(1);
        let segments = self.segments.iter().map(|segment| Segment {
            dst_col: segment.dst_col.min(width), // an empty one may lie at the end
            ..*segment
        });
        Self::new(self.rows, width, segments.collect())
    }

    /// Number of output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Positions of an output row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Total number of positions.
    pub fn positions(&self) -> usize {
        self.rows * self.width
    }

    /// The segments, ordered by place.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The segments, ordered by place.
    pub(super) fn into_segments(self) -> Vec<Segment> {
        self.segments
    }

    /// The whole grid as one slice.
    pub fn whole(&self) -> GridSlice<'_> {
        GridSlice { begin: 0, end: self.positions(), segments: &self.segments, width: self.width }
    }

    /// The grid in slices of about `positions` each, in order and without gaps.
    ///
    /// A slice ends where a segment begins: the padding after a segment belongs to its slice, and a
    /// longer segment makes a longer slice.
    pub fn slices(&self, positions: usize) -> impl Iterator<Item = GridSlice<'_>> {
        let mut rest = Some(self.whole());
        std::iter::from_fn(move || {
            let slice = rest?;
            let target = slice.begin.saturating_add(positions.max(1));
            let taken = slice
                .segments
                .partition_point(|segment| slice.position_of(segment) < target)
                .max(1);
            if taken >= slice.segments.len() {
                return rest.take();
            }
            let (segments, later) = slice.segments.split_at(taken);
            let end = slice.position_of(&later[0]);
            rest = Some(GridSlice { begin: end, segments: later, ..slice });
            Some(GridSlice { end, segments, ..slice })
        })
    }
}

impl GridSlice<'_> {
    /// The first position of a segment, counted row by row over the grid.
    pub fn position_of(&self, segment: &Segment) -> usize {
        segment.dst_row * self.width + segment.dst_col
    }

    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.end - self.begin
    }
}
