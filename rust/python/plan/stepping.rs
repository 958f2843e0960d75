//! The step: grouping of rows by prompt, and the split among ranks.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use fastcollate::plan::{Cause, Indivisible, Padding, Split, StepTables};
use fastcollate::{Error as Core, check_room, try_gathered};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString};

use crate::error::{Error, Result, caught, cited};
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::packing::{Ranks, check_fit};
use crate::plan::tables::{Column, LONG, array_of, column_of, to_i64, values};
use crate::rows::{Run, describe, same_until};

/// Padding options for ranks.
pub const PAD_ROWS: Names<Padding> = Names::new(
    "pad_rows",
    &[
        (Padding::Synthetic, "synthetic"),
        (Padding::CopyFirst, "copy_first"),
        (Padding::CopyCycle, "copy_cycle"),
        (Padding::Refused, "error"),
    ],
);

/// Offsets of runs of equal objects with the end of the last, int64 (runs + 1,), and whether the
/// hashes prove that all runs differ.
///
/// # Errors
/// `TypeError` for objects that cannot be compared, `ValueError` for None and NaN if ids are
/// required.
#[pyfunction]
pub fn group_offsets<'py>(
    ids: &Bound<'py, PyList>,
    name: &str,
    are_required: bool,
) -> PyResult<(Column<'py>, bool)> {
    let (offsets, are_different) = runs(ids, name, are_required)?;
    Ok((column_of(ids.py(), offsets)?, are_different))
}

/// Number of uids whose spans are made at once, without a pause for signals.
const FEW: usize = 1 << 16;

/// The first row of each prompt, and one past its last, as a list of tuples. `None` if the hashes do
/// not prove that all prompts differ, and for uids that are many, or no list of texts or numbers.
///
/// # Errors
/// As `group_offsets`.
#[pyfunction]
pub fn prompt_spans<'py>(uids: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
    let Ok(ids) = uids.cast_exact::<PyList>() else {
        return Ok(None);
    };
    let is_plain = |first: Bound<PyAny>| {
        first.is_exact_instance_of::<PyString>()
            || first.is_exact_instance_of::<PyInt>()
            || first.is_exact_instance_of::<PyBytes>()
    };
    if !(1..=FEW).contains(&ids.len()) || !ids.get_item(0).is_ok_and(is_plain) {
        return Ok(None);
    }
    let (offsets, are_different) = runs(ids, "uids", false)?;
    let spans = offsets.windows(2).map(|ends| (ends[0], ends[1]));
    are_different.then(|| PyList::new(ids.py(), spans)).transpose()
}

/// Offsets of runs, and whether all differ.
///
/// Most items are the same object as the previous one, or the same text, which is checked without
/// owning them.
fn runs(ids: &Bound<PyList>, name: &str, are_required: bool) -> PyResult<(Vec<usize>, bool)> {
    let py = ids.py();
    check_room(ids.len()).map_err(Error::from)?;
    let mut offsets = vec![0];
    let mut hashes = Hashes::default();
    let mut are_different = true;
    let mut last: Option<Bound<PyAny>> = None;
    let mut index = 0;
    while index < ids.len() {
        let Ok(item) = ids.get_item(index) else {
            return Err(changed(name, index)); // by another thread: there is no GIL
        };
        let is_same = match &last {
            Some(last) => {
                last.eq(&item).map_err(|cause| incomparable(&item, name, index, cause))?
            }
            None => false,
        };
        if !is_same {
            if are_required && is_missing(&item)? {
                return Err(missing(&item, name, index));
            }
            if index > 0 {
                offsets.push(index);
            }
            if offsets.len().is_multiple_of(LONG / 16) {
                py.check_signals()?;
            }
            // Unhashable objects are compared elsewhere.
            are_different =
                are_different && caught(py, item.hash())?.is_some_and(|hash| hashes.insert(hash));
        }
        (index, last) = match same_until(ids, &item, index) {
            Run::Until(index) => (index, Some(item)),
            Run::UntilOther(index) => (index, None),
        };
    }
    if index > 0 {
        offsets.push(index);
    }
    Ok((offsets, are_different))
}

/// True for the values that stand for no id in tables: None, and NaN of any type, which differs from
/// itself.
fn is_missing(item: &Bound<PyAny>) -> PyResult<bool> {
    Ok(item.is_none() || caught(item.py(), item.ne(item))? == Some(true))
}

fn missing(item: &Bound<PyAny>, name: &str, index: usize) -> PyErr {
    let found = if item.is_none() { "None" } else { "NaN" };
    PyValueError::new_err(format!(
        "{name}[{index}] is {found}; pass an id for every row, or leave {name} out"
    ))
}

/// Hashes of Python objects. They are well distributed, except those of ints.
///
/// In parts, since a set that grows moves all of its items at once: ten million take 0.2 seconds. The
/// first few are in no set, as making the parts takes longer than looking at these.
#[derive(Default)]
struct Hashes {
    few: Vec<isize>,
    parts: Vec<HashSet<isize, BuildHasherDefault<IdHasher>>>,
}

impl Hashes {
    /// Add a hash; returns false if it is there.
    fn insert(&mut self, hash: isize) -> bool {
        if self.few.contains(&hash) {
            return false;
        }
        if self.few.len() < 16 {
            self.few.push(hash);
            return true;
        }
        self.parts.resize_with(32, HashSet::default);
        let mut hasher = IdHasher::default();
        hasher.write_isize(hash);
        // Other bits than those by which a set finds its items.
        let part = (hasher.finish() >> 40) as usize % self.parts.len();
        self.parts[part].insert(hash)
    }
}

#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write_isize(&mut self, hash: isize) {
        // The odd number next to 2^64 over the golden ratio, as in Fibonacci hashing.
        self.0 = (hash as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only integers are hashed");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The error for fewer ids than a moment ago.
fn changed(name: &str, len: usize) -> PyErr {
    PyValueError::new_err(format!(
        "{name} changed to no more than {len} items while they were read; do not modify inputs during \
         the call"
    ))
}

fn incomparable(item: &Bound<PyAny>, name: &str, index: usize, cause: PyErr) -> PyErr {
    let py = item.py();
    if !cause.is_instance_of::<PyException>(py) {
        return cause;
    }
    let (found, why) = match (describe(item), cited(py, &cause)) {
        (Ok(found), Ok(why)) => (found, why),
        (Err(interrupt), _) | (_, Err(interrupt)) => return interrupt,
    };
    let error = PyTypeError::new_err(format!(
        "{name}[{index}] is {found}, which cannot be compared with other ids ({why}); \
         pass strings, integers or tuples of them"
    ));
    error.set_cause(py, Some(cause));
    error
}

/// Pad mini-batches, and split them among ranks.
///
/// # Returns
/// The row of each slot, -1 for a synthetic one; whether it is padding; the slot offsets of
/// mini-batches. If padding is refused but needed, the tables are empty, and the mini-batch and the
/// group, or -1, that cannot be split are returned.
#[pyfunction]
#[allow(clippy::type_complexity, reason = "unpacked in one place")]
pub fn split_step<'py>(
    py: Python<'py>,
    mini_batches: PyReadonlyArray1<i64>,
    groups: Option<PyReadonlyArray1<i64>>,
    ranks: Ranks,
    padding: &str,
) -> Result<(Column<'py>, Bound<'py, PyArray1<bool>>, Column<'py>, Option<(usize, i64)>)> {
    let mini_batches = offsets(&mini_batches)?;
    let groups = groups.as_ref().map(offsets).transpose()?;
    let rows = mini_batches.last().copied().unwrap_or(0);
    check_fit(
        ranks.count > 0
            && ranks.costs.as_ref().is_none_or(|costs| costs.len() == rows)
            && groups.as_ref().is_none_or(|groups| groups.last() == Some(&rows)),
    )?;
    let split = Split {
        ranks: ranks.count,
        deal: ranks.deal(),
        padding: PAD_ROWS.value(padding)?,
        groups: groups.as_deref(),
    };
    Ok(match stoppable(py, |ticks| split.slots(&mini_batches, ticks))? {
        Ok(slots) => {
            let row = |row: Option<usize>| row.map_or(-1, to_i64);
            (
                array_of(py, slots.slots.iter().map(|slot| row(slot.row)))?,
                array_of(py, slots.slots.iter().map(|slot| slot.is_padding))?,
                column_of(py, slots.offsets)?,
                None,
            )
        }
        Err(Indivisible { mini_batch, cause }) => {
            let group = match cause {
                Cause::Group(group) => to_i64(group),
                Cause::Rows => -1,
                Cause::Slots => -2,
            };
            let empty = || column_of(py, []);
            let none = PyArray1::from_slice(py, &[]);
            (empty()?, none, empty()?, Some((mini_batch, group)))
        }
    })
}

/// Describe the defect in the tables of a step of the given number of rows, if any.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "called in one place")]
pub fn step_defect(
    rows: PyReadonlyArray1<i64>,
    is_padding: PyReadonlyArray1<bool>,
    mini_batch_offsets: PyReadonlyArray1<i64>,
    ranks: usize,
    num_rows: usize,
    prompt_offsets: PyReadonlyArray1<i64>,
    mini_batch_prompts: PyReadonlyArray1<i64>,
    bin_offsets: Option<PyReadonlyArray1<i64>>,
) -> Result<Option<String>> {
    check_room(rows.len()?.max(num_rows))?;
    let bin_offsets = bin_offsets.as_ref().map(values).transpose()?;
    let tables = StepTables {
        rows: &values(&rows)?,
        is_padding: &values(&is_padding)?,
        mini_batch_offsets: &values(&mini_batch_offsets)?,
        ranks,
        num_rows,
        prompt_offsets: &values(&prompt_offsets)?,
        mini_batch_prompts: &values(&mini_batch_prompts)?,
        bin_offsets: bin_offsets.as_deref(),
    };
    Ok(tables.defect())
}

/// Describe the defect in the numbers of tokens that rows share with the rows before them, if any.
#[pyfunction]
pub fn shared_defect(
    shared: PyReadonlyArray1<i64>,
    lengths: PyReadonlyArray1<i64>,
    is_padding: PyReadonlyArray1<bool>,
    bin_offsets: PyReadonlyArray1<i64>,
) -> Result<Option<String>> {
    check_room(shared.len()?)?;
    let (shared, lengths) = (values(&shared)?, values(&lengths)?);
    let (is_padding, bins) = (values(&is_padding)?, values(&bin_offsets)?);
    Ok(fastcollate::plan::shared_defect(&shared, &lengths, &is_padding, &bins))
}

/// Offsets: non-decreasing, from 0.
fn offsets(array: &PyReadonlyArray1<i64>) -> Result<Vec<usize>> {
    let invalid = || Core::InvalidPlan("offsets have to begin at 0 and not to fall".to_owned());
    let values = array.as_array();
    let values = values.iter().map(|&value| value.try_into().map_err(|_| invalid()));
    let values: Vec<usize> = try_gathered(values)?;
    if values.first() != Some(&0) || !values.is_sorted() {
        return Err(invalid().into());
    }
    Ok(values)
}
