//! Ingest: any accepted input becomes rows that can be read. What can be viewed is not copied.

#[allow(unsafe_code, reason = "views NumPy's memory")]
mod array;
#[allow(unsafe_code, reason = "lends Arrow's memory to NumPy")]
mod arrow;
#[allow(unsafe_code, reason = "reads the structs of Arrow's C interface")]
mod arrow_import;
#[allow(unsafe_code, reason = "reads items of lists without owning them")]
mod list;
mod number;
mod object;
mod ragged;
mod reader;
mod rows;
mod tensor;

pub use arrow::arrow_chunks;
pub use arrow_import::type_of_capsule;
pub use list::{DecodeExact, Stretch, check_digits, same_until};
pub use ragged::Stretches;
pub use rows::Rows;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::error::caught;

/// A type of a module, which is imported at the first call.
///
/// Nothing is locked while it is: a signal handler that runs within the import may call us, and
/// `PyOnceLock::import` would wait for itself.
fn imported<'py>(
    kept: &'static PyOnceLock<Py<PyType>>,
    py: Python<'py>,
    module: &str,
    name: &str,
) -> PyResult<&'py Bound<'py, PyType>> {
    if let Some(found) = kept.get(py) {
        return Ok(found.bind(py));
    }
    let found = py.import(module)?.getattr(name)?.cast_into::<PyType>()?;
    Ok(kept.get_or_init(py, || found.unbind()).bind(py))
}

/// Let the binding of NumPy find what it needs, which runs Python code under a lock, while nobody can
/// call us yet.
///
/// # Errors
/// `ImportError` where there is no NumPy that it knows.
pub fn find_numpy(py: Python) -> PyResult<()> {
    let empty = PyArray1::<i64>::zeros(py, 0, false);
    empty.try_readwrite()?;
    Ok(())
}

/// How an error message calls an object: `1.5 (float)`, abbreviated where it prints long.
///
/// # Errors
/// What its own code raises, if that is no `Exception`.
pub fn describe(object: &Bound<PyAny>) -> PyResult<String> {
    let py = object.py();
    let kind = caught(py, object.get_type().name())?;
    let kind = kind.map_or("object".to_owned(), |name| name.to_string());
    let reprlib = py.import("reprlib")?;
    Ok(match caught(py, reprlib.call_method1("repr", (object,)))? {
        Some(repr) => format!("{repr} ({kind})"),
        None => format!("an object of type {kind}"),
    })
}
