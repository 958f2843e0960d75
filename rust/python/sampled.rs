//! Log-probabilities of sampled tokens, from the objects of engines in the same process.

use fastcollate::Error as Core;
use fastcollate::rollouts::Logprobs;
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple};

use crate::error::{Error, Result};
use crate::plan::tables::values as values_of;
use crate::rollouts::{BAD_LOGPROBS, Settled, logprobs};
use crate::rows::{compact_ids, intern};

/// Read the log-probabilities of calls, and treat them as those of bodies are.
///
/// A row is None, an array of float64, vLLM's flat log-probabilities, or a list with an item per
/// token: a number, a tuple of it and the token's id, or a dictionary by id of numbers or objects
/// with the attribute `logprob`, of which the sampled token is the first. `offsets` are those of
/// the calls in `responses`. A call's name in errors is its output and its index there.
#[pyfunction]
pub fn read_logprobs<'py>(
    py: Python<'py>,
    rows: Vec<Bound<'py, PyAny>>,
    responses: PyReadonlyArray1<i32>,
    offsets: PyReadonlyArray1<i64>,
    names: Vec<(usize, usize)>,
    bad_logprobs: &str,
) -> Result<Settled<'py>> {
    let (responses, offsets) = (values_of(&responses), values_of(&offsets));
    let mut found = Logprobs::new(BAD_LOGPROBS.value(bad_logprobs)?);
    let name = |call: usize| {
        let (output, index) = names[call];
        format!("outputs[{output}]: call {index}")
    };
    let mut values = Vec::new();
    let mut ends = offsets.iter().map(|&end| usize::try_from(end).unwrap_or(0));
    let mut start = ends.next().unwrap_or(0);
    for (call, (row, end)) in rows.iter().zip(ends).enumerate() {
        py.check_signals()?;
        values.clear();
        let response = responses.get(start..end).unwrap_or(&[]);
        let mut sampled = Sampled {
            response,
            values: &mut values,
        };
        let read = sampled.read(row);
        read.map_err(|wrong| match wrong {
            Wrong::Python(error) => Error::raised(py, name(call), error),
            Wrong::Reason(reason) => Error::from(Core::Body(format!(
                "{} has log-probabilities of other tokens than its response: {reason}",
                name(call)
            ))),
        })?;
        let given = (!row.is_none()).then_some(&values[..]);
        found.add(given, response.len(), None, || name(call))?;
        start = end;
    }
    found.finish(None, name)?;
    logprobs(py, found)
}

/// The log-probabilities of a call so far.
struct Sampled<'a> {
    response: &'a [i32],
    values: &'a mut Vec<f32>,
}

/// What is wrong with a call.
enum Wrong {
    Python(PyErr),
    Reason(String),
}

impl From<PyErr> for Wrong {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl Sampled<'_> {
    fn read(&mut self, row: &Bound<PyAny>) -> Result<(), Wrong> {
        let py = row.py();
        if row.is_none() {
            return Ok(());
        }
        if let Ok(list) = row.cast::<PyList>() {
            return list.iter().try_for_each(|item| self.item(&item));
        }
        if let Ok(array) = row.extract::<PyReadonlyArray1<f64>>() {
            let rounded = values_of(&array)
                .iter()
                .map(|&value| round(value))
                .collect::<Vec<_>>();
            self.values.extend(rounded);
            return Ok(());
        }
        match row.getattr_opt(intern!(py, "start_indices"))? {
            Some(starts) => self.flat(row, &starts),
            None => row.try_iter()?.try_for_each(|item| self.item(&item?)),
        }
    }

    /// Read vLLM's flat log-probabilities: the first entry of each token.
    fn flat(&mut self, row: &Bound<PyAny>, starts: &Bound<PyAny>) -> Result<(), Wrong> {
        let py = row.py();
        let list = |name| Ok::<_, PyErr>(row.getattr(name)?.cast_into::<PyList>()?);
        let (ids, numbers) = (
            list(intern!(py, "token_ids"))?,
            list(intern!(py, "logprobs"))?,
        );
        let (starts, ends) = (
            indices(starts)?,
            indices(&row.getattr(intern!(py, "end_indices"))?)?,
        );
        for (start, end) in starts.into_iter().zip(ends) {
            if start >= end {
                self.values.push(f32::NAN);
                continue;
            }
            self.check(&ids.get_item(start)?)?;
            self.value(&numbers.get_item(start)?)?;
        }
        Ok(())
    }

    #[inline]
    fn item(&mut self, item: &Bound<PyAny>) -> Result<(), Wrong> {
        if let Ok(entries) = item.cast::<PyDict>() {
            return self.entry(entries);
        }
        if let Ok(pair) = item.cast::<PyTuple>() {
            self.check(&pair.get_item(1)?)?;
            return self.value(&pair.get_item(0)?);
        }
        if let Ok(pair) = item.cast::<PyList>() {
            self.check(&pair.get_item(1)?)?;
            return self.value(&pair.get_item(0)?);
        }
        self.value(item)
    }

    /// Read the entry of the sampled token, usually the first.
    fn entry(&mut self, entries: &Bound<PyDict>) -> Result<(), Wrong> {
        let Some((id, entry)) = entries.iter().next() else {
            self.values.push(f32::NAN);
            return Ok(());
        };
        let Err(wrong) = self.check(&id) else {
            return self.value(&entry);
        };
        match self.response.get(self.values.len()) {
            Some(id) => match entries.get_item(id)? {
                Some(entry) => self.value(&entry),
                None => Err(wrong),
            },
            None => Err(wrong),
        }
    }

    /// Compare an id with the next token of the response.
    fn check(&self, id: &Bound<PyAny>) -> Result<(), Wrong> {
        let at = self.values.len();
        let Some(&expected) = self.response.get(at) else {
            return Ok(());
        };
        match id.extract::<i64>()? {
            found if found == i64::from(expected) => Ok(()),
            found => Err(Wrong::Reason(format!(
                "token {at} is {found}, but {expected} in the response"
            ))),
        }
    }

    /// Add a number, or an object's.
    fn value(&mut self, value: &Bound<PyAny>) -> Result<(), Wrong> {
        let py = value.py();
        let number = if let Ok(value) = value.cast_exact::<PyFloat>() {
            value.value()
        } else if value.is_none() {
            f64::NAN
        } else if value.is_instance_of::<PyInt>() {
            value.extract()?
        } else {
            match value.getattr_opt(intern!(py, "logprob"))? {
                Some(number) if number.is_none() => f64::NAN,
                Some(number) => number.extract()?,
                None => value.extract()?,
            }
        };
        self.values.push(round(number));
        Ok(())
    }
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
    Ok(values_of(&array).iter().map(index).collect())
}
