//! Packers give every item a place, and bins no more than they may hold.

use fastcollate::plan::pack::{Items, Load, Packed, Packer, concat, spread};
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
            check(&packer.pack(items, limit), items, limit);
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
        let packed = Packer::FirstFit.pack(items, limit);
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
    let spread = spread(&packed, 6);
    let bins: Vec<_> = (0..spread.count()).map(|bin| spread.items(bin)).collect();
    assert_eq!(bins, [&[0, 1][..], &[3], &[6], &[5], &[4], &[2]]);
}

#[test]
fn concat_needs_room_for_a_token() {
    let bins = concat(&[3, 9, 2], 5, 1, usize::MAX).unwrap();
    assert_eq!(bins.offsets, [0, 2, 3, 5]);
    assert!(bins.check(&[3, 9, 2]).is_ok());
    assert!(concat(&[3], 5, 6, 1).is_err());
    assert!(concat(&[3], 5, 0, 1).is_err());
    assert!(concat(&[3], 5, 1, 0).is_err());
}
