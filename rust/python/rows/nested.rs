//! Rows of tokens with any number of values each: all values of a row, and the number of each token.

use fastcollate::{Column, Element, FieldColumn, resize, try_gathered};
use numpy::{
    Element as NumpyElement, PyArray1, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::list::{DecodeExact, Items, read_items};
use super::object::{POLL_ROWS, is_sequence, to_list};
use super::py_rows::PyRows;
use super::ragged::is_ragged;
use super::tensor::is_tensor;
use crate::error::{Error, Result, no_memory};

const EXPECTED: &str = "pass a list with one list of numbers per token, a tuple (values, counts) of \
     two 1-D arrays, or a Ragged of the row's tokens, such as fc.unpad(row, mask=row != pad)";

/// Takes the values or the counts out of a row: the row of a field, with its number.
pub type Part = for<'py> fn(&Bound<'py, PyAny>, &str, usize) -> Result<Bound<'py, PyAny>>;

/// The values of a row, one token after the other.
///
/// # Errors
/// `TypeError` and `ValueError` naming the token that cannot be read.
pub fn values_of<'py, T: Element + DecodeExact + NumpyElement>(
    row: &Bound<'py, PyAny>,
    field: &str,
    number: usize,
) -> Result<Bound<'py, PyAny>> {
    let py = row.py();
    if let Some([values, _]) = pair(row, field, number)? {
        return Ok(values);
    }
    if is_ragged(row)? {
        return Ok(row.getattr(intern!(py, "values"))?);
    }
    let location = format!("{field}[{number}]");
    let tokens = tokens_of(row, &location)?;
    let exact: usize =
        tokens.iter().map(|items| Items::exact(&items).map_or(0, Items::count)).sum();
    let mut values: Vec<T> = Vec::new();
    let no_memory = || no_memory(&format!("no memory for the values of {location}"));
    values.try_reserve_exact(exact).map_err(|_| no_memory())?;
    let room = |values: &mut Vec<T>, len| {
        let begin = values.len();
        resize(values, begin + len, T::ZERO).map_err(|_| no_memory())?;
        Ok::<_, Error>(begin)
    };
    for (token, items) in tokens.iter().enumerate() {
        match Items::exact(&items) {
            Some(items) => {
                let len = items.count();
                let begin = room(&mut values, len)?;
                read_items(items, len, 0, &mut values[begin..], &location, token)?;
            }
            None => {
                let row = PyRows::single::<T>(&location, token, &items)?;
                let begin = room(&mut values, row.lens()?[0])?;
                row.read(0, 0, &mut values[begin..])?;
            }
        }
        if token % POLL_ROWS == POLL_ROWS - 1 {
            py.check_signals()?;
        }
    }
    Ok(PyArray1::from_vec(py, values).into_any())
}

/// The number of values of each token of a row.
///
/// # Errors
/// `TypeError` naming the token that has no length.
pub fn counts_of<'py>(
    row: &Bound<'py, PyAny>,
    field: &str,
    number: usize,
) -> Result<Bound<'py, PyAny>> {
    let py = row.py();
    if let Some([_, counts]) = pair(row, field, number)? {
        return Ok(counts);
    }
    if is_ragged(row)? {
        return Ok(row.getattr(intern!(py, "lengths"))?);
    }
    let location = format!("{field}[{number}]");
    let tokens = tokens_of(row, &location)?;
    let count = |(token, items): (usize, Bound<'py, PyAny>)| {
        let len = items.len();
        let len = len.map_err(|cause| Error::raised(py, format!("{location}[{token}]"), cause))?;
        Ok::<_, Error>(len as i64)
    };
    let counts = tokens.iter().enumerate().map(count);
    Ok(PyArray1::from_vec(py, try_gathered(counts)?).into_any())
}

/// A row of two arrays or tensors in a tuple.
///
/// # Errors
/// `TypeError` for other dimensions than one, and for a mask in place of counts.
fn pair<'py>(
    row: &Bound<'py, PyAny>,
    field: &str,
    number: usize,
) -> Result<Option<[Bound<'py, PyAny>; 2]>> {
    let Ok(pair) = row.cast_exact::<PyTuple>() else {
        return Ok(None);
    };
    let Ok((values, counts)) = pair.extract::<(Bound<PyAny>, Bound<PyAny>)>() else {
        return Ok(None);
    };
    if !is_array(&values)? || !is_array(&counts)? {
        return Ok(None);
    }
    let py = row.py();
    let is_flat = |array: &Bound<PyAny>| array.getattr(intern!(py, "ndim"))?.eq(1);
    let is_mask = match counts.cast::<PyUntypedArray>() {
        // NumPy's names of dtypes take 3 us each.
        Ok(counts) => counts.dtype().kind() == b'b',
        Err(_) => {
            let dtype = counts.getattr(intern!(py, "dtype"))?.str()?;
            dtype.to_string_lossy().ends_with("bool")
        }
    };
    if !is_flat(&values)? || !is_flat(&counts)? || is_mask {
        return Err(Error::wrong_type(format!("{field}[{number}]"), row, EXPECTED));
    }
    Ok(Some([values, counts]))
}

/// True for an array or tensor.
pub fn is_array(object: &Bound<PyAny>) -> PyResult<bool> {
    Ok(object.is_instance_of::<PyUntypedArray>() || is_tensor(object)?)
}

/// The tokens of a row that is a sequence of them.
fn tokens_of<'py>(row: &Bound<'py, PyAny>, location: &str) -> Result<Bound<'py, PyList>> {
    match !is_array(row)? && is_sequence(row)? {
        true => to_list(row),
        false => Err(Error::wrong_type(location.to_owned(), row, EXPECTED)),
    }
}
