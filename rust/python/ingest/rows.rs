//! One field of every row, whatever the rows are.

use fastcollate::{Column, Element, Place, Slice, SliceColumn, check_kind, read_slice, refuse_nan};
use numpy::PyUntypedArray;
use numpy::prelude::*;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMapping, PyString, PyTuple, PyType};

use super::array::ArrayView;
use super::list::{DecodeExact, read_items};
use super::number::decode;
use super::{describe, tensor};
use crate::error::{Error, Result};

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
        for row in 0..rows.len() {
            if let Some(values) = rows.slice(row) {
                check_kind::<T>(field, row, &values)?;
            }
        }
        Ok(rows)
    }

    /// Take a field with one number per row, each a row of one item; `None` if the first item is a
    /// row itself.
    ///
    /// # Errors
    /// `TypeError` naming the first item that is no number.
    pub fn one_number_each(
        field: &str,
        numbers: &Bound<'py, PyAny>,
        refuses_nan: bool,
    ) -> Result<Option<Self>> {
        let rows = numbers_of(field, numbers)?.map(Kind::Numbers);
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

    /// The column over plain memory, if all rows are: it needs no interpreter to be read.
    pub fn as_slices(&self) -> Option<SliceColumn<'_>> {
        let slices = (0..self.len())
            .map(|row| self.slice(row))
            .collect::<Option<_>>()?;
        Some(SliceColumn::new(&self.field, slices, self.refuses_nan))
    }

    fn slice(&self, row: usize) -> Option<Slice<'_>> {
        match &self.rows {
            Kind::Each(rows) => match &rows[row] {
                Row::Array(array) => Some(array.values()),
                Row::List(..) | Row::Tuple(_) => None,
            },
            Kind::Matrix(matrix) => {
                let width = matrix.shape().1;
                Some(matrix.values().range(row * width..(row + 1) * width))
            }
            Kind::Numbers(numbers) => Some(Slice::F32(&numbers[row..=row])),
        }
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
        let field = &self.field;
        if let Some(values) = self.slice(turn) {
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
        if let Some(array) = as_array(rows, || field.to_owned())?
            && !is_objects(&array)
        {
            return match array.ndim() {
                2 => Ok(Self::Matrix(ArrayView::new(&array, || field.to_owned())?)),
                0 | 1 => Err(wrong_kind()),
                _ => Err(Error::Shape {
                    place: field.to_owned(),
                    found: format!("{:?}", array.shape()),
                    expected: EXPECTED_FIELD,
                }),
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
            Some(array) if array.ndim() == 1 => Ok(Self::Array(ArrayView::new(&array, place)?)),
            Some(array) if array.ndim() > 1 => Err(Error::Shape {
                place: place(),
                found: format!("{:?}", array.shape()),
                expected: "a row has one dimension",
            }),
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
fn numbers_of(field: &str, numbers: &Bound<PyAny>) -> Result<Option<Vec<f32>>> {
    if let Some(array) = as_array(numbers, || field.to_owned())? {
        if array.ndim() != 1 {
            return Ok(None);
        }
        if !is_objects(&array) {
            let view = ArrayView::new(&array, || field.to_owned())?;
            let mut values = vec![0.0; array.len()];
            read_slice(field, 0, &view.values(), 0, &mut values)?;
            return Ok(Some(values));
        }
    }
    let Some(numbers) = as_list(numbers)? else {
        return Ok(None);
    };
    match numbers.iter().next() {
        Some(first) if !is_row(&first)? => {}
        _ => return Ok(None),
    }
    let decode_at = |(row, number): (usize, Bound<PyAny>)| {
        decode(&number, || Place {
            field: field.to_owned(),
            row,
            position: None,
        })
    };
    numbers
        .iter()
        .enumerate()
        .map(decode_at)
        .map(|number| number.map(Some))
        .collect()
}

/// Whether an item can only be a row, not a number.
fn is_row(item: &Bound<PyAny>) -> Result<bool> {
    match as_array(item, String::new)? {
        Some(array) => Ok(array.ndim() > 0),
        None => Ok(item.len().is_ok()),
    }
}

fn is_objects(array: &Bound<PyUntypedArray>) -> bool {
    array.ndim() == 1 && array.dtype().kind() == b'O'
}

/// Anything that is an array, or lends its memory as one: ndarray, tensor, `array.array`.
fn as_array<'py>(
    object: &Bound<'py, PyAny>,
    place: impl Fn() -> String,
) -> Result<Option<Bound<'py, PyUntypedArray>>> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(Some(array.clone()));
    }
    if object.is_exact_instance_of::<PyList>() || object.is_exact_instance_of::<PyTuple>() {
        return Ok(None);
    }
    if tensor::is_tensor(object)? {
        let array = tensor::as_array(object);
        return array.map(Some).map_err(|cause| Error::Raised {
            place: place(),
            cause,
        });
    }
    static ARRAY_ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = object.py();
    if object.is_instance(ARRAY_ARRAY.import(py, "array", "array")?)? {
        let numpy = py.import(intern!(py, "numpy"))?;
        let array = numpy.call_method1(intern!(py, "asarray"), (object,))?;
        return Ok(array.cast_into().ok());
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
