//! Single numbers: what one item of a Python list may be.

use fastcollate::{Element, Error as Core, Place};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyType};

use super::describe;
use crate::error::{Error, Result};

/// An output type that Python numbers can be decoded into.
pub trait Decode: Element + for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr> {
    /// What an item has to be, for error messages.
    const EXPECTED: &'static str;
    /// The methods of which an object needs one to stand for such a number.
    const METHODS: &'static [&'static str];
}

impl Decode for i64 {
    const EXPECTED: &'static str = "a token id has to be an integer";
    const METHODS: &'static [&'static str] = &["__index__"];
}

impl Decode for f32 {
    const EXPECTED: &'static str = "it has to be a real number";
    const METHODS: &'static [&'static str] = &["__float__", "__index__"];
}

/// Decode one object of any type: NumPy scalars, subclasses, `__index__`, `__float__`.
///
/// This may run Python code: the caller owns `item`, and must look again at what it came from.
pub fn decode<T: Decode>(item: &Bound<PyAny>, place: impl Fn() -> Place) -> Result<T> {
    let wrong_kind = || Error::Kind {
        place: place().to_string(),
        found: describe(item),
        expected: T::EXPECTED,
    };
    if is_several_or_complex(item)? {
        return Err(wrong_kind());
    }
    item.extract().map_err(|error: PyErr| {
        let py = item.py();
        let has = |method: &&str| item.get_type().hasattr(*method).unwrap_or(false);
        let is_plain = || item.is_instance_of::<PyInt>() || is_numpy_scalar(item).unwrap_or(false);
        if !T::METHODS.iter().any(has) {
            wrong_kind()
        } else if error.is_instance_of::<PyOverflowError>(py) && is_plain() {
            Error::Core(Core::DoesNotFit {
                place: place(),
                value: item.to_string(),
                dtype: T::DTYPE,
            })
        } else {
            Error::raised(py, &place(), error)
        }
    })
}

/// Whether `float()` would take an object for a number that is none: an array or tensor of one
/// item, or a complex scalar, whose imaginary part it drops.
fn is_several_or_complex(item: &Bound<PyAny>) -> PyResult<bool> {
    static COMPLEX: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if is_numpy_scalar(item)? {
        item.is_instance(COMPLEX.import(item.py(), "numpy", "complexfloating")?)
    } else {
        Ok(!item.is_instance_of::<PyInt>() && item.len().is_ok())
    }
}

fn is_numpy_scalar(item: &Bound<PyAny>) -> PyResult<bool> {
    static GENERIC: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    item.is_instance(GENERIC.import(item.py(), "numpy", "generic")?)
}
