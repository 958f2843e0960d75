//! What is asked of values: that their type holds them, and more.

use std::fmt::Debug;

use crate::dtype::Dtype;
use crate::element::{Element, Slice};
use crate::error::{Error, InputPlace, Result};

/// What is asked of values beyond fitting their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Nothing.
    None,
    /// No NaN: what weighs or masks has to be a number.
    Number,
    /// A whole number that a dtype holds, and float64 exactly.
    Whole(Dtype),
    /// An index, from 0 to below so many.
    Index(i64),
}

/// Check that a turn's values are of a kind that `T` can be read from.
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

/// Check values just read from token `from` of a turn, `inner` of each token.
///
/// # Errors
/// [`Error::Nan`], [`Error::NotWhole`] or [`Error::NoIndex`] naming the first value that is not as it
/// should be.
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
    let place = InputPlace {
        field: field.to_owned(),
        row: turn,
        position: Some(from + position / inner),
    };
    Err(check.failed(place, &values[position]))
}

impl Check {
    /// The error for a value that does not pass.
    fn failed(self, place: InputPlace, value: &dyn Debug) -> Error {
        // With an exponent where there are many digits.
        let value = format!("{value:?}").trim_end_matches(".0").to_owned();
        match self {
            Self::None | Self::Number => Error::Nan { place },
            Self::Whole(dtype) => Error::NotWhole {
                place,
                value,
                dtype,
            },
            Self::Index(limit) => Error::NoIndex {
                place,
                value,
                limit,
            },
        }
    }
}
