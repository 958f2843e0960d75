//! Whole batches on slices alone: every array is what loops over rows and tokens write.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastcollate::batch::{
    Beside, Collated, Columns, FieldKind, FieldSpec, Indices, LOSS_MASK, Layers, OutputSpec,
    PositionIds, Request, RowSource, Spread, Value, collate_slices,
};
use fastcollate::plan::merge::{MergePolicy, MergeRewards, MergeSpec, Streams};
use fastcollate::plan::pack::{Algorithm, Cost, Growth, Oversize, PackSpec, Packer};
use fastcollate::plan::share::{Share, ShareLimits, Tree, TreeRow};
use fastcollate::plan::{
    BinSource, Bins, CpRank, Layout, LayoutSpec, PackedSpec, PaddingAs, Pick, Shard, Shift,
    TreeSource, TreeSpec, Turns, WidthOptions, Widths,
};
use fastcollate::polling::Poll;
use fastcollate::write::PositionPadding;
use fastcollate::{
    Check, Dtype, Error, FieldColumn, IntDtype, Number, Slice, SliceColumn, Ticks, TokenStreams,
};
use proptest::collection::vec;
use proptest::prelude::*;

#[path = "collate/cases.rs"]
mod cases;

const PAD: i64 = -7;
const IGNORED: i64 = -100;

const OUTPUTS: OutputSpec = OutputSpec {
    input_ids: IntDtype::I64,
    attention_mask: Dtype::Bool,
    response_mask: Dtype::I64,
    sequence_ids: IntDtype::I32,
    position_ids: (PositionIds::Padded(PositionPadding::Zero), IntDtype::I32),
    labels: Some((false, IntDtype::I64)),
    beside: Beside::All,
    loss_mask: Some(Dtype::F32),
};

/// A field of one float for every response token.
fn field(key: &str) -> FieldSpec {
    FieldSpec {
        key: key.to_owned(),
        name: key.to_owned(),
        kind: FieldKind::Response,
        is_plain: true,
        spread: (key == "rewards").then_some(Spread::LastOfRow),
        default: None,
        weighs: key == LOSS_MASK,
        any_length: false,
        fill: Number::Int(0),
        gap_fill: Number::Int(0),
        dtype: Some(Dtype::F32),
    }
}

/// The turns of a batch as they are handed in.
#[derive(Debug, Clone, Default)]
struct Input {
    prompts: Vec<Vec<i64>>,
    responses: Vec<Vec<i64>>,
    scores: Vec<Vec<f64>>,
}

impl Input {
    /// Token `t` of turn `n` is `1000 n + t`, and its score the negative of that.
    fn of_lens(lens: &[(usize, usize)]) -> Self {
        let mut input = Self::default();
        for (turn, &(prompt, response)) in lens.iter().enumerate() {
            let token = |at: usize| i64::try_from(1_000 * (turn + 1) + at).unwrap();
            input.prompts.push((0..prompt).map(token).collect());
            input.push_response((prompt..prompt + response).map(token).collect());
        }
        input
    }

    fn push_response(&mut self, ids: Vec<i64>) {
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        self.scores
            .push(ids.iter().map(|&id| -(id as f64)).collect());
        self.responses.push(ids);
    }

    fn turns(&self) -> Turns {
        let lens = |rows: &[Vec<i64>]| rows.iter().map(Vec::len).collect();
        Turns::new(lens(&self.prompts), lens(&self.responses)).unwrap()
    }

    fn tokens(&self) -> TokenStreams<SliceColumn<'_>> {
        TokenStreams::Parts {
            prompts: integers("prompts", &self.prompts),
            responses: integers("responses", &self.responses),
        }
    }

    /// The columns of a batch whose one field are the scores.
    fn columns(&self) -> Columns<SliceColumn<'_>> {
        let rows = self.scores.iter().map(|row| Slice::F64(row)).collect();
        Columns {
            tokens: self.tokens(),
            fields: vec![SliceColumn::new("scores", rows, vec![], Check::None)],
        }
    }

    fn collated(&self, source: RowSource, layout: &LayoutSpec) -> Collated {
        let scores = field("scores");
        let request = Request {
            pad_token_id: PAD,
            fields: &[&scores],
            outputs: &OUTPUTS,
            cp: None,
        };
        collated(&request, source, self.columns(), layout).unwrap()
    }
}

/// Turns that are handed in as sequences, with a score for every token of them.
struct Whole {
    sequences: Vec<Vec<i64>>,
    prompt_lens: Vec<usize>,
    scores: Vec<Vec<f64>>,
}

impl Whole {
    fn of_input(input: &Input) -> Self {
        let pairs = input.prompts.iter().zip(&input.responses);
        let scores = input.prompts.iter().zip(&input.scores);
        Self {
            sequences: pairs
                .map(|(prompt, own)| [&prompt[..], own].concat())
                .collect(),
            prompt_lens: input.prompts.iter().map(Vec::len).collect(),
            scores: scores
                .map(|(prompt, own)| [&vec![f64::NAN; prompt.len()][..], own].concat())
                .collect(),
        }
    }

    fn tokens(&self) -> TokenStreams<SliceColumn<'_>> {
        TokenStreams::Whole {
            sequences: integers("sequences", &self.sequences),
            prompt_lens: self.prompt_lens.clone(),
        }
    }

    fn columns(&self) -> Columns<SliceColumn<'_>> {
        let rows = self.scores.iter().map(|row| Slice::F64(row)).collect();
        Columns {
            tokens: self.tokens(),
            fields: vec![SliceColumn::new("loss_mask", rows, vec![], Check::Number)],
        }
    }
}

fn collated(
    request: &Request,
    source: RowSource,
    columns: Columns<SliceColumn>,
    layout: &LayoutSpec,
) -> Result<Collated, Error> {
    collate_slices(
        request,
        source,
        None,
        columns,
        layout,
        &Cost::Flops,
        &|| Ok(()),
    )
}

/// A layout with widths of the data.
fn rows(layout: Layout) -> LayoutSpec {
    LayoutSpec::of_rows(layout, WidthOptions::default())
}

fn integers<'a>(name: &'a str, rows: &'a [Vec<i64>]) -> SliceColumn<'a> {
    let rows = rows.iter().map(|row| Slice::I64(row)).collect();
    SliceColumn::new(name, rows, vec![], Check::None)
}

/// A row of the output as a loop makes it.
#[derive(Debug, Clone)]
struct Row {
    prompt: Vec<i64>,
    response: Vec<i64>,
    /// The score of each response token that was sampled.
    scores: Vec<Option<f64>>,
}

impl Row {
    fn of_turns(input: &Input) -> Vec<Self> {
        let row = |turn: usize| Self {
            prompt: input.prompts[turn].clone(),
            response: input.responses[turn].clone(),
            scores: input.scores[turn].iter().copied().map(Some).collect(),
        };
        (0..input.prompts.len()).map(row).collect()
    }

    fn ids(&self) -> Vec<i64> {
        [&self.prompt[..], &self.response].concat()
    }
}

/// What all positions hold.
#[derive(Debug, Default, PartialEq)]
struct Expected {
    ids: Vec<i64>,
    positions: Vec<i32>,
    labels: Vec<i64>,
    loss_mask: Vec<f32>,
    scores: Vec<f32>,
}

impl Expected {
    /// A token of a row, or padding, beside which there is a place of response-aligned fields or not.
    fn push(&mut self, row: &Row, token: Option<usize>) {
        let ids = row.ids();
        self.ids.push(token.map_or(PAD, |token| ids[token]));
        self.positions
            .push(token.map_or(0, |token| i32::try_from(token).unwrap()));
        let trains = token.is_some_and(|token| {
            let in_response = token.checked_sub(row.prompt.len());
            token > 0 && in_response.is_some_and(|at| row.scores[at].is_some())
        });
        self.labels
            .push(if trains { ids[token.unwrap()] } else { IGNORED });
    }

    fn push_response(&mut self, row: &Row, at: Option<usize>) {
        let score = at.and_then(|at| row.scores[at]);
        // Nothing predicts the first token of all.
        let is_predicted = at.is_some_and(|at| at + row.prompt.len() > 0);
        self.loss_mask.push(if score.is_some() && is_predicted {
            1.0
        } else {
            0.0
        });
        #[allow(clippy::cast_possible_truncation, reason = "small numbers")]
        self.scores.push(score.unwrap_or(0.0) as f32);
    }

    fn of_collated(batch: &Collated) -> Self {
        Self {
            ids: batch.array("input_ids").unwrap().1.to_vec(),
            positions: batch.array("position_ids").unwrap().1.to_vec(),
            labels: batch.array("labels").unwrap().1.to_vec(),
            loss_mask: batch.array(LOSS_MASK).unwrap().1.to_vec(),
            scores: batch.array("scores").unwrap().1.to_vec(),
        }
    }
}

/// Lay rows out by loops over positions.
fn laid_out(rows: &[Row], layout: Layout) -> Expected {
    let longest = |len: fn(&Row) -> usize| rows.iter().map(len).max().unwrap();
    let (prompt_width, response_width) = (
        longest(|row| row.prompt.len()),
        longest(|row| row.response.len()),
    );
    let width = match layout {
        Layout::TwoSegment => prompt_width + response_width,
        _ => longest(|row| row.ids().len()),
    };
    let mut expected = Expected::default();
    for row in rows {
        let len = row.ids().len();
        let begin = match layout {
            Layout::Left => width - len,
            Layout::TwoSegment => prompt_width - row.prompt.len(),
            _ => 0,
        };
        let width = if layout == Layout::Jagged { len } else { width };
        for column in 0..width {
            let token = column.checked_sub(begin).filter(|&token| token < len);
            expected.push(row, token);
        }
        let len = row.response.len();
        let (begin, width) = match layout {
            Layout::Left => (response_width - len, response_width),
            Layout::Jagged => (0, len),
            _ => (0, response_width),
        };
        for column in 0..width {
            let at = column.checked_sub(begin).filter(|&at| at < len);
            expected.push_response(row, at);
        }
    }
    expected
}

fn lens() -> impl Strategy<Value = Vec<(usize, usize)>> {
    vec((0..5_usize, 0..6_usize), 1..7)
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![
        Just(Layout::Left),
        Just(Layout::TwoSegment),
        Just(Layout::Right),
        Just(Layout::Jagged),
    ]
}

/// Trajectories of turns that go on from each other: the prompt of the first, and of each turn what was
/// observed before it and its response.
fn trajectories() -> impl Strategy<Value = Vec<(usize, Vec<(usize, usize)>)>> {
    vec((1..4_usize, vec((0..3_usize, 0..4_usize), 1..4)), 1..4)
}

/// The turns of trajectories, where these end, and the rows that merging makes of them.
fn merged(trajectories: &[(usize, Vec<(usize, usize)>)]) -> (Input, Vec<usize>, Vec<Row>) {
    let (mut input, mut ends, mut rows) = (Input::default(), vec![], vec![]);
    let mut next = 100..;
    for (prompt_len, turns) in trajectories {
        let mut take = |count: usize| next.by_ref().take(count).collect::<Vec<i64>>();
        let prompt = take(*prompt_len);
        let mut stream = prompt.clone();
        let mut scores = vec![];
        for (turn, &(observed, sampled)) in turns.iter().enumerate() {
            if turn > 0 {
                stream.extend(take(observed));
                scores.resize(stream.len() - prompt.len(), None);
            }
            input.prompts.push(stream.clone());
            input.push_response(take(sampled));
            stream.extend(input.responses.last().unwrap());
            scores.extend(input.scores.last().unwrap().iter().copied().map(Some));
        }
        ends.push(input.prompts.len());
        let response = stream[prompt.len()..].to_vec();
        rows.push(Row {
            prompt,
            response,
            scores,
        });
    }
    (input, ends, rows)
}

fn merge_spec(policy: MergePolicy) -> MergeSpec {
    MergeSpec {
        policy,
        rewards: MergeRewards::Sum,
    }
}

proptest! {
    #[test]
    fn padded_and_jagged_rows_lie_where_loops_put_them(lens in lens(), layout in layouts()) {
        let input = Input::of_lens(&lens);
        let batch = input.collated(RowSource::Turns, &rows(layout));
        let expected = Row::of_turns(&input);
        prop_assert_eq!(Expected::of_collated(&batch), laid_out(&expected, layout));
        if layout == Layout::Jagged {
            let (_, offsets) = batch.array::<i64>("offsets").unwrap();
            let ends = expected.iter().map(|row| row.ids().len());
            let found = offsets.windows(2).map(|pair| usize::try_from(pair[1] - pair[0]).unwrap());
            prop_assert!(found.eq(ends));
        } else {
            let (shape, mask) = batch.array::<u8>("attention_mask").unwrap();
            prop_assert_eq!(shape[0], expected.len());
            let tokens: usize = expected.iter().map(|row| row.ids().len()).sum();
            prop_assert_eq!(mask.iter().filter(|&&flag| flag == 1).count(), tokens);
        }
    }

    #[test]
    fn merged_turns_make_rows_with_gaps(trajectories in trajectories(), layout in layouts()) {
        let (input, ends, expected) = merged(&trajectories);
        let turns = input.turns();
        let streams = Streams { tokens: &input.tokens(), turns: &turns };
        for policy in [MergePolicy::Exact, MergePolicy::Branch] {
            let merge = merge_spec(policy).merge(&streams, ends.clone()).unwrap();
            let batch = input.collated(RowSource::Merged(&merge), &rows(layout));
            prop_assert_eq!(Expected::of_collated(&batch), laid_out(&expected, layout));
        }
    }

    #[test]
    fn sequences_are_prompts_and_responses(trajectories in trajectories(), layout in layouts()) {
        let (input, ends, _) = merged(&trajectories);
        let whole = Whole::of_input(&input);
        let turns = input.turns();
        prop_assert_eq!(&whole.tokens().turns().unwrap(), &turns);
        let align = |kind| FieldSpec { kind, weighs: true, ..field(LOSS_MASK) };
        let (of_responses, of_sequences) = (align(FieldKind::Response), align(FieldKind::Cut));
        let collated = |mask, source, columns| {
            let request = Request { pad_token_id: PAD, fields: &[mask], outputs: &OUTPUTS, cp: None };
            collated(&request, source, columns, &rows(layout)).unwrap()
        };
        let merge = |tokens: &_| {
            let streams = Streams { tokens, turns: &turns };
            merge_spec(MergePolicy::Exact).merge(&streams, ends.clone()).unwrap()
        };
        let merge_of_parts = merge(&input.tokens());
        prop_assert_eq!(&merge(&whole.tokens()), &merge_of_parts);
        for source in [RowSource::Turns, RowSource::Merged(&merge_of_parts)] {
            let parts = collated(&of_responses, source, input.columns());
            let batch = collated(&of_sequences, source, whole.columns());
            for key in ["input_ids", "labels"] {
                prop_assert_eq!(batch.array::<i64>(key), parts.array::<i64>(key));
            }
            prop_assert_eq!(batch.array::<f32>(LOSS_MASK), parts.array::<f32>(LOSS_MASK));
        }
    }

    #[test]
    fn packed_rows_follow_each_other(
        lens in vec((0..5_usize, 0..6_usize), 1..7),
        cuts in vec(any::<bool>(), 7),
        multiple_of in 1..4_usize,
        is_given in any::<bool>(),
    ) {
        let input = Input::of_lens(&lens);
        let rows = Row::of_turns(&input);
        let single = Bins::single(rows.iter().map(|row| row.ids().len()));
        let cuts = (1..rows.len()).filter(|&row| cuts[row]);
        let offsets: Vec<_> = [0].into_iter().chain(cuts).chain([rows.len()]).collect();
        let bins = match is_given {
            true => BinSource::Given(Bins { offsets: offsets.clone(), ..single }, multiple_of),
            false => BinSource::Lists(offsets.windows(2).map(|bin| (bin[0]..bin[1]).collect()).collect()),
        };
        let packed = PackedSpec { bins, shift: Shift::None, padding_as: PaddingAs::NoSegment };
        let layout = LayoutSpec::packed(packed, None, multiple_of);
        let batch = input.collated(RowSource::Turns, &layout);

        let width = batch.placement.sequence.width();
        let (mut expected, mut sequences, mut cu_seqlens) = (Expected::default(), vec![], vec![0]);
        for bin in offsets.windows(2) {
            let mut column = 0;
            for (index, row) in rows.iter().enumerate().take(bin[1]).skip(bin[0]) {
                let len = row.ids().len();
                let place = len.next_multiple_of(multiple_of);
                for token in (0..place).map(|at| Some(at).filter(|&at| at < len)) {
                    expected.push(row, token);
                    expected.push_response(row, token.and_then(|at| at.checked_sub(row.prompt.len())));
                    sequences.push(token.map_or(-1, |_| i32::try_from(index).unwrap()));
                }
                cu_seqlens.push(cu_seqlens.last().unwrap() + i32::try_from(len).unwrap());
                column += place;
            }
            for _ in column..width {
                expected.push(&rows[0], None);
                expected.push_response(&rows[0], None);
                sequences.push(-1);
            }
        }
        prop_assert_eq!(Expected::of_collated(&batch), expected);
        prop_assert_eq!(batch.array::<i32>("sequence_ids").unwrap().1, &sequences[..]);
        prop_assert_eq!(batch.array::<i32>("cu_seqlens").unwrap().1, &cu_seqlens[..]);
        let (_, longest) = batch.output("max_seqlen").unwrap();
        let tokens = rows.iter().map(|row| row.ids().len()).max().unwrap();
        prop_assert!(matches!(longest, Value::Length(found) if *found == tokens));
        let (_, by_row) = batch.output("row_cu_seqlens").unwrap();
        prop_assert!(matches!(by_row, Value::ByRow(of_rows) if of_rows.len() == offsets.len() - 1));
        prop_assert_eq!(batch.output("cu_seqlens_padded").is_some(), multiple_of > 1);
    }
}
