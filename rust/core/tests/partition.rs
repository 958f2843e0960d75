//! Partitions on slices alone: every item is in one part, and no part is out of bounds.

use fastcollate::plan::partition::{
    Capped, Counts, First, Item, Order, Parts, Short, Weight, balance, karmarkar_karp,
    micro_batches, swap,
};
use fastcollate::{Error, Result, Ticks, unstopped};
use proptest::prelude::*;

fn sorted_items(parts: &Parts) -> Vec<usize> {
    let mut items = parts.indices.clone();
    items.sort_unstable();
    items
}

fn loads(parts: &Parts, weights: &[i64]) -> Vec<i64> {
    let load = |part: &[usize]| part.iter().map(|&item| weights[item]).sum();
    parts.iter().map(load).collect()
}

fn parted<W: Weight>(weights: &[W], parts: usize, equal_size: bool) -> Parts {
    unstopped(|ticks| karmarkar_karp(weights, parts, equal_size, ticks))
}

/// What [`karmarkar_karp`] makes of weights, as integers and as floats that hold them exactly.
fn alike(weights: &[i64], parts: usize, equal_size: bool) -> Parts {
    let found = parted(weights, parts, equal_size);
    let doubles: Vec<_> = weights.iter().map(|&weight| weight as f64).collect();
    let singles: Vec<_> = weights.iter().map(|&weight| weight as f32).collect();
    let short = Short::all(weights).expect("small weights");
    assert_eq!(parted(&doubles, parts, equal_size), found);
    assert_eq!(parted(&singles, parts, equal_size), found);
    assert_eq!(parted(&short, parts, equal_size), found);
    found
}

/// As few parts as are found to do, of all numbers from `first` on in steps of as many.
fn fitting(items: Capped<i64>, first: usize, all: bool) -> Option<Parts> {
    let step = first;
    unstopped(|ticks| items.fitting(Counts { first, step, all }, ticks))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_item_is_in_one_part(
        weights in prop::collection::vec(0_i64..100, 0..40),
        parts in 1_usize..12,
    ) {
        let found = alike(&weights, parts, false);
        prop_assert_eq!(found.iter().len(), parts);
        prop_assert_eq!(sorted_items(&found), (0..weights.len()).collect::<Vec<_>>());
        let filled = found.iter().filter(|part| !part.is_empty()).count();
        prop_assert_eq!(filled, parts.min(weights.len()));
        let loads = loads(&found, &weights);
        prop_assert!(loads.is_sorted_by(|heavy, light| heavy >= light));
        let least = loads[parts - 1];
        prop_assert!(loads[0] - least <= weights.iter().max().copied().unwrap_or(0));
    }

    #[test]
    fn parts_of_equal_size(
        rounds in 1_usize..6,
        parts in 1_usize..12,
        seed in prop::collection::vec(0_i64..100, 72),
    ) {
        let weights = &seed[..rounds * parts];
        let found = alike(weights, parts, true);
        prop_assert!(found.iter().all(|part| part.len() == rounds));
        prop_assert_eq!(sorted_items(&found), (0..weights.len()).collect::<Vec<_>>());
    }

    #[test]
    fn swaps_keep_sizes_or_not(
        weights in prop::collection::vec(0_i64..50, 1..30),
        parts in 1_usize..6,
        equal_size in any::<bool>(),
        rounds in 0_usize..20,
    ) {
        let costs: Vec<_> = weights.iter().map(|&weight| weight as f64).collect();
        let chunk = weights.len().div_ceil(parts);
        let items: Vec<_> = (0..weights.len()).collect();
        let before = items.chunks(chunk).map(<[_]>::to_vec).collect();
        let before = unstopped(|ticks| Parts::of(before, ticks));
        let after = unstopped(|ticks| swap(&costs, &before, equal_size, rounds, ticks));
        prop_assert_eq!(sorted_items(&after), items);
        if equal_size {
            let sizes = |parts: &Parts| parts.iter().map(<[usize]>::len).collect::<Vec<_>>();
            prop_assert_eq!(sizes(&after), sizes(&before));
        }
        prop_assert!(loads(&after, &weights).iter().max() <= loads(&before, &weights).iter().max());
    }

    #[test]
    fn micro_batches_keep_the_cap(
        lens in prop::collection::vec(0_usize..20, 1..30),
        capacity in 20_usize..50,
        ranks in 1_usize..4,
    ) {
        let costs: Vec<_> = lens.iter().map(|&len| i64::try_from(len * len).unwrap()).collect();
        let items = Capped { costs: &costs, lens: &lens, capacity };
        let Some(parts) = fitting(items, ranks, false) else {
            // With as many parts as items, the cap holds.
            prop_assert!(lens.len() % ranks != 0);
            return Ok(());
        };
        for order in [Order::Descending, Order::Ascending, Order::SmallEnds] {
            let assigned = unstopped(|ticks| micro_batches(&costs, &parts, ranks, order, ticks));
            prop_assert_eq!(assigned.iter().len() % ranks, 0);
            prop_assert_eq!(sorted_items(&assigned), (0..lens.len()).collect::<Vec<_>>());
            let is_short = |part: &[usize]| part.iter().map(|&item| lens[item]).sum::<usize>() <= capacity;
            prop_assert!(assigned.iter().all(is_short));
            let mut sizes: Vec<_> = assigned.iter().map(<[usize]>::to_vec).collect();
            let mut expected: Vec<_> = parts.iter().map(<[usize]>::to_vec).collect();
            sizes.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(sizes, expected);
        }
    }
}

#[test]
fn nothing_to_part() {
    let none: [i64; 0] = [];
    assert_eq!(parted(&none, 3, false).offsets, [0; 4]);
    assert_eq!(parted(&none, 0, true).offsets, [0]);
    let items = Capped {
        costs: &none,
        lens: &[],
        capacity: 1,
    };
    assert_eq!(fitting(items, 1, false), None);
    let nothing = unstopped(|ticks| Parts::of(Vec::new(), ticks));
    let swapped = unstopped(|ticks| swap(&[], &nothing, false, 5, ticks));
    assert_eq!(swapped, nothing);
}

/// An error of this test's own.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("stopped at call {0}")]
struct Stopped(usize);

/// Whether work ends where the hook is called for the `at`th time, with the error that it returns.
fn stops(at: usize, mut work: impl FnMut(&mut Ticks) -> Result<()>) -> bool {
    let mut calls = 0;
    let mut hook = || {
        calls += 1;
        if calls < at {
            return Ok(());
        }
        Err(Error::external(Stopped(calls)))
    };
    match work(&mut Ticks::new(&mut hook)) {
        Ok(()) => false,
        Err(Error::External(error)) => {
            assert_eq!(error.to_string(), format!("stopped at call {at}"));
            assert_eq!(error.downcast().ok(), Some(Stopped(at)));
            true
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn all_can_be_stopped_at_any_time() {
    let lens: Vec<_> = (0..30_000).map(|item| item * 7919 % 1009).collect();
    let weights: Vec<_> = lens
        .iter()
        .map(|&len| i64::try_from(len).unwrap())
        .collect();
    let costs: Vec<_> = weights.iter().map(|&weight| weight as f64).collect();
    let items: Vec<_> = costs.iter().map(|&cost| Item { rows: 1, cost }).collect();
    let taken = [Item::NOTHING; 8];
    let parts = parted(&weights, 2, false);
    let capped = Capped {
        costs: &weights,
        lens: &lens,
        capacity: 1500,
    };
    let counts = Counts {
        first: 1,
        step: 1,
        all: false,
    };
    for at in 1..4 {
        for count in [1, 2, 1000] {
            for equal_size in [false, true] {
                assert!(stops(at, |ticks| karmarkar_karp(
                    &weights, count, equal_size, ticks
                )
                .map(drop)));
                assert!(stops(at, |ticks| karmarkar_karp(
                    &costs, count, equal_size, ticks
                )
                .map(drop)));
            }
        }
        assert!(stops(at, |ticks| balance(
            &items,
            &taken,
            30_000,
            First::Costly,
            ticks
        )
        .map(drop)));
        assert!(stops(at, |ticks| swap(&costs, &parts, false, 100, ticks)
            .map(drop)));
        assert!(stops(at, |ticks| capped.fitting(counts, ticks).map(drop)));
        assert!(stops(at, |ticks| micro_batches(
            &weights,
            &parts,
            2,
            Order::Ascending,
            ticks
        )
        .map(drop)));
    }
}

#[test]
fn floats_are_added_one_by_one() {
    // In float32, 2^24 + 1 is 2^24: only the order tells what the sum is.
    let weights = [16_777_218.0_f32, 16_777_216.0, 1.0, 1.0];
    assert_eq!(parted(&weights, 2, false).indices, [0, 1, 3, 2]);
    let exact = [16_777_218_i64, 16_777_216, 1, 1];
    assert_eq!(parted(&exact, 2, false).indices, [1, 3, 2, 0]);
}
