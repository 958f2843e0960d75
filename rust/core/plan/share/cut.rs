//! Cutting: trees that exceed a limit become several, with the fewest duplicated tokens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use super::Tree;
use crate::error::Result;
use crate::plan::pack::Load;
use crate::polling::Ticks;

/// Prefix sums over the rows of a tree, to weigh a run of rows in constant time.
pub struct Weights<'a> {
    tree: &'a Tree,
    /// Costs of single rows, if costs are limited.
    costs: Option<&'a [f64]>,
    /// Prefix sums of the tokens that rows add.
    tokens: Vec<usize>,
    /// Prefix sums of the costs that rows add.
    added_costs: Vec<f64>,
}

impl<'a> Weights<'a> {
    /// `costs` are the costs of single rows, and the part of each for the tokens shared with the
    /// row before.
    pub fn new(tree: &'a Tree, costs: Option<&'a (Vec<f64>, Vec<f64>)>) -> Self {
        let mut sum = 0;
        let mut tokens = vec![0];
        tokens.extend(tree.rows.iter().map(|row| {
            sum += row.added();
            sum
        }));
        let mut added_costs = Vec::new();
        if let Some((alone, shared)) = costs {
            let mut sum = 0.0;
            added_costs.push(sum);
            added_costs.extend(alone.iter().zip(shared).map(|(alone, shared)| {
                sum += (alone - shared).max(0.0);
                sum
            }));
        }
        Self {
            tree,
            costs: costs.map(|(alone, _)| &**alone),
            tokens,
            added_costs,
        }
    }

    /// The load of a run of rows as a tree of its own.
    pub fn of(&self, rows: &Range<usize>) -> Load {
        let added = self.tokens[rows.end] - self.tokens[rows.start + 1];
        let cost = self.costs.map_or(0.0, |costs| {
            costs[rows.start] + self.added_costs[rows.end] - self.added_costs[rows.start + 1]
        });
        Load {
            size: self.tree.rows[rows.start].len + added,
            count: rows.len(),
            cost,
        }
    }

    /// Cut the tree into chunks within the limit, or of single rows: between rows that share
    /// nothing, then where cuts duplicate the fewest tokens in total.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn cut(&self, limit: Load, ticks: &mut Ticks) -> Result<Vec<Range<usize>>> {
        let mut chunks = Vec::new();
        for tree in self.tree.trees() {
            ticks.done(1)?;
            if self.of(&tree).is_within(limit) {
                chunks.push(tree);
            } else {
                self.cut_tree(tree, limit, &mut chunks, ticks)?;
            }
        }
        Ok(chunks)
    }

    /// Cut one tree that exceeds the limit.
    ///
    /// The minimum of duplicates for the first n rows is that for fewer rows plus the cut before
    /// the last chunk. The possible beginnings of that chunk advance with its end, so their minimum
    /// is kept in a queue, and the time is linear. Ties go to the first cut: the last chunk is as
    /// long as possible.
    fn cut_tree(
        &self,
        tree: Range<usize>,
        limit: Load,
        chunks: &mut Vec<Range<usize>>,
        ticks: &mut Ticks,
    ) -> Result<()> {
        let mut begins = Vec::with_capacity(tree.len());
        let mut queue = VecDeque::new();
        let (mut first, mut duplicates) = (tree.start, 0);
        for last in tree.clone() {
            ticks.done(1)?;
            let with_cut = duplicates + self.tree.rows[last].shared;
            while queue.pop_back_if(|(_, least)| *least > with_cut).is_some() {}
            queue.push_back((last, with_cut));
            while first < last && !self.of(&(first..last + 1)).is_within(limit) {
                first += 1;
            }
            while queue.pop_front_if(|(begin, _)| *begin < first).is_some() {}
            let (begin, least) = queue[0];
            begins.push(begin);
            duplicates = least;
        }
        let count = chunks.len();
        let mut end = tree.end;
        while end > tree.start {
            let begin = begins[end - 1 - tree.start];
            chunks.push(begin..end);
            end = begin;
        }
        chunks[count..].reverse();
        Ok(())
    }

    /// Cut chunks further until there are `count`, where cuts duplicate the fewest tokens. Among
    /// equally good cuts, cut where it halves the largest chunk.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn cut_further(
        &self,
        chunks: Vec<Range<usize>>,
        count: usize,
        ticks: &mut Ticks,
    ) -> Result<Vec<Range<usize>>> {
        let rows = &self.tree.rows;
        let inside = |chunk: &Range<usize>| chunk.start + 1..chunk.end;
        let mut cuts: Vec<_> = chunks.iter().flat_map(inside).collect();
        let missing = count.saturating_sub(chunks.len()).min(cuts.len());
        if missing == 0 {
            return Ok(chunks);
        }
        let mut costs: Vec<_> = cuts.iter().map(|&cut| rows[cut].shared).collect();
        let most = *costs.select_nth_unstable(missing - 1).1;
        let mut begins: Vec<_> = chunks.iter().map(|chunk| chunk.start).collect();
        let cheaper = cuts.iter().filter(|&&cut| rows[cut].shared < most);
        begins.extend(cheaper);
        begins.sort_unstable();
        cuts.retain(|&cut| rows[cut].shared == most);

        let missing = count - begins.len();
        let ends = begins[1..].iter().copied().chain([rows.len()]);
        let mut largest: BinaryHeap<_> = begins
            .iter()
            .zip(ends)
            .map(|(&begin, end)| self.by_size(begin..end))
            .collect();
        for _ in 0..missing {
            while let Some((_, Reverse(begin), end)) = largest.pop() {
                ticks.done(1)?;
                if let Some(cut) = self.halving(begin..end, &cuts) {
                    begins.push(cut);
                    largest.push(self.by_size(begin..cut));
                    largest.push(self.by_size(cut..end));
                    break;
                }
            }
        }
        begins.sort_unstable();
        let ends = begins[1..].iter().copied().chain([rows.len()]);
        Ok({ begins.iter().zip(ends) }
            .map(|(&begin, end)| begin..end)
            .collect())
    }

    /// The sort key of chunks: the largest is the greatest; of equal ones, the first.
    fn by_size(&self, rows: Range<usize>) -> (usize, Reverse<usize>, usize) {
        (self.of(&rows).size, Reverse(rows.start), rows.end)
    }

    /// The cut, among sorted cuts, that minimizes the larger part of a chunk; None if no cut
    /// is inside it.
    fn halving(&self, rows: Range<usize>, cuts: &[usize]) -> Option<usize> {
        let begin = cuts.partition_point(|&cut| cut <= rows.start);
        let end = cuts.partition_point(|&cut| cut < rows.end);
        let cuts = &cuts[begin..end];
        let sizes = |cut: usize| {
            let parts = [rows.start..cut, cut..rows.end];
            parts.map(|part| self.of(&part).size)
        };
        let is_left = |&cut: &usize| {
            let [before, after] = sizes(cut);
            before < after
        };
        let middle = cuts.partition_point(is_left);
        let around = cuts[middle.saturating_sub(1)..].iter().take(2).copied();
        around.min_by_key(|&cut| sizes(cut).into_iter().max())
    }
}
