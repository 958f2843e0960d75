//! torch tensors, read through their NumPy view; rows that `dlpack` can look up are not.

use std::sync::OnceLock;

use fastcollate::try_gathered;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use super::array::ArrayInput;
use super::object::to_list;
use super::{dlpack, kept};
use crate::error::{Error, Result};

/// True for a torch tensor; false if torch was not imported.
pub fn is_tensor(object: &Bound<PyAny>) -> PyResult<bool> {
    class(object.py())?.map_or(Ok(false), |tensor| object.is_instance(tensor))
}

/// The class of an object that is a tensor of torch's own class, and of no subclass.
pub fn exact_type<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<&'py Bound<'py, PyType>>> {
    let tensor = class(object.py())?;
    Ok(tensor.filter(|&tensor| object.get_type().is(tensor)))
}

/// The class of tensors; `None` if torch was not imported.
fn class(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyType>>> {
    static TENSOR: OnceLock<Py<PyType>> = OnceLock::new();
    static MODULES: OnceLock<Py<PyDict>> = OnceLock::new();
    if let Some(found) = TENSOR.get() {
        return Ok(Some(found.bind(py)));
    }
    let modules = kept(&MODULES, py, || Ok(py.import("sys")?.getattr("modules")?.cast_into()?))?;
    let torch = modules.get_item(intern!(py, "torch"))?;
    // The module lacks the class while another thread is importing it.
    let tensor = torch.map(|torch| torch.getattr_opt(intern!(py, "Tensor"))).transpose()?.flatten();
    tensor.map(|tensor| kept(&TENSOR, py, || Ok(tensor.cast_into()?))).transpose()
}

/// Number of a tensor's dimensions; `None` for any other object.
pub fn dimensions(object: &Bound<PyAny>) -> PyResult<Option<usize>> {
    if !is_tensor(object)? {
        return Ok(None);
    }
    let dimensions = object.call_method0(intern!(object.py(), "dim"))?;
    dimensions.extract().map(Some)
}

/// True for a nested tensor, which is a list of tensors.
pub fn is_nested(object: &Bound<PyAny>) -> PyResult<bool> {
    let py = object.py();
    Ok(is_tensor(object)? && object.getattr(intern!(py, "is_nested"))?.is_truthy()?)
}

/// The rows of a nested tensor; `None` for any other object.
pub fn unbound<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
    if !is_nested(object)? {
        return Ok(None);
    }
    let rows = object.call_method0("unbind")?.try_iter()?;
    let rows = try_gathered::<_, Error>(rows.map(|row| Ok(row?)))?;
    PyList::new(object.py(), rows).map(Some)
}

/// True for a tensor on another device.
pub fn is_on_device(object: &Bound<PyAny>) -> PyResult<bool> {
    Ok(is_tensor(object)? && !object.getattr(intern!(object.py(), "is_cpu"))?.is_truthy()?)
}

/// True if rows are tensors of which torch has to write some: with gradients, or on a device.
///
/// # Errors
/// Those of the tensors.
#[pyfunction]
pub fn are_computed(rows: &Bound<PyAny>) -> Result<bool> {
    let mut is_on_device = false;
    for row in to_list(rows)? {
        if !is_tensor(&row)? {
            return Ok(false);
        }
        // Integers have no gradients: no call of torch's methods for those in this memory.
        let is_plain = dlpack::look_up(&row, |memory| (memory.numbers.0 != b'f').then_some(()))?;
        if is_plain.is_some() {
            continue;
        }
        if row.getattr(intern!(row.py(), "requires_grad"))?.is_truthy()? {
            return Ok(true);
        }
        is_on_device |= self::is_on_device(&row)?;
    }
    Ok(is_on_device)
}

/// A tensor as an array: a view, except for types that NumPy lacks (bfloat16), which become float32
/// without loss, and for tensors on other devices.
///
/// # Errors
/// Exceptions of torch, for instance for a sparse tensor.
pub fn as_array<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<ArrayInput<'py>> {
    let (py, mut tensor) = (tensor.py(), tensor.clone());
    let numpy = intern!(py, "numpy");
    let mut array = tensor.call_method0(numpy);
    if array.is_err() && is_nested(&tensor)? {
        // torch's own message would report an internal error.
        return Err(PyTypeError::new_err(
            "it is a nested tensor whose rows are not adjacent in memory; \
             pass fastcollate.ragged(...) of it",
        ));
    }
    if array.is_err() && is_on_device(&tensor)? {
        let copy = tensor.call_method0(intern!(py, "cpu"))?;
        return Ok(ArrayInput::of_array(as_array(&copy)?.array));
    }
    if array.as_ref().is_err_and(|error| error.is_instance_of::<PyRuntimeError>(py)) {
        // It has gradients, or stores its values negated.
        tensor = tensor.call_method0("detach")?.call_method0("resolve_neg")?;
        array = tensor.call_method0(numpy);
    }
    let array = match array {
        Err(error)
            if error.is_instance_of::<PyTypeError>(py)
                && tensor.call_method0("is_floating_point")?.is_truthy()? =>
        {
            // This helps if NumPy lacks the dtype; otherwise it raises again.
            tensor = tensor.call_method0(intern!(py, "float"))?;
            tensor.call_method0(numpy)?
        }
        result => result?,
    };
    Ok(ArrayInput { array: array.cast_into()?, tensor: Some(tensor) })
}

/// Tensors of one device and dtype, concatenated in one array with one copy from the device.
///
/// # Errors
/// Exceptions of torch.
pub fn concatenated<'py>(tensors: &[Bound<'py, PyAny>]) -> PyResult<ArrayInput<'py>> {
    let py = tensors[0].py();
    let torch = py.import(intern!(py, "torch"))?;
    let tensors = PyList::new(py, tensors)?;
    as_array(&torch.call_method1(intern!(py, "cat"), (tensors,))?)
}

/// Tensors of one device and shape, stacked along a new first dimension.
///
/// # Errors
/// Exceptions of torch.
pub fn stacked<'py>(tensors: &Bound<'py, PyTuple>) -> PyResult<ArrayInput<'py>> {
    let torch = tensors.py().import(intern!(tensors.py(), "torch"))?;
    as_array(&torch.call_method1(intern!(tensors.py(), "stack"), (tensors,))?)
}

/// Current address of a tensor's first value.
pub fn data_ptr(tensor: &Bound<PyAny>) -> PyResult<usize> {
    let py = tensor.py();
    tensor.call_method0(intern!(py, "data_ptr"))?.extract()
}
