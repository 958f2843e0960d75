//! Attention by blocks: pairs of blocks that attend to each other, for kernels that skip the
//! others.
//!
//! Each position is in its own subtree, so the queries of a block of keys begin with that block and
//! have no gap; and the queries of a key in a later block are the beginning of that block.

use std::ops::Range;

use super::{Placement, to_i32, to_usize};
use crate::error::Result;
use crate::memory::{add, extend, filled, gathered, with_room};

/// Four tables of lists: for each block of queries, the blocks of keys that it attends to in part,
/// and those in full; and the same for each block of keys.
#[derive(Debug)]
pub struct BlockTables {
    /// Number of blocks in an output row.
    count: usize,
    /// The runs of all blocks of keys, and their offsets by block, with the end.
    runs: Vec<Run>,
    offsets: Vec<usize>,
    /// Lengths of the lists, by table and block.
    lens: [Vec<i32>; 4],
}

/// Consecutive blocks of queries that attend to a block of keys in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    queries: Range<usize>,
    /// True if all of their positions attend to all keys.
    is_full: bool,
}

/// The positions of one output row, in blocks.
struct Blocks<'a> {
    size: usize,
    ends: &'a [i32],
    /// The first and the last end of a subtree in each block.
    bounds: Vec<(usize, usize)>,
    window: Option<Window<'a>>,
}

/// The window of attention.
struct Window<'a> {
    len: usize,
    depths: &'a [i32],
    /// The minimum depth from the beginning of its block up to each position.
    least_depths: Vec<i32>,
    /// The minimum and maximum depth of each block.
    bounds: Vec<(i32, i32)>,
}

impl Placement {
    /// The tables of blocks of `size` positions.
    ///
    /// With a window, a token attends to the last `window` tokens of its sequence only.
    ///
    /// # Errors
    /// As [`Placement::subtree_ends`].
    pub fn block_tables(&self, size: usize, window: Option<usize>) -> Result<BlockTables> {
        let ends = self.subtree_ends()?;
        let depths = window.map(|_| self.depths()).transpose()?;
        let width = self.sequence.width();
        let count = width.div_ceil(size);
        let lists = self.sequence.rows() * count;
        let (mut runs, mut offsets) = (with_room(3 * lists)?, with_room(lists + 1)?);
        offsets.push(0);
        for (row, ends) in ends.chunks_exact(width.max(1)).enumerate() {
            let depths = depths.as_ref().map(|all| &all[row * width..][..width]);
            let blocks = Blocks::new(size, ends, window.zip(depths))?;
            for kv in 0..count {
                blocks.add_runs(kv, &mut runs)?;
                offsets.push(runs.len());
            }
        }
        let mut tables = BlockTables { count, runs, offsets, lens: Default::default() };
        tables.lens = tables.lens_of()?;
        Ok(tables)
    }
}

impl BlockTables {
    /// The runs of some blocks of keys.
    fn runs(&self, keys: Range<usize>) -> impl Iterator<Item = &[Run]> {
        self.offsets[keys.start..=keys.end].windows(2).map(|run| &self.runs[run[0]..run[1]])
    }

    /// The lengths of the lists in the four tables.
    fn lens_of(&self) -> Result<[Vec<i32>; 4]> {
        let count = self.offsets.len() - 1;
        let lens = || filled(count + 1, |_| 0);
        let mut lens = [lens()?, lens()?, lens()?, lens()?];
        for (kv, runs) in self.runs(0..count).enumerate() {
            let row = kv - kv % self.count;
            for Run { queries, is_full } in runs {
                lens[usize::from(*is_full)][row + queries.start] += 1;
                lens[usize::from(*is_full)][row + queries.end] -= 1;
                lens[2 + usize::from(*is_full)][kv] += to_i32(queries.len());
            }
        }
        for changes in &mut lens[..2] {
            let mut len = 0;
            for change in changes {
                len += *change;
                *change = len;
            }
        }
        Ok(lens)
    }

    /// The length of the longest list, at least 1 if there are blocks.
    pub fn most(&self) -> usize {
        let most = self.lens.iter().map(|lens| to_usize(largest(lens))).max();
        most.unwrap_or(0).max(1).min(self.count)
    }

    /// Write the lengths of lists, (4, rows, blocks), and the lists, each [`most`](Self::most) after
    /// the one before: ascending, then 0. All are 0 initially.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    ///
    /// # Panics
    /// If the arrays are too short.
    pub fn write(&self, counts: &mut [i32], indices: &mut [i32]) -> Result<()> {
        let (lists, most) = (self.offsets.len() - 1, self.most());
        if lists == 0 {
            return Ok(());
        }
        let mut tables = indices.chunks_exact_mut(indices.len() / 4);
        let counts = counts.chunks_exact_mut(lists).zip(&self.lens);
        for (table, (counts, lens)) in counts.enumerate() {
            counts.copy_from_slice(&lens[..lists]);
            let Some(indices) = tables.next() else { break };
            let is_full = table % 2 == 1;
            for row in (0..lists).step_by(self.count) {
                let lists = &mut indices[row * most..][..self.count * most];
                let runs = self.runs(row..row + self.count);
                match table {
                    0 | 1 => transpose(lists, most, runs, is_full)?,
                    _ => list(lists, most, runs, is_full),
                }
            }
        }
        Ok(())
    }
}

/// List, for each block of keys, the blocks of queries in its runs.
fn list<'a>(lists: &mut [i32], most: usize, runs: impl Iterator<Item = &'a [Run]>, is_full: bool) {
    for (runs, list) in runs.zip(lists.chunks_mut(most)) {
        let runs = runs.iter().filter(|run| run.is_full == is_full);
        let blocks = runs.flat_map(|run| run.queries.clone());
        list.iter_mut().zip(blocks).for_each(|(to, block)| *to = to_i32(block));
    }
}

/// List, for each block of queries, the blocks of keys with a run that contains it, updating the
/// list from one block to the next: few runs begin or end between two.
fn transpose<'a>(
    lists: &mut [i32],
    most: usize,
    runs: impl Iterator<Item = &'a [Run]>,
    is_full: bool,
) -> Result<()> {
    let mut changes: Vec<(usize, i32)> = Vec::new();
    for (kv, runs) in runs.enumerate() {
        for run in runs.iter().filter(|run| run.is_full == is_full) {
            let changed = [run.queries.start, run.queries.end].map(|q| (q, to_i32(kv)));
            extend(&mut changes, &changed)?;
        }
    }
    changes.sort_unstable();
    let mut changes = &changes[..];
    let mut keys: Vec<i32> = with_room(most)?;
    for (q, list) in lists.chunks_mut(most).enumerate() {
        while let [(at, kv), rest @ ..] = changes
            && *at == q
        {
            changes = rest;
            match keys.binary_search(kv) {
                Ok(index) => _ = keys.remove(index),
                Err(index) => keys.insert(index, *kv),
            }
        }
        list[..keys.len()].copy_from_slice(&keys);
    }
    Ok(())
}

impl<'a> Blocks<'a> {
    fn new(size: usize, ends: &'a [i32], window: Option<(usize, &'a [i32])>) -> Result<Self> {
        let of_block = |ends: &[i32]| (to_usize(least(ends)), to_usize(largest(ends)));
        let window = window.map(|(len, depths)| Window::new(len, depths, size));
        Ok(Self {
            size,
            ends,
            bounds: gathered(ends.chunks(size).map(of_block))?,
            window: window.transpose()?,
        })
    }

    /// Add the blocks that attend to a block of keys.
    fn add_runs(&self, kv: usize, runs: &mut Vec<Run>) -> Result<()> {
        let (first_end, last_end) = self.bounds[kv];
        // A block of one position attends to itself in full.
        let begin = if self.size == 1 { kv } else { kv + 1 };
        let full = begin..begin.max(first_end / self.size);
        let last = full.end..last_end.div_ceil(self.size).max(full.end);
        let before = runs.len();
        let mut push = |queries: Range<usize>, is_full| match runs[before..].last_mut() {
            _ if queries.is_empty() => Ok(()),
            Some(Run { queries: Range { end, .. }, is_full: same })
                if *same == is_full && *end == queries.start =>
            {
                *end = queries.end;
                Ok(())
            }
            _ => add(runs, Run { queries, is_full }),
        };
        push(kv..begin, false)?;
        let Some(window) = &self.window else {
            push(full, true)?;
            return push(last, false);
        };
        let keys = self.crossing(window, (kv + 1) * self.size);
        let mut keys = &keys[..];
        for q in full.start..last.end {
            while let [(end, _), rest @ ..] = keys
                && *end <= q * self.size
            {
                keys = rest;
            }
            let is_full = q < full.end && window.has_all(q, kv);
            if is_full || self.is_near(window, q, keys) {
                push(q..q + 1, is_full)?;
            }
        }
        Ok(())
    }

    /// The keys, in the block ending at `block_end`, that later blocks attend to: the end of each
    /// subtree, and the depth of the last key with that end. Ends ascend, and depths descend.
    fn crossing(&self, window: &Window, block_end: usize) -> Vec<(usize, i32)> {
        let mut keys = Vec::new();
        let mut last_end = block_end;
        for key in (block_end - self.size..block_end.min(self.ends.len())).rev() {
            let end = to_usize(self.ends[key]);
            if end > last_end {
                keys.push((end, window.depths[key]));
                last_end = end;
            }
        }
        keys
    }

    /// True if a position of the block has one of the keys in its window; all keys cross its
    /// beginning.
    fn is_near(&self, window: &Window, q: usize, keys: &[(usize, i32)]) -> bool {
        let is_possible = |&(_, deepest): &(usize, i32)| window.has(window.bounds[q].0, deepest);
        if !keys.first().is_some_and(is_possible) {
            return false;
        }
        let block_end = self.ends.len().min((q + 1) * self.size);
        // After the first key that the whole block attends to, the others are only farther away.
        let whole = keys.partition_point(|(end, _)| *end < block_end);
        let mut keys = keys.iter().take(whole + 1);
        keys.any(|&(end, depth)| window.has(window.least_depths[end.min(block_end) - 1], depth))
    }
}

impl<'a> Window<'a> {
    fn new(len: usize, depths: &'a [i32], size: usize) -> Result<Self> {
        let mut least_depths = with_room(depths.len())?;
        for block in depths.chunks(size) {
            let mut least = i32::MAX;
            least_depths.extend(block.iter().map(|&depth| {
                least = least.min(depth);
                least
            }));
        }
        let bounds = depths.chunks(size).map(|block| (least(block), largest(block)));
        Ok(Self { len, depths, bounds: gathered(bounds)?, least_depths })
    }

    /// True if a token has the given ancestor in its window.
    fn has(&self, depth: i32, of_ancestor: i32) -> bool {
        to_usize(depth - of_ancestor) < self.len
    }

    /// True if all tokens of a block have all tokens of another in their windows, by depth alone.
    fn has_all(&self, q: usize, kv: usize) -> bool {
        self.has(self.bounds[q].1, self.bounds[kv].0)
    }
}

fn least(values: &[i32]) -> i32 {
    values.iter().copied().fold(i32::MAX, i32::min)
}

fn largest(values: &[i32]) -> i32 {
    values.iter().copied().fold(0, i32::max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Trees in the order of their positions: the depths, and the ends of subtrees.
    fn trees(drawn: &[i32]) -> (Vec<i32>, Vec<i32>) {
        let mut depths: Vec<i32> = Vec::new();
        for &drawn in drawn {
            depths.push(depths.last().map_or(0, |last| (last + 1 - drawn).max(0)));
        }
        let end = |(key, depth): (usize, &i32)| {
            let after = &depths[key + 1..];
            let len = after.iter().take_while(|it| *it > depth).count();
            to_i32(key + 1 + len)
        };
        let ends = depths.iter().enumerate().map(end).collect();
        (depths, ends)
    }

    proptest! {
        #[test]
        fn blocks_look_as_their_pairs_do(
            drawn in prop::collection::vec(prop_oneof![4 => Just(0), 1 => 1..40], 1..120),
            size in 1..20_usize,
            window in proptest::option::of(1..60_usize),
        ) {
            let (depths, ends) = trees(&drawn);
            let blocks = Blocks::new(size, &ends, window.map(|window| (window, &depths[..])))?;
            let count = ends.len().div_ceil(size);
            for kv in 0..count {
                let mut runs = vec![Run { queries: 0..kv, is_full: kv % 2 == 0 }];
                blocks.add_runs(kv, &mut runs)?;
                runs.remove(0);
                let are_apart = runs.windows(2).all(|two| {
                    let (end, begin) = (two[0].queries.end, two[1].queries.start);
                    end < begin || (end == begin && two[0].is_full != two[1].is_full)
                });
                prop_assert!(are_apart);
                for q in 0..count {
                    let found = runs.iter().find(|run| run.queries.contains(&q));
                    let pairs = (q * size..ends.len().min((q + 1) * size))
                        .flat_map(|q| (kv * size..ends.len().min((kv + 1) * size)).map(move |k| (q, k)));
                    let seen = pairs.filter(|&(q, k)| {
                        k <= q
                            && q < to_usize(ends[k])
                            && to_usize(depths[q] - depths[k]) < window.unwrap_or(usize::MAX)
                    });
                    let expected = match seen.count() {
                        0 => None,
                        some => Some(some == size * size),
                    };
                    prop_assert_eq!(found.map(|run| run.is_full), expected, "{} of {}", q, kv);
                }
            }
        }
    }
}
