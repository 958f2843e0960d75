//! Batches: requests, outputs and writing.
//!
//! A [`Request`] describes a batch. With rows and their [`Placement`] it is [`Planned`]: a table of
//! outputs, with every array in one span of memory. [`collate_slices`] does all of it, from plain
//! memory.
//!
//! [`Placement`]: crate::plan::Placement

mod array_grids;
mod arrays;
mod captured;
mod execute;
mod field;
mod outputs;
mod planned;
mod ragged;
mod rows;

pub use captured::{Indices, Layers};
pub use field::{FieldKind, FieldSpec, OwnToken, Spread};
pub use outputs::{
    Beside, IGNORE_INDEX, LOSS_MASK, Output, OutputAlign, OutputSpec, PadValue, PositionIds, What,
    outputs,
};
pub use planned::{Array, CACHE_LINE, Planned, PlannedOutput, Request, Value};
pub use ragged::{WithOwnTokens, add_own_tokens};
pub use rows::{BatchRows, Columns, RowSource};

use bytemuck::Pod;

use crate::column::{FieldColumn, SliceColumn};
use crate::error::Result;
use crate::memory::filled;
use crate::plan::merge::Streams;
use crate::plan::pack::Cost;
use crate::plan::{Assembly, LayoutSpec, Placement, Shard, Turns};
use crate::polling::Ticks;
use crate::polling::{Poll, Polled};

/// A written batch.
#[derive(Debug)]
pub struct Collated {
    /// The lengths of the turns.
    pub turns: Turns,
    /// The rows' turns and pieces.
    pub assembly: Assembly,
    /// The positions of the rows.
    pub placement: Placement,
    /// Number of rewards on tokens that merging masked.
    pub masked_rewards: usize,
    /// The outputs.
    pub planned: Planned,
    memory: Vec<u64>,
}

impl Collated {
    /// The output with this key.
    pub fn output(&self, key: &str) -> Option<(&Output, &Value)> {
        let mut outputs = self.planned.outputs.iter();
        let planned = outputs.find(|planned| planned.output.key == key)?;
        Some((&planned.output, &planned.value))
    }

    /// The shape and values of the array with this key; booleans are bytes.
    ///
    /// # Panics
    /// If the values are not of type `T`.
    pub fn array<T: Pod>(&self, key: &str) -> Option<(&[usize], &[T])> {
        let (output, Value::Array(array)) = self.output(key)? else {
            return None;
        };
        let size = output.dtype.map(crate::Dtype::size);
        assert_eq!(size, Some(size_of::<T>()), "{key} is of another type");
        let bytes: &[u8] = bytemuck::cast_slice(&self.memory);
        let values = &bytes[array.bytes.clone()];
        Some((&array.shape, bytemuck::cast_slice(values)))
    }
}

/// Collate rows from plain memory, all or those of a shard, with as many threads as pay. The cost
/// is for layouts that limit the cost of the rows of a bin.
///
/// # Errors
/// Inputs that do not fit together, values that do not fit their outputs, and errors of the hook.
///
/// # Panics
/// If the number of columns is not the number of written fields.
pub fn collate_slices(
    request: &Request,
    source: RowSource,
    shard: Option<&Shard>,
    mut columns: Columns<SliceColumn>,
    layout: &LayoutSpec,
    cost: &Cost,
    poll: Poll,
) -> Result<Collated> {
    let turns = columns.tokens.turns()?;
    let written = request.fields.iter().filter(|field| field.is_written());
    for (field, column) in written.zip(&columns.fields) {
        let count = match column.chosen() {
            Some(chosen) => chosen.total,
            None => column.lens()?.len(),
        };
        turns.check_count(&field.name, count)?;
    }
    let mut hook = || poll();
    let mut ticks = Ticks::new(&mut hook);
    let mut rows = source.rows(&turns, shard, layout, &mut ticks)?;
    let masked_rewards = source.merge_numbers(&turns, request.fields, &mut columns)?;
    let tokens = columns.tokens.map(|column| Polled::new(column, poll));
    let streams = Streams { tokens: &tokens, turns: &turns };
    rows.share(&streams, layout, shard, request.fields, None)?;
    let placement = rows.place(layout, shard, cost, &mut ticks)?;
    let planned = request.plan(&rows, &placement, &mut columns, poll)?;
    let mut memory = filled(planned.num_bytes().div_ceil(8), |_| 0_u64)?;
    let bytes = bytemuck::cast_slice_mut(&mut memory);
    planned.write_slices(&columns, rows.read(), &placement, bytes, true, poll)?;
    let assembly = rows.into_assembly();
    Ok(Collated { turns, assembly, placement, masked_rewards, planned, memory })
}
