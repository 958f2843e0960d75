//! The Python module `fastcollate._fastcollate`: rows, core calls and memory.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod arrow;
mod batch;
mod collate;
mod error;
mod hints;
mod interrupt;
mod memory;
mod names;
mod plan;
mod rollouts;
mod rows;
mod sampled;

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
    use super::collate::{collate, write_rows};
    #[pymodule_export]
    use super::memory::output::Owner;
    #[pymodule_export]
    use super::memory::pool::{BufferPool, after_fork, before_fork, forked};
    #[pymodule_export]
    use super::plan::batch_plan::Plan;
    #[pymodule_export]
    use super::plan::growing::GrowingTree;
    #[pymodule_export]
    use super::plan::layout::LayoutSpec;
    #[pymodule_export]
    use super::plan::merging::{Merge, MergeSpec, merge_turns};
    #[pymodule_export]
    use super::plan::packing::{Bins, CostSpec, PackSpec, counts_in, deal_bins, first_no_length};
    #[pymodule_export]
    use super::plan::partitioning::{partition, split_micro_batches};
    #[pymodule_export]
    use super::plan::shard::ShardSpec;
    #[pymodule_export]
    use super::plan::sharing::{PrefixTree, hash_prompts, share_prefixes};
    #[pymodule_export]
    use super::plan::stepping::{
        group_offsets, prompt_spans, shared_defect, split_step, step_defect,
    };
    #[pymodule_export]
    use super::plan::tables::lists_of;
    #[pymodule_export]
    use super::rollouts::{CallNodes, CallSchema, make_calls, read_calls};
    #[pymodule_export]
    use super::rows::{
        RowSpans, RowStore, SomeTokens, StoredRow, are_computed, arrow_chunks, arrow_nested_chunks,
        check_range, compact_ids, fix_lists, have_padded_edges, mask_offsets, mask_spans,
        stored_columns, token_ids,
    };

    /// Add the valid option names: the tables that also parse them.
    fn add_names(module: &Bound<PyModule>) -> PyResult<()> {
        use super::plan::layout::LAYOUTS;
        use super::plan::merging::{MASK_DRIFTS, MERGE_REWARDS, POLICIES};
        use super::plan::packing::COSTS;
        use super::plan::stepping::PAD_ROWS;

        let py = module.py();
        module.add("COSTS", COSTS.all(py)?)?;
        module.add("LAYOUTS", LAYOUTS.all(py)?)?;
        module.add("MASK_DRIFTS", MASK_DRIFTS.all(py)?)?;
        module.add("MERGE_REWARDS", MERGE_REWARDS.all(py)?)?;
        module.add("PAD_ROWS", PAD_ROWS.all(py)?)?;
        module.add("POLICIES", POLICIES.all(py)?)
    }

    #[pymodule_init]
    fn init(module: &Bound<PyModule>) -> PyResult<()> {
        let py = module.py();
        super::rows::find_numpy(py)?;
        // Making a type releases the interpreter under a lock. If another thread forked then, the
        // child would wait for ever; here, no other call is possible yet.
        py.get_type::<super::rows::ArrowMemory>();
        py.get_type::<super::memory::output::Owner>();
        if cfg!(not(Py_LIMITED_API)) {
            super::rows::check_digits(py)?;
        }
        let synthetic = fastcollate::plan::Row::SYNTHETIC;
        module.add("SYNTHETIC_LENS", (synthetic.prompt_len, synthetic.response_len))?;
        module.add("IGNORE_INDEX", fastcollate::batch::IGNORE_INDEX)?;
        module.add("BODY_ADVICE", super::hints::BODY_ADVICE)?;
        module.add("PADDED_RUN", super::rows::PADDED_RUN)?;
        add_names(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
