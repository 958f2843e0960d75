//! The one call: ingest, plan, write, hand over.

use fastcollate::plan::{Assembly, Grid, Layout, Placement};
use fastcollate::write::{Destination, PositionPadding};
use fastcollate::{Check, Error as Core};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

use crate::error::Result;
use crate::execute::{execute, execute_slices};
use crate::field::FieldSpec;
use crate::ingest::Rows;
use crate::job::{Content, Job};
use crate::layout::LayoutSpec;
use crate::lease::{Lease, slab};
use crate::memory::BufferPool;
use crate::output::{Dtype, NamedArray, Outputs, Written};
use crate::plan::Plan;

/// From this size on other threads of the interpreter may run while plain memory is copied.
const DETACH_FROM: usize = 1 << 20;

/// The key of what tells where a token's routes were not captured.
const ROUTER_PADDING_MASK: &str = "router_padding_mask";

/// Where the longest row's length stands among the outputs of a jagged layout: behind the offsets.
const MAX_SEQLEN_AT: usize = 3;

/// The outputs that are no fields: their dtypes, and which of the optional ones there are.
#[pyclass(frozen, get_all, module = "fastcollate._fastcollate")]
pub struct OutputSpec {
    input_ids: String,
    attention_mask: String,
    response_mask: String,
    /// What padding holds, and the dtype.
    position_ids: Option<(String, String)>,
    /// Whether they are shifted, and the dtype.
    labels: Option<(bool, String)>,
}

#[pymethods]
impl OutputSpec {
    #[new]
    #[pyo3(signature = (
        input_ids="int64", attention_mask="int64", response_mask="int64",
        position_ids=None, labels=None
    ))]
    fn new(
        input_ids: &str,
        attention_mask: &str,
        response_mask: &str,
        position_ids: Option<(String, String)>,
        labels: Option<(bool, String)>,
    ) -> Self {
        Self {
            input_ids: input_ids.to_owned(),
            attention_mask: attention_mask.to_owned(),
            response_mask: response_mask.to_owned(),
            position_ids,
            labels,
        }
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let spec = slf.get();
        let arguments = (
            &spec.input_ids,
            &spec.attention_mask,
            &spec.response_mask,
            spec.position_ids.clone(),
            spec.labels.clone(),
        );
        Ok((slf.get_type(), arguments.into_pyobject(slf.py())?))
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
    outputs: &Bound<'py, OutputSpec>,
    close: Option<&Bound<'py, PyAny>>,
    pool: Option<&Bound<'py, BufferPool>>,
) -> Result<Batch<'py>> {
    // The columns are the prompts, the responses, and then the fields.
    let mut columns = vec![
        Rows::new::<i64>("prompts", prompts, Check::None)?,
        Rows::new::<i64>("responses", responses, Check::None)?,
    ];
    let assembly = Assembly::row_per_turn(&columns[0].lens(), &columns[1].lens())?;
    for (values, field) in &fields {
        columns.push(field.get().read(values, &assembly)?);
    }
    let specs: Vec<_> = fields.iter().map(|(_, field)| field.get()).collect();
    let request = Request {
        pad_token_id,
        fields: &specs,
        layout: layout.get(),
        outputs: outputs.get(),
        close,
        pool,
    };
    request.write(py, columns, assembly)
}

/// What a batch is asked to be.
struct Request<'a, 'py> {
    pad_token_id: i64,
    fields: &'a [&'a FieldSpec],
    layout: &'a LayoutSpec,
    outputs: &'a OutputSpec,
    close: Option<&'a Bound<'py, PyAny>>,
    pool: Option<&'a Bound<'py, BufferPool>>,
}

/// An output to be written.
struct Output<'a> {
    key: &'a str,
    grid: &'a Grid,
    shape: Vec<usize>,
    content: Content<'a>,
    dtype: Dtype,
}

/// A written batch: its plan, its outputs in order, and the lease of their memory.
type Batch<'py> = (Plan, Vec<NamedArray<'py>>, Lease);

impl<'py> Request<'_, 'py> {
    /// Plan where columns go, and write them.
    fn write(
        &self,
        py: Python<'py>,
        mut columns: Vec<Rows<'py>>,
        assembly: Assembly,
    ) -> Result<Batch<'py>> {
        let fields = self.fields;
        let placement = self.layout.place(&assembly)?;
        let field_plans = fields.iter().zip(&mut columns[2..]);
        let field_plans = field_plans
            .map(|(field, rows)| field.plan(rows, &assembly, &placement))
            .collect::<Result<Vec<_>>>()?;
        let tables = OffsetTables::of_jagged(&placement)?;
        let loss_mask = fields.iter().position(|field| field.key() == "loss_mask");

        let (pad, tables) = (self.pad_token_id, tables.as_ref());
        let mut outputs = self.outputs.outputs(pad, &placement, tables, loss_mask)?;
        let columns_of_fields = columns.iter().enumerate().skip(2);
        for ((field, plan), (column, rows)) in
            fields.iter().zip(&field_plans).zip(columns_of_fields)
        {
            let grid = plan.grid.as_ref().unwrap_or(&placement.response);
            let mut shape = if field.is_per_row() {
                vec![grid.rows()]
            } else {
                shape_of(grid, &placement)
            };
            shape.extend(rows.trailing());
            let content = Content::Field {
                column,
                assembly: plan.assembly.as_ref().unwrap_or(&assembly),
                inner: rows.inner(),
                filling: plan.filling,
            };
            outputs.push(Output {
                key: field.key(),
                grid,
                shape,
                content,
                dtype: plan.dtype,
            });
            if let Some(captured) = &plan.captured {
                outputs.push(Output {
                    key: ROUTER_PADDING_MASK,
                    grid: captured,
                    shape: shape_of(captured, &placement),
                    content: Content::Mask { inverted: true },
                    dtype: Dtype::Bool,
                });
            }
        }
        let (mut arrays, lease) = self.write_outputs(py, &outputs, &columns, &assembly)?;
        let is_jagged = tables.is_some();
        let plan = Plan {
            assembly,
            placement,
        };
        if is_jagged {
            let longest = plan.longest_row().into_bound_py_any(py)?;
            arrays.insert(MAX_SEQLEN_AT, (PyString::new(py, "max_seqlen"), longest));
        }
        Ok((plan, arrays, lease))
    }

    /// Take the memory of all outputs, write them and hand them over.
    fn write_outputs(
        &self,
        py: Python<'py>,
        all: &[Output],
        columns: &[Rows],
        assembly: &Assembly,
    ) -> Result<(Vec<NamedArray<'py>>, Lease)> {
        let mut outputs = Outputs::default();
        for output in all {
            outputs.push(output.key, output.dtype, output.shape.clone())?;
        }
        let mut slab = slab(outputs.total_bytes(), self.close, self.pool)?;
        let is_zeroed = slab.is_zeroed();
        let regions = outputs.split(slab.bytes_mut());
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

        let slices = if outputs.total_bytes() < DETACH_FROM {
            None
        } else {
            let slices = columns.iter().map(|rows| rows.as_slices().transpose());
            slices.collect::<Option<Result<Vec<_>>>>().transpose()?
        };
        match slices {
            Some(slices) => py.detach(|| execute_slices(jobs, &slices, assembly))?,
            None => execute(jobs, |job| job.write(columns, assembly))?,
        }
        let memory = Written::new(slab, outputs);
        Ok((memory.arrays(py)?, Lease::new(memory)))
    }
}

impl OutputSpec {
    /// The outputs that are no fields.
    fn outputs<'a>(
        &self,
        pad_token_id: i64,
        placement: &'a Placement,
        tables: Option<&'a OffsetTables>,
        loss_mask: Option<usize>,
    ) -> PyResult<Vec<Output<'a>>> {
        let Placement {
            sequence, response, ..
        } = placement;
        let output = |key, grid, content: Content<'a>, dtype: &str| {
            Ok::<_, PyErr>(Output {
                key,
                grid,
                shape: shape_of(grid, placement),
                content,
                dtype: Dtype::of_name(key, dtype, content.dtypes())?,
            })
        };
        let tokens = Content::Tokens { pad: pad_token_id };
        let mut outputs = vec![output("input_ids", sequence, tokens, &self.input_ids)?];
        if let Some(tables) = tables {
            let offsets = Content::Table(&tables.sequence);
            outputs.push(output("cu_seqlens", &tables.grid, offsets, "int32")?);
            outputs.push(output("offsets", &tables.grid, offsets, "int64")?);
            let offsets = Content::Table(&tables.response);
            outputs.push(output("response_offsets", &tables.grid, offsets, "int64")?);
        } else {
            let mask = Content::Mask { inverted: false };
            outputs.push(output(
                "attention_mask",
                sequence,
                mask,
                &self.attention_mask,
            )?);
            outputs.push(output(
                "response_mask",
                response,
                mask,
                &self.response_mask,
            )?);
        }
        if let Some((padding, dtype)) = &self.position_ids {
            let positions = Content::Positions(position_padding(padding)?);
            outputs.push(output("position_ids", sequence, positions, dtype)?);
        }
        if let Some((shifted, dtype)) = &self.labels {
            let labels = Content::Labels {
                mask: loss_mask.map(|index| 2 + index),
                shifted: *shifted,
            };
            outputs.push(output("labels", sequence, labels, dtype)?);
        }
        Ok(outputs)
    }
}

/// The shape of an output over a grid: one long row counts as no row.
fn shape_of(grid: &Grid, placement: &Placement) -> Vec<usize> {
    if placement.layout == Layout::Jagged {
        vec![grid.width()]
    } else {
        vec![grid.rows(), grid.width()]
    }
}

/// Where rows begin in a jagged layout, and where the last one ends.
struct OffsetTables {
    sequence: Vec<usize>,
    response: Vec<usize>,
    /// The shape of either.
    grid: Grid,
}

impl OffsetTables {
    fn of_jagged(placement: &Placement) -> Result<Option<Self>> {
        if placement.layout != Layout::Jagged {
            return Ok(None);
        }
        let offsets = |grid: &Grid| {
            let starts = grid.segments().iter().map(|segment| segment.dst_col);
            starts.chain([grid.width()]).collect::<Vec<_>>()
        };
        let sequence = offsets(&placement.sequence);
        let tokens = placement.sequence.width();
        if i32::try_from(tokens).is_err() {
            return Err(Core::TooManyTokens { tokens }.into());
        }
        Ok(Some(Self {
            grid: Grid::new(1, sequence.len(), Vec::new())?,
            response: offsets(&placement.response),
            sequence,
        }))
    }
}

fn position_padding(name: &str) -> PyResult<PositionPadding> {
    match name {
        "zero" => Ok(PositionPadding::Zero),
        "one" => Ok(PositionPadding::One),
        "repeat_last" => Ok(PositionPadding::RepeatLast),
        _ => Err(PyValueError::new_err(format!(
            "position_ids is '{name}'; pass 'zero', 'one' or 'repeat_last'"
        ))),
    }
}
