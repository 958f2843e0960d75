//! What trains, on slices alone: sampled tokens of real rows with a token of their part in front.

use fastcollate::plan::{
    Assembly, BinLayout, BinWidth, Bins, Grid, Layout, PaddingAs, Pick, Placement, Shift, Span,
    Turns, WidthOptions,
};
use proptest::prelude::*;

/// Places of a grid by row and offset, sorted.
fn places(grid: &Grid) -> Vec<(usize, usize, usize)> {
    let mut places: Vec<_> = { grid.segments().iter() }
        .flat_map(|segment| {
            let begin = segment.dst_row * grid.width() + segment.dst_col;
            (0..segment.len).map(move |at| (segment.row, segment.from + at, begin + at))
        })
        .collect();
    places.sort_unstable();
    places
}

/// Bins of two spans each, of rows that are cut after `cut` tokens.
fn bins(lens: &[usize], cut: usize) -> Bins {
    let spans: Vec<_> = { lens.iter().enumerate() }
        .flat_map(|(index, &len)| {
            (0..len.max(1)).step_by(cut).map(move |from| Span {
                index,
                from,
                len: cut.min(len - from),
            })
        })
        .collect();
    let mut offsets: Vec<_> = (0..spans.len()).step_by(2).collect();
    offsets.push(spans.len());
    Bins { offsets, spans }
}

/// How many positions in front of a token of a stream are of the same part of its row.
fn in_front(placement: &Placement, row: usize, token: usize) -> usize {
    let part = { placement.sequence.segments().iter() }
        .find(|part| part.row == row && (part.from..part.from + part.len).contains(&token));
    let part = part.expect("every token has a place");
    let is_part = placement.bin_layout.is_some();
    token - if is_part { part.from } else { 0 }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn tokens_train_that_a_token_predicts(
        lens in prop::collection::vec((0_usize..3, 0_usize..5), 1..8),
        picks in prop::collection::vec((prop::option::of(any::<prop::sample::Index>()), any::<bool>()), 1..9),
        layout in 0_usize..6,
        cut in 1_usize..6,
    ) {
        let (prompt_lens, response_lens): (Vec<_>, Vec<_>) = lens.iter().copied().unzip();
        let turns = Turns::new(prompt_lens, response_lens).unwrap();
        let picks: Vec<_> = { picks.iter() }
            .map(|(row, is_padding)| Pick {
                row: row.as_ref().map(|row| row.index(lens.len())),
                is_padding: *is_padding || row.is_none(),
            })
            .collect();
        let assembly = Assembly::row_per_turn(&turns).picked(&picks);
        let sums: Vec<_> = assembly.rows().iter().map(|row| row.len()).collect();
        let layouts = [Layout::Left, Layout::TwoSegment, Layout::Right, Layout::Jagged];
        let placement = match layouts.get(layout) {
            Some(&layout) => Placement::of_layout(&assembly, layout, WidthOptions::default()),
            None => {
                let shift = if layout == 4 { Shift::None } else { Shift::NextToken };
                let bin_layout = BinLayout { multiple_of: 1, shift, padding_as: PaddingAs::NoSegment };
                Placement::packed(&assembly, &bins(&sums, cut), bin_layout, BinWidth::default())
            }
        }
        .unwrap();

        let real = |row: usize| !assembly.rows()[row].is_padding;
        let is_predicted = |row: usize, at: usize| {
            in_front(&placement, row, assembly.rows()[row].prompt_len + at) > 0
        };
        let all = places(&placement.response);
        let chosen = |keep: &dyn Fn(usize, usize) -> bool| {
            all.iter().copied().filter(|&(row, at, _)| keep(row, at)).collect::<Vec<_>>()
        };
        prop_assert_eq!(places(&placement.real_responses(&assembly)), chosen(&|row, _| real(row)));
        let predicted = placement.predicted_responses(&assembly);
        prop_assert_eq!(places(&predicted), chosen(&is_predicted));
        let trained = placement.trained_responses(&assembly).unwrap();
        let both = chosen(&|row, at| real(row) && is_predicted(row, at));
        prop_assert_eq!(places(&trained), both);

        let rows = assembly.rows().iter().enumerate().filter(|(row, _)| real(*row));
        let lost = rows.flat_map(|(row, it)| (0..it.response_len).map(move |at| (row, at)));
        let lost = lost.filter(|&(row, at)| !is_predicted(row, at)).count();
        prop_assert_eq!(placement.unpredicted(&assembly).count(), lost);
    }
}
