//! Chunks of trees in bins, written out. Trees, cuts and bins are compared with tries in Python.

mod common;

use common::pack_spec;
use fastcollate::plan::pack::{Cost, Oversize, PackSpec};
use fastcollate::plan::share::{Tree, TreeRow};
use fastcollate::{Error, Ticks};

fn tree_of(rows: &[(usize, usize)]) -> Tree {
    let row = |(row, &(len, shared))| TreeRow { row, len, shared };
    Tree::new(rows.iter().enumerate().map(row).collect()).unwrap()
}

/// The rows of each bin.
fn bins_of(
    tree: &Tree,
    capacity: usize,
    multiple_of: usize,
    oversize: Oversize,
) -> Result<Vec<Vec<usize>>, Error> {
    let spec = PackSpec { oversize, multiple_of, ..pack_spec(capacity, 1) };
    let bins = tree.pack(&spec, &Cost::Tokens, &mut Ticks::new(&mut || Ok(())))?;
    let rows = |bin: &Tree| bin.rows().iter().map(|row| row.row).collect();
    Ok(bins.iter().map(rows).collect())
}

#[test]
fn chunks_are_padded_behind_them() {
    let tree = tree_of(&[(5, 0), (6, 4), (6, 4)]);
    // 5 + 2 tokens take 8 places, 5 + 2 + 2 would take 12.
    let rounded = bins_of(&tree, 10, 4, Oversize::OwnBin).unwrap();
    assert_eq!(rounded, [vec![1, 2], vec![0]]);
    let bins = bins_of(&tree, 10, 1, Oversize::OwnBin).unwrap();
    assert_eq!(bins, [vec![0, 1, 2]]);
}

#[test]
fn the_longest_row_above_the_capacity_is_named_or_has_a_bin_of_its_own() {
    let tree = tree_of(&[(5, 0), (12, 5), (13, 11), (14, 5), (7, 5)]);
    let error = bins_of(&tree, 11, 1, Oversize::Error).unwrap_err();
    assert_eq!(error.to_string(), "row 3 has 14 tokens, which exceeds capacity=11");
    let bins = bins_of(&tree, 12, 1, Oversize::OwnBin).unwrap();
    assert_eq!(bins, [vec![3], vec![2], vec![0, 1], vec![4]]);
}
