//! Handover: the memory of batches, and NumPy views of it.

#[allow(unsafe_code, reason = "makes arrays of NumPy's")]
pub mod numpy_view;
#[allow(unsafe_code, reason = "lends the slab's memory to NumPy")]
pub mod output;
pub mod pool;
pub mod slab;
