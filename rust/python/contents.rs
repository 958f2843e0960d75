//! Which outputs a batch has, and what stands in each.

use std::borrow::Cow;

use fastcollate::batch::{Alignment, LOSS_MASK, Output as Described, OutputSpec as Spec, What};
use fastcollate::plan::{Assembly, Grid, Layout, Placement};
use fastcollate::write::{Destination, PositionPadding};
use fastcollate::{Dtype, IntDtype};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::error::Result;
use crate::field::FieldPlan;
use crate::ingest::Rows;
use crate::job::{Content, Job};
use crate::memory::filled;
use crate::seqlens::Seqlens;

/// The outputs that are no fields: their dtypes, and which of the optional ones there are.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct OutputSpec(pub Spec);

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
    ) -> Result<Self> {
        let mask = |key, name: &str| Dtype::of_name(key, name, Dtype::OF_MASKS);
        let (padding, dtype) = position_ids.unwrap_or((None, "int64".to_owned()));
        let labels = labels.map(|(shifted, dtype)| {
            IntDtype::of_name("labels", &dtype).map(|dtype| (shifted, dtype))
        });
        let spec = Spec {
            input_ids: IntDtype::of_name("input_ids", input_ids)?,
            attention_mask: mask("attention_mask", attention_mask)?,
            response_mask: mask("response_mask", response_mask)?,
            sequence_ids: IntDtype::of_name("sequence_ids", sequence_ids)?,
            position_ids: (
                padding.as_deref().map(padding_of).transpose()?,
                IntDtype::of_name("position_ids", &dtype)?,
            ),
            labels: labels.transpose()?,
            is_bare: bare,
            loss_mask: None,
        };
        Self(spec).with_loss_mask(loss_mask)
    }

    /// What padding holds in the positions, if it was said, and their dtype.
    #[getter]
    fn position_ids(&self) -> (Option<&'static str>, &'static str) {
        let (padding, dtype) = self.0.position_ids;
        (padding.map(name_of), dtype.name())
    }

    /// Whether labels are shifted, and their dtype, if there are any.
    #[getter]
    fn labels(&self) -> Option<(bool, &'static str)> {
        self.0
            .labels
            .map(|(shifted, dtype)| (shifted, dtype.name()))
    }

    /// The dtype of the ids.
    #[getter]
    fn input_ids(&self) -> &'static str {
        self.0.input_ids.name()
    }

    /// The dtype of the loss mask, if it says what trains.
    #[getter]
    fn loss_mask(&self) -> Option<&'static str> {
        self.0.loss_mask.map(Dtype::name)
    }

    /// The same outputs with or without a loss mask that says what trains.
    fn with_loss_mask(&self, dtype: Option<&str>) -> Result<Self> {
        let dtype = dtype.map(|name| Dtype::of_name(LOSS_MASK, name, Dtype::FLOATS));
        Ok(Self(Spec {
            loss_mask: dtype.transpose()?,
            ..self.0
        }))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let own = slf.get();
        let arguments = (
            own.input_ids(),
            own.0.attention_mask.name(),
            own.0.response_mask.name(),
            own.position_ids(),
            own.labels(),
            own.0.sequence_ids.name(),
            own.0.is_bare,
            own.loss_mask(),
        );
        Ok((slf.get_type(), arguments.into_pyobject(slf.py())?))
    }
}

/// An output to be written.
pub struct Output<'a> {
    pub grid: &'a Grid,
    pub shape: Vec<usize>,
    pub content: Content<'a>,
    pub dtype: Dtype,
    pub key: &'a str,
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

impl<'a> Places<'a> {
    /// Of a batch that `has_column` of loss masks, or has not.
    pub fn new(
        spec: &Spec,
        placement: &'a Placement,
        assembly: &Assembly,
        has_column: bool,
    ) -> Self {
        let loss_mask = || match has_column {
            true => placement.predicted_responses(assembly),
            false => Cow::Owned(placement.trained_responses(assembly)),
        };
        let labels = |(shifted, _)| placement.labels(assembly, shifted);
        Self {
            response_mask: placement.real_responses(assembly),
            loss_mask: spec.loss_mask.map(|_| loss_mask()),
            labels: spec.labels.map(labels),
        }
    }
}

/// What outputs are made of.
pub struct Parts<'a, 'py> {
    pub spec: &'a Spec,
    pub pad_token_id: i64,
    pub assembly: &'a Assembly,
    pub placement: &'a Placement,
    pub places: &'a Places<'a>,
    pub seqlens: &'a Seqlens,
    pub fields: &'a [Option<FieldPlan>],
    /// The prompts, the responses, and one for each field.
    pub columns: &'a [Rows<'py>],
    /// The field of loss masks.
    pub loss_mask: Option<usize>,
}

impl<'a> Parts<'a, '_> {
    /// Where an output lies and what stands in it, if it is written here.
    pub fn output(&self, output: &'a Described) -> Option<Output<'a>> {
        let (placement, places) = (self.placement, self.places);
        let mask = Content::Mask { inverted: false };
        let (grid, content) = match output.what {
            What::InputIds => {
                let pad = self.pad_token_id;
                (&placement.sequence, Content::Tokens { pad })
            }
            What::AttentionMask => (&placement.sequence, mask),
            What::ResponseMask => (&*places.response_mask, mask),
            What::SequenceIds => (&placement.sequence, Content::RowIndices),
            What::PositionIds => {
                let (padding, _) = self.spec.position_ids;
                // Every part of a sequence counts from 0 on; if nothing is said of padding, with it.
                let grid = match (padding, &self.seqlens.parts, &self.seqlens.positions) {
                    (Some(_), Some(parts), _) => parts,
                    (None, _, Some(positions)) => positions,
                    _ => &placement.sequence,
                };
                let padding = padding.unwrap_or(PositionPadding::Zero);
                (grid, Content::Positions(padding))
            }
            What::Labels => {
                let (grid, shifted) = places.labels.as_ref()?;
                let mask = self.loss_mask.and_then(|index| {
                    let dtype = self.fields[index].as_ref()?.dtype;
                    Some((2 + index, dtype))
                });
                let shifted = *shifted;
                (&**grid, Content::Labels { mask, shifted })
            }
            What::LossMask => (places.loss_mask.as_deref()?, mask),
            What::Offsets(_) | What::Segments { .. } => {
                let table = self.seqlens.table(output.what)?;
                (&table.grid, Content::Table(&table.values))
            }
            What::Field(index) => {
                let plan = self.fields[index].as_ref()?;
                let rows = &self.columns[2 + index];
                let response = match &places.loss_mask {
                    Some(grid) if self.loss_mask == Some(index) => grid,
                    _ => &placement.response,
                };
                let content = Content::Field {
                    column: 2 + index,
                    assembly: plan.assembly.as_ref().unwrap_or(self.assembly),
                    inner: rows.inner(),
                    filling: plan.filling,
                };
                (plan.grid.as_ref().unwrap_or(response), content)
            }
            What::RouterPaddingMask(index) => {
                let plan = self.fields[index].as_ref()?;
                (plan.captured.as_ref()?, Content::Mask { inverted: true })
            }
            What::Longest
            | What::LongestSegment { .. }
            | What::RowSegments { .. }
            | What::JoinedOffsets(_) => return None,
        };
        let mut shape = match output.align {
            Alignment::Row => vec![grid.rows()],
            Alignment::Sequence | Alignment::Response if placement.layout != Layout::Jagged => {
                vec![grid.rows(), grid.width()]
            }
            _ => vec![grid.width()],
        };
        if let What::Field(index) = output.what {
            shape.extend(self.columns[2 + index].trailing());
        }
        Some(Output {
            grid,
            shape,
            content,
            dtype: output.dtype?,
            key: &output.key,
        })
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
