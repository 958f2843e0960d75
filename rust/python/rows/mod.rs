//! Ingest: converts any accepted input to readable rows, without copies if possible.

/// A Python name as one `str` for all calls.
macro_rules! intern {
    ($py:expr, $text:expr) => {{
        static PLACE: std::sync::OnceLock<pyo3::Py<pyo3::types::PyString>> =
            std::sync::OnceLock::new();
        crate::rows::interned(&PLACE, $py, $text)
    }};
}
pub(crate) use intern;

#[allow(unsafe_code, reason = "views NumPy's memory")]
mod array;
#[allow(unsafe_code, reason = "lends Arrow's memory to NumPy")]
mod arrow;
#[allow(unsafe_code, reason = "looks up torch's memory")]
mod dlpack;
mod edges;
mod fixed;
#[allow(unsafe_code, reason = "reads items of lists without owning them")]
mod list;
mod nested;
mod number;
mod object;
mod py_rows;
mod ragged;
mod reader;
mod row_arrays;
mod some_tokens;
mod spans;
mod storage;
mod tensor;
mod tokens;

pub use array::data;
pub use arrow::{ArrowMemory, arrow_chunks, arrow_nested_chunks};
pub use edges::{PADDED_RUN, have_padded_edges};
pub use fixed::fix_lists;
pub use list::{
    DecodeExact, Items, Run, check_digits, exact, first_entry, first_two, same_until, take_pairs,
};
pub use nested::{Part, counts_of, values_of};
pub use number::{is_numpy_bool, number_of};
pub use object::{as_array, check_range, to_list};
pub use py_rows::{Missing, PyRows};
pub use ragged::RowSpans;
pub use reader::Reader;
pub use some_tokens::SomeTokens;
pub use spans::{mask_offsets, mask_spans};
pub use storage::{
    RowStore, StoredRow, compact_ids, ids_of, numbers_of, stored_columns, token_ids,
};
pub use tensor::are_computed;
pub use tokens::{TokenInput, slices_of};

use std::sync::OnceLock;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::error::caught;

/// A value made at the first call and kept for later ones.
///
/// No lock is held while it is made: a signal handler that runs meanwhile may call this function,
/// and would wait for itself. The interpreter is not released while it is stored, as `PyOnceLock`
/// and `pyo3::intern` do: if another thread forked then, the child would wait for ever.
#[inline]
fn kept<'py, T>(
    cell: &'static OnceLock<Py<T>>,
    py: Python<'py>,
    make: impl FnOnce() -> PyResult<Bound<'py, T>>,
) -> PyResult<&'py Bound<'py, T>> {
    if let Some(found) = cell.get() {
        return Ok(found.bind(py));
    }
    let made = make()?.unbind();
    Ok(cell.get_or_init(|| made).bind(py))
}

/// A type of a module that is imported at the first call.
///
/// # Errors
/// Those of the import.
pub fn imported<'py>(
    cell: &'static OnceLock<Py<PyType>>,
    py: Python<'py>,
    module: &str,
    name: &str,
) -> PyResult<&'py Bound<'py, PyType>> {
    kept(cell, py, || Ok(py.import(module)?.getattr(name)?.cast_into()?))
}

/// A text as one `str` for all calls.
#[inline]
pub fn interned<'py>(
    cell: &'static OnceLock<Py<PyString>>,
    py: Python<'py>,
    text: &str,
) -> &'py Bound<'py, PyString> {
    kept(cell, py, || Ok(PyString::intern(py, text))).expect("texts are made without an error")
}

/// Initialise the NumPy binding, which runs Python code under a lock, and import the modules needed
/// for types, before any other call is possible.
///
/// # Errors
/// `ImportError` without a supported NumPy.
pub fn find_numpy(py: Python) -> PyResult<()> {
    let empty = PyArray1::<i64>::from_vec(py, Vec::new());
    empty.try_readwrite()?;
    py.import("array")?;
    Ok(())
}

/// An object's text in error messages: `1.5 (float)`, abbreviated if long.
///
/// # Errors
/// Those of its own code, unless a subclass of `Exception`.
pub fn describe(object: &Bound<PyAny>) -> PyResult<String> {
    let py = object.py();
    let kind = caught(py, object.get_type().name())?;
    let kind = kind.map_or("object".to_owned(), |name| name.to_string());
    let text = py.import("fastcollate.common.text")?;
    Ok(match caught(py, text.call_method1("show", (object,)))? {
        Some(repr) => format!("{repr} ({kind})"),
        None => format!("an object of type {kind}"),
    })
}
