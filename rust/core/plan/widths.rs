//! Widths of output rows, given or as long as the longest row.

use std::sync::OnceLock;

use super::assembly::Len;
use super::placement::MAX_POSITIONS;
use super::{Row, Shard};
use crate::error::{Error, Result};

/// Widths fixed by options, so that several batches have the same.
#[derive(Debug, Clone, Copy)]
pub struct WidthOptions {
    /// Of token streams, in layouts of one block.
    pub sequence: Option<usize>,
    /// Of prompts, in the layout of two segments.
    pub prompt: Option<usize>,
    /// Of responses.
    pub response: Option<usize>,
    /// Widths of token streams, or of their two segments, are rounded up to a multiple of this. Not
    /// 0.
    pub multiple_of: usize,
    /// The width of the widest bin is rounded up to a multiple of this. Not 0.
    pub bin_multiple_of: usize,
    /// Minimum lengths that widths from the data hold: those of rows in other batches.
    pub least: Widths,
}

/// Width of the output rows of bins.
#[derive(Debug, Clone, Copy)]
pub struct BinWidth {
    /// Fixed; by default that of the widest bin.
    pub fixed: Option<usize>,
    /// The widest bin counts as at least this wide.
    pub least: usize,
    /// Its width is rounded up to a multiple of this. Not 0.
    pub multiple_of: usize,
}

/// The longest lengths in tokens, possibly each of a different row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Widths {
    /// Of prompts.
    pub prompt: usize,
    /// Of responses.
    pub response: usize,
    /// Of both together.
    pub sequence: usize,
}

/// The longest lengths of rows that do not change, found once. All are equal: the rows differ.
#[derive(Debug, Clone, Default)]
pub(super) struct Longest(OnceLock<Widths>);

impl PartialEq for Longest {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Longest {}

impl Longest {
    pub fn known(widths: Widths) -> Self {
        Self(widths.into())
    }

    pub fn of(&self, rows: &[Row]) -> Widths {
        *self.0.get_or_init(|| Widths::of_rows(rows))
    }
}

impl Widths {
    /// The element-wise maximum.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            prompt: self.prompt.max(other.prompt),
            response: self.response.max(other.response),
            sequence: self.sequence.max(other.sequence),
        }
    }

    /// The longest lengths among rows.
    pub fn of_rows(rows: &[Row]) -> Self {
        let longest = |len: fn(&Row) -> usize| rows.iter().map(len).max().unwrap_or(0);
        Self {
            prompt: longest(|row| row.prompt_len),
            response: longest(|row| row.response_len),
            sequence: longest(Row::len),
        }
    }
}

impl WidthOptions {
    /// Widths of bins: a fixed width, and the multiple that places are rounded up to.
    pub(super) fn of_bins(sequence: Option<usize>, multiple_of: usize) -> Self {
        Self { sequence, multiple_of, ..Self::default() }
    }

    /// The width of a shard's bins, or of all, at least that of the widest bin of the shard's step.
    pub(super) fn of_shard(&self, shard: Option<&Shard>) -> BinWidth {
        BinWidth {
            fixed: self.sequence,
            least: shard.map_or(0, Shard::least_bin_width),
            multiple_of: self.bin_multiple_of,
        }
    }

    /// Check that rows with these longest lengths are no longer than fixed widths. Some of the rows
    /// are given with their numbers.
    ///
    /// # Errors
    /// [`Error::TooWide`] naming the first given row that is longer.
    pub fn check<'a>(
        &self,
        longest: Widths,
        rows: impl Iterator<Item = (usize, &'a Row)>,
    ) -> Result<()> {
        let lens: [(_, _, Len, _, _); 3] = [
            (self.sequence, longest.sequence, Row::len, "tokens", "pad_to"),
            (self.prompt, longest.prompt, |row| row.prompt_len, "prompt tokens", "pad_prompt_to"),
            (
                self.response,
                longest.response,
                |row| row.response_len,
                "response tokens",
                "pad_response_to",
            ),
        ];
        for (fixed, longest, len, unit, argument) in lens {
            let Some(width) = fixed.filter(|&width| width < longest) else {
                continue;
            };
            let mut rows = rows.map(|(number, row)| (number, len(row)));
            let wide = rows.find(|&(_, found)| found > width);
            return Err(Error::TooWide {
                row: wide.map_or("a row of the step".to_owned(), |(row, _)| format!("row {row}")),
                found: wide.map_or(longest, |(_, found)| found),
                unit,
                argument,
                width,
            });
        }
        Ok(())
    }
}

/// The width of `count` rows: fixed by the option `argument`, or of the longest row; rounded up.
///
/// # Errors
/// [`Error::WidthTooLarge`] naming the option that makes rows wider than memory.
pub(super) fn rounded_width(
    count: usize,
    (argument, fixed): (&'static str, Option<usize>),
    longest: usize,
    multiple_of: usize,
) -> Result<usize> {
    let width = fixed.unwrap_or(longest).checked_next_multiple_of(multiple_of);
    match width.and_then(|width| width.checked_mul(count.max(1))) {
        Some(positions) if positions <= MAX_POSITIONS => Ok(positions / count.max(1)),
        _ => {
            let (argument, value) = match fixed {
                Some(width) => (argument, width),
                None => ("multiple_of", multiple_of),
            };
            Err(Error::WidthTooLarge { argument, value, count })
        }
    }
}

impl Default for BinWidth {
    fn default() -> Self {
        Self { fixed: None, least: 0, multiple_of: 1 }
    }
}

impl Default for WidthOptions {
    fn default() -> Self {
        Self {
            sequence: None,
            prompt: None,
            response: None,
            multiple_of: 1,
            bin_multiple_of: 1,
            least: Widths::default(),
        }
    }
}
