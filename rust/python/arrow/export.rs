//! Ragged columns as Arrow arrays through the PyCapsule interface, sharing memory.

use std::slice;

use fastcollate::{gathered, try_gathered};
use numpy::prelude::*;
use numpy::{PyArray1, PyUntypedArray};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use super::import::type_of_capsule;
use super::structs::{ArrowArray, ArrowSchema, Buffer, capsule};
use super::types::{DataType, Form, Number};
use crate::error::Error;
use crate::rows::data;

/// The schema and array capsules of a column: large lists of `values`, with trailing dimensions as
/// fixed-size lists, or the lists of a requested schema.
///
/// # Errors
/// `TypeError` for dtypes without an Arrow type, `ValueError` for arrays that are not contiguous or
/// do not fit one another or the requested schema.
#[pyfunction]
pub fn arrow_lists<'py>(
    values: &Bound<'py, PyUntypedArray>,
    offsets: &Bound<'py, PyArray1<i64>>,
    requested_schema: Option<Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let py = values.py();
    let shape = values.shape();
    let mut items = Column::numbers(values)?;
    for axis in (1..shape.len()).rev() {
        let size = i32::try_from(shape[axis])? as usize;
        items = items.fixed_size_lists(size, shape[..axis].iter().product());
    }
    let lists = items.lists(offsets.as_untyped(), requested_schema.as_ref())?;
    PyTuple::new(py, [capsule(py, lists.schema)?, capsule(py, lists.array)?])
}

/// An array under construction.
struct Column {
    data_type: DataType,
    schema: ArrowSchema,
    array: ArrowArray,
    len: usize,
}

impl Column {
    /// All numbers of an array, flattened. Booleans are packed to bits, and so copied.
    fn numbers(array: &Bound<PyUntypedArray>) -> PyResult<Self> {
        let (dtype, len) = (array.dtype(), array.len());
        let number = Number::of_numpy(dtype.kind(), dtype.itemsize())
            .ok_or_else(|| PyTypeError::new_err(format!("Arrow has no {dtype}")))?;
        let buffer = match number {
            Number::Boolean => {
                let pack = |bytes: &[u8]| {
                    let bits = bytes.iter().enumerate();
                    bits.fold(0, |bits, (at, &byte)| bits | u8::from(byte != 0) << at)
                };
                let bits = gathered(memory(array)?.chunks(8).map(pack));
                Buffer::of_vec(bits.map_err(Error::from)?)
            }
            _ => shared(array)?,
        };
        Ok(Self {
            data_type: DataType::Number(number),
            schema: ArrowSchema::new(number.format(), Vec::new()),
            // SAFETY: the buffer has all numbers.
            array: unsafe { ArrowArray::new(len, vec![buffer], Vec::new()) },
            len,
        })
    }

    /// These items as `len` lists of `size` items each; `len` gives their number if the size is 0.
    fn fixed_size_lists(self, size: usize, len: usize) -> Self {
        let form = Form::FixedSize(size);
        assert_eq!(self.len, len * size, "items of lists");
        Self {
            data_type: DataType::list(form, self.data_type),
            schema: ArrowSchema::new(&form.format(), vec![self.schema]),
            // SAFETY: the number of items is that of all lists together.
            array: unsafe { ArrowArray::new(len, Vec::new(), vec![self.array]) },
            len,
        }
    }

    /// These items as lists with int64 offsets (large lists), or with 32-bit offsets if requested.
    /// The consumer must cast to anything else: Arrow's casts turn numbers that do not fit into
    /// nulls, and cut off fractions.
    fn lists(
        self,
        offsets: &Bound<PyUntypedArray>,
        requested: Option<&Bound<PyCapsule>>,
    ) -> PyResult<Self> {
        let ends: &[i64] = bytemuck::cast_slice(memory(offsets)?);
        let (Some(&first), Some(&last)) = (ends.first(), ends.last()) else {
            return Err(PyValueError::new_err("there are no offsets"));
        };
        if first < 0 || !ends.is_sorted() || last > self.len as i64 {
            let message =
                format!("the offsets are negative, fall, or end beyond the {} values", self.len);
            return Err(PyValueError::new_err(message));
        }
        let form = self.form(requested)?;
        let buffer = match form {
            Form::List => {
                let narrow = |&end| Ok::<_, Error>(i32::try_from(end).map_err(PyErr::from)?);
                Buffer::of_vec(try_gathered(ends.iter().map(narrow))?)
            }
            _ => shared(offsets)?,
        };
        let len = ends.len() - 1;
        Ok(Self {
            data_type: DataType::list(form, self.data_type),
            schema: ArrowSchema::new(&form.format(), vec![self.schema]),
            // SAFETY: the buffer has one offset more than there are lists, all of which lie within
            // the items.
            array: unsafe { ArrowArray::new(len, vec![buffer], vec![self.array]) },
            len,
        })
    }

    /// The form of the lists.
    fn form(&self, requested: Option<&Bound<PyCapsule>>) -> PyResult<Form> {
        let Some(schema) = requested else {
            return Ok(Form::LargeList);
        };
        let requested = type_of_capsule(schema)?.map_err(|reason| {
            PyValueError::new_err(format!("requested_schema could not be read: {reason}"))
        })?;
        let lists = DataType::list(Form::LargeList, self.data_type.clone());
        match requested {
            wanted if wanted == lists => Ok(Form::LargeList),
            DataType::List(Form::List, item) if item.data_type == self.data_type => Ok(Form::List),
            wanted => Err(PyValueError::new_err(format!(
                "requested_schema is {wanted}, but this is {lists}; cast the result, or pass \
                 fastcollate.ragged(x, dtype)"
            ))),
        }
    }
}

/// An array's memory, kept alive by the array itself.
///
/// # Errors
/// As `memory`.
fn shared(array: &Bound<PyUntypedArray>) -> PyResult<Buffer> {
    let data = memory(array)?.as_ptr();
    // SAFETY: the array keeps its memory.
    Ok(unsafe { Buffer::new(data.cast(), array.clone().unbind()) })
}

/// The memory of all items of an array.
///
/// # Errors
/// `ValueError` if it is not contiguous and aligned.
fn memory<'a>(array: &'a Bound<PyUntypedArray>) -> PyResult<&'a [u8]> {
    let itemsize = array.dtype().itemsize();
    let data = data(array).cast::<u8>();
    if data.is_null() || !array.is_c_contiguous() || !data.addr().is_multiple_of(itemsize) {
        let message = "the array is not contiguous and aligned";
        return Err(PyValueError::new_err(message));
    }
    // SAFETY: a contiguous array has all its items from `data` on, and keeps them. A concurrent
    // write changes numbers, and every bit pattern is one.
    Ok(unsafe { slice::from_raw_parts(data, array.len() * itemsize) })
}
