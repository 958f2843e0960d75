//! Packers give every item a place, and bins no more than they may hold.

use fastcollate::plan::pack::{Items, Load, Packed, Packer, concat, spread};
use fastcollate::{Error, Steps, unstopped};
use proptest::prelude::*;

const PACKERS: [Packer; 6] = [
    Packer::FirstFit,
    Packer::FirstFitDecreasing,
    Packer::BestFitDecreasing,
    Packer::ModifiedFirstFitDecreasing,
    Packer::NextFit,
    Packer::Balanced,
];

fn check(packed: &Packed, items: Items, limit: Load) {
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
            let packed = unstopped(|steps| packer.pack(items, limit, steps));
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
        let packed = unstopped(|steps| Packer::FirstFit.pack(items, limit, steps));
        let found: Vec<_> = (0..packed.count()).map(|bin| packed.items(bin)).collect();
        let expected: Vec<_> = bins.iter().map(|(_, contents)| &contents[..]).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn spreading_drains_the_fullest_bin() {
    let packed = Packed {
        offsets: vec![0, 3, 6, 7],
        items: (0..7).collect(),
    };
    let spread = unstopped(|steps| spread(&packed, 6, steps));
    let bins: Vec<_> = (0..spread.count()).map(|bin| spread.items(bin)).collect();
    assert_eq!(bins, [&[0, 1][..], &[3], &[6], &[5], &[4], &[2]]);
}

#[test]
fn concat_needs_room_for_a_token() {
    let concat = |lens: &[usize], multiple, count| {
        let mut go_on = || Ok::<_, Error>(());
        concat(lens, 5, multiple, count, &mut Steps::new(&mut go_on))
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
    let stopped = Error::EmptyBatch;
    let mut stop = || Err(stopped.clone());
    let mut steps = Steps::new(&mut stop);
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
            assert_eq!(packer.pack(items, limit, &mut steps), Err(stopped.clone()));
        }
    }
    let packed = Packed {
        offsets: vec![0, sizes.len()],
        items: (0..sizes.len()).collect(),
    };
    assert_eq!(spread(&packed, 2, &mut steps), Err(stopped.clone()));
    let found = concat(&sizes, 1500, 1, usize::MAX, &mut steps);
    assert_eq!(found, Err(stopped.clone()));
}
