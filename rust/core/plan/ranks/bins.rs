//! The bins of ranks while a tree step is planned.

use std::ops::Range;

use super::runs::Runs;
use crate::error::Result;
use crate::plan::pack::{Load, PackSpec};
use crate::plan::partition::Float;
use crate::plan::share::Weight;
use crate::polling::Ticks;

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
    /// Empty bins.
    pub fn new(runs: &'a Runs, spec: &'a PackSpec, ranks: usize, each: usize) -> Self {
        Self {
            runs,
            spec,
            each,
            members: vec![Vec::new(); ranks * each],
            weights: vec![Weight::default(); ranks * each],
            ranks: vec![0.0; ranks],
        }
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

    /// What runs that follow each other, and weigh `alone` as a tree of their own, add to a bin.
    pub fn added(&self, runs: &[usize], alone: Weight, bin: usize) -> Weight {
        let (first, last, members) = (runs[0], runs[runs.len() - 1], &self.members[bin]);
        let place = members.partition_point(|&other| other < first);
        let before = place.checked_sub(1).map(|place| members[place]);
        let after = members.get(place).copied();
        match after.is_some_and(|after| after < last) {
            true => self.with(bin, 0..0, runs).0.minus(self.weights[bin]),
            false => self.runs.joined(before, first, alone, last, after),
        }
    }

    /// Put groups of runs on ranks that cost at most `most`: each, in order, on the costliest rank
    /// with room, in the bin with the fewest tokens. The runs of a group without room are groups of
    /// their own. False if there are too few runs, or one has no room.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn place(&mut self, groups: &[Range<usize>], most: f64, ticks: &mut Ticks) -> Result<bool> {
        let mut left: Vec<_> = groups.iter().rev().cloned().collect();
        while let Some(group) = left.pop() {
            ticks.done(self.members.len())?;
            let runs: Vec<_> = group.clone().collect();
            let alone = self.runs.units.of(&group);
            let has_room = |bin: &usize| {
                let added = self.added(&runs, alone, *bin);
                self.ranks[bin / self.each] + added.cost <= most
                    && self.weights[*bin].plus(added).load.is_within(self.spec.limit())
                    && (self.spec.multiple_of == 1 || self.has_room(*bin, &runs))
            };
            // No bin shares more of the runs than the runs before and after them.
            let after = Some(group.end).filter(|&run| run < self.runs.rows.len());
            let (before, last) = (group.start.checked_sub(1), group.end - 1);
            let least = self.runs.joined(before, group.start, alone, last, after).cost;
            let ranks = 0..self.ranks.len();
            let mut ranks: Vec<_> =
                ranks.filter(|&rank| self.ranks[rank] + least <= most).collect();
            ranks.sort_by(|&a, &b| self.ranks[b].total_cmp(&self.ranks[a]));
            let emptiest = |rank| {
                let bins = self.of_rank(rank).filter(has_room);
                bins.min_by_key(|&bin| self.weights[bin].load.size)
            };
            match ranks.into_iter().find_map(emptiest) {
                Some(bin) => self.extend(bin, &runs, alone),
                None if runs.len() > 1 => left.extend(group.rev().map(|run| run..run + 1)),
                None => return Ok(false),
            }
        }
        Ok(self.fill())
    }

    /// Add runs to a bin, as `added`.
    fn extend(&mut self, bin: usize, runs: &[usize], alone: Weight) {
        let added = self.added(runs, alone, bin);
        self.members[bin].extend(runs);
        self.members[bin].sort_unstable();
        self.weights[bin] = self.weights[bin].plus(added);
        self.ranks[bin / self.each] += added.cost;
    }

    /// Set the runs of a bin.
    pub fn set(&mut self, bin: usize, mut runs: Vec<usize>) {
        runs.sort_unstable();
        self.members[bin] = runs;
        let weight = self.with(bin, 0..0, &[]).0;
        let before = std::mem::replace(&mut self.weights[bin], weight);
        self.ranks[bin / self.each] += weight.cost - before.cost;
    }

    /// Give each empty bin the cheapest run of a bin with others, of the same rank if it has one.
    /// False if there are too few runs.
    fn fill(&mut self) -> bool {
        let bins = 0..self.members.len();
        for bin in bins.clone() {
            if !self.members[bin].is_empty() {
                continue;
            }
            let donors = bins.clone().filter(|&donor| self.members[donor].len() > 1);
            let runs =
                donors.flat_map(|donor| self.members[donor].iter().map(move |&run| (donor, run)));
            let key = |&(donor, run): &(usize, usize)| {
                let is_of_other = donor / self.each != bin / self.each;
                (is_of_other, Float(self.runs.alone(run).cost))
            };
            let Some((donor, run)) = runs.min_by_key(key) else {
                return false;
            };
            let kept = self.members[donor].iter().copied();
            self.set(donor, kept.filter(|&other| other != run).collect());
            self.set(bin, vec![run]);
        }
        true
    }
}
