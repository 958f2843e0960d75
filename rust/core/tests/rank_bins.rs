//! Bins of ranks: all rows are there, every rank has as many bins, and what was started can be stopped.

mod common;

use common::pack_spec;
use fastcollate::plan::pack::{Cost, PackSpec};
use fastcollate::plan::share::{Tree, TreeRow};
use fastcollate::plan::{Deal, PackedRows, PackedTrees, RankBins};
use fastcollate::{Error, Ticks};
use proptest::prelude::*;

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
            ..pack_spec(capacity, ranks)
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
        let rows = PackedRows { lens: &lens, groups: None, limited: Some(&limited), first_row: 0 };
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

}
