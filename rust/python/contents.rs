//! Which outputs a batch has, and what stands in each.

use std::borrow::Cow;

use fastcollate::plan::{Assembly, Grid, Layout, Placement};
use fastcollate::write::{Destination, PositionPadding};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::error::Result;
use crate::field::{FieldPlan, FieldSpec};
use crate::ingest::Rows;
use crate::job::{Content, Job};
use crate::memory::filled;
use crate::output::Dtype;
use crate::seqlens::Seqlens;

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
    /// Which sequence a token is of, where several share an output row.
    sequence_ids: Dtype,
    /// What padding holds, and the dtype. If nothing is said, only packed batches have positions, and
    /// padding counts as their tail says.
    position_ids: (Option<PositionPadding>, Dtype),
    /// Whether they are shifted, and the dtype.
    labels: Option<(bool, Dtype)>,
    /// Whether there is nothing but ids and the attention mask, in packed batches too.
    is_bare: bool,
    /// The dtype of the loss mask where it says what trains: it is 0 on tokens that nothing predicts,
    /// and follows from the plan where no column has it. None where it is a column like others, or
    /// no output.
    loss_mask: Option<Dtype>,
}

#[pymethods]
impl OutputSpec {
    #[new]
    #[pyo3(signature = (
        input_ids="int64", attention_mask="int64", response_mask="int64",
        position_ids=None, labels=None, sequence_ids="int64", bare=false, loss_mask=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "all have defaults")]
    fn new(
        input_ids: &str,
        attention_mask: &str,
        response_mask: &str,
        position_ids: Option<(Option<String>, String)>,
        labels: Option<(bool, String)>,
        sequence_ids: &str,
        bare: bool,
        loss_mask: Option<&str>,
    ) -> PyResult<Self> {
        let ids = |key, name: &str| Dtype::of_name(key, name, Dtype::INTEGERS);
        let mask = |key, name: &str| Dtype::of_name(key, name, Dtype::OF_MASKS);
        let (padding, dtype) = position_ids.unwrap_or((None, "int64".to_owned()));
        let padding = padding.as_deref().map(padding_of).transpose()?;
        let labels =
            labels.map(|(shifted, dtype)| ids("labels", &dtype).map(|dtype| (shifted, dtype)));
        let loss_mask = loss_mask.map(|name| Dtype::of_name(LOSS_MASK, name, Dtype::FLOATS));
        Ok(Self {
            input_ids: ids("input_ids", input_ids)?,
            attention_mask: mask("attention_mask", attention_mask)?,
            response_mask: mask("response_mask", response_mask)?,
            sequence_ids: ids("sequence_ids", sequence_ids)?,
            position_ids: (padding, ids("position_ids", &dtype)?),
            labels: labels.transpose()?,
            is_bare: bare,
            loss_mask: loss_mask.transpose()?,
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

    /// The dtype of what tells sequences apart that share a row.
    #[getter]
    fn sequence_ids(&self) -> &'static str {
        self.sequence_ids.name()
    }

    /// What padding holds in the positions, and their dtype. If nothing is said, only packed batches
    /// have some.
    #[getter]
    fn position_ids(&self) -> (Option<&'static str>, &'static str) {
        let (padding, dtype) = self.position_ids;
        (padding.map(name_of), dtype.name())
    }

    /// Whether labels are shifted, and their dtype, if there are any.
    #[getter]
    fn labels(&self) -> Option<(bool, &'static str)> {
        self.labels.map(|(shifted, dtype)| (shifted, dtype.name()))
    }

    /// The dtype of the loss mask, if it says what trains.
    #[getter]
    fn loss_mask(&self) -> Option<&'static str> {
        self.loss_mask.map(Dtype::name)
    }

    /// The same outputs with or without a loss mask that says what trains.
    fn with_loss_mask(&self, dtype: Option<&str>) -> PyResult<Self> {
        let dtype = dtype.map(|name| Dtype::of_name(LOSS_MASK, name, Dtype::FLOATS));
        Ok(Self {
            loss_mask: dtype.transpose()?,
            ..*self
        })
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let spec = slf.get();
        let arguments = (
            spec.input_ids.name(),
            spec.attention_mask.name(),
            spec.response_mask.name(),
            spec.position_ids(),
            spec.labels.map(|(shifted, dtype)| (shifted, dtype.name())),
            spec.sequence_ids.name(),
            spec.is_bare,
            spec.loss_mask(),
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
    /// A field, whose values lie at those places if it has none of its own, and beside routes what
    /// tells where none were captured.
    pub fn of_field(
        field: &'a FieldSpec,
        plan: &'a FieldPlan,
        column: usize,
        rows: &Rows,
        assembly: &'a Assembly,
        placement: &'a Placement,
        places: &'a Places,
    ) -> impl Iterator<Item = Self> {
        let response = match &places.loss_mask {
            Some(grid) if field.key() == LOSS_MASK => grid,
            _ => &placement.response,
        };
        let grid = plan.grid.as_ref().unwrap_or(response);
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

impl Output<'_> {
    /// The bytes of the same output over another grid.
    ///
    /// # Errors
    /// What the columns raise.
    pub fn written_over(
        &self,
        grid: &Grid,
        columns: &[Rows],
        assembly: &Assembly,
    ) -> Result<Vec<u8>> {
        let values = grid.positions().checked_mul(self.content.inner());
        let size = values.and_then(|values| values.checked_mul(self.dtype.size()));
        let size = size.unwrap_or(usize::MAX);
        let mut words = filled(size.div_ceil(8), |_| 0_u64)?; // aligned for every dtype
        let values = &mut bytemuck::cast_slice_mut(&mut words)[..size];
        let bytes = Destination {
            values,
            is_zeroed: false,
        };
        for job in Job::of_output(self.content, self.dtype, grid, bytes) {
            job.write(columns, assembly)?;
        }
        Ok(bytemuck::cast_slice(&words)[..size].to_vec())
    }
}

/// Where outputs lie that say what is sampled, and what trains.
pub struct Places<'a> {
    /// Responses of real rows.
    response_mask: Cow<'a, Grid>,
    /// What can train, of a column, or does, if there is none.
    pub loss_mask: Option<Cow<'a, Grid>>,
    /// Labels, and whether each is that of the next token.
    labels: Option<(Cow<'a, Grid>, bool)>,
}

impl OutputSpec {
    /// Where outputs lie in a batch that `has_column` of loss masks, or has not.
    pub fn places<'a>(
        &self,
        placement: &'a Placement,
        assembly: &Assembly,
        has_column: bool,
    ) -> Places<'a> {
        let loss_mask = || match has_column {
            true => placement.predicted_responses(assembly),
            false => Cow::Owned(placement.trained_responses(assembly)),
        };
        let labels = |(shifted, _)| placement.labels(assembly, shifted);
        Places {
            response_mask: placement.real_responses(assembly),
            loss_mask: self.loss_mask.map(|_| loss_mask()),
            labels: self.labels.map(labels),
        }
    }

    /// Whether positions hold labels of the next token that response-aligned fields are beside.
    pub fn shifts_labels(&self) -> bool {
        self.labels.is_some_and(|(shifted, _)| shifted)
    }

    /// The outputs that are no fields.
    pub fn outputs<'a>(
        &self,
        pad_token_id: i64,
        placement: &'a Placement,
        seqlens: &'a Seqlens,
        places: &'a Places,
        loss_mask: Option<(usize, Dtype)>,
    ) -> Vec<Output<'a>> {
        let sequence = &placement.sequence;
        let output = |key, grid, content, dtype| Output {
            key,
            grid,
            shape: shape_of(grid, placement),
            content,
            dtype,
        };
        let tokens = Content::Tokens { pad: pad_token_id };
        let mut outputs = vec![output("input_ids", sequence, tokens, self.input_ids)];
        let attention_mask = {
            let mask = Content::Mask { inverted: false };
            output("attention_mask", sequence, mask, self.attention_mask)
        };
        if self.is_bare {
            outputs.push(attention_mask);
            return outputs;
        }
        let (padding, dtype) = self.position_ids;
        // Every part of a sequence counts from 0 on; if nothing is said of padding, with it.
        let positions = match (padding, &seqlens.parts, &seqlens.positions) {
            (Some(padding), Some(parts), _) => Some((parts, padding)),
            (Some(padding), None, _) => Some((sequence, padding)),
            (None, _, Some(positions)) => Some((positions, PositionPadding::Zero)),
            (None, _, None) => None,
        };
        let position_ids = positions.map(|(grid, padding)| {
            output("position_ids", grid, Content::Positions(padding), dtype)
        });
        let response_mask = {
            let mask = Content::Mask { inverted: false };
            output(
                "response_mask",
                &places.response_mask,
                mask,
                self.response_mask,
            )
        };
        let tables = seqlens.tables.iter().map(|table| Output {
            shape: vec![table.values.len()],
            ..output(
                table.key,
                &table.grid,
                Content::Table(&table.values),
                table.dtype,
            )
        });
        match placement.layout {
            Layout::Packed => {
                outputs.extend(position_ids);
                outputs.push(output(
                    "sequence_ids",
                    sequence,
                    Content::RowIndices,
                    self.sequence_ids,
                ));
                outputs.extend(tables);
                outputs.push(response_mask);
            }
            Layout::Jagged => {
                outputs.extend(tables);
                outputs.extend(position_ids);
            }
            _ => {
                outputs.push(attention_mask);
                outputs.push(response_mask);
                outputs.extend(position_ids);
            }
        }
        if let (Some((_, dtype)), Some((grid, shifted))) = (self.labels, &places.labels) {
            let labels = Content::Labels {
                mask: loss_mask,
                shifted: *shifted,
            };
            outputs.push(output("labels", grid, labels, dtype));
        }
        if let (Some(dtype), Some(grid), None) = (self.loss_mask, &places.loss_mask, loss_mask) {
            let mask = Content::Mask { inverted: false };
            outputs.push(output(LOSS_MASK, grid, mask, dtype));
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
