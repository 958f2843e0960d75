//! Reading the rows of a field.

use std::sync::Arc;

use fastcollate::plan::Chosen;
use fastcollate::{Element, Error as Core, check_room, gathered};
use numpy::PyUntypedArray;
use numpy::prelude::*;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::array::{ArrayInput, ArrayView, Float};
use super::arrow::{self, Chunk};
use super::nested::Part;
use super::object::{
    POLL_ROWS, as_array, is_list_of_rows, is_objects, is_sequence, iterated, of_table, to_list,
};
use super::py_rows::{Missing, PyRows, Row};
use super::ragged;
use super::tensor;
use crate::error::{Error, Result, no_memory};
use crate::interrupt::poll;

const EXPECTED_FIELD: &str = "pass a sequence of rows ([x] for a single row x), a 2-D array or \
     tensor, a Ragged or an Arrow array of lists";
const EXPECTED_REWARDS: &str =
    "pass a list with one number per row, or rows with one number per response token";
const EXPECTED_MASK: &str = "pass one value per response token of each row, as by \
     [[m] * len(r) for m, r in zip(masks, responses)]";
const EXPECTED_ROW: &str = "pass one list, array or tensor of numbers per row, as in [1, 2, 3], or \
     [[1, 2, 3]] for a column of one row";
const EXPECTED_ROW_OF_FIELD: &str = "pass one list, array or tensor of numbers per row, or \
     fc.Field(..., spread='all') of one number per row";
const EXPECTED_NUMBERS: &str = "pass one number per token (x[0] of a batch x of one row), or \
     several as fields={key: fastcollate.Field(rows)}";

/// Reads the rows of a field in any accepted form.
pub struct Reader<'a, 'py> {
    field: &'a str,
    /// Index of the first row in errors.
    first: usize,
    /// True if a row may have more than one dimension.
    allows_trailing: bool,
    /// Target type of floats of unusual precision.
    unusual: Float,
    /// The meaning of rows that are None.
    missing: Missing,
    /// The part to read of rows that are not in one column.
    part: Option<Part>,
    chosen: Option<&'a Arc<Chosen>>,
    /// Number of rows of the input so far, chosen or not.
    count: usize,
    rows: Vec<Row<'py>>,
    shared: Vec<ArrayView<'py>>,
    /// Trailing dimensions of a token's values, and the first row that had them.
    trailing: Option<(Vec<usize>, usize)>,
    /// Rows on other devices.
    on_device: Vec<(usize, Bound<'py, PyAny>)>,
}

/// The rows to be read: all, or chosen ones.
#[derive(Clone, Copy)]
pub struct Wanted<'a>(pub Option<&'a Chosen>);

impl<'a> Wanted<'a> {
    /// The wanted rows among `count` of them from `begin` on, as offsets from there.
    pub fn within(self, begin: usize, count: usize) -> impl Iterator<Item = usize> + use<'a> {
        let numbers = self.0.map(|chosen| &*chosen.numbers);
        let from = |at: usize| move |numbers: &[usize]| numbers.partition_point(|&it| it < at);
        let part = numbers.map(|it| &it[from(begin)(it)..from(begin + count)(it)]);
        let all = 0..part.map_or(count, |_| 0);
        all.chain(part.into_iter().flatten().map(move |number| number - begin))
    }

    /// The wanted items of a sequence. Its items may be changed, but no code runs meanwhile.
    pub fn of<'py>(self, items: &Bound<'py, PyList>) -> Result<Vec<Bound<'py, PyAny>>> {
        let item = |index| items.get_item(index).ok();
        Ok(gathered(self.within(0, items.len()).filter_map(item))?)
    }
}

impl<'a, 'py> Reader<'a, 'py> {
    /// A reader for a field of this name, whose values are read as `T`.
    pub fn new<T: Element>(field: &'a str, allows_trailing: bool) -> Self {
        Self {
            field,
            first: 0,
            allows_trailing,
            unusual: Float::before::<T>(),
            missing: Missing::NoRow,
            part: None,
            chosen: None,
            count: 0,
            rows: Vec::new(),
            shared: Vec::new(),
            trailing: None,
            on_device: Vec::new(),
        }
    }

    /// The same reader, with a meaning for rows that are None.
    pub fn with_missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// The same reader, of a part of rows whose tokens have any number of values.
    pub fn of_part(self, part: Part) -> Self {
        Self { part: Some(part), ..self }
    }

    /// The same reader, of chosen rows. Of another number of rows, none is kept.
    pub fn among(self, chosen: Option<&'a Arc<Chosen>>) -> Self {
        Self { chosen, ..self }
    }

    /// Read the rows.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` naming the field and the first invalid row.
    pub fn read(mut self, rows: &Bound<'py, PyAny>) -> Result<PyRows<'py>> {
        let is_list = rows.is_exact_instance_of::<PyList>();
        let read = of_table(rows, self.field)?;
        let rows = read.as_ref().unwrap_or(rows);
        if !is_list && self.read_column(rows)? {
            return Ok(self.finish());
        }
        let rows = match tensor::unbound(rows)? {
            Some(rows) => rows,
            None if is_sequence(rows)? => to_list(rows)?,
            None => return Err(self.wrong_type(rows)),
        };
        let wanted = self.next(rows.len());
        self.reserve(self.chosen.map_or(rows.len(), |chosen| chosen.numbers.len()))?;
        for number in wanted {
            // Its code may have changed the list.
            let Ok(row) = rows.get_item(number) else {
                break;
            };
            let index = self.rows.len();
            let row = self.part_of(index, row)?;
            self.read_row(index, row)?;
            if index % POLL_ROWS == POLL_ROWS - 1 {
                rows.py().check_signals()?;
            }
        }
        let (held, on_device) = (self.rows.len(), self.on_device.len());
        // Other rows are read until one gives the trailing dimensions, the same for all choices.
        for (number, row) in rows.iter().enumerate() {
            if self.part.is_some()
                || self.chosen.is_none()
                || !self.allows_trailing
                || self.trailing.is_some()
            {
                break;
            }
            if self.on_device.len() > on_device {
                break;
            }
            self.rows.truncate(held);
            self.first = number;
            self.read_row(held, row)?;
        }
        self.read_device_rows()?;
        self.rows.truncate(held);
        Ok(self.finish())
    }

    /// Read a single row, with its index in the field.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read_single(mut self, index: usize, row: &Bound<'py, PyAny>) -> Result<PyRows<'py>> {
        self.first = index;
        self.read_row(0, row.clone())?;
        self.read_device_rows()?;
        Ok(self.finish())
    }

    /// Read an array whose first dimension is rows, with one token each.
    ///
    /// # Errors
    /// `TypeError` for objects that are not arrays of numbers, and those of `check_count`.
    pub fn read_one_token_each(
        mut self,
        values: &Bound<'py, PyAny>,
        check_count: impl Fn(usize) -> Result<()>,
    ) -> Result<PyRows<'py>> {
        match as_array(values, || self.field.to_owned())? {
            Some(input) if input.array.ndim() > 0 => {
                let rows = input.array.shape()[0];
                check_count(rows)?;
                let parts = self.next(rows).map(|row| (row, 1));
                self.read_parts(input, 1, parts)?;
                Ok(self.finish())
            }
            _ => Err(self.wrong_type(values)),
        }
    }

    /// Refuse more rows than there is memory for, with their plan; allocating the tables would
    /// abort.
    fn reserve(&mut self, rows: usize) -> Result<()> {
        check_room(rows)?;
        self.rows.try_reserve(rows).map_err(|_| no_memory_for(rows))
    }

    fn finish(mut self) -> PyRows<'py> {
        let trailing = self.trailing.unwrap_or_default().0;
        let mut chosen = self.chosen.cloned();
        let held = chosen.as_ref().map(|chosen| (chosen.total, chosen.numbers.len()));
        if held.is_some_and(|held| held != (self.count, self.rows.len())) {
            self.rows.clear();
            chosen = Some(Arc::new(Chosen::new(Vec::new(), self.count)));
        }
        PyRows::of_parts(self.field, self.first, self.rows, chosen, self.shared, trailing)
    }

    /// The wanted ones of the next rows, as offsets from the first of them.
    fn next(&mut self, count: usize) -> impl Iterator<Item = usize> + use<'a> {
        self.count += count;
        Wanted(self.chosen.map(|chosen| &**chosen)).within(self.count - count, count)
    }

    /// Read an object that holds all rows in one or a few pieces of memory; false for any other
    /// object.
    fn read_column(&mut self, rows: &Bound<'py, PyAny>) -> Result<bool> {
        if !rows.is_instance_of::<PyUntypedArray>()
            && let Some(parts) = ragged::parts(rows, self.field, |count| self.next(count))?
        {
            for (values, spans) in parts {
                let Some(values) = values else {
                    for _ in spans {
                        let row = self.missing_row(self.rows.len())?;
                        self.rows.push(row);
                    }
                    continue;
                };
                let values = as_array(&values, || self.field.to_owned())?;
                let values = values.ok_or_else(|| self.wrong_type(rows))?;
                self.read_parts(values, 1, spans.into_iter())?;
            }
            return Ok(true);
        }
        if !tensor::is_nested(rows)?
            && let Some(input) = as_array(rows, || self.field.to_owned())?
            && !is_objects(&input.array)
        {
            let (count, len) = match *input.array.shape() {
                [] | [_] => return Err(self.wrong_type(rows)),
                [count, len] => (count, len),
                [count, len, ..] if self.allows_trailing => (count, len),
                _ => {
                    let field = self.field.to_owned();
                    return Err(Error::shape(field, input.array.shape(), EXPECTED_FIELD));
                }
            };
            let parts = self.next(count).map(|row| (row * len, len));
            self.read_parts(input, 2, parts)?;
            return Ok(true);
        }
        let allows_null_rows = !matches!(self.missing, Missing::NoRow);
        if let Some(chunks) = arrow::chunks(rows, self.field, allows_null_rows)? {
            for Chunk { values, offsets, nulls, .. } in chunks {
                let first = self.count;
                let parts = self
                    .next(offsets.len() - 1)
                    .map(|row| (offsets[row], offsets[row + 1] - offsets[row]));
                self.read_parts(ArrayInput::of_array(values), 1, parts)?;
                for row in nulls {
                    let index = self.chosen.map_or(Some(first + row), |it| it.index(first + row));
                    if let Some(index) = index {
                        self.rows[index] = self.missing_row(index)?;
                    }
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Take rows that are spans (start, len) of one array, whose first `leading` dimensions count
    /// the tokens.
    fn read_parts(
        &mut self,
        values: ArrayInput<'py>,
        leading: usize,
        mut parts: impl Iterator<Item = (usize, usize)>,
    ) -> Result<()> {
        let view = ArrayView::new(values, leading, self.unusual, || self.field.to_owned())?;
        let (array, tokens) = (self.shared.len(), view.tokens());
        if !self.allows_trailing && !view.trailing().is_empty() {
            let (location, len) = match parts.next() {
                Some((_, len)) => (self.location(self.rows.len()), len),
                None => (self.field.to_owned(), 0),
            };
            let shape = [&[len], view.trailing()].concat();
            return Err(Error::shape(location, &shape, EXPECTED_NUMBERS));
        }
        self.check_trailing(self.rows.len(), tokens, view.trailing())?;
        self.reserve(parts.size_hint().0)?;
        for (index, (start, len)) in parts.enumerate() {
            if index % POLL_ROWS == POLL_ROWS - 1 {
                poll()?;
            }
            if start.checked_add(len).is_none_or(|end| end > tokens) {
                return Err(Error::Overrun {
                    field: self.field.to_owned(),
                    row: self.number(self.rows.len()),
                    start,
                    len,
                    tokens,
                });
            }
            self.rows.push(Row::Part { array, start, len });
        }
        self.shared.push(view);
        Ok(())
    }

    /// A row that is None.
    fn missing_row(&self, index: usize) -> Result<Row<'py>> {
        let number = self.missing.number(self.field, self.number(index))?;
        Ok(Row::of_number(number))
    }

    /// The part of a row that is read.
    fn part_of(&self, index: usize, row: Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
        let number = self.number(index);
        match self.part {
            None => Ok(row),
            Some(part) => part(&row, self.field, number),
        }
    }

    fn read_row(&mut self, index: usize, row: Bound<'py, PyAny>) -> Result<()> {
        if row.is_none() && !matches!(self.missing, Missing::NoRow) {
            let row = self.missing_row(index)?;
            self.rows.push(row);
            return Ok(());
        }
        let (field, number) = (self.field, self.number(index));
        let location = || format!("{field}[{number}]");
        let row = iterated(row, location)?;
        if self.allows_trailing && is_list_of_rows(&row)? {
            let py = row.py();
            let arrays = py.import(intern!(py, "fastcollate.common.arrays"))?;
            let array = arrays.call_method1(intern!(py, "read_array"), (&row,));
            let array = array.map_err(|cause| Error::raised(py, location(), cause))?;
            return self.read_row(index, array);
        }
        let row = match row.cast_into::<PyList>() {
            Ok(list) => {
                let len = list.len();
                self.check_trailing(index, len, &[])?;
                self.rows.push(Row::List(list, len));
                return Ok(());
            }
            Err(error) => error.into_inner(),
        };
        let row = match row.cast_into::<PyTuple>() {
            Ok(tuple) => {
                self.check_trailing(index, tuple.len(), &[])?;
                self.rows.push(Row::Tuple(tuple));
                return Ok(());
            }
            Err(error) => error.into_inner(),
        };
        let is_array = row.is_instance_of::<PyUntypedArray>();
        if !is_array
            && let Some(view) = ArrayView::of_tensor(&row)?
            && self.is_row(1 + view.trailing().len())
        {
            self.check_trailing(index, view.tokens(), view.trailing())?;
            self.rows.push(Row::Array(view));
            return Ok(());
        }
        if !is_array && tensor::is_on_device(&row)? {
            self.on_device.push((index, row));
            // Placeholder until all of them are copied at once.
            self.rows.push(Row::Part { array: 0, start: 0, len: 0 });
            return Ok(());
        }
        match as_array(&row, location)? {
            Some(input) if self.is_row(input.array.ndim()) => {
                let view = ArrayView::new(input, 1, self.unusual, location)?;
                self.check_trailing(index, view.tokens(), view.trailing())?;
                self.rows.push(Row::Array(view));
                Ok(())
            }
            Some(input) if input.array.ndim() > 1 => {
                let shape = input.array.shape();
                Err(Error::shape(location(), shape, EXPECTED_NUMBERS))
            }
            _ => {
                let of_field = self.allows_trailing && self.field != "rows"; // which pad has
                let expected = if of_field { EXPECTED_ROW_OF_FIELD } else { EXPECTED_ROW };
                Err(Error::wrong_type(location(), &row, self.expected(expected)))
            }
        }
    }

    fn is_row(&self, dimensions: usize) -> bool {
        dimensions == 1 || (dimensions > 1 && self.allows_trailing)
    }

    /// Copy the rows on other devices: one copy per device and dtype.
    fn read_device_rows(&mut self) -> Result<()> {
        let mut rest = std::mem::take(&mut self.on_device);
        while let Some((_, first)) = rest.first() {
            let py = first.py();
            let kind = |row: &Bound<'py, PyAny>| {
                let device = row.getattr(intern!(py, "device"))?;
                Ok::<_, PyErr>((device, row.getattr(intern!(py, "dtype"))?))
            };
            let wanted = kind(first)?;
            let (mut indices, mut tensors) = (Vec::new(), Vec::new());
            let mut others = Vec::new();
            for (index, row) in rest {
                let (device, dtype) = kind(&row)?;
                if device.eq(&wanted.0)? && dtype.eq(&wanted.1)? {
                    indices.push(index);
                    tensors.push(row);
                } else {
                    others.push((index, row));
                }
            }
            let mut parts = Vec::new();
            let mut end = 0;
            for (&index, tensor) in indices.iter().zip(&tensors) {
                let shape: Vec<usize> = tensor.getattr(intern!(py, "shape"))?.extract()?;
                match shape.split_first() {
                    Some((&len, trailing)) if self.is_row(shape.len()) => {
                        self.check_trailing(index, len, trailing)?;
                        parts.push((index, end, len));
                        end += len;
                    }
                    Some(_) => {
                        return Err(Error::shape(self.location(index), &shape, EXPECTED_NUMBERS));
                    }
                    None => {
                        return Err(Error::WrongType {
                            location: self.location(index),
                            found: "a tensor of shape ()".to_owned(),
                            expected: EXPECTED_ROW,
                        });
                    }
                }
            }
            let location = || self.location(indices[0]);
            let values = tensor::concatenated(&tensors);
            let values = values.map_err(|cause| Error::raised(py, location(), cause))?;
            let view = ArrayView::new(values, 1, self.unusual, location)?;
            self.shared.push(view);
            let array = self.shared.len() - 1;
            for (index, start, len) in parts {
                self.rows[index] = Row::Part { array, start, len };
            }
            rest = others;
        }
        Ok(())
    }

    /// Check that a row's tokens have the same trailing shape as those of the rows before. A
    /// one-dimensional row without tokens has any.
    fn check_trailing(&mut self, row: usize, tokens: usize, trailing: &[usize]) -> Result<()> {
        if !self.allows_trailing || (tokens == 0 && trailing.is_empty()) {
            return Ok(());
        }
        match &self.trailing {
            None => self.trailing = Some((trailing.to_vec(), self.number(row))),
            // Not by `==`: its memcmp of empty vectors, whose address is not mapped, takes 0.2 µs.
            Some((expected, _)) if expected.iter().eq(trailing) => {}
            Some((expected, first)) => {
                return Err(Core::Trailing {
                    field: self.field.to_owned(),
                    row: self.number(row),
                    found: trailing.to_vec(),
                    first: *first,
                    expected: expected.clone(),
                }
                .into());
            }
        }
        Ok(())
    }

    /// The location of a row in errors.
    fn location(&self, index: usize) -> String {
        format!("{}[{}]", self.field, self.number(index))
    }

    /// The number of a row in the input.
    fn number(&self, index: usize) -> usize {
        let numbers = self.chosen.map_or(&[][..], |chosen| &chosen.numbers);
        let number = numbers.get(index).copied();
        number.unwrap_or_else(|| self.first + index - numbers.len())
    }

    fn wrong_type(&self, rows: &Bound<'py, PyAny>) -> Error {
        Error::wrong_type(self.field.to_owned(), rows, self.expected(EXPECTED_FIELD))
    }

    /// What is expected of the field: numbers of rows, too, or something else.
    fn expected(&self, other: &'static str) -> &'static str {
        match self.field {
            "rewards" | "advantages" => EXPECTED_REWARDS,
            "loss_mask" => EXPECTED_MASK,
            _ => other,
        }
    }
}

/// The error for more rows than there is memory for.
pub fn no_memory_for(rows: usize) -> Error {
    no_memory(&format!("no memory for a plan of {rows} rows")).into()
}
