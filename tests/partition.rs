//! Partitions on slices alone: every item is in one part, and no part is out of bounds.

use fastcollate::plan::partition::{
    Capped, Order, Parts, Weight, karmarkar_karp, micro_batches, swap,
};
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

/// What [`karmarkar_karp`] makes of weights, as integers and as floats that hold them exactly.
fn alike(weights: &[i64], parts: usize, equal_size: bool) -> Parts {
    let found = karmarkar_karp(weights, parts, equal_size);
    let doubles: Vec<_> = weights.iter().map(|&weight| weight as f64).collect();
    let singles: Vec<_> = weights.iter().map(|&weight| weight as f32).collect();
    assert_eq!(karmarkar_karp(&doubles, parts, equal_size), found);
    assert_eq!(karmarkar_karp(&singles, parts, equal_size), found);
    found
}

proptest! {
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
        let before = Parts::of(items.chunks(chunk).map(|part| part.iter().copied()));
        let after = swap(&costs, &before, equal_size, rounds);
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
        let found = items.fitting(ranks, ranks, || Ok::<_, ()>(())).unwrap();
        let Some(parts) = found else {
            // With as many parts as items, the cap holds.
            prop_assert!(lens.len() % ranks != 0);
            return Ok(());
        };
        for order in [Order::Descending, Order::Ascending, Order::SmallEnds] {
            let dealt = micro_batches(&costs, &parts, ranks, order);
            prop_assert_eq!(dealt.iter().len() % ranks, 0);
            prop_assert_eq!(sorted_items(&dealt), (0..lens.len()).collect::<Vec<_>>());
            let is_short = |part: &[usize]| part.iter().map(|&item| lens[item]).sum::<usize>() <= capacity;
            prop_assert!(dealt.iter().all(is_short));
            let mut sizes: Vec<_> = dealt.iter().map(<[usize]>::to_vec).collect();
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
    assert_eq!(karmarkar_karp(&none, 3, false).offsets, [0; 4]);
    assert_eq!(karmarkar_karp(&none, 0, true).offsets, [0]);
    let items = Capped {
        costs: &none,
        lens: &[],
        capacity: 1,
    };
    assert_eq!(items.fitting(1, 1, || Ok::<_, ()>(())), Ok(None));
    let nothing = Parts::of(Vec::<Vec<usize>>::new());
    assert_eq!(swap(&[], &nothing, false, 5), nothing);
}

#[test]
fn what_is_polled_can_stop_the_search() {
    let lens = [3, 3, 3];
    let items = Capped {
        costs: &[9_i64, 9, 9],
        lens: &lens,
        capacity: 5,
    };
    let mut polls = 0;
    let found = items.fitting(1, 1, || {
        polls += 1;
        if polls == 2 { Err("stop") } else { Ok(()) }
    });
    assert_eq!(found, Err("stop"));
}

#[test]
fn floats_are_added_one_by_one() {
    // In float32, 2^24 + 1 is 2^24: only the order tells what the sum is.
    let large = 16_777_216.0_f32;
    let zero = <f32 as Weight>::ZERO;
    let left = f32::joined(
        large.added_to(zero),
        2.0_f32.added_to(zero),
        [1.0, 1.0].into_iter(),
    );
    assert_eq!(left.0, large);
    let right = f32::joined(
        1.0_f32.added_to(zero),
        large.added_to(zero),
        [1.0, large].into_iter(),
    );
    assert_eq!(right.0, large + 2.0);
}
