//! Columns: many rows as spans of one array.

use std::sync::OnceLock;

use fastcollate::{check_room, gathered};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::imported;
use super::tensor::{is_nested, is_tensor};
use crate::error::Error;

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
    fn new(
        arrays: Vec<(Py<PyAny>, PyReadonlyArray1<i64>, PyReadonlyArray1<i64>)>,
    ) -> PyResult<Self> {
        let span = |(values, starts, lens)| {
            Ok(ArraySpans {
                values: Some(values),
                starts: to_usize(&starts)?,
                lens: to_usize(&lens)?,
            })
        };
        let spans = arrays.into_iter().map(span);
        spans.collect::<PyResult<_>>().map(Self)
    }

    /// True if all rows are None.
    #[getter]
    fn are_missing(&self) -> bool {
        self.0.iter().all(|span| span.values.is_none())
    }
}

impl RowSpans {
    /// Rows of several arrays, in the order of the arrays.
    pub fn of_parts(parts: Vec<Parts>) -> Self {
        let span = |part: Parts| ArraySpans {
            values: part.values.map(Bound::unbind),
            starts: part.starts,
            lens: part.lens,
        };
        Self(parts.into_iter().map(span).collect())
    }
}

/// An array or tensor of tokens, and the start and length of each row. Without an array, the rows
/// are None.
pub struct Parts<'py> {
    pub values: Option<Bound<'py, PyAny>>,
    pub starts: Vec<usize>,
    pub lens: Vec<usize>,
}

/// True if an object holds rows as spans of one array.
///
/// # Errors
/// Exceptions of torch.
pub fn is_column(object: &Bound<PyAny>) -> PyResult<bool> {
    Ok(object.is_instance_of::<RowSpans>() || is_ragged(object)? || is_jagged(object)?)
}

/// The parts of a `Ragged`, a jagged nested tensor or `RowSpans`, array by array; `None` for any
/// other object.
///
/// # Errors
/// `ValueError` for decreasing offsets and for lengths that exceed them; exceptions of torch.
pub fn parts<'py>(object: &Bound<'py, PyAny>, field: &str) -> PyResult<Option<Vec<Parts<'py>>>> {
    let py = object.py();
    if let Ok(spans) = object.cast::<RowSpans>() {
        let rows = spans.get().0.iter().map(|span| span.lens.len());
        check_room(rows.sum()).map_err(Error::from)?;
        let part = |span: &ArraySpans| Parts {
            values: span.values.as_ref().map(|values| values.bind(py).clone()),
            starts: span.starts.clone(),
            lens: span.lens.clone(),
        };
        return Ok(Some(spans.get().0.iter().map(part).collect()));
    }
    if is_ragged(object)? {
        let values = object.getattr(intern!(py, "values"))?;
        let offsets = object.getattr(intern!(py, "offsets"))?;
        return Ok(Some(vec![of_offsets(values, &offsets, None, field)?]));
    }
    if is_jagged(object)? {
        let values = object.call_method0(intern!(py, "values"))?;
        let offsets = object.call_method0(intern!(py, "offsets"))?;
        let lens = object.call_method0(intern!(py, "lengths"))?;
        let lens = (!lens.is_none()).then_some(&lens);
        return Ok(Some(vec![of_offsets(values, &offsets, lens, field)?]));
    }
    Ok(None)
}

fn is_ragged(object: &Bound<PyAny>) -> PyResult<bool> {
    static RAGGED: OnceLock<Py<PyType>> = OnceLock::new();
    object.is_instance(imported(
        &RAGGED,
        object.py(),
        "fastcollate.rows.columns",
        "Ragged",
    )?)
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
fn of_offsets<'py>(
    values: Bound<'py, PyAny>,
    offsets: &Bound<'py, PyAny>,
    lens: Option<&Bound<'py, PyAny>>,
    field: &str,
) -> PyResult<Parts<'py>> {
    let offsets = integers(offsets)?;
    if let Some(&first) = offsets.first().filter(|&&first| first < 0) {
        return Err(PyValueError::new_err(format!(
            "the offsets of {field} start at {first}; make {field} with offsets of 0 or more"
        )));
    }
    if let Some(index) = (1..offsets.len()).find(|&index| offsets[index] < offsets[index - 1]) {
        return Err(PyValueError::new_err(format!(
            "the offsets of {field} fall from {} to {} at index {index}; \
             pass offsets that never fall",
            offsets[index - 1],
            offsets[index],
        )));
    }
    let rooms: Vec<_> = offsets.windows(2).map(|ends| ends[1] - ends[0]).collect();
    let lens = lens.map_or_else(|| Ok(rooms.clone()), integers)?;
    if lens.len() != rooms.len() {
        return Err(PyValueError::new_err(format!(
            "{field} has {} lengths, but {} offsets; make {field} with one offset more than lengths",
            lens.len(),
            offsets.len(),
        )));
    }
    let does_not_fit = |row: &usize| !(0..=rooms[*row]).contains(&lens[*row]);
    if let Some(row) = (0..lens.len()).find(does_not_fit) {
        return Err(PyValueError::new_err(format!(
            "row {row} of {field} has a length of {}, but its offsets are {room} apart; \
             make {field} with a length from 0 to {room}",
            lens[row],
            room = rooms[row],
        )));
    }
    let starts = offsets[..lens.len()].iter().copied();
    Ok(Parts {
        values: Some(values),
        starts: unsigned(starts)?,
        lens: unsigned(lens)?,
    })
}

fn integers(values: &Bound<PyAny>) -> PyResult<Vec<i64>> {
    let py = values.py();
    let values = if is_tensor(values)? {
        values.call_method0(intern!(py, "cpu"))?
    } else {
        values.clone()
    };
    let arrays = py.import(intern!(py, "fastcollate.common.arrays"))?;
    let array = arrays.call_method1(intern!(py, "read_array"), (values, intern!(py, "int64")))?;
    let array: PyReadonlyArray1<i64> = array.extract()?;
    let values = gathered(array.as_array().iter().copied());
    values.map_err(|error| Error::from(error).into())
}

fn to_usize(values: &PyReadonlyArray1<i64>) -> PyResult<Vec<usize>> {
    unsigned(values.as_array().iter().copied())
}

fn unsigned(values: impl IntoIterator<Item = i64>) -> PyResult<Vec<usize>> {
    let values = values.into_iter();
    values.map(|value| Ok(usize::try_from(value)?)).collect()
}
