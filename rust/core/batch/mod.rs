//! Batches: requests, outputs and writing.
//!
//! A [`Request`] describes a batch. With rows and their [`Placement`] it is [`Planned`]: a table of
//! outputs, with every array in one span of memory. [`collate_slices`] does all of it, from plain
//! memory.
//!
//! [`Placement`]: crate::plan::Placement

mod arrays;
mod execute;
mod field;
mod from_slices;
mod outputs;
mod places;
mod planned;
mod rows;
mod segments;
mod spread;
mod unplaced;

pub use field::{FieldKind, FieldSpec, Layers, Spread};
pub use from_slices::{Collated, collate_slices};
pub use outputs::{
    Alignment, Beside, IGNORE_INDEX, LOSS_MASK, Output, OutputSpec, PadValue, PositionIds, What,
    outputs,
};
pub use planned::{Array, CACHE_LINE, Columns, Planned, PlannedOutput, Request, Value};
pub use rows::{BatchRows, RowSource};
