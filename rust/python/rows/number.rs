//! Single numbers: items of Python lists, and columns of one per row.

use std::sync::OnceLock;

use fastcollate::{
    Element, Error as Core, Location, Number, Slice, bf16, check_room, check_type, f16, read_slice,
    try_gathered,
};
use numpy::PyUntypedArray;
use numpy::prelude::*;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple, PyType};

use super::array::{ArrayInput, ArrayView, Float};
use super::object::{as_array, has_rows, is_objects, is_row, is_sequence, to_list};
use super::py_rows::{Missing, RowNumber};
use super::reader::Wanted;
use super::tensor::{self, is_tensor};
use super::{arrow, describe, imported, ragged};
use crate::error::{Error, Result, caught};

/// An output type that Python numbers can be decoded into.
pub trait Decode: Element {
    /// The kind of number required, for error messages.
    const EXPECTED: &'static str;
    /// Methods of which an object needs one to be read as such a number.
    const METHODS: &'static [&'static str];

    /// Call one of the methods, or read the value of a plain number.
    fn extract(item: &Bound<PyAny>) -> PyResult<Self>;
}

/// Integers, through `__index__`.
macro_rules! decode_integer {
    ($($type:ty),*) => {$(
        impl Decode for $type {
            const EXPECTED: &'static str = "pass an integer";
            const METHODS: &'static [&'static str] = &["__index__"];

            fn extract(item: &Bound<PyAny>) -> PyResult<Self> {
                item.extract()
            }
        }
    )*};
}

/// Floats, through `__float__` or `__index__`.
macro_rules! decode_float {
    ($($type:ty: $float:ty, $cast:expr;)*) => {$(
        impl Decode for $type {
            const EXPECTED: &'static str = "pass a real number";
            const METHODS: &'static [&'static str] = &["__float__", "__index__"];

            fn extract(item: &Bound<PyAny>) -> PyResult<Self> {
                item.extract::<$float>().map($cast)
            }
        }
    )*};
}

/// Booleans, and the numbers 0 and 1.
impl Decode for bool {
    const EXPECTED: &'static str = "pass True, False, 0 or 1";
    const METHODS: &'static [&'static str] = &["__index__"];

    fn extract(item: &Bound<PyAny>) -> PyResult<Self> {
        if is_numpy_bool(item)? {
            return item.is_truthy(); // it has no `__index__`
        }
        match item.extract()? {
            0_i64 => Ok(false),
            1 => Ok(true),
            _ => Err(PyOverflowError::new_err("neither 0 nor 1")),
        }
    }
}

decode_integer!(u8, i16, i32, i64);
decode_float! {
    f64: f64, |value| value;
    f32: f32, |value| value;
    f16: f32, f16::from_f32;
    bf16: f32, bf16::from_f32;
}

/// Decode one object of any type: NumPy scalars, subclasses, `__index__`, `__float__`.
///
/// May run Python code: the caller owns `item`, and must check the container again afterwards.
pub fn decode<T: Decode>(item: &Bound<PyAny>, location: impl Fn() -> Location) -> Result<T> {
    let wrong_type = || Error::wrong_type(location().to_string(), item, expected::<T>(item));
    if !is_one_real_number(item)? {
        return Err(wrong_type());
    }
    let error = match T::extract(item) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let py = item.py();
    let mut has_method = false;
    for method in T::METHODS {
        has_method = has_method || item.get_type().hasattr(*method)?;
    }
    if !has_method {
        return Err(wrong_type());
    }
    let is_plain = || Ok::<_, PyErr>(item.is_instance_of::<PyInt>() || is_real_scalar(item)?);
    if !error.is_instance_of::<PyOverflowError>(py) || !is_plain()? {
        return Err(Error::raised(py, location(), error));
    }
    let text = caught(py, item.str())?.map(|text| text.to_string());
    Err(Error::Core(Core::DoesNotFit {
        location: location(),
        value: match text {
            Some(text) if text.len() <= 80 => text,
            _ => describe(item)?,
        },
        dtype: T::DTYPE,
    }))
}

/// What to pass in place of an object.
fn expected<T: Decode>(item: &Bound<PyAny>) -> &'static str {
    let takes_floats = T::METHODS.contains(&"__float__");
    if takes_floats && item.is_none() {
        "pass a real number, such as 0 with a loss mask of 0"
    } else if takes_floats && item.is_instance_of::<PyDict>() {
        "pass a real number; fc.rollouts.read reads the objects of an engine"
    } else if takes_floats && item.hasattr("as_py").unwrap_or(false) {
        "pass real numbers, such as column.to_pylist() of an Arrow column"
    } else {
        T::EXPECTED
    }
}

/// True if an object can be read as one real number. `float()` would also accept an array of one
/// item, the text in a zero-dimensional array, and the real part of a complex scalar.
fn is_one_real_number(item: &Bound<PyAny>) -> PyResult<bool> {
    static GENERIC: OnceLock<Py<PyType>> = OnceLock::new();
    let py = item.py();
    if item.is_instance_of::<PyInt>() || is_real_scalar(item)? {
        return Ok(true);
    }
    if item.is_instance(imported(&GENERIC, py, "numpy", "generic")?)? || has_len(item)? {
        return Ok(false);
    }
    if let Ok(array) = item.cast::<PyUntypedArray>() {
        return Ok(matches!(array.dtype().kind(), b'b' | b'i' | b'u' | b'f'));
    }
    if is_tensor(item)? {
        return Ok(!item.call_method0("is_complex")?.is_truthy()?);
    }
    Ok(true)
}

/// True for a NumPy scalar that is an integer, a float or a boolean.
fn is_real_scalar(item: &Bound<PyAny>) -> PyResult<bool> {
    static FLOATING: OnceLock<Py<PyType>> = OnceLock::new();
    static INTEGER: OnceLock<Py<PyType>> = OnceLock::new();
    let py = item.py();
    Ok(item.is_instance(imported(&FLOATING, py, "numpy", "floating")?)?
        || item.is_instance(imported(&INTEGER, py, "numpy", "integer")?)?
        || is_numpy_bool(item)?)
}

pub fn is_numpy_bool(item: &Bound<PyAny>) -> PyResult<bool> {
    static BOOL: OnceLock<Py<PyType>> = OnceLock::new();
    item.is_instance(imported(&BOOL, item.py(), "numpy", "bool_")?)
}

/// True if an object has a length, as rows do.
pub fn has_len(item: &Bound<PyAny>) -> PyResult<bool> {
    // The exception of a number without a length takes longer than reading a short row.
    let is_number = item.is_exact_instance_of::<PyInt>() || item.is_exact_instance_of::<PyFloat>();
    Ok(!is_number && caught(item.py(), item.len())?.is_some())
}

/// The wanted numbers of a field with one per row, read as `T`.
pub fn numbers_of<T: Element>(
    field: &str,
    numbers: &Bound<PyAny>,
    wanted: Wanted,
    missing: Missing,
    check_count: impl Fn(usize) -> Result<()>,
) -> Result<Option<Vec<RowNumber>>> {
    let is_list = numbers.is_exact_instance_of::<PyList>();
    if !is_list && (ragged::is_column(numbers)? || has_rows(numbers)?) {
        return Ok(None);
    }
    if let Some(input) = as_array(numbers, || field.to_owned())? {
        if input.array.ndim() != 1 {
            return Ok(None);
        }
        if !is_objects(&input.array) {
            check_count(input.array.len())?;
            let mut rows = wanted.within(0, input.array.len());
            return Ok(Some(numbers_in::<T>(field, input, &mut rows)?));
        }
    }
    if !is_sequence(numbers)? {
        return Ok(None);
    }
    if !is_list && arrow::is_array_of_lists(numbers, field)? {
        return Ok(None);
    }
    let may_miss = !matches!(missing, Missing::NoRow);
    let mut items = numbers.try_iter()?;
    let first = match items.find(|item| !may_miss || !matches!(item, Ok(item) if item.is_none())) {
        None if !numbers.is_empty()? => Some(numbers.get_item(0)), // all are missing
        first => first,
    };
    let is_on_device = match first.transpose()? {
        Some(first) if first.is_none() => false,
        Some(first) if !is_row(field, &first)? => tensor::is_on_device(&first)?,
        _ => return Ok(None),
    };
    // Items may change a list while they are read.
    let all = to_list(numbers)?;
    check_count(all.len())?;
    let rows = wanted.within(0, all.len());
    let numbers = PyTuple::new(all.py(), wanted.of(&all)?)?;
    if is_on_device && !numbers.is_empty() {
        // Copied at once; if torch cannot stack them, they are not numbers of one device.
        let stacked = tensor::stacked(&numbers);
        let location = || format!("{field}[0]");
        let stacked = stacked.map_err(|cause| Error::raised(numbers.py(), location(), cause))?;
        return Ok(Some(numbers_in::<T>(field, stacked, &mut (0..numbers.len()))?));
    }
    let holds_floats = T::accepts(&Slice::F64(&[0.0]));
    let number_at = |(row, number): (usize, Bound<PyAny>)| {
        number_of(field, row, &number, holds_floats, missing)
    };
    let values = rows.zip(numbers.iter()).map(number_at);
    try_gathered(values).map(Some)
}

/// The one number of a row, which may be None if that has a meaning.
pub fn number_of(
    field: &str,
    row: usize,
    number: &Bound<PyAny>,
    holds_floats: bool,
    missing: Missing,
) -> Result<RowNumber> {
    if number.is_none() && !matches!(missing, Missing::NoRow) {
        return missing.number(field, row);
    }
    let location = || Location { field: field.to_owned(), row, position: None };
    let value = if holds_floats {
        decode(number, location).map(Number::Float)
    } else if is_numpy_bool(number)? {
        Ok(Number::Int(number.is_truthy()?.into()))
    } else {
        decode(number, location).map(Number::Int)
    };
    // Arrow's scalars raise errors of their own for nulls.
    let is_null = || Ok::<_, PyErr>(number.call_method0("as_py")?.is_none());
    let value = value.map_err(|error| match caught(number.py(), is_null()) {
        Ok(Some(true)) => Error::Null { location: location().to_string() },
        Ok(_) => error,
        Err(interrupt) => interrupt.into(),
    })?;
    Ok(RowNumber { value, is_given: true })
}

/// Numbers of a one-dimensional array.
fn numbers_in<T: Element>(
    field: &str,
    input: ArrayInput,
    rows: &mut dyn Iterator<Item = usize>,
) -> Result<Vec<RowNumber>> {
    // As float64, since they may be added before they are rounded.
    let view = ArrayView::new(input, 1, Float::Double, || field.to_owned())?;
    check_room(rows.size_hint().0)?;
    let slice = view.values()?.ok_or_else(|| Error::Moved { field: field.to_owned(), row: 0 })?;
    check_type::<T>(field, 0, &slice)?;
    let holds_floats = T::accepts(&Slice::F64(&[0.0]));
    let number_at = |row: usize| {
        let (at, mut float, mut int) = (slice.range(row..row + 1), [0.0], [0]);
        let value = if holds_floats {
            read_slice(field, row, &at, 1, 0, &mut float)?;
            Number::Float(float[0])
        } else {
            read_slice(field, row, &at, 1, 0, &mut int)?;
            Number::Int(int[0])
        };
        Ok(RowNumber { value, is_given: true })
    };
    try_gathered(rows.map(number_at))
}
