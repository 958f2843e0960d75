//! Bins of ranks: all rows are there, every rank has as many bins, and what was started can be stopped.

use fastcollate::plan::pack::{Algorithm, Cost, Growth, Oversize, PackSpec, Packer};
use fastcollate::plan::share::{Tree, TreeRow};
use fastcollate::plan::{Deal, PackedRows, PackedTrees, RankBins};
use fastcollate::{Error, Ticks};
use proptest::prelude::*;

fn spec(capacity: usize, ranks: usize) -> PackSpec {
    PackSpec {
        algorithm: Algorithm::Pack(Packer::FirstFitDecreasing),
        oversize: Oversize::Error,
        capacity,
        max_sequences: usize::MAX,
        multiple_of: 1,
        max_cost: f64::INFINITY,
        bin_cost: 0.0,
        num_bins: None,
        min_bins: 0,
        bins_multiple_of: ranks,
        growth: Growth::Move,
    }
}

fn pack(deal: Deal, rows: PackedRows, spec: &PackSpec, ranks: usize) -> Result<RankBins, Error> {
    deal.pack(rows, spec, ranks, &mut Ticks::new(&mut || Ok(())))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_row_is_in_one_bin_of_one_rank(
        lens in prop::collection::vec(1_usize..60, 1..120),
        ranks in 1_usize..6,
        capacity in 120_usize..400,
        num_bins in prop_oneof![Just(None), (1_usize..4).prop_map(Some)],
        are_grouped in any::<bool>(),
    ) {
        let groups: Vec<_> = (0..lens.len()).map(|row| row / 2).collect();
        let items = if are_grouped { lens.len().div_ceil(2) } else { lens.len() };
        let costs: Vec<_> = lens.iter().map(|&len| (len * (len + 24)) as f64).collect();
        let rows = PackedRows {
            lens: &lens,
            groups: are_grouped.then_some(&*groups),
            limited: None,
        };
        let num_bins = num_bins.map(|bins| bins * ranks);
        let spec = PackSpec { num_bins, ..spec(capacity, ranks) };
        let balanced = Deal::Balanced { costs: &costs, synthetic: 1.0 };
        let mut numbers = Vec::new();
        for deal in [Deal::Contiguous, Deal::Strided, balanced] {
            let found = pack(deal, rows, &spec, ranks)?;
            numbers.push((found.bins.len(), found.filled));
            let mut all: Vec<_> = found.bins.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..lens.len()));
            prop_assert_eq!(found.bins.len() % ranks, 0);
            prop_assert_eq!(found.bins.iter().filter(|rows| !rows.is_empty()).count(), found.filled);
            prop_assert!(num_bins.is_none_or(|bins| found.bins.len() == bins));
            for rows in &found.bins {
                let tokens: usize = rows.iter().map(|&row| lens[row]).sum();
                prop_assert!(num_bins.is_some() || tokens <= capacity);
                let whole = |&row: &usize| rows.contains(&(row ^ 1)) || row ^ 1 >= lens.len();
                prop_assert!(!are_grouped || rows.iter().all(whole));
            }
        }
        // However they are dealt out, there are as many bins, and none is empty if items are enough.
        prop_assert!(numbers.iter().all(|&(bins, filled)| (bins, filled) == numbers[0]));
        prop_assert_eq!(numbers[0].1, numbers[0].0.min(items));
    }
}

#[test]
fn a_rank_with_one_costly_row_gets_as_many_bins() {
    // The first row costs more than all others: its rank would have no other.
    let lens = [100, 5, 5, 5, 5, 5];
    let costs: Vec<_> = lens.iter().map(|&len| (len * len) as f64).collect();
    let rows = PackedRows {
        lens: &lens,
        groups: None,
        limited: None,
    };
    let deal = Deal::Balanced {
        costs: &costs,
        synthetic: 0.0,
    };
    let spec = PackSpec {
        num_bins: Some(4),
        ..spec(usize::MAX, 2)
    };
    let found = pack(deal, rows, &spec, 2).unwrap();
    assert_eq!(found.filled, 4);
    assert_eq!(found.bins[0], [0]);
    assert_eq!(found.bins[1].len(), 1);
    assert_eq!(found.bins[2].len() + found.bins[3].len(), 4);
}

#[test]
fn work_can_be_stopped() {
    let lens = vec![10; 100_000];
    let costs = vec![1.0; lens.len()];
    let rows = PackedRows {
        lens: &lens,
        groups: None,
        limited: None,
    };
    let deal = Deal::Balanced {
        costs: &costs,
        synthetic: 0.0,
    };
    let stopped = || Error::InvalidPlan("stopped".to_owned());
    for calls in [0, 20, 80] {
        let mut left = calls;
        let mut hook = || {
            left -= 1;
            if left < 0 { Err(stopped()) } else { Ok(()) }
        };
        let found = deal.pack(rows, &spec(64, 8), 8, &mut Ticks::new(&mut hook));
        assert_eq!(found, Err(stopped()));
    }
}

#[test]
fn trees_of_ranks() {
    let row = |(row, shared): (usize, usize)| TreeRow {
        row: row + 3,
        len: 10,
        shared,
    };
    let rows = [0, 4, 8, 0, 6, 0].into_iter().enumerate().map(row);
    let tree = Tree::new(rows.collect()).unwrap();
    let costs = [7.0, 5.0, 5.0, 9.0, 9.0, 1.0];
    let pack = |deal: Deal, ranks: usize, min_bins| {
        let trees = PackedTrees {
            tree: &tree,
            first_row: 3,
            cost: &Cost::Tokens,
            cost_of_shared: &|shared| shared as f64 / 2.0,
        };
        let spec = PackSpec {
            min_bins,
            ..spec(18, 1)
        }
        .for_ranks(ranks);
        let mut hook = || Ok(());
        let found = deal.pack_trees(&trees, &spec, ranks, &mut Ticks::new(&mut hook));
        let found = found.unwrap();
        let rows = |bin: &Tree| bin.rows().iter().map(|row| row.row).collect::<Vec<_>>();
        (
            found.bins.iter().map(rows).collect::<Vec<_>>(),
            found.filled,
        )
    };
    let [a, b, c] = [vec![3, 4, 5], vec![6, 7], vec![8]];
    let bins = |all: [&Vec<usize>; 4]| all.map(Clone::clone).to_vec();
    let none = vec![];
    assert_eq!(
        pack(Deal::Contiguous, 1, 0),
        (vec![a.clone(), b.clone(), c.clone()], 3)
    );
    // Four bins for two ranks: the cut that duplicates fewest tokens is in the first tree.
    let (found, filled) = pack(Deal::Strided, 2, 0);
    assert_eq!((found.len(), filled), (4, 4));
    assert_eq!(found, bins([&vec![3], &b, &vec![4, 5], &c]));
    let deal = Deal::Balanced {
        costs: &costs,
        synthetic: 2.0,
    };
    let (found, filled) = pack(deal, 8, 0);
    assert_eq!((found.len(), filled), (8, 6));
    assert_eq!(found.iter().filter(|bin| **bin == none).count(), 2);
    // They cost 15, 1, 7 and, as shared tokens cost 4, 6.
    let (found, _) = pack(deal, 2, 0);
    assert_eq!(found, bins([&b, &c, &vec![3], &vec![4, 5]]));
}
