//! All of it, from plain memory: rows, their places, the outputs, and what is written.

use bytemuck::Pod;

use super::{BatchRows, Columns, FieldSpec, Output, Planned, Request, Value};
use crate::alloc::filled;
use crate::column::{FieldColumn, SliceColumn};
use crate::error::{Error, Result};
use crate::plan::merge::Merge;
use crate::plan::{Assembly, Placement, Turns};
use crate::polling::Poll;

/// What the rows of a batch are made of.
#[derive(Debug, Clone, Copy)]
pub enum RowSource<'a> {
    /// One turn each.
    Turns,
    /// Turns as they were merged.
    Merged(&'a Merge),
    /// The rows of another batch, read from its own outputs.
    Batch(&'a Assembly),
}

impl RowSource<'_> {
    /// All rows that the turns make.
    ///
    /// # Errors
    /// Turns of other lengths than those that were merged.
    pub fn rows(self, turns: &Turns) -> Result<Assembly> {
        Ok(match self {
            Self::Turns => Assembly::row_per_turn(turns),
            Self::Merged(merge) => {
                merge.check_turns(turns)?;
                merge.assembly.clone()
            }
            Self::Batch(assembly) => assembly.of_own_rows(),
        })
    }

    /// Merge the numbers of fields that may have one for each turn, if turns were merged, and count the
    /// values that are not 0 on tokens that merging masked.
    ///
    /// # Errors
    /// Rows of wrong lengths, and numbers that would be dropped.
    pub fn merge_numbers<C: FieldColumn>(
        self,
        fields: &[&FieldSpec],
        columns: &mut Columns<C>,
    ) -> Result<usize, C::Failure> {
        let Self::Merged(merge) = self else {
            return Ok(0);
        };
        let mut masked = 0;
        let written = fields.iter().filter(|field| field.is_written());
        for (field, column) in written.zip(&mut columns.fields) {
            if field.per_row {
                masked += field.merge(column, merge)?;
            }
        }
        Ok(masked)
    }
}

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

/// Collate rows from plain memory, on as many threads as pay. `place` says where the rows lie.
///
/// # Errors
/// What does not fit together, values that do not fit their outputs, and what the hook raises.
///
/// # Panics
/// If there are not as many columns as fields.
pub fn collate<E: From<Error> + Send>(
    request: &Request,
    source: RowSource,
    mut columns: Columns<SliceColumn>,
    place: impl FnOnce(&Assembly) -> Result<Placement, E>,
    poll: Poll<E>,
) -> Result<Collated, E> {
    let turns = Turns::new(columns.prompts.lens(), columns.responses.lens())?;
    let written = request.fields.iter().filter(|field| field.is_written());
    for (field, column) in written.zip(&columns.fields) {
        turns.check_count(&field.name, column.lens().len())?;
    }
    let assembly = source.rows(&turns)?;
    let masked_rewards = source.merge_numbers(request.fields, &mut columns)?;
    let placement = place(&assembly)?;
    let rows = BatchRows {
        turns: &turns,
        step: &assembly,
        batch: &assembly,
    };
    let planned = request.plan(rows, &placement, &mut columns)?;
    let mut memory = filled(planned.num_bytes().div_ceil(8), |_| 0_u64)?;
    let bytes = bytemuck::cast_slice_mut(&mut memory);
    planned.write_slices(&columns, &assembly, &placement, bytes, true, poll)?;
    Ok(Collated {
        turns,
        assembly,
        placement,
        masked_rewards,
        planned,
        memory,
    })
}
