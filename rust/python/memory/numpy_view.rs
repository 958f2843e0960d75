//! NumPy arrays over memory owned by another object.

use std::ffi::c_void;
use std::ptr;

use fastcollate::few;
use numpy::npyffi::{self, NpyTypes, PY_ARRAY_API, PyArrayObject, npy_intp};
use numpy::prelude::*;
use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::prelude::*;

/// An array of this dtype and shape over memory owned by `base`, read-only by default.
///
/// Not generic in the dtype: `PyArray::borrow_from_array` compiles to 1 KB per dtype.
///
/// # Errors
/// `ValueError` for more dimensions or bytes than NumPy supports.
///
/// # Safety
/// `data` points to all values of the array, each valid for its dtype, and `base` keeps them in
/// place as long as it lives. Other users of the memory tolerate changes if the array is writeable,
/// and do not write if it is not.
pub unsafe fn view<'py>(
    base: Bound<'py, PyAny>,
    dtype: Bound<'py, PyArrayDescr>,
    shape: &[usize],
    data: *mut c_void,
    is_writeable: bool,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = base.py();
    let flags = if is_writeable { npyffi::NPY_ARRAY_WRITEABLE } else { 0 };
    let sizes = shape.iter().map(|&size| npy_intp::try_from(size));
    let mut sizes = few::<_, Result<Vec<_>, _>>(sizes)?;
    // SAFETY: the caller guarantees the memory. NumPy takes the dtype and the base, and returns a
    // new reference or null.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            dtype.into_dtype_ptr(),
            sizes.len().try_into()?,
            sizes.as_mut_ptr(),
            ptr::null_mut(),
            data,
            flags,
            ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        let place = array.as_ptr().cast::<PyArrayObject>();
        if PY_ARRAY_API.PyArray_SetBaseObject(py, place, base.into_ptr()) < 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array.cast_into_unchecked())
    }
}
