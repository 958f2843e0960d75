//! Import by Arrow's C interface: what a producer's structs say of themselves is checked before Arrow's
//! library, which trusts them, takes them over.
//!
//! Lengths of buffers are not to be known: the interface has none.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{ArrayRef, make_array};
use arrow_schema::{DataType, Field};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::error::{Error, Result};

/// Types in types, at most: a struct may be its own child.
const MAX_DEPTH: usize = 32;

/// Columns of a table, at most.
const MAX_COLUMNS: usize = 1 << 16;

/// `struct ArrowSchema`.
#[repr(C)]
struct RawSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *const *const RawSchema,
    dictionary: *const RawSchema,
    release: *const c_void,
    private_data: *const c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
struct RawArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *const *const c_void,
    children: *const *const RawArray,
    dictionary: *const RawArray,
    release: *const c_void,
    private_data: *const c_void,
}

/// Arrays of one type that an object hands over, not imported yet.
pub struct Source<'py> {
    pub data_type: DataType,
    held: Held<'py>,
}

enum Held<'py> {
    Array(Bound<'py, PyCapsule>),
    Stream(FFI_ArrowArrayStream),
}

/// What is wrong with a struct.
type Checked<T> = std::result::Result<T, String>;

impl<'py> Source<'py> {
    /// Ask an object for its arrays; `None` if it is not Arrow's.
    ///
    /// # Errors
    /// What the object's own methods raise, and `ValueError` for structs that are not as they should
    /// be.
    pub fn open(object: &Bound<'py, PyAny>, place: &str) -> Result<Option<Self>> {
        let py = object.py();
        let (of_array, of_stream) = (
            intern!(py, "__arrow_c_array__"),
            intern!(py, "__arrow_c_stream__"),
        );
        let failed = |cause| Error::raised(py, place, cause);
        let kind = object.get_type();
        if kind.hasattr(of_array)? {
            let capsules = object.call_method0(of_array).map_err(failed)?;
            let (schema, array) = pair(&capsules).map_err(failed)?;
            let data_type = type_of_capsule(&schema).map_err(failed)?;
            let data_type = data_type.map_err(|reason| invalid(place, reason))?;
            let held = Held::Array(array);
            return Ok(Some(Self { data_type, held }));
        }
        if !kind.hasattr(of_stream)? {
            return Ok(None);
        }
        let capsule = object.call_method0(of_stream).map_err(failed)?;
        let capsule = { capsule.cast_into() }.map_err(|error| failed(error.into()))?;
        let stream = pointer_in(&capsule, c"arrow_array_stream").map_err(failed)?;
        // SAFETY: a capsule of this name holds such a struct. An empty one takes its place, so that
        // nobody else releases it.
        let mut stream = unsafe { FFI_ArrowArrayStream::from_raw(stream) };
        // The producer may have to run threads that take the interpreter.
        let data_type = py.detach(|| type_of_stream(&mut stream));
        let data_type = data_type.map_err(|reason| invalid(place, reason))?;
        let held = Held::Stream(stream);
        Ok(Some(Self { data_type, held }))
    }

    /// Import the arrays.
    ///
    /// # Errors
    /// `ValueError` for structs that are not as they should be, and for what a stream fails with.
    pub fn arrays(self, py: Python, place: &str) -> Result<Vec<ArrayRef>> {
        let Self { data_type, held } = self;
        let arrays = match held {
            Held::Array(capsule) => {
                let array = pointer_in(&capsule, c"arrow_array");
                let array = array.map_err(|cause| Error::raised(py, place, cause))?;
                // SAFETY: a capsule of this name holds such a struct. An empty one takes its place,
                // so that nobody else releases it.
                imported(unsafe { FFI_ArrowArray::from_raw(array) }, &data_type)
                    .map(|array| vec![array])
            }
            Held::Stream(mut stream) => py.detach(|| {
                let mut arrays = Vec::new();
                while let Some(array) = next_of(&mut stream)? {
                    arrays.push(imported(array, &data_type)?);
                }
                Ok(arrays)
            }),
        };
        arrays.map_err(|reason| invalid(place, reason))
    }
}

fn invalid(place: &str, cause: String) -> Error {
    Error::Arrow {
        place: place.to_owned(),
        cause,
    }
}

/// The schema and the array that a method returned.
fn pair<'py>(
    capsules: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    match capsules.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => Ok((
            pair.get_item(0)?.cast_into()?,
            pair.get_item(1)?.cast_into()?,
        )),
        _ => Err(PyTypeError::new_err(
            "__arrow_c_array__ has to return two capsules",
        )),
    }
}

/// Where a capsule's struct lies.
fn pointer_in<T>(capsule: &Bound<PyCapsule>, name: &CStr) -> PyResult<*mut T> {
    let pointer = capsule.pointer_checked(Some(name))?.cast::<T>();
    if pointer.is_aligned() {
        Ok(pointer.as_ptr())
    } else {
        Err(PyTypeError::new_err("a capsule holds no aligned struct"))
    }
}

// Schemas

/// The type that a schema capsule tells of, or what is wrong with its struct.
///
/// # Errors
/// `ValueError` for a capsule of another name.
pub fn type_of_capsule(capsule: &Bound<PyCapsule>) -> PyResult<Checked<DataType>> {
    let schema = pointer_in::<RawSchema>(capsule, c"arrow_schema")?;
    // SAFETY: a capsule of this name holds such a struct, which lives as long.
    Ok(unsafe { type_of(schema, MAX_DEPTH) })
}

fn type_of_stream(stream: &mut FFI_ArrowArrayStream) -> Checked<DataType> {
    let (Some(_), Some(get_schema)) = (stream.release, stream.get_schema) else {
        return Err("its stream was released, as if it had been read before".to_owned());
    };
    let mut schema = FFI_ArrowSchema::empty();
    // SAFETY: the stream is not released, and there is room for a schema.
    match unsafe { get_schema(stream, &raw mut schema) } {
        // SAFETY: the stream has made a schema, which lives until the return.
        0 => unsafe { type_of((&raw const schema).cast(), MAX_DEPTH) },
        code => Err(failure_of(stream, code)),
    }
}

/// The type that a schema tells of.
///
/// # Safety
/// The pointer is null or, as all pointers in its struct, to what the interface says.
unsafe fn type_of(schema: *const RawSchema, depth: usize) -> Checked<DataType> {
    // SAFETY: passed on from the caller.
    let schema = unsafe { reference(schema, "schema")? };
    if schema.release.is_null() {
        return Err("its schema was released".to_owned());
    }
    if schema.format.is_null() || depth == 0 {
        return Err("its schema has no format, or no end".to_owned());
    }
    // SAFETY: a format is a string.
    let format = unsafe { CStr::from_ptr(schema.format) };
    let format = format
        .to_str()
        .map_err(|_| "its schema has a format that is no text")?;
    let field = |child| {
        // SAFETY: passed on from the caller.
        let data_type = unsafe { type_of(child, depth - 1)? };
        Ok(Field::new_list_field(data_type, is_nullable(child)))
    };
    let item = || {
        // SAFETY: passed on from the caller.
        let child = unsafe { children(schema.children, schema.n_children, 1)? };
        field(child[0]).map(Arc::new)
    };
    let data_type = match format {
        "+l" => DataType::List(item()?),
        "+L" => DataType::LargeList(item()?),
        "+vl" => DataType::ListView(item()?),
        "+vL" => DataType::LargeListView(item()?),
        "+s" => {
            let count = usize::try_from(schema.n_children).unwrap_or(usize::MAX);
            if count > MAX_COLUMNS {
                return Err(format!("its schema has {} columns", schema.n_children));
            }
            // SAFETY: passed on from the caller.
            let columns = unsafe { children(schema.children, schema.n_children, count)? };
            DataType::Struct(columns.into_iter().map(field).collect::<Checked<_>>()?)
        }
        _ if format.starts_with("+w:") => match format[3..].parse() {
            Ok(size @ 0..) => DataType::FixedSizeList(item()?, size),
            _ => {
                return Err(format!(
                    "its schema has lists of the size '{}'",
                    &format[3..]
                ));
            }
        },
        _ if format.starts_with('+') => return Err(format!("it is of the format '{format}'")),
        _ => {
            let leaf = FFI_ArrowSchema::try_new(format, Vec::new(), None);
            let leaf = leaf.and_then(|leaf| DataType::try_from(&leaf));
            leaf.map_err(|error| error.to_string())?
        }
    };
    if schema.dictionary.is_null() {
        return Ok(data_type);
    }
    // SAFETY: passed on from the caller.
    let values = unsafe { type_of(schema.dictionary, depth - 1)? };
    Ok(DataType::Dictionary(Box::new(data_type), Box::new(values)))
}

/// Whether a schema that was read has the flag.
fn is_nullable(schema: *const RawSchema) -> bool {
    const NULLABLE: i64 = 2;
    // SAFETY: `type_of` has read the same struct.
    unsafe { (*schema).flags & NULLABLE != 0 }
}

// Arrays

/// The next array of a stream; `None` at its end.
fn next_of(stream: &mut FFI_ArrowArrayStream) -> Checked<Option<FFI_ArrowArray>> {
    let Some(get_next) = stream.get_next else {
        return Err("its stream has no method to read it".to_owned());
    };
    let mut array = FFI_ArrowArray::empty();
    // SAFETY: the stream is not released, and there is room for an array.
    match unsafe { get_next(stream, &raw mut array) } {
        0 => Ok((!array.is_released()).then_some(array)),
        code => Err(failure_of(stream, code)),
    }
}

/// What a stream says of its last failure.
fn failure_of(stream: &mut FFI_ArrowArrayStream, code: i32) -> String {
    // SAFETY: the stream is not released, and has failed just now.
    let text = { stream.get_last_error }.map(|get_last_error| unsafe { get_last_error(stream) });
    match text {
        Some(text) if !text.is_null() => {
            // SAFETY: what is not null is a string until the stream is used again.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        }
        _ => format!("its stream failed with code {code}"),
    }
}

/// Import an array of lists of numbers.
fn imported(array: FFI_ArrowArray, data_type: &DataType) -> Checked<ArrayRef> {
    // SAFETY: both are the interface's struct, and all pointers in it are what the interface says, as
    // far as they are not null.
    unsafe {
        check((&raw const array).cast(), data_type)?;
        let data = from_ffi_and_data_type(array, data_type.clone());
        Ok(make_array(data.map_err(|error| error.to_string())?))
    }
}

/// Check that an array can be what its schema says; returns how many items it has.
///
/// # Safety
/// The pointer is null or, as all pointers in its struct, to what the interface says.
unsafe fn check(array: *const RawArray, data_type: &DataType) -> Checked<usize> {
    // SAFETY: passed on from the caller.
    let array = unsafe { reference(array, "array")? };
    if array.release.is_null() {
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
    // What buffers and children hold, those that the offset skips included.
    let end = length.checked_add(offset).ok_or_else(too_long)?;
    let widths = widths_of(data_type)?;
    let buffers = usize::try_from(array.n_buffers).ok();
    // Without any null, a producer may leave even that one out.
    let has_nulls = buffers == Some(1 + widths.len());
    if !has_nulls && (buffers, widths.len()) != (Some(0), 0) {
        return Err(format!(
            "its array of type {data_type} has {} buffers, not {}",
            array.n_buffers,
            1 + widths.len()
        ));
    }
    if has_nulls {
        // SAFETY: passed on from the caller; so many buffers are said to be there.
        let buffer = |index| unsafe {
            if array.buffers.is_null() {
                std::ptr::null()
            } else {
                array.buffers.add(index).read_unaligned()
            }
        };
        if buffer(0).is_null() && array.null_count > 0 {
            return Err(format!(
                "its array of type {data_type} has {} nulls, but does not say where",
                array.null_count
            ));
        }
        for (index, Width { bits, more }) in widths.into_iter().enumerate() {
            let bits = { end.checked_add(more) }.and_then(|items| items.checked_mul(bits));
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
    let fields = match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => std::slice::from_ref(item),
        DataType::Struct(fields) => &fields[..],
        _ => &[],
    };
    // SAFETY: passed on from the caller.
    let children = unsafe { children(array.children, array.n_children, fields.len()) };
    let children =
        children.map_err(|reason| format!("{reason}, in an array of type {data_type}"))?;
    // Lists' offsets are compared with their child's length when they are read.
    let needed = match data_type {
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(usize::MAX);
            end.checked_mul(size).ok_or_else(too_long)?
        }
        DataType::Struct(_) => end,
        _ => 0,
    };
    for (field, child) in fields.iter().zip(children) {
        // SAFETY: passed on from the caller.
        let found = unsafe { check(child, field.data_type())? };
        if found < needed {
            return Err(format!(
                "its array of type {data_type} needs {needed} items, but its child has {found}"
            ));
        }
    }
    Ok(length)
}

/// How large a buffer is: bits of each item, and how many more there are than items.
struct Width {
    bits: usize,
    more: usize,
}

/// The buffers of an array beside that of nulls.
fn widths_of(data_type: &DataType) -> Checked<Vec<Width>> {
    let width = |bits, more| Width { bits, more };
    Ok(match data_type {
        DataType::FixedSizeList(..) | DataType::Struct(_) => Vec::new(),
        DataType::List(_) => vec![width(32, 1)],
        DataType::LargeList(_) => vec![width(64, 1)],
        DataType::ListView(_) => vec![width(32, 0), width(32, 0)],
        DataType::LargeListView(_) => vec![width(64, 0), width(64, 0)],
        DataType::Boolean => vec![width(1, 0)],
        _ => match data_type.primitive_width() {
            Some(bytes) => vec![width(8 * bytes, 0)],
            None => return Err(format!("it holds {data_type}")),
        },
    })
}

// Both

/// A struct that a pointer leads to.
///
/// # Safety
/// The pointer is null, or leads to such a struct for as long as the reference is used.
unsafe fn reference<'a, T>(pointer: *const T, what: &str) -> Checked<&'a T> {
    if !pointer.is_aligned() {
        return Err(format!("one of its {what} structs is not aligned"));
    }
    // SAFETY: passed on from the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| format!("one of its {what} structs is missing"))
}

/// The children of a struct that has to have so many.
///
/// # Safety
/// The pointer is null, or leads to as many as the struct says.
unsafe fn children<T>(
    children: *const *const T,
    count: i64,
    expected: usize,
) -> Checked<Vec<*const T>> {
    if usize::try_from(count) != Ok(expected) || (children.is_null() && expected > 0) {
        return Err(format!(
            "it has {count} children or no place of them, not {expected}"
        ));
    }
    // SAFETY: passed on from the caller.
    let child = |index| unsafe { children.add(index).read_unaligned() };
    Ok((0..expected).map(child).collect())
}
