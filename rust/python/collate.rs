//! The main call: ingest, plan, write, hand over.

use std::sync::Arc;

use fastcollate::batch::{
    Columns, FieldKind, FieldSpec as CoreField, OutputSpec as Outputs, OwnToken, Planned, Request,
    RowSource as CoreSource, What, WithOwnTokens, add_own_tokens,
};
use fastcollate::plan::{Assembly, CpRank, Placement, Turns};
use fastcollate::{Column, FieldColumn, SliceColumn, Ticks, TokenStreams, check_room, few, filled};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::field::FieldSpec;
use crate::batch::output_spec::OutputSpec;
use crate::batch::output_table::OutputTable;
use crate::error::Result;
use crate::interrupt::poll;
use crate::memory::output::{Owner, handed_over, tensors_of, view_of_bytes};
use crate::memory::pool::BufferPool;
use crate::memory::slab::Slab;
use crate::plan::batch_plan::Plan;
use crate::plan::layout::LayoutSpec;
use crate::plan::merging::{Merge, RowSource, compared, merged};
use crate::plan::shard::ShardSpec;
use crate::plan::tables::{poll_after, usizes};
use crate::rows::{PyRows, TokenInput, slices_of};

/// From this size on, other Python threads may run while plain memory is copied.
const DETACH_FROM: usize = 1 << 20;

/// The plan, the fields as they are read from their outputs, the outputs by key, the owner of their
/// memory unless an allocator gave it, the merge, the number of rewards on tokens that merging
/// masked, the number of tokens that were added to their own values, by field, and what looks like a
/// mistake.
type Collated<'py> = (
    Plan,
    Vec<Bound<'py, FieldSpec>>,
    OutputTable,
    Bound<'py, PyDict>,
    Option<Bound<'py, Owner>>,
    Option<Merge>,
    usize,
    Vec<(String, usize)>,
    Signs,
);

/// True if a given loss mask is zero on all tokens, if every response begins with its prompt, and if
/// most log-probabilities are above 0.
type Signs = (bool, bool, bool);

/// Collate rows.
///
/// `row_source` defines the rows if they are not one turn each. `shard` selects rows, by default
/// all. `cp` is the number of context-parallel ranks and the rank whose chunks are written. `ids`
/// has the ids of turns by name, of which only the number is read. `uids` holds the group number of
/// each turn if rows share tokens by group. With `torch`, outputs are tensors. `allocator` is called
/// with the number of bytes once rows are merged and placed; it returns an array of bytes owned by
/// the caller, or None for memory of the pool.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called once, from Python, where keywords cost time")]
pub fn collate<'py>(
    py: Python<'py>,
    tokens: TokenInput<'py>,
    row_source: Option<RowSource<'py>>,
    shard: Option<&ShardSpec>,
    cp: Option<(usize, usize)>,
    pad_token_id: i64,
    fields: Vec<(Bound<'py, PyAny>, Bound<'py, FieldSpec>)>,
    ids: &Bound<'py, PyDict>,
    uids: Option<PyReadonlyArray1<'py, i64>>,
    layout: &Bound<'py, LayoutSpec>,
    outputs: &Bound<'py, OutputSpec>,
    torch: Option<&Bound<'py, PyAny>>,
    pool: Option<&Bound<'py, BufferPool>>,
    allocator: Option<&Bound<'py, PyAny>>,
) -> Result<Collated<'py>> {
    let shard = shard.map(|shard| &shard.0);
    let known = match &row_source {
        Some(RowSource::Batch(plan)) => Some(CoreSource::Batch(&plan.get().assembly)),
        Some(RowSource::Merged(merge)) => Some(CoreSource::Merged(merge.get().core())),
        Some(RowSource::ToMerge(..)) => None,
        None => Some(CoreSource::Turns),
    };
    let chosen = known.zip(shard);
    let form = layout.get().core().layout();
    let chosen = chosen.and_then(|(source, shard)| source.chosen(shard, form));
    let tokens = tokens.read(chosen.as_ref())?;
    // A stage takes up to a tenth of a second for a million rows: signals are handled after each.
    py.check_signals()?;
    let turns = Arc::new(tokens.turns()?);
    let handle_signals = || poll_after(py, turns.count());
    handle_signals()?;
    if let Some(RowSource::Batch(plan)) = &row_source {
        turns.check_count("plan", plan.get().assembly.rows().len())?;
    }
    for (name, values) in ids {
        turns.check_count(&name.extract::<String>()?, values.len()?)?;
    }
    let mut columns = Columns { fields: read(&fields, &turns)?, tokens };
    handle_signals()?;
    let merge = match &row_source {
        Some(RowSource::ToMerge(spec, trajectories)) => {
            let (spec, trajectories) = (spec.get(), trajectories.clone());
            Some(merged(py, spec, &columns.tokens, &turns, trajectories)?)
        }
        _ => None,
    };
    let merged = merge.as_ref().map(Merge::core);
    let source = known.or(merged.map(CoreSource::Merged)).unwrap_or(CoreSource::Turns);
    let specs: Vec<_> = few(fields.iter().map(|(_, field)| &field.get().0));
    let layout = layout.get();
    let mut rows = source.rows(&turns, shard, layout.core(), &mut Ticks::new(&mut poll))?;
    handle_signals()?;
    if let (Some(RowSource::Merged(merge)), None) = (&row_source, shard) {
        let merge = merge.get().core();
        compared(py, &columns.tokens, &turns, |streams| merge.check_tokens(streams))?;
    }
    if layout.core().layout().is_tree() {
        let uids = uids.map(|ids| usizes("uids", &ids)).transpose()?;
        compared(py, &columns.tokens, &turns, |streams| {
            rows.share(streams, layout.core(), shard, &specs, uids.as_deref())
        })?;
    }
    let added = with_own_tokens(py, &specs, (rows.read(), &turns), &mut columns)?;
    let masked_rewards = source.merge_numbers(&turns, &specs, &mut columns)?;
    handle_signals()?;
    let placement = layout.place(py, &rows, shard)?;
    handle_signals()?;
    let request = Request {
        pad_token_id,
        fields: &specs,
        outputs: &outputs.get().0,
        cp: cp.map(|(size, rank)| CpRank { size, rank }),
    };
    let planned = request.plan(&rows, &placement, &mut columns, &poll)?;
    handle_signals()?;
    let write = Write {
        planned: &planned,
        columns: &columns,
        assembly: rows.read(),
        placement: &placement,
    };
    let (arrays, owner, signs) = match allocated(allocator, &planned)? {
        Some(memory) => {
            let (arrays, signs) = write.to_allocated(py, torch, &memory)?;
            (arrays, None, signs)
        }
        None => {
            let (owner, signs) = write.to_slab(py, pool)?;
            let view = |dtype, array: &_| Owner::view(&owner, dtype, array);
            (handed_over(py, &planned, torch, view)?, Some(owner), signs)
        }
    };
    let specs = of_outputs(py, &fields, &columns.fields, &planned)?;
    let table = OutputTable::new(planned.outputs.into_iter().map(|planned| planned.output));
    let assembly = rows.into_assembly();
    let turns = match (source, &row_source, shard) {
        // The rows of another batch consist of its turns.
        (_, Some(RowSource::Batch(plan)), None) => plan.get().turns.clone(),
        (_, Some(RowSource::Batch(plan)), Some(shard)) => plan.get().turns_of(shard),
        (CoreSource::Merged(merge), _, Some(shard)) => {
            merge.assembly.turns_of(shard, &merge.turns).map_or(turns, Arc::new)
        }
        (_, _, Some(shard)) if shard.lens.is_some() => Arc::new(turns.only(shard.numbers())),
        _ => turns,
    };
    let plan = Plan { turns, assembly, placement };
    Ok((plan, specs, table, arrays, owner, merge, masked_rewards, added, signs))
}

/// Write the rows of a field by themselves as one array, or tensor of `torch`: padded or
/// concatenated.
#[pyfunction]
#[pyo3(signature = (rows, field, layout, pool, torch=None))]
pub fn write_rows<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyAny>,
    field: &Bound<'py, FieldSpec>,
    layout: &Bound<'py, LayoutSpec>,
    pool: Option<&Bound<'py, BufferPool>>,
    torch: Option<&Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyAny>> {
    let field = field.get();
    let mut columns = Columns {
        tokens: TokenStreams::Whole { sequences: PyRows::none(), prompt_lens: Vec::new() },
        fields: vec![field.rows(rows, None, |_| Ok(()))?],
    };
    // A field of whole sequences.
    let turns = Turns::of_rows(columns.fields[0].lens()?);
    let layout = layout.get();
    let rows = CoreSource::Turns.rows(&turns, None, layout.core(), &mut Ticks::new(&mut poll))?;
    let placement = layout.place(py, &rows, None)?;
    let request =
        Request { pad_token_id: 0, fields: &[&field.0], outputs: &Outputs::NOTHING, cp: None };
    let planned = request.plan(&rows, &placement, &mut columns, &poll)?;
    let write = Write {
        planned: &planned,
        columns: &columns,
        assembly: rows.read(),
        placement: &placement,
    };
    let (owner, _) = write.to_slab(py, pool)?;
    let (_, array) = planned.arrays().next().expect("the field is written");
    let values = Owner::view(&owner, array.dtype(), array)?;
    Ok(tensors_of(torch)?(array.dtype(), values)?)
}

/// Take the columns of the written fields.
fn read<'py>(
    fields: &[(Bound<'py, PyAny>, Bound<'py, FieldSpec>)],
    turns: &Turns,
) -> Result<Vec<PyRows<'py>>> {
    let columns = fields.iter().map(|(values, field)| field.get().read(values, turns));
    few(columns.filter_map(Result::transpose))
}

/// Add tokens to their own values in the ragged fields that check this, and count those of rows.
fn with_own_tokens<'py>(
    py: Python<'py>,
    fields: &[&CoreField],
    (rows, turns): (&Assembly, &Turns),
    columns: &mut Columns<PyRows<'py>>,
) -> Result<Vec<(String, usize)>> {
    let mut added = Vec::new();
    let written: Vec<_> = few(fields.iter().filter(|field| field.is_written()));
    for (index, pair) in written.windows(2).enumerate() {
        let field = pair[0];
        let refuses = match field.kind {
            FieldKind::Ragged(OwnToken::Add) => false,
            FieldKind::Ragged(OwnToken::Error) => true,
            _ => continue,
        };
        let FieldKind::Counts(align) = pair[1].kind else {
            continue;
        };
        let tokens = (&columns.tokens as &dyn Column<i64>, turns);
        let [values, counts] = [index, index + 1].map(|index| &columns.fields[index]);
        let name = &field.name;
        let mut is_read = filled(turns.count(), |_| false)?;
        for piece in (0..rows.rows().len()).flat_map(|row| rows.pieces(row)) {
            is_read[piece.turn] = true;
        }
        let mut count = 0;
        for WithOwnTokens { turn, values, counts, added } in
            add_own_tokens(name, refuses, align, tokens, (values, counts))?
        {
            count += if is_read[turn] { added } else { 0 };
            columns.fields[index].replace(py, turn, values)?;
            columns.fields[index + 1].replace(py, turn, counts)?;
        }
        added.push((field.key.clone(), count));
    }
    Ok(added)
}

/// The fields as they are read from their outputs.
fn of_outputs<'py>(
    py: Python<'py>,
    fields: &[(Bound<'py, PyAny>, Bound<'py, FieldSpec>)],
    columns: &[PyRows<'py>],
    planned: &Planned,
) -> PyResult<Vec<Bound<'py, FieldSpec>>> {
    let mut columns = columns.iter();
    let mut specs = Vec::new();
    for (index, (_, field)) in fields.iter().enumerate() {
        let spec = &field.get().0;
        let column = spec.is_written().then(|| columns.next()).flatten();
        let has_numbers = column.is_some_and(FieldColumn::is_one_number_each);
        let mut outputs = planned.outputs.iter().map(|planned| &planned.output);
        let dtype = outputs.find(|output| output.what == What::Field(index));
        specs.push(match spec.of_output(dtype.and_then(|output| output.dtype), has_numbers) {
            None => field.clone(),
            Some(own) => Bound::new(py, FieldSpec(own))?,
        });
    }
    Ok(specs)
}

/// A planned batch and its inputs.
struct Write<'a, 'py> {
    planned: &'a Planned,
    columns: &'a Columns<PyRows<'py>>,
    assembly: &'a Assembly,
    placement: &'a Placement,
}

impl<'py> Write<'_, 'py> {
    /// Write all arrays to memory of an allocator, and return the outputs.
    fn to_allocated(
        &self,
        py: Python<'py>,
        torch: Option<&Bound<'py, PyAny>>,
        allocated: &Bound<'py, PyArray1<u8>>,
    ) -> Result<(Bound<'py, PyDict>, Signs)> {
        let mut memory = allocated.try_readwrite().map_err(PyErr::from)?;
        let bytes = memory.as_slice_mut().map_err(PyErr::from)?;
        self.write(py, bytes, false)?;
        let signs = self.signs(bytes);
        let view = |dtype, array: &_| view_of_bytes(allocated, dtype, array);
        Ok((handed_over(py, self.planned, torch, view)?, signs))
    }

    /// Write all arrays to a slab, and return its owner.
    fn to_slab(
        &self,
        py: Python<'py>,
        pool: Option<&Bound<'py, BufferPool>>,
    ) -> Result<(Bound<'py, Owner>, Signs)> {
        let num_bytes = self.planned.num_bytes();
        let mut slab = Slab::take(num_bytes, pool.map(|pool| &pool.get().pool))?;
        let is_zeroed = slab.is_zeroed();
        self.write(py, slab.bytes_mut(), is_zeroed)?;
        let signs = self.signs(slab.bytes_mut());
        Ok((Bound::new(py, Owner::new(slab, num_bytes))?, signs))
    }

    /// What looks like a mistake in the written memory.
    fn signs(&self, memory: &[u8]) -> Signs {
        let rows = self.assembly.rows();
        let repeats = matches!(self.columns.tokens, TokenStreams::Parts { .. })
            && self.planned.repeats_prompts(rows, self.placement, memory);
        (!self.planned.trains(memory), repeats, self.planned.has_positive_logprobs(memory))
    }

    /// Write all arrays; other Python threads run meanwhile if no value needs the interpreter.
    fn write(&self, py: Python, memory: &mut [u8], is_zeroed: bool) -> Result<()> {
        let Self { planned, columns, assembly, placement } = self;
        check_room(assembly.rows().len())?;
        let slices = if planned.num_bytes() < DETACH_FROM { None } else { as_slices(columns)? };
        poll_after(py, assembly.rows().len())?;
        let written = match slices {
            None => planned.write(columns, assembly, placement, memory, is_zeroed, &poll),
            Some(slices) => py.detach(|| {
                planned.write_slices(&slices, assembly, placement, memory, is_zeroed, &poll)
            }),
        };
        Ok(written?)
    }
}

/// The columns over plain memory, if no row needs the interpreter.
fn as_slices<'a>(columns: &'a Columns<PyRows>) -> Result<Option<Columns<SliceColumn<'a>>>> {
    let fields = columns.fields.iter().map(|rows| rows.as_slices().transpose());
    let Some(tokens) = slices_of(&columns.tokens)? else {
        return Ok(None);
    };
    let Some(fields) = few::<_, Option<Result<_>>>(fields).transpose()? else {
        return Ok(None);
    };
    Ok(Some(Columns { tokens, fields }))
}

/// Take memory for a batch from the allocator, if it provides any.
fn allocated<'py>(
    allocator: Option<&Bound<'py, PyAny>>,
    planned: &Planned,
) -> PyResult<Option<Bound<'py, PyArray1<u8>>>> {
    let Some(allocator) = allocator else {
        return Ok(None);
    };
    let bytes = planned.num_bytes();
    let memory = allocator.call1((bytes,))?;
    if memory.is_none() {
        return Ok(None);
    }
    let memory = memory.cast_into::<PyArray1<u8>>()?;
    if memory.len() < bytes {
        let found = memory.len();
        let message = format!("the allocator returned {found} bytes, but {bytes} are needed");
        return Err(PyValueError::new_err(message));
    }
    Ok(Some(memory))
}
