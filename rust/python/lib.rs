//! The Python module `fastcollate._fastcollate`: ingest, call the core, hand over.

mod arrow;
mod collate;
mod error;
mod field;
mod ingest;
mod interrupt;
mod layout;
mod memory;
mod merging;
mod names;
#[allow(unsafe_code, reason = "makes arrays of NumPy's")]
mod numpy_view;
#[allow(unsafe_code, reason = "lends the slab's memory to NumPy")]
mod output;
mod output_spec;
mod output_table;
mod packing;
mod padded;
mod partitioning;
mod plan;
mod shard;
mod stepping;
mod tables;

use pyo3::prelude::*;

/// The compiled core of fastcollate. Private: import `fastcollate`.
#[pymodule(gil_used = false)]
mod _fastcollate {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::arrow::arrow_lists;
    #[pymodule_export]
    use super::collate::collate;
    #[pymodule_export]
    use super::field::FieldSpec;
    #[pymodule_export]
    use super::ingest::{RowStore, StoredRow, Stretches, arrow_chunks, columns_of, pack_ids};
    #[pymodule_export]
    use super::layout::LayoutSpec;
    #[pymodule_export]
    use super::memory::{BufferPool, after_fork, before_fork, forked};
    #[pymodule_export]
    use super::merging::{Merge, MergeSpec, merge_turns};
    #[pymodule_export]
    use super::output::Owner;
    #[pymodule_export]
    use super::output_spec::OutputSpec;
    #[pymodule_export]
    use super::output_table::{Output, OutputTable};
    #[pymodule_export]
    use super::packing::{PackSpec, bins_defect, deal_bins, first_no_length, spread_bins};
    #[pymodule_export]
    use super::padded::copy_rows;
    #[pymodule_export]
    use super::partitioning::{partition, split_micro_batches};
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::stepping::{group_offsets, split_step, step_defect};

    #[pymodule_init]
    fn init(module: &Bound<PyModule>) -> PyResult<()> {
        let py = module.py();
        super::ingest::find_numpy(py)?;
        // To make a type the interpreter is released under a lock. If another thread forked then, the
        // child would wait for it for ever; here, nobody can call us yet.
        py.get_type::<super::ingest::ArrowMemory>();
        py.get_type::<super::output::Owner>();
        if cfg!(not(Py_LIMITED_API)) {
            super::ingest::check_digits(py)?;
        }
        let synthetic = fastcollate::plan::Row::SYNTHETIC;
        module.add(
            "SYNTHETIC_LENS",
            (synthetic.prompt_len, synthetic.response_len),
        )?;
        module.add("IGNORE_INDEX", fastcollate::batch::IGNORE_INDEX)?;
        module.add("RESERVED_KEYS", fastcollate::batch::RESERVED_KEYS)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
