//! The one call: ingest, plan, write, hand over.

use std::sync::Arc;

use fastcollate::batch::{LOSS_MASK, Output as Described, What, outputs};
use fastcollate::plan::{Assembly, Grid, Longest, Placement, Turns};
use fastcollate::write::Destination;
use fastcollate::{Check, Error as Core};
use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::contents::{Output, OutputSpec, Parts, Places};
use crate::error::Result;
use crate::execute::{execute, execute_slices};
use crate::field::{FieldPlan, FieldSpec, Step};
use crate::ingest::Rows;
use crate::job::{Content, Job};
use crate::layout::LayoutSpec;
use crate::memory::{BufferPool, Slab};
use crate::merging::{Making, Merge};
use crate::output::{NamedArray, Outputs, Owner};
use crate::output_table::OutputTable;
use crate::plan::{Plan, longest_row};
use crate::seqlens::Seqlens;
use crate::shard::Shard;

/// From this size on other threads of the interpreter may run while plain memory is copied.
const DETACH_FROM: usize = 1 << 20;

/// The plan, the outputs in order, the owner of their memory if it is not lent, what was merged, and
/// how many rewards lie on tokens that merging masked.
type Collated<'py> = (
    Plan,
    OutputTable,
    Vec<NamedArray<'py>>,
    Option<Bound<'py, Owner>>,
    Option<Merge>,
    usize,
);

/// Collate rows. Returns the plan, the outputs in order, the owner of their memory, what was merged
/// here, and how many rewards lie on tokens that merging masked.
///
/// `making` says what rows are made of, if not of one turn each, and `shard` which of them are
/// wanted, if not all. `counts` is how many items there are of what is not written here. `lend` lends
/// memory, as an array of bytes, or None for that of the pool; such a batch has no owner. It is called
/// once all lengths are checked.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "called once, from Python, where keywords cost time"
)]
pub fn collate<'py>(
    py: Python<'py>,
    prompts: &Bound<'py, PyAny>,
    responses: &Bound<'py, PyAny>,
    making: Option<Making<'py>>,
    shard: Option<Shard>,
    pad_token_id: i64,
    fields: Vec<(Bound<'py, PyAny>, Bound<'py, FieldSpec>)>,
    counts: Vec<(String, usize)>,
    layout: &Bound<'py, LayoutSpec>,
    outputs: &Bound<'py, OutputSpec>,
    pool: Option<&Bound<'py, BufferPool>>,
    lend: Option<&Bound<'py, PyAny>>,
) -> Result<Collated<'py>> {
    // The columns are the prompts, the responses, and then the fields.
    let mut columns = vec![
        Rows::new::<i64>("prompts", prompts, Check::None)?,
        Rows::new::<i64>("responses", responses, Check::None)?,
    ];
    let turns = Arc::new(Turns::new(columns[0].lens(), columns[1].lens())?);
    for (name, count) in counts {
        turns.check_count(&name, count)?;
    }
    let (step, merge) = make_rows(py, making.as_ref(), &columns, &turns)?;
    let merged = match &making {
        Some(Making::Merged(merge)) => Some(merge.get().core()),
        _ => merge.as_ref().map(Merge::core),
    };
    let mut masked_rewards = 0;
    for (values, field) in &fields {
        let field = field.get();
        let mut rows = field.read(values, &turns)?;
        if let Some(merged) = merged.filter(|_| field.may_be_numbers()) {
            masked_rewards += field.merge(&mut rows, merged)?;
        }
        columns.push(rows);
    }
    let specs: Vec<_> = fields.iter().map(|(_, field)| field.get()).collect();
    let request = Request {
        pad_token_id,
        fields: &specs,
        outputs: outputs.get(),
        pool,
        lend,
    };
    if let Some(shard) = &shard {
        // All rows, so that ranks fail together.
        layout.get().check(&step, shard)?;
    }
    let pick = |shard: &Shard| shard.pick(&step, Longest::of_rows(step.rows()));
    let picked = shard.as_ref().map(pick).transpose()?;
    let parts = Step {
        turns: &turns,
        step: &step,
        batch: picked.as_ref().map_or(&step, |(batch, _)| batch),
    };
    let least = picked
        .as_ref()
        .map(|(_, longest)| *longest)
        .unwrap_or_default();
    let placement = layout.get().place(py, parts.batch, least, shard.as_ref())?;
    let (table, arrays, owner) = request.write(py, columns, parts, &placement)?;
    let (turns, assembly) = match (making, shard) {
        (Some(Making::Batch(plan)), Some(shard)) => {
            (plan.get().turns.clone(), plan.get().picked(&shard)?)
        }
        (Some(Making::Batch(plan)), None) => {
            (plan.get().turns.clone(), plan.get().assembly.clone())
        }
        _ => (turns, picked.map_or(step, |(batch, _)| batch)),
    };
    let plan = Plan::new(turns, assembly, placement);
    Ok((plan, table, arrays, owner, merge, masked_rewards))
}

/// All rows that the turns make, and the merge that was made for them.
fn make_rows(
    py: Python,
    making: Option<&Making>,
    columns: &[Rows],
    turns: &Turns,
) -> Result<(Assembly, Option<Merge>)> {
    Ok(match making {
        None => (Assembly::row_per_turn(turns), None),
        Some(Making::Merged(merge)) => (merge.get().assembly_for(turns)?.clone(), None),
        Some(Making::ToMerge(spec, trajectories)) => {
            let (prompts, responses) = (&columns[0], &columns[1]);
            let (spec, trajectories) = (spec.get(), trajectories.clone());
            let merge = Merge::of_columns(py, spec, prompts, responses, turns, trajectories)?;
            (merge.assembly_for(turns)?.clone(), Some(merge))
        }
        Some(Making::Batch(plan)) => (plan.get().assembly.of_own_rows(), None),
    })
}

/// What a batch is asked to be.
struct Request<'a, 'py> {
    pad_token_id: i64,
    fields: &'a [&'a FieldSpec],
    outputs: &'a OutputSpec,
    pool: Option<&'a Bound<'py, BufferPool>>,
    lend: Option<&'a Bound<'py, PyAny>>,
}

/// A written batch: the table of its outputs, these in order (None for what is not written here), and the
/// owner of their memory, if it is not lent.
type Batch<'py> = (OutputTable, Vec<NamedArray<'py>>, Option<Bound<'py, Owner>>);

impl<'py> Request<'_, 'py> {
    /// Plan where columns go, and write them.
    fn write(
        &self,
        py: Python<'py>,
        mut columns: Vec<Rows<'py>>,
        step: Step,
        placement: &Placement,
    ) -> Result<Batch<'py>> {
        let (fields, assembly) = (self.fields, step.batch);
        let field_plans = fields.iter().zip(&mut columns[2..]);
        let field_plans = field_plans
            .map(|(field, rows)| field.plan(rows, step, placement))
            .collect::<Result<Vec<_>>>()?;
        let seqlens = Seqlens::of_placement(placement, longest_row(assembly))?;
        let loss_mask = fields.iter().position(|field| field.0.key == LOSS_MASK);
        let spec = &self.outputs.0;
        let places = Places::new(spec, placement, assembly, loss_mask.is_some());
        let parts = Parts {
            spec,
            pad_token_id: self.pad_token_id,
            assembly,
            placement,
            places: &places,
            seqlens: &seqlens,
            fields: &field_plans,
            columns: &columns,
            loss_mask,
        };
        let table = self.table(placement, &field_plans)?;
        let written: Vec<_> = { table.iter() }
            .filter_map(|output| parts.output(output))
            .collect();
        let lost = Lost {
            outputs: &written,
            columns: &columns,
            assembly,
            placement,
            places: &places,
        };
        lost.check(spec.labels.is_some_and(|(shifted, _)| shifted))?;
        let (arrays, owner) = self.write_outputs(py, &written, &columns, assembly)?;
        let mut arrays = arrays.into_iter().peekable();
        let value = |output: &Described| {
            let key = PyString::new(py, &output.key);
            let value = if output.dtype.is_some() {
                let array = arrays.next().map(|(_, array)| array);
                array.unwrap_or_else(|| py.None().into_bound(py))
            } else if let Some(longest) = seqlens.longest(output.what) {
                longest.into_bound_py_any(py)?
            } else if let Some(rows) = seqlens.by_row(output.what) {
                let rows = rows.iter().map(|row| PyArray1::from_slice(py, row));
                PyList::new(py, rows.collect::<Vec<_>>())?.into_any()
            } else {
                py.None().into_bound(py)
            };
            Ok((key, value))
        };
        let values = { table.iter().map(value) }.collect::<Result<Vec<_>>>()?;
        Ok((OutputTable::new(&table), values, owner))
    }

    /// The outputs of a batch, with the dtypes that the values of routes have chosen.
    fn table(&self, placement: &Placement, fields: &[Option<FieldPlan>]) -> Result<Vec<Described>> {
        let specs: Vec<_> = self.fields.iter().map(|field| &field.0).collect();
        let rounds_up = placement
            .packing
            .is_some_and(|packing| packing.multiple_of > 1);
        let (spec, pad) = (&self.outputs.0, self.pad_token_id);
        let mut table = outputs(spec, &specs, pad, placement.layout, rounds_up)?;
        for output in &mut table {
            if let What::Field(index) = output.what {
                output.dtype = fields[index].as_ref().map(|field| field.dtype);
            }
        }
        Ok(table)
    }

    /// Take the memory of all outputs, write them and hand them over.
    fn write_outputs(
        &self,
        py: Python<'py>,
        all: &[Output],
        columns: &[Rows],
        assembly: &Assembly,
    ) -> Result<(Vec<NamedArray<'py>>, Option<Bound<'py, Owner>>)> {
        let mut outputs = Outputs::default();
        for output in all {
            outputs.push(output.key, output.dtype, output.shape.clone())?;
        }
        let bytes = outputs.total_bytes();
        let lent = match self.lend {
            Some(lend) => borrowed(lend, bytes)?,
            None => None,
        };
        if let Some(lent) = lent {
            let mut memory = lent.try_readwrite().map_err(PyErr::from)?;
            let values = memory.as_slice_mut().map_err(PyErr::from)?;
            write(py, all, outputs.split(values), false, columns, assembly)?;
            return Ok((outputs.views_of(&lent)?, None));
        }
        let mut slab = Slab::take(bytes, self.pool.map(|pool| &pool.get().pool))?;
        let is_zeroed = slab.is_zeroed();
        let regions = outputs.split(slab.bytes_mut());
        write(py, all, regions, is_zeroed, columns, assembly)?;
        let owner = Bound::new(py, Owner::new(slab, outputs))?;
        Ok((Owner::arrays(&owner), Some(owner)))
    }
}

/// Borrow memory for so many bytes, if there is some.
fn borrowed<'py>(
    lend: &Bound<'py, PyAny>,
    bytes: usize,
) -> PyResult<Option<Bound<'py, PyArray1<u8>>>> {
    let lent = lend.call1((bytes,))?;
    if lent.is_none() {
        return Ok(None);
    }
    let lent = lent.cast_into::<PyArray1<u8>>()?;
    if lent.len() < bytes {
        let message = format!("lent were {} bytes, but {bytes} are needed", lent.len());
        return Err(PyValueError::new_err(message));
    }
    Ok(Some(lent))
}

/// Write all outputs, each into its region.
fn write(
    py: Python,
    all: &[Output],
    regions: Vec<&mut [u8]>,
    is_zeroed: bool,
    columns: &[Rows],
    assembly: &Assembly,
) -> Result<()> {
    let bytes: usize = regions.iter().map(|region| region.len()).sum();
    let jobs: Vec<Job> = all
        .iter()
        .zip(regions)
        .flat_map(|(output, region)| {
            let bytes = Destination {
                values: region,
                is_zeroed,
            };
            Job::of_output(output.content, output.dtype, output.grid, bytes)
        })
        .collect();
    let slices = if bytes < DETACH_FROM {
        None
    } else {
        let slices = columns.iter().map(|rows| rows.as_slices().transpose());
        slices.collect::<Option<Result<Vec<_>>>>().transpose()?
    };
    match slices {
        Some(slices) => py.detach(|| execute_slices(jobs, &slices, assembly)),
        None => execute(jobs, |job| job.write(columns, assembly)),
    }
}

/// Values of tokens that nothing predicts, which have no place.
struct Lost<'a, 'py> {
    outputs: &'a [Output<'a>],
    columns: &'a [Rows<'py>],
    assembly: &'a Assembly,
    placement: &'a Placement,
    places: &'a Places<'a>,
}

impl Lost<'_, '_> {
    /// Check that they are numbers, and refuse rows whose first token trains where positions hold
    /// what belongs to the next token; and where fields do so too, rows whose first value is not what
    /// stands there anyway.
    ///
    /// # Errors
    /// The first of them.
    fn check(&self, shifts_labels: bool) -> Result<()> {
        let unpredicted: Vec<_> = self.placement.unpredicted(self.assembly).collect();
        if unpredicted.is_empty() {
            return Ok(());
        }
        let all = Grid::of_tokens(unpredicted.iter().copied())?;
        for field in self.fields().filter(|field| self.has_lost(field)) {
            field.written_over(&all, self.columns, self.assembly)?;
        }
        let heads = Grid::of_tokens(unpredicted.into_iter().filter(|token| token.begins_row))?;
        match (self.placement.is_shifted(), shifts_labels) {
            _ if heads.rows() == 0 => Ok(()),
            (true, _) => self.refuse(&heads, "shift='next_token'", "the loss mask"),
            (false, true) => self.refuse(&heads, "labels='shifted'", "the label"),
            (false, false) => Ok(()),
        }
    }

    /// The outputs that are fields.
    fn fields(&self) -> impl Iterator<Item = &Output<'_>> {
        let is_field = |output: &&Output| matches!(output.content, Content::Field { .. });
        self.outputs.iter().filter(is_field)
    }

    /// Whether a field has values without a place. Fields with places of their own, such as those of
    /// whole sequences, have not.
    fn has_lost(&self, field: &Output) -> bool {
        let trains = self.places.loss_mask.as_deref();
        trains.is_some_and(|grid| std::ptr::eq(field.grid, grid))
            || (self.placement.is_shifted()
                && std::ptr::eq(field.grid, &raw const self.placement.response))
    }

    /// Refuse the first row of these whose first token trains, or whose first value is not the fill.
    fn refuse(&self, heads: &Grid, shift: &'static str, trained: &str) -> Result<()> {
        let no_place = |head: usize, field: &str, why, remedy| Core::NoPlace {
            shift,
            field: field.to_owned(),
            row: heads.segments()[head].row,
            why,
            remedy,
        };
        if !self.fields().any(|field| field.key == LOSS_MASK) {
            let remedy = "pass a loss_mask that is 0 there";
            return Err(no_place(0, trained, "trains", remedy).into());
        }
        let nothing = Grid::new(heads.rows(), 1, Vec::new())?;
        for field in self.fields().filter(|field| self.has_lost(field)) {
            let found = field.written_over(heads, self.columns, self.assembly)?;
            let filled = field.written_over(&nothing, self.columns, self.assembly)?;
            let size = found.len() / heads.rows();
            let differs = |head: &usize| {
                let bytes = head * size..(head + 1) * size;
                !field.dtype.is_same(&found[bytes.clone()], &filled[bytes])
            };
            let (name, why, remedy) = match field.key {
                LOSS_MASK => (trained, "trains", "set loss_mask to 0 there"),
                key => (
                    key,
                    "is not its fill",
                    "make it the fill, or pass shift='none'",
                ),
            };
            if let Some(head) = (0..heads.rows()).find(differs) {
                return Err(no_place(head, name, why, remedy).into());
            }
        }
        Ok(())
    }
}
