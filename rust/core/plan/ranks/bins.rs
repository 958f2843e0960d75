//! The bins of ranks while a tree step is planned.

use std::ops::Range;

use super::runs::Runs;
use crate::plan::pack::{Load, PackSpec};
use crate::plan::share::Weight;

/// The bins of all ranks.
#[derive(Clone)]
pub struct Bins<'a> {
    pub runs: &'a Runs,
    pub spec: &'a PackSpec,
    /// Number of bins per rank.
    pub each: usize,
    /// The runs of each bin, in order.
    pub members: Vec<Vec<usize>>,
    /// Weights of bins, without rounding.
    pub weights: Vec<Weight>,
    /// Costs of ranks.
    pub ranks: Vec<f64>,
}

impl<'a> Bins<'a> {
    /// Bins of these runs.
    pub fn new(runs: &'a Runs, spec: &'a PackSpec, ranks: usize, members: Vec<Vec<usize>>) -> Self {
        let mut bins = Self {
            runs,
            spec,
            each: members.len() / ranks,
            weights: vec![Weight::default(); members.len()],
            ranks: vec![0.0; ranks],
            members: vec![Vec::new(); members.len()],
        };
        for (bin, runs) in members.into_iter().enumerate() {
            bins.set(bin, runs);
        }
        (0..ranks).for_each(|rank| bins.sum(rank));
        bins
    }

    /// The bins of a rank.
    pub fn of_rank(&self, rank: usize) -> Range<usize> {
        rank * self.each..(rank + 1) * self.each
    }

    /// The cost of the slowest rank.
    pub fn slowest(&self) -> f64 {
        self.ranks.iter().copied().fold(0.0, f64::max)
    }

    /// The weight of a bin with other runs, in place of those at some places; and the same with
    /// the tokens of each tree rounded up.
    pub fn with(&self, bin: usize, without: Range<usize>, runs: &[usize]) -> (Weight, Load) {
        let members = &self.members[bin];
        let mut kept = [&members[..without.start], runs, &members[without.end..]].concat();
        kept.sort_unstable();
        let (mut sum, mut size, mut tree) = (Weight::default(), 0_usize, 0);
        let mut before = None;
        for run in kept {
            let shared = before.map_or(Weight::default(), |before| self.runs.shared(before, run));
            if shared.load.size == 0 {
                size = size.saturating_add(self.spec.round_up(tree));
                tree = 0;
            }
            let added = self.runs.alone(run).minus(shared);
            tree += added.load.size;
            sum = sum.plus(added);
            before = Some(run);
        }
        size = size.saturating_add(self.spec.round_up(tree));
        (sum, Load { size, ..sum.load })
    }

    /// True if a bin has room for more runs.
    pub fn has_room(&self, bin: usize, runs: &[usize]) -> bool {
        self.with(bin, 0..0, runs).1.is_within(self.spec.limit())
    }

    /// Set the runs of a bin, not the cost of its rank.
    pub fn set(&mut self, bin: usize, mut members: Vec<usize>) {
        members.sort_unstable();
        self.members[bin] = members;
        self.weights[bin] = self.with(bin, 0..0, &[]).0;
    }

    /// Sum the costs of a rank's bins.
    pub fn sum(&mut self, rank: usize) {
        let costs = self.of_rank(rank).map(|bin| self.weights[bin].cost);
        self.ranks[rank] = costs.sum();
    }
}
