//! Numbers of tokens from objects, such as the log-probabilities of engines in the same process.

use fastcollate::rollouts::{UNKNOWN, token_of};
use fastcollate::{add, gathered, reserve, resize, with_room};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyList, PyString, PyTuple};

use crate::error::{Error, Result};
use crate::plan::tables::{Column, column_of, values as values_of};
use crate::rollouts::row_of;
use crate::rows::{
    Items, compact_ids, describe, exact, first_entry, first_two, intern, is_numpy_bool,
};

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
/// number, or, of log-probabilities, a tuple of it and the token's id, or a dictionary by id of
/// numbers or objects with the attribute `logprob`, of which the sampled token is the first. Tokens
/// without a number have NaN, and those without an id -1.
/// `name` names a row in errors.
#[pyfunction]
pub fn read_numbers<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyList>,
    responses: Option<(PyReadonlyArray1<i32>, PyReadonlyArray1<i64>)>,
    are_logprobs: bool,
    may_have_lists: bool,
    name: Bound<'py, PyAny>,
) -> Result<Found<'py>> {
    let responses = match &responses {
        Some((ids, offsets)) => Some((values_of(ids)?, values_of(offsets)?)),
        None => None,
    };
    let mut numbers = Numbers {
        are_logprobs,
        may_have_lists,
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

/// The ids in texts `token_id:17` of tokens; other texts, and None, have none.
#[pyfunction]
pub fn ids_in_texts<'py>(texts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let mut ids = Vec::new();
    for text in texts.try_iter()? {
        let text = text?;
        if !text.is_none()
            && let Some(id) = token_of(text.cast::<PyString>()?.to_string_lossy().as_bytes())
        {
            added(&mut ids, id)?;
        }
    }
    Ok(PyArray1::from_vec(texts.py(), ids))
}

/// The numbers of all rows so far.
#[derive(Default)]
struct Numbers<'a> {
    /// The response of the row.
    response: &'a [i32],
    /// True for log-probabilities, of which items may be tuples and dictionaries.
    are_logprobs: bool,
    /// True if lists stand for tuples, as in JSON.
    may_have_lists: bool,
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
            return Err(wrong(row, "a list is expected"));
        }
        let mut items = row.try_iter()?;
        items.try_for_each(|item| self.item(&item?))
    }

    /// Read vLLM's flat log-probabilities: the first entry of each token.
    fn flat(&mut self, row: &Bound<PyAny>, starts: &Bound<PyAny>) -> PyResult<()> {
        let list = |name| Ok::<_, PyErr>(row.getattr(name)?.cast_into::<PyList>()?);
        let (ids, numbers) = (list("token_ids")?, list("logprobs")?);
        let ends = row.getattr("end_indices")?;
        for (start, end) in indices(starts)?.into_iter().zip(indices(&ends)?) {
            if start < end {
                let id = id_of(&ids.get_item(start)?)?;
                self.push(Some(id), &numbers.get_item(start)?)?;
            } else {
                self.push_none()?;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn item(&mut self, item: &Bound<PyAny>) -> PyResult<()> {
        if !self.are_logprobs || item.is_exact_instance_of::<PyFloat>() {
            return self.push(None, item);
        }
        if let Ok(tuple) = item.cast::<PyTuple>() {
            return self.pair(Items::Tuple(tuple));
        }
        if let Ok(entries) = item.cast::<PyDict>() {
            return self.entry(entries);
        }
        if self.may_have_lists
            && let Ok(list) = item.cast::<PyList>()
        {
            return self.pair(Items::List(list));
        }
        self.push(None, item)
    }

    /// Read a number and the id behind it, as far as they are there.
    #[inline(always)]
    fn pair(&mut self, pair: Items) -> PyResult<()> {
        let (number, id) = first_two(pair);
        match (number, id) {
            (None, _) => self.push_none(),
            (Some(number), None) => self.push(None, &number),
            (Some(number), Some(id)) => self.push(Some(id_of(&id)?), &number),
        }
    }

    /// Read the entry of the sampled token, usually the first.
    #[inline(always)]
    fn entry(&mut self, entries: &Bound<PyDict>) -> PyResult<()> {
        let Some((id, entry)) = first_entry(entries) else {
            return Err(wrong(entries, "an entry is expected"));
        };
        let id = id_of(&id)?;
        let sampled = { self.response.get(self.values.len() - self.start) }.copied();
        if let Some(sampled) = sampled
            && id != sampled
            && let Some(entry) = entries.get_item(sampled)?
        {
            return self.push(Some(sampled), &entry);
        }
        self.push(Some(id), &entry)
    }

    /// Add a token without a number.
    fn push_none(&mut self) -> PyResult<()> {
        added(&mut self.values, f32::NAN)
    }

    /// Write [`UNKNOWN`] for tokens without an id.
    fn fill_ids(&mut self) -> PyResult<()> {
        Ok(resize(&mut self.ids, self.values.len(), UNKNOWN).map_err(Error::from)?)
    }

    /// Add a token.
    #[inline(always)]
    fn push(&mut self, id: Option<i32>, number: &Bound<PyAny>) -> PyResult<()> {
        let value = match float(number) {
            Some(value) => value,
            None => self.other_value(number, self.are_logprobs)?,
        };
        if let Some(id) = id {
            if self.ids.len() < self.values.len() {
                self.fill_ids()?;
            }
            self.has_ids = true;
            added(&mut self.ids, id)?;
        }
        added(&mut self.values, value)
    }

    /// A number that is not a plain float, or that of an object with the attribute `logprob`.
    ///
    /// As in JSON, three texts stand for log-probabilities that are not finite, and masks may be
    /// booleans.
    fn other_value(&self, value: &Bound<PyAny>, may_have_attribute: bool) -> PyResult<f32> {
        if value.is_none() {
            return Ok(f32::NAN);
        }
        let is_bool = value.is_instance_of::<PyBool>();
        let text = value.cast::<PyString>().ok();
        if may_have_attribute
            && !is_bool
            && text.is_none()
            && let Some(number) = value.getattr_opt(intern!(value.py(), "logprob"))?
        {
            return float(&number).map_or_else(|| self.other_value(&number, false), Ok);
        }
        if self.are_logprobs {
            let text = text.map(|text| text.to_string_lossy());
            return match text.as_deref() {
                Some("NaN") => Ok(f32::NAN),
                Some("Infinity") => Ok(f32::INFINITY),
                Some("-Infinity") => Ok(f32::NEG_INFINITY),
                None if !is_bool && !is_numpy_bool(value)? => Ok(round(value.extract()?)),
                _ => Err(wrong(
                    value,
                    "a log-probability is expected; pass numbers, and None for missing ones",
                )),
            };
        }
        exact(value).map_or_else(|| Ok(round(value.extract()?)), Ok)
    }
}

/// The error for an object of another kind.
fn wrong(found: &Bound<PyAny>, expected: &str) -> PyErr {
    match describe(found) {
        Ok(found) => PyTypeError::new_err(format!("found {found} where {expected}")),
        Err(error) => error,
    }
}

#[inline]
fn added<T>(values: &mut Vec<T>, value: T) -> PyResult<()> {
    Ok(add(values, value).map_err(Error::from)?)
}

/// The value of a plain float.
#[inline(always)]
fn float(value: &Bound<PyAny>) -> Option<f32> {
    if value.is_exact_instance_of::<PyFloat>() {
        return exact(value);
    }
    None
}

/// The id of a token.
#[inline]
fn id_of(id: &Bound<PyAny>) -> PyResult<i32> {
    let found = exact(id).map_or_else(|| id.extract(), Ok)?;
    if found > 1 || found >= 0 && !id.is_instance_of::<PyBool>() {
        return Ok(found);
    }
    Err(wrong(id, "the id of a token is expected"))
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
