//! The outputs of a batch: a table that follows from the request, before there are rows.

use std::borrow::Cow;

use super::{FieldKind, FieldSpec};
use crate::dtype::{Dtype, IntDtype};
use crate::error::{Error, Result};
use crate::fill_number::Number;
use crate::plan::{Align, Form, Layout};
use crate::write::PositionPadding;

/// Labels without a target: the `ignore_index` of losses.
pub const IGNORE_INDEX: i64 = -100;

/// The key of the loss mask.
pub const LOSS_MASK: &str = "loss_mask";

/// The key of log-probabilities of the sampler.
pub const LOGPROBS: &str = "logprobs";

/// The keys of the segment tables for attention over packed rows: offsets, longest length, and
/// offsets in every output row.
const SEGMENT_KEYS: [&str; 3] = ["cu_seqlens", "max_seqlen", "row_cu_seqlens"];

/// The same tables for rounded-up segments.
const PADDED_SEGMENT_KEYS: [&str; 3] =
    ["cu_seqlens_padded", "max_seqlen_padded", "row_cu_seqlens_padded"];

/// Outputs that are not fields: their dtypes, and which of the optional ones are present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputSpec {
    /// Dtype of the ids.
    pub input_ids: IntDtype,
    /// Dtype of the token mask.
    pub attention_mask: Dtype,
    /// Dtype of the response mask.
    pub response_mask: Dtype,
    /// Dtype of the row index of each token, where several rows share an output row.
    pub sequence_ids: IntDtype,
    /// Which batches have positions, their values on padding, and the dtype.
    pub position_ids: (PositionIds, IntDtype),
    /// True if shifted, and the dtype.
    pub labels: Option<(bool, IntDtype)>,
    /// Which of the outputs that are not fields are present.
    pub beside: Beside,
    /// Dtype of the loss mask if it selects what trains: it is 0 on tokens that nothing predicts,
    /// and follows from the plan without a column. None if it is an ordinary column or not an
    /// output.
    pub loss_mask: Option<Dtype>,
}

/// Which batches have position ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionIds {
    /// Those in bins, where the layout decides how padding counts; and those with labels if rows
    /// begin with padding, which learned positions would count.
    Default,
    /// None.
    Omitted,
    /// All, with this on padding.
    Padded(PositionPadding),
}

/// The outputs besides the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// All outputs of the layout and the options.
    All,
    /// Ids and the attention mask only, in packed batches too.
    Ids,
    /// No others: fields are padded by themselves.
    Nothing,
}

/// The contents of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Token ids.
    InputIds,
    /// Mask of tokens.
    AttentionMask,
    /// Mask of the response tokens of real rows.
    ResponseMask,
    /// Positions of tokens in their rows.
    PositionIds,
    /// The row of each token.
    SequenceIds,
    /// The ids of tokens that train.
    Labels {
        /// True if each position holds the label of the next token.
        shifted: bool,
        /// The number type.
        dtype: IntDtype,
    },
    /// The loss mask as it follows from the plan.
    LossMask {
        /// The number type.
        dtype: Dtype,
    },
    /// Row offsets, in this dtype, of a concatenated output of sequences or responses.
    Offsets(Align, IntDtype),
    /// One past the last column of its row that continues each token in some row.
    SubtreeEnd,
    /// The ids of response tokens.
    Targets,
    /// The position whose output predicts each response token.
    Predictors,
    /// The output row of each row.
    RowBins,
    /// Number of tokens of the longest row.
    Widths,
    /// Offsets of the segments of packed rows, in tokens or, if `padded`, in places.
    Segments {
        /// True to count places.
        padded: bool,
    },
    /// Length of the longest of these segments.
    LongestSegment {
        /// True to count places.
        padded: bool,
    },
    /// Offsets of the segments of each output row.
    RowSegments {
        /// True to count places.
        padded: bool,
    },
    /// The field at this index.
    Field(usize),
    /// Mask of positions without captured indices, for the field at this index.
    UncapturedMask(usize),
    /// Row offsets of the joined arrays of the field at this index.
    JoinedOffsets(usize),
}

/// The unit that the values of an output are aligned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputAlign {
    /// Tokens of sequences.
    Sequence,
    /// Tokens of sequences, stored row by row, where rows share positions.
    Stream,
    /// Tokens of responses.
    Response,
    /// Rows.
    Row,
    /// Rows, as a list of one array or object each.
    Object,
    /// Rows, whose arrays are joined.
    Joined,
    /// The offsets of rows in outputs of sequences.
    SequenceOffsets,
    /// The offsets of rows in outputs of streams.
    StreamOffsets,
    /// The offsets of rows in outputs of responses.
    ResponseOffsets,
    /// The offsets of rows in joined arrays.
    JoinedOffsets,
    /// Values of tokens with any number of them.
    Values,
    /// The offsets of such values at every position of sequences.
    SequenceValues,
    /// The offsets of such values at every token of streams.
    StreamValues,
    /// The offsets of such values at every position of responses.
    ResponseValues,
    /// The whole batch.
    Batch,
}

/// Padding of an output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PadValue {
    /// One number.
    Number(Number),
    /// Every index once, from 0 on, in the last dimension.
    Indices,
    /// The last value before it; 0 in front of all values.
    RepeatLast,
}

/// An output of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Its contents.
    pub what: What,
    /// Its key.
    pub key: Cow<'static, str>,
    /// The unit that its values are aligned to.
    pub align: OutputAlign,
    /// Its padding value, if it can have padding.
    pub fill: Option<PadValue>,
    /// Dtype of an array that is written here. The dtype of routes may depend on the values.
    pub dtype: Option<Dtype>,
}

/// The outputs of a batch, in order: first those that are not fields, then the fields.
///
/// `rounds_up` is true if the lengths of packed rows are rounded up.
///
/// # Errors
/// [`Error::RepeatedOutput`].
pub fn outputs(
    spec: &OutputSpec,
    fields: &[&FieldSpec],
    pad_token_id: i64,
    layout: Layout,
    rounds_up: bool,
) -> Result<Vec<Output>> {
    let mut outputs = spec.built_in(pad_token_id, layout, rounds_up);
    let is_tree = layout.is_tree();
    let is_of_streams = |field: &&FieldSpec| {
        matches!(field.kind, FieldKind::Sequence | FieldKind::Counts(Align::Sequence))
    };
    if is_tree && fields.iter().any(is_of_streams) {
        let align = OutputAlign::StreamOffsets;
        outputs.push(row_offsets("sequence_offsets", Align::Sequence, align));
    }
    let has_column = fields.iter().any(|field| field.weighs);
    if let (Some(dtype), false, Beside::All) = (spec.loss_mask, has_column, spec.beside) {
        let what = What::LossMask { dtype };
        let loss_mask = Output::new(what, LOSS_MASK, OutputAlign::Response);
        outputs.push(loss_mask.filled(0).of_dtype(dtype));
    }
    for (index, field) in fields.iter().enumerate() {
        outputs.extend(field.outputs(index, is_tree));
    }
    let first_of = |index: usize| {
        let key = &outputs[index].key;
        outputs[..index].iter().find(|other| other.key == *key)
    };
    match (0..outputs.len()).find_map(|index| Some((first_of(index)?, &outputs[index]))) {
        None => Ok(outputs),
        Some((first, second)) => Err(Error::RepeatedOutput {
            key: second.key.to_string(),
            first: first.origin(fields),
            second: second.origin(fields),
        }),
    }
}

impl OutputSpec {
    /// No outputs except the fields.
    pub const NOTHING: Self = Self {
        input_ids: IntDtype::I64,
        attention_mask: Dtype::I64,
        response_mask: Dtype::I64,
        sequence_ids: IntDtype::I64,
        position_ids: (PositionIds::Omitted, IntDtype::I64),
        labels: None,
        beside: Beside::Nothing,
        loss_mask: None,
    };

    /// The outputs that are not fields.
    fn built_in(&self, pad_token_id: i64, layout: Layout, rounds_up: bool) -> Vec<Output> {
        let output = |what, key, fill, dtype: Dtype| {
            let output = Output::new(what, key, OutputAlign::Sequence);
            output.filled(fill).of_dtype(dtype)
        };
        let input_ids = output(What::InputIds, "input_ids", pad_token_id, self.input_ids.into());
        let attention_mask = output(What::AttentionMask, "attention_mask", 0, self.attention_mask);
        match self.beside {
            Beside::All => {}
            Beside::Ids => return vec![input_ids, attention_mask],
            Beside::Nothing => return Vec::new(),
        }
        let response_mask = Output::new(What::ResponseMask, "response_mask", OutputAlign::Response);
        let response_mask = response_mask.filled(0).of_dtype(self.response_mask);
        let mut outputs = vec![input_ids];
        match layout.form() {
            Form::Packed => {
                outputs.extend(self.positions(layout));
                let dtype = self.sequence_ids.into();
                outputs.push(output(What::SequenceIds, "sequence_ids", -1, dtype));
                outputs.extend(segments(false, SEGMENT_KEYS));
                if rounds_up {
                    outputs.extend(segments(true, PADDED_SEGMENT_KEYS));
                }
                outputs.push(response_mask);
            }
            Form::Tree => {
                outputs.extend(self.positions(layout));
                // Each padding token is a sequence of its own.
                let subtree_end =
                    Output::new(What::SubtreeEnd, "subtree_end", OutputAlign::Sequence);
                outputs.push(subtree_end.of_dtype(Dtype::I32));
                let of_tokens = |what, key, dtype: IntDtype| {
                    Output::new(what, key, OutputAlign::Response).of_dtype(dtype)
                };
                let align = OutputAlign::ResponseOffsets;
                outputs.extend([
                    of_tokens(What::Targets, "targets", self.input_ids),
                    of_tokens(What::Predictors, "predictors", IntDtype::I64),
                    row_offsets("response_offsets", Align::Response, align),
                    Output::new(What::RowBins, "row_bins", OutputAlign::Row).of_dtype(Dtype::I64),
                ]);
                return outputs;
            }
            Form::Jagged => {
                outputs.extend(jagged_offsets());
                outputs.extend(self.positions(layout));
            }
            Form::Padded => {
                outputs.extend([attention_mask, response_mask]);
                outputs.extend(self.positions(layout));
            }
        }
        let labels = |(shifted, dtype): (bool, IntDtype)| {
            let what = What::Labels { shifted, dtype };
            let key = if shifted { "shift_labels" } else { "labels" };
            output(what, key, IGNORE_INDEX, dtype.into())
        };
        outputs.extend(self.labels.map(labels));
        outputs
    }

    /// The position ids, if present.
    fn positions(&self, layout: Layout) -> Option<Output> {
        let (positions, dtype) = self.position_ids;
        let is_needed = layout.has_bins() || (layout.pads_left() && self.labels.is_some());
        let fill = match positions {
            PositionIds::Omitted => return None,
            PositionIds::Default if !is_needed => return None,
            PositionIds::Default | PositionIds::Padded(PositionPadding::Zero) => {
                PadValue::Number(Number::Int(0))
            }
            PositionIds::Padded(PositionPadding::One) => PadValue::Number(Number::Int(1)),
            PositionIds::Padded(PositionPadding::RepeatLast) => PadValue::RepeatLast,
        };
        let output = Output::new(What::PositionIds, "position_ids", OutputAlign::Sequence);
        Some(Output { fill: Some(fill), ..output.of_dtype(dtype) })
    }
}

/// The row offsets of a jagged batch.
fn jagged_offsets() -> [Output; 4] {
    let of_sequences = OutputAlign::SequenceOffsets;
    let cu_seqlens = What::Offsets(Align::Sequence, IntDtype::I32);
    [
        Output::new(cu_seqlens, "cu_seqlens", of_sequences).of_dtype(IntDtype::I32),
        row_offsets("offsets", Align::Sequence, of_sequences),
        Output::new(What::Widths, "max_seqlen", OutputAlign::Batch),
        row_offsets("response_offsets", Align::Response, OutputAlign::ResponseOffsets),
    ]
}

/// Row offsets of the outputs of this kind.
fn row_offsets(key: &'static str, of_rows: Align, align: OutputAlign) -> Output {
    Output::new(What::Offsets(of_rows, IntDtype::I64), key, align).of_dtype(IntDtype::I64)
}

/// The segment tables for attention over packed rows, under these keys.
fn segments(padded: bool, [offsets, longest, of_rows]: [&'static str; 3]) -> [Output; 3] {
    let output = |what, key| Output::new(what, key, OutputAlign::Batch);
    [
        output(What::Segments { padded }, offsets).of_dtype(Dtype::I32),
        output(What::LongestSegment { padded }, longest),
        output(What::RowSegments { padded }, of_rows),
    ]
}

impl Output {
    /// An output with a value everywhere that is not written here.
    pub(super) fn new(what: What, key: impl Into<Cow<'static, str>>, align: OutputAlign) -> Self {
        Self { what, key: key.into(), align, fill: None, dtype: None }
    }

    /// The same output with a padding value.
    pub(super) fn filled(self, fill: i64) -> Self {
        Self { fill: Some(PadValue::Number(Number::Int(fill))), ..self }
    }

    /// The same output as an array that is written here.
    pub(super) fn of_dtype(self, dtype: impl Into<Dtype>) -> Self {
        Self { dtype: Some(dtype.into()), ..self }
    }

    /// The origin of the output, for messages.
    fn origin(&self, fields: &[&FieldSpec]) -> String {
        let of_field = |index: usize| match fields[index] {
            field if field.is_plain => format!("the argument {}", field.name),
            field if matches!(field.kind, FieldKind::Counts(_)) => {
                format!("the offsets of fields['{}']", field.name)
            }
            field => format!("fields['{}']", field.key),
        };
        match self.what {
            What::Field(index) => of_field(index),
            What::UncapturedMask(index) => format!("the mask of {}", of_field(index)),
            What::JoinedOffsets(index) => format!("the offsets of {}", of_field(index)),
            _ => "the batch's own".to_owned(),
        }
    }

    /// Index of the field that the output belongs to, if any.
    pub fn field(&self) -> Option<usize> {
        match self.what {
            What::Field(index) | What::UncapturedMask(index) | What::JoinedOffsets(index) => {
                Some(index)
            }
            _ => None,
        }
    }
}
