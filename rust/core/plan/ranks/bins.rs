//! The bins of ranks while a tree step is planned.

use std::collections::BTreeSet;
use std::ops::Range;

use super::costly_first;
use super::runs::Runs;
use crate::error::Result;
use crate::plan::pack::{Load, PackSpec};
use crate::plan::share::Weight;
use crate::polling::Ticks;

/// Number of ranks in which a bin with room is sought.
const TRIES: usize = 8;

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

    /// What a run adds to a bin.
    fn added(&self, run: usize, bin: usize) -> Weight {
        let members = &self.members[bin];
        let place = members.partition_point(|&other| other < run);
        let before = place.checked_sub(1).map(|place| members[place]);
        self.runs.between(before, run, members.get(place).copied())
    }

    /// The weight of a bin with other runs, in place of those at some places.
    pub fn with(&self, bin: usize, without: Range<usize>, runs: &[usize]) -> Weight {
        let mut sum = Weight::default();
        self.walk(bin, without, runs, |added, _| sum = sum.plus(added));
        sum
    }

    /// True if a bin is within the limits with other runs, in place of those at some places.
    pub fn fits(&self, bin: usize, without: Range<usize>, runs: &[usize]) -> bool {
        let limit = self.spec.limit();
        // Sums of whole numbers need no second addition.
        if let &[run] = runs
            && without.is_empty()
            && self.spec.multiple_of == 1
            && limit.cost == f64::INFINITY
        {
            let load = self.weights[bin].plus(self.added(run, bin)).load;
            return load.is_within(limit);
        }
        let (mut sum, mut tree) = (Weight::default(), 0);
        let mut size = 0_usize;
        self.walk(bin, without, runs, |added, is_whole| {
            if is_whole {
                size = size.saturating_add(self.spec.round_up(tree));
                tree = 0;
            }
            tree += added.load.size;
            sum = sum.plus(added);
        });
        size = size.saturating_add(self.spec.round_up(tree));
        let load = Load { size, ..sum.load };
        load.is_within(limit)
    }

    /// Visit what each of a bin's runs adds to those before it, with true if it shares nothing.
    fn walk(
        &self,
        bin: usize,
        without: Range<usize>,
        runs: &[usize],
        mut visit: impl FnMut(Weight, bool),
    ) {
        let members = &self.members[bin];
        let mut kept = [&members[..without.start], &members[without.end..]].concat();
        kept.extend(runs);
        kept.sort_unstable();
        let mut before = None;
        for run in kept {
            let alone = self.runs.alone(run);
            let shared = before.map_or(Weight::default(), |before| self.runs.shared(before, run));
            visit(alone.minus(shared), shared.load.size == 0);
            before = Some(run);
        }
    }

    /// Add a run to a bin.
    pub fn add(&mut self, run: usize, bin: usize) {
        let added = self.added(run, bin);
        let place = self.members[bin].partition_point(|&other| other < run);
        self.members[bin].insert(place, run);
        self.weights[bin] = self.weights[bin].plus(added);
        self.ranks[bin / self.each] += added.cost;
    }

    /// Set the runs of a bin.
    pub fn set(&mut self, bin: usize, members: Vec<usize>) {
        let rank = bin / self.each;
        self.members[bin] = members;
        self.weights[bin] = self.with(bin, 0..0, &[]);
        let costs = self.of_rank(rank).map(|bin| self.weights[bin].cost);
        self.ranks[rank] = costs.sum();
    }

    /// Put groups of runs into bins, the costliest first: each to the cheapest rank or, if costs of
    /// ranks are limited, to the costliest that stays below. Groups that fit nowhere are put in
    /// parts to the cheapest ranks. False if there is no room.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn place(&mut self, groups: &[Range<usize>], most: f64, ticks: &mut Ticks) -> Result<bool> {
        let limit = self.spec.limit();
        let weights: Vec<_> = groups
            .iter()
            .map(|group| self.runs.units.of(group))
            .collect();
        let costs: Vec<_> = weights.iter().map(|weight| weight.cost).collect();
        // Costs are not negative, so their bits are ordered like them.
        let mut ranks: BTreeSet<_> = self
            .ranks
            .iter()
            .enumerate()
            .map(|(rank, cost)| (cost.to_bits(), rank))
            .collect();
        let all: Vec<_> = (0..groups.len()).collect();
        let mut left = Vec::new();
        for group in costly_first(&all, &costs, ticks)? {
            ticks.done(self.each)?;
            let load = Load {
                size: self.spec.round_up(weights[group].load.size),
                ..weights[group].load
            };
            let emptiest = |&(_, rank): &(u64, usize)| {
                let bins = self.of_rank(rank);
                let bins = bins.filter(|&bin| self.weights[bin].load.has_room_for(load, limit));
                let bins = bins.filter(|&bin| {
                    self.spec.multiple_of == 1
                        || self.fits(bin, 0..0, &groups[group].clone().collect::<Vec<_>>())
                });
                bins.min_by_key(|&bin| self.weights[bin].load.size)
            };
            let found = if most < f64::INFINITY {
                let room = (most - costs[group]).max(0.0).to_bits();
                let fullest = ranks.range(..=(room, usize::MAX)).rev();
                fullest.take(TRIES).find_map(emptiest)
            } else {
                ranks.iter().take(TRIES).find_map(emptiest)
            };
            match found {
                Some(bin) => self.add_to(&mut ranks, groups[group].clone(), bin),
                None => left.push(group),
            }
        }
        for group in left {
            let mut rest = groups[group].clone();
            while let Some(run) = rest.next() {
                ticks.done(self.each)?;
                let has_room = |&bin: &usize| {
                    let cost = self.ranks[bin / self.each] + self.added(run, bin).cost;
                    cost <= most && self.fits(bin, 0..0, &[run])
                };
                let emptiest = |&(_, rank): &(u64, usize)| {
                    let bins = self.of_rank(rank).filter(has_room);
                    bins.min_by_key(|&bin| self.weights[bin].load.size)
                };
                let Some(bin) = ranks.iter().find_map(emptiest) else {
                    return Ok(false);
                };
                self.add_to(&mut ranks, run..run + 1, bin);
                while rest.start < rest.end {
                    let next = rest.start;
                    let cost = self.ranks[bin / self.each] + self.added(next, bin).cost;
                    if cost > most || !self.fits(bin, 0..0, &[next]) {
                        break;
                    }
                    self.add_to(&mut ranks, next..next + 1, bin);
                    rest.start += 1;
                }
            }
        }
        Ok(true)
    }

    /// Add runs to a bin of one of the ranks, which are sorted by their costs.
    fn add_to(&mut self, ranks: &mut BTreeSet<(u64, usize)>, runs: Range<usize>, bin: usize) {
        let rank = bin / self.each;
        ranks.remove(&(self.ranks[rank].to_bits(), rank));
        for run in runs {
            self.add(run, bin);
        }
        ranks.insert((self.ranks[rank].to_bits(), rank));
    }

    /// Give each empty bin the cheapest run of a bin with others, of the same rank if it has one.
    /// False if there are too few runs.
    pub fn fill(&mut self) -> bool {
        let empty = (0..self.members.len()).filter(|&bin| self.members[bin].is_empty());
        for bin in empty.collect::<Vec<_>>() {
            let cost = |&(_, place, donor): &(usize, usize, usize)| {
                self.runs.alone(self.members[donor][place]).cost
            };
            let cheapest = |bins: Range<usize>| {
                let donors = bins.filter(|&donor| self.members[donor].len() > 1);
                let runs = donors.flat_map(|donor| {
                    let members = self.members[donor].iter().enumerate();
                    members.map(move |(place, &run)| (run, place, donor))
                });
                runs.min_by(|a, b| cost(a).total_cmp(&cost(b)))
            };
            let own = self.of_rank(bin / self.each);
            let Some((run, place, donor)) =
                cheapest(own).or_else(|| cheapest(0..self.members.len()))
            else {
                return false;
            };
            let mut kept = self.members[donor].clone();
            kept.remove(place);
            self.set(donor, kept);
            self.set(bin, vec![run]);
        }
        true
    }
}
