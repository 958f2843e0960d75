//! Ingest: any accepted input becomes rows that can be read. What can be viewed is not copied.

#[allow(unsafe_code, reason = "views NumPy's memory")]
mod array;
#[allow(unsafe_code, reason = "lends Arrow's memory to NumPy")]
mod arrow;
#[allow(unsafe_code, reason = "reads items of lists without owning them")]
mod list;
mod number;
mod object;
mod ragged;
mod reader;
mod rows;
mod tensor;

pub use arrow::arrow_chunks;
pub use list::{DecodeExact, Stretch, check_digits, same_until};
pub use ragged::Stretches;
pub use rows::Rows;

use pyo3::prelude::*;

/// How an error message calls an object: `1.5 (float)`, abbreviated where it prints long.
pub fn describe(object: &Bound<PyAny>) -> String {
    let kind = object.get_type().name().map(|name| name.to_string());
    let kind = kind.unwrap_or_else(|_| "object".to_owned());
    let repr = object
        .py()
        .import("reprlib")
        .and_then(|reprlib| reprlib.call_method1("repr", (object,)));
    match repr {
        Ok(repr) => format!("{repr} ({kind})"),
        Err(_) => format!("an object of type {kind}"),
    }
}
