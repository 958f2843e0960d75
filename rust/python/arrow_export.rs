//! Ragged columns as Arrow arrays, by the PyCapsule interface, over the same memory.

use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, LargeListArray, ListArray, PrimitiveArray,
};
use arrow_buffer::{BooleanBuffer, Buffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use numpy::prelude::*;
use numpy::{PyArray1, PyUntypedArray};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::ingest::{data, type_of_capsule};

/// The schema and array capsules of a column: large lists of `values`, whose trailing dimensions
/// are fixed-size lists, or the lists of a requested schema.
///
/// # Errors
/// `TypeError` for dtypes that Arrow has not, `ValueError` for arrays that are not contiguous or
/// do not fit one another or the requested schema.
#[pyfunction]
pub fn arrow_lists<'py>(
    values: &Bound<'py, PyUntypedArray>,
    offsets: &Bound<'py, PyArray1<i64>>,
    requested_schema: Option<Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let py = values.py();
    let shape = values.shape();
    let mut items = numbers(values)?;
    for axis in (1..shape.len()).rev() {
        let len = shape[..axis].iter().product();
        let size = i32::try_from(shape[axis])?;
        let lists = FixedSizeListArray::try_new_with_length(item(&items), size, items, None, len);
        items = Arc::new(lists.map_err(failed)?);
    }
    let offsets = ScalarBuffer::<i64>::from(memory::<i64>(offsets.as_untyped())?);
    // Arrow's library panics where it is handed others.
    if offsets.first().is_none_or(|&first| first < 0) || !offsets.is_sorted() {
        let message = "the offsets are negative, or fall";
        return Err(PyValueError::new_err(message));
    }
    let offsets = OffsetBuffer::new(offsets);
    let lists = LargeListArray::try_new(item(&items), offsets, items, None).map_err(failed)?;
    let data = match requested_schema {
        Some(schema) => requested(lists, &schema)?,
        None => lists.into_data(),
    };
    let schema = FFI_ArrowSchema::try_from(data.data_type()).map_err(failed)?;
    let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
    let array = PyCapsule::new_with_value(py, FFI_ArrowArray::new(&data), c"arrow_array")?;
    PyTuple::new(py, [schema, array])
}

/// The same values in lists of 32-bit offsets, if those are requested. For anything else the
/// consumer has casts of its own: Arrow's here would make nulls of numbers that do not fit, cut off
/// fractions, and be nine tenths of this library's size.
fn requested(lists: LargeListArray, schema: &Bound<PyCapsule>) -> PyResult<ArrayData> {
    let requested = type_of_capsule(schema)?.map_err(|reason| {
        PyValueError::new_err(format!("requested_schema could not be read: {reason}"))
    })?;
    match &requested {
        wanted if wanted.equals_datatype(lists.data_type()) => Ok(lists.into_data()),
        DataType::List(wanted) if wanted.data_type().equals_datatype(&lists.value_type()) => {
            let (item, offsets, items, _) = lists.into_parts();
            let offsets = offsets.iter().map(|&offset| i32::try_from(offset));
            let offsets = offsets.collect::<Result<Vec<_>, _>>()?;
            let lists = ListArray::try_new(item, OffsetBuffer::new(offsets.into()), items, None);
            Ok(lists.map_err(failed)?.into_data())
        }
        wanted => Err(PyValueError::new_err(format!(
            "{wanted} is requested, but this is {}; cast it afterwards, or convert the numbers \
             by fastcollate.ragged(x, dtype)",
            lists.data_type()
        ))),
    }
}

fn failed(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The field of a list's items, as Arrow's libraries make it by default.
fn item(items: &ArrayRef) -> FieldRef {
    Field::new_list_field(items.data_type().clone(), true).into()
}

/// All numbers of an array in one dimension. Booleans are packed, and so copied.
fn numbers(array: &Bound<PyUntypedArray>) -> PyResult<ArrayRef> {
    macro_rules! view {
        ($($kind:literal $size:literal: $type:ty;)*) => {
            match (array.dtype().kind(), array.dtype().itemsize()) {
                (b'b', 1) => {
                    let bytes = memory::<u8>(array)?;
                    let bits = BooleanBuffer::collect_bool(bytes.len(), |index| bytes[index] != 0);
                    Arc::new(BooleanArray::new(bits, None))
                }
                $(($kind, $size) => primitive::<$type>(array)?,)*
                _ => {
                    let message = format!("Arrow has no {}", array.dtype());
                    return Err(PyTypeError::new_err(message));
                }
            }
        };
    }
    Ok(view! {
        b'i' 1: Int8Type;
        b'i' 2: Int16Type;
        b'i' 4: Int32Type;
        b'i' 8: Int64Type;
        b'u' 1: UInt8Type;
        b'u' 2: UInt16Type;
        b'u' 4: UInt32Type;
        b'u' 8: UInt64Type;
        b'f' 2: Float16Type;
        b'f' 4: Float32Type;
        b'f' 8: Float64Type;
    })
}

fn primitive<T: ArrowPrimitiveType>(array: &Bound<PyUntypedArray>) -> PyResult<ArrayRef> {
    let values = ScalarBuffer::<T::Native>::from(memory::<T::Native>(array)?);
    Ok(Arc::new(PrimitiveArray::<T>::new(values, None)))
}

/// An array's memory, kept alive by the array itself.
///
/// # Errors
/// `ValueError` if it is not contiguous, or not aligned for items of type `T`.
fn memory<T>(array: &Bound<PyUntypedArray>) -> PyResult<Buffer> {
    let data = NonNull::new(data(array).cast::<u8>()).filter(|data| data.cast::<T>().is_aligned());
    let (Some(data), true) = (data, array.is_c_contiguous()) else {
        let message = "the array is not contiguous and aligned";
        return Err(PyValueError::new_err(message));
    };
    let bytes = array.len() * array.dtype().itemsize();
    let owner = Arc::new(AssertUnwindSafe(array.clone().unbind()));
    // SAFETY: a contiguous array has all its items from `data` on. `owner` keeps it, and so the
    // memory, until the last user of the buffer has released it. Arrow only reads; whoever writes
    // into the array meanwhile changes numbers, and every bit pattern is one.
    Ok(unsafe { Buffer::from_custom_allocation(data, bytes, owner) })
}
