//! Whole batches on slices alone: every array is what loops over rows and tokens write.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastcollate::batch::{
    Beside, Collated, Columns, FieldKind, FieldSpec, LOSS_MASK, Layers, OutputSpec, PositionIds,
    Request, RowSource, Spread, Value, collate_slices,
};
use fastcollate::plan::merge::{MergePolicy, MergeRewards, MergeSpec, Streams};
use fastcollate::plan::pack::{Algorithm, Cost, Growth, Oversize, PackSpec, Packer};
use fastcollate::plan::share::{Share, Tree, TreeRow};
use fastcollate::plan::{
    BinSource, Bins, CpRank, Layout, LayoutSpec, Longest, PackedSpec, PaddingAs, Pick, Shard,
    Shift, TreeSource, TreeSpec, Turns, Widths,
};
use fastcollate::polling::Poll;
use fastcollate::write::PositionPadding;
use fastcollate::{Check, Dtype, Error, IntDtype, Number, Slice, SliceColumn, Ticks, TokenStreams};
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
    LayoutSpec::of_rows(layout, Widths::default())
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
        let along = |kind| FieldSpec { kind, weighs: true, ..field(LOSS_MASK) };
        let (of_responses, of_sequences) = (along(FieldKind::Response), along(FieldKind::Cut));
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

/// Columns of a batch's own outputs: its rows lie one after the other in jagged arrays.
fn columns_of(batch: &Collated) -> Columns<SliceColumn<'_>> {
    let (_, ids) = batch.array::<i64>("input_ids").unwrap();
    let (_, scores) = batch.array::<f32>("scores").unwrap();
    let (mut sequences, mut prompt_lens, mut values) = (vec![], vec![], vec![]);
    let (mut at, mut response_at) = (0, 0);
    for row in batch.assembly.rows() {
        let end = at + row.len();
        sequences.push(Slice::I64(&ids[at..end]));
        prompt_lens.push(row.prompt_len);
        values.push(Slice::F32(
            &scores[response_at..response_at + row.response_len],
        ));
        (at, response_at) = (end, response_at + row.response_len);
    }
    let column = |name, rows| SliceColumn::new(name, rows, vec![], Check::None);
    Columns {
        tokens: TokenStreams::Whole {
            sequences: column("sequences", sequences),
            prompt_lens,
        },
        fields: vec![column("scores", values)],
    }
}

proptest! {
    #[test]
    fn batches_are_read_like_turns(
        trajectories in trajectories(),
        picks in vec((any::<prop::sample::Index>(), any::<bool>(), any::<bool>()), 1..6),
    ) {
        let (input, ends, expected) = merged(&trajectories);
        let turns = input.turns();
        let streams = Streams { tokens: &input.tokens(), turns: &turns };
        let merge = merge_spec(MergePolicy::Exact).merge(&streams, ends).unwrap();
        let jagged = input.collated(RowSource::Merged(&merge), &rows(Layout::Jagged));
        let scores = field("scores");
        let request = Request { pad_token_id: PAD, fields: &[&scores], outputs: &OUTPUTS, cp: None };
        let source = RowSource::Batch(&jagged.assembly);
        let left = collated(&request, source, columns_of(&jagged), &rows(Layout::Left)).unwrap();
        prop_assert_eq!(Expected::of_collated(&left), laid_out(&expected, Layout::Left));
        prop_assert_eq!(&left.assembly, &merge.assembly);

        // Some of its rows are the same, whatever they are read from.
        let pick = |(row, is_padding, is_synthetic): &(prop::sample::Index, bool, bool)| Pick {
            row: (!is_padding || !is_synthetic).then_some(row.index(expected.len())),
            is_padding: *is_padding,
        };
        let shard = Shard {
            picks: picks.iter().map(pick).collect(),
            num_rows: expected.len(),
            widths: Some(Longest::of_rows(merge.assembly.rows())),
            lens: None,
            bins: None,
            is_narrow: false,
        };
        let of_shard = |source, columns| {
            let (layout, poll) = (rows(Layout::Right), || Ok(()));
            collate_slices(&request, source, Some(&shard), columns, &layout, &Cost::Flops, &poll).unwrap()
        };
        let of_turns = of_shard(RowSource::Merged(&merge), input.columns());
        let of_batch = of_shard(source, columns_of(&jagged));
        prop_assert_eq!(&of_turns.assembly, &of_batch.assembly);
        prop_assert_eq!(Expected::of_collated(&of_turns), Expected::of_collated(&of_batch));
        let trained = |batch: &Collated| batch.array::<f32>(LOSS_MASK).unwrap().1.iter().sum::<f32>();
        let is_real = |pick: &&Pick| !pick.is_padding;
        let sampled = shard.picks.iter().filter(is_real).map(|pick| {
            let row = &expected[pick.row.unwrap()];
            row.scores.iter().filter(|score| score.is_some()).count()
        });
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let sampled = sampled.sum::<usize>() as f32;
        prop_assert_eq!(trained(&of_turns), sampled);
    }
}

#[test]
fn bins_are_planned_inside_placing() {
    let input = Input::of_lens(&[(2, 3), (1, 2), (3, 4), (1, 1)]);
    let spec = PackSpec {
        algorithm: Algorithm::Place(Packer::FirstFitDecreasing),
        oversize: Oversize::Error,
        capacity: 8,
        max_sequences: usize::MAX,
        multiple_of: 1,
        max_cost: f64::INFINITY,
        bin_cost: 0.0,
        num_bins: None,
        min_bins: 0,
        bins_multiple_of: 1,
        growth: Growth::Moving,
    };
    let layout = |spec| {
        let packed = PackedSpec {
            bins: BinSource::Pack(spec),
            shift: Shift::NextToken,
            padding_as: PaddingAs::OwnSegment,
        };
        LayoutSpec::packed(packed, None, 1)
    };
    let batch = input.collated(RowSource::Turns, &layout(spec.clone()));
    let (shape, rows) = batch.array::<i32>("sequence_ids").unwrap();
    assert_eq!(shape, [3, 8]);
    let bins: Vec<_> = rows.chunks(8).map(|row| row[0]).collect();
    assert_eq!(bins, [2, 0, 3]);
    assert_eq!(rows[13..16], [1, 1, 1]);

    let scores = field("scores");
    let request = Request {
        pad_token_id: PAD,
        fields: &[&scores],
        outputs: &OUTPUTS,
        cp: None,
    };
    let small = layout(PackSpec {
        capacity: 6,
        ..spec
    });
    let refused = collated(&request, RowSource::Turns, input.columns(), &small).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "lengths[2] is 7, which exceeds capacity=6"
    );
}

#[test]
fn rewards_of_merged_turns_are_added_up() {
    let (input, ends, expected) = merged(&[(2, vec![(0, 1), (1, 2)]), (1, vec![(0, 3)])]);
    let turns = input.turns();
    let streams = Streams {
        tokens: &input.tokens(),
        turns: &turns,
    };
    let merge = merge_spec(MergePolicy::Exact)
        .merge(&streams, ends)
        .unwrap();
    let rewards = field("rewards");
    let request = Request {
        pad_token_id: PAD,
        fields: &[&rewards],
        outputs: &OUTPUTS,
        cp: None,
    };
    let columns = Columns {
        fields: vec![SliceColumn::of_numbers(
            "rewards",
            [0.5, 1.0, 4.0].map(Number::Float).to_vec(),
            Check::None,
        )],
        ..input.columns()
    };
    let batch = collated(
        &request,
        RowSource::Merged(&merge),
        columns,
        &rows(Layout::Right),
    );
    let batch = batch.unwrap();
    let (shape, values) = batch.array::<f32>("rewards").unwrap();
    assert_eq!(shape, [expected.len(), 4]);
    assert_eq!(values, [0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 4.0, 0.0]);
}

#[test]
fn routes_choose_their_dtype_and_pad_with_different_experts() {
    let input = Input::of_lens(&[(1, 1), (1, 2)]);
    let routes: Vec<Vec<i64>> = vec![vec![300, 1, 2, 3], vec![4, 5]];
    let values = routes.iter().map(|row| Slice::I64(row)).collect();
    let spec = FieldSpec {
        kind: FieldKind::EXPERTS,
        dtype: None,
        is_plain: false,
        ..field("routes")
    };
    let request = Request {
        pad_token_id: PAD,
        fields: &[&spec],
        outputs: &OUTPUTS,
        cp: None,
    };
    let columns = Columns {
        fields: vec![SliceColumn::new("routes", values, vec![1, 2], Check::None)],
        ..input.columns()
    };
    let batch = collated(&request, RowSource::Turns, columns, &rows(Layout::Left)).unwrap();
    let (shape, values) = batch.array::<i16>("routes").unwrap();
    assert_eq!(shape, [2, 3, 1, 2]);
    assert_eq!(values, [0, 1, 300, 1, 2, 3, 4, 5, 0, 1, 0, 1]);
    let (_, mask) = batch.array::<u8>("router_padding_mask").unwrap();
    assert_eq!(mask, [1, 0, 0, 0, 1, 1]);
}

#[test]
fn a_rank_gets_its_chunks_and_layers() {
    let input = Input::of_lens(&[(1, 5), (2, 1)]);
    let layers = |token: i64| [10 * token, 10 * token + 1, 10 * token + 2];
    let routes: Vec<Vec<i64>> = [6, 2]
        .map(|tokens| (0..tokens).flat_map(layers).collect())
        .into();
    let spec = FieldSpec {
        kind: FieldKind::Experts {
            count: Some(60),
            layers: Some(Layers { begin: 1, end: 3 }),
        },
        dtype: None,
        is_plain: false,
        ..field("routes")
    };
    let part = |size, rank, multiple_of| {
        let request = Request {
            pad_token_id: PAD,
            fields: &[&spec],
            outputs: &OUTPUTS,
            cp: Some(CpRank { size, rank }),
        };
        let values = routes.iter().map(|row| Slice::I64(row)).collect();
        let columns = Columns {
            fields: vec![SliceColumn::new("routes", values, vec![3, 1], Check::None)],
            ..input.columns()
        };
        let packed = PackedSpec {
            bins: BinSource::SingleRow,
            shift: Shift::None,
            padding_as: PaddingAs::OwnSegment,
        };
        let layout = LayoutSpec::packed(packed, None, multiple_of);
        collated(&request, RowSource::Turns, columns, &layout)
    };
    // Of places of 8 and 4 positions, the first and the last chunk.
    let batch = part(2, 0, 4).unwrap();
    let (shape, ids) = batch.array::<i64>("input_ids").unwrap();
    assert_eq!(shape, [1, 6]);
    assert_eq!(ids, [1000, 1001, PAD, PAD, 2000, PAD]);
    let (shape, values) = batch.array::<u8>("routes").unwrap();
    assert_eq!(shape, [1, 6, 2, 1]);
    assert_eq!(values, [1, 2, 11, 12, 0, 0, 0, 0, 1, 2, 0, 0]);
    let (_, mask) = batch.array::<u8>("router_padding_mask").unwrap();
    assert_eq!(mask, [0, 0, 1, 1, 0, 1]);
    let batch = part(2, 1, 4).unwrap();
    let (_, ids) = batch.array::<i64>("input_ids").unwrap();
    assert_eq!(ids, [1002, 1003, 1004, 1005, 2001, 2002]);
    let (_, labels) = batch.array::<i64>("labels").unwrap();
    assert_eq!(labels, [1002, 1003, 1004, 1005, IGNORED, 2002]);
    let refused = part(4, 1, 4).unwrap_err().to_string();
    let place =
        "the sequence at row 0, column 8 has 4 positions, which 2 * cp_size = 8 does not divide";
    assert!(refused.contains(place), "{refused}");
}

/// A batch that is large enough for several threads.
fn large() -> Input {
    Input::of_lens(&(0..260).map(|row| (row, 9_000 - row)).collect::<Vec<_>>())
}

#[test]
fn threads_write_what_one_writes() {
    let input = large();
    let scores = field("scores");
    let request = Request {
        pad_token_id: PAD,
        fields: &[&scores],
        outputs: &OUTPUTS,
        cp: None,
    };
    let turns = input.turns();
    let layout = rows(Layout::Left);
    let of_batch = RowSource::Turns.rows(&turns, None, &layout).unwrap();
    let assembly = of_batch.read();
    let placement =
        { of_batch.place(&layout, None, &Cost::Flops, &mut Ticks::new(&mut || Ok(()))) }.unwrap();
    let mut columns = input.columns();
    let planned = request.plan(&of_batch, &placement, &mut columns).unwrap();
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
        planned
            .arrays()
            .map(|(_, array)| of(array))
            .collect::<Vec<_>>()
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
        outputs: &OutputSpec {
            input_ids: IntDtype::I32,
            ..OUTPUTS
        },
        cp: None,
    };
    let polls = AtomicUsize::new(0);
    let stop = || match polls.fetch_add(1, Ordering::Relaxed) {
        0..2 => Ok(()),
        _ => Err(Error::external(fmt::Error)),
    };
    let written = |input: &Input, poll: Poll| {
        let (layout, columns) = (rows(Layout::Right), input.columns());
        collate_slices(
            &request,
            RowSource::Turns,
            None,
            columns,
            &layout,
            &Cost::Flops,
            poll,
        )
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

#[test]
fn rows_that_do_not_fit_together_are_refused() {
    let input = Input::of_lens(&[(1, 2), (1, 3)]);
    let scores = field("scores");
    let request = Request {
        pad_token_id: PAD,
        fields: &[&scores],
        outputs: &OUTPUTS,
        cp: None,
    };
    let fail = |scores: Vec<Slice>| {
        let columns = Columns {
            fields: vec![SliceColumn::new("scores", scores, vec![], Check::None)],
            ..input.columns()
        };
        let failed = collated(&request, RowSource::Turns, columns, &rows(Layout::Left));
        failed.unwrap_err().to_string()
    };
    assert_eq!(
        fail(vec![Slice::F64(&[0.0; 2])]),
        "scores has 1 rows, but prompts has 2"
    );
    assert_eq!(
        fail(vec![Slice::F64(&[0.0; 2]), Slice::F64(&[0.0; 2])]),
        "scores[1] has 2 items, but responses[1] has 3"
    );
    assert_eq!(
        fail(vec![Slice::F64(&[0.0; 2]), Slice::F64(&[0.0; 4])]),
        "scores[1] has 4 items, but responses[1] has 3"
    );
    assert_eq!(
        Turns::of_sequences(&[4, 2], vec![0, 3])
            .unwrap_err()
            .to_string(),
        "prompt_lens[1] is 3, but sequences[1] has 2 tokens"
    );
}

#[test]
fn trees_have_tokens_that_rows_share_once() {
    let mut input = Input::default();
    for (prompt, response) in [
        (vec![5], vec![6, 1]),
        (vec![5], vec![6, 2, 3]),
        (vec![5], vec![9]),
    ] {
        input.prompts.push(prompt);
        input.push_response(response);
    }
    let tree = |source| TreeSpec {
        source,
        pack: None,
        same_inputs: None,
    };
    let shared = |shared: [usize; 3]| {
        let row = |(row, (len, shared))| TreeRow { row, len, shared };
        let rows = [3, 4, 2].into_iter().zip(shared).enumerate().map(row);
        Tree::new(rows.collect()).unwrap()
    };
    for source in [
        TreeSource::Tokens(Share::All),
        TreeSource::Plan(shared([0, 2, 1])),
        TreeSource::Bins(vec![shared([0, 2, 1])], 1),
    ] {
        let layout = LayoutSpec::tree(tree(source), Some(8), 1);
        let batch = input.collated(RowSource::Turns, &layout);
        let ids: &[i64] = &[5, 6, 1, 2, 3, 9, PAD, PAD];
        assert_eq!(batch.array("input_ids"), Some((&[1, 8][..], ids)));
        let ends: &[i32] = &[6, 5, 3, 5, 5, 6, 7, 8];
        assert_eq!(batch.array("subtree_end"), Some((&[1, 8][..], ends)));
        let depths: &[i32] = &[0, 1, 2, 2, 3, 1, 0, 0];
        assert_eq!(batch.array("position_ids"), Some((&[1, 8][..], depths)));
        let targets: &[i64] = &[6, 1, 6, 2, 3, 9];
        assert_eq!(batch.array("targets"), Some((&[6][..], targets)));
        let predictors: &[i64] = &[0, 1, 0, 1, 3, 0];
        assert_eq!(batch.array("predictors"), Some((&[6][..], predictors)));
        let scores: &[f32] = &[-6.0, -1.0, -6.0, -2.0, -3.0, -9.0];
        assert_eq!(batch.array("scores"), Some((&[6][..], scores)));
    }

    // More than the rows share, although they are as long.
    let layout = LayoutSpec::tree(tree(TreeSource::Plan(shared([0, 3, 1]))), None, 1);
    let request = Request {
        pad_token_id: PAD,
        fields: &[&field("scores")],
        outputs: &OUTPUTS,
        cp: None,
    };
    let error = collated(&request, RowSource::Turns, input.columns(), &layout).unwrap_err();
    assert_eq!(
        error.to_string(),
        "plan of the layout has 3 tokens in common for row 1 and row 0, but they differ at token 2"
    );
}
