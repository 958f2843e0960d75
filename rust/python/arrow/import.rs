//! Import through Arrow's C interface: the producer's structs are checked before they are used.
//!
//! Buffer lengths cannot be checked: the interface has none.

use std::borrow::Cow;
use std::ffi::CStr;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use fastcollate::{Error as Core, few, gathered};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use super::structs::{ArrowArray, ArrowArrayStream, ArrowSchema, Struct, pointer_in, taken};
use super::types::{DataType, Form, Item, Width};
use crate::error::{Error, Result};
use crate::rows::intern;

/// Maximum nesting of types: a struct may be its own child.
const MAX_DEPTH: usize = 32;

/// Maximum number of columns of a table.
const MAX_COLUMNS: usize = 1 << 16;

/// Maximum number of types in a schema: structs may share children, which are read for each.
const MAX_TYPES: usize = 2 * MAX_COLUMNS;

/// Maximum number of arrays that are read at a time, and the time after which no more are.
const MOST_ARRAYS: usize = 1 << 10;
const PATIENCE: Duration = Duration::from_millis(50);

/// Arrays of one type that an object exports, not yet imported.
pub struct Source<'py> {
    pub data_type: DataType,
    held: Held<'py>,
}

enum Held<'py> {
    Array(Bound<'py, PyCapsule>),
    Stream(ArrowArrayStream),
    Nothing,
}

/// A checked value, or the defect of its struct.
type Checked<T> = std::result::Result<T, String>;

impl<'py> Source<'py> {
    /// The arrays that an object exports; `None` if it is not an Arrow object.
    ///
    /// # Errors
    /// Exceptions of the object's own methods, and `ValueError` for invalid structs.
    pub fn open(object: &Bound<'py, PyAny>, location: &str) -> Result<Option<Self>> {
        let py = object.py();
        let (of_array, of_stream) =
            (intern!(py, "__arrow_c_array__"), intern!(py, "__arrow_c_stream__"));
        let failed = |cause| Error::raised(py, location, cause);
        let kind = object.get_type();
        if kind.hasattr(of_array)? {
            let capsules = object.call_method0(of_array).map_err(failed)?;
            let (schema, array) = pair(&capsules).map_err(failed)?;
            let data_type = type_of_capsule(&schema).map_err(failed)?;
            let data_type = data_type.map_err(|reason| invalid(location, reason))?;
            let held = Held::Array(array);
            return Ok(Some(Self { data_type, held }));
        }
        if !kind.hasattr(of_stream)? {
            return Ok(None);
        }
        let capsule = object.call_method0(of_stream).map_err(failed)?;
        let capsule = capsule.cast_into().map_err(|error| failed(error.into()))?;
        let mut stream = taken(&capsule).map_err(failed)?;
        // The producer may have to run threads that need the interpreter.
        let data_type = py.detach(|| type_of_stream(&mut stream));
        let data_type = data_type.map_err(|reason| failed_with(location, reason))?;
        let held = Held::Stream(stream);
        Ok(Some(Self { data_type, held }))
    }

    /// Import the next arrays; none at the end.
    ///
    /// # Errors
    /// `ValueError` for invalid structs and for errors of the stream, and the exceptions of
    /// signal handlers.
    pub fn next_arrays(&mut self, py: Python, location: &str) -> Result<Vec<Array>> {
        py.check_signals()?;
        let data_type = &self.data_type;
        let arrays = match &mut self.held {
            Held::Nothing => Ok(Vec::new()),
            Held::Array(capsule) => {
                let array = taken(capsule);
                self.held = Held::Nothing;
                let array = array.map_err(|cause| Error::raised(py, location, cause))?;
                Array::imported(array, data_type).map(|array| vec![array])
            }
            Held::Stream(stream) => py.detach(|| {
                let start = Instant::now();
                let mut arrays = Vec::new();
                while arrays.len() < MOST_ARRAYS && start.elapsed() < PATIENCE {
                    match next_of(stream)? {
                        Some(array) => arrays.push(Array::imported(array, data_type)?),
                        None => break,
                    }
                }
                Ok(arrays)
            }),
        };
        arrays.map_err(|reason| failed_with(location, reason))
    }
}

/// The error of a producer, which passes on only the text of an exception, also that of Ctrl-C.
fn failed_with(location: &str, cause: String) -> Error {
    if cause.lines().any(|line| line.starts_with("KeyboardInterrupt")) {
        return PyKeyboardInterrupt::new_err(cause).into();
    }
    invalid(location, cause)
}

fn invalid(location: &str, cause: String) -> Error {
    Error::Arrow { location: location.to_owned(), cause }
}

/// The schema and the array that a method returned.
fn pair<'py>(
    capsules: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    match capsules.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => {
            Ok((pair.get_item(0)?.cast_into()?, pair.get_item(1)?.cast_into()?))
        }
        _ => Err(PyTypeError::new_err("__arrow_c_array__ has to return two capsules")),
    }
}

// Schemas

/// The type in a schema capsule, or the defect of its struct.
///
/// # Errors
/// `ValueError` for a capsule of another name.
pub fn type_of_capsule(capsule: &Bound<PyCapsule>) -> PyResult<Checked<DataType>> {
    let schema = pointer_in(capsule)?;
    // SAFETY: a capsule of this name holds such a struct, which lives as long.
    Ok(unsafe { type_of(schema, MAX_DEPTH, &mut MAX_TYPES.clone()) })
}

fn type_of_stream(stream: &mut ArrowArrayStream) -> Checked<DataType> {
    let (Some(_), Some(get_schema)) = (stream.release, stream.get_schema) else {
        return Err("its stream was released, as if it had been read before".to_owned());
    };
    let mut schema = ArrowSchema::released();
    // SAFETY: the stream is not released, and the pointer is to a schema.
    match unsafe { get_schema(stream, &raw mut schema) } {
        // SAFETY: the stream has made a schema, which lives until the return.
        0 => unsafe { type_of(&raw const schema, MAX_DEPTH, &mut MAX_TYPES.clone()) },
        code => Err(failure_of(stream, code)),
    }
}

/// The type in a schema of at most this depth and number of types.
///
/// # Safety
/// All pointers, including those in the struct, are null or as the interface defines them.
unsafe fn type_of(schema: *const ArrowSchema, depth: usize, left: &mut usize) -> Checked<DataType> {
    // SAFETY: passed on from the caller.
    let schema = unsafe { reference(schema, "schema")? };
    if schema.release.is_none() {
        return Err("its schema was released".to_owned());
    }
    if schema.format.is_null() || depth == 0 {
        return Err("its schema has no format, or no end".to_owned());
    }
    *left =
        left.checked_sub(1).ok_or_else(|| format!("its schema has more than {MAX_TYPES} types"))?;
    // SAFETY: a format is a string.
    let format = unsafe { CStr::from_ptr(schema.format) };
    let format = format.to_str().map_err(|_| "its schema has a format that is not text")?;
    let mut items = |count| {
        // SAFETY: passed on from the caller.
        let children = unsafe { children(schema.children, schema.n_children, count)? };
        let item = |child| {
            // SAFETY: passed on from the caller.
            let (data_type, child) = unsafe { (type_of(child, depth - 1, left)?, &*child) };
            let is_nullable = child.is_nullable();
            Ok(Item { data_type, is_nullable })
        };
        few::<_, Checked<Vec<_>>>(children.into_iter().map(item))
    };
    let mut list = |form| Ok::<_, String>(DataType::List(form, items(1)?.remove(0).into()));
    let data_type = match format {
        "+l" => list(Form::List)?,
        "+L" => list(Form::LargeList)?,
        "+vl" => list(Form::ListView)?,
        "+vL" => list(Form::LargeListView)?,
        "+s" => match usize::try_from(schema.n_children) {
            Ok(count @ ..=MAX_COLUMNS) => DataType::Struct(items(count)?),
            _ => return Err(format!("its schema has {} columns", schema.n_children)),
        },
        _ if format.starts_with("+w:") => match format[3..].parse::<i32>() {
            Ok(size @ 0..) => list(Form::FixedSize(size as usize))?,
            _ => {
                return Err(format!("its schema has lists of the size '{}'", &format[3..]));
            }
        },
        _ => DataType::of_leaf(format).ok_or_else(|| format!("it is of the format '{format}'"))?,
    };
    if schema.dictionary.is_null() {
        return Ok(data_type);
    }
    // SAFETY: passed on from the caller.
    let values = unsafe { type_of(schema.dictionary, depth - 1, left)? };
    Ok(DataType::Dictionary(data_type.into(), values.into()))
}

// Arrays

/// The next array of a stream; `None` at its end.
fn next_of(stream: &mut ArrowArrayStream) -> Checked<Option<ArrowArray>> {
    let Some(get_next) = stream.get_next else {
        return Err("its stream has no method to read it".to_owned());
    };
    let mut array = ArrowArray::released();
    // SAFETY: the stream is not released, and the pointer is to an array.
    match unsafe { get_next(stream, &raw mut array) } {
        0 => Ok(array.release.is_some().then_some(array)),
        code => Err(failure_of(stream, code)),
    }
}

/// The stream's message for its last failure.
fn failure_of(stream: &mut ArrowArrayStream, code: i32) -> String {
    // SAFETY: the stream is not released, and has failed just now.
    let text = stream.get_last_error.map(|get_last_error| unsafe { get_last_error(stream) });
    match text {
        Some(text) if !text.is_null() => {
            // SAFETY: a non-null pointer is a string until the stream is used again.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        }
        _ => format!("its stream failed with code {code}"),
    }
}

/// Contiguous items of a checked struct.
#[derive(Clone)]
pub struct Array {
    owner: Arc<ArrowArray>,
    /// The struct: the owner, or one of its children.
    at: *const ArrowArray,
    /// The range of the items in the buffers.
    items: Range<usize>,
}

// SAFETY: `at` points to memory that the owner shares.
unsafe impl Send for Array {}

impl Array {
    /// Check an array of lists of numbers, or a table of them, and own it.
    fn imported(array: ArrowArray, data_type: &DataType) -> Checked<Self> {
        let owner = Arc::new(array);
        let at = Arc::as_ptr(&owner);
        // SAFETY: all pointers in the struct are null or as the interface defines them.
        let items = unsafe { check(at, data_type)? };
        Ok(Self { owner, at, items })
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The owner of the memory of all its items.
    pub fn owner(&self) -> Arc<ArrowArray> {
        Arc::clone(&self.owner)
    }

    /// A subrange of the items.
    pub fn slice(&self, from: usize, len: usize) -> Self {
        assert!(from <= self.len() && len <= self.len() - from);
        let from = self.items.start + from;
        let items = from..from + len;
        Self { items, ..self.clone() }
    }

    /// All items of the child of variable-size lists.
    pub fn child(&self) -> Self {
        // SAFETY: `check` has read both structs, which the owner keeps.
        let (at, child) = unsafe {
            let at = self.raw().children.read_unaligned();
            (at, &*at)
        };
        let from = child.offset as usize;
        Self { owner: self.owner(), at, items: from..from + child.length as usize }
    }

    /// The items of fixed-size lists; with 1, the column of a table.
    pub fn items(&self, size: usize) -> Self {
        self.child().slice(self.items.start * size, self.len() * size)
    }

    /// Indices of null items.
    pub fn nulls(&self) -> impl Iterator<Item = usize> {
        let array = self.raw();
        let Range { start, end } = self.items;
        let may_have = array.null_count != 0 && array.n_buffers != 0;
        let bits = may_have.then(|| self.bytes(0, start / 8..end.div_ceil(8))).flatten();
        let mut index = start;
        std::iter::from_fn(move || {
            let bits = bits?;
            while index < end {
                let byte = bits[index / 8 - start / 8];
                if byte == u8::MAX {
                    index += 8 - index % 8;
                    continue;
                }
                index += 1;
                if byte >> ((index - 1) % 8) & 1 == 0 {
                    return Some(index - 1 - start);
                }
            }
            None
        })
    }

    /// The offsets or sizes in a buffer: one per item, plus `more`. Copied if unaligned.
    ///
    /// # Errors
    /// [`Error::NoMemory`](Core::NoMemory).
    pub fn offsets<T: Pod>(&self, buffer: usize, more: usize) -> Result<Cow<'_, [T]>, Core> {
        let bytes = self.values(buffer, size_of::<T>(), more);
        Ok(match bytemuck::try_cast_slice(bytes) {
            Ok(offsets) => Cow::Borrowed(offsets),
            Err(_) => {
                let offsets = bytes.chunks_exact(size_of::<T>());
                Cow::Owned(gathered(offsets.map(bytemuck::pod_read_unaligned))?)
            }
        })
    }

    /// The bytes of numbers of this size.
    pub fn numbers(&self, size: usize) -> &[u8] {
        self.values(1, size, 0)
    }

    fn values(&self, buffer: usize, size: usize, more: usize) -> &[u8] {
        let Range { start, end } = self.items;
        let span = start * size..(end + more) * size;
        self.bytes(buffer, span).unwrap_or_default()
    }

    /// The items of an array of booleans.
    pub fn booleans(&self) -> impl Iterator<Item = bool> {
        let Range { start, end } = self.items;
        let bits = self.bytes(1, start / 8..end.div_ceil(8));
        let bits = bits.unwrap_or_default();
        (start..end).map(move |index| bits[index / 8 - start / 8] >> (index % 8) & 1 == 1)
    }

    fn raw(&self) -> &ArrowArray {
        // SAFETY: `check` has read the struct, which the owner keeps.
        unsafe { &*self.at }
    }

    /// The bytes of a range of a buffer of this type; `None` if there is no memory.
    fn bytes(&self, buffer: usize, span: Range<usize>) -> Option<&[u8]> {
        // SAFETY: the span are those of items, and `check` has looked at each buffer: that it is
        // there, and large enough as far as the interface lets that be known.
        unsafe {
            let data = self.raw().buffers.add(buffer).read_unaligned();
            let data = (!data.is_null()).then(|| data.cast::<u8>().add(span.start));
            data.map(|data| slice::from_raw_parts(data, span.len()))
        }
    }
}
/// Check that an array fits its schema; returns the range of its items in its buffers.
///
/// # Safety
/// All pointers, including those in the struct, are null or as the interface defines them.
unsafe fn check(array: *const ArrowArray, data_type: &DataType) -> Checked<Range<usize>> {
    // SAFETY: passed on from the caller.
    let array = unsafe { reference(array, "array")? };
    if array.release.is_none() {
        return Err("its array was released, as if it had been read before".to_owned());
    }
    let (length, offset) = match (usize::try_from(array.length), usize::try_from(array.offset)) {
        (Ok(length), Ok(offset)) => (length, offset),
        _ => {
            return Err(format!(
                "its array of type {data_type} has the length {} and the offset {}",
                array.length, array.offset
            ));
        }
    };
    let too_long = || format!("its array of type {data_type} has {length} items from {offset} on");
    // Length of buffers and children, including the items skipped by the offset.
    let end = length.checked_add(offset).ok_or_else(too_long)?;
    let widths = data_type.widths()?;
    let buffers = usize::try_from(array.n_buffers).ok();
    // Without nulls, a producer may omit the null buffer.
    let has_nulls = buffers == Some(1 + widths.len());
    if !has_nulls && (buffers, widths.len()) != (Some(0), 0) {
        return Err(format!(
            "its array of type {data_type} has {} buffers, not {}",
            array.n_buffers,
            1 + widths.len()
        ));
    }
    if has_nulls {
        // SAFETY: passed on from the caller; the index is below the stated number of buffers.
        let buffer = |index| unsafe {
            if array.buffers.is_null() {
                std::ptr::null()
            } else {
                array.buffers.add(index).read_unaligned()
            }
        };
        if buffer(0).is_null() && array.null_count > 0 && *data_type != DataType::Null {
            return Err(format!(
                "its array of type {data_type} has {} nulls, but does not say where",
                array.null_count
            ));
        }
        for (index, Width { bits, more }) in widths.into_iter().enumerate() {
            let bits = end.checked_add(more).and_then(|items| items.checked_mul(bits));
            let bytes = bits.ok_or_else(too_long)?.div_ceil(8);
            let data = buffer(1 + index);
            if data.is_null() && bytes > 0 {
                return Err(format!(
                    "its array of type {data_type} has no buffer {}, but {length} items",
                    1 + index
                ));
            }
            let end = data.addr().checked_add(bytes);
            if end.is_none_or(|end| isize::try_from(end).is_err()) {
                return Err(too_long());
            }
        }
        if array.buffers.is_null() {
            return Err(format!("its array of type {data_type} has no buffers"));
        }
    }
    if !array.dictionary.is_null() {
        return Err(format!("its array of type {data_type} has a dictionary"));
    }
    // SAFETY: passed on from the caller.
    let children = unsafe { children(array.children, array.n_children, data_type.items().len()) };
    let children =
        children.map_err(|reason| format!("{reason}, in an array of type {data_type}"))?;
    // List offsets are checked against the child's length when they are read.
    let needed = match data_type {
        DataType::List(Form::FixedSize(size), _) => end.checked_mul(*size).ok_or_else(too_long)?,
        DataType::Struct(_) => end,
        _ => 0,
    };
    for (item, child) in data_type.items().iter().zip(children) {
        // SAFETY: passed on from the caller.
        let found = unsafe { check(child, &item.data_type)? }.len();
        if found < needed {
            return Err(format!(
                "its array of type {data_type} needs {needed} items, but its child has {found}"
            ));
        }
    }
    Ok(offset..end)
}

// Common to both

/// The struct at a pointer.
///
/// # Safety
/// The pointer is null, or points to such a struct for as long as the reference is used.
unsafe fn reference<'a, T>(pointer: *const T, what: &str) -> Checked<&'a T> {
    if !pointer.is_aligned() {
        return Err(format!("one of its {what} structs is not aligned"));
    }
    // SAFETY: passed on from the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| format!("one of its {what} structs is missing"))
}

/// The children of a struct that must have `count` of them.
///
/// # Safety
/// The pointer is null, or points to as many children as the struct states.
unsafe fn children<T>(
    children: *const *const T,
    count: i64,
    expected: usize,
) -> Checked<Vec<*const T>> {
    if usize::try_from(count) != Ok(expected) || (children.is_null() && expected > 0) {
        return Err(format!("it has {count} children or no place of them, not {expected}"));
    }
    // SAFETY: passed on from the caller.
    let child = |index| unsafe { children.add(index).read_unaligned() };
    Ok(few((0..expected).map(child)))
}
