//! Lists that NumPy and torch read: as tuples, which the items' methods cannot change.

use std::collections::HashMap;

use fastcollate::{check_room, try_gathered};
use pyo3::exceptions::PyValueError;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyRange, PySequence, PyTuple};

use super::object::check_range;
use crate::error::Error;

/// Lists in lists that are read: more dimensions than NumPy has.
const MAX_DEPTH: usize = 65;

/// Return lists, nested ones too, as tuples, and anything else as it is.
///
/// NumPy and torch trust the length of a list while they call the methods of its items, which may
/// change it.
///
/// # Errors
/// Lists nested too deep, such as one that contains itself; ranges that no memory holds.
#[pyfunction]
pub fn fix_lists<'py>(value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    fix(value, MAX_DEPTH, &mut HashMap::new())
}

/// `fixed`: the lists met so far, and their tuples.
fn fix<'py>(
    value: Bound<'py, PyAny>,
    depth: usize,
    fixed: &mut HashMap<*mut PyObject, [Bound<'py, PyAny>; 2]>,
) -> PyResult<Bound<'py, PyAny>> {
    let items = match value.cast::<PySequence>() {
        Ok(sequence) if is_list(&value) => sequence.to_tuple()?,
        _ => {
            check_range(&value)?;
            return Ok(value);
        }
    };
    let is_plain = |item: &Bound<_>| !is_list(item) && !item.is_exact_instance_of::<PyRange>();
    if items.iter_borrowed().all(|item| is_plain(&item)) {
        return Ok(items.into_any());
    }
    if let Some([_, tuple]) = fixed.get(&value.as_ptr()) {
        return Ok(tuple.clone());
    }
    if depth == 0 {
        return Err(PyValueError::new_err("lists are nested too deep"));
    }
    check_room(items.len()).map_err(Error::from)?;
    let items = items.iter().map(|item| Ok(fix(item, depth - 1, fixed)?));
    let tuple = PyTuple::new(value.py(), try_gathered::<_, Error>(items)?)?.into_any();
    fixed.insert(value.as_ptr(), [value, tuple.clone()]);
    Ok(tuple)
}

fn is_list(item: &Bound<PyAny>) -> bool {
    let is_number = item.is_exact_instance_of::<PyInt>()
        || item.is_exact_instance_of::<PyFloat>()
        || item.is_exact_instance_of::<PyBool>();
    !is_number && (item.is_instance_of::<PyList>() || item.is_instance_of::<PyTuple>())
}
