//! Exchanges between ranks: runs of rows leave the slowest rank until it gets no faster.

use std::ops::Range;

use super::bins::Bins;
use crate::error::Result;
use crate::plan::pack::mixed;
use crate::plan::partition::sort_indices;
use crate::plan::share::Weight;
use crate::polling::Ticks;

/// Number of ranks, the slowest and the fastest ones, to which runs may move without others in
/// return.
const RANKS: usize = 8;

/// Number of pairs of runs that are compared for a swap between two ranks.
const PAIRS: usize = 1 << 14;

/// Number of random moves that are tried until one has room.
const TRIES: usize = 8;

/// Smallest gain, as a share of the slowest rank's.
const LEAST: f64 = 1e-9;

/// Runs of a bin that follow each other there.
#[derive(Debug, Clone)]
struct Part {
    bin: usize,
    /// Their places in the bin.
    places: Range<usize>,
    /// As a tree of their own.
    alone: Weight,
    /// What the bin loses without them.
    lost: Weight,
}

/// A part that goes to another bin, and one that comes back, if any.
#[derive(Debug, Clone)]
struct Exchange {
    /// By how much costs fall, high ones counting more.
    gain: f64,
    given: Part,
    to: usize,
    back: Option<Part>,
}

/// Pseudo-random numbers, the same ones each time.
#[derive(Default)]
pub struct Random(usize);

impl Random {
    /// A number below `count`, or 0.
    fn below(&mut self, count: usize) -> usize {
        self.0 += 1;
        usize::try_from(mixed(self.0) >> 32).unwrap_or(0) % count.max(1)
    }
}

/// The better of two exchanges, the first if they are equally good.
fn is_better(gain: f64, best: &Option<Exchange>) -> bool {
    gain > LEAST && best.as_ref().is_none_or(|best| gain > best.gain)
}

impl Bins<'_> {
    /// Exchange runs of the slowest rank until it is at most as slow as the goal, or no exchange
    /// makes it faster, or `looks` are spent.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn exchange(&mut self, goal: f64, looks: &mut usize, ticks: &mut Ticks) -> Result<()> {
        let mut order: Vec<_> = (0..self.ranks.len()).collect();
        while *looks > 0 {
            *looks = looks.saturating_sub(order.len() / 16);
            let ranks = &self.ranks;
            sort_indices(&mut order, &|a, b| ranks[a].total_cmp(&ranks[b]));
            let Some((&slowest, others)) = order.split_last() else {
                return Ok(());
            };
            if self.ranks[slowest] <= goal {
                return Ok(());
            }
            let given = self.parts_of(slowest);
            let mut best = None;
            for &other in [slowest].iter().chain(others).take(RANKS) {
                ticks.done(given.len())?;
                self.find_move(&given, slowest, other, &mut best, looks);
            }
            for &other in others {
                if best.is_some() || *looks == 0 {
                    break;
                }
                ticks.done(given.len())?;
                self.find_swap(&given, slowest, other, &mut best, looks);
            }
            match best {
                Some(Exchange { given, to, back, .. }) => self.apply(&given, to, back.as_ref()),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Move a random part of the slowest rank, or of a random one, to a random bin with room for it.
    pub fn perturb(&mut self, random: &mut Random) {
        let ranks = 0..self.ranks.len();
        let slowest = ranks.max_by(|&a, &b| self.ranks[a].total_cmp(&self.ranks[b]));
        let from = match random.below(2) {
            0 => slowest.unwrap_or(0),
            _ => random.below(self.ranks.len()),
        };
        let parts = self.parts_of(from);
        for _ in 0..TRIES {
            let Some(part) = parts.get(random.below(parts.len())) else {
                return;
            };
            let to = random.below(self.members.len());
            let is_all = part.places.len() == self.members[part.bin].len();
            if !is_all && to != part.bin && self.has_room(to, self.runs_of(part)) {
                return self.apply(part, to, None);
            }
        }
    }

    /// Move a part to another bin, and one of that bin back, if any.
    fn apply(&mut self, given: &Part, to: usize, back: Option<&Part>) {
        let out = self.runs_of(given).to_vec();
        let into = back.map_or(Vec::new(), |back| self.runs_of(back).to_vec());
        for (bin, old, new) in [(given.bin, &out, &into), (to, &into, &out)] {
            let kept = self.members[bin].iter().filter(|run| !old.contains(run));
            let runs = kept.chain(new).copied().collect();
            self.set(bin, runs);
        }
    }

    fn runs_of(&self, part: &Part) -> &[usize] {
        &self.members[part.bin][part.places.clone()]
    }

    /// The single runs of a rank, and those that share more with each other than with the runs
    /// around them.
    fn parts_of(&self, rank: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        for bin in self.of_rank(rank) {
            let members = &self.members[bin];
            let mut shared = vec![Weight::default()];
            shared.extend(members.windows(2).map(|pair| self.runs.shared(pair[0], pair[1])));
            let mut sums = vec![Weight::default()];
            for (place, &run) in members.iter().enumerate() {
                sums.push(sums[place].plus(self.runs.alone(run).minus(shared[place])));
            }
            let mut add = |places: Range<usize>| {
                let (first, last) = (members[places.start], members[places.end - 1]);
                let added = sums[places.end].minus(sums[places.start + 1]);
                let alone = self.runs.alone(first).plus(added);
                let before = places.start.checked_sub(1).map(|place| members[place]);
                let after = members.get(places.end).copied();
                parts.push(Part {
                    bin,
                    places,
                    alone,
                    lost: self.runs.joined(before, first, alone, last, after),
                });
            };
            // Places at which runs begin that share at least so many tokens.
            let mut open: Vec<(usize, usize)> = Vec::new();
            for end in 1..=members.len() {
                add(end - 1..end);
                let next = shared.get(end).map(|shared| shared.load.size);
                let mut begin = end - 1;
                while let Some((first, _)) = open.pop_if(|(_, size)| Some(*size) > next) {
                    add(first..end);
                    begin = first;
                }
                if let Some(next) = next
                    && open.last().is_none_or(|(_, size)| *size < next)
                {
                    open.push((begin, next));
                }
            }
        }
        parts
    }

    /// The gain if the slowest rank and another get these costs; 0 if the slower of them is not
    /// faster than before.
    fn gain(&self, ranks: [usize; 2], costs: [f64; 2]) -> f64 {
        let slowest = self.ranks[ranks[0]];
        let eighth = |cost: f64| (cost / slowest).powi(8);
        if costs[0].max(costs[1]) < slowest * (1.0 - LEAST) {
            1.0 - eighth(costs[0]) + eighth(self.ranks[ranks[1]]) - eighth(costs[1])
        } else {
            0.0
        }
    }

    /// Find the best move of a part of the slowest rank to another bin.
    fn find_move(
        &self,
        given: &[Part],
        slowest: usize,
        other: usize,
        best: &mut Option<Exchange>,
        looks: &mut usize,
    ) {
        for part in given {
            if part.places.len() == self.members[part.bin].len() {
                continue;
            }
            *looks = looks.saturating_sub(self.each);
            if *looks == 0 {
                return;
            }
            for to in self.of_rank(other).filter(|&to| to != part.bin) {
                let added = self.added(self.runs_of(part), part.alone, to).cost;
                let less = self.ranks[slowest] - part.lost.cost;
                let gain = match slowest == other {
                    // The other cost is of no rank.
                    true => self.gain([slowest; 2], [less + added, 0.0]) - 1.0,
                    false => self.gain([slowest, other], [less, self.ranks[other] + added]),
                };
                if is_better(gain, best) && self.has_room(to, self.runs_of(part)) {
                    *best = Some(Exchange { gain, given: part.clone(), to, back: None });
                }
            }
        }
    }

    /// Find the best swap of a part of the slowest rank for one of another rank.
    fn find_swap(
        &self,
        given: &[Part],
        slowest: usize,
        other: usize,
        best: &mut Option<Exchange>,
        looks: &mut usize,
    ) {
        let returned = self.parts_of(other);
        let pairs = given.len() * returned.len();
        *looks = looks.saturating_sub((given.len() + returned.len()) * self.each + pairs / 16);
        if pairs > PAIRS || *looks == 0 {
            return;
        }
        let [own, others] = [slowest, other].map(|rank| self.of_rank(rank));
        // What parts add to each bin of the other rank.
        let table = |parts: &[Part], bins: &Range<usize>| -> Vec<Weight> {
            let pairs = parts.iter().flat_map(|part| bins.clone().map(move |bin| (part, bin)));
            pairs.map(|(part, bin)| self.added(self.runs_of(part), part.alone, bin)).collect()
        };
        let (into, out) = (table(given, &others), table(&returned, &own));
        let capacity = self.spec.limit().size;
        let gain_of = |change: [f64; 2], weights: [Weight; 2]| {
            let costs = [self.ranks[slowest] - change[0], self.ranks[other] - change[1]];
            self.gain([slowest, other], [costs[0] + weights[0].cost, costs[1] + weights[1].cost])
        };
        for (part, into) in given.iter().zip(into.chunks(self.each)) {
            for (back, out) in returned.iter().zip(out.chunks(self.each)) {
                // A bin without the runs that leave gets no less by the others.
                let added = [out[part.bin - own.start], into[back.bin - others.start]];
                let gain = gain_of([part.lost.cost, back.lost.cost], added);
                let has_room = |part: &Part, added: Weight| {
                    let kept = self.weights[part.bin].minus(part.lost);
                    kept.load.size + added.load.size <= capacity
                };
                if !is_better(gain, best) || !has_room(part, added[0]) || !has_room(back, added[1])
                {
                    continue;
                }
                *looks = looks.saturating_sub(8);
                let swapped = [(part, back), (back, part)]
                    .map(|(old, new)| self.with(old.bin, old.places.clone(), self.runs_of(new)));
                let gain = gain_of(
                    [part, back].map(|part| self.weights[part.bin].cost),
                    swapped.map(|(weight, _)| weight),
                );
                let limit = self.spec.limit();
                if is_better(gain, best) && swapped.iter().all(|(_, load)| load.is_within(limit)) {
                    *best = Some(Exchange {
                        gain,
                        given: part.clone(),
                        to: back.bin,
                        back: Some(back.clone()),
                    });
                }
            }
        }
    }
}
