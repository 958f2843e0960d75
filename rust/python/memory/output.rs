//! Outputs as NumPy views that keep a batch's memory alive.

use std::ptr::with_exposed_provenance_mut;
use std::sync::OnceLock;

use fastcollate::batch::{Array, CACHE_LINE, Planned, Value};
use fastcollate::{Dtype, f16, gathered};
use numpy::prelude::*;
use numpy::{PyArray1, PyArrayDescr};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::error::Error;
use crate::memory::numpy_view;
use crate::memory::slab::{Slab, bytes_at};
use crate::plan::tables::array_of;
use crate::rows::{imported, intern};

/// All outputs by key, None for those kept by the caller; `view` makes arrays of the written
/// memory, which become tensors of `torch`, if that is given. Arrays of bins are one array with
/// their lengths.
pub fn handed_over<'py>(
    py: Python<'py>,
    planned: &Planned,
    torch: Option<&Bound<'py, PyAny>>,
    view: impl Fn(Dtype, &Array) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    static PARTS: OnceLock<Py<PyType>> = OnceLock::new();
    let tensor = tensors_of(torch)?;
    let outputs = PyDict::new(py);
    for output in &planned.outputs {
        let value = match &output.value {
            Value::Array(array) => {
                let dtype = array.dtype();
                tensor(dtype, view(dtype, array)?)?
            }
            Value::Length(length) => length.into_bound_py_any(py)?,
            Value::ByRow(rows) => {
                let whole = array_of(py, rows.iter().flatten().copied())?;
                let counts = gathered(rows.iter().map(Vec::len)).map_err(Error::from)?;
                let parts = imported(&PARTS, py, "fastcollate.ops.parts", "Parts")?;
                parts.call1((tensor(Dtype::I32, whole.into_any())?, counts))?
            }
            Value::Given => py.None().into_bound(py),
        };
        outputs.set_item(&output.output.key, value)?;
    }
    Ok(outputs)
}

/// A function that makes a tensor of an array with numbers of a dtype; without torch, it returns the
/// array.
pub fn tensors_of<'a, 'py>(
    torch: Option<&'a Bound<'py, PyAny>>,
) -> PyResult<impl Fn(Dtype, Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> + 'a> {
    let maker = |torch: &'a Bound<'py, PyAny>| {
        let from_numpy = torch.getattr(intern!(torch.py(), "from_numpy"))?;
        Ok::<_, PyErr>((torch, from_numpy))
    };
    let torch = torch.map(maker).transpose()?;
    Ok(move |dtype, array| {
        let Some((torch, from_numpy)) = &torch else {
            return Ok(array);
        };
        let tensor = from_numpy.call1((array,))?;
        match dtype {
            // NumPy has no bfloat16: the array is int16.
            Dtype::Bf16 => tensor.call_method1("view", (torch.getattr("bfloat16")?,)),
            _ => Ok(tensor),
        }
    })
}

/// An array as a NumPy view of the array that holds the bytes of a batch.
pub fn view_of_bytes<'py>(
    bytes: &Bound<'py, PyArray1<u8>>,
    dtype: Dtype,
    array: &Array,
) -> PyResult<Bound<'py, PyAny>> {
    let name = match dtype {
        Dtype::Bf16 => Dtype::I16.name(),
        dtype => dtype.name(),
    };
    let view = bytes_at(bytes, array.bytes.clone())?.call_method1("view", (name,))?;
    view.call_method1("reshape", (PyTuple::new(bytes.py(), &array.shape)?,))
}

/// The slab of a written batch, as the base of its NumPy arrays. Rust no longer touches the bytes.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Owner {
    _slab: Slab,
    /// Address of the first aligned byte.
    start: usize,
    num_bytes: usize,
}

impl Owner {
    /// The owner of a slab, of which `num_bytes` belong to the batch.
    pub fn new(mut slab: Slab, num_bytes: usize) -> Self {
        Self { start: slab.bytes_mut().as_mut_ptr().expose_provenance(), _slab: slab, num_bytes }
    }

    /// A NumPy view that keeps the slab alive.
    pub fn view<'py>(
        owner: &Bound<'py, Self>,
        dtype: Dtype,
        array: &Array,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = owner.py();
        let dtype = match dtype {
            Dtype::Bool => numpy::dtype::<bool>(py),
            Dtype::U8 => numpy::dtype::<u8>(py),
            Dtype::I32 => numpy::dtype::<i32>(py),
            Dtype::I64 => numpy::dtype::<i64>(py),
            Dtype::F16 => numpy::dtype::<f16>(py),
            // NumPy has no bfloat16: it is returned as the int16 of its bits.
            Dtype::I16 | Dtype::Bf16 => numpy::dtype::<i16>(py),
            Dtype::F32 => numpy::dtype::<f32>(py),
            Dtype::F64 => numpy::dtype::<f64>(py),
        };
        view(owner, array.bytes.start, dtype, &array.shape)
    }
}

#[pymethods]
impl Owner {
    /// All outputs, and the gaps between them, as one NumPy array of bytes that keeps the slab
    /// alive, for copying at once.
    fn bytes<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = numpy::dtype::<u8>(slf.py());
        view(slf, 0, dtype, &[slf.get().num_bytes])
    }
}

/// A NumPy array of this shape over the owner's bytes from `from` on, where values of this dtype
/// were written.
fn view<'py>(
    owner: &Bound<'py, Owner>,
    from: usize,
    dtype: Bound<'py, PyArrayDescr>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let memory = owner.get();
    let bytes = shape.iter().product::<usize>() * dtype.itemsize();
    assert!(from.is_multiple_of(CACHE_LINE) && from + bytes <= memory.num_bytes);
    // SAFETY: the slab was taken for this many bytes, aligned from `start` on and all initialised
    // (slabs are, and every bit pattern is a value; booleans were written as 0 and 1). Only Python
    // accesses them. The array holds `owner`, and with it the slab, which never moves its memory
    // and returns it only when dropped. Arrays may overlap, like NumPy's own views.
    let view = unsafe {
        let data = with_exposed_provenance_mut::<u8>(memory.start).add(from);
        numpy_view::view(owner.clone().into_any(), dtype, shape, data.cast(), true)
    };
    Ok(view?.into_any())
}
