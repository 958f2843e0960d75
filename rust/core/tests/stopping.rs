//! Whatever takes long ends where its hook says so, with the hook's own error.

mod common;

use common::pack_spec;
use fastcollate::plan::pack::{Cost, ItemBins, Items, Load, Packer, concat, spread};
use fastcollate::plan::partition::{
    Capped, Counts, First, Item, Order, balance, karmarkar_karp, micro_batches, swap,
};
use fastcollate::plan::share::{Tree, TreeRow};
use fastcollate::plan::{Deal, PackedRows, PackedTrees};
use fastcollate::{Error, Result, Ticks, unstopped};

/// An error of this test's own.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("stopped at call {0}")]
struct Stopped(usize);

/// Check that work ends where the hook is called for the `at`th time, with the error that it returns.
fn stops<T: std::fmt::Debug>(at: usize, work: impl FnOnce(&mut Ticks) -> Result<T>) {
    let mut calls = 0;
    let mut hook = || {
        calls += 1;
        if calls < at {
            return Ok(());
        }
        Err(Error::external(Stopped(calls)))
    };
    let Err(Error::External(error)) = work(&mut Ticks::new(&mut hook)) else {
        panic!("call {at} did not stop it");
    };
    assert_eq!(error.to_string(), format!("stopped at call {at}"));
    assert_eq!(error.downcast().ok(), Some(Stopped(at)));
}

#[test]
fn partitions() {
    let lens: Vec<_> = (0..30_000).map(|item| item * 7919 % 1009).collect();
    let weights: Vec<_> = lens.iter().map(|&len| i64::try_from(len).unwrap()).collect();
    let costs: Vec<_> = weights.iter().map(|&weight| weight as f64).collect();
    let items: Vec<_> = costs.iter().map(|&cost| Item { rows: 1, cost }).collect();
    let taken = [Item::NOTHING; 8];
    let parts = unstopped(|ticks| karmarkar_karp(&weights, 2, false, ticks));
    let capped = Capped { costs: &weights, lens: &lens, capacity: 1500 };
    let counts = Counts { first: 1, step: 1, all: false };
    for at in 1..4 {
        for (count, equal) in [1, 2, 1000].into_iter().flat_map(|n| [(n, false), (n, true)]) {
            stops(at, |ticks| karmarkar_karp(&weights, count, equal, ticks));
            stops(at, |ticks| karmarkar_karp(&costs, count, equal, ticks));
        }
        stops(at, |ticks| balance(&items, &taken, 30_000, First::Costly, ticks));
        stops(at, |ticks| swap(&costs, &parts, false, 100, ticks));
        stops(at, |ticks| capped.fitting(counts, ticks));
        stops(at, |ticks| micro_batches(&weights, &parts, 2, Order::Ascending, ticks));
    }
}

#[test]
fn packers() {
    let sizes: Vec<_> = (0..20_000).map(|item| item * 7919 % 1009).collect();
    let all: Vec<_> = sizes.iter().map(|&size| size as f64).collect();
    let limit = Load { size: 1500, count: usize::MAX, cost: 5e4 };
    for costs in [None, Some(&all[..])] {
        for packer in [
            Packer::FirstFit,
            Packer::FirstFitDecreasing,
            Packer::StableFirstFitDecreasing,
            Packer::BestFitDecreasing,
            Packer::ModifiedFirstFitDecreasing,
            Packer::NextFit,
            Packer::Balanced,
        ] {
            let items = Items { sizes: &sizes, counts: None, costs };
            stops(1, |ticks| packer.pack(items, limit, ticks));
        }
    }
    let packed = ItemBins { offsets: vec![0, sizes.len()], items: (0..sizes.len()).collect() };
    stops(1, |ticks| spread(&packed, 2, ticks));
    stops(1, |ticks| concat(&sizes, 1500, 1, usize::MAX, ticks));
}

#[test]
fn bins_of_ranks() {
    let spec = pack_spec(64, 8);
    let (lens, costs) = (vec![10; 100_000], vec![1.0; 100_000]);
    let rows = PackedRows { lens: &lens, groups: None, limited: None, first_row: 0 };
    let deal = Deal::Balanced { costs: &costs, synthetic: 0.0 };
    for at in [1, 21, 81] {
        stops(at, |ticks| deal.pack(rows, &spec, 8, ticks));
    }

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
    let deal = Deal::Balanced { costs: &costs, synthetic: 0.0 };
    for at in [1, 6, 21] {
        stops(at, |ticks| deal.pack_trees(&trees, &spec, 8, ticks));
    }
}
