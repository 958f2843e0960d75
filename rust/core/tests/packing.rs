//! Packers give every item a place, and bins no more than they may hold.

use fastcollate::plan::pack::{
    Algorithm, Cost, Growth, ItemBins, Items, Load, Oversize, PackSpec, Packer, concat, halve,
    spread,
};
use fastcollate::plan::{Bins, TokenForm};
use fastcollate::{Error, Ticks, unstopped};
use proptest::prelude::*;

const PACKERS: [Packer; 7] = [
    Packer::FirstFit,
    Packer::FirstFitDecreasing,
    Packer::StableFirstFitDecreasing,
    Packer::BestFitDecreasing,
    Packer::ModifiedFirstFitDecreasing,
    Packer::NextFit,
    Packer::Balanced,
];

fn check(packed: &ItemBins, items: Items, limit: Load) {
    let mut all = packed.items.clone();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..items.sizes.len()));
    for bin in 0..packed.count() {
        let contents = packed.items(bin);
        let costs = |item: &usize| items.costs.map_or(0.0, |costs| costs[*item]);
        assert!(!contents.is_empty());
        assert!(contents.len() <= limit.count);
        assert!(
            contents
                .iter()
                .map(|&item| items.sizes[item])
                .sum::<usize>()
                <= limit.size
        );
        assert!(contents.iter().map(costs).sum::<f64>() <= limit.cost);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_item_has_a_place(
        sizes in prop::collection::vec(0_usize..100, 0..300),
        count in prop_oneof![Just(usize::MAX), 1_usize..6],
        cost in prop_oneof![Just(f64::INFINITY), Just(12_000.0)],
    ) {
        let costs: Vec<_> = sizes.iter().map(|&size| (size * size) as f64).collect();
        let items = Items {
            sizes: &sizes,
            counts: None,
            costs: (cost < f64::INFINITY).then_some(&costs),
        };
        let limit = Load { size: 150, count, cost };
        for packer in PACKERS {
            let packed = unstopped(|ticks| packer.pack(items, limit, ticks));
            check(&packed, items, limit);
        }
    }

    #[test]
    fn first_fit_takes_the_first_bin(sizes in prop::collection::vec(0_usize..70, 0..300)) {
        let items = Items { sizes: &sizes, counts: None, costs: None };
        let limit = Load { size: 100, count: usize::MAX, cost: f64::INFINITY };
        let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
        for (item, &size) in sizes.iter().enumerate() {
            match bins.iter_mut().find(|(load, _)| load + size <= limit.size) {
                Some((load, contents)) => {
                    *load += size;
                    contents.push(item);
                }
                None => bins.push((size, vec![item])),
            }
        }
        let packed = unstopped(|ticks| Packer::FirstFit.pack(items, limit, ticks));
        let found: Vec<_> = (0..packed.count()).map(|bin| packed.items(bin)).collect();
        let expected: Vec<_> = bins.iter().map(|(_, contents)| &contents[..]).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn spreading_drains_the_fullest_bin() {
    let packed = ItemBins {
        offsets: vec![0, 3, 6, 7],
        items: (0..7).collect(),
    };
    let spread = unstopped(|ticks| spread(&packed, 6, ticks));
    let bins: Vec<_> = (0..spread.count()).map(|bin| spread.items(bin)).collect();
    assert_eq!(bins, [&[0, 1][..], &[3], &[6], &[5], &[4], &[2]]);
}

#[test]
fn halving_splits_the_heaviest_bin() {
    let packed = ItemBins {
        offsets: vec![0, 3, 6, 7],
        items: (0..7).collect(),
    };
    let weights = [1.0, 5.0, 2.0, 3.0, 3.0, 2.0, 9.0];
    let grown = unstopped(|ticks| halve(&packed, &weights, 6, ticks));
    let bins: Vec<_> = (0..grown.count()).map(|bin| grown.items(bin)).collect();
    // Of the two of 8, the last: 3 and 2 are kept, 3 is given. Then the other, then the 5 of 3 and 2.
    assert_eq!(bins, [&[1][..], &[3], &[6], &[4], &[2, 0], &[5]]);
}

#[test]
fn concat_needs_room_for_a_token() {
    let concat = |lens: &[usize], multiple, count| {
        let mut go_on = || Ok(());
        concat(lens, 5, multiple, count, &mut Ticks::new(&mut go_on))
    };
    let bins = concat(&[3, 9, 2], 1, usize::MAX).unwrap();
    assert_eq!(bins.offsets, [0, 2, 3, 5]);
    assert!(bins.check(&[3, 9, 2]).is_ok());
    assert!(concat(&[3], 6, 1).is_err());
    assert!(concat(&[3], 0, 1).is_err());
    assert!(concat(&[3], 1, 0).is_err());
}

#[test]
fn all_can_be_stopped() {
    let sizes: Vec<_> = (0..20_000).map(|item| item * 7919 % 1009).collect();
    let costs: Vec<_> = sizes.iter().map(|&size| size as f64).collect();
    let stopped = || Error::EmptyBatch(TokenForm::Parts);
    let mut stop = || Err(stopped());
    let mut ticks = Ticks::new(&mut stop);
    for costs in [None, Some(&costs[..])] {
        let items = Items {
            sizes: &sizes,
            counts: None,
            costs,
        };
        let limit = Load {
            size: 1500,
            count: usize::MAX,
            cost: 5e4,
        };
        for packer in PACKERS {
            assert_eq!(packer.pack(items, limit, &mut ticks), Err(stopped()));
        }
    }
    let packed = ItemBins {
        offsets: vec![0, sizes.len()],
        items: (0..sizes.len()).collect(),
    };
    assert_eq!(spread(&packed, 2, &mut ticks), Err(stopped()));
    let found = concat(&sizes, 1500, 1, usize::MAX, &mut ticks);
    assert_eq!(found, Err(stopped()));
}

/// The options of a packer, of which a test changes some.
const SPEC: PackSpec = PackSpec {
    algorithm: Algorithm::Pack(Packer::FirstFitDecreasing),
    oversize: Oversize::Error,
    capacity: 40,
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

fn bins_of(spec: &PackSpec, lens: &[usize], groups: Option<&[usize]>) -> Result<Bins, Error> {
    spec.pack(lens, groups, &Cost::Tokens, &mut Ticks::new(&mut || Ok(())))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_token_is_in_one_bin(
        lens in prop::collection::vec(0_usize..200, 1..60),
        multiple_of in 1_usize..4,
        max_cost in prop_oneof![Just(f64::INFINITY), Just(25.0)],
        min_bins in 0_usize..5,
        of_groups in 1_usize..9,
    ) {
        let groups: Vec<_> = (0..lens.len()).map(|index| index / of_groups).collect();
        for packer in PACKERS {
            let algorithm = Algorithm::Pack(packer);
            let spec = PackSpec { algorithm, multiple_of, min_bins, ..SPEC };
            let split = PackSpec { oversize: Oversize::Split, max_cost, ..spec.clone() };
            if let Ok(bins) = bins_of(&split, &lens, None) {
                prop_assert_eq!(bins.check(&lens), Ok(()));
                for bin in 0..bins.count() {
                    let parts = bins.spans(bin);
                    let places = parts.iter().map(|part| part.len.next_multiple_of(multiple_of));
                    prop_assert!(places.sum::<usize>() <= 40);
                    let tokens: usize = parts.iter().map(|part| part.len).sum();
                    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
                    let cost = tokens as f64;
                    prop_assert!(cost <= max_cost);
                }
            }
            let own = PackSpec { oversize: Oversize::OwnBin, ..spec };
            if let Ok(bins) = bins_of(&own, &lens, Some(&groups)) {
                prop_assert_eq!(bins.check(&lens), Ok(()));
                let mut bin_of = vec![None; lens.len()];
                for bin in 0..bins.count() {
                    for part in bins.spans(bin) {
                        let bin_of_group = bin_of[groups[part.index]].get_or_insert(bin);
                        prop_assert_eq!(*bin_of_group, bin);
                    }
                }
            }
        }
        let concat = PackSpec { algorithm: Algorithm::Concat, ..SPEC };
        prop_assert_eq!(bins_of(&concat, &lens, None).unwrap().check(&lens), Ok(()));
    }
}

#[test]
fn what_exceeds_a_bin_is_named() {
    let message = |spec: &PackSpec, groups| {
        let refused = bins_of(spec, &[3, 41, 41], groups);
        refused.unwrap_err().to_string()
    };
    assert_eq!(
        message(&SPEC, None),
        "lengths[1] is 41, which exceeds capacity=40"
    );
    assert_eq!(
        message(&SPEC, Some(&[0, 1, 1])),
        "keep_together puts 2 sequences, of which 1 is the first, in one bin, with 82 tokens, which \
         exceeds capacity=40"
    );
    let spread = PackSpec {
        oversize: Oversize::OwnBin,
        min_bins: 3,
        bins_multiple_of: 4,
        ..SPEC
    };
    assert_eq!(
        message(&spread, None),
        "bins_multiple_of is 4, so there must be at least 4 bins, but there are only 3 sequences and no \
         bin may be empty"
    );
    let dear = PackSpec {
        capacity: 100,
        max_cost: 0.5,
        oversize: Oversize::Split,
        ..SPEC
    };
    assert_eq!(
        message(&dear, None),
        "lengths[0] is 3, but already 1 token cost 1, which exceeds max_cost=0.5"
    );
}
