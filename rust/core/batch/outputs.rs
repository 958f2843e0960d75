//! The outputs of a batch: a table that follows from what is asked for, before there are rows.

use std::borrow::Cow;

use super::{FieldKind, FieldSpec};
use crate::dtype::{Dtype, IntDtype};
use crate::error::{Error, Result};
use crate::fill_number::Number;
use crate::plan::{Form, Layout, Of};
use crate::write::PositionPadding;

/// What labels hold where there is none: the `ignore_index` of losses.
pub const IGNORE_INDEX: i64 = -100;

/// The key of the loss mask.
pub const LOSS_MASK: &str = "loss_mask";

/// The key of the mask that is set where the routes of a token were not captured.
pub const ROUTER_PADDING_MASK: &str = "router_padding_mask";

/// The keys of what attention needs to know of packed rows: where segments begin, how long the longest
/// is, and where they begin in every output row.
const SEGMENT_KEYS: [&str; 3] = ["cu_seqlens", "max_seqlen", "row_cu_seqlens"];

/// The same of places, where these are rounded up.
const PADDED_SEGMENT_KEYS: [&str; 3] = [
    "cu_seqlens_padded",
    "max_seqlen_padded",
    "row_cu_seqlens_padded",
];

/// The outputs that are no fields: their dtypes, and which of the optional ones there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputSpec {
    /// Of the ids.
    pub input_ids: IntDtype,
    /// Of the mask of tokens.
    pub attention_mask: Dtype,
    /// Of the mask of response tokens.
    pub response_mask: Dtype,
    /// Of the row that each token is of, where several share an output row.
    pub sequence_ids: IntDtype,
    /// What padding holds, and the dtype. If nothing is said, only batches in bins have positions, and
    /// padding counts as the layout says.
    pub position_ids: (Option<PositionPadding>, IntDtype),
    /// Whether they are shifted, and the dtype.
    pub labels: Option<(bool, IntDtype)>,
    /// Which of the outputs that are no fields there are at all.
    pub beside: Beside,
    /// The dtype of the loss mask where it says what trains: it is 0 on tokens that nothing predicts,
    /// and follows from the plan where no column has it. None where it is a column like others, or
    /// no output.
    pub loss_mask: Option<Dtype>,
}

/// What stands beside the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// All outputs that the layout and the options name.
    All,
    /// Ids and the attention mask, in packed batches too.
    Ids,
    /// Nothing: fields are padded by themselves.
    Nothing,
}

/// What an output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Token ids.
    InputIds,
    /// Where tokens are.
    AttentionMask,
    /// Where response tokens of real rows are.
    ResponseMask,
    /// Positions of tokens in their rows.
    PositionIds,
    /// The row that each token is of.
    SequenceIds,
    /// The ids of tokens that train.
    Labels {
        /// Whether each position holds that of the next token.
        shifted: bool,
        /// The number type.
        dtype: IntDtype,
    },
    /// What trains, by the plan alone.
    LossMask {
        /// The number type.
        dtype: Dtype,
    },
    /// Where the rows of an output of sequences, or of responses, begin that lie end to end, as numbers
    /// of this type.
    Offsets(Of, IntDtype),
    /// One past the last column of its row whose token follows on each in some row.
    SubtreeEnd,
    /// The ids of response tokens.
    Targets,
    /// The position whose output predicts each response token.
    Predictors,
    /// The output row of each row.
    RowBins,
    /// Tokens of the longest row.
    Longest,
    /// Where the segments of packed rows begin, counted in tokens or, `padded`, in places.
    Segments {
        /// Whether places are counted.
        padded: bool,
    },
    /// The longest of these segments.
    LongestSegment {
        /// Whether places are counted.
        padded: bool,
    },
    /// Where the segments of each output row begin.
    RowSegments {
        /// Whether places are counted.
        padded: bool,
    },
    /// The field of an index.
    Field(usize),
    /// Where the routes of the field of an index were not captured.
    RouterPaddingMask(usize),
    /// Where the rows of the field of an index begin, whose arrays are joined.
    JoinedOffsets(usize),
}

/// What the values of an output belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alignment {
    /// Tokens of sequences.
    Sequence,
    /// The same row by row, where rows share their places.
    Stream,
    /// Tokens of responses.
    Response,
    /// Rows.
    Row,
    /// Rows, one array or object each in a list.
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
    /// The batch as a whole.
    Batch,
}

/// What an output holds where no value goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PadValue {
    /// One number.
    Number(Number),
    /// Every index once, from 0 on, in the last dimension.
    Indices,
    /// The last value before it; in front of all, 0.
    RepeatLast,
}

/// An output of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// What it is.
    pub what: What,
    /// Its key.
    pub key: Cow<'static, str>,
    /// What its values belong to.
    pub align: Alignment,
    /// What it holds where no value goes, if there can be such a place.
    pub fill: Option<PadValue>,
    /// The number type, if it is an array that is written here. That of routes may depend on the
    /// values.
    pub dtype: Option<Dtype>,
}

/// The outputs of a batch, in order: those that are no fields, and then the fields.
///
/// `rounds_up` says whether the places of packed rows are rounded up.
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
    let is_of_streams = |field: &&FieldSpec| field.kind == FieldKind::Sequence;
    if is_tree && fields.iter().any(is_of_streams) {
        let align = Alignment::StreamOffsets;
        outputs.push(row_offsets("sequence_offsets", Of::Sequence, align));
    }
    let has_column = fields.iter().any(|field| field.weighs);
    if let (Some(dtype), false, Beside::All) = (spec.loss_mask, has_column, spec.beside) {
        let what = What::LossMask { dtype };
        let loss_mask = Output::new(what, LOSS_MASK, Alignment::Response);
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
    /// No output but the fields.
    pub const NOTHING: Self = Self {
        input_ids: IntDtype::I64,
        attention_mask: Dtype::I64,
        response_mask: Dtype::I64,
        sequence_ids: IntDtype::I64,
        position_ids: (None, IntDtype::I64),
        labels: None,
        beside: Beside::Nothing,
        loss_mask: None,
    };

    /// The outputs that are no fields.
    fn built_in(&self, pad_token_id: i64, layout: Layout, rounds_up: bool) -> Vec<Output> {
        let output = |what, key, fill, dtype: Dtype| {
            let output = Output::new(what, key, Alignment::Sequence);
            output.filled(fill).of_dtype(dtype)
        };
        let input_ids = output(
            What::InputIds,
            "input_ids",
            pad_token_id,
            self.input_ids.into(),
        );
        let attention_mask = output(
            What::AttentionMask,
            "attention_mask",
            0,
            self.attention_mask,
        );
        match self.beside {
            Beside::All => {}
            Beside::Ids => return vec![input_ids, attention_mask],
            Beside::Nothing => return Vec::new(),
        }
        let response_mask = Output::new(What::ResponseMask, "response_mask", Alignment::Response);
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
                // Padding is a sequence of one token each.
                let subtree_end = Output::new(What::SubtreeEnd, "subtree_end", Alignment::Sequence);
                outputs.push(subtree_end.of_dtype(Dtype::I32));
                let of_tokens = |what, key, dtype: IntDtype| {
                    Output::new(what, key, Alignment::Response).of_dtype(dtype)
                };
                let align = Alignment::ResponseOffsets;
                outputs.extend([
                    of_tokens(What::Targets, "targets", self.input_ids),
                    of_tokens(What::Predictors, "predictors", IntDtype::I64),
                    row_offsets("response_offsets", Of::Response, align),
                    Output::new(What::RowBins, "row_bins", Alignment::Row).of_dtype(Dtype::I64),
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
            output(what, "labels", IGNORE_INDEX, dtype.into())
        };
        outputs.extend(self.labels.map(labels));
        outputs
    }

    /// The position ids, if there are any.
    fn positions(&self, layout: Layout) -> Option<Output> {
        let (padding, dtype) = self.position_ids;
        let fill = match padding {
            None if !layout.has_bins() => return None,
            None | Some(PositionPadding::Zero) => PadValue::Number(Number::Int(0)),
            Some(PositionPadding::One) => PadValue::Number(Number::Int(1)),
            Some(PositionPadding::RepeatLast) => PadValue::RepeatLast,
        };
        let output = Output::new(What::PositionIds, "position_ids", Alignment::Sequence);
        Some(Output {
            fill: Some(fill),
            ..output.of_dtype(dtype)
        })
    }
}

/// What tells where the rows of a jagged batch begin.
fn jagged_offsets() -> [Output; 4] {
    let of_sequences = Alignment::SequenceOffsets;
    let cu_seqlens = What::Offsets(Of::Sequence, IntDtype::I32);
    [
        Output::new(cu_seqlens, "cu_seqlens", of_sequences).of_dtype(IntDtype::I32),
        row_offsets("offsets", Of::Sequence, of_sequences),
        Output::new(What::Longest, "max_seqlen", Alignment::Batch),
        row_offsets("response_offsets", Of::Response, Alignment::ResponseOffsets),
    ]
}

/// Where the rows of such outputs begin.
fn row_offsets(key: &'static str, of: Of, align: Alignment) -> Output {
    Output::new(What::Offsets(of, IntDtype::I64), key, align).of_dtype(IntDtype::I64)
}

/// What attention needs to know of packed rows, under these keys.
fn segments(padded: bool, [offsets, longest, of_rows]: [&'static str; 3]) -> [Output; 3] {
    let output = |what, key| Output::new(what, key, Alignment::Batch);
    [
        output(What::Segments { padded }, offsets).of_dtype(Dtype::I32),
        output(What::LongestSegment { padded }, longest),
        output(What::RowSegments { padded }, of_rows),
    ]
}

impl Output {
    /// An output that holds values everywhere, and is not written here.
    pub(super) fn new(what: What, key: impl Into<Cow<'static, str>>, align: Alignment) -> Self {
        Self {
            what,
            key: key.into(),
            align,
            fill: None,
            dtype: None,
        }
    }

    /// The same with a number where no value goes.
    pub(super) fn filled(self, fill: i64) -> Self {
        Self {
            fill: Some(PadValue::Number(Number::Int(fill))),
            ..self
        }
    }

    /// The same as an array that is written here.
    pub(super) fn of_dtype(self, dtype: impl Into<Dtype>) -> Self {
        Self {
            dtype: Some(dtype.into()),
            ..self
        }
    }

    /// What the output is there for, in words.
    fn origin(&self, fields: &[&FieldSpec]) -> String {
        let of_field = |index: usize| match fields[index] {
            field if field.is_plain => format!("the argument {}", field.name),
            field => format!("fields['{}']", field.key),
        };
        match self.what {
            What::Field(index) => of_field(index),
            What::RouterPaddingMask(index) => format!("the mask of {}", of_field(index)),
            What::JoinedOffsets(index) => format!("the offsets of {}", of_field(index)),
            _ => "the batch's own".to_owned(),
        }
    }

    /// The index of the field that the output comes with, if there is one.
    pub fn field(&self) -> Option<usize> {
        match self.what {
            What::Field(index) | What::RouterPaddingMask(index) | What::JoinedOffsets(index) => {
                Some(index)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FieldKind;
    use super::*;

    const ALL: OutputSpec = OutputSpec {
        input_ids: IntDtype::I64,
        attention_mask: Dtype::Bool,
        response_mask: Dtype::Bool,
        sequence_ids: IntDtype::I32,
        position_ids: (Some(PositionPadding::RepeatLast), IntDtype::I64),
        labels: Some((false, IntDtype::I64)),
        beside: Beside::All,
        loss_mask: Some(Dtype::F32),
    };

    fn field(key: &str, kind: FieldKind) -> FieldSpec {
        FieldSpec {
            key: key.to_owned(),
            name: key.to_owned(),
            kind,
            is_plain: false,
            spread: None,
            default: None,
            weighs: key == LOSS_MASK,
            any_length: false,
            fill: Number::Int(0),
            gap_fill: Number::Int(0),
            dtype: Some(Dtype::F32),
        }
    }

    #[test]
    fn no_field_can_have_the_key_of_another_output() {
        let message = |fields: &[&FieldSpec], spec: &OutputSpec, layout| {
            let error = outputs(spec, fields, 0, layout, true).unwrap_err();
            error.to_string()
        };
        for layout in [Layout::Left, Layout::Jagged, Layout::Packed] {
            for output in outputs(&ALL, &[], 0, layout, true).unwrap() {
                let field = field(&output.key, FieldKind::Row);
                if field.weighs {
                    continue;
                }
                let found = message(&[&field], &ALL, layout);
                let expected = format!("'{0}': the batch's own and fields['{0}']", output.key);
                assert!(found.contains(&expected), "{found}");
            }
        }
        let joined = field("images", FieldKind::Array { is_joined: true });
        let other = field("images_offsets", FieldKind::Row);
        assert_eq!(
            message(&[&other, &joined], &ALL, Layout::Left),
            "two outputs would be 'images_offsets': fields['images_offsets'] and the offsets of \
             fields['images']; give the field another key"
        );
        let rewards = FieldSpec {
            is_plain: true,
            ..field("rewards", FieldKind::Response)
        };
        let own = field("rewards", FieldKind::Sequence);
        assert_eq!(
            message(&[&rewards, &own], &ALL, Layout::Left),
            "two outputs would be 'rewards': the argument rewards and fields['rewards']; give the \
             field another key"
        );
        let mask = FieldSpec {
            weighs: false,
            ..field(LOSS_MASK, FieldKind::Sequence)
        };
        let found = message(&[&mask], &ALL, Layout::Left);
        assert!(
            found.contains("the batch's own and fields['loss_mask']"),
            "{found}"
        );
        let unmasked = OutputSpec {
            loss_mask: None,
            labels: None,
            ..ALL
        };
        let labels = field("labels", FieldKind::Sequence);
        assert!(outputs(&unmasked, &[&mask, &labels], 0, Layout::Left, false).is_ok());
    }

    #[test]
    fn a_loss_mask_follows_from_the_plan_where_no_field_is_one() {
        let routes = field("routes", FieldKind::EXPERTS);
        let mask = field(LOSS_MASK, FieldKind::Response);
        let table = outputs(&ALL, &[&routes], 0, Layout::Right, false).unwrap();
        let rows: Vec<_> = table
            .iter()
            .map(|it| (&*it.key, it.align, it.field()))
            .collect();
        assert_eq!(
            rows[4..],
            [
                ("labels", Alignment::Sequence, None),
                (LOSS_MASK, Alignment::Response, None),
                ("routes", Alignment::Sequence, Some(0)),
                (ROUTER_PADDING_MASK, Alignment::Sequence, Some(0)),
            ]
        );
        let table = outputs(&ALL, &[&mask], 0, Layout::Right, false).unwrap();
        assert_eq!(table[5].what, What::Field(0));
        for (beside, count) in [(Beside::Ids, 2), (Beside::Nothing, 0)] {
            let spec = OutputSpec { beside, ..ALL };
            let table = outputs(&spec, &[], 0, Layout::Packed, true).unwrap();
            assert_eq!(table.len(), count);
        }
    }
}
