//! Checks of values beyond their type.

use std::fmt::Debug;

use crate::dtype::Dtype;
use crate::element::{Element, Slice};
use crate::error::{Error, Location, Result};

/// Token ids are below this number.
pub const TOKEN_IDS: i64 = 1 << 31;

/// A check of values beyond the range of their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Nothing.
    None,
    /// No NaN.
    Number,
    /// Finite and not negative: for weights of tokens.
    Weight,
    /// A weight that is a whole number, which the dtype can hold and float64 exactly.
    Whole(Dtype),
    /// An index from 0 to below the given limit; or -1 for none, where the type has signs.
    Index(i64),
}

/// Check that `T` can be read from a turn's values.
///
/// # Errors
/// [`Error::WrongType`].
pub fn check_type<T: Element>(field: &str, turn: usize, values: &Slice) -> Result<()> {
    if T::accepts(values) {
        return Ok(());
    }
    Err(Error::WrongType {
        field: field.to_owned(),
        row: turn,
        found: values.dtype(),
        expected: T::HOLDS,
    })
}

/// Check values just read from token `from` of a turn, `inner` per token.
///
/// # Errors
/// [`Error::NotFinite`], [`Error::Negative`], [`Error::NotWhole`] or [`Error::NoIndex`] naming the first wrong value.
#[inline(never)]
pub fn check_values<T: Element>(
    field: &str,
    turn: usize,
    inner: usize,
    from: usize,
    values: &[T],
    check: Check,
) -> Result<()> {
    let Some(position) = T::first_wrong(values, check) else {
        return Ok(());
    };
    let location =
        Location { field: field.to_owned(), row: turn, position: Some(from + position / inner) };
    Err(check.failed(location, &values[position]))
}

impl Check {
    /// The error for a value that fails the check.
    fn failed(self, location: Location, value: &dyn Debug) -> Error {
        // In exponent notation if there are many digits.
        let value = format!("{value:?}").trim_end_matches(".0").to_owned();
        let is_negative = value.starts_with('-');
        match self {
            Self::Weight | Self::Whole(_) if is_negative => Error::Negative { location, value },
            Self::None | Self::Number | Self::Weight => Error::NotFinite { location, value },
            Self::Whole(dtype) => Error::NotWhole { location, value, dtype },
            Self::Index(limit) => Error::NoIndex { location, value, limit },
        }
    }
}
