//! What a field looks like to plans and writers: rows of values that can be read.

use crate::element::{Element, Misfit, Slice, common_values};
use crate::error::{Error, Place, Result};

/// A per-token field of every turn, readable into a destination.
///
/// A column only answers what a row holds. It decides nothing and moves nothing by itself.
pub trait Column<T> {
    /// What goes wrong when a value cannot be read.
    type Error;

    /// Number of tokens of a turn.
    fn row_len(&self, turn: usize) -> usize;

    /// Read the turn's values from token `from` on into `out`, `out.len()` of them: all values of
    /// a token, and then the next token's.
    ///
    /// # Errors
    /// A value that does not fit; `out` may be partly written then.
    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<(), Self::Error>;

    /// Hear that a turn is to be read soon, from token `from` on, and how soon. A column whose values
    /// the processor cannot foresee may ask for their memory.
    fn announce(&self, _turn: usize, _from: usize, _soon: Soon) {}
}

/// When a turn is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Soon {
    /// Next.
    Next,
    /// After the next.
    Later,
}

/// A column of token ids that can be compared where they lie.
pub trait Tokens: Column<i64> {
    /// How many of the `len` tokens from one place on are the same as those from the other on,
    /// before the first that is not.
    ///
    /// # Errors
    /// A value that is no token id.
    fn common_len(
        &self,
        at: At,
        other: &Self,
        other_at: At,
        len: usize,
    ) -> Result<usize, Self::Error>;

    /// Hear, from time to time, that long work goes on. A column may end it.
    ///
    /// # Errors
    /// Why the work is to end.
    fn pause(&self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A token of a column.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// The turn.
    pub turn: usize,
    /// The token in it.
    pub token: usize,
}

impl At {
    /// The token so many further on.
    #[must_use]
    pub fn behind(self, tokens: usize) -> Self {
        Self {
            token: self.token + tokens,
            ..self
        }
    }
}

/// What is asked of values beyond fitting their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Nothing.
    None,
    /// No NaN: what weighs or masks has to be a number.
    Number,
    /// An index, from 0 to below so many.
    Index(i64),
}

/// A column whose rows are plain memory: the form that needs no Python and may cross threads.
#[derive(Debug, Clone)]
pub struct SliceColumn<'a> {
    field: &'a str,
    rows: Vec<Slice<'a>>,
    inner: usize,
    check: Check,
}

impl<'a> SliceColumn<'a> {
    /// A column over `rows` of `inner` values a token; `field` names it in errors.
    pub fn new(field: &'a str, rows: Vec<Slice<'a>>, inner: usize, check: Check) -> Self {
        Self {
            field,
            rows,
            inner: inner.max(1),
            check,
        }
    }

    /// Number of values of a token.
    pub fn inner(&self) -> usize {
        self.inner
    }
}

impl<T: Element> Column<T> for SliceColumn<'_> {
    type Error = Error;

    fn row_len(&self, turn: usize) -> usize {
        self.rows[turn].len() / self.inner
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        read_slice(self.field, turn, &self.rows[turn], self.inner, from, out)?;
        check_values(self.field, turn, self.inner, from, out, self.check)
    }
}

/// Read a turn's prompt + response from token `from` on.
pub fn read_stream<T: Element, C: Column<T>>(
    prompts: &C,
    responses: &C,
    turn: usize,
    from: usize,
    out: &mut [T],
) -> Result<(), C::Error> {
    let prompt_len = prompts.row_len(turn);
    let from_prompt = prompt_len.saturating_sub(from).min(out.len());
    let (prompt, response) = out.split_at_mut(from_prompt);
    if !prompt.is_empty() {
        prompts.read(turn, from, prompt)?;
    }
    if !response.is_empty() {
        responses.read(turn, from.saturating_sub(prompt_len), response)?;
    }
    Ok(())
}

/// Tokens that are compared at a time.
const STRETCH: usize = 1 << 10;

impl Tokens for SliceColumn<'_> {
    fn common_len(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize> {
        let a = self.rows[at.turn].range(at.token..at.token + len);
        let b = other.rows[other_at.turn].range(other_at.token..other_at.token + len);
        match common_values(&a, &b) {
            Some(common) => Ok(common),
            None => common_when_read(self, at, other, other_at, len),
        }
    }
}

/// Compare tokens by reading both, however they are held.
///
/// # Errors
/// What the columns raise.
pub fn common_when_read<C: Column<i64>>(
    column: &C,
    at: At,
    other: &C,
    other_at: At,
    len: usize,
) -> Result<usize, C::Error> {
    let (mut a, mut b) = ([0; STRETCH], [0; STRETCH]);
    for done in (0..len).step_by(STRETCH) {
        let count = STRETCH.min(len - done);
        let (a, b) = (&mut a[..count], &mut b[..count]);
        column.read(at.turn, at.token + done, a)?;
        other.read(other_at.turn, other_at.token + done, b)?;
        if let Some(differs) = a.iter().zip(b).position(|(a, b)| a != b) {
            return Ok(done + differs);
        }
    }
    Ok(len)
}

/// Read a turn's values from token `from` on, out of the slice that holds the turn with `inner`
/// values a token.
///
/// # Errors
/// [`Error::DoesNotFit`] naming the first value that does not.
pub fn read_slice<T: Element>(
    field: &str,
    turn: usize,
    values: &Slice,
    inner: usize,
    from: usize,
    out: &mut [T],
) -> Result<()> {
    let read = T::read(values, from * inner, out);
    read.map_err(|Misfit { position, value }| Error::DoesNotFit {
        place: Place {
            field: field.to_owned(),
            row: turn,
            position: Some(from + position / inner),
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

/// Check values just read from token `from` of a turn, `inner` of each token.
///
/// # Errors
/// [`Error::Nan`] or [`Error::NoIndex`] naming the first value that is not as it should be.
pub fn check_values<T: Element>(
    field: &str,
    turn: usize,
    inner: usize,
    from: usize,
    values: &[T],
    check: Check,
) -> Result<()> {
    let place = |position: usize| Place {
        field: field.to_owned(),
        row: turn,
        position: Some(from + position / inner),
    };
    match check {
        Check::None => Ok(()),
        Check::Number => match first(values, |value| value.is_nan()) {
            None => Ok(()),
            Some(position) => Err(Error::Nan {
                place: place(position),
            }),
        },
        // All bytes are.
        Check::Index(limit) if limit > 0xFF && size_of::<T>() == 1 => Ok(()),
        Check::Index(limit) => match first(values, |value| !value.is_index(limit)) {
            None => Ok(()),
            Some(position) => Err(Error::NoIndex {
                place: place(position),
                value: values[position].to_string(),
                limit,
            }),
        },
    }
}

/// Position of the first value that is wrong.
fn first<T: Copy>(values: &[T], is_wrong: impl Fn(T) -> bool) -> Option<usize> {
    // Fold over all of them first: without an early exit the loop vectorises.
    if !values
        .iter()
        .fold(false, |any, &value| any | is_wrong(value))
    {
        return None;
    }
    values.iter().position(|&value| is_wrong(value))
}
