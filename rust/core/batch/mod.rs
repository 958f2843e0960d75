//! Batches: what is asked for, the outputs that follow from it, and how they are written.
//!
//! A [`Request`] says what a batch is asked to be. With its rows and their [`Placement`] it is
//! [`Planned`]: a table of outputs, of which every array has a place in one span of memory.
//! [`collate`] does all of it.
//!
//! [`Placement`]: crate::plan::Placement

mod arrays;
mod collate;
mod execute;
mod field;
mod number;
mod outputs;
mod places;
mod planned;
mod rows;
mod segments;
mod unplaced;

pub use collate::{Collated, collate};
pub use field::{FieldKind, FieldSpec};
pub use number::Number;
pub use outputs::{
    Alignment, Fill, IGNORE_INDEX, LOSS_MASK, Output, OutputSpec, RESERVED_KEYS, What, outputs,
};
pub use planned::{ALIGNMENT, Array, Columns, Planned, PlannedOutput, Request, Value};
pub use rows::{BatchRows, RowSource};
