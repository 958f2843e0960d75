//! Outputs: where they lie in a batch's slab, and NumPy views that keep it alive.

use std::ops::Range;
use std::ptr::with_exposed_provenance_mut;

use fastcollate::{Dtype, f16};
use numpy::ndarray::ArrayViewD;
use numpy::{PyArray1, PyArrayDyn};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::memory::{ALIGNMENT, Slab, bytes_at};

/// An output handed over: its key and the NumPy array.
pub type NamedArray<'py> = (Bound<'py, PyString>, Bound<'py, PyAny>);

/// One output: its key, and where it lies in the slab.
#[derive(Debug)]
struct Output {
    key: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// The outputs of a batch, laid out one behind the other.
#[derive(Debug, Default)]
pub struct Outputs {
    all: Vec<Output>,
    end: usize,
}

impl Outputs {
    /// Add an output of `shape`.
    ///
    /// # Errors
    /// `MemoryError` when the slab would be larger than memory can be addressed.
    pub fn push(&mut self, key: &str, dtype: Dtype, shape: Vec<usize>) -> PyResult<()> {
        let begin = self.end;
        let end = shape
            .iter()
            .try_fold(dtype.size(), |bytes, &len| bytes.checked_mul(len))
            .and_then(|bytes| bytes.checked_add(begin))
            .filter(|&end| end <= isize::MAX.unsigned_abs() - 2 * ALIGNMENT)
            .ok_or_else(|| PyMemoryError::new_err("the batch is larger than any memory"))?;
        self.end = end.next_multiple_of(ALIGNMENT);
        self.all.push(Output {
            key: key.to_owned(),
            dtype,
            shape,
            bytes: begin..end,
        });
        Ok(())
    }

    /// Part a slab's bytes into those of each output, in order.
    pub fn split<'a>(&self, bytes: &'a mut [u8]) -> Vec<&'a mut [u8]> {
        let mut rest = bytes;
        let mut at = 0;
        let mut regions = Vec::with_capacity(self.all.len());
        for output in &self.all {
            let (_, tail) = rest.split_at_mut(output.bytes.start - at);
            let (region, tail) = tail.split_at_mut(output.bytes.len());
            regions.push(region);
            rest = tail;
            at = output.bytes.end;
        }
        regions
    }

    /// Bytes of the slab that holds them all.
    pub fn total_bytes(&self) -> usize {
        self.end
    }

    /// Every output as a NumPy view of an array that holds their bytes.
    pub fn views_of<'py>(
        &self,
        bytes: &Bound<'py, PyArray1<u8>>,
    ) -> PyResult<Vec<NamedArray<'py>>> {
        let py = bytes.py();
        let view = |output: &Output| {
            let dtype = match output.dtype {
                Dtype::Bf16 => Dtype::I16.name(),
                dtype => dtype.name(),
            };
            let array = bytes_at(bytes, output.bytes.clone())?.call_method1("view", (dtype,))?;
            let array = array.call_method1("reshape", (PyTuple::new(py, &output.shape)?,))?;
            Ok((PyString::new(py, &output.key), array))
        };
        self.all.iter().map(view).collect()
    }
}

/// A batch's slab, whose outputs are written, as the base of its NumPy arrays: it keeps the memory.
/// Rust does not touch the bytes any more: they are Python's.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Owner {
    _slab: Slab,
    /// Address of its first aligned byte.
    start: usize,
    outputs: Outputs,
}

impl Owner {
    pub fn new(mut slab: Slab, outputs: Outputs) -> Self {
        Self {
            start: slab.bytes_mut().as_mut_ptr().expose_provenance(),
            _slab: slab,
            outputs,
        }
    }

    /// Every output as a NumPy array that keeps the slab alive.
    pub fn arrays<'py>(owner: &Bound<'py, Self>) -> Vec<NamedArray<'py>> {
        let py = owner.py();
        let array = |output: &Output| {
            let (from, shape) = (output.bytes.start, &output.shape[..]);
            let array = match output.dtype {
                Dtype::Bool => view::<bool>(owner, from, shape),
                Dtype::U8 => view::<u8>(owner, from, shape),
                Dtype::I32 => view::<i32>(owner, from, shape),
                Dtype::I64 => view::<i64>(owner, from, shape),
                Dtype::F16 => view::<f16>(owner, from, shape),
                Dtype::I16 | Dtype::Bf16 => view::<i16>(owner, from, shape),
                Dtype::F32 => view::<f32>(owner, from, shape),
                Dtype::F64 => view::<f64>(owner, from, shape),
            };
            (PyString::new(py, &output.key), array)
        };
        owner.get().outputs.all.iter().map(array).collect()
    }
}

#[pymethods]
impl Owner {
    /// All outputs, and what lies between them, as one NumPy array of bytes that keeps the slab alive:
    /// they can be copied at once.
    fn bytes<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyAny> {
        view::<u8>(slf, 0, &[slf.get().outputs.total_bytes()])
    }
}

/// A NumPy array of that shape over the bytes that its owner has from `from` on, where values of
/// this type were written.
fn view<'py, T: numpy::Element>(
    owner: &Bound<'py, Owner>,
    from: usize,
    shape: &[usize],
) -> Bound<'py, PyAny> {
    let memory = owner.get();
    let bytes = shape.iter().product::<usize>() * size_of::<T>();
    assert!(from.is_multiple_of(ALIGNMENT) && from + bytes <= memory.outputs.total_bytes());
    // SAFETY: the slab was taken for this many bytes, aligned from `start` on and all initialised
    // (slabs are, and every bit pattern is a value; booleans were written as 0 and 1). Only Python
    // reaches them. The array holds `owner`, and with it the slab, which never moves its memory and
    // gives it away only when it is dropped. Arrays overlap as NumPy's own views may.
    unsafe {
        let data = with_exposed_provenance_mut::<u8>(memory.start).add(from);
        let items = ArrayViewD::<T>::from_shape_ptr(shape, data.cast());
        PyArrayDyn::borrow_from_array(&items, owner.clone().into_any()).into_any()
    }
}
