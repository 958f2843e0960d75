//! What a field looks like to plans and writers: rows of values that can be read.

use std::ops::Range;
use std::slice::from_ref;

use half::{bf16, f16};

use crate::check::{Check, check_values};
use crate::element::{Element, Misfit, Slice, common_values};
use crate::error::{Error, InputPlace, Result};
use crate::fill_number::Number;

/// A per-token field of every turn, readable into a destination.
///
/// A column only answers what a row holds. It decides nothing and moves nothing by itself.
pub trait Column<T> {
    /// Number of tokens of a turn.
    fn row_len(&self, turn: usize) -> usize;

    /// Read the turn's values from token `from` on into `out`, `out.len()` of them: all values of
    /// a token, and then the next token's.
    ///
    /// # Errors
    /// A value that does not fit; `out` may be partly written then.
    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()>;

    /// Hear that a turn is to be read soon, from token `from` on, and how soon. A column whose values
    /// the processor cannot foresee may ask for their memory.
    fn announce(&self, _turn: usize, _from: usize, _lookahead: Lookahead) {}
}

/// When a turn is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookahead {
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
    fn common_len(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize>;

    /// Hear, from time to time, that long work goes on. A column may end it.
    ///
    /// # Errors
    /// Why the work is to end.
    fn pause(&self) -> Result<()> {
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
    pub fn after(self, tokens: usize) -> Self {
        Self {
            token: self.token + tokens,
            ..self
        }
    }
}

/// A column that every number type of outputs can be read from.
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

/// A column as a batch is planned by.
pub trait FieldColumn: AnyColumn {
    /// Number of tokens of every turn.
    fn lens(&self) -> Vec<usize>;

    /// Dimensions of a token's values: none where these are single numbers.
    fn trailing(&self) -> &[usize];

    /// Whether each row is one number for all of its tokens.
    fn is_one_number_each(&self) -> bool;

    /// The numbers, if each row is one.
    fn numbers(&self) -> Option<Vec<f64>>;

    /// Whether a turn's row was given, and is no default.
    fn is_given(&self, turn: usize) -> bool;

    /// Put one number in the place of each row.
    fn set_numbers(&mut self, numbers: Vec<f64>);

    /// Ask that values be indices below a limit.
    fn limit_indices(&mut self, limit: i64);

    /// Read only these of the first dimension of a token's values.
    fn keep(&mut self, part: Range<usize>);

    /// A number that no value of these turns exceeds, with as many bits as the largest; none where
    /// there is no value.
    ///
    /// # Errors
    /// Turns that cannot be read.
    fn largest(&self, turns: &mut dyn Iterator<Item = usize>) -> Result<Option<i128>>;

    /// Number of values of a token.
    fn inner(&self) -> usize {
        self.trailing().iter().product()
    }
}

/// A column whose rows are plain memory: the form that needs no Python and may cross threads.
#[derive(Debug, Clone)]
pub struct SliceColumn<'a> {
    field: &'a str,
    rows: Rows<'a>,
    token: TokenValues,
    check: Check,
}

/// The values of a token: all that it has in memory, or a part of them.
#[derive(Debug, Clone)]
pub struct TokenValues {
    /// Dimensions of those that are read.
    trailing: Vec<usize>,
    /// How many there are in memory.
    stride: usize,
    /// How many of them are in front of those that are read.
    skip: usize,
}

impl TokenValues {
    /// All values of these dimensions.
    pub fn new(trailing: Vec<usize>) -> Self {
        Self {
            stride: trailing.iter().product(),
            skip: 0,
            trailing,
        }
    }

    /// Read only a part of the first dimension.
    ///
    /// # Panics
    /// If there is none.
    pub fn keep(&mut self, part: Range<usize>) {
        let inner: usize = self.trailing[1..].iter().product();
        self.skip += part.start * inner;
        self.trailing[0] = part.len();
    }

    /// Dimensions of the values that are read: none where these are single numbers.
    pub fn trailing(&self) -> &[usize] {
        &self.trailing
    }

    /// Number of values in memory.
    pub fn stride(&self) -> usize {
        self.stride
    }
}

/// Rows of values, or one number each.
#[derive(Debug, Clone)]
enum Rows<'a> {
    Slices(Vec<Slice<'a>>),
    Numbers(Vec<Number>),
}

impl<'a> SliceColumn<'a> {
    /// A column over `rows` whose tokens have values of these dimensions; `field` names it in errors.
    pub fn new(field: &'a str, rows: Vec<Slice<'a>>, trailing: Vec<usize>, check: Check) -> Self {
        Self::of_tokens(field, rows, TokenValues::new(trailing), check)
    }

    /// A column over `rows` whose tokens have these values.
    pub fn of_tokens(
        field: &'a str,
        rows: Vec<Slice<'a>>,
        token: TokenValues,
        check: Check,
    ) -> Self {
        Self {
            field,
            rows: Rows::Slices(rows),
            token,
            check,
        }
    }

    /// A column of one number for each row.
    pub fn of_numbers(field: &'a str, numbers: Vec<Number>, check: Check) -> Self {
        Self {
            field,
            rows: Rows::Numbers(numbers),
            token: TokenValues::new(Vec::new()),
            check,
        }
    }

    /// A turn's values.
    fn slice(&self, turn: usize) -> Slice<'_> {
        match &self.rows {
            Rows::Slices(rows) => rows[turn],
            Rows::Numbers(numbers) => match &numbers[turn] {
                Number::Int(int) => Slice::I64(from_ref(int)),
                Number::Float(float) => Slice::F64(from_ref(float)),
            },
        }
    }

    /// Number of turns.
    fn count(&self) -> usize {
        match &self.rows {
            Rows::Slices(rows) => rows.len(),
            Rows::Numbers(numbers) => numbers.len(),
        }
    }
}

impl FieldColumn for SliceColumn<'_> {
    fn lens(&self) -> Vec<usize> {
        let len = |turn| Column::<i64>::row_len(self, turn);
        (0..self.count()).map(len).collect()
    }

    fn trailing(&self) -> &[usize] {
        self.token.trailing()
    }

    fn is_one_number_each(&self) -> bool {
        matches!(self.rows, Rows::Numbers(_))
    }

    fn numbers(&self) -> Option<Vec<f64>> {
        match &self.rows {
            Rows::Slices(_) => None,
            Rows::Numbers(numbers) => Some(numbers.iter().map(|number| number.to_f64()).collect()),
        }
    }

    fn is_given(&self, _: usize) -> bool {
        true
    }

    fn set_numbers(&mut self, numbers: Vec<f64>) {
        self.rows = Rows::Numbers(numbers.into_iter().map(Number::Float).collect());
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
        let inner = self.inner().max(1);
        match &self.rows {
            Rows::Slices(rows) => {
                read_tokens(self.field, turn, &rows[turn], &self.token, from, out)?;
            }
            Rows::Numbers(numbers) => read_number(self.field, turn, numbers[turn], out)?,
        }
        check_values(self.field, turn, inner, from, out, self.check)
    }
}

/// Values of a column that are whole numbers, as it was asked to check ([`Check::Whole`]): read as float64,
/// which holds them exactly, and converted. So integers, booleans and floats may stand for them alike.
pub struct WholeNumbers<'a>(pub &'a dyn Column<f64>);

impl<T: Element> Column<T> for WholeNumbers<'_> {
    fn row_len(&self, turn: usize) -> usize {
        self.0.row_len(turn)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let (mut numbers, mut whole) = ([0.0; CHUNK], [0; CHUNK]);
        for (index, out) in out.chunks_mut(CHUNK).enumerate() {
            let numbers = &mut numbers[..out.len()];
            self.0.read(turn, from + index * CHUNK, numbers)?;
            for (whole, &mut number) in whole.iter_mut().zip(numbers) {
                *whole = number as i64;
            }
            T::read(&Slice::I64(&whole), 0, out).expect("the column checks that they fit");
        }
        Ok(())
    }

    fn announce(&self, turn: usize, from: usize, lookahead: Lookahead) {
        self.0.announce(turn, from, lookahead);
    }
}

/// Values that are compared or converted at a time.
const CHUNK: usize = 1 << 12;

impl Tokens for SliceColumn<'_> {
    fn common_len(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize> {
        let a = self.slice(at.turn).range(at.token..at.token + len);
        let b = other
            .slice(other_at.turn)
            .range(other_at.token..other_at.token + len);
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

/// Read a turn's values from token `from` on, out of the slice that holds the turn with all `values` of
/// a token.
///
/// # Errors
/// [`Error::DoesNotFit`] naming the first value that does not.
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
    read.map_err(|Misfit { position, value }| {
        does_not_fit::<T>(field, turn, from + position / inner, value)
    })
}

fn does_not_fit<T: Element>(field: &str, turn: usize, token: usize, value: String) -> Error {
    Error::DoesNotFit {
        place: InputPlace {
            field: field.to_owned(),
            row: turn,
            position: Some(token),
        },
        value,
        dtype: T::DTYPE,
    }
}

/// Rounds weights to those that an output holds: it may hold 0 where they are not.
pub type Rounding = fn(&mut [f64]);

/// Values of a column, of one number a token, where a loss mask trains; elsewhere another.
pub struct TrainedValues<'a, T> {
    /// The values.
    pub values: &'a dyn Column<T>,
    /// The loss mask.
    pub mask: &'a dyn Column<f64>,
    /// What rounds weights: where one is 0 then, nothing trains.
    pub round: Rounding,
    /// What stands there.
    pub fill: T,
}

impl<T: Element> Column<T> for TrainedValues<'_, T> {
    fn row_len(&self, turn: usize) -> usize {
        self.values.row_len(turn)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let mut weights = [0.0; CHUNK];
        for (index, out) in out.chunks_mut(CHUNK).enumerate() {
            let (from, weights) = (from + index * CHUNK, &mut weights[..out.len()]);
            self.values.read(turn, from, out)?;
            self.mask.read(turn, from, weights)?;
            (self.round)(weights);
            for (value, weight) in out.iter_mut().zip(weights) {
                // No branch: which weights are 0 is hard to predict.
                *value = if *weight == 0.0 { self.fill } else { *value };
            }
        }
        Ok(())
    }

    fn announce(&self, turn: usize, from: usize, lookahead: Lookahead) {
        self.mask.announce(turn, from, lookahead);
    }
}

/// Read a turn's one number, as often as there is place.
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
        place: InputPlace {
            field: field.to_owned(),
            row: turn,
            position: None,
        },
        value: number.to_string(),
        dtype: T::DTYPE,
    })?;
    T::fill(out, value);
    Ok(())
}
