//! The one call: ingest, plan, write, hand over.

use fastcollate::plan::{Align, Assembly, Grid, Layout, Placement, Widths};
use fastcollate::write::Destination;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

use crate::error::Result;
use crate::execute::execute;
use crate::ingest::Rows;
use crate::interrupt::Interruptible;
use crate::job::{Content, Job};
use crate::lease::{Lease, slab};
use crate::memory::BufferPool;
use crate::output::{Dtype, NamedArray, Outputs, Written};
use crate::plan::Plan;

/// From this size on other threads of the interpreter may run while plain memory is copied.
const DETACH_FROM: usize = 1 << 20;

/// How a response-aligned field is read and written. Made once for a field, not once a call.
#[pyclass(frozen, get_all, module = "fastcollate._fastcollate")]
pub struct FieldSpec {
    /// The output's key.
    key: String,
    /// The argument's name, for errors.
    name: String,
    /// Whether one number per row is accepted too; it lands on the last response token.
    per_row: bool,
    /// Whether NaN is an error.
    refuses_nan: bool,
    /// Whether a row may have any length up to the widest response, right-aligned there.
    any_length: bool,
    /// The output's dtype.
    dtype: String,
}

#[pymethods]
impl FieldSpec {
    #[new]
    #[pyo3(signature = (
        key, name, *, per_row=false, refuses_nan=false, any_length=false, dtype="float32"
    ))]
    fn new(
        key: String,
        name: String,
        per_row: bool,
        refuses_nan: bool,
        any_length: bool,
        dtype: &str,
    ) -> Self {
        Self {
            key,
            name,
            per_row,
            refuses_nan,
            any_length,
            dtype: dtype.to_owned(),
        }
    }

    /// The same field as an output of another dtype.
    fn with_dtype(&self, dtype: String) -> Self {
        Self {
            key: self.key.clone(),
            name: self.name.clone(),
            dtype,
            ..*self
        }
    }
}

/// What a field's rows are made of and where they lie, where that differs from the batch's plan.
#[derive(Default)]
struct FieldPlan {
    assembly: Option<Assembly>,
    grid: Option<Grid>,
}

/// A layout and the widths that do not come from the data.
#[pyclass(frozen, get_all, module = "fastcollate._fastcollate")]
pub struct LayoutSpec {
    name: String,
    /// Of token streams.
    pad_to: Option<usize>,
    /// Of prompts.
    max_prompt_len: Option<usize>,
    /// Of responses.
    max_response_len: Option<usize>,
    pad_to_multiple_of: usize,
}

#[pymethods]
impl LayoutSpec {
    #[new]
    fn new(
        name: String,
        pad_to: Option<usize>,
        max_prompt_len: Option<usize>,
        max_response_len: Option<usize>,
        pad_to_multiple_of: usize,
    ) -> Self {
        Self {
            name,
            pad_to,
            max_prompt_len,
            max_response_len,
            pad_to_multiple_of,
        }
    }
}

/// The dtypes of outputs that are no fields.
#[pyclass(frozen, get_all, module = "fastcollate._fastcollate")]
pub struct DtypeSpec {
    input_ids: String,
    attention_mask: String,
    response_mask: String,
}

#[pymethods]
impl DtypeSpec {
    #[new]
    #[pyo3(signature = (input_ids="int64", attention_mask="int64", response_mask="int64"))]
    fn new(input_ids: &str, attention_mask: &str, response_mask: &str) -> Self {
        Self {
            input_ids: input_ids.to_owned(),
            attention_mask: attention_mask.to_owned(),
            response_mask: response_mask.to_owned(),
        }
    }
}

/// Collate rows. Returns the plan, the outputs in order, and the lease of their memory.
///
/// `close` closes a batch whose memory to take over and returns its lease. It is called once all
/// lengths are checked.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "called once, from Python, where keywords cost time"
)]
pub fn collate<'py>(
    py: Python<'py>,
    prompts: &Bound<'py, PyAny>,
    responses: &Bound<'py, PyAny>,
    pad_token_id: i64,
    fields: Vec<(Bound<'py, PyAny>, Bound<'py, FieldSpec>)>,
    layout: &Bound<'py, LayoutSpec>,
    dtypes: &Bound<'py, DtypeSpec>,
    close: Option<&Bound<'py, PyAny>>,
    pool: Option<&Bound<'py, BufferPool>>,
) -> Result<(Plan, Vec<NamedArray<'py>>, Lease)> {
    // The columns are the prompts, the responses, and then the fields.
    let mut columns = vec![
        Rows::new::<i64>("prompts", prompts, false)?,
        Rows::new::<i64>("responses", responses, false)?,
    ];
    let counts = [&columns[0], &columns[1]].map(Rows::len);
    check_memory_for_plan(counts[0].max(counts[1]))?;
    let assembly = Assembly::row_per_turn(&columns[0].lens(), &columns[1].lens())?;
    let Placement { sequence, response } = layout.get().place(&assembly)?;
    let mut field_plans = Vec::with_capacity(fields.len());
    for (values, field) in &fields {
        let (rows, plan) = field.get().ingest(values, &assembly, &response)?;
        columns.push(rows);
        field_plans.push(plan);
    }

    let dtypes = dtypes.get();
    let mut contents = vec![
        (
            "input_ids",
            &sequence,
            Content::Tokens { pad: pad_token_id },
            &dtypes.input_ids,
        ),
        (
            "attention_mask",
            &sequence,
            Content::Mask,
            &dtypes.attention_mask,
        ),
        (
            "response_mask",
            &response,
            Content::Mask,
            &dtypes.response_mask,
        ),
    ];
    for (index, ((_, field), plan)) in fields.iter().zip(&field_plans).enumerate() {
        let field = field.get();
        let content = Content::Field {
            column: 2 + index,
            assembly: plan.assembly.as_ref().unwrap_or(&assembly),
        };
        let grid = plan.grid.as_ref().unwrap_or(&response);
        contents.push((&field.key, grid, content, &field.dtype));
    }

    let mut outputs = Outputs::default();
    for (key, grid, content, dtype) in &contents {
        let dtype = dtype_of(key, content, dtype)?;
        outputs.push(key, dtype, [grid.rows(), grid.width()])?;
    }
    let mut slab = slab(outputs.total_bytes(), close, pool)?;
    let is_zeroed = slab.is_zeroed();
    let regions = outputs.split(slab.bytes_mut());
    let jobs: Vec<Job> = contents
        .iter()
        .zip(outputs.dtypes().zip(regions))
        .flat_map(|((_, grid, content, _), (dtype, region))| {
            let bytes = Destination {
                values: region,
                is_zeroed,
            };
            Job::of_output(*content, dtype, grid, bytes)
        })
        .collect();

    let slices = if outputs.total_bytes() < DETACH_FROM {
        None
    } else {
        let slices = columns.iter().map(|rows| rows.as_slices().transpose());
        slices.collect::<Option<Result<Vec<_>>>>().transpose()?
    };
    match slices {
        Some(slices) => {
            let columns: Vec<_> = slices.into_iter().map(Interruptible).collect();
            py.detach(|| execute(jobs, |job| job.write(&columns, &assembly)))?;
        }
        None => execute(jobs, |job| job.write(&columns, &assembly))?,
    }
    let memory = Written::new(slab, outputs);
    let arrays = memory.arrays(py)?;
    let placement = Placement { sequence, response };
    Ok((
        Plan {
            assembly,
            placement,
        },
        arrays,
        Lease::new(memory),
    ))
}

impl FieldSpec {
    /// Take the field's values, check their lengths, and plan where they go.
    fn ingest<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        batch: &Assembly,
        response: &Grid,
    ) -> Result<(Rows<'py>, FieldPlan)> {
        let Self {
            name, refuses_nan, ..
        } = self;
        let check_count = |rows| Ok(batch.check_row_count(name, rows)?);
        if self.per_row
            && let Some(rows) = Rows::one_number_each(name, values, *refuses_nan, check_count)?
        {
            let plan = FieldPlan {
                assembly: Some(batch.on_last_token(name)?),
                grid: None,
            };
            return Ok((rows, plan));
        }
        let rows = Rows::new::<f32>(name, values, *refuses_nan)?;
        check_count(rows.len())?;
        let lens = rows.lens();
        if !self.any_length {
            batch.check_response_lens(name, &lens)?;
            return Ok((rows, FieldPlan::default()));
        }
        let plan = FieldPlan {
            assembly: Some(batch.with_response_lens(name, &lens)?),
            grid: Some(Grid::aligned(
                lens.into_iter(),
                response.width(),
                Align::Right,
            )?),
        };
        Ok((rows, plan))
    }
}

/// The dtype of a name, if such an output can have it.
fn dtype_of(key: &str, content: &Content, name: &str) -> PyResult<Dtype> {
    let dtypes = content.dtypes();
    let dtype = dtypes.iter().find(|dtype| dtype.name() == name);
    dtype.copied().ok_or_else(|| {
        let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
        PyValueError::new_err(format!(
            "dtypes makes {key} {name}; it can be {}",
            names.join(", ")
        ))
    })
}

/// Refuse more rows than there is memory for their plan, where allocating its tables would abort.
fn check_memory_for_plan(rows: usize) -> PyResult<()> {
    Vec::<[u64; 32]>::new()
        .try_reserve_exact(rows)
        .map_err(|_| PyMemoryError::new_err(format!("no memory for a plan of {rows} rows")))
}

impl LayoutSpec {
    fn place(&self, assembly: &Assembly) -> Result<Placement> {
        let layout = match self.name.as_str() {
            "left" => Layout::Left,
            "two_segment" => Layout::TwoSegment,
            "right" => Layout::Right,
            name => {
                let message = format!("layout is {name:?}; pass 'left', 'two_segment' or 'right'");
                return Err(PyValueError::new_err(message).into());
            }
        };
        let widths = Widths {
            sequence: self.pad_to,
            prompt: self.max_prompt_len,
            response: self.max_response_len,
            multiple_of: self.pad_to_multiple_of,
        };
        Ok(Placement::of_layout(assembly, layout, widths)?)
    }
}
