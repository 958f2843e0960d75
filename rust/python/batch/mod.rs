//! What a batch is asked for, and the table of its outputs.

pub mod field;
pub mod output_spec;
pub mod output_table;
