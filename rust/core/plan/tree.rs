//! The tree layout: output rows are bins, in which tokens that rows share are stored once.
//!
//! A row is written from its first token that it does not share with the row before it, and read by
//! its *path*: the segments that it shares and adds. Paths follow from the written segments, and
//! overlap.

use std::borrow::Cow;
use std::ops::Range;

use super::packed::MAX_EMPTY_BINS;
use super::placement::{Grid, Segment};
use crate::error::{Error, Result};
use crate::memory::{add, check_room, check_room_of, extend, gathered, with_room};
use crate::plan::share::{Tree, TreeRow};
use crate::plan::{Assembly, BinWidth, Bins, Layout, Pick, Placement, Row, Span};

/// The segments that rows are read from; they may overlap those of other rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The segments of rows, each row's in the order of its tokens.
    pub segments: Vec<Segment>,
    /// The range of each row in `segments`.
    rows: Vec<Range<usize>>,
}

impl Paths {
    /// The segments of a row, in the order of its tokens.
    pub fn of_row(&self, row: usize) -> &[Segment] {
        &self.segments[self.rows[row].clone()]
    }
}

impl Placement {
    /// Lay out an assembly's rows in bins, each of which holds a tree: Places of whole trees are rounded up to a
    /// multiple.
    ///
    /// # Errors
    /// [`Error::BinTooWide`] and [`Error::TooLarge`].
    pub(super) fn of_trees(
        assembly: &Assembly,
        bins: &[Tree],
        multiple_of: usize,
        width: BinWidth,
    ) -> Result<Self> {
        let span = |row: &TreeRow| Span { index: row.row, from: row.shared, len: row.added() };
        let mut offsets = vec![0];
        let mut spans = Vec::with_capacity(assembly.rows().len());
        for tree in bins {
            spans.extend(tree.rows().iter().map(span));
            offsets.push(spans.len());
        }
        let bins = Bins { offsets, spans };
        let begins_place = |span: &Span| span.from == 0;
        Ok(Self {
            layout: Layout::Tree,
            sequence: Grid::of_bins(&bins, multiple_of, begins_place, width)?,
            response: responses(assembly)?,
            bin_layout: None,
        })
    }

    /// The segments that token streams are read from: paths in a tree.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: a chain of forks has as many segments as the square of its rows.
    pub fn read_segments(&self, assembly: &Assembly) -> Result<Cow<'_, [Segment]>> {
        Ok(match self.layout.is_tree() {
            true => Cow::Owned(self.paths(assembly)?.segments),
            false => Cow::Borrowed(self.sequence.segments()),
        })
    }

    /// The same, limited to responses and the `before` tokens in front of them.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn response_segments(
        &self,
        assembly: &Assembly,
        before: usize,
    ) -> Result<Cow<'_, [Segment]>> {
        Ok(match self.layout.is_tree() {
            true => Cow::Owned(self.path_ends(assembly, first_read(before))?.segments),
            false => Cow::Borrowed(self.sequence.segments()),
        })
    }

    /// The paths of a tree's rows.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn paths(&self, assembly: &Assembly) -> Result<Paths> {
        self.path_ends(assembly, |_| 0)
    }

    /// The same without segments that end before the token `first` of the row: for responses alone,
    /// a chain of prefixes has as many segments as rows, not their square.
    fn path_ends(&self, assembly: &Assembly, first: impl Fn(&Row) -> usize) -> Result<Paths> {
        check_room(assembly.rows().len())?;
        let mut count = 0_usize;
        self.each_path(assembly, &first, |_, path| count += path.len());
        let mut segments = with_room(count)?;
        let mut rows = vec![0..0; assembly.rows().len()];
        self.each_path(assembly, &first, |row, path| {
            let begin = segments.len();
            segments.extend(path.iter().map(|part| Segment { row, ..*part }));
            rows[row] = begin..segments.len();
        });
        Ok(Paths { segments, rows })
    }

    /// Call a function with each row and its path, without segments that end before its token
    /// `first`.
    fn each_path(
        &self,
        assembly: &Assembly,
        first: impl Fn(&Row) -> usize,
        mut found: impl FnMut(usize, &[Segment]),
    ) {
        let of_bins = self.sequence.segments().chunk_by(|a, b| a.dst_row == b.dst_row);
        for bin in of_bins {
            let mut path: Vec<Segment> = Vec::new();
            for segment in bin {
                cut(&mut path, segment.from);
                match path.last_mut() {
                    // The row begins where its shared tokens end, as for rows that continue whole
                    // others.
                    Some(last) if last.ends_at(segment) => last.len += segment.len,
                    _ if segment.len > 0 => path.push(*segment),
                    _ => {}
                }
                let first = first(&assembly.rows()[segment.row]);
                let skipped = path.partition_point(|part| part.from + part.len <= first);
                found(segment.row, &path[skipped..]);
            }
        }
    }

    /// The places of tokens that the pieces of rows hold. A shared token is that of the first of its
    /// rows that holds it, of rows that continue after it if any of these does.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn of_pieces(&self, assembly: &Assembly) -> Result<Grid> {
        if !self.layout.is_tree() {
            return self.sequence.of_pieces(assembly);
        }
        let (mut found, mut ends) = (Vec::new(), Vec::new());
        let of_bins = self.sequence.segments().chunk_by(|a, b| a.dst_row == b.dst_row);
        for bin in of_bins {
            // Of the row's path, what no row has held so far.
            let mut missing: Vec<Segment> = Vec::new();
            for added in bin {
                cut(&mut missing, added.from);
                if added.len > 0 {
                    add(&mut missing, *added)?;
                }
                let row = added.row;
                let wanted = missing.iter().map(|part| Segment { row, ..*part });
                let wanted = self.sequence.with_segments(gathered(wanted)?);
                let mut held = wanted.of_pieces(assembly)?.into_segments();
                if let Some(last) = held.last_mut()
                    && last.from + last.len == assembly.rows()[row].len()
                    && last.len > 0
                {
                    last.len -= 1;
                    let end = Segment {
                        from: last.from + last.len,
                        len: 1,
                        dst_col: last.dst_col + last.len,
                        ..*last
                    };
                    add(&mut ends, end)?;
                }
                held.retain(|part| part.len > 0);
                missing = wanted.without(&held)?;
                extend(&mut found, &held)?;
            }
        }
        extend(&mut found, &ends)?;
        check_room_of::<Segment>(found.len())?; // which a stable sort takes
        found.sort_by_key(|part| (part.dst_row, part.dst_col)); // ends after others
        let mut free = (0, 0);
        found.retain(|part| {
            let is_free = (part.dst_row, part.dst_col) >= free;
            if is_free {
                free = (part.dst_row, part.dst_col + part.len);
            }
            is_free
        });
        Ok(self.sequence.with_segments(found))
    }

    /// The positions of the outputs that predict response tokens: each run counts positions of the
    /// grid of sequences. Tokens without one before them have no run.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn predictors(&self, assembly: &Assembly) -> Result<Grid> {
        self.response_places(assembly, 1)
    }

    /// The positions of response tokens themselves, in the same form.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn targets(&self, assembly: &Assembly) -> Result<Grid> {
        self.response_places(assembly, 0)
    }

    /// The positions of tokens `before` positions ahead of response tokens.
    fn response_places(&self, assembly: &Assembly, before: usize) -> Result<Grid> {
        let first = first_read(before);
        let (paths, width) = (self.path_ends(assembly, &first)?, self.sequence.width());
        let mut runs = with_room(paths.segments.len())?;
        let mut begin = 0;
        for (index, row) in assembly.rows().iter().enumerate() {
            let first = first(row);
            let last = row.len().saturating_sub(before);
            for part in paths.of_row(index) {
                let from = part.from.max(first);
                let end = (part.from + part.len).min(last);
                if from < end {
                    runs.push(Segment {
                        row: index,
                        from: part.dst_row * width + part.dst_col + from - part.from,
                        len: end - from,
                        dst_row: 0,
                        dst_col: begin + from + before - row.prompt_len,
                    });
                }
            }
            begin += row.response_len;
        }
        Ok(self.response.with_segments(runs))
    }

    /// The rows of some bins of a tree in order, their assembly, and their placement: the given
    /// bins one after the other, of the same width.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] for a bin that does not exist or is given twice, and for no bins;
    /// [`Error::NoMemory`].
    pub fn of_some_bins(
        &self,
        assembly: &Assembly,
        bins: &[usize],
    ) -> Result<(Vec<usize>, Assembly, Self)> {
        check_room(assembly.rows().len())?;
        let mut numbers = vec![None; self.sequence.rows()];
        for (number, &bin) in bins.iter().enumerate() {
            let known = numbers.get_mut(bin).filter(|known| known.is_none());
            let invalid =
                || Error::InvalidPlan(format!("bin {bin} is not there, or is there twice"));
            *known.ok_or_else(invalid)? = Some(number);
        }
        let row_bins = self.row_bins(assembly);
        let is_there = |row: &usize| numbers[row_bins[*row]].is_some();
        let rows: Vec<_> = (0..row_bins.len()).filter(is_there).collect();
        let picks: Vec<_> = rows.iter().copied().map(Pick::of_row).collect();
        let assembly = assembly.picked(&picks);
        let mut segments = Vec::with_capacity(rows.len());
        for (dst_row, &bin) in bins.iter().enumerate() {
            let all = self.sequence.segments();
            let begin = all.partition_point(|segment| segment.dst_row < bin);
            let of_bin = all[begin..].iter().take_while(|segment| segment.dst_row == bin);
            segments.extend(of_bin.map(|segment| Segment {
                row: rows.partition_point(|&row| row < segment.row),
                dst_row,
                ..*segment
            }));
        }
        let placement = Self {
            layout: Layout::Tree,
            sequence: Grid::of_segments(bins.len(), self.sequence.width(), segments)?,
            response: responses(&assembly)?,
            bin_layout: None,
        };
        Ok((rows, assembly, placement))
    }

    /// The output row of each row.
    #[must_use]
    pub fn row_bins(&self, assembly: &Assembly) -> Vec<usize> {
        let mut bins = vec![0; assembly.rows().len()];
        for segment in self.sequence.segments() {
            bins[segment.row] = segment.dst_row;
        }
        bins
    }

    /// The grid of whole token streams laid end to end, without sharing.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn streams(assembly: &Assembly) -> Result<Grid> {
        Grid::jagged(assembly.rows().iter().map(Row::len))
    }
}

impl Segment {
    /// True if the next segment continues this one, in the row and in the grid.
    pub(super) fn ends_at(&self, next: &Self) -> bool {
        self.from + self.len == next.from && self.dst_col + self.len == next.dst_col
    }
}

/// The first token of a row that is read for its response: `before` tokens ahead of it.
fn first_read(before: usize) -> impl Fn(&Row) -> usize {
    move |row| row.prompt_len.saturating_sub(before)
}

/// The grid of responses: end to end, in the order of rows.
fn responses(assembly: &Assembly) -> Result<Grid> {
    Grid::jagged(assembly.rows().iter().map(|row| row.response_len))
}

/// Leave the part of a path that is before a token.
fn cut(path: &mut Vec<Segment>, from: usize) {
    while path.pop_if(|last| last.from >= from).is_some() {}
    if let Some(last) = path.last_mut() {
        last.len = last.len.min(from - last.from);
    }
}

/// Check that the grids are those of rows in a tree.
///
/// # Errors
/// [`Error::InvalidPlan`].
pub(super) fn check(assembly: &Assembly, sequence: &Grid, response: &Grid) -> Result<()> {
    let rows = assembly.rows();
    let mut before: Option<Segment> = None;
    let mut found = vec![false; rows.len()];
    let fits = |segment: &Segment| {
        let last = before.filter(|last| last.dst_row == segment.dst_row);
        let is_next = segment.from == 0
            || last.is_some_and(|last| {
                segment.from <= last.from + last.len && last.dst_col + last.len == segment.dst_col
            });
        before = Some(*segment);
        is_next
            && segment.from + segment.len == rows[segment.row].len()
            && !std::mem::replace(&mut found[segment.row], true)
    };
    let has_bins = sequence.rows() <= sequence.segments().len() + MAX_EMPTY_BINS;
    let fit = has_bins && sequence.segments().iter().all(fits);
    if fit && found.iter().all(|&found| found) && *response == responses(assembly)? {
        return Ok(());
    }
    let reason = "its segments do not form rows of a tree".to_owned();
    Err(Error::InvalidPlan(reason))
}
