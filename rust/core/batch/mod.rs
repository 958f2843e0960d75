//! Batches: what is asked for, and the outputs that follow from it.

mod field;
mod number;
mod outputs;

pub use field::{FieldKind, FieldSpec};
pub use number::Number;
pub use outputs::{
    Alignment, Fill, LOSS_MASK, NO_LABEL, Output, OutputSpec, RESERVED_KEYS, What, outputs,
};
