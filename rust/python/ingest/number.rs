//! Single numbers: items of Python lists.

use std::sync::OnceLock;

use fastcollate::{Element, Error as Core, InputPlace, bf16, f16};
use numpy::PyUntypedArray;
use numpy::prelude::*;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyType};

use super::tensor::is_tensor;
use super::{describe, imported};
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
pub fn decode<T: Decode>(item: &Bound<PyAny>, place: impl Fn() -> InputPlace) -> Result<T> {
    let wrong_type = || Error::wrong_type(place().to_string(), item, T::EXPECTED);
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
        return Err(Error::raised(py, place(), error));
    }
    let text = caught(py, item.str())?.map(|text| text.to_string());
    Err(Error::Core(Core::DoesNotFit {
        place: place(),
        value: match text {
            Some(text) if text.len() <= 80 => text,
            _ => describe(item)?,
        },
        dtype: T::DTYPE,
    }))
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
    Ok(
        item.is_instance(imported(&FLOATING, py, "numpy", "floating")?)?
            || item.is_instance(imported(&INTEGER, py, "numpy", "integer")?)?
            || is_numpy_bool(item)?,
    )
}

pub fn is_numpy_bool(item: &Bound<PyAny>) -> PyResult<bool> {
    static BOOL: OnceLock<Py<PyType>> = OnceLock::new();
    item.is_instance(imported(&BOOL, item.py(), "numpy", "bool_")?)
}

/// True if an object has a length, as rows do.
pub fn has_len(item: &Bound<PyAny>) -> PyResult<bool> {
    Ok(caught(item.py(), item.len())?.is_some())
}
