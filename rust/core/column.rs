//! What a field looks like to plans and writers: rows of values that can be read.

use crate::element::{Element, Misfit, Slice};
use crate::error::{Error, Place, Result};

/// A per-token field of every turn, readable into a destination.
///
/// A column only answers what a row holds. It decides nothing and moves nothing by itself.
pub trait Column<T> {
    /// What goes wrong when a value cannot be read.
    type Error;

    /// Number of tokens of a turn.
    fn row_len(&self, turn: usize) -> usize;

    /// Read the turn's values from token `from` on into `out`, `out.len()` of them.
    ///
    /// # Errors
    /// A value that does not fit; `out` may be partly written then.
    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<(), Self::Error>;
}

/// A column whose rows are plain memory: the form that needs no Python and may cross threads.
#[derive(Debug, Clone)]
pub struct SliceColumn<'a> {
    field: &'a str,
    rows: Vec<Slice<'a>>,
    refuses_nan: bool,
}

impl<'a> SliceColumn<'a> {
    /// A column over `rows`; `field` names it in errors, `refuses_nan` makes NaN one.
    pub fn new(field: &'a str, rows: Vec<Slice<'a>>, refuses_nan: bool) -> Self {
        Self {
            field,
            rows,
            refuses_nan,
        }
    }
}

impl<T: Element> Column<T> for SliceColumn<'_> {
    type Error = Error;

    fn row_len(&self, turn: usize) -> usize {
        self.rows[turn].len()
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        read_slice(self.field, turn, &self.rows[turn], from, out)?;
        if self.refuses_nan {
            refuse_nan(self.field, turn, from, out)?;
        }
        Ok(())
    }
}

/// Read a turn's values from token `from` on, out of the slice that holds the turn.
///
/// # Errors
/// [`Error::DoesNotFit`] naming the first value that does not.
pub fn read_slice<T: Element>(
    field: &str,
    turn: usize,
    values: &Slice,
    from: usize,
    out: &mut [T],
) -> Result<()> {
    T::read(values, from, out).map_err(|Misfit { position, value }| Error::DoesNotFit {
        place: Place {
            field: field.to_owned(),
            row: turn,
            position: Some(from + position),
        },
        value,
        dtype: T::DTYPE,
    })
}

/// Check that a turn's values are of a kind that `T` can be read from.
///
/// # Errors
/// [`Error::Kind`].
pub fn check_kind<T: Element>(field: &str, turn: usize, values: &Slice) -> Result<()> {
    if T::accepts(values) {
        return Ok(());
    }
    Err(Error::Kind {
        field: field.to_owned(),
        row: turn,
        found: values.dtype(),
        expected: T::HOLDS,
    })
}

/// Check values just read from token `from` of a turn.
///
/// # Errors
/// [`Error::Nan`] naming the first NaN.
pub fn refuse_nan<T: Element>(field: &str, turn: usize, from: usize, values: &[T]) -> Result<()> {
    // Fold over all of them first: without an early exit the loop vectorises.
    if !values.iter().fold(false, |any, value| any | value.is_nan()) {
        return Ok(());
    }
    let first = values.iter().position(|value| value.is_nan());
    Err(Error::Nan {
        place: Place {
            field: field.to_owned(),
            row: turn,
            position: first.map(|first| from + first),
        },
    })
}
