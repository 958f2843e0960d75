//! Batches of batches, shards, threads, and what is refused.

use super::*;

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
            widths: Some(Widths::of_rows(merge.assembly.rows())),
            lens: None,
            prompt_lens: None,
            bins: None,
            is_narrow: false,
        };
        let of_shard = |source, columns| {
            let (layout, poll) = (rows(Layout::Right), || Ok(()));
            collate_slices(&request, source, Some(&shard), columns, &layout, &Cost::Flops, &poll).unwrap()
        };
        let of_turns = of_shard(RowSource::Merged(&merge), input.columns());
        // The columns need only the turns of these rows.
        if let Some(chosen) = RowSource::Merged(&merge).chosen(&shard, Layout::Right) {
            let mut own = input.columns();
            own.fields.iter_mut().for_each(|column| column.choose(&chosen));
            let TokenStreams::Parts { prompts, responses } = &mut own.tokens else { panic!() };
            prompts.choose(&chosen);
            responses.choose(&chosen);
            let alone = of_shard(RowSource::Merged(&merge), own);
            prop_assert_eq!(&alone.assembly, &of_turns.assembly);
            prop_assert_eq!(Expected::of_collated(&alone), Expected::of_collated(&of_turns));
        }
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
        algorithm: Algorithm::Pack(Packer::FirstFitDecreasing),
        oversize: Oversize::Error,
        capacity: 8,
        max_sequences: usize::MAX,
        multiple_of: 1,
        max_cost: f64::INFINITY,
        bin_cost: 0.0,
        num_bins: None,
        min_bins: 0,
        bins_multiple_of: 1,
        allow_fewer_bins: false,
        growth: Growth::Move,
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
        kind: Indices::Experts { count: Some(60) }.in_layers(Some(Layers { begin: 1, end: 3 })),
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
        "scores has 1 row, but prompts has 2"
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
        Turns::of_sequences(&[4, 2], vec![0, 3], None)
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
        limits: ShareLimits::default(),
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
