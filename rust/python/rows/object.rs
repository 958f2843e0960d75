//! Kinds of Python objects: arrays, rows, sequences.

use std::sync::OnceLock;

use numpy::PyUntypedArray;
use numpy::prelude::*;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyRange, PyString, PyTuple, PyType};

use super::array::ArrayInput;
use super::number::has_len;
use super::{describe, imported, tensor};
use crate::error::{Error, Result, caught};

/// Rows between two polls for signals.
pub const POLL_ROWS: usize = 1 << 16;

/// True if an object is a tensor of rows. Checked before its memory is looked up, which may copy.
pub fn has_rows(object: &Bound<PyAny>) -> Result<bool> {
    Ok(tensor::dimensions(object)?.is_some_and(|dimensions| dimensions > 1))
}

/// True if a row is a list with one list or array per token.
pub fn is_list_of_rows(row: &Bound<PyAny>) -> Result<bool> {
    let first = match (row.cast::<PyList>(), row.cast::<PyTuple>()) {
        (Ok(list), _) => list.iter().next(),
        (_, Ok(tuple)) => tuple.iter().next(),
        _ => None,
    };
    first.map_or(Ok(false), |first| Ok(has_len(&first)?))
}

/// True if a field's first item can only be a row, not a number.
pub fn is_row(field: &str, item: &Bound<PyAny>) -> Result<bool> {
    if let Some(dimensions) = tensor::dimensions(item)? {
        return Ok(dimensions > 0);
    }
    match as_array(item, || format!("{field}[0]"))? {
        Some(input) => Ok(input.array.ndim() > 0),
        None => Ok(has_len(item)?),
    }
}

pub fn is_objects(array: &Bound<PyUntypedArray>) -> bool {
    array.ndim() == 1 && array.dtype().kind() == b'O'
}

/// The array of an object that is one or exports its memory as one: ndarray, tensor, `array.array`.
pub fn as_array<'py>(
    object: &Bound<'py, PyAny>,
    location: impl Fn() -> String,
) -> Result<Option<ArrayInput<'py>>> {
    static ARRAY_ARRAY: OnceLock<Py<PyType>> = OnceLock::new();
    let py = object.py();
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(Some(ArrayInput::of_array(array.clone())));
    }
    if object.is_exact_instance_of::<PyList>() || object.is_exact_instance_of::<PyTuple>() {
        return Ok(None);
    }
    if tensor::is_tensor(object)? {
        let input = tensor::as_array(object);
        return input.map(Some).map_err(|cause| Error::raised(py, location(), cause));
    }
    if object.is_instance(imported(&ARRAY_ARRAY, py, "array", "array")?)? {
        let numpy = py.import(intern!(py, "numpy"))?;
        let array = numpy.call_method1(intern!(py, "asarray"), (object,))?;
        return Ok(array.cast_into().ok().map(ArrayInput::of_array));
    }
    Ok(None)
}

/// True for real sequences only, not for objects that merely look like one.
pub fn is_sequence(object: &Bound<PyAny>) -> Result<bool> {
    if object.is_exact_instance_of::<PyList>() {
        return Ok(true);
    }
    let is_text = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>();
    let has = |method| object.get_type().hasattr(method);
    Ok(!is_text
        && !is_mapping(object)?
        && has(intern!(object.py(), "__getitem__"))?
        && has(intern!(object.py(), "__len__"))?)
}

/// True for mappings by `collections.abc`. `PyMapping` drops exceptions.
fn is_mapping(object: &Bound<PyAny>) -> PyResult<bool> {
    static MAPPING: OnceLock<Py<PyType>> = OnceLock::new();
    let mapping = imported(&MAPPING, object.py(), "collections.abc", "Mapping")?;
    Ok(object.is_instance_of::<PyDict>() || object.is_instance(mapping)?)
}

/// Limit of the items of a range.
const MAX_ITEMS: usize = 1 << 40;

/// Refuse a range of more than `MAX_ITEMS`, and take anything else.
///
/// # Errors
/// `ValueError`.
#[pyfunction]
pub fn check_range(value: &Bound<PyAny>) -> PyResult<()> {
    if value.is_exact_instance_of::<PyRange>() && value.get_item(MAX_ITEMS).is_ok() {
        let found = describe(value)?;
        let reason = format!("{found} has more items than any memory holds; pass fewer");
        return Err(PyValueError::new_err(reason));
    }
    Ok(())
}

/// The items of a sequence as a list.
///
/// # Errors
/// `ValueError` for a range of more than `MAX_ITEMS`; those of the sequence's own code.
pub fn to_list<'py>(sequence: &Bound<'py, PyAny>) -> Result<Bound<'py, PyList>> {
    if let Ok(list) = sequence.cast_exact::<PyList>() {
        return Ok(list.clone());
    }
    check_range(sequence)?;
    // Python's own list raises if memory runs out, whatever the length claimed.
    let list = PyList::empty(sequence.py());
    for (index, item) in sequence.try_iter()?.enumerate() {
        list.append(item?)?;
        if index % POLL_ROWS == POLL_ROWS - 1 {
            sequence.py().check_signals()?;
        }
    }
    Ok(list)
}

/// The rows of a column of `datasets` or pandas, read without making a Python object per number;
/// `None` for any other object.
pub fn of_table<'py>(
    rows: &Bound<'py, PyAny>,
    location: &str,
) -> Result<Option<Bound<'py, PyAny>>> {
    let py = rows.py();
    let is_theirs = |module: Bound<PyString>| {
        let module = module.to_string_lossy();
        module.starts_with("pandas") || module == "datasets.arrow_dataset"
    };
    if rows.is_exact_instance_of::<PyList>()
        || !caught(py, rows.get_type().module())?.is_some_and(is_theirs)
    {
        return Ok(None);
    }
    let columns = py.import(intern!(py, "fastcollate.rows.table_columns"))?;
    if !columns.call_method1("is_column", (rows,))?.is_truthy()? {
        return Ok(None);
    }
    let read = columns.call_method1("read_column", (rows,));
    read.map(Some).map_err(|cause| Error::raised(py, location, cause))
}

/// A row of a list or tuple subclass with its own iterator, as a list of the items iterated: NumPy
/// and torch do not read its storage either. Any other row unchanged.
pub fn iterated<'py>(
    row: Bound<'py, PyAny>,
    location: impl Fn() -> String,
) -> Result<Bound<'py, PyAny>> {
    let py = row.py();
    let base = if row.is_exact_instance_of::<PyList>() || row.is_exact_instance_of::<PyTuple>() {
        return Ok(row);
    } else if row.is_instance_of::<PyList>() {
        py.get_type::<PyList>()
    } else if row.is_instance_of::<PyTuple>() {
        py.get_type::<PyTuple>()
    } else {
        return Ok(row);
    };
    let iter = intern!(py, "__iter__");
    if row.get_type().getattr(iter)?.is(&base.getattr(iter)?) {
        return Ok(row);
    }
    // Not by the length that an iterator claims.
    let list = PyList::empty(py);
    let items = row.try_iter().and_then(|mut items| items.try_for_each(|item| list.append(item?)));
    items.map_err(|cause| Error::raised(py, location(), cause))?;
    Ok(list.into_any())
}
