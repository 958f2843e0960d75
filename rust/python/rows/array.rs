//! NumPy arrays and torch tensors, read in location.

use std::ffi::c_void;
use std::slice;
use std::sync::OnceLock;

use fastcollate::{Element, Slice, few};
use numpy::prelude::*;
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyType};

use super::dlpack::{self, Memory};
use super::{imported, tensor};
use crate::error::{Error, Result};

/// A C-contiguous array of tokens. Its memory is looked up at every read: Python code that runs in
/// between may move it.
pub struct ArrayView<'py> {
    source: Source<'py>,
    numbers: Numbers,
    tokens: usize,
    trailing: Vec<usize>,
    /// Number of values.
    len: usize,
    data: *mut c_void,
}

/// What a view looks up.
enum Source<'py> {
    Array {
        array: Bound<'py, PyUntypedArray>,
        /// Held, so that no other one takes its address.
        dtype: Bound<'py, PyArrayDescr>,
        /// The tensor that owns the memory, if any.
        tensor: Option<Bound<'py, PyAny>>,
    },
    Tensor(Bound<'py, PyAny>),
}

/// Number types that are read in location. Bool is read as bytes.
#[derive(Clone, Copy, PartialEq)]
enum Numbers {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

/// Target type of half- and extended-precision arrays, rounded once.
#[derive(Clone, Copy, PartialEq)]
pub enum Float {
    /// Precision that all narrower outputs are rounded from.
    Single,
    Double,
}

impl Float {
    /// Target type of values that are then read as `T`.
    pub fn before<T: Element>() -> Self {
        if T::DTYPE == f64::DTYPE { Self::Double } else { Self::Single }
    }
}

impl<'py> ArrayView<'py> {
    /// View an array. An array that is strided, byte-swapped, unaligned or of an `unusual` float
    /// type is converted by NumPy first. Its first `leading` dimensions count the tokens; it has at
    /// least that many.
    ///
    /// # Errors
    /// `TypeError` for dtypes that are not numbers and for masked arrays.
    pub fn new(
        input: ArrayInput<'py>,
        leading: usize,
        unusual: Float,
        location: impl Fn() -> String,
    ) -> Result<Self> {
        let ArrayInput { array, tensor } = input;
        if is_masked(&array)? {
            return Err(Error::WrongType {
                location: location(),
                found: "a masked array".to_owned(),
                expected: "pass what its method filled returns",
            });
        }
        if let Some(numbers) = viewable(&array) {
            return Ok(Self::of_viewable(array, leading, numbers, tensor));
        }
        match native(&array, unusual)?.map(|copy| (viewable(&copy), copy)) {
            Some((Some(numbers), copy)) => Ok(Self::of_viewable(copy, leading, numbers, None)),
            _ => Err(Error::WrongType {
                location: location(),
                found: format!("an array of dtype {}", array.dtype()),
                expected: "pass integers, floats or booleans",
            }),
        }
    }

    /// View a tensor's tokens; `None` for tensors and other objects that NumPy has to look up.
    ///
    /// # Errors
    /// Those of the tensor.
    pub fn of_tensor(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let view = dlpack::look_up(object, |memory| {
            let numbers = numbers_in(&memory)?;
            let mut shape: Vec<_> = few(memory.shape.iter().map(|&len| len as usize));
            Some(Self {
                len: shape.iter().product(),
                tokens: shape.remove(0),
                trailing: shape,
                data: memory.data,
                numbers,
                source: Source::Tensor(object.clone()),
            })
        })?;
        // This call releases the interpreter, so it comes once, and not before each look-up.
        let is_negated = || object.call_method0(intern!(object.py(), "is_neg"))?.is_truthy();
        Ok(if view.is_some() && is_negated()? { None } else { view })
    }

    fn of_viewable(
        array: Bound<'py, PyUntypedArray>,
        leading: usize,
        numbers: Numbers,
        tensor: Option<Bound<'py, PyAny>>,
    ) -> Self {
        // Read once, so that everything derived from it is consistent.
        let shape = array.shape().to_vec();
        let (tokens, trailing) = shape.split_at(leading);
        Self {
            tokens: tokens.iter().product(),
            trailing: trailing.to_vec(),
            len: shape.iter().product(),
            data: data(&array),
            numbers,
            source: Source::Array { dtype: array.dtype(), array, tensor },
        }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Trailing dimensions of a token's values.
    pub fn trailing(&self) -> &[usize] {
        &self.trailing
    }

    /// True if the values are booleans.
    pub fn is_boolean(&self) -> bool {
        matches!(self.numbers, Numbers::Bool)
    }

    /// True if the values are floats.
    pub fn holds_floats(&self) -> bool {
        matches!(self.numbers, Numbers::F32 | Numbers::F64)
    }

    /// True if the memory is a tensor's, which another thread may safely move (`share_memory_`).
    pub fn is_tensor(&self) -> bool {
        matches!(self.source, Source::Tensor(_) | Source::Array { tensor: Some(_), .. })
    }

    /// All values, token by token; `None` if the array was moved, resized or given another dtype
    /// since. Use them before Python code can run again on this thread: looking up a tensor may run
    /// some, so of two rows it must be the first ([`ArrayView::is_tensor`]).
    ///
    /// # Errors
    /// Those of the tensor when its memory is looked up.
    pub fn values(&self) -> PyResult<Option<Slice<'_>>> {
        let len = self.len;
        let is_the_same = match &self.source {
            Source::Tensor(tensor) => dlpack::look_up(tensor, |memory| {
                let found = (numbers_in(&memory)?, memory.data);
                let count: i64 = memory.shape.iter().product();
                (found == (self.numbers, self.data) && count as usize == len).then_some(())
            })?
            .is_some(),
            Source::Array { array, dtype, tensor } => {
                let is_moved = match tensor {
                    Some(tensor) if len > 0 => tensor::data_ptr(tensor)? != self.data.addr(),
                    _ => false,
                };
                !is_moved
                    && data(array) == self.data
                    && array.len() == len
                    && array.is_c_contiguous()
                    && array.dtype().is(dtype)
            }
        };
        if !is_the_same {
            return Ok(None);
        }
        /// View the memory as values of one type.
        macro_rules! slice {
            ($variant:ident, $type:ty) => {
                if len == 0 {
                    Slice::$variant(&[])
                } else {
                    // SAFETY: the array or tensor is contiguous, and has the dtype and the address that
                    // `viewable` or `numbers_in` found to be aligned numbers of this type, of which
                    // every bit pattern is a value; `len` is how many it has. `self` keeps it alive.
                    // Other threads can resize it across `detach` only by force (`refcheck=False`),
                    // since it is referenced here.
                    Slice::$variant(unsafe {
                        slice::from_raw_parts(self.data.cast::<$type>(), len)
                    })
                }
            };
        }
        Ok(Some(match self.numbers {
            Numbers::Bool => slice!(Bool, u8),
            Numbers::I8 => slice!(I8, i8),
            Numbers::I16 => slice!(I16, i16),
            Numbers::I32 => slice!(I32, i32),
            Numbers::I64 => slice!(I64, i64),
            Numbers::U8 => slice!(U8, u8),
            Numbers::U16 => slice!(U16, u16),
            Numbers::U32 => slice!(U32, u32),
            Numbers::U64 => slice!(U64, u64),
            Numbers::F32 => slice!(F32, f32),
            Numbers::F64 => slice!(F64, f64),
        }))
    }
}

/// An array, and the tensor that it views, if any.
pub struct ArrayInput<'py> {
    pub array: Bound<'py, PyUntypedArray>,
    pub tensor: Option<Bound<'py, PyAny>>,
}

impl<'py> ArrayInput<'py> {
    /// An array without a tensor.
    pub fn of_array(array: Bound<'py, PyUntypedArray>) -> Self {
        Self { array, tensor: None }
    }
}

/// Address of an array's memory.
pub fn data(array: &Bound<PyUntypedArray>) -> *mut c_void {
    // SAFETY: `array` is a live ndarray, so its object can be read.
    unsafe { (*array.as_array_ptr()).fields.data.cast() }
}

/// The type of a contiguous, aligned array of native numbers; `None` for any other array.
fn viewable(array: &Bound<PyUntypedArray>) -> Option<Numbers> {
    let dtype = array.dtype();
    let size = dtype.itemsize();
    if !array.is_c_contiguous()
        || dtype.is_native_byteorder() == Some(false)
        || !data(array).addr().is_multiple_of(size.max(1))
    {
        return None;
    }
    numbers_of(dtype.kind(), size)
}

/// The type of a contiguous tensor of aligned numbers; `None` for any other.
fn numbers_in(memory: &Memory) -> Option<Numbers> {
    let (kind, size) = memory.numbers;
    let is_viewable = memory.is_contiguous() && memory.data.addr().is_multiple_of(size.max(1));
    numbers_of(kind, size).filter(|_| is_viewable)
}

/// The type of numbers of a kind and a size; `None` for those that are not read in location.
fn numbers_of(kind: u8, size: usize) -> Option<Numbers> {
    Some(match (kind, size) {
        (b'b', 1) => Numbers::Bool,
        (b'i', 1) => Numbers::I8,
        (b'i', 2) => Numbers::I16,
        (b'i', 4) => Numbers::I32,
        (b'i', 8) => Numbers::I64,
        (b'u', 1) => Numbers::U8,
        (b'u', 2) => Numbers::U16,
        (b'u', 4) => Numbers::U32,
        (b'u', 8) => Numbers::U64,
        (b'f', 4) => Numbers::F32,
        (b'f', 8) => Numbers::F64,
        _ => return None,
    })
}

fn is_masked(array: &Bound<PyUntypedArray>) -> PyResult<bool> {
    static MASKED: OnceLock<Py<PyType>> = OnceLock::new();
    let py = array.py();
    if array.get_type().is(ndarray(py)?) {
        return Ok(false);
    }
    array.is_instance(imported(&MASKED, py, "numpy.ma", "MaskedArray")?)
}

fn ndarray(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static NDARRAY: OnceLock<Py<PyType>> = OnceLock::new();
    imported(&NDARRAY, py, "numpy", "ndarray")
}

/// Convert an array to a contiguous one of native numbers in NumPy; `None` if it has no numbers.
fn native<'py>(
    array: &Bound<'py, PyUntypedArray>,
    unusual: Float,
) -> Result<Option<Bound<'py, PyUntypedArray>>> {
    let py = array.py();
    let dtype = array.dtype();
    let target = match (dtype.kind(), dtype.itemsize()) {
        (b'b', _) | (b'i' | b'u', 1 | 2 | 4 | 8) | (b'f', 4 | 8) => {
            dtype.call_method1(intern!(py, "newbyteorder"), ("=",))?
        }
        (b'f', _) if unusual == Float::Double => PyArrayDescr::of::<f64>(py).into_any(),
        (b'f', _) => PyArrayDescr::of::<f32>(py).into_any(),
        _ => return Ok(None),
    };
    // Values beyond float32 become infinity, as everywhere here; NumPy would warn.
    let ignore = [("over", "ignore")].into_py_dict(py)?;
    let quiet = py.import(intern!(py, "numpy"))?.call_method("errstate", (), Some(&ignore))?;
    quiet.call_method0(intern!(py, "__enter__"))?;
    // Method of ndarray itself: a subclass may override it.
    let options = [("order", "C")].into_py_dict(py)?;
    options.set_item("subok", false)?;
    let astype = ndarray(py)?.getattr(intern!(py, "astype"))?;
    let copy = astype.call((array, target), Some(&options));
    quiet.call_method1(intern!(py, "__exit__"), (py.None(), py.None(), py.None()))?;
    Ok(Some(copy?.cast_into().map_err(PyErr::from)?))
}
