//! Steps on slices alone: every row is in one slot, and ranks have as many.

use fastcollate::plan::partition::{First, Item, balance};
use fastcollate::plan::{Assignment, Cause, Indivisible, Padding, Slot, Split};
use fastcollate::unstopped;
use proptest::prelude::*;

fn offsets(lens: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    offsets.extend(lens.iter().scan(0, |end, len| {
        *end += len;
        Some(*end)
    }));
    offsets
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_row_is_in_one_slot(
        lens in prop::collection::vec(1_usize..6, 1..20),
        per_mini_batch in 1_usize..8,
        ranks in 1_usize..10,
        assignment in 0..3,
        padding in 0_usize..3,
        are_kept in any::<bool>(),
    ) {
        let groups = offsets(&lens);
        let rows = groups[lens.len()];
        let mut mini_batches: Vec<_> =
            groups[..lens.len()].iter().step_by(per_mini_batch).copied().collect();
        mini_batches.push(rows);
        let costs: Vec<_> = (0..rows).map(|row| f64::from(u8::try_from(row * 7 % 11).unwrap())).collect();
        let split = Split {
            ranks,
            assignment: match assignment {
                0 => Assignment::Contiguous,
                1 => Assignment::Strided,
                _ => Assignment::Balanced { costs: &costs, synthetic: 2.0 },
            },
            padding: [Padding::CopyFirst, Padding::CopyCycle, Padding::Synthetic][padding],
            groups: are_kept.then_some(&groups),
        };
        let slots = unstopped(|ticks| split.slots(&mini_batches, ticks)).unwrap();
        prop_assert_eq!(slots.offsets.len(), mini_batches.len());
        let mut seen = vec![0; rows];
        for (bounds, ends) in mini_batches.windows(2).zip(slots.offsets.windows(2)) {
            let slots = &slots.slots[ends[0]..ends[1]];
            prop_assert_eq!(slots.len() % ranks, 0);
            let items = if are_kept {
                groups.iter().filter(|&row| (bounds[0]..bounds[1]).contains(row)).count()
            } else {
                bounds[1] - bounds[0]
            };
            for of_rank in slots.chunks(slots.len() / ranks) {
                prop_assert!(of_rank.is_sorted_by_key(|slot| slot.is_padding));
                prop_assert!(items < ranks || !of_rank[0].is_padding);
                let num_padding = of_rank.iter().filter(|slot| slot.is_padding).count();
                prop_assert!(are_kept || num_padding <= 1);
                for slot in of_rank {
                    if let Some(row) = slot.row {
                        prop_assert!((bounds[0]..bounds[1]).contains(&row));
                        seen[row] += usize::from(!slot.is_padding);
                    }
                }
            }
        }
        prop_assert_eq!(seen, vec![1; rows]);
    }
}

#[test]
fn padding_lies_behind_the_rows() {
    let split = Split {
        ranks: 2,
        assignment: Assignment::Contiguous,
        padding: Padding::Synthetic,
        groups: None,
    };
    let slots = unstopped(|ticks| split.slots(&[0, 1, 3], ticks)).unwrap();
    let real = |row| Slot {
        row: Some(row),
        is_padding: false,
    };
    let synthetic = Slot {
        row: None,
        is_padding: true,
    };
    assert_eq!(slots.slots, [real(0), synthetic, real(1), real(2)]);
    assert_eq!(slots.offsets, [0, 2, 4]);
}

#[test]
fn groups_in_order_are_distributed_evenly() {
    let split = Split {
        ranks: 4,
        assignment: Assignment::Contiguous,
        padding: Padding::CopyFirst,
        groups: Some(&[0, 2, 4, 6, 8, 10, 11, 12]),
    };
    let slots = unstopped(|ticks| split.slots(&[0, 12], ticks))
        .unwrap()
        .slots;
    let rows = |slots: &[Slot]| slots.iter().filter(|slot| !slot.is_padding).count();
    let counts: Vec<_> = slots.chunks(4).map(rows).collect();
    assert_eq!(counts, [4, 4, 2, 2]);
}

#[test]
fn what_cannot_be_divided_is_named() {
    let split = |assignment| Split {
        ranks: 2,
        assignment,
        padding: Padding::Refused,
        groups: Some(&[0, 1, 2, 5, 8, 10]),
    };
    let refused = |cause| {
        Err(Indivisible {
            mini_batch: 1,
            cause,
        })
    };
    assert_eq!(
        unstopped(|ticks| split(Assignment::Contiguous).slots(&[0, 2, 10], ticks)),
        refused(Cause::Group(3))
    );
    assert_eq!(
        unstopped(|ticks| split(Assignment::Strided).slots(&[0, 2, 10], ticks)),
        refused(Cause::Group(4))
    );
    assert_eq!(
        unstopped(|ticks| split(Assignment::Strided).slots(&[0, 2, 5, 10], ticks)),
        refused(Cause::Rows)
    );
}

#[test]
fn the_largest_are_placed_first() {
    let items = [(1, 1.0), (3, 2.0), (1, 5.0), (1, 2.0)].map(|(rows, cost)| Item { rows, cost });
    let balanced = |ranks, capacity, first| {
        let taken = vec![Item::NOTHING; ranks];
        unstopped(|ticks| balance(&items, &taken, capacity, first, ticks))
    };
    assert_eq!(balanced(2, 3, First::Large), Some(vec![1, 0, 1, 1]));
    assert_eq!(balanced(2, 4, First::Costly), Some(vec![0, 1, 0, 1]));
    assert_eq!(balanced(2, 2, First::Costly), None);
    assert_eq!(balanced(0, 2, First::Costly), None);
}
