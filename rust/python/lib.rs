//! The Python module `fastcollate._fastcollate`: ingest, call the core, hand over.

mod arrow;
mod batch;
mod collate;
mod error;
mod handover;
mod ingest;
mod interrupt;
mod names;
mod plan;

use pyo3::prelude::*;

/// The compiled core of fastcollate. Private: import `fastcollate`.
#[pymodule(gil_used = false)]
mod _fastcollate {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::arrow::arrow_lists;
    #[pymodule_export]
    use super::batch::field::FieldSpec;
    #[pymodule_export]
    use super::batch::output_spec::OutputSpec;
    #[pymodule_export]
    use super::batch::output_table::{Output, OutputTable};
    #[pymodule_export]
    use super::collate::collate;
    #[pymodule_export]
    use super::handover::output::Owner;
    #[pymodule_export]
    use super::handover::pool::{BufferPool, after_fork, before_fork, forked};
    #[pymodule_export]
    use super::ingest::{
        RowSpans, RowStore, StoredRow, arrow_chunks, compact_ids, copy_rows, stored_columns,
    };
    #[pymodule_export]
    use super::plan::batch_plan::Plan;
    #[pymodule_export]
    use super::plan::layout::LayoutSpec;
    #[pymodule_export]
    use super::plan::merging::{Merge, MergeSpec, merge_turns};
    #[pymodule_export]
    use super::plan::packing::{PackSpec, assign_bins, bins_defect, first_no_length, spread_bins};
    #[pymodule_export]
    use super::plan::partitioning::{partition, split_micro_batches};
    #[pymodule_export]
    use super::plan::stepping::{group_offsets, split_step, step_defect};

    #[pymodule_init]
    fn init(module: &Bound<PyModule>) -> PyResult<()> {
        let py = module.py();
        super::ingest::find_numpy(py)?;
        // To make a type the interpreter is released under a lock. If another thread forked then, the
        // child would wait for it for ever; here, nobody can call us yet.
        py.get_type::<super::ingest::ArrowMemory>();
        py.get_type::<super::handover::output::Owner>();
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
