//! Columns: the interface through which plans and writers read fields.

use std::ops::Range;
use std::slice::from_ref;
use std::sync::Arc;

use half::{bf16, f16};

use crate::check::{Check, check_values};
use crate::element::{Element, Misfit, Slice, common_values};
use crate::error::{Error, Location, Result};
use crate::fill_number::Number;
use crate::memory::gathered;
use crate::plan::{Chosen, Runs};

/// A per-token field of turns.
///
/// A column only reads rows.
pub trait Column<T> {
    /// Number of tokens in a turn.
    fn row_len(&self, turn: usize) -> usize;

    /// Read `out.len()` values of a turn from token `from` on, token by token, all values of each.
    ///
    /// # Errors
    /// A value that does not fit; `out` may then be partly written.
    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()>;

    /// Announce that a turn will be read from token `from` on, and how soon. A column may prefetch
    /// memory that the processor cannot predict.
    fn announce(&self, _turn: usize, _from: usize, _lookahead: Lookahead) {}
}

/// How soon a turn will be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookahead {
    /// Next.
    Next,
    /// After the next.
    Later,
}

/// A column of token ids that can be compared in place.
pub trait Tokens: Column<i64> {
    /// Length of the common prefix of two spans of `len` tokens.
    ///
    /// # Errors
    /// A value that is not a token id.
    fn common_len(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize>;

    /// Called now and then during long work. An error ends the work.
    ///
    /// # Errors
    /// The reason to end it.
    fn pause(&self) -> Result<()> {
        Ok(())
    }
}

/// A token of a column.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// The turn.
    pub turn: usize,
    /// The token in the turn.
    pub token: usize,
}

impl At {
    /// The token this many tokens later.
    #[must_use]
    pub fn after(self, tokens: usize) -> Self {
        Self { token: self.token + tokens, ..self }
    }
}

/// A column readable as every output number type.
pub trait AnyColumn:
    Column<bool>
    + Column<u8>
    + Column<i16>
    + Column<i32>
    + Column<i64>
    + Column<f16>
    + Column<bf16>
    + Column<f32>
    + Column<f64>
{
}

impl<C: ?Sized> AnyColumn for C where
    C: Column<bool>
        + Column<u8>
        + Column<i16>
        + Column<i32>
        + Column<i64>
        + Column<f16>
        + Column<bf16>
        + Column<f32>
        + Column<f64>
{
}

/// A column as planning uses it.
pub trait FieldColumn: AnyColumn {
    /// Number of tokens in every turn.
    fn lens(&self) -> Result<Vec<usize>>;

    /// The turns that it has, if not all of the input.
    fn chosen(&self) -> Option<&Arc<Chosen>>;

    /// Drop all other turns than these, if it has them.
    fn choose(&mut self, chosen: &Arc<Chosen>);

    /// The tokens that it has values for, if not the first of each turn.
    fn runs(&self) -> Option<&Runs>;

    /// Trailing dimensions of a token's values; empty for scalars.
    fn trailing(&self) -> &[usize];

    /// True if each row is one number for all of its tokens.
    fn is_one_number_each(&self) -> bool;

    /// The numbers, if each row is a single number.
    fn numbers(&self) -> Result<Option<Vec<f64>>>;

    /// True if a turn's row was given and is not a default.
    fn is_given(&self, turn: usize) -> bool;

    /// Replace each row with one number.
    fn set_numbers(&mut self, numbers: Vec<f64>) -> Result<()>;

    /// Require values to be indices below a limit.
    fn limit_indices(&mut self, limit: i64);

    /// Read only this range of the first trailing dimension.
    fn keep(&mut self, part: Range<usize>);

    /// Upper bound of the values of these turns, with the bit width of the largest; none if there
    /// are no values.
    ///
    /// # Errors
    /// Turns that cannot be read.
    fn largest(&self, turns: &mut dyn Iterator<Item = usize>) -> Result<Option<i128>>;

    /// Number of values per token.
    fn inner(&self) -> usize {
        self.trailing().iter().product()
    }
}

/// A column of plain memory, which needs no Python and may cross threads.
#[derive(Debug, Clone)]
pub struct SliceColumn<'a> {
    field: &'a str,
    rows: RowValues<'a>,
    token: TokenValues,
    check: Check,
    chosen: Option<Arc<Chosen>>,
    runs: Option<Runs>,
}

/// The values of a token: all in memory, or a part of them.
#[derive(Debug, Clone)]
pub struct TokenValues {
    /// Trailing dimensions of the values read.
    trailing: Vec<usize>,
    /// Number of values per token in memory.
    stride: usize,
    /// Number of values skipped before those read.
    skip: usize,
}

impl TokenValues {
    /// All values of these trailing dimensions.
    pub fn new(trailing: Vec<usize>) -> Self {
        Self { stride: trailing.iter().product(), skip: 0, trailing }
    }

    /// Read only a range of the first trailing dimension.
    ///
    /// # Panics
    /// If there are no trailing dimensions.
    pub fn keep(&mut self, part: Range<usize>) {
        let inner: usize = self.trailing[1..].iter().product();
        self.skip += part.start * inner;
        self.trailing[0] = part.len();
    }

    /// Trailing dimensions of the values read; empty for scalars.
    pub fn trailing(&self) -> &[usize] {
        &self.trailing
    }

    /// Number of values per token in memory.
    pub fn stride(&self) -> usize {
        self.stride
    }
}

/// Rows of values, or one number per row.
#[derive(Debug, Clone)]
enum RowValues<'a> {
    Slices(Vec<Slice<'a>>),
    Numbers(Vec<Number>),
}

impl<'a> SliceColumn<'a> {
    /// A column over `rows` with these trailing dimensions; `field` is its name in errors.
    pub fn new(field: &'a str, rows: Vec<Slice<'a>>, trailing: Vec<usize>, check: Check) -> Self {
        Self::of_tokens(field, rows, TokenValues::new(trailing), check)
    }

    /// A column over `rows` with these token values.
    pub fn of_tokens(
        field: &'a str,
        rows: Vec<Slice<'a>>,
        token: TokenValues,
        check: Check,
    ) -> Self {
        Self { field, rows: RowValues::Slices(rows), token, check, chosen: None, runs: None }
    }

    /// A column of one number per row.
    pub fn of_numbers(field: &'a str, numbers: Vec<Number>, check: Check) -> Self {
        Self {
            field,
            rows: RowValues::Numbers(numbers),
            token: TokenValues::new(Vec::new()),
            check,
            chosen: None,
            runs: None,
        }
    }

    /// The same column, over the rows of chosen turns.
    #[must_use]
    pub fn among(self, chosen: Option<Arc<Chosen>>) -> Self {
        Self { chosen, ..self }
    }

    /// The same column, with values for these tokens.
    #[must_use]
    pub fn of_runs(self, runs: Runs) -> Self {
        Self { runs: Some(runs), ..self }
    }

    /// The number of a turn in the input.
    fn number(&self, turn: usize) -> usize {
        self.chosen.as_ref().map_or(turn, |chosen| chosen.numbers[turn])
    }

    /// A turn's values.
    fn slice(&self, turn: usize) -> Slice<'_> {
        match &self.rows {
            RowValues::Slices(rows) => rows[turn],
            RowValues::Numbers(numbers) => match &numbers[turn] {
                Number::Int(int) => Slice::I64(from_ref(int)),
                Number::Float(float) => Slice::F64(from_ref(float)),
            },
        }
    }

    /// Number of turns.
    fn count(&self) -> usize {
        match &self.rows {
            RowValues::Slices(rows) => rows.len(),
            RowValues::Numbers(numbers) => numbers.len(),
        }
    }
}

impl FieldColumn for SliceColumn<'_> {
    fn lens(&self) -> Result<Vec<usize>> {
        let len = |turn| Column::<i64>::row_len(self, turn);
        gathered((0..self.count()).map(len))
    }

    fn chosen(&self) -> Option<&Arc<Chosen>> {
        self.chosen.as_ref()
    }

    fn runs(&self) -> Option<&Runs> {
        self.runs.as_ref()
    }

    fn choose(&mut self, chosen: &Arc<Chosen>) {
        if self.chosen.is_none() {
            self.runs = self.runs.as_ref().map(|runs| runs.of(chosen));
            self.rows = match &self.rows {
                RowValues::Slices(rows) => RowValues::Slices(chosen.of(rows)),
                RowValues::Numbers(numbers) => RowValues::Numbers(chosen.of(numbers)),
            };
            self.chosen = Some(chosen.clone());
        }
    }

    fn trailing(&self) -> &[usize] {
        self.token.trailing()
    }

    fn is_one_number_each(&self) -> bool {
        matches!(self.rows, RowValues::Numbers(_))
    }

    fn numbers(&self) -> Result<Option<Vec<f64>>> {
        match &self.rows {
            RowValues::Slices(_) => Ok(None),
            RowValues::Numbers(numbers) => {
                gathered(numbers.iter().map(|number| number.to_f64())).map(Some)
            }
        }
    }

    fn is_given(&self, _: usize) -> bool {
        true
    }

    fn set_numbers(&mut self, numbers: Vec<f64>) -> Result<()> {
        self.rows = RowValues::Numbers(gathered(numbers.into_iter().map(Number::Float))?);
        Ok(())
    }

    fn limit_indices(&mut self, limit: i64) {
        self.check = Check::Index(limit);
    }

    fn keep(&mut self, part: Range<usize>) {
        self.token.keep(part);
    }

    fn largest(&self, turns: &mut dyn Iterator<Item = usize>) -> Result<Option<i128>> {
        let bounds = turns.map(|turn| self.slice(turn).upper_bound());
        Ok(bounds.max().flatten())
    }
}

impl<T: Element> Column<T> for SliceColumn<'_> {
    fn row_len(&self, turn: usize) -> usize {
        self.slice(turn).len() / self.token.stride.max(1)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let (inner, row) = (self.inner().max(1), self.number(turn));
        match &self.rows {
            RowValues::Slices(rows) => {
                read_tokens(self.field, row, &rows[turn], &self.token, from, out)?;
            }
            RowValues::Numbers(numbers) => read_number(self.field, row, numbers[turn], out)?,
        }
        check_values(self.field, row, inner, from, out, self.check)
    }
}

/// Values compared or converted at a time.
pub(crate) const CHUNK: usize = 1 << 12;

impl Tokens for SliceColumn<'_> {
    fn common_len(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize> {
        let a = self.slice(at.turn).range(at.token..at.token + len);
        let b = other.slice(other_at.turn).range(other_at.token..other_at.token + len);
        match common_values(&a, &b) {
            Some(common) => Ok(common),
            None => common_when_read(self, at, other, other_at, len),
        }
    }
}

/// Compare tokens by reading both columns, whatever their storage.
///
/// # Errors
/// Those of the columns.
pub fn common_when_read<C: Column<i64>>(
    column: &C,
    at: At,
    other: &C,
    other_at: At,
    len: usize,
) -> Result<usize> {
    let (mut a, mut b) = ([0; CHUNK], [0; CHUNK]);
    for done in (0..len).step_by(CHUNK) {
        let count = CHUNK.min(len - done);
        let (a, b) = (&mut a[..count], &mut b[..count]);
        column.read(at.turn, at.token + done, a)?;
        other.read(other_at.turn, other_at.token + done, b)?;
        if let Some(differs) = a.iter().zip(b).position(|(a, b)| a != b) {
            return Ok(done + differs);
        }
    }
    Ok(len)
}

/// Read a turn's values from token `from` on. `values` describes the values per token in the slice
/// of the turn.
///
/// # Errors
/// [`Error::DoesNotFit`] naming the first value that does not fit.
#[inline(never)]
pub fn read_tokens<T: Element>(
    field: &str,
    turn: usize,
    slice: &Slice,
    values: &TokenValues,
    from: usize,
    out: &mut [T],
) -> Result<()> {
    let TokenValues { stride, skip, .. } = *values;
    let inner = values.trailing.iter().product::<usize>().max(1);
    if inner == stride.max(1) {
        return read_slice(field, turn, slice, inner, from, out);
    }
    for (token, out) in (from..).zip(out.chunks_mut(inner)) {
        let read = T::read(slice, token * stride + skip, out);
        read.map_err(|misfit| does_not_fit::<T>(field, turn, token, misfit.value))?;
    }
    Ok(())
}

/// Read a turn's values from token `from` on. The slice of the turn has `inner` values per token.
///
/// # Errors
/// [`Error::DoesNotFit`] naming the first value that does not fit.
pub fn read_slice<T: Element>(
    field: &str,
    turn: usize,
    values: &Slice,
    inner: usize,
    from: usize,
    out: &mut [T],
) -> Result<()> {
    let read = T::read(values, from * inner, out);
    read.map_err(|Misfit { position, value }| {
        does_not_fit::<T>(field, turn, from + position / inner, value)
    })
}

fn does_not_fit<T: Element>(field: &str, turn: usize, token: usize, value: String) -> Error {
    Error::DoesNotFit {
        location: Location { field: field.to_owned(), row: turn, position: Some(token) },
        value,
        dtype: T::DTYPE,
    }
}

/// Repeat a turn's one number over `out`.
///
/// # Errors
/// [`Error::DoesNotFit`].
#[inline(never)]
pub fn read_number<T: Element>(
    field: &str,
    turn: usize,
    number: Number,
    out: &mut [T],
) -> Result<()> {
    let value = number.cast().ok_or_else(|| Error::DoesNotFit {
        location: Location { field: field.to_owned(), row: turn, position: None },
        value: number.to_string(),
        dtype: T::DTYPE,
    })?;
    T::fill(out, value);
    Ok(())
}
