//! The packed layout on slices alone: every token has one place, and segments make up rows.

use fastcollate::Error;
use fastcollate::plan::{
    Align, Assembly, BinLayout, BinWidth, Bins, PaddingAs, Per, Placement, Segment, Shift, Span,
    Turns, Values, gather_positions,
};
use proptest::prelude::*;

fn turns(prompt_lens: &[usize], response_lens: &[usize]) -> Turns {
    Turns::new(prompt_lens.to_vec(), response_lens.to_vec()).unwrap()
}

/// Bins of so many spans each, of sequences that are cut after `cut` tokens, last one first.
fn bins(lens: &[usize], cut: usize, size: usize) -> Bins {
    let parts = lens.iter().enumerate().rev().flat_map(|(index, &len)| {
        (0..len.max(1)).step_by(cut).map(move |from| Span {
            index,
            from,
            len: cut.min(len - from),
        })
    });
    let spans: Vec<_> = parts.collect();
    let mut offsets: Vec<_> = (0..spans.len()).step_by(size).collect();
    offsets.push(spans.len());
    Bins { offsets, spans }
}

const PADDINGS: [PaddingAs; 4] = [
    PaddingAs::OwnSegment,
    PaddingAs::LastSegment,
    PaddingAs::NoSegment,
    PaddingAs::ContinuedSegment,
];

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_token_has_one_place(
        lens in prop::collection::vec((0_usize..5, 0_usize..7), 1..12),
        cut in 1_usize..14,
        size in 1_usize..5,
        multiple_of in 1_usize..6,
        more in 0_usize..9,
        round in 1_usize..7,
        padding_as in 0_usize..4,
        shifted in any::<bool>(),
    ) {
        let (prompt_lens, response_lens): (Vec<_>, Vec<_>) = lens.iter().copied().unzip();
        let turns = turns(&prompt_lens, &response_lens);
        let assembly = Assembly::row_per_turn(&turns);
        let sums: Vec<_> = lens.iter().map(|(prompt, response)| prompt + response).collect();
        let bins = bins(&sums, cut, size);
        let bin_layout = BinLayout {
            multiple_of,
            shift: if shifted { Shift::NextToken } else { Shift::None },
            padding_as: PADDINGS[padding_as],
        };
        let placement = Placement::packed(&assembly, &bins, bin_layout, BinWidth::default()).unwrap();
        let least = placement.sequence.width() + more;
        let width = BinWidth { least, multiple_of: round, ..BinWidth::default() };
        let placement = Placement::packed(&assembly, &bins, bin_layout, width).unwrap();
        let (sequence, response) = (&placement.sequence, &placement.response);
        prop_assert_eq!(sequence.width(), least.next_multiple_of(round));
        prop_assert_eq!(sequence.rows(), bins.count());

        let mut seen: Vec<_> = sums.iter().map(|&sum| vec![0; sum]).collect();
        for segment in sequence.segments() {
            prop_assert_eq!(segment.dst_col % multiple_of, 0);
            for times in &mut seen[segment.row][segment.from..segment.from + segment.len] {
                *times += 1;
            }
        }
        prop_assert!(seen.iter().flatten().all(|&times| times == 1));

        // Tables that say the same are the same placement, and no others are one.
        let again = Placement::new(
            &assembly, placement.layout, sequence.clone(), response.clone(), Some(bin_layout),
        );
        prop_assert_eq!(again.as_ref(), Ok(&placement));

        // Places follow each other, and are what segments of attention count.
        let spans = bin_layout.spans(sequence);
        let positions: usize = spans.iter().map(|extent| extent.len).sum();
        prop_assert_eq!(positions, sequence.positions());
        let padded: usize = bin_layout.segment_lens(sequence, &spans, true).iter().flatten().sum();
        let outside: usize = { spans.iter().filter(|it| !it.is_segment) }.map(|it| it.len).sum();
        prop_assert_eq!(padded + outside, positions);

        // A response token's value stands where the token does, or the one before it in its part.
        let (align, shift) = (Align::Response, Shift::None);
        let values = Values { align, shift, width: least };
        let per = Per::Row { gaps: true, padding: true };
        let (places, _) = gather_positions(&turns, &assembly, &placement, values, per, true).unwrap();
        let mut place = places.iter();
        for (row, &len) in response_lens.iter().enumerate() {
            for token in 0..len {
                let at = prompt_lens[row] + token;
                let part = |segment: &&Segment| {
                    segment.row == row && (segment.from..segment.from + segment.len).contains(&at)
                };
                let part = sequence.segments().iter().find(part).unwrap();
                let offset = (at - part.from).checked_sub(usize::from(shifted));
                let expected =
                    offset.map(|offset| part.dst_row * least + part.dst_col + offset);
                prop_assert_eq!(place.next(), Some(&expected));
            }
        }
        // So it is for a model's outputs, of which one stands at each token.
        let values = Values { align: Align::Sequence, shift: bin_layout.shift, width: least };
        let (same, _) = gather_positions(&turns, &assembly, &placement, values, per, true).unwrap();
        prop_assert_eq!(places, same);
    }
}

#[test]
fn bins_of_other_sequences_are_refused() {
    let turns = turns(&[1, 2], &[2, 3]);
    let assembly = Assembly::row_per_turn(&turns);
    let bin_layout = BinLayout {
        multiple_of: 1,
        shift: Shift::None,
        padding_as: PaddingAs::NoSegment,
    };
    let place = |spans: &[(usize, usize, usize)], fixed| {
        let width = BinWidth {
            fixed,
            ..BinWidth::default()
        };
        let span = |&(index, from, len): &(usize, usize, usize)| Span { index, from, len };
        let bins = Bins {
            offsets: vec![0, spans.len()],
            spans: spans.iter().map(span).collect(),
        };
        Placement::packed(&assembly, &bins, bin_layout, width).map(|placement| placement.sequence)
    };
    assert!(place(&[(1, 0, 5), (0, 0, 3)], Some(8)).is_ok());
    assert!(place(&[(1, 4, 1), (0, 0, 3), (1, 0, 4)], None).is_ok());
    let errors = [
        (
            place(&[(0, 0, 3)], None),
            Error::OtherSequenceCount {
                found: 2,
                expected: 1,
            },
        ),
        (
            place(&[(0, 0, 3), (1, 0, 4)], None),
            Error::OtherSequenceLength {
                row: 1,
                found: 5,
                expected: 4,
            },
        ),
        (
            place(&[(0, 0, 3), (1, 0, 5)], Some(7)),
            Error::BinTooWide {
                bin: 0,
                found: 8,
                width: 7,
            },
        ),
    ];
    for (found, expected) in errors {
        assert_eq!(found, Err(expected));
    }
    for overlap in [
        [(0, 0, 3), (1, 0, 3), (1, 2, 2)],
        [(0, 0, 3), (1, 1, 3), (1, 4, 2)],
    ] {
        assert!(matches!(place(&overlap, None), Err(Error::InvalidPlan(_))));
    }
}
