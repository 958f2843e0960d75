//! Reading the rows of a field.

use fastcollate::{Element, Error as Core, check_room};
use numpy::PyUntypedArray;
use numpy::prelude::*;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::array::{ArrayInput, ArrayView, Float};
use super::arrow::{self, Chunk};
use super::object::{
    POLL_ROWS, as_array, is_list_of_rows, is_objects, is_sequence, iterated, of_table, to_list,
};
use super::py_rows::{Missing, PyRows, Row};
use super::ragged::{self, Parts};
use super::tensor;
use crate::error::{Error, Result};

const EXPECTED_FIELD: &str =
    "pass a sequence of rows, a 2-D array or tensor, a Ragged or an Arrow array of lists";
const EXPECTED_ROW: &str = "pass a list or tuple of numbers, or a 1-D array or tensor";
const EXPECTED_NUMBERS: &str = "pass one number per token, or several as \
     fields={key: fastcollate.Field(rows)}";
const EXPECTED_ROW_OF_ANY: &str = "pass a list, an array or a tensor of numbers";

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
    rows: Vec<Row<'py>>,
    shared: Vec<ArrayView<'py>>,
    /// Trailing dimensions of a token's values, and the first row that had them.
    trailing: Option<(Vec<usize>, usize)>,
    /// Rows on other devices.
    on_device: Vec<(usize, Bound<'py, PyAny>)>,
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

    /// Read all rows.
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
        self.reserve(rows.len())?;
        for (index, row) in rows.iter().enumerate() {
            self.read_row(index, row)?;
            if index % POLL_ROWS == POLL_ROWS - 1 {
                rows.py().check_signals()?;
            }
        }
        self.read_device_rows()?;
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
                self.read_parts(input, 1, (0..rows).map(|row| (row, 1)))?;
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

    fn finish(self) -> PyRows<'py> {
        let trailing = self
            .trailing
            .map_or_else(Vec::new, |(trailing, _)| trailing);
        PyRows::of_parts(self.field, self.first, self.rows, self.shared, trailing)
    }

    /// Read an object that holds all rows in one or a few pieces of memory; false for any other
    /// object.
    fn read_column(&mut self, rows: &Bound<'py, PyAny>) -> Result<bool> {
        if !rows.is_instance_of::<PyUntypedArray>()
            && let Some(parts) = ragged::parts(rows, self.field)?
        {
            for Parts {
                values,
                starts,
                lens,
            } in parts
            {
                let Some(values) = values else {
                    for index in self.rows.len()..self.rows.len() + lens.len() {
                        let row = self.missing_row(index)?;
                        self.rows.push(row);
                    }
                    continue;
                };
                let values = as_array(&values, || self.field.to_owned())?;
                let values = values.ok_or_else(|| self.wrong_type(rows))?;
                self.read_parts(values, 1, starts.into_iter().zip(lens))?;
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
            self.read_parts(input, 2, (0..count).map(|row| (row * len, len)))?;
            return Ok(true);
        }
        let allows_null_rows = !matches!(self.missing, Missing::NoRow);
        if let Some(chunks) = arrow::chunks(rows, self.field, allows_null_rows)? {
            for Chunk {
                values,
                offsets,
                nulls,
            } in chunks
            {
                let first = self.rows.len();
                let parts = offsets.windows(2).map(|ends| (ends[0], ends[1] - ends[0]));
                self.read_parts(ArrayInput::of_array(values), 1, parts)?;
                for row in nulls {
                    self.rows[first + row] = self.missing_row(first + row)?;
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
        mut parts: impl ExactSizeIterator<Item = (usize, usize)>,
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
        self.reserve(parts.len())?;
        for (start, len) in parts {
            if start.checked_add(len).is_none_or(|end| end > tokens) {
                return Err(Error::Overrun {
                    field: self.field.to_owned(),
                    row: self.rows.len(),
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
        let number = self.missing.number(self.field, self.first + index)?;
        Ok(Row::of_number(number))
    }

    fn read_row(&mut self, index: usize, row: Bound<'py, PyAny>) -> Result<()> {
        if row.is_none() && !matches!(self.missing, Missing::NoRow) {
            let row = self.missing_row(index)?;
            self.rows.push(row);
            return Ok(());
        }
        let location = || format!("{}[{}]", self.field, self.first + index);
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
        if !is_array && tensor::is_on_device(&row)? {
            self.on_device.push((index, row));
            // Placeholder until all of them are copied at once.
            self.rows.push(Row::Part {
                array: 0,
                start: 0,
                len: 0,
            });
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
                let expected = if self.allows_trailing {
                    EXPECTED_ROW_OF_ANY
                } else {
                    EXPECTED_ROW
                };
                Err(Error::wrong_type(location(), &row, expected))
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
            let mut parts = Vec::with_capacity(indices.len());
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
            None => self.trailing = Some((trailing.to_vec(), row)),
            Some((expected, first)) if expected != trailing => {
                return Err(Core::Trailing {
                    field: self.field.to_owned(),
                    row,
                    found: trailing.to_vec(),
                    first: *first,
                    expected: expected.clone(),
                }
                .into());
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// The location of a row in errors.
    fn location(&self, index: usize) -> String {
        format!("{}[{}]", self.field, self.first + index)
    }

    fn wrong_type(&self, rows: &Bound<'py, PyAny>) -> Error {
        Error::wrong_type(self.field.to_owned(), rows, EXPECTED_FIELD)
    }
}

/// The error for more rows than there is memory for.
pub fn no_memory_for(rows: usize) -> Error {
    PyMemoryError::new_err(format!("no memory for a plan of {rows} rows")).into()
}
