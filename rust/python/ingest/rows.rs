//! One field of every row, whatever the rows are.

use fastcollate::{Column, Element, Place, Slice, SliceColumn, check_kind, read_slice, refuse_nan};
use numpy::PyUntypedArray;
use numpy::prelude::*;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMapping, PyString, PyTuple, PyType};

use super::array::{ArrayInput, ArrayView};
use super::list::{DecodeExact, read_items};
use super::number::{decode, has_len};
use super::{describe, tensor};
use crate::error::{Error, Result};
use crate::interrupt::in_chunks;

const EXPECTED_FIELD: &str = "pass a sequence of rows, or a 2-D array or tensor";
const EXPECTED_ROW: &str = "a row has to be a list or tuple of numbers, or a 1-D array or tensor";

/// Rows between two looks at pending signals.
const POLL_ROWS: usize = 1 << 16;

/// A per-token field: its rows as they were handed in, each kept alive and read where it lies.
pub struct Rows<'py> {
    field: String,
    rows: Kind<'py>,
    refuses_nan: bool,
}

enum Kind<'py> {
    Each(Vec<Row<'py>>),
    Matrix(ArrayView<'py>),
    /// One number per row.
    Numbers(Vec<f32>),
}

enum Row<'py> {
    /// With its length at the time of the plan.
    List(Bound<'py, PyList>, usize),
    Tuple(Bound<'py, PyTuple>),
    Array(ArrayView<'py>),
}

impl<'py> Rows<'py> {
    /// Take a field's rows, checking that each can hold values of type `T`.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` naming the field and the first row that cannot be read.
    pub fn new<T: Element>(
        field: &str,
        rows: &Bound<'py, PyAny>,
        refuses_nan: bool,
    ) -> Result<Self> {
        let rows = Self {
            field: field.to_owned(),
            rows: Kind::new(field, rows)?,
            refuses_nan,
        };
        let checked = match &rows.rows {
            Kind::Each(each) => each.len(),
            // All of one kind.
            Kind::Matrix(matrix) => matrix.shape().0.min(1),
            Kind::Numbers(_) => 0,
        };
        for row in 0..checked {
            if let Some(values) = rows.slice(row)? {
                check_kind::<T>(field, row, &values)?;
            }
        }
        Ok(rows)
    }

    /// Take a field with one number per row, each a row of one item; `None` if the first item is a
    /// row itself.
    ///
    /// # Errors
    /// `TypeError` naming the first item that is no number, and what `check_count` says of their
    /// number.
    pub fn one_number_each(
        field: &str,
        numbers: &Bound<'py, PyAny>,
        refuses_nan: bool,
        check_count: impl Fn(usize) -> Result<()>,
    ) -> Result<Option<Self>> {
        let rows = numbers_of(field, numbers, check_count)?.map(Kind::Numbers);
        Ok(rows.map(|rows| Self {
            field: field.to_owned(),
            rows,
            refuses_nan,
        }))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &self.rows {
            Kind::Each(rows) => rows.len(),
            Kind::Matrix(matrix) => matrix.shape().0,
            Kind::Numbers(numbers) => numbers.len(),
        }
    }

    /// Number of items of every row.
    pub fn lens(&self) -> Vec<usize> {
        match &self.rows {
            Kind::Each(rows) => rows.iter().map(Row::len).collect(),
            Kind::Matrix(matrix) => vec![matrix.shape().1; matrix.shape().0],
            Kind::Numbers(numbers) => vec![1; numbers.len()],
        }
    }

    /// The column over plain memory, if all rows are NumPy's: it needs no interpreter to be read.
    pub fn as_slices(&self) -> Result<Option<SliceColumn<'_>>> {
        let is_plain = match &self.rows {
            Kind::Each(rows) => rows.iter().all(|row| match row {
                Row::Array(array) => !array.is_tensor(),
                Row::List(..) | Row::Tuple(_) => false,
            }),
            Kind::Matrix(matrix) => !matrix.is_tensor(),
            Kind::Numbers(_) => true,
        };
        if !is_plain {
            return Ok(None);
        }
        let slices = (0..self.len()).filter_map(|row| self.slice(row).transpose());
        let slices = slices.collect::<Result<_>>()?;
        Ok(Some(SliceColumn::new(
            &self.field,
            slices,
            self.refuses_nan,
        )))
    }

    /// A row's values if it is plain memory.
    fn slice(&self, row: usize) -> Result<Option<Slice<'_>>> {
        let moved = || Error::Moved {
            field: self.field.clone(),
            row,
        };
        Ok(match &self.rows {
            Kind::Each(rows) => match &rows[row] {
                Row::Array(array) => Some(array.values()?.ok_or_else(moved)?),
                Row::List(..) | Row::Tuple(_) => None,
            },
            Kind::Matrix(matrix) => {
                let width = matrix.shape().1;
                let values = matrix.values()?.ok_or_else(moved)?;
                Some(values.range(row * width..(row + 1) * width))
            }
            Kind::Numbers(numbers) => Some(Slice::F32(&numbers[row..=row])),
        })
    }
}

impl<T: DecodeExact> Column<T> for Rows<'_> {
    type Error = Error;

    fn row_len(&self, turn: usize) -> usize {
        match &self.rows {
            Kind::Each(rows) => rows[turn].len(),
            Kind::Matrix(matrix) => matrix.shape().1,
            Kind::Numbers(_) => 1,
        }
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        in_chunks(from, out, |from, out| self.read_chunk(turn, from, out))
    }
}

impl Rows<'_> {
    fn read_chunk<T: DecodeExact>(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let field = &self.field;
        if let Some(values) = self.slice(turn)? {
            read_slice(field, turn, &values, from, out)?;
        } else if let Kind::Each(rows) = &self.rows {
            match &rows[turn] {
                Row::List(list, len) => read_items(list, *len, from, out, field, turn)?,
                Row::Tuple(tuple) => read_items(tuple, tuple.len(), from, out, field, turn)?,
                Row::Array(_) => unreachable!("arrays are slices"),
            }
        }
        if self.refuses_nan {
            refuse_nan(field, turn, from, out)?;
        }
        Ok(())
    }
}

impl<'py> Kind<'py> {
    fn new(field: &str, rows: &Bound<'py, PyAny>) -> Result<Self> {
        let py = rows.py();
        let wrong_kind = || Error::Kind {
            place: field.to_owned(),
            found: describe(rows),
            expected: EXPECTED_FIELD,
        };
        if let Some(input) = as_array(rows, || field.to_owned())?
            && !is_objects(&input.array)
        {
            return match input.array.ndim() {
                2 => Ok(Self::Matrix(ArrayView::new(input, || field.to_owned())?)),
                0 | 1 => Err(wrong_kind()),
                _ => Err(Error::shape(field.to_owned(), &input.array, EXPECTED_FIELD)),
            };
        }
        let rows = as_list(rows)?.ok_or_else(wrong_kind)?;
        let mut each = Vec::with_capacity(rows.len());
        for (index, row) in rows.iter().enumerate() {
            each.push(Row::new(field, index, row)?);
            if index % POLL_ROWS == POLL_ROWS - 1 {
                py.check_signals()?;
            }
        }
        Ok(Self::Each(each))
    }
}

impl<'py> Row<'py> {
    fn new(field: &str, index: usize, row: Bound<'py, PyAny>) -> Result<Self> {
        let row = match row.cast_into::<PyList>() {
            Ok(list) => {
                let len = list.len();
                return Ok(Self::List(list, len));
            }
            Err(error) => error.into_inner(),
        };
        let row = match row.cast_into::<PyTuple>() {
            Ok(tuple) => return Ok(Self::Tuple(tuple)),
            Err(error) => error.into_inner(),
        };
        let place = || format!("{field}[{index}]");
        match as_array(&row, place)? {
            Some(input) if input.array.ndim() == 1 => {
                Ok(Self::Array(ArrayView::new(input, place)?))
            }
            Some(input) if input.array.ndim() > 1 => Err(Error::shape(
                place(),
                &input.array,
                "a row has one dimension",
            )),
            _ => Err(Error::Kind {
                place: place(),
                found: describe(&row),
                expected: EXPECTED_ROW,
            }),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::List(_, len) => *len,
            Self::Tuple(tuple) => tuple.len(),
            Self::Array(array) => array.shape().1,
        }
    }
}

/// A field's numbers if it holds one per row.
fn numbers_of(
    field: &str,
    numbers: &Bound<PyAny>,
    check_count: impl Fn(usize) -> Result<()>,
) -> Result<Option<Vec<f32>>> {
    if let Some(input) = as_array(numbers, || field.to_owned())? {
        if input.array.ndim() != 1 {
            return Ok(None);
        }
        if !is_objects(&input.array) {
            check_count(input.array.len())?;
            let view = ArrayView::new(input, || field.to_owned())?;
            let mut values = vec![0.0; view.shape().1];
            let slice = view.values()?.ok_or_else(|| Error::Moved {
                field: field.to_owned(),
                row: 0,
            })?;
            read_slice(field, 0, &slice, 0, &mut values)?;
            return Ok(Some(values));
        }
    }
    let Some(numbers) = as_list(numbers)? else {
        return Ok(None);
    };
    match numbers.iter().next() {
        Some(first) if !is_row(field, &first)? => {}
        _ => return Ok(None),
    }
    check_count(numbers.len())?;
    let decode_at = |(row, number): (usize, Bound<PyAny>)| {
        decode(&number, || Place {
            field: field.to_owned(),
            row,
            position: None,
        })
    };
    let values = numbers.iter().enumerate().map(decode_at);
    Ok(Some(values.collect::<Result<_>>()?))
}

/// Whether a field's first item can only be a row, not a number.
fn is_row(field: &str, item: &Bound<PyAny>) -> Result<bool> {
    match as_array(item, || format!("{field}[0]"))? {
        Some(input) => Ok(input.array.ndim() > 0),
        None => Ok(has_len(item)?),
    }
}

fn is_objects(array: &Bound<PyUntypedArray>) -> bool {
    array.ndim() == 1 && array.dtype().kind() == b'O'
}

/// Anything that is an array, or lends its memory as one: ndarray, tensor, `array.array`.
fn as_array<'py>(
    object: &Bound<'py, PyAny>,
    place: impl Fn() -> String,
) -> Result<Option<ArrayInput<'py>>> {
    static ARRAY_ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = object.py();
    let no_tensor = |array| ArrayInput {
        array,
        tensor: None,
    };
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(Some(no_tensor(array.clone())));
    }
    if object.is_exact_instance_of::<PyList>() || object.is_exact_instance_of::<PyTuple>() {
        return Ok(None);
    }
    if tensor::is_tensor(object)? {
        let input = tensor::as_array(object);
        return input
            .map(Some)
            .map_err(|cause| Error::raised(py, place(), cause));
    }
    if object.is_instance(ARRAY_ARRAY.import(py, "array", "array")?)? {
        let numpy = py.import(intern!(py, "numpy"))?;
        let array = numpy.call_method1(intern!(py, "asarray"), (object,))?;
        return Ok(array.cast_into().ok().map(no_tensor));
    }
    Ok(None)
}

/// Any other sequence as a list of its items; none for what only looks like one.
fn as_list<'py>(object: &Bound<'py, PyAny>) -> Result<Option<Bound<'py, PyList>>> {
    if let Ok(list) = object.cast_exact::<PyList>() {
        return Ok(Some(list.clone()));
    }
    let is_text = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>();
    let has = |method| object.get_type().hasattr(method);
    if is_text
        || object.cast::<PyMapping>().is_ok()
        || !has(intern!(object.py(), "__getitem__"))?
        || !has(intern!(object.py(), "__len__"))?
    {
        return Ok(None);
    }
    let items = object.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    Ok(Some(PyList::new(object.py(), items)?))
}
