//! The Python module `fastcollate._fastcollate`: ingest, call the core, hand over.

mod collate;
mod error;
mod ingest;
mod job;
#[allow(unsafe_code, reason = "lends the slab's memory to NumPy")]
mod output;
mod plan;

use pyo3::prelude::*;

/// The compiled core of fastcollate. Private: import `fastcollate`.
#[pymodule(gil_used = false)]
mod _fastcollate {
    #[pymodule_export]
    use super::collate::collate;
    #[pymodule_export]
    use super::plan::Plan;
}
