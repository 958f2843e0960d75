//! One field of all rows, in any accepted form.

use std::ops::Range;
use std::sync::Arc;

use fastcollate::plan::{Chosen, Runs};
use fastcollate::polling::{compared_in_chunks, in_chunks, poll_step};
use fastcollate::{
    At, Check, Column, Element, Error as Core, FieldColumn, Lookahead, Number, Slice, SliceColumn,
    TokenValues, Tokens, check_type, check_values, common_values, common_when_read, gathered,
    read_number, read_tokens, with_room,
};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::array::{ArrayInput, ArrayView, Float};
use super::list::{Common, DecodeExact, Items, announce, common_items, first_boolean, read_items};
use super::number::numbers_of;
use super::object::POLL_ROWS;
use super::reader::{Reader, Wanted};
use crate::error::{Error, Result};
use crate::interrupt::poll;

/// A field: its rows as they were passed, each kept alive and read in place.
pub struct PyRows<'py> {
    field: String,
    /// Index of the first row in errors.
    first: usize,
    rows: Vec<Row<'py>>,
    /// The turns that these are, if not all of the input.
    chosen: Option<Arc<Chosen>>,
    /// The tokens that they are for, if not the first of each turn.
    runs: Option<Runs>,
    /// Arrays with several rows each.
    shared: Vec<ArrayView<'py>>,
    token: TokenValues,
    check: Check,
    /// True if each row is one number, whatever its length.
    is_one_number_each: bool,
}

pub enum Row<'py> {
    /// A list, with its length at planning.
    List(Bound<'py, PyList>, usize),
    Tuple(Bound<'py, PyTuple>),
    Array(ArrayView<'py>),
    /// A span of tokens of a shared array.
    Part {
        array: usize,
        start: usize,
        len: usize,
    },
    /// One number for all tokens of the row.
    Number {
        number: RowNumber,
        len: usize,
    },
}

/// The number of a row.
#[derive(Clone, Copy)]
pub struct RowNumber {
    pub value: Number,
    /// True if it was given and is not a default.
    pub is_given: bool,
}

/// The meaning of rows that are None.
#[derive(Clone, Copy)]
pub enum Missing {
    /// Invalid, like other objects that are not rows.
    NoRow,
    /// Invalid without a default.
    NeedsDefault,
    /// This number, repeated for each token.
    Is(Number),
}

impl Missing {
    /// The number of a row that is None.
    ///
    /// # Errors
    /// A missing default.
    pub fn number(self, field: &str, row: usize) -> Result<RowNumber> {
        match self {
            Self::Is(value) => Ok(RowNumber { value, is_given: false }),
            Self::NoRow | Self::NeedsDefault => {
                let field = field.to_owned();
                Err(Core::MissingRow { field, row }.into())
            }
        }
    }
}

impl<'py> PyRows<'py> {
    /// No rows.
    pub fn none() -> Self {
        Self::of_parts("", 0, Vec::new(), None, Vec::new(), Vec::new())
    }

    /// Read a field's rows, all or chosen ones, checking that each can hold values of type `T`.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` naming the field and the first row that cannot be read.
    pub fn new<T: Element>(
        field: &str,
        rows: &Bound<'py, PyAny>,
        chosen: Option<&Arc<Chosen>>,
    ) -> Result<Self> {
        Reader::new::<T>(field, false).among(chosen).read(rows)?.checked::<T>(Check::None)
    }

    /// Read a single row, with its index in the field.
    ///
    /// # Errors
    /// As [`Rows::new`].
    pub fn single<T: Element>(field: &str, index: usize, row: &Bound<'py, PyAny>) -> Result<Self> {
        Reader::new::<T>(field, false).read_single(index, row)?.checked::<T>(Check::None)
    }

    /// Read a field with one number per row, each a row of one item; `None` if the first item is
    /// itself a row.
    ///
    /// # Errors
    /// `TypeError` naming the first item that is not a number, and those of `check_count`.
    pub fn one_number_each<T: Element>(
        field: &str,
        numbers: &Bound<'py, PyAny>,
        chosen: Option<&Arc<Chosen>>,
        check: Check,
        missing: Missing,
        check_count: impl Fn(usize) -> Result<()>,
    ) -> Result<Option<Self>> {
        let wanted = Wanted(chosen.map(|chosen| &**chosen));
        let numbers = numbers_of::<T>(field, numbers, wanted, missing, check_count)?;
        let Some(numbers) = numbers else {
            return Ok(None);
        };
        let rows = gathered(numbers.into_iter().map(Row::of_number))?;
        Ok(Some(Self {
            check,
            is_one_number_each: true,
            ..Self::of_parts(field, 0, rows, chosen.cloned(), Vec::new(), Vec::new())
        }))
    }

    /// Rows that have been read; `first` is the index of the first one in errors.
    pub fn of_parts(
        field: &str,
        first: usize,
        rows: Vec<Row<'py>>,
        chosen: Option<Arc<Chosen>>,
        shared: Vec<ArrayView<'py>>,
        trailing: Vec<usize>,
    ) -> Self {
        Self {
            field: field.to_owned(),
            first,
            rows,
            chosen,
            runs: None,
            shared,
            token: TokenValues::new(trailing),
            check: Check::None,
            is_one_number_each: false,
        }
    }

    /// The rows, whose values are checked as they are read.
    ///
    /// # Errors
    /// `TypeError` naming the first row that cannot hold values of type `T`.
    pub fn checked<T: Element>(mut self, check: Check) -> Result<Self> {
        self.check = check;
        let field = &self.field;
        if T::accepts(&Slice::F64(&[0.0])) {
            return Ok(self);
        }
        for array in self.shared.iter().filter(|array| array.holds_floats()) {
            // All of one kind.
            let values = array.values()?.ok_or_else(|| self.moved(0))?;
            check_type::<T>(field, 0, &values)?;
        }
        for (index, row) in self.rows.iter().enumerate() {
            if let Row::Array(array) = row
                && array.holds_floats()
            {
                let values = array.values()?.ok_or_else(|| self.moved(index))?;
                check_type::<T>(field, self.number(index), &values)?;
            }
        }
        Ok(self)
    }

    /// Replace a row by these integers.
    ///
    /// # Errors
    /// Exceptions of NumPy.
    pub fn replace(&mut self, py: Python<'py>, row: usize, values: Vec<i64>) -> Result<()> {
        let array = PyArray1::from_vec(py, values);
        let input = ArrayInput::of_array(array.as_untyped().clone());
        let location = || format!("{}[{row}]", self.field);
        let view = ArrayView::new(input, 1, Float::before::<i64>(), location)?;
        self.rows[row] = Row::Array(view);
        Ok(())
    }

    /// Set the number of tokens of rows that are None, by row index.
    pub fn fill_missing(&mut self, row_len: impl Fn(usize) -> usize) {
        if self.is_one_number_each {
            return;
        }
        for (index, row) in self.rows.iter_mut().enumerate() {
            if let Row::Number { len, .. } = row {
                *len = row_len(index);
            }
        }
    }

    /// Set the tokens that the rows are for.
    pub fn set_runs(&mut self, runs: Runs) {
        self.runs = Some(runs);
    }

    /// Number of rows of the input.
    pub fn count(&self) -> usize {
        let chosen = self.chosen.as_ref();
        chosen.map_or(self.rows.len(), |chosen| chosen.total)
    }

    /// The number of a row in the input.
    pub fn number(&self, row: usize) -> usize {
        let chosen = self.chosen.as_ref();
        chosen.map_or(self.first + row, |chosen| chosen.numbers[row])
    }

    /// The column over plain memory, if no row needs the interpreter.
    ///
    /// # Errors
    /// An array that was moved.
    pub fn as_slices(&self) -> Result<Option<SliceColumn<'_>>> {
        if self.is_one_number_each {
            let numbers = self.rows.iter().filter_map(Row::number);
            let numbers = gathered(numbers.map(|number| number.value))?;
            let column = SliceColumn::of_numbers(&self.field, numbers, self.check);
            return Ok(Some(column.among(self.chosen.clone())));
        }
        let is_memory = |row: usize| match self.rows[row] {
            Row::Array(_) | Row::Part { .. } => !self.is_tensor(row),
            Row::List(..) | Row::Tuple(_) | Row::Number { .. } => false,
        };
        let rows = 0..self.rows.len();
        if !rows.clone().all(is_memory) {
            return Ok(None);
        }
        let mut slices = with_room(rows.len())?;
        for row in rows {
            if row % POLL_ROWS == POLL_ROWS - 1 {
                poll()?;
            }
            slices.extend(self.slice(row)?);
        }
        let column = SliceColumn::of_tokens(&self.field, slices, self.token.clone(), self.check);
        Ok(Some(column.among(self.chosen.clone())))
    }

    /// Refuse rows that begin with a boolean: masks in place of token ids.
    ///
    /// # Errors
    /// `TypeError` naming the first.
    pub fn without_booleans(self) -> Result<Self> {
        (0..self.rows.len()).try_for_each(|row| self.refuse_booleans(row, 1))?;
        Ok(self)
    }

    /// Refuse a boolean among the first items of a row.
    ///
    /// # Errors
    /// `TypeError` naming it.
    pub fn refuse_booleans(&self, row: usize, items: usize) -> Result<()> {
        let found = match &self.rows[row] {
            Row::List(list, _) => first_boolean(Items::List(list), items),
            Row::Tuple(tuple) => first_boolean(Items::Tuple(tuple), items),
            Row::Array(array) => array.is_boolean().then_some(0),
            Row::Part { array, .. } => self.shared[*array].is_boolean().then_some(0),
            Row::Number { .. } => None,
        };
        let found = found.filter(|_| self.rows[row].len() > 0);
        found.map_or(Ok(()), |at| {
            Err(Error::WrongType {
                location: format!("{}[{}][{at}]", self.field, self.number(row)),
                found: "a bool".to_owned(),
                expected: "pass token ids, not a mask",
            })
        })
    }

    /// True if the values are read as whole numbers.
    pub fn holds_whole_numbers(&self) -> bool {
        matches!(self.check, Check::Whole(_))
    }

    /// True if a row is memory of a tensor.
    fn is_tensor(&self, row: usize) -> bool {
        match &self.rows[row] {
            Row::Array(array) => array.is_tensor(),
            Row::Part { array, .. } => self.shared[*array].is_tensor(),
            Row::Number { .. } | Row::List(..) | Row::Tuple(_) => false,
        }
    }

    /// A row's values if it is plain memory. Use them as those of [`ArrayView::values`].
    fn slice(&self, row: usize) -> Result<Option<Slice<'_>>> {
        Ok(match &self.rows[row] {
            Row::Array(array) => Some(array.values()?.ok_or_else(|| self.moved(row))?),
            Row::Part { array, start, len } => {
                let values = self.shared[*array].values()?;
                let values = values.ok_or_else(|| self.moved(row))?;
                let stride = self.token.stride();
                Some(values.range(start * stride..(start + len) * stride))
            }
            Row::List(..) | Row::Tuple(_) | Row::Number { .. } => None,
        })
    }

    fn moved(&self, row: usize) -> Error {
        Error::Moved { field: self.field.clone(), row: self.number(row) }
    }
}

impl FieldColumn for PyRows<'_> {
    fn lens(&self) -> Result<Vec<usize>, Core> {
        gathered(self.rows.iter().map(Row::len))
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
            let (mut row, mut numbers) = (0, chosen.numbers.iter().peekable());
            self.rows.retain(|_| {
                let is_chosen = numbers.next_if_eq(&&row).is_some();
                row += 1;
                is_chosen
            });
            self.chosen = Some(chosen.clone());
        }
    }

    fn trailing(&self) -> &[usize] {
        self.token.trailing()
    }

    fn is_one_number_each(&self) -> bool {
        self.is_one_number_each
    }

    fn numbers(&self) -> Result<Option<Vec<f64>>, Core> {
        if !self.is_one_number_each {
            return Ok(None);
        }
        let numbers = self.rows.iter().filter_map(Row::number);
        gathered(numbers.map(|number| number.value.to_f64())).map(Some)
    }

    fn is_given(&self, turn: usize) -> bool {
        self.rows[turn].number().is_none_or(|number| number.is_given)
    }

    fn set_numbers(&mut self, numbers: Vec<f64>) -> Result<(), Core> {
        let row =
            |number| Row::of_number(RowNumber { value: Number::Float(number), is_given: true });
        self.rows = gathered(numbers.into_iter().map(row))?;
        Ok(())
    }

    fn limit_indices(&mut self, limit: i64) {
        self.check = Check::Index(limit);
    }

    fn keep(&mut self, part: Range<usize>) {
        self.token.keep(part);
    }

    fn largest(&self, turns: &mut dyn Iterator<Item = usize>) -> Result<Option<i128>, Core> {
        let mut largest = None;
        for turn in turns {
            let bound = self.slice(turn)?.and_then(|values| values.upper_bound());
            largest = largest.max(bound);
        }
        Ok(largest)
    }
}

impl<T: DecodeExact> Column<T> for PyRows<'_> {
    fn row_len(&self, turn: usize) -> usize {
        self.rows[turn].len()
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<(), Core> {
        in_chunks(from, out, self.inner(), &poll, |from, out| Ok(self.read_chunk(turn, from, out)?))
    }

    fn announce(&self, turn: usize, from: usize, lookahead: Lookahead) {
        if let Row::List(list, len) = &self.rows[turn] {
            announce(list, *len, from, lookahead);
        }
    }
}

impl PyRows<'_> {
    fn read_chunk<T: DecodeExact>(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let (field, row) = (&self.field, self.number(turn));
        match (self.rows[turn].items(), self.rows[turn].number()) {
            (Some((items, len)), _) => read_items(items, len, from, out, field, row)?,
            (None, Some(number)) => read_number(field, row, number.value, out)?,
            (None, None) => {
                let values = self.slice(turn)?.expect("all other rows are plain memory");
                read_tokens(field, row, &values, &self.token, from, out)?;
            }
        }
        Ok(check_values(field, row, self.inner(), from, out, self.check)?)
    }
}

impl Tokens for PyRows<'_> {
    fn common_len(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize, Core> {
        compared_in_chunks(len, &poll, |done, len| {
            Ok(self.common_chunk(at.after(done), other, other_at.after(done), len)?)
        })
    }

    fn pause(&self) -> Result<(), Core> {
        poll_step(&poll)
    }
}

impl PyRows<'_> {
    fn common_chunk(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize> {
        let mut done = 0;
        while done < len {
            let (at, other_at, len) = (at.after(done), other_at.after(done), len - done);
            let (a, b) = (&self.rows[at.turn], &other.rows[other_at.turn]);
            let (Some((a, a_len)), Some((b, b_len))) = (a.items(), b.items()) else {
                let common = self.common_values(at, other, other_at, len);
                return common.map(|common| done + common);
            };
            match common_items((a, a_len, at.token), (b, b_len, other_at.token), len) {
                Common::Len(common) => return Ok(done + common),
                Common::Unknown(common) => {
                    done += common;
                    let (at, other_at) = (at.after(common), other_at.after(common));
                    if common_when_read(self, at, other, other_at, 1)? == 0 {
                        return Ok(done);
                    }
                    done += 1;
                }
            }
        }
        Ok(len)
    }

    /// Compare tokens of rows of which at least one is plain memory.
    fn common_values(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize> {
        // Looking up a tensor may run Python code, which may move memory looked up before: so at
        // most one row is a tensor, and it comes first. Two tensors are compared by copying.
        let (a, b) = match (self.is_tensor(at.turn), other.is_tensor(other_at.turn)) {
            (true, true) => (None, None),
            (false, true) => {
                let b = other.slice(other_at.turn)?;
                (self.slice(at.turn)?, b)
            }
            (_, false) => (self.slice(at.turn)?, other.slice(other_at.turn)?),
        };
        if let (Some(a), Some(b)) = (a, b) {
            let a = a.range(at.token..at.token + len);
            let b = b.range(other_at.token..other_at.token + len);
            if let Some(common) = common_values(&a, &b) {
                return Ok(common);
            }
        }
        Ok(common_when_read(self, at, other, other_at, len)?)
    }
}

impl<'py> Row<'py> {
    /// The items of a list or tuple, and their number in the plan.
    fn items(&self) -> Option<(Items<'_, 'py>, usize)> {
        match self {
            Self::List(list, len) => Some((Items::List(list), *len)),
            Self::Tuple(tuple) => Some((Items::Tuple(tuple), tuple.len())),
            _ => None,
        }
    }

    /// A row of one number.
    pub fn of_number(number: RowNumber) -> Self {
        Self::Number { number, len: 1 }
    }

    /// The number of all tokens, if the row is one number.
    fn number(&self) -> Option<RowNumber> {
        match self {
            Self::Number { number, .. } => Some(*number),
            _ => None,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::List(_, len) | Self::Part { len, .. } | Self::Number { len, .. } => *len,
            Self::Tuple(tuple) => tuple.len(),
            Self::Array(array) => array.tokens(),
        }
    }
}
