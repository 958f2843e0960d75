//! Numbers of tokens from objects, such as the log-probabilities of engines in the same process.

use fastcollate::{add, gathered, reserve, resize, with_room};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::error::{Error, Result};
use crate::plan::tables::{Column, column_of, values as values_of};
use crate::rollouts::row_of;
use crate::rows::{compact_ids, exact, first_entry, intern};

/// Numbers, the ids beside them, their offsets, and true for rows that have ids.
type Found<'py> = (
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<i32>>,
    Column<'py>,
    Vec<bool>,
);

/// Read a number per token, and the token's id where a row has it.
///
/// A row is an array of float64, vLLM's flat log-probabilities, or a list with an item per token: a
/// number, or, if rows `have_tokens`, a tuple of it and the token's id, or a dictionary by id of
/// numbers or objects with the attribute `logprob`, of which the sampled token is the first. Tokens
/// without a number have NaN.
/// `name` names a row in errors.
#[pyfunction]
pub fn read_numbers<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyList>,
    responses: Option<(PyReadonlyArray1<i32>, PyReadonlyArray1<i64>)>,
    have_tokens: bool,
    name: Bound<'py, PyAny>,
) -> Result<Found<'py>> {
    let responses = match &responses {
        Some((ids, offsets)) => Some((values_of(ids)?, values_of(offsets)?)),
        None => None,
    };
    let mut numbers = Numbers {
        have_tokens,
        ..Numbers::default()
    };
    let (mut ends, mut have_ids) = (with_room(rows.len() + 1)?, with_room(rows.len())?);
    ends.push(0);
    for (number, row) in rows.iter().enumerate() {
        py.check_signals()?;
        let response = { responses.as_ref() }.and_then(|(ids, ends)| row_of(ids, ends, number));
        numbers.response = response.unwrap_or(&[]);
        (numbers.start, numbers.has_ids) = (numbers.values.len(), false);
        if let Err(error) = numbers.read(&row) {
            let name: String = name.call1((number,))?.extract()?;
            return Err(Error::raised(py, name, error));
        }
        numbers.fill_ids()?;
        add(&mut ends, numbers.values.len())?;
        add(&mut have_ids, numbers.has_ids)?;
    }
    let ids = PyArray1::from_vec(py, numbers.ids);
    let values = PyArray1::from_vec(py, numbers.values);
    Ok((values, ids, column_of(py, ends)?, have_ids))
}

/// The numbers of all rows so far.
#[derive(Default)]
struct Numbers<'a> {
    /// The response of the row.
    response: &'a [i32],
    /// True if items may be tuples and dictionaries.
    have_tokens: bool,
    values: Vec<f32>,
    ids: Vec<i32>,
    /// The number of values before the row.
    start: usize,
    has_ids: bool,
}

impl Numbers<'_> {
    fn read(&mut self, row: &Bound<PyAny>) -> PyResult<()> {
        if let Ok(list) = row.cast::<PyList>() {
            reserve(&mut self.values, list.len()).map_err(Error::from)?;
            return list.iter().try_for_each(|item| self.item(&item));
        }
        if let Ok(array) = row.extract::<PyReadonlyArray1<f64>>() {
            let mut values = values_of(&array)?.into_owned().into_iter();
            return values.try_for_each(|value| added(&mut self.values, round(value)));
        }
        if let Some(starts) = row.getattr_opt(intern!(row.py(), "start_indices"))? {
            return self.flat(row, &starts);
        }
        // Their items are keys and characters.
        if row.is_instance_of::<PyDict>() || row.is_instance_of::<PyString>() {
            let reason = format!(
                "found a {} where a list is expected",
                row.get_type().name()?
            );
            return Err(PyTypeError::new_err(reason));
        }
        row.try_iter()?.try_for_each(|item| self.item(&item?))
    }

    /// Read vLLM's flat log-probabilities: the first entry of each token.
    fn flat(&mut self, row: &Bound<PyAny>, starts: &Bound<PyAny>) -> PyResult<()> {
        let list = |name| Ok::<_, PyErr>(row.getattr(name)?.cast_into::<PyList>()?);
        let (ids, numbers) = (list("token_ids")?, list("logprobs")?);
        let ends = row.getattr("end_indices")?;
        for (start, end) in indices(starts)?.into_iter().zip(indices(&ends)?) {
            if start < end {
                self.push(id_of(&ids.get_item(start)?)?, &numbers.get_item(start)?)?;
            } else {
                self.push_none()?;
            }
        }
        Ok(())
    }

    #[inline]
    fn item(&mut self, item: &Bound<PyAny>) -> PyResult<()> {
        if self.have_tokens {
            if let Ok(entries) = item.cast::<PyDict>() {
                return self.entry(entries);
            }
            if let Ok(pair) = item.cast::<PyTuple>() {
                return self.push(id_of(&pair.get_item(1)?)?, &pair.get_item(0)?);
            }
            if let Ok(pair) = item.cast::<PyList>() {
                return self.push(id_of(&pair.get_item(1)?)?, &pair.get_item(0)?);
            }
        }
        match item.is_none() {
            true => self.push_none(),
            false => added(&mut self.values, value_of(item)?),
        }
    }

    /// Read the entry of the sampled token, usually the first.
    fn entry(&mut self, entries: &Bound<PyDict>) -> PyResult<()> {
        let Some((id, entry)) = first_entry(entries) else {
            return self.push_none();
        };
        let id = id_of(&id)?;
        if let Some(sampled) = self.sampled()
            && id != sampled
            && let Some(entry) = entries.get_item(sampled)?
        {
            return self.push(sampled, &entry);
        }
        self.push(id, &entry)
    }

    /// The next token of the response.
    fn sampled(&self) -> Option<i32> {
        self.response.get(self.values.len() - self.start).copied()
    }

    /// Add a token without a number.
    fn push_none(&mut self) -> PyResult<()> {
        self.fill_ids()?;
        let sampled = self.sampled().unwrap_or(0);
        added(&mut self.ids, sampled)?;
        added(&mut self.values, f32::NAN)
    }

    /// Write 0 for tokens without an id.
    fn fill_ids(&mut self) -> PyResult<()> {
        Ok(resize(&mut self.ids, self.values.len(), 0).map_err(Error::from)?)
    }

    /// Add a token.
    #[inline]
    fn push(&mut self, id: i32, value: &Bound<PyAny>) -> PyResult<()> {
        self.has_ids = true;
        added(&mut self.ids, id)?;
        added(&mut self.values, value_of(value)?)
    }
}

#[inline]
fn added<T>(values: &mut Vec<T>, value: T) -> PyResult<()> {
    Ok(add(values, value).map_err(Error::from)?)
}

/// The id of a token.
#[inline]
fn id_of(id: &Bound<PyAny>) -> PyResult<i32> {
    exact(id).map_or_else(|| id.extract(), Ok)
}

/// A number, or an object's.
#[inline]
fn value_of(value: &Bound<PyAny>) -> PyResult<f32> {
    if let Some(value) = exact(value) {
        return Ok(value);
    }
    if value.is_none() {
        return Ok(f32::NAN);
    }
    if let Some(number) = value.getattr_opt(intern!(value.py(), "logprob"))? {
        return value_of(&number);
    }
    let text = value.cast::<PyString>().ok();
    let number = text.and_then(|text| text.to_string_lossy().parse::<f64>().ok());
    Ok(round(number.map_or_else(|| value.extract(), Ok)?))
}

#[allow(clippy::cast_possible_truncation, reason = "rounded, as NumPy does")]
fn round(value: f64) -> f32 {
    value as f32
}

/// Read a list of indices.
fn indices(list: &Bound<PyAny>) -> PyResult<Vec<usize>> {
    let array = compact_ids("indices", list, 0)?;
    let array: PyReadonlyArray1<i32> = array.extract()?;
    let index = |&index: &i32| usize::try_from(index).unwrap_or(usize::MAX);
    Ok(gathered(values_of(&array)?.iter().map(index)).map_err(Error::from)?)
}
