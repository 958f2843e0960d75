//! Batch requests, and the table of outputs.

pub mod field;
pub mod output_spec;
pub mod output_table;
