//! The structs of Arrow's C interface, each released by its owner.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::{mem, ptr};

use fastcollate::few;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Schema flag for arrays that may have nulls.
const NULLABLE: i64 = 2;

/// `struct ArrowSchema`.
#[repr(C)]
pub struct ArrowSchema {
    pub format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    pub flags: i64,
    pub n_children: i64,
    pub children: *const *const Self,
    pub dictionary: *const Self,
    pub release: Option<unsafe extern "C" fn(*mut Self)>,
    private_data: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
pub struct ArrowArray {
    pub length: i64,
    pub null_count: i64,
    pub offset: i64,
    pub n_buffers: i64,
    pub n_children: i64,
    pub buffers: *const *const c_void,
    pub children: *const *const Self,
    pub dictionary: *const Self,
    pub release: Option<unsafe extern "C" fn(*mut Self)>,
    private_data: *mut c_void,
}

/// `struct ArrowArrayStream`.
#[repr(C)]
pub struct ArrowArrayStream {
    pub get_schema: Option<unsafe extern "C" fn(*mut Self, *mut ArrowSchema) -> c_int>,
    pub get_next: Option<unsafe extern "C" fn(*mut Self, *mut ArrowArray) -> c_int>,
    pub get_last_error: Option<unsafe extern "C" fn(*mut Self) -> *const c_char>,
    pub release: Option<unsafe extern "C" fn(*mut Self)>,
    private_data: *mut c_void,
}

/// A struct of the interface, which its owner releases.
pub trait Struct: Send + Sized + 'static {
    /// Name of its capsules.
    const NAME: &CStr;

    /// A released struct, to be overwritten.
    fn released() -> Self;
}

macro_rules! structs {
    ($($kind:ident $name:literal)*) => {
        $(
            impl Struct for $kind {
                const NAME: &CStr = $name;

                fn released() -> Self {
                    // SAFETY: zeros are null pointers, missing functions and the number 0.
                    unsafe { mem::zeroed() }
                }
            }

            impl Drop for $kind {
                fn drop(&mut self) {
                    if let Some(release) = self.release {
                        // SAFETY: the struct has one owner, and was not released.
                        unsafe { release(self) }
                    }
                }
            }

            // SAFETY: the interface lets any thread read, call or release a struct, one at a time.
            unsafe impl Send for $kind {}
        )*
    };
}

structs! {
    ArrowSchema c"arrow_schema"
    ArrowArray c"arrow_array"
    ArrowArrayStream c"arrow_array_stream"
}

// SAFETY: a shared array is only read, until its last owner releases it.
unsafe impl Sync for ArrowArray {}

/// A struct of this library in a capsule.
pub fn capsule<T: Struct>(py: Python, made: T) -> PyResult<Bound<PyCapsule>> {
    PyCapsule::new_with_value(py, made, T::NAME)
}

/// Take a capsule's struct and leave a released one, so that it has one owner.
///
/// # Errors
/// As `pointer_in`.
pub fn taken<T: Struct>(capsule: &Bound<PyCapsule>) -> PyResult<T> {
    let held = pointer_in(capsule)?;
    // SAFETY: a capsule of this name holds such a struct.
    Ok(unsafe { ptr::replace(held, T::released()) })
}

/// The address of a capsule's struct.
///
/// # Errors
/// `ValueError` for a capsule of another name, `TypeError` for a struct that is not aligned.
pub fn pointer_in<T: Struct>(capsule: &Bound<PyCapsule>) -> PyResult<*mut T> {
    let pointer = capsule.pointer_checked(Some(T::NAME))?.cast::<T>();
    if pointer.is_aligned() {
        Ok(pointer.as_ptr())
    } else {
        Err(PyTypeError::new_err("a capsule holds no aligned struct"))
    }
}

// Exported structs

/// Memory of an array, and its owner.
pub struct Buffer {
    data: *const c_void,
    owner: Box<dyn Any + Send>,
}

impl Buffer {
    /// # Safety
    /// The owner keeps the memory in place.
    pub unsafe fn new(data: *const c_void, owner: impl Any + Send) -> Self {
        let owner = Box::new(owner);
        Self { data, owner }
    }

    pub fn of_vec<T: Send + 'static>(items: Vec<T>) -> Self {
        // SAFETY: a vector's items stay where they are when it is moved.
        unsafe { Self::new(items.as_ptr().cast(), items) }
    }
}

/// Data of an exported struct, kept until it is released.
struct Kept<T> {
    children: Vec<*mut T>,
    buffers: Vec<*const c_void>,
    _owners: Vec<Box<dyn Any + Send>>,
}

impl<T> Kept<T> {
    fn new(children: Vec<T>) -> Box<Self> {
        let children = children.into_iter();
        Box::new(Self {
            children: few(children.map(|child| Box::into_raw(Box::new(child)))),
            buffers: Vec::new(),
            _owners: Vec::new(),
        })
    }

    fn keep(&mut self, buffer: Buffer) {
        self.buffers.push(buffer.data);
        self._owners.push(buffer.owner);
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        for &child in &self.children {
            // SAFETY: `new` made the pointer. A struct taken from it left a released one.
            drop(unsafe { Box::from_raw(child) });
        }
    }
}

macro_rules! made {
    ($($kind:ident)*) => {
        $(
            impl $kind {
                /// Attach the data; everything in it stays alive until the release.
                fn keeping(mut self, kept: Box<Kept<Self>>) -> Self {
                    unsafe extern "C" fn release(made: *mut $kind) {
                        // SAFETY: the caller passes a struct made by `keeping`.
                        let made = unsafe { &mut *made };
                        made.release = None;
                        // SAFETY: `keeping` made the pointer, and it is released once.
                        drop(unsafe { Box::from_raw(made.private_data.cast::<Kept<$kind>>()) });
                    }
                    self.n_children = kept.children.len() as i64;
                    self.children = kept.children.as_ptr().cast();
                    self.private_data = Box::into_raw(kept).cast();
                    self.release = Some(release);
                    self
                }
            }
        )*
    };
}

made! { ArrowSchema ArrowArray }

impl ArrowSchema {
    /// A schema of this format. Children may have nulls, which is the default of Arrow's libraries.
    pub fn new(format: &str, mut children: Vec<Self>) -> Self {
        for child in &mut children {
            child.name = c"item".as_ptr();
            child.flags = NULLABLE;
        }
        let mut kept = Kept::new(children);
        kept.keep(Buffer::of_vec([format.as_bytes(), &[0]].concat()));
        let format = kept.buffers[0].cast();
        Self { format, ..Self::released() }.keeping(kept)
    }

    pub fn is_nullable(&self) -> bool {
        self.flags & NULLABLE != 0
    }
}

impl ArrowArray {
    /// An array without nulls.
    ///
    /// # Safety
    /// The buffers and children fit an array of this length.
    pub unsafe fn new(length: usize, buffers: Vec<Buffer>, children: Vec<Self>) -> Self {
        let mut kept = Kept::new(children);
        kept.buffers.push(ptr::null()); // null bitmap
        buffers.into_iter().for_each(|buffer| kept.keep(buffer));
        Self {
            length: length as i64,
            n_buffers: kept.buffers.len() as i64,
            buffers: kept.buffers.as_ptr(),
            ..Self::released()
        }
        .keeping(kept)
    }
}
