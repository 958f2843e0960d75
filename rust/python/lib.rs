//! The Python module `fastcollate._fastcollate`: ingest, call the core, hand over.

mod collate;
mod error;
mod execute;
mod ingest;
mod interrupt;
mod job;
mod lease;
mod memory;
#[allow(unsafe_code, reason = "lends the slab's memory to NumPy")]
mod output;
mod plan;

use pyo3::prelude::*;

/// The compiled core of fastcollate. Private: import `fastcollate`.
#[pymodule(gil_used = false)]
mod _fastcollate {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::collate::{DtypeSpec, FieldSpec, LayoutSpec, collate};
    #[pymodule_export]
    use super::lease::Lease;
    #[pymodule_export]
    use super::memory::{BufferPool, forked};
    #[pymodule_export]
    use super::plan::Plan;

    #[pymodule_init]
    fn init(module: &Bound<PyModule>) -> PyResult<()> {
        if cfg!(not(Py_LIMITED_API)) {
            super::ingest::check_digits(module.py())?;
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
