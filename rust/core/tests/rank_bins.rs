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
        allow_fewer_bins: false,
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
    fn trees_of_ranks_are_within_limits_and_not_slower_than_rows(
        drawn in prop::collection::vec((1_usize..40, 0_usize..60), 1..90),
        table in prop::collection::vec(0_u32..2000, 40),
        is_monotone in any::<bool>(),
        (ranks, capacity, multiple_of) in (1_usize..7, 40_usize..300, 1_usize..9),
        (max_sequences, min_bins, bin_cost) in (1_usize..12, 0_usize..9, 0_u32..2000),
        max_cost in prop_oneof![Just(f64::INFINITY), (1600_f64..5000.0)],
    ) {
        let mut before = 0;
        let row = |(row, (len, shared)): (usize, (usize, usize))| {
            let shared = if row == 0 { 0 } else { shared.min(len).min(before) };
            before = len;
            TreeRow { row: row + 3, len, shared }
        };
        let rows: Vec<_> = drawn.into_iter().enumerate().map(row).collect();
        let tree = Tree::new(rows.clone()).unwrap();
        let cost = |len: usize| match is_monotone {
            true => (len * (len + 24)) as f64,
            false => f64::from(table[len]),
        };
        let limited = |lens: &[usize]| Ok(lens.iter().map(|&len| (len * len) as f64).collect());
        let costs: Vec<_> = rows.iter().map(|row| cost(row.len)).collect();
        let spec = PackSpec {
            multiple_of,
            max_sequences,
            min_bins,
            max_cost,
            capacity: capacity.next_multiple_of(multiple_of) + multiple_of,
            ..spec(capacity, ranks)
        };
        let deal = Deal::Balanced { costs: &costs, synthetic: 1.0 };
        let cost_of_bin = f64::from(bin_cost);
        let trees = PackedTrees {
            tree: &tree,
            first_row: 3,
            cost: &Cost::Function(&limited),
            cost_of_shared: &cost,
            cost_of_bin,
        };
        let found = deal.pack_trees(&trees, &spec, ranks, &mut Ticks::new(&mut || Ok(())))?;
        let again = deal.pack_trees(&trees, &spec, ranks, &mut Ticks::new(&mut || Ok(())))?;
        prop_assert_eq!(&found, &again);

        prop_assert_eq!(found.bins.len() % ranks, 0);
        prop_assert!(found.bins.len() >= min_bins);
        let filled = found.bins.iter().filter(|bin| !bin.rows().is_empty()).count();
        prop_assert_eq!(filled, found.filled);
        prop_assert_eq!(filled, found.bins.len().min(rows.len()));
        let mut all: Vec<_> = found.bins.iter().flat_map(Tree::rows).map(|row| row.row).collect();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(3..rows.len() + 3));
        let added = |row: &TreeRow, of: &dyn Fn(usize) -> f64| match row.shared {
            0 => of(row.len),
            shared => (of(row.len) - of(shared)).max(0.0),
        };
        let mut times = vec![0.0; ranks];
        let each = found.bins.len() / ranks;
        for (bin, rank) in found.bins.iter().zip((0..ranks).flat_map(|rank| vec![rank; each])) {
            let (mut size, mut last) = (0, None);
            for of_tree in bin.rows().chunk_by(|_, row| row.shared > 0) {
                let tokens: usize = of_tree.iter().map(TreeRow::added).sum();
                size += tokens.next_multiple_of(multiple_of);
            }
            for row in bin.rows() {
                // Rows between two share at least as many tokens as the two.
                let place = row.row - 3;
                let between = last.map(|last: usize| &rows[last + 1..=place]);
                let least = between.and_then(|rows| rows.iter().map(|row| row.shared).min());
                prop_assert_eq!(row.shared, least.unwrap_or(0));
                last = Some(place);
            }
            prop_assert!(size <= spec.capacity && bin.rows().len() <= max_sequences);
            let square = |len: usize| (len * len) as f64;
            prop_assert!(bin.rows().iter().map(|row| added(row, &square)).sum::<f64>() <= max_cost);
            times[rank] += cost_of_bin + match bin.rows() {
                [] => 1.0,
                rows => rows.iter().map(|row| added(row, &cost)).sum(),
            };
        }
        let lens: Vec<_> = rows.iter().map(|row| row.len).collect();
        let limited: Vec<_> = lens.iter().map(|len| (len * len) as f64).collect();
        let rows = PackedRows { lens: &lens, groups: None, limited: Some(&limited) };
        let packed = pack(deal, rows, &spec, ranks)?;
        let of_bin = |rows: &Vec<usize>| cost_of_bin + match rows[..] {
            [] => 1.0,
            _ => rows.iter().map(|&row| costs[row]).sum(),
        };
        let of_ranks = packed.bins.chunks(packed.bins.len() / ranks);
        let slowest = of_ranks.map(|bins| bins.iter().map(of_bin).sum()).fold(0.0, f64::max);
        let own = times.into_iter().fold(0.0, f64::max);
        prop_assert!(own <= slowest * (1.0 + 1e-12), "{own} is slower than {slowest}");
    }

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
fn planning_of_trees_can_be_stopped() {
    let row = |row: usize| TreeRow {
        row,
        len: 10 + row % 7,
        shared: if row.is_multiple_of(8) { 0 } else { 5 },
    };
    let tree = Tree::new((0..20_000).map(row).collect()).unwrap();
    let costs: Vec<_> = tree.rows().iter().map(|row| row.len as f64).collect();
    let trees = PackedTrees {
        tree: &tree,
        first_row: 0,
        cost: &Cost::Tokens,
        cost_of_shared: &|shared| shared as f64,
        cost_of_bin: 0.0,
    };
    let deal = Deal::Balanced {
        costs: &costs,
        synthetic: 0.0,
    };
    let stopped = || Error::InvalidPlan("stopped".to_owned());
    for calls in [0, 5, 20] {
        let mut left = calls;
        let mut hook = || {
            left -= 1;
            if left < 0 { Err(stopped()) } else { Ok(()) }
        };
        let found = deal.pack_trees(&trees, &spec(64, 8), 8, &mut Ticks::new(&mut hook));
        assert_eq!(found.map(|_| ()), Err(stopped()));
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
            cost_of_bin: 0.0,
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
