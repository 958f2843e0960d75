//! Columns: many rows as spans of one array.

use std::sync::OnceLock;

use fastcollate::{check_room, gathered, try_gathered};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::imported;
use super::tensor::{is_nested, is_tensor};
use crate::error::{Error, Result};
use crate::plan::tables::{Column, column_of};

/// Rows that are spans of arrays, possibly with gaps between them.
///
/// Private: used by a batch to lay out its own outputs anew, and by a builder for its rows.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct RowSpans(Vec<ArraySpans>);

/// Rows of one array: the array, and the start and length of each row. Without an array, the rows
/// are None.
struct ArraySpans {
    values: Option<Py<PyAny>>,
    starts: Vec<usize>,
    lens: Vec<usize>,
}

#[pymethods]
impl RowSpans {
    #[new]
    fn new(arrays: Vec<(Py<PyAny>, PyReadonlyArray1<i64>, PyReadonlyArray1<i64>)>) -> Result<Self> {
        let span = |(values, starts, lens)| {
            Ok(ArraySpans {
                values: Some(values),
                starts: to_usize(&starts)?,
                lens: to_usize(&lens)?,
            })
        };
        let spans = arrays.into_iter().map(span);
        try_gathered(spans).map(Self)
    }

    /// The number of values of each row.
    #[getter]
    fn lengths<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        column_of(py, self.0.iter().flat_map(|span| span.lens.iter().copied()))
    }

    /// True if all rows are None.
    #[getter]
    fn are_missing(&self) -> bool {
        self.0.iter().all(|span| span.values.is_none())
    }
}

impl RowSpans {
    /// Rows of several arrays, in the order of the arrays.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn of_parts(parts: Vec<Parts>) -> Result<Self> {
        let span = |part: Parts| ArraySpans {
            values: part.values.map(Bound::unbind),
            starts: part.starts,
            lens: part.lens,
        };
        Ok(Self(gathered(parts.into_iter().map(span))?))
    }
}

/// An array or tensor of tokens, and the start and length of each row. Without an array, the rows
/// are None.
pub struct Parts<'py> {
    pub values: Option<Bound<'py, PyAny>>,
    pub starts: Vec<usize>,
    pub lens: Vec<usize>,
}

/// An array or tensor of tokens, and the start and length of each wanted row.
pub type Spans<'py> = (Option<Bound<'py, PyAny>>, Vec<(usize, usize)>);

/// True if an object holds rows as spans of one array.
///
/// # Errors
/// Exceptions of torch.
pub fn is_column(object: &Bound<PyAny>) -> PyResult<bool> {
    Ok(object.is_instance_of::<RowSpans>() || is_ragged(object)? || is_jagged(object)?)
}

/// The parts of a `Ragged`, a jagged nested tensor or `RowSpans`, array by array; `None` for any
/// other object. `wanted` returns the offsets of the wanted ones among the next rows.
///
/// # Errors
/// `ValueError` for decreasing offsets and for lengths that exceed them; exceptions of torch.
pub fn parts<'py, W: Iterator<Item = usize>>(
    object: &Bound<'py, PyAny>,
    field: &str,
    mut wanted: impl FnMut(usize) -> W,
) -> PyResult<Option<Vec<Spans<'py>>>> {
    let py = object.py();
    if let Ok(spans) = object.cast::<RowSpans>() {
        let part = |span: &ArraySpans| {
            let rows = wanted(span.lens.len());
            check_room(rows.size_hint().0)?;
            let values = span.values.as_ref().map(|values| values.bind(py).clone());
            let rows = gathered(rows.map(|row| (span.starts[row], span.lens[row])))?;
            Ok((values, rows))
        };
        let parts = try_gathered::<_, Error>(spans.get().0.iter().map(part));
        return Ok(Some(parts?));
    }
    let mut offsets = |lens: Option<&_>, values, offsets: Bound<'py, PyAny>| {
        of_offsets(values, &offsets, lens, field, &mut wanted).map(Some)
    };
    if is_ragged(object)? {
        let values = object.getattr(intern!(py, "values"))?;
        return offsets(None, values, object.getattr(intern!(py, "offsets"))?);
    }
    if is_jagged(object)? {
        let values = object.call_method0(intern!(py, "values"))?;
        let lens = object.call_method0(intern!(py, "lengths"))?;
        let lens = (!lens.is_none()).then_some(&lens);
        return offsets(lens, values, object.call_method0(intern!(py, "offsets"))?);
    }
    Ok(None)
}

/// True for a `Ragged`.
///
/// # Errors
/// Exceptions of the import.
pub fn is_ragged(object: &Bound<PyAny>) -> PyResult<bool> {
    static RAGGED: OnceLock<Py<PyType>> = OnceLock::new();
    object.is_instance(imported(&RAGGED, object.py(), "fastcollate.rows.columns", "Ragged")?)
}

/// True for a nested tensor of contiguous rows.
fn is_jagged(object: &Bound<PyAny>) -> PyResult<bool> {
    let py = object.py();
    if !is_nested(object)? {
        return Ok(false);
    }
    let jagged = py.import(intern!(py, "torch"))?.getattr("jagged")?;
    // After a transposition, the ragged dimension may not be the first.
    Ok(object.getattr(intern!(py, "layout"))?.is(&jagged)
        && object.getattr("_ragged_idx")?.extract::<usize>()? == 1)
}

/// Rows that begin at the offsets, and end at or before the next offset.
fn of_offsets<'py, W: Iterator<Item = usize>>(
    values: Bound<'py, PyAny>,
    offsets: &Bound<'py, PyAny>,
    lens: Option<&Bound<'py, PyAny>>,
    field: &str,
    wanted: impl FnOnce(usize) -> W,
) -> PyResult<Vec<Spans<'py>>> {
    let offsets = integers(offsets)?;
    let offsets = offsets.as_array();
    let count = offsets.len().saturating_sub(1);
    let lens = lens.map(integers).transpose()?;
    let lens = lens.as_ref().map(PyReadonlyArray1::as_array);
    if let Some(found) = lens.map(|lens| lens.len()).filter(|&found| found != count) {
        return Err(PyValueError::new_err(format!(
            "{field} has {found} lengths, but {} offsets; make {field} with one offset more than \
             lengths",
            offsets.len(),
        )));
    }
    let span = |row: usize| {
        let (begin, end) = (offsets[row], offsets[row + 1]);
        let (room, len) = (end - begin, lens.map_or(end - begin, |lens| lens[row]));
        let reason = if begin < 0 {
            format!(
                "the offsets of {field} start at {begin}; make {field} with offsets of 0 or more"
            )
        } else if room < 0 {
            let at = row + 1;
            format!(
                "the offsets of {field} fall from {begin} to {end} at index {at}; pass offsets \
                 that never fall"
            )
        } else if !(0..=room).contains(&len) {
            format!(
                "row {row} of {field} has a length of {len}, but its offsets are {room} apart; \
                 make {field} with a length from 0 to {room}"
            )
        } else {
            return Ok((begin.unsigned_abs() as usize, len.unsigned_abs() as usize));
        };
        Err(PyValueError::new_err(reason))
    };
    let rows = wanted(count);
    check_room(rows.size_hint().0).map_err(Error::from)?;
    Ok(vec![(Some(values), try_gathered::<_, Error>(rows.map(|row| Ok(span(row)?)))?)])
}

fn integers<'py>(values: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray1<'py, i64>> {
    if let Ok(array) = values.extract() {
        return Ok(array);
    }
    let py = values.py();
    let values =
        if is_tensor(values)? { values.call_method0(intern!(py, "cpu"))? } else { values.clone() };
    let arrays = py.import(intern!(py, "fastcollate.common.arrays"))?;
    let array = arrays.call_method1(intern!(py, "read_array"), (values, intern!(py, "int64")))?;
    array.extract()
}

fn to_usize(values: &PyReadonlyArray1<i64>) -> Result<Vec<usize>> {
    let values = values.as_array();
    let to_usize = |&value: &i64| usize::try_from(value).map_err(PyErr::from);
    try_gathered(values.iter().map(|value| Ok(to_usize(value)?)))
}
