//! Widths of output rows, given or as long as the longest row.

use super::Row;
use super::placement::MAX_POSITIONS;
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
    /// Minimum lengths that widths from the data hold: those of rows in other batches.
    pub least: Widths,
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
        Self {
            sequence,
            multiple_of,
            ..Self::default()
        }
    }

    /// Check that rows are no longer than fixed widths.
    ///
    /// # Errors
    /// [`Error::TooWide`] naming the first row that is longer.
    pub fn check(&self, rows: &[Row]) -> Result<()> {
        let check = |len: fn(&Row) -> usize, fixed: Option<usize>, unit, argument| {
            let too_wide = |width| rows.iter().position(|row| len(row) > width);
            match fixed.and_then(|width| Some((width, too_wide(width)?))) {
                None => Ok(()),
                Some((width, row)) => Err(Error::TooWide {
                    row,
                    found: len(&rows[row]),
                    unit,
                    argument,
                    width,
                }),
            }
        };
        check(Row::len, self.sequence, "tokens", "pad_to")?;
        check(
            |row| row.prompt_len,
            self.prompt,
            "prompt tokens",
            "pad_prompt_to",
        )?;
        check(
            |row| row.response_len,
            self.response,
            "response tokens",
            "pad_response_to",
        )
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
    let width = fixed
        .unwrap_or(longest)
        .checked_next_multiple_of(multiple_of);
    match width.and_then(|width| width.checked_mul(count.max(1))) {
        Some(positions) if positions <= MAX_POSITIONS => Ok(positions / count.max(1)),
        _ => {
            let (argument, value) = match fixed {
                Some(width) => (argument, width),
                None => ("multiple_of", multiple_of),
            };
            Err(Error::WidthTooLarge {
                argument,
                value,
                count,
            })
        }
    }
}

impl Default for WidthOptions {
    fn default() -> Self {
        Self {
            sequence: None,
            prompt: None,
            response: None,
            multiple_of: 1,
            least: Widths::default(),
        }
    }
}
