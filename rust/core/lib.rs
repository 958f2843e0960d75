//! The pure core of fastcollate: plan first, then write every byte once.
//!
//! Slices in, slices out; this crate has no Python, no batch memory of its own and no unsafe code.
//!
//! - [`Column`] is the interface of a field: rows that can be read into a destination.
//!   [`SliceColumn`] is the column over plain memory, of any number type ([`Slice`]).
//! - [`plan`] decides: [`Assembly`](plan::Assembly) defines the content of rows,
//!   [`Placement`](plan::Placement) their positions, and [`merge`](plan::merge) combines turns.
//!   Plans hold lengths and indices; tokens are compared, not kept.
//! - [`Ticks`] lets a hook stop long work.
//! - [`batch`] describes a requested batch and its outputs.
//! - [`mod@write`] executes: it walks a slice of the plan, copies pieces and fills gaps and padding.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod batch;
mod check;
mod column;
mod dtype;
mod element;
mod error;
mod fill_number;
mod memory;
mod over_columns;
#[allow(clippy::disallowed_methods, reason = "each step first checks that there is room")]
pub mod plan;
pub mod polling;
pub mod rollouts;
mod streams;
mod text;
pub mod threads;
pub mod write;

pub use check::{Check, TOKEN_IDS, check_type, check_values};
pub use column::{
    AnyColumn, At, Column, FieldColumn, Lookahead, SliceColumn, TokenValues, Tokens,
    common_when_read, read_number, read_slice, read_tokens,
};
pub use dtype::{Dtype, IntDtype};
pub use element::{Binary, Element, Misfit, Slice, common_values};
pub use error::{Error, External, Location, Result};
pub use fill_number::Number;
pub use half::{bf16, f16};
pub use memory::{
    add, check_room, extend, few, filled, gathered, reserve, resize, try_gathered, with_room,
};
pub use over_columns::{Rounding, WholeNumbers};
pub use polling::{Ticks, unstopped};
pub use streams::{AnyStreams, TokenStreams};
