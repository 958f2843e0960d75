//! Arrow's C interface: arrays come in and go out as structs in capsules, over the same memory.
//!
//! Of Arrow's types only lists of numbers are read and made, so its own library, with everything that
//! it needs, would be more than half of what is compiled.

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
