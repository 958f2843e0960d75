//! Whole batches on slices alone: every array is what loops over rows and tokens write.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastcollate::batch::{
    Beside, Collated, Columns, FieldKind, FieldSpec, LOSS_MASK, OutputSpec, PositionIds, Request,
    RowSource, collate_slices,
};
use fastcollate::plan::merge::{MergePolicy, MergeRewards, MergeSpec, Streams};
use fastcollate::plan::pack::Cost;
use fastcollate::plan::{Layout, LayoutSpec, Turns, WidthOptions};
use fastcollate::polling::Poll;
use fastcollate::write::PositionPadding;
use fastcollate::{
    Check, Dtype, Error, IntDtype, Number, Slice, SliceColumn, Ticks, TokenStreams, unstopped,
};
use proptest::collection::vec;
use proptest::prelude::*;

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
        spread: None,
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
        self.scores.push(ids.iter().map(|&id| -(id as f64)).collect());
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
        let fields = [&scores];
        collated(&request_of(&fields), source, self.columns(), layout).unwrap()
    }
}

fn request_of<'a>(fields: &'a [&'a FieldSpec]) -> Request<'a> {
    Request { pad_token_id: PAD, fields, outputs: &OUTPUTS, cp: None }
}

fn collated(
    request: &Request,
    source: RowSource,
    columns: Columns<SliceColumn>,
    layout: &LayoutSpec,
) -> Result<Collated, Error> {
    collate_slices(request, source, None, columns, layout, &Cost::Flops, &|| Ok(()))
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
        self.positions.push(token.map_or(0, |token| i32::try_from(token).unwrap()));
        let trains = token.is_some_and(|token| {
            let in_response = token.checked_sub(row.prompt.len());
            token > 0 && in_response.is_some_and(|at| row.scores[at].is_some())
        });
        self.labels.push(if trains { ids[token.unwrap()] } else { IGNORED });
    }

    fn push_response(&mut self, row: &Row, at: Option<usize>) {
        let score = at.and_then(|at| row.scores[at]);
        // Nothing predicts the first token of all.
        let is_predicted = at.is_some_and(|at| at + row.prompt.len() > 0);
        self.loss_mask.push(if score.is_some() && is_predicted { 1.0 } else { 0.0 });
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
    let (prompt_width, response_width) =
        (longest(|row| row.prompt.len()), longest(|row| row.response.len()));
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
        rows.push(Row { prompt, response, scores });
    }
    (input, ends, rows)
}

fn merge_spec(policy: MergePolicy) -> MergeSpec {
    MergeSpec { policy, rewards: MergeRewards::Sum }
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

}

/// A batch that is large enough for several threads.
fn large() -> Input {
    Input::of_lens(&(0..260).map(|row| (row, 9_000 - row)).collect::<Vec<_>>())
}

#[test]
fn threads_write_what_one_writes() {
    let input = large();
    let scores = field("scores");
    let fields = [&scores];
    let request = request_of(&fields);
    let turns = input.turns();
    let layout = rows(Layout::Left);
    let of_batch = unstopped(|ticks| RowSource::Turns.rows(&turns, None, &layout, ticks));
    let assembly = of_batch.read();
    let placement =
        of_batch.place(&layout, None, &Cost::Flops, &mut Ticks::new(&mut || Ok(()))).unwrap();
    let mut columns = input.columns();
    let planned = request.plan(&of_batch, &placement, &mut columns, &|| Ok(())).unwrap();
    assert!(planned.num_bytes() >= 64 << 20);
    let memory = |is_zeroed: bool, is_threaded: bool| {
        let polls = AtomicUsize::new(0);
        let poll = || {
            polls.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let mut words = vec![if is_zeroed { 0 } else { u64::MAX }; planned.num_bytes() / 8];
        let bytes = bytemuck::cast_slice_mut(&mut words);
        let written = if is_threaded {
            planned.write_slices(&columns, assembly, &placement, bytes, is_zeroed, &poll)
        } else {
            planned.write(&columns, assembly, &placement, bytes, is_zeroed, &poll)
        };
        written.unwrap();
        assert!(polls.into_inner() > 10);
        let of = |array: &fastcollate::batch::Array| {
            bytemuck::cast_slice::<_, u8>(&words)[array.bytes.clone()].to_vec()
        };
        planned.arrays().map(|(_, array)| of(array)).collect::<Vec<_>>()
    };
    let expected = memory(true, false);
    for (is_zeroed, is_threaded) in [(true, true), (false, true), (false, false)] {
        assert!(memory(is_zeroed, is_threaded) == expected);
    }
    let batch = input.collated(RowSource::Turns, &layout);
    assert!(Expected::of_collated(&batch) == laid_out(&Row::of_turns(&input), Layout::Left));
}

#[test]
fn a_hook_and_a_bad_value_end_the_writing() {
    let mut input = large();
    let scores = field("scores");
    let request = Request {
        pad_token_id: PAD,
        fields: &[&scores],
        outputs: &OutputSpec { input_ids: IntDtype::I32, ..OUTPUTS },
        cp: None,
    };
    let polls = AtomicUsize::new(0);
    let stop = || match polls.fetch_add(1, Ordering::Relaxed) {
        0..2 => Ok(()),
        _ => Err(Error::external(fmt::Error)),
    };
    let written = |input: &Input, poll: Poll| {
        let (layout, columns) = (rows(Layout::Right), input.columns());
        collate_slices(&request, RowSource::Turns, None, columns, &layout, &Cost::Flops, poll)
            .unwrap_err()
    };
    let Error::External(stopped) = written(&input, &stop) else {
        panic!("the hook did not stop it");
    };
    assert_eq!(stopped.downcast().ok(), Some(fmt::Error));
    input.responses[200][8_000] = 1 << 40;
    assert_eq!(
        written(&input, &|| Ok(())).to_string(),
        "responses[200][8000] is 1099511627776, which does not fit int32"
    );
}
