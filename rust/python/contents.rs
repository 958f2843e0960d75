//! Which outputs a batch has, and what stands in each.

use fastcollate::Error as Core;
use fastcollate::plan::{Assembly, Grid, Layout, Placement};
use fastcollate::write::PositionPadding;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::error::Result;
use crate::field::{FieldPlan, FieldSpec};
use crate::ingest::Rows;
use crate::job::Content;
use crate::output::Dtype;

/// The key of what tells where a token's routes were not captured.
const ROUTER_PADDING_MASK: &str = "router_padding_mask";

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

/// An output to be written.
pub struct Output<'a> {
    pub key: &'a str,
    pub grid: &'a Grid,
    pub shape: Vec<usize>,
    pub content: Content<'a>,
    pub dtype: Dtype,
}

impl<'a> Output<'a> {
    /// A field, and beside routes what tells where none were captured.
    pub fn of_field(
        field: &'a FieldSpec,
        plan: &'a FieldPlan,
        column: usize,
        rows: &Rows,
        assembly: &'a Assembly,
        placement: &'a Placement,
    ) -> impl Iterator<Item = Self> {
        let grid = plan.grid.as_ref().unwrap_or(&placement.response);
        let mut shape = if field.is_per_row() {
            vec![grid.rows()]
        } else {
            shape_of(grid, placement)
        };
        shape.extend(rows.trailing());
        let values = Self {
            key: field.key(),
            grid,
            shape,
            content: Content::Field {
                column,
                assembly: plan.assembly.as_ref().unwrap_or(assembly),
                inner: rows.inner(),
                filling: plan.filling,
            },
            dtype: plan.dtype,
        };
        let mask = plan.captured.as_ref().map(|captured| Self {
            key: ROUTER_PADDING_MASK,
            grid: captured,
            shape: shape_of(captured, placement),
            content: Content::Mask { inverted: true },
            dtype: Dtype::Bool,
        });
        [Some(values), mask].into_iter().flatten()
    }
}

impl OutputSpec {
    /// The outputs that are no fields.
    ///
    /// # Errors
    /// Dtypes and position paddings that cannot be.
    pub fn outputs<'a>(
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
pub struct OffsetTables {
    sequence: Vec<usize>,
    response: Vec<usize>,
    /// The shape of either.
    grid: Grid,
}

impl OffsetTables {
    /// The tables of a jagged layout; other layouts have none.
    ///
    /// # Errors
    /// More tokens than int32 can count.
    pub fn of_jagged(placement: &Placement) -> Result<Option<Self>> {
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
