//! Arrow's C interface: arrays are imported and exported as structs in capsules, sharing memory.
//!
//! Only lists of numbers are read and written; Arrow's own library with its dependencies would be
//! more than half of the compiled code.

#[allow(unsafe_code, reason = "lends NumPy's memory to Arrow")]
mod export;
#[allow(unsafe_code, reason = "reads the structs of Arrow's C interface")]
mod import;
#[allow(unsafe_code, reason = "owns the structs of Arrow's C interface")]
mod structs;
mod types;

pub use export::arrow_lists;
pub use import::{Array, Source};
pub use structs::ArrowArray;
pub use types::{DataType, Form, Number};
