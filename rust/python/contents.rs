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

/// The key of the loss mask.
pub const LOSS_MASK: &str = "loss_mask";

/// The key of what tells where a token's routes were not captured.
const ROUTER_PADDING_MASK: &str = "router_padding_mask";

/// The outputs that are no fields: their dtypes, and which of the optional ones there are.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct OutputSpec {
    input_ids: Dtype,
    attention_mask: Dtype,
    response_mask: Dtype,
    /// What padding holds, and the dtype.
    position_ids: Option<(PositionPadding, Dtype)>,
    /// Whether they are shifted, and the dtype.
    labels: Option<(bool, Dtype)>,
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
    ) -> PyResult<Self> {
        let ids = |key, name: &str| Dtype::of_name(key, name, Dtype::INTEGERS);
        let mask = |key, name: &str| Dtype::of_name(key, name, Dtype::OF_MASKS);
        let position_ids = position_ids.map(|(padding, dtype)| {
            Ok::<_, PyErr>((padding_of(&padding)?, ids("position_ids", &dtype)?))
        });
        let labels =
            labels.map(|(shifted, dtype)| ids("labels", &dtype).map(|dtype| (shifted, dtype)));
        Ok(Self {
            input_ids: ids("input_ids", input_ids)?,
            attention_mask: mask("attention_mask", attention_mask)?,
            response_mask: mask("response_mask", response_mask)?,
            position_ids: position_ids.transpose()?,
            labels: labels.transpose()?,
        })
    }

    /// The dtype of the ids.
    #[getter]
    fn input_ids(&self) -> &'static str {
        self.input_ids.name()
    }

    /// The dtype of the attention mask.
    #[getter]
    fn attention_mask(&self) -> &'static str {
        self.attention_mask.name()
    }

    /// The dtype of the response mask.
    #[getter]
    fn response_mask(&self) -> &'static str {
        self.response_mask.name()
    }

    /// What padding holds in the positions, and their dtype, if there are any.
    #[getter]
    fn position_ids(&self) -> Option<(&'static str, &'static str)> {
        self.position_ids
            .map(|(padding, dtype)| (name_of(padding), dtype.name()))
    }

    /// Whether labels are shifted, and their dtype, if there are any.
    #[getter]
    fn labels(&self) -> Option<(bool, &'static str)> {
        self.labels.map(|(shifted, dtype)| (shifted, dtype.name()))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let spec = slf.get();
        let arguments = (
            spec.input_ids.name(),
            spec.attention_mask.name(),
            spec.response_mask.name(),
            spec.position_ids
                .map(|(padding, dtype)| (name_of(padding), dtype.name())),
            spec.labels.map(|(shifted, dtype)| (shifted, dtype.name())),
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
                gaps_untrained: field.key() == LOSS_MASK,
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
    pub fn outputs<'a>(
        &self,
        pad_token_id: i64,
        placement: &'a Placement,
        tables: Option<&'a OffsetTables>,
        loss_mask: Option<(usize, Dtype)>,
    ) -> Vec<Output<'a>> {
        let Placement {
            sequence, response, ..
        } = placement;
        let mut outputs = Vec::new();
        let mut push = |key, grid, content, dtype| {
            outputs.push(Output {
                key,
                grid,
                shape: shape_of(grid, placement),
                content,
                dtype,
            });
        };
        let tokens = Content::Tokens { pad: pad_token_id };
        push("input_ids", sequence, tokens, self.input_ids);
        if let Some(OffsetTables {
            sequence,
            response,
            grid,
        }) = tables
        {
            push("cu_seqlens", grid, Content::Table(sequence), Dtype::I32);
            push("offsets", grid, Content::Table(sequence), Dtype::I64);
            push(
                "response_offsets",
                grid,
                Content::Table(response),
                Dtype::I64,
            );
        } else {
            let mask = Content::Mask { inverted: false };
            push("attention_mask", sequence, mask, self.attention_mask);
            push("response_mask", response, mask, self.response_mask);
        }
        if let Some((padding, dtype)) = self.position_ids {
            push("position_ids", sequence, Content::Positions(padding), dtype);
        }
        if let Some((shifted, dtype)) = self.labels {
            let labels = Content::Labels {
                mask: loss_mask,
                shifted,
            };
            push("labels", sequence, labels, dtype);
        }
        outputs
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

/// What padding of positions can hold, by name.
const PADDINGS: [(PositionPadding, &str); 3] = [
    (PositionPadding::Zero, "zero"),
    (PositionPadding::One, "one"),
    (PositionPadding::RepeatLast, "repeat_last"),
];

fn padding_of(name: &str) -> PyResult<PositionPadding> {
    let named = PADDINGS.iter().find(|(_, other)| *other == name);
    named.map(|(padding, _)| *padding).ok_or_else(|| {
        let message = format!("position_ids is '{name}'; pass 'zero', 'one' or 'repeat_last'");
        PyValueError::new_err(message)
    })
}

fn name_of(padding: PositionPadding) -> &'static str {
    let named = PADDINGS.iter().find(|(other, _)| *other == padding);
    named.map_or("", |(_, name)| name)
}
