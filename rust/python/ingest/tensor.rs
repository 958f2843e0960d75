//! torch tensors, seen through their NumPy view.

use numpy::PyUntypedArray;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Whether an object is a torch tensor. Where torch was not imported, none is.
pub fn is_tensor(object: &Bound<PyAny>) -> PyResult<bool> {
    static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = object.py();
    if TENSOR.get(py).is_none() {
        let modules = py
            .import(intern!(py, "sys"))?
            .getattr(intern!(py, "modules"))?;
        if !modules.contains(intern!(py, "torch"))? {
            return Ok(false);
        }
    }
    object.is_instance(TENSOR.import(py, "torch", "Tensor")?)
}

/// A CPU tensor as an array: a view, but for types that NumPy lacks (bfloat16), which become
/// float32 without loss.
///
/// # Errors
/// What torch raises, for instance for a tensor on another device: it says what to call.
pub fn as_array<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = tensor.py();
    let detached = tensor
        .call_method0(intern!(py, "detach"))?
        .call_method0(intern!(py, "resolve_neg"))?;
    let array = match detached.call_method0(intern!(py, "numpy")) {
        Ok(array) => array,
        // Of what torch refuses here, `float()` mends the dtype, and raises again for the rest.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => detached
            .call_method0(intern!(py, "float"))?
            .call_method0(intern!(py, "numpy"))?,
        Err(error) => return Err(error),
    };
    Ok(array.cast_into()?)
}
