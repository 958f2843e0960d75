//! Plans: Python options, the core's planners with the interpreter released, and tables.

pub mod batch_plan;
pub mod growing;
pub mod layout;
pub mod merging;
pub mod packing;
pub mod partitioning;
pub mod shard;
pub mod sharing;
pub mod stepping;
pub mod tables;
