//! Cutting: trees that exceed a limit become several, with the fewest duplicated tokens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use crate::error::Result;
use crate::plan::pack::Load;
use crate::polling::Ticks;

/// What rows take of a bin's limits, and what they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Weight {
    /// Tokens, rows, and the cost that is limited.
    pub load: Load,
    /// The cost that ranks are balanced by.
    pub cost: f64,
}

impl Weight {
    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self { load: self.load.plus(other.load), cost: self.cost + other.cost }
    }

    /// The difference, at least 0.
    pub fn minus(self, other: Self) -> Self {
        Self {
            load: Load {
                size: self.load.size.saturating_sub(other.load.size),
                count: self.load.count.saturating_sub(other.load.count),
                cost: (self.load.cost - other.load.cost).max(0.0),
            },
            cost: (self.cost - other.cost).max(0.0),
        }
    }
}

/// The rows of a tree in order, or runs of them, with prefix sums to weigh several in constant
/// time.
pub struct Units {
    /// Each as a tree of its own.
    pub alone: Vec<Weight>,
    /// What each shares with the one before it.
    pub shared: Vec<Weight>,
    /// Prefix sums of what each adds to the ones before.
    sums: Vec<Weight>,
}

impl Units {
    /// # Errors
    /// Those of `ticks`.
    pub fn new(alone: Vec<Weight>, shared: Vec<Weight>, ticks: &mut Ticks) -> Result<Self> {
        let mut sum = Weight::default();
        let mut sums = Vec::with_capacity(alone.len() + 1);
        sums.push(sum);
        for (alone, shared) in alone.iter().zip(&shared) {
            ticks.done(1)?;
            sum = sum.plus(alone.minus(*shared));
            sums.push(sum);
        }
        Ok(Self { alone, shared, sums })
    }

    /// The same, with runs of units as units.
    pub fn joined(&self, runs: &[Range<usize>]) -> Self {
        let begins = runs.iter().map(|run| run.start);
        let ends = begins.clone().chain([self.alone.len()]);
        Self {
            alone: runs.iter().map(|run| self.of(run)).collect(),
            shared: begins.map(|unit| self.shared[unit]).collect(),
            sums: ends.map(|unit| self.sums[unit]).collect(),
        }
    }

    /// Some units as a tree of their own.
    pub fn of(&self, units: &Range<usize>) -> Weight {
        let others = self.added(&(units.start + 1..units.end));
        self.alone[units.start].plus(others)
    }

    /// What some units add to the ones before.
    pub fn added(&self, units: &Range<usize>) -> Weight {
        self.sums[units.end].minus(self.sums[units.start])
    }

    /// Runs of units that share nothing with others: whole trees.
    pub fn trees(&self) -> Vec<Range<usize>> {
        let begins = self.shared.iter().enumerate();
        let begins = begins.filter(|(unit, shared)| *unit == 0 || shared.load.size == 0);
        self.spans(begins.map(|(unit, _)| unit))
    }

    /// The spans between these beginnings.
    fn spans(&self, begins: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
        let mut ends = begins.chain([self.alone.len()]);
        let mut begin = ends.next().unwrap_or(0);
        let span = |end| std::mem::replace(&mut begin, end)..end;
        ends.map(span).collect()
    }

    /// Cut whole trees into chunks that fit, or of single units, where that duplicates the fewest
    /// tokens in total.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn cut(
        &self,
        trees: &[Range<usize>],
        fits: impl Fn(&Range<usize>) -> bool,
        ticks: &mut Ticks,
    ) -> Result<Vec<Range<usize>>> {
        let mut chunks = Vec::with_capacity(trees.len());
        for tree in trees {
            ticks.done(1)?;
            if fits(tree) {
                chunks.push(tree.clone());
            } else {
                self.cut_tree(tree, &fits, &mut chunks, ticks)?;
            }
        }
        Ok(chunks)
    }

    /// Cut one tree that does not fit.
    ///
    /// The minimum of duplicates for the first n units is that for fewer units plus the cut before
    /// the last chunk. The possible beginnings of that chunk advance with its end, so their minimum
    /// is kept in a queue, and the time is linear. Ties go to the first cut: the last chunk is as
    /// long as possible.
    fn cut_tree(
        &self,
        tree: &Range<usize>,
        fits: impl Fn(&Range<usize>) -> bool,
        chunks: &mut Vec<Range<usize>>,
        ticks: &mut Ticks,
    ) -> Result<()> {
        let mut begins = Vec::with_capacity(tree.len());
        let mut queue = VecDeque::new();
        let (mut first, mut duplicates) = (tree.start, 0);
        for last in tree.clone() {
            ticks.done(1)?;
            let with_cut = duplicates + self.shared[last].load.size;
            while queue.pop_back_if(|(_, least)| *least > with_cut).is_some() {}
            queue.push_back((last, with_cut));
            while first < last && !fits(&(first..last + 1)) {
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
        let shared = |unit: usize| self.shared[unit].load.size;
        let inside = |chunk: &Range<usize>| chunk.start + 1..chunk.end;
        let mut cuts: Vec<_> = chunks.iter().flat_map(inside).collect();
        let missing = count.saturating_sub(chunks.len()).min(cuts.len());
        if missing == 0 {
            return Ok(chunks);
        }
        let mut costs: Vec<_> = cuts.iter().map(|&cut| shared(cut)).collect();
        let most = *costs.select_nth_unstable(missing - 1).1;
        let mut begins: Vec<_> = chunks.iter().map(|chunk| chunk.start).collect();
        let cheaper = cuts.iter().filter(|&&cut| shared(cut) < most);
        begins.extend(cheaper);
        begins.sort_unstable();
        cuts.retain(|&cut| shared(cut) == most);

        let missing = count - begins.len();
        let ends = begins[1..].iter().copied().chain([self.alone.len()]);
        let mut largest: BinaryHeap<_> =
            begins.iter().zip(ends).map(|(&begin, end)| self.by_size(begin..end)).collect();
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
        Ok(self.spans(begins.into_iter()))
    }

    /// The sort key of chunks: the largest is the greatest; of equal ones, the first.
    fn by_size(&self, rows: Range<usize>) -> (usize, Reverse<usize>, usize) {
        (self.of(&rows).load.size, Reverse(rows.start), rows.end)
    }

    /// The cut, among sorted cuts, that minimizes the larger part of a chunk; None if no cut
    /// is inside it.
    fn halving(&self, rows: Range<usize>, cuts: &[usize]) -> Option<usize> {
        let begin = cuts.partition_point(|&cut| cut <= rows.start);
        let end = cuts.partition_point(|&cut| cut < rows.end);
        let cuts = &cuts[begin..end];
        let sizes = |cut: usize| {
            let parts = [rows.start..cut, cut..rows.end];
            parts.map(|part| self.of(&part).load.size)
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
