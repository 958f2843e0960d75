//! NumPy arrays, viewed where they lie.

use std::slice;

use fastcollate::Slice;
use numpy::prelude::*;
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

use crate::error::{Error, Result};

/// A C-contiguous array of one or two dimensions, and the view of its memory.
///
/// The view is valid while the array lives, which it does as long as this value. Nobody may write
/// to the array meanwhile: NumPy cannot forbid it to other threads, and then the values that are
/// read are not defined, as with any other reader of that array.
pub struct ArrayView<'py> {
    values: Slice<'py>,
    shape: (usize, usize),
    _owner: Bound<'py, PyUntypedArray>,
}

impl<'py> ArrayView<'py> {
    /// View an array; one that is strided, byte-swapped, unaligned or of a rare float type is
    /// converted by NumPy first. One dimension counts as one row.
    ///
    /// # Errors
    /// `TypeError` for dtypes that are not numbers, `ValueError` for other dimensions.
    pub fn new(array: &Bound<'py, PyUntypedArray>, place: impl Fn() -> String) -> Result<Self> {
        let shape = match *array.shape() {
            [len] => (1, len),
            [rows, len] => (rows, len),
            _ => {
                return Err(Error::Shape {
                    place: place(),
                    found: format!("{:?}", array.shape()),
                    expected: "a row has one dimension, and a padded field two",
                });
            }
        };
        if let Some(values) = view(array) {
            return Ok(Self {
                values,
                shape,
                _owner: array.clone(),
            });
        }
        let converted = native(array)?.and_then(|owner| Some((view(&owner)?, owner)));
        match converted {
            Some((values, owner)) => Ok(Self {
                values,
                shape,
                _owner: owner,
            }),
            None => Err(Error::Kind {
                place: place(),
                found: format!("an array of dtype {}", array.dtype()),
                expected: "rows hold integers, floats or booleans",
            }),
        }
    }

    /// All values, row by row.
    pub fn values(&self) -> Slice<'_> {
        self.values
    }

    /// Number of rows, and of values in each.
    pub fn shape(&self) -> (usize, usize) {
        self.shape
    }
}

/// A contiguous, aligned array of native numbers as a slice; `None` if it is anything else.
fn view<'py>(array: &Bound<'py, PyUntypedArray>) -> Option<Slice<'py>> {
    let dtype = array.dtype();
    if !array.is_c_contiguous() || dtype.is_native_byteorder() == Some(false) {
        return None;
    }
    let len = array.len();
    // SAFETY: `array` is a live ndarray, so its object can be read.
    let data = unsafe { (*array.as_array_ptr()).fields.data };

    /// View the array's memory as values of one type.
    macro_rules! values {
        ($variant:ident, $type:ty) => {{
            let data = data.cast::<$type>();
            if len == 0 {
                return Some(Slice::$variant(&[]));
            }
            if !data.is_aligned() {
                return None;
            }
            // SAFETY: the array is C-contiguous and holds `len` items of this type (kind and item
            // size are matched below, every bit pattern is a value), the pointer is aligned and not
            // null, and the array outlives the slice: `ArrayView` keeps both.
            Slice::$variant(unsafe { slice::from_raw_parts(data, len) })
        }};
    }
    Some(match (dtype.kind(), dtype.itemsize()) {
        (b'b', 1) => values!(Bool, u8),
        (b'i', 1) => values!(I8, i8),
        (b'i', 2) => values!(I16, i16),
        (b'i', 4) => values!(I32, i32),
        (b'i', 8) => values!(I64, i64),
        (b'u', 1) => values!(U8, u8),
        (b'u', 2) => values!(U16, u16),
        (b'u', 4) => values!(U32, u32),
        (b'u', 8) => values!(U64, u64),
        (b'f', 4) => values!(F32, f32),
        (b'f', 8) => values!(F64, f64),
        _ => return None,
    })
}

/// Let NumPy convert an array to a contiguous one of native numbers; `None` if it holds none.
///
/// Half and extended precision become float32, rounded once: the type of every float output.
fn native<'py>(array: &Bound<'py, PyUntypedArray>) -> Result<Option<Bound<'py, PyUntypedArray>>> {
    let py = array.py();
    let dtype = array.dtype();
    let target = match (dtype.kind(), dtype.itemsize()) {
        (b'b', _) | (b'i' | b'u', 1 | 2 | 4 | 8) | (b'f', 4 | 8) => {
            dtype.call_method1(intern!(py, "newbyteorder"), ("=",))?
        }
        (b'f', _) => PyArrayDescr::of::<f32>(py).into_any(),
        _ => return Ok(None),
    };
    let order = [("order", "C")].into_py_dict(py)?;
    // Beyond float32 is infinity, as everywhere here; NumPy would warn of it.
    let ignore = [("over", "ignore")].into_py_dict(py)?;
    let quiet = py
        .import("numpy")?
        .call_method("errstate", (), Some(&ignore))?;
    quiet.call_method0("__enter__")?;
    let copy = array.call_method(intern!(py, "astype"), (target,), Some(&order));
    quiet.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
    Ok(Some(copy?.cast_into().map_err(PyErr::from)?))
}
