//! Sharing: the tokens that rows have in common, so that a model computes each of them once.
//!
//! Rows are sorted by their tokens. A tree is then one number per row: the number of tokens that it
//! shares with the row before it. Any subset of a tree's rows, in the same order, is a tree again;
//! two rows share the minimum of the numbers between them.

mod cut;
mod growing;
mod hash;
mod limits;
mod nodes;
mod pack;
mod rule;

pub(super) use cut::{Units, Weight};
pub use growing::GrowingTree;
pub use hash::prompt_hashes;
pub use limits::ShareLimits;
pub use nodes::{Node, Nodes};
pub(super) use pack::Chunks;
pub use rule::{Share, ShareIds};

use crate::error::{Error, Result};
use crate::memory::check_room;
use crate::plan::Row;
use crate::plan::merge::Streams;
use crate::polling::Ticks;

/// Rows in the order of their tokens, each with the number of tokens shared with the row before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    rows: Vec<TreeRow>,
}

/// A row of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRow {
    /// Index of the row.
    pub row: usize,
    /// Number of tokens.
    pub len: usize,
    /// Number of tokens shared with the row before it; 0 for the first.
    pub shared: usize,
}

impl TreeRow {
    /// Number of tokens that the row adds to the tree.
    pub fn added(&self) -> usize {
        self.len - self.shared
    }
}

impl Tree {
    /// A tree of the given rows, checked.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] for a duplicate row, for a row that shares more tokens with the row
    /// before it than one of the two has, and for more tokens than can be counted.
    pub fn new(rows: Vec<TreeRow>) -> Result<Self> {
        let invalid = |reason: String| Err(Error::InvalidPlan(reason));
        let mut numbers: Vec<_> = rows.iter().map(|row| row.row).collect();
        numbers.sort_unstable();
        if let Some(pair) = numbers.windows(2).find(|pair| pair[0] == pair[1]) {
            return invalid(format!("row {} is given twice", pair[0]));
        }
        let mut before = 0;
        for row in &rows {
            if row.shared > row.len.min(before) {
                return invalid(format!(
                    "row {} shares {} of its {} tokens with the row before it, which has {before}",
                    row.row, row.shared, row.len
                ));
            }
            before = row.len;
        }
        let tokens = rows.iter().try_fold(0_usize, |sum, row| sum.checked_add(row.len));
        if tokens.is_none_or(|tokens| i64::try_from(tokens).is_err()) {
            return invalid("its rows have more tokens than can be counted".to_owned());
        }
        Ok(Self { rows })
    }

    /// The trees of bins, given by their offsets in the rows of all of them.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] for offsets of other rows, and as [`Tree::new`].
    pub fn of_bins(offsets: &[usize], rows: &[TreeRow]) -> Result<Vec<Self>> {
        let tree = |bin: &[usize]| match rows.get(bin[0]..bin[1]) {
            Some(rows) => Self::new(rows.to_vec()),
            None => Err(Error::InvalidPlan("its bins have other rows".to_owned())),
        };
        offsets.windows(2).map(tree).collect()
    }

    /// The rows in order.
    pub fn rows(&self) -> &[TreeRow] {
        &self.rows
    }

    /// Number of pairs of tokens in attention: each token with itself and those before it in its
    /// rows.
    pub fn attention_pairs(&self) -> u128 {
        let pairs = |len: usize| len as u128 * (len as u128 + 1) / 2;
        let rows = self.rows.iter();
        rows.map(|row| pairs(row.len) - pairs(row.shared)).sum()
    }

    /// Distribute rows over the given number of trees: `part_of` returns the tree of the row at a
    /// place, or None to leave it out.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn parted(
        &self,
        part_of: impl Fn(usize) -> Option<usize>,
        parts: usize,
        ticks: &mut Ticks,
    ) -> Result<Vec<Self>> {
        check_room(self.rows.len().max(parts))?;
        let mut trees = vec![Self::default(); parts];
        // One past the place of the last row of each part.
        let mut ends = vec![0; parts];
        // Places since which no row before the current one shares fewer tokens, with that number.
        let mut least: Vec<(usize, usize)> = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            ticks.done(1)?;
            while least.pop_if(|(_, shared)| *shared >= row.shared).is_some() {}
            least.push((index, row.shared));
            let Some(part) = part_of(index) else {
                continue;
            };
            let shared = if trees[part].rows.is_empty() {
                0
            } else {
                least[least.partition_point(|&(at, _)| at < ends[part])].1
            };
            trees[part].rows.push(TreeRow { shared, ..*row });
            ends[part] = index + 1;
        }
        Ok(trees)
    }
}

impl Tree {
    /// Check that trees hold rows of these lengths, each row once.
    ///
    /// # Errors
    /// [`Error::OtherSequenceCount`] and [`Error::OtherSequenceLength`].
    pub fn check_lens(trees: &[Self], rows: &[Row]) -> Result<()> {
        let planned = || trees.iter().flat_map(|tree| &tree.rows);
        let (found, expected) = (rows.len(), planned().count());
        if found != expected {
            return Err(Error::OtherSequenceCount { found, expected });
        }
        let mut lens = vec![None; found];
        for row in planned() {
            match lens.get_mut(row.row) {
                Some(len @ None) => *len = Some(row.len),
                _ => {
                    let reason = format!("row {} is not in one bin", row.row);
                    return Err(Error::InvalidPlan(reason));
                }
            }
        }
        let lens = lens.into_iter().flatten().zip(rows);
        let other = lens.enumerate().find(|(_, (expected, row))| *expected != row.len());
        match other {
            None => Ok(()),
            Some((row, (expected, found))) => {
                Err(Error::OtherSequenceLength { row, found: found.len(), expected })
            }
        }
    }

    /// Check that rows, read from turns, share the tokens that the tree says, and have equal other
    /// inputs: `same_inputs` numbers the inputs of each turn, if turns `have_inputs`.
    ///
    /// # Errors
    /// [`Error::OtherTokens`] and [`Error::OtherInputs`], and errors of the columns.
    pub fn check_tokens(
        &self,
        streams: &Streams,
        rows: &[Row],
        same_inputs: Option<&[usize]>,
        have_inputs: bool,
    ) -> Result<()> {
        for pair in self.rows.windows(2) {
            streams.tokens.pause()?;
            let (before, row, shared) = (pair[0].row, pair[1].row, pair[1].shared);
            if shared == 0 {
                continue;
            }
            let (Some(a), Some(b)) = (rows[before].source, rows[row].source) else {
                let reason = format!("row {row} shares tokens with row {before}, which has none");
                return Err(Error::InvalidPlan(reason));
            };
            let are_given = same_inputs.is_some();
            let are_same = same_inputs.map_or(!have_inputs, |ids| ids[a] == ids[b]);
            if !are_same {
                return Err(Error::OtherInputs { row, before, shared, are_given });
            }
            let token = streams.common(a, b, 0, shared)?;
            if token < shared {
                return Err(Error::OtherTokens { row, before, shared, token });
            }
        }
        Ok(())
    }
}
