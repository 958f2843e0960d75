//! All of it, from plain memory: rows, their places, the outputs, and what is written.

use bytemuck::Pod;

use super::{Columns, Output, Planned, Request, RowSource, Value};
use crate::column::{FieldColumn, SliceColumn};
use crate::error::Result;
use crate::memory::filled;
use crate::plan::merge::Streams;
use crate::plan::pack::Cost;
use crate::plan::{Assembly, LayoutSpec, Placement, Shard, Turns};
use crate::polling::{Poll, Polled};
use crate::ticks::Ticks;

/// A batch that is written.
#[derive(Debug)]
pub struct Collated {
    /// The lengths of the turns.
    pub turns: Turns,
    /// What the rows are made of.
    pub assembly: Assembly,
    /// Where they lie.
    pub placement: Placement,
    /// How many rewards lie on tokens that merging masked.
    pub masked_rewards: usize,
    /// The outputs.
    pub planned: Planned,
    memory: Vec<u64>,
}

impl Collated {
    /// An output, by its key.
    pub fn output(&self, key: &str) -> Option<(&Output, &Value)> {
        let outputs = self.planned.outputs.iter();
        let planned = { outputs }.find(|planned| planned.output.key == key)?;
        Some((&planned.output, &planned.value))
    }

    /// The shape and the values of an array, by its key; booleans are bytes.
    ///
    /// # Panics
    /// If the values are no `T`.
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

/// Collate rows from plain memory, on as many threads as pay: all of them, or those of a shard. The cost
/// is for layouts that limit what the rows of a bin cost.
///
/// # Errors
/// What does not fit together, values that do not fit their outputs, and what the hook raises.
///
/// # Panics
/// If there are not as many columns as fields that are written.
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
        turns.check_count(&field.name, column.lens().len())?;
    }
    let mut rows = source.rows(&turns, shard, layout)?;
    let masked_rewards = source.merge_numbers(request.fields, &mut columns)?;
    let tokens = columns.tokens.map(|column| Polled::new(column, poll));
    let streams = Streams {
        tokens: &tokens,
        turns: &turns,
    };
    rows.share(&streams, layout, shard, request.fields, None)?;
    let placement = rows.place(layout, shard, cost, &mut Ticks::new(&mut || poll()))?;
    let planned = request.plan(&rows, &placement, &mut columns)?;
    let mut memory = filled(planned.num_bytes().div_ceil(8), |_| 0_u64)?;
    let bytes = bytemuck::cast_slice_mut(&mut memory);
    planned.write_slices(&columns, rows.read(), &placement, bytes, true, poll)?;
    let assembly = rows.into_assembly();
    Ok(Collated {
        turns,
        assembly,
        placement,
        masked_rewards,
        planned,
        memory,
    })
}
