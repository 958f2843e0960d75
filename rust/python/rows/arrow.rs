//! Arrow arrays of lists through the PyCapsule interface, as NumPy views of their memory.

use std::sync::Arc;

use bytemuck::Pod;
use fastcollate::{add, extend, f16, gathered, try_gathered};
use numpy::prelude::*;
use numpy::{PyArray1, PyArrayDescr, PyUntypedArray, dtype};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::array::data;
use super::reader::no_memory_for;
use crate::arrow::{Array, ArrowArray, DataType, Form, Number, Source};
use crate::error::{Error, Result};
use crate::memory::numpy_view;
use crate::plan::tables::{self, column_of};

/// Consecutive rows in one array.
pub struct Chunk<'py> {
    /// A read-only array, (tokens, *trailing). Its base keeps Arrow's memory alive.
    pub values: Bound<'py, PyUntypedArray>,
    /// Row offsets in `values`, with the end of the last.
    pub offsets: Vec<usize>,
    /// Indices of null rows, in order, if there may be any.
    pub nulls: Vec<usize>,
    /// The number of values of each token, if tokens are lists.
    counts: Vec<usize>,
}

/// The rows of an Arrow array, or of each chunk of a chunked one (at least one, maybe empty);
/// `None` if the object is not Arrow's. A table of one column is read as that column.
/// `allows_null_rows` permits null rows, but not null numbers.
///
/// # Errors
/// `TypeError` if they are not lists of numbers, `ValueError` naming the row for nulls, and
/// exceptions of the object's own methods.
pub fn chunks<'py>(
    object: &Bound<'py, PyAny>,
    location: &str,
    allows_null_rows: bool,
) -> Result<Option<Vec<Chunk<'py>>>> {
    let Some(source) = Source::open(object, location)? else {
        return Ok(None);
    };
    let rows = ChunkRows::of_type(&source.data_type, location, false)?;
    let rows = ChunkRows { allows_null_rows, ..rows };
    chunks_of(object.py(), source, rows).map(Some)
}

/// The rows of each chunk.
fn chunks_of<'py>(
    py: Python<'py>,
    mut source: Source,
    mut rows: ChunkRows,
) -> Result<Vec<Chunk<'py>>> {
    let location = rows.location;
    let mut chunks = Vec::new();
    let mut waiting = Rows::none();
    loop {
        let arrays = source.next_arrays(py, location)?;
        if arrays.is_empty() {
            break;
        }
        for array in arrays {
            let own = rows.read(&array, waiting.len())?;
            if own.num_tokens() >= MOST_COPIED && waiting.len() > 0 {
                chunks.push(rows.chunk(py, std::mem::replace(&mut waiting, Rows::none()))?);
            }
            waiting.extend(own)?;
            if waiting.num_tokens() >= MOST_COPIED {
                chunks.push(rows.chunk(py, std::mem::replace(&mut waiting, Rows::none()))?);
            }
        }
    }
    if waiting.len() > 0 || chunks.is_empty() {
        chunks.push(rows.chunk(py, waiting)?);
    }
    Ok(chunks)
}

/// Number of tokens below which chunks are copied together, rather than viewed one by one.
const MOST_COPIED: usize = 1 << 14;

/// Rows of one array or of several.
struct Rows {
    /// Spans of items, without empty ones.
    tokens: Vec<Array>,
    /// Row offsets in all of these, with the end of the last.
    offsets: Vec<usize>,
    /// Indices of null rows, in order.
    nulls: Vec<usize>,
}

impl Rows {
    fn none() -> Self {
        Self { tokens: Vec::new(), offsets: vec![0], nulls: Vec::new() }
    }

    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn num_tokens(&self) -> usize {
        self.offsets[self.len()]
    }

    fn extend(&mut self, rows: Self) -> Result<()> {
        if self.len() == 0 {
            *self = rows;
            return Ok(());
        }
        let (first, end) = (self.len(), self.num_tokens());
        let no_memory = |_| no_memory_for(first + rows.len());
        self.offsets.try_reserve(rows.len()).map_err(no_memory)?;
        self.nulls.try_reserve(rows.nulls.len()).map_err(no_memory)?;
        self.tokens.try_reserve(rows.tokens.len()).map_err(no_memory)?;
        let ends = rows.offsets[1..].iter();
        self.offsets.extend(ends.map(|offset| end + offset));
        self.nulls.extend(rows.nulls.iter().map(|row| first + row));
        self.tokens.extend(rows.tokens);
        Ok(())
    }
}

/// True if an object is one Arrow array whose items are lists.
///
/// The first item is not read: that would trust the offsets, and Arrow's own library ends the
/// process if they do not fit.
///
/// # Errors
/// Exceptions of the object's own methods.
pub fn is_array_of_lists(object: &Bound<PyAny>, location: &str) -> Result<bool> {
    if !object.get_type().hasattr(intern!(object.py(), "__arrow_c_array__"))? {
        return Ok(false);
    }
    let source = Source::open(object, location)?;
    Ok(source
        .is_some_and(|source| matches!(source.data_type, DataType::List(..) | DataType::Struct(_))))
}

/// `chunks` for Python: each chunk's values and int64 offsets.
#[pyfunction]
pub fn arrow_chunks<'py>(
    object: &Bound<'py, PyAny>,
    location: &str,
) -> Result<Option<Vec<Bound<'py, PyTuple>>>> {
    let py = object.py();
    let Some(chunks) = chunks(object, location, false)? else {
        return Ok(None);
    };
    let pair = |chunk: Chunk<'py>| {
        let offsets = column_of(py, chunk.offsets)?;
        Ok(PyTuple::new(py, [chunk.values.into_any(), offsets.into_any()])?)
    };
    try_gathered(chunks.into_iter().map(pair)).map(Some)
}

/// The rows of an Arrow array whose tokens are lists: each chunk's values and the offsets of its
/// rows in them, and the number of values of its tokens and the offsets of its rows in these.
///
/// # Errors
/// As [`chunks`].
#[pyfunction]
pub fn arrow_nested_chunks<'py>(
    object: &Bound<'py, PyAny>,
    location: &str,
) -> Result<Option<Vec<Bound<'py, PyTuple>>>> {
    let py = object.py();
    let Some(source) = Source::open(object, location)? else {
        return Ok(None);
    };
    let rows = ChunkRows::of_type(&source.data_type, location, true)?;
    let parts = |chunk: Chunk<'py>| {
        let ends = cumulative(&chunk.counts)?;
        let value_offsets = chunk.offsets.iter().map(|&token| ends[token]);
        let parts = [
            chunk.values.into_any(),
            column_of(py, value_offsets)?.into_any(),
            column_of(py, chunk.counts)?.into_any(),
            column_of(py, chunk.offsets)?.into_any(),
        ];
        Ok(PyTuple::new(py, parts)?)
    };
    let chunks = chunks_of(py, source, rows)?.into_iter().map(parts);
    try_gathered(chunks).map(Some)
}

/// Offsets from counts, with the end of the last.
fn cumulative(counts: &[usize]) -> Result<Vec<usize>> {
    let mut end = 0;
    let ends = counts.iter().map(|count| {
        end += count;
        end
    });
    Ok(gathered(std::iter::once(0).chain(ends))?)
}

/// The rows of a chunk, and their location for errors.
struct ChunkRows<'a> {
    location: &'a str,
    /// Index of the chunk's first row.
    first: usize,
    allows_null_rows: bool,
    /// True if they are the one column of a table.
    is_column: bool,
    form: Form,
    /// The form of tokens, if they are lists.
    inner: Option<Form>,
    /// Trailing dimensions, if tokens are fixed-size lists.
    trailing: Vec<usize>,
    /// The type of the numbers; None if all are null, so that lists have to be empty.
    number: Option<Number>,
}

impl<'a> ChunkRows<'a> {
    /// Rows of an array of this type: lists of numbers or, if tokens are nested, of lists of
    /// numbers; or a table with one such column.
    fn of_type(data_type: &DataType, location: &'a str, is_nested: bool) -> Result<Self> {
        let (is_column, data_type) = match data_type {
            DataType::Struct(columns) => match &columns[..] {
                [column] => (true, &column.data_type),
                columns => {
                    return Err(Error::WrongType {
                        location: location.to_owned(),
                        found: format!("a table of {} columns", columns.len()),
                        expected: "pass one of them",
                    });
                }
            },
            data_type => (false, data_type),
        };
        let is_text = matches!(data_type, DataType::Other(name) if name.contains("Utf8"));
        let wrong_type = || Error::WrongType {
            location: location.to_owned(),
            found: match is_column {
                true => format!("an Arrow table or struct of one column of type {data_type}"),
                false => format!("an Arrow array of type {data_type}"),
            },
            expected: match (is_column, is_nested) {
                (true, _) => "pass that column by itself",
                (false, true) => "pass lists of lists of integers, floats or booleans",
                (false, false) if is_text => {
                    "pass lists of integers, floats or booleans: convert these texts, by \
                     json.loads or a tokenizer"
                }
                (false, false) => {
                    "pass lists of integers, floats or booleans: cast the column, or pass its \
                     to_pylist()"
                }
            },
        };
        let DataType::List(form, item) = data_type else {
            return Err(wrong_type());
        };
        let mut trailing = Vec::new();
        let mut token = &item.data_type;
        let mut inner = None;
        if is_nested {
            let DataType::List(form, item) = token else {
                return Err(wrong_type());
            };
            (inner, token) = (Some(*form), &item.data_type);
        }
        while !is_nested && let DataType::List(Form::FixedSize(size), item) = token {
            trailing.push(*size);
            token = &item.data_type;
        }
        let number = match token {
            DataType::Number(number) => Some(*number),
            DataType::Null => None,
            _ => return Err(wrong_type()),
        };
        Ok(Self {
            location,
            first: 0,
            allows_null_rows: false,
            is_column,
            form: *form,
            inner,
            trailing,
            number,
        })
    }

    /// The rows of an array, which follow `before` rows of no chunk yet.
    fn read(&self, array: &Array, before: usize) -> Result<Rows> {
        let column = if self.is_column { array.items(1) } else { array.clone() };
        let mut nulls = gathered(array.nulls().chain(column.nulls()))?;
        nulls.sort_unstable();
        nulls.dedup();
        if let (Some(row), false) = (nulls.first(), self.allows_null_rows) {
            return Err(self.null(format!("[{}]", self.first + before + row)));
        }
        let (tokens, offsets) = self.items(&column, self.form)?;
        Ok(Rows { tokens, offsets, nulls })
    }

    /// The items of all lists of an array, and the offsets of the lists.
    fn items(&self, lists: &Array, form: Form) -> Result<(Vec<Array>, Vec<usize>)> {
        let (mut items, offsets) = match form {
            Form::List => self.cut::<i32>(lists)?,
            Form::LargeList => self.cut::<i64>(lists)?,
            Form::ListView => self.viewed::<i32>(lists)?,
            Form::LargeListView => self.viewed::<i64>(lists)?,
            Form::FixedSize(size) => {
                // Empty rows take no memory, so there may be any number of them.
                let count = lists.len() + 1;
                let mut offsets = reserved(count, lists.len())?;
                offsets.extend((0..count).map(|row| row * size));
                (vec![lists.items(size)], offsets)
            }
        };
        items.retain(|items| items.len() > 0);
        Ok((items, offsets))
    }

    /// The numbers of the next rows.
    fn chunk<'py>(&mut self, py: Python<'py>, rows: Rows) -> Result<Chunk<'py>> {
        let count = rows.len();
        let Rows { tokens, offsets, nulls } = rows;
        let (values, counts) = match self.inner {
            None => (self.numbers(py, tokens, &offsets, &nulls)?, Vec::new()),
            Some(form) => self.nested(py, &tokens, &offsets, form)?,
        };
        self.first += count;
        Ok(Chunk { values, offsets, nulls, counts })
    }

    /// The numbers of tokens that are lists, and the number of them in each.
    fn nested<'py>(
        &self,
        py: Python<'py>,
        tokens: &[Array],
        offsets: &[usize],
        form: Form,
    ) -> Result<(Bound<'py, PyUntypedArray>, Vec<usize>)> {
        if let Some(token) = nulls(tokens).next() {
            let row = offsets.partition_point(|&offset| offset <= token) - 1;
            let at = token - offsets[row];
            return Err(self.null(format!("[{}][{at}]", self.first + row)));
        }
        let (mut values, mut counts) = (Vec::new(), Vec::new());
        for lists in tokens {
            let (items, ends) = self.items(lists, form)?;
            for item in items {
                add(&mut values, item)?;
            }
            extend(&mut counts, &gathered(ends.array_windows().map(|[a, b]| b - a))?)?;
        }
        let ends = cumulative(&counts)?;
        let in_values = gathered(offsets.iter().map(|&token| ends[token]))?;
        Ok((self.numbers(py, values, &in_values, &[])?, counts))
    }

    /// The tokens of all lists, and the row offsets, from 0: a slice may begin anywhere in its
    /// child.
    fn cut<O: Pod + Into<i64>>(&self, lists: &Array) -> Result<(Vec<Array>, Vec<usize>)> {
        if lists.len() == 0 {
            return Ok((Vec::new(), vec![0]));
        }
        let child = lists.child();
        let ends = lists.offsets::<O>(1, 1)?;
        let numbers = || ends.iter().map(|&end| end.into());
        // Checked, since memory past the child is foreign.
        let len = child.len() as i64;
        if !numbers().is_sorted() || !numbers().all(|end| (0..=len).contains(&end)) {
            return Err(
                self.invalid(format!("its list offsets fall, or end beyond its {len} values"))
            );
        }
        let mut offsets = reserved(ends.len(), lists.len())?;
        offsets.extend(numbers().map(|end| end as usize));
        let first = offsets[0];
        offsets.iter_mut().for_each(|offset| *offset -= first);
        let tokens = child.slice(first, offsets[lists.len()]);
        Ok((vec![tokens], offsets))
    }

    /// The tokens of list views: one span if they are in order.
    fn viewed<O: Pod + Into<i64>>(&self, lists: &Array) -> Result<(Vec<Array>, Vec<usize>)> {
        let child = lists.child();
        let len = child.len();
        let (starts, sizes) = (lists.offsets::<O>(1, 0)?, lists.offsets::<O>(2, 0)?);
        let mut tokens: Vec<(usize, usize)> = Vec::new();
        let mut offsets = reserved(lists.len() + 1, lists.len())?;
        let mut end = 0_usize;
        offsets.push(end);
        for (&start, &size) in starts.iter().zip(&*sizes) {
            let list = (usize::try_from(start.into()), usize::try_from(size.into()));
            let (start, size) = match list {
                (Ok(start), Ok(size)) if start <= len && size <= len - start => (start, size),
                _ => {
                    return Err(
                        self.invalid(format!("one of its list views ends beyond its {len} values"))
                    );
                }
            };
            let too_long = || self.invalid("its list views are too long".to_owned());
            end = end.checked_add(size).ok_or_else(too_long)?;
            offsets.push(end);
            match tokens.last_mut() {
                _ if size == 0 => {}
                Some((first, len)) if start == *first + *len => *len += size,
                _ => add(&mut tokens, (start, size))?,
            }
        }
        let tokens = tokens.into_iter();
        let tokens = tokens.map(|(start, len)| child.slice(start, len));
        Ok((gathered(tokens)?, offsets))
    }

    /// A NumPy array of the numbers of all tokens, and their trailing dimensions. The tokens of
    /// null rows are null too.
    fn numbers<'py>(
        &self,
        py: Python<'py>,
        mut tokens: Vec<Array>,
        offsets: &[usize],
        null_rows: &[usize],
    ) -> Result<Bound<'py, PyUntypedArray>> {
        let shape = [&offsets[offsets.len() - 1..], &self.trailing].concat();
        // Number of items per token in this dimension.
        let mut items = 1_usize;
        for size in self.trailing.iter().map(Some).chain([None]) {
            let location = |index| {
                let token = index / items;
                let row = offsets.partition_point(|&offset| offset <= token) - 1;
                (row, token - offsets[row])
            };
            let is_of_row = |(row, _): &(usize, usize)| null_rows.binary_search(row).is_err();
            if let Some((row, column)) = nulls(&tokens).map(location).find(is_of_row) {
                return Err(self.null(format!("[{}][{column}]", self.first + row)));
            }
            if let Some(&size) = size {
                items = items.saturating_mul(size.max(1));
                tokens = gathered(tokens.iter().map(|items| items.items(size)))?;
            }
        }
        // As NumPy counts bytes: without dimensions of size 0.
        let mut sizes = shape.iter().filter(|&&size| size > 0);
        let bytes = sizes.try_fold(size_of::<u64>(), |bytes, &size| bytes.checked_mul(size));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(self.invalid(format!("its values of shape {shape:?} are too large")));
        }
        let Some(number) = self.number else {
            let rows = offsets.windows(2).enumerate();
            let mut filled = rows.filter(|(_, ends)| ends[0] < ends[1]);
            let is_null = |row| null_rows.binary_search(&row).is_ok();
            return match filled.find(|&(row, _)| !is_null(row)) {
                Some((row, _)) => Err(self.null(format!("[{}][0]", self.first + row))),
                // The dtype that NumPy gives to lists without numbers.
                None => Ok(array_of(&[], &shape, dtype::<f64>(py))?),
            };
        };
        let dtype = match number {
            Number::Boolean => {
                let booleans = tokens.iter().flat_map(Array::booleans);
                let booleans = tables::array_of(py, booleans)?.reshape(shape)?;
                return Ok(read_only(booleans.as_untyped())?);
            }
            Number::Int8 => dtype::<i8>(py),
            Number::Int16 => dtype::<i16>(py),
            Number::Int32 => dtype::<i32>(py),
            Number::Int64 => dtype::<i64>(py),
            Number::UInt8 => dtype::<u8>(py),
            Number::UInt16 => dtype::<u16>(py),
            Number::UInt32 => dtype::<u32>(py),
            Number::UInt64 => dtype::<u64>(py),
            Number::Float16 => dtype::<f16>(py),
            Number::Float32 => dtype::<f32>(py),
            Number::Float64 => dtype::<f64>(py),
        };
        Ok(array_of(&tokens, &shape, dtype)?)
    }

    fn null(&self, subscript: String) -> Error {
        Error::Null { location: format!("{}{subscript}", self.location) }
    }

    fn invalid(&self, cause: String) -> Error {
        Error::Arrow { location: self.location.to_owned(), cause }
    }
}

/// The nulls in consecutive arrays.
fn nulls(arrays: &[Array]) -> impl Iterator<Item = usize> {
    let mut end = 0_usize;
    arrays.iter().flat_map(move |array| {
        let begin = end;
        end = end.saturating_add(array.len());
        array.nulls().map(move |index| begin + index)
    })
}

/// Memory for the offsets of the given number of rows.
fn reserved(offsets: usize, rows: usize) -> Result<Vec<usize>> {
    let mut reserved = Vec::new();
    reserved.try_reserve_exact(offsets).map_err(|_| no_memory_for(rows))?;
    Ok(reserved)
}

/// Keeps Arrow's memory alive as the base of a NumPy array.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct ArrowMemory(#[expect(dead_code, reason = "kept, not read")] Arc<ArrowArray>);

/// The numbers of consecutive arrays: a view of a single aligned one, else a copy.
fn array_of<'py>(
    arrays: &[Array],
    shape: &[usize],
    dtype: Bound<'py, PyArrayDescr>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = dtype.py();
    let view = |array: &Array, shape: &[usize]| {
        let data = array.numbers(dtype.itemsize()).as_ptr();
        let base = Bound::new(py, ArrowMemory(array.owner()))?.into_any();
        // SAFETY: `data` points to the array's numbers, and every bit pattern is one. `base` keeps
        // them in location, and other owners only read them.
        unsafe { numpy_view::view(base, dtype.clone(), shape, data.cast_mut().cast(), false) }
    };
    if let [array] = arrays {
        let view = view(array, shape)?;
        if data(&view).addr().is_multiple_of(dtype.alignment()) {
            return Ok(view);
        }
    }
    let numpy = py.import(intern!(py, "numpy"))?;
    let copy = numpy.call_method1("empty", (PyTuple::new(py, shape)?, &dtype))?;
    let bytes = copy.call_method1("reshape", (-1,))?;
    let bytes = bytes.call_method1("view", (numpy::dtype::<u8>(py),))?;
    let mut bytes = bytes.cast::<PyArray1<u8>>()?.readwrite();
    let mut out = bytes.as_slice_mut()?;
    for array in arrays {
        let from = array.numbers(dtype.itemsize());
        let (to, rest) = out.split_at_mut(from.len());
        to.copy_from_slice(from);
        out = rest;
    }
    assert!(out.is_empty(), "the spans have all tokens");
    read_only(copy.cast()?)
}

fn read_only<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    let flags = array.getattr(intern!(py, "flags"))?;
    flags.setattr(intern!(py, "writeable"), false)?;
    Ok(array.clone())
}
