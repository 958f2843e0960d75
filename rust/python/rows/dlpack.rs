//! Tensors, looked up by DLPack's interface in C: a quarter of the instructions of NumPy's views.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::{ptr, slice};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyType};

use super::tensor::exact_type;

/// The memory of a tensor.
pub struct Memory<'a> {
    pub data: *mut c_void,
    /// Kind and size of its numbers, as of NumPy's dtypes.
    pub numbers: (u8, usize),
    pub shape: &'a [i64],
    strides: &'a [i64],
}

impl Memory<'_> {
    /// True if the numbers are adjacent, in the order of their indices.
    pub fn is_contiguous(&self) -> bool {
        let mut adjacent = 1;
        let mut dimensions = self.shape.iter().zip(self.strides).rev();
        self.shape.contains(&0)
            || dimensions.all(|(&len, &stride)| {
                let is_adjacent = len == 1 || stride == adjacent;
                adjacent *= len;
                is_adjacent
            })
    }
}

/// DLPack's `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

impl DlTensor {
    const EMPTY: Self = Self {
        data: ptr::null_mut(),
        device_type: 0,
        device_id: 0,
        ndim: 0,
        code: 0,
        bits: 0,
        lanes: 0,
        shape: ptr::null(),
        strides: ptr::null(),
        byte_offset: 0,
    };
}

/// The start of DLPack's `DLPackExchangeAPI`.
#[repr(C)]
struct Interface {
    major: u32,
    _minor: u32,
    _previous: *const c_void,
    _managed: [*const c_void; 3],
    describe: Option<Describe>,
}

/// Describe a tensor without owning it; an exception is set unless 0 is returned.
type Describe = unsafe extern "C" fn(*mut ffi::PyObject, *mut DlTensor) -> c_int;

/// Major version of the structs.
const VERSION: u32 = 1;

/// `kDLCPU`.
const CPU: i32 = 1;

/// Look up a tensor's memory, which is valid until other code runs; `None` for other objects, older
/// torch, and tensors that NumPy has to look up. Of a tensor that is stored negated, it has numbers
/// of the other sign.
///
/// # Errors
/// Those of torch's method.
pub fn look_up<R>(
    object: &Bound<PyAny>,
    read: impl FnOnce(Memory) -> Option<R>,
) -> PyResult<Option<R>> {
    let Some(describe) = exact_type(object)?.and_then(interface) else {
        return Ok(None);
    };
    let mut found = DlTensor::EMPTY;
    // SAFETY: the function is that of the object's own type, and fills the struct or fails.
    if unsafe { describe(object.as_ptr(), &raw mut found) } != 0 {
        drop(PyErr::take(object.py())); // of a sparse one: the call of `numpy` raises it again
        return Ok(None);
    }
    let kind = match found.code {
        0 => b'i',
        1 => b'u',
        2 => b'f',
        6 => b'b',
        _ => return Ok(None),
    };
    let is_plain = found.device_type == CPU && found.lanes == 1 && found.byte_offset == 0;
    let Ok(dimensions @ 1..) = usize::try_from(found.ndim) else {
        return Ok(None);
    };
    if !is_plain || found.shape.is_null() || found.strides.is_null() {
        return Ok(None);
    }
    // SAFETY: they have a number for each dimension, and are the tensor's own, which no code changes
    // before `read` returns.
    let [shape, strides] = [found.shape, found.strides]
        .map(|numbers| unsafe { slice::from_raw_parts(numbers, dimensions) });
    if found.data.is_null() && !shape.contains(&0) {
        return Ok(None); // zeros that are not stored
    }
    let numbers = (kind, usize::from(found.bits / 8));
    Ok(read(Memory { data: found.data, numbers, shape, strides }))
}

/// The function that describes tensors; `None` if torch lacks it.
fn interface(tensor: &Bound<PyType>) -> Option<Describe> {
    static DESCRIBE: OnceLock<Option<Describe>> = OnceLock::new();
    if let Some(found) = DESCRIBE.get() {
        return *found;
    }
    let found = find(tensor); // runs Python code, so not under the cell's lock
    *DESCRIBE.get_or_init(|| found)
}

fn find(tensor: &Bound<PyType>) -> Option<Describe> {
    let capsule = tensor.getattr("__dlpack_c_exchange_api__").ok()?;
    let capsule = capsule.cast::<PyCapsule>().ok()?;
    let interface = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?;
    // SAFETY: a capsule of this name holds such a struct, which is never freed.
    let interface = unsafe { interface.cast::<Interface>().as_ref() };
    interface.describe.filter(|_| interface.major == VERSION)
}
