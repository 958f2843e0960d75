//! Numbers of tokens from objects, such as the log-probabilities of engines in the same process.

use fastcollate::rollouts::{MISSING, UNKNOWN, flag_of, none_of};
use fastcollate::{add, gathered, reserve, resize};
use numpy::{PyReadonlyArray1, PyUntypedArray, prelude::*};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyList, PyString, PyTuple};

use crate::error::{Error, Result};
use crate::plan::tables::{LONG, values as values_of};
use crate::rows::{
    Items, as_array, compact_ids, describe, exact, first_entry, first_two, intern, is_numpy_bool,
    numbers_of, take_pairs,
};

/// The numbers of a call, read from a row of them: an array, vLLM's flat log-probabilities, or a
/// list with an item per token.
///
/// An item is a number, or, of log-probabilities, a tuple of it and the token's id, or a dictionary
/// by id of numbers or objects with the attribute `logprob`, of which the sampled token is the first.
/// Tokens without a number have NaN.
#[derive(Default)]
pub struct Numbers<'a> {
    /// The response of the row.
    pub response: &'a [i32],
    /// True for log-probabilities, of which items may be tuples and dictionaries.
    pub are_logprobs: bool,
    /// True if lists stand for tuples, as in JSON.
    pub may_have_lists: bool,
    /// The bits of a mask that is made of flags.
    pub bits: Option<u32>,
    /// The bits of float32.
    pub values: Vec<i32>,
    /// The ids beside them, up to the last; [`UNKNOWN`] for tokens without one.
    pub ids: Vec<i32>,
}

impl Numbers<'_> {
    /// Read a row.
    ///
    /// # Errors
    /// Objects of other kinds, and those of their own code.
    pub fn read(&mut self, row: &Bound<PyAny>) -> PyResult<()> {
        if let Ok(list) = row.cast::<PyList>() {
            reserve(&mut self.values, list.len()).map_err(Error::from)?;
            let first = list.get_item(0);
            if self.are_logprobs && first.is_ok_and(|item| item.is_exact_instance_of::<PyTuple>()) {
                return self.tuples(list);
            }
            return list.iter().enumerate().try_for_each(|(index, item)| {
                if index % LONG == LONG - 1 {
                    row.py().check_signals()?;
                }
                self.item(&item)
            });
        }
        let array = row.cast::<PyUntypedArray>();
        let is_of_objects = array.is_ok_and(|array| array.dtype().kind() == b'O');
        if !is_of_objects && as_array(row, String::new)?.is_some() {
            let numbers = numbers_of(row)?;
            reserve(&mut self.values, numbers.len()).map_err(Error::from)?;
            for value in numbers {
                let bits = self.bits_of(value);
                added(&mut self.values, bits)?;
            }
            return Ok(());
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

    /// Read a list of tuples, and of any other items.
    fn tuples(&mut self, list: &Bound<PyList>) -> PyResult<()> {
        let mut index = 0;
        while index < list.len() {
            index += self.pairs(list, index)?;
            if index < list.len() {
                self.item(&list.get_item(index)?)?;
                index += 1;
            }
            list.py().check_signals()?;
        }
        Ok(())
    }

    /// Read tuples of plain numbers and ids, up to the first other item; returns how many.
    fn pairs(&mut self, list: &Bound<PyList>, from: usize) -> Result<usize> {
        let (values, ids) = (&mut self.values, &mut self.ids);
        let count = (list.len() - from).min(LONG);
        resize(ids, values.len(), UNKNOWN)?;
        reserve(ids, count)?;
        reserve(values, count)?;
        let end = values.len() + count;
        Ok(take_pairs(list, from, |number, id| {
            let fits = id >= 0 && values.len() < end;
            if fits {
                values.push(number.to_bits().cast_signed());
                ids.push(id);
            }
            fits
        }))
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

    /// Read an item of a row, or one number.
    ///
    /// # Errors
    /// As [`Numbers::read`].
    #[inline(always)]
    pub fn item(&mut self, item: &Bound<PyAny>) -> PyResult<()> {
        if !self.are_logprobs || item.is_exact_instance_of::<PyFloat>() {
            return self.push(None, item);
        }
        // A cast that fails makes an error, which takes longer than the check.
        if item.is_instance_of::<PyDict>() {
            return self.entry(item.cast()?);
        }
        if item.is_instance_of::<PyTuple>() {
            return self.pair(Items::Tuple(item.cast()?));
        }
        if self.may_have_lists && item.is_instance_of::<PyList>() {
            return self.pair(Items::List(item.cast()?));
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
        let sampled = self.response.get(self.values.len()).copied();
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
        added(&mut self.values, MISSING)
    }

    /// Add a token.
    #[inline(always)]
    fn push(&mut self, id: Option<i32>, number: &Bound<PyAny>) -> PyResult<()> {
        let value = match float(number) {
            Some(value) if self.bits.is_none() => value.to_bits().cast_signed(),
            _ => self.other_value(number, self.are_logprobs)?,
        };
        if let Some(id) = id {
            if self.ids.len() < self.values.len() {
                resize(&mut self.ids, self.values.len(), UNKNOWN).map_err(Error::from)?;
            }
            added(&mut self.ids, id)?;
        }
        added(&mut self.values, value)
    }

    /// A number that is not a plain float, or that of an object with the attribute `logprob`.
    ///
    /// As in JSON, three texts stand for log-probabilities that are not finite, and masks may be
    /// booleans.
    fn other_value(&self, value: &Bound<PyAny>, may_have_attribute: bool) -> PyResult<i32> {
        if value.is_none() {
            return Ok(MISSING);
        }
        let is_bool = value.is_instance_of::<PyBool>();
        let is_text = value.is_instance_of::<PyString>();
        if may_have_attribute
            && !is_bool
            && !is_text
            && let Some(number) = value.getattr_opt(intern!(value.py(), "logprob"))?
        {
            let bits = |value: f32| Ok(value.to_bits().cast_signed());
            return float(&number).map_or_else(|| self.other_value(&number, false), bits);
        }
        if self.are_logprobs {
            let text = value.cast::<PyString>().ok();
            let number = match text.and_then(|text| none_of(&text.to_string_lossy())) {
                Some(number) => number,
                None if !is_text && !is_bool && !is_numpy_bool(value)? => value.extract()?,
                None => {
                    let expected = "a log-probability is expected; pass numbers, and None for \
                                    missing ones";
                    return Err(wrong(value, expected));
                }
            };
            return Ok(self.bits_of(number));
        }
        let number = exact(value).map_or_else(|| value.extract(), Ok)?;
        Ok(self.bits_of(number))
    }

    /// The bits of a number as float32, or of the flag in it.
    #[allow(clippy::cast_possible_truncation, reason = "rounded, as NumPy does")]
    fn bits_of(&self, value: f64) -> i32 {
        let value = self.bits.map_or(value, |bits| flag_of(value, bits));
        (value as f32).to_bits().cast_signed()
    }
}

/// The error for an object of another kind.
pub fn wrong(found: &Bound<PyAny>, expected: &str) -> PyErr {
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

/// Read a list of indices.
fn indices(list: &Bound<PyAny>) -> PyResult<Vec<usize>> {
    let array = compact_ids("indices", list, 0)?;
    let array: PyReadonlyArray1<i32> = array.extract()?;
    let index = |&index: &i32| usize::try_from(index).unwrap_or(usize::MAX);
    Ok(gathered(values_of(&array)?.iter().map(index)).map_err(Error::from)?)
}
