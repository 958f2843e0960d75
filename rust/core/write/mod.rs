//! Writers: they walk a slice of the plan and write every position once. They decide nothing.
//!
//! Columns are trait objects, so writers are compiled once per number type. A column is called once
//! per span of a row.

mod labels;
mod positions;
mod values;
mod walk;

pub use labels::{Labels, write_labels};
pub use positions::{
    Count, PositionPadding, write_mask, write_positions, write_row_indices, write_subtree_ends,
};
pub use values::{Fill, write_field, write_tokens};
pub use walk::Destination;
