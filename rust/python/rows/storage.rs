//! Rows stored as they arrive, decoded into a few large chunks of memory.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastcollate::{
    Column, Error as Core, FieldColumn as _, Location, TOKEN_IDS, check_room, few, filled,
    gathered, try_gathered,
};
use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::list::DecodeExact;
use super::py_rows::PyRows;
use super::ragged::{Parts, RowSpans};
use super::row_arrays::{Array, StoredForm};
use super::tokens::TokenInput;
use crate::batch::field::FieldSpec;
use crate::error::{Error, Result, no_memory};
use crate::memory::slab::bytes_at;
use crate::plan::tables::to_i64;

/// Bytes of the first chunk, and of the largest: each is twice as large as the one before.
const FIRST_CHUNK: usize = 1 << 16;
const LARGEST_CHUNK: usize = 1 << 24;

/// Memory for the values of rows, in chunks that never move.
///
/// Threads, signal handlers and items that run Python code while they are decoded may write rows at
/// the same time, without waiting: a call takes a chunk out of the open ones, and its caller
/// reopens the chunk once the row is kept. An interrupted caller leaves one chunk unused until the
/// memory is freed.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct RowStore(Mutex<Chunks>);

/// A store's chunks, except those taken by a call.
struct Chunks {
    /// Chunks that may have space, the last used one last.
    open: Vec<Chunk>,
    full: Vec<Chunk>,
    /// Size of the largest chunk so far, in bytes.
    largest: usize,
}

/// Memory that one call at a time appends to.
struct Chunk {
    memory: Py<PyArray1<u8>>,
    end: usize,
    /// The forms of the last row.
    forms: Option<Arc<Forms>>,
}

/// Forms of a row's arrays. Rows of one kind, given as one object, have arrays of the same fields.
struct Forms {
    kind: Py<PyAny>,
    forms: Vec<StoredForm>,
}

/// The arrays of one row, in a chunk that is taken until [`RowStore::open`] gets the row.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct StoredRow {
    memory: Py<PyArray1<u8>>,
    /// Usually one object for consecutive rows.
    forms: Arc<Forms>,
    spans: Box<[ArraySpan]>,
    /// End of the row in its chunk.
    end: usize,
}

/// Place of an array in its chunk, in tokens of the array.
#[derive(Clone, Copy)]
struct ArraySpan {
    start: usize,
    tokens: usize,
}

#[pymethods]
impl StoredRow {
    /// Number of prompt and response tokens.
    #[getter]
    fn num_tokens(&self) -> usize {
        self.spans[..2].iter().map(|span| span.tokens).sum()
    }
}

#[pymethods]
impl RowStore {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(Chunks { open: Vec::new(), full: Vec::new(), largest: FIRST_CHUNK / 2 }))
    }

    /// Decode a row with its index in the batch: token ids, and columns of values, each with its
    /// field, or without one as a contiguous NumPy array that is stored unchanged. One number for
    /// the whole row is checked, but not stored. Rows of the same `kind`, one object, have the same
    /// columns.
    fn write<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        tokens: TokenInput<'py>,
        columns: Vec<(Option<Bound<'py, FieldSpec>>, Bound<'py, PyAny>)>,
        kind: &Bound<'py, PyAny>,
    ) -> Result<StoredRow> {
        check_room(1)?;
        let (form, tokens) = Array::of_tokens(&tokens, index)?;
        let lens = tokens.each_ref().map(|ids| ids.tokens);
        let mut arrays = Vec::from(tokens);
        for (field, values) in columns {
            match field {
                Some(field) => {
                    let field = field.get();
                    let missing = field.missing();
                    arrays.extend(Array::of_field(&field.0, &values, index, lens, form, missing)?)
                }
                None => arrays.push(Array::of_numpy(&values)?),
            }
        }
        loop {
            let (chunk, layout) = self.take(py, &arrays)?;
            let Err((index, error)) = chunk.write(py, &arrays, &layout) else {
                return Ok(chunk.keep(&arrays, layout, kind));
            };
            self.lock().open.push(chunk);
            // Ids that need 64 bits; the arrays before them are decoded again.
            let is_wide = index < 2 && matches!(error, Error::Core(Core::DoesNotFit { .. }));
            if !is_wide || !arrays[index].widen() {
                return Err(error);
            }
        }
    }

    /// Reopen the chunk of this row, which is now kept, for other rows.
    fn open(&self, py: Python, row: &StoredRow) {
        self.lock().open.push(Chunk {
            memory: row.memory.clone_ref(py),
            end: row.end,
            forms: Some(row.forms.clone()),
        });
    }

    /// Reuse the memory of another store, except chunks that a call is writing now.
    fn take_over(&self, other: &Self) {
        let (chunks, largest) = {
            let mut other = other.lock();
            let full = take(&mut other.full);
            let chunks = full.into_iter().chain(take(&mut other.open));
            (chunks, other.largest)
        };
        let mut own = self.lock();
        own.open.extend(chunks.map(|chunk| Chunk { end: 0, ..chunk }));
        own.largest = own.largest.max(largest);
    }
}

impl RowStore {
    fn lock(&self) -> MutexGuard<'_, Chunks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take a chunk with space for a row, and return the row's layout in it.
    fn take(&self, py: Python, arrays: &[Array]) -> Result<(Chunk, RowLayout)> {
        let mut chunks = self.lock();
        while let Some(chunk) = chunks.open.pop() {
            match RowLayout::new(arrays, chunk.end) {
                Some(layout) if layout.end <= chunk.memory.bind(py).len() => {
                    return Ok((chunk, layout));
                }
                _ => chunks.full.push(chunk),
            }
        }
        let largest = chunks.largest;
        drop(chunks); // NumPy is called
        let layout =
            RowLayout::new(arrays, 0).ok_or_else(|| no_memory("cannot take memory for a row"))?;
        let bytes = layout.end.max(LARGEST_CHUNK.min(2 * largest));
        let numpy = py.import(intern!(py, "numpy"))?;
        let memory = numpy.call_method1(intern!(py, "empty"), (bytes, intern!(py, "uint8")))?;
        let memory = memory.cast_into().map_err(PyErr::from)?.unbind();
        let mut chunks = self.lock();
        chunks.largest = chunks.largest.max(LARGEST_CHUNK.min(bytes));
        let chunk = Chunk { memory, end: 0, forms: None };
        Ok((chunk, layout))
    }
}

impl Chunk {
    /// Append a row. An error comes with the index of its array.
    fn write(
        &self,
        py: Python,
        arrays: &[Array],
        layout: &RowLayout,
    ) -> Result<(), (usize, Error)> {
        let memory = bytes_at(self.memory.bind(py), self.end..layout.end);
        let memory = memory.and_then(|memory| {
            let memory = memory.cast_into::<PyArray1<u8>>()?;
            Ok(memory.try_readwrite()?)
        });
        let mut memory = memory.map_err(|error| (arrays.len(), error.into()))?;
        let mut rest = memory.as_slice_mut().expect("memory is contiguous");
        let mut end = self.end;
        for (index, (array, span)) in arrays.iter().zip(&layout.spans).enumerate() {
            let bytes = span.tokens * array.form.token_bytes();
            if bytes > 0 {
                let start = span.start * array.form.token_bytes();
                let (own, after) = take(&mut rest)[start - end..].split_at_mut(bytes);
                (rest, end) = (after, start + bytes);
                array.write(own).map_err(|error| (index, error))?;
            }
        }
        Ok(())
    }

    /// Keep the written row.
    fn keep(self, arrays: &[Array], layout: RowLayout, kind: &Bound<PyAny>) -> StoredRow {
        let last = self.forms.filter(|last| last.kind.is(kind));
        // The form of an array without tokens is ignored.
        let fits = |(array, last): (&Array, &StoredForm)| array.is_empty() || array.form == *last;
        let forms = match last {
            Some(last) if arrays.iter().zip(&last.forms).all(fits) => last,
            last => {
                let form = |(index, array): (usize, &Array)| match &last {
                    Some(last) if array.is_empty() => last.forms[index].clone(),
                    _ => array.form.clone(),
                };
                Arc::new(Forms {
                    kind: kind.clone().unbind(),
                    forms: few(arrays.iter().enumerate().map(form)),
                })
            }
        };
        StoredRow {
            memory: self.memory,
            forms,
            spans: layout.spans.into_boxed_slice(),
            end: layout.end,
        }
    }
}

/// Places of a row's arrays in a chunk, and the end of the last.
struct RowLayout {
    spans: Vec<ArraySpan>,
    end: usize,
}

impl RowLayout {
    /// The arrays in sequence, each aligned to a multiple of its token size. None if the size
    /// overflows.
    fn new(arrays: &[Array], begin: usize) -> Option<Self> {
        let (mut end, mut spans) = (begin, Vec::new());
        for array in arrays {
            let (tokens, size) = (array.tokens, array.form.token_bytes());
            let mut start = 0;
            if tokens > 0 && size > 0 {
                start = end.div_ceil(size);
                end = start.checked_add(tokens)?.checked_mul(size)?;
            }
            spans.push(ArraySpan { start, tokens });
        }
        isize::try_from(end).ok()?;
        Some(Self { spans, end })
    }
}

/// The arrays of rows as columns: views of their chunks.
#[pyfunction]
pub fn stored_columns(py: Python, rows: Vec<Bound<StoredRow>>) -> PyResult<Vec<RowSpans>> {
    let numpy = py.import(intern!(py, "numpy"))?;
    let ndarray = numpy.getattr(intern!(py, "ndarray"))?;
    check_room(rows.len()).map_err(Error::from)?;
    let rows = gathered(rows.iter().map(Bound::get)).map_err(Error::from)?;
    let spans = rows.first().map_or(&[][..], |row| &row.spans);
    let mut columns: Vec<_> = few(spans.iter().map(|_| Vec::new()));
    for run in rows.chunk_by(|a, b| a.memory.is(&b.memory) && Arc::ptr_eq(&a.forms, &b.forms)) {
        let StoredRow { memory, forms, .. } = run[0];
        for (index, (column, form)) in columns.iter_mut().zip(&forms.forms).enumerate() {
            let spans = run.iter().map(|row| row.spans[index]);
            // Only up to the end of these rows: a call may be writing another row after them.
            let end = spans.clone().map(|span| span.start + span.tokens).max();
            let shape = [&[end.unwrap_or(0)], &form.trailing[..]].concat();
            let values = (PyTuple::new(py, shape)?, &form.dtype, memory);
            let is_given = !form.is_missing();
            column.push(Parts {
                values: is_given.then(|| ndarray.call1(values)).transpose()?,
                starts: gathered(spans.clone().map(|span| span.start)).map_err(Error::from)?,
                lens: gathered(spans.map(|span| span.tokens)).map_err(Error::from)?,
            });
        }
    }
    Ok(try_gathered(columns.into_iter().map(RowSpans::of_parts))?)
}

/// One row of token ids, with its index in a field, as an array of its own: int32 if they fit, else
/// int64.
#[pyfunction]
pub fn compact_ids<'py>(
    name: &str,
    row: &Bound<'py, PyAny>,
    index: usize,
) -> Result<Bound<'py, PyAny>> {
    check_room(1)?;
    let (py, row) = (row.py(), PyRows::single::<i64>(name, index, row)?);
    match values_of(&row) {
        Err(Error::Core(Core::DoesNotFit { .. })) => {
            Ok(PyArray1::<i64>::from_vec(py, values_of(&row)?).into_any())
        }
        values => Ok(PyArray1::<i32>::from_vec(py, values?).into_any()),
    }
}

/// The values of the only row.
fn values_of<T: DecodeExact>(row: &PyRows) -> Result<Vec<T>> {
    let mut values = filled(Column::<T>::row_len(row, 0), |_| T::ZERO)?;
    row.read(0, 0, &mut values)?;
    Ok(values)
}

/// Token ids, and the offsets of rows.
type Ids<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i64>>);

/// Rows of token ids as int32, and their offsets.
///
/// # Errors
/// Values that are not integers from 0 to below 2^31; `name` is the column's.
#[pyfunction]
pub fn token_ids<'py>(py: Python<'py>, name: &str, rows: &Bound<'py, PyAny>) -> Result<Ids<'py>> {
    let rows = PyRows::new::<i64>(name, rows, None)?;
    let lens = rows.lens()?;
    let mut values = filled(lens.iter().sum(), |_| 0_i32)?;
    let (mut offsets, mut rest) = (vec![0], &mut values[..]);
    for (row, len) in lens.into_iter().enumerate() {
        let (out, others) = rest.split_at_mut(len);
        rest = others;
        offsets.push(offsets[row] + to_i64(len));
        read_ids(name, &rows, row, out)?;
    }
    Ok((PyArray1::from_vec(py, values), PyArray1::from_vec(py, offsets)))
}

/// The token ids of one row.
///
/// # Errors
/// As [`token_ids`], of which it is the row of an index.
pub fn ids_of(name: &str, index: usize, row: &Bound<PyAny>) -> Result<Vec<i32>> {
    let rows = PyRows::single::<i64>(name, index, row)?;
    let mut values = filled(Column::<i32>::row_len(&rows, 0), |_| 0)?;
    read_ids(name, &rows, 0, &mut values)?;
    Ok(values)
}

/// The numbers of an array.
///
/// # Errors
/// Arrays of several dimensions, and of other values.
pub fn numbers_of(row: &Bound<PyAny>) -> Result<Vec<f64>> {
    values_of(&PyRows::single::<f64>("x", 0, row)?)
}

#[allow(clippy::cast_possible_truncation, reason = "checked")]
fn read_ids(name: &str, rows: &PyRows, row: usize, out: &mut [i32]) -> Result<()> {
    match rows.read(row, 0, out) {
        Ok(()) => match out.iter().copied().fold(i32::MAX, i32::min) {
            ..0 => {}
            0 | 1 => return rows.refuse_booleans(row, usize::MAX),
            _ => return Ok(()),
        },
        Err(Core::DoesNotFit { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ids = filled(out.len(), |_| 0_i64)?;
    rows.read(row, 0, &mut ids)?;
    rows.refuse_booleans(row, usize::MAX)?;
    if let Some(at) = ids.iter().position(|id| !(0..TOKEN_IDS).contains(id)) {
        let location =
            Location { field: name.to_owned(), row: rows.number(row), position: Some(at) };
        return Err(Error::Core(Core::NoIndex {
            location,
            value: ids[at].to_string(),
            limit: TOKEN_IDS,
        }));
    }
    let pairs = out.iter_mut().zip(ids);
    pairs.for_each(|(out, id)| *out = id as i32);
    Ok(())
}
