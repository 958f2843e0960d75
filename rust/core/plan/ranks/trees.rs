//! Tree steps: cuts, bins and ranks are chosen together, by cost.

use std::ops::Range;

use super::bins::Bins;
use super::exchange::Random;
use super::rows::PackedRows;
use super::runs::Runs;
use super::{Deal, RankBins, deal_bins};
use crate::error::Result;
use crate::memory::check_room;
use crate::plan::pack::{Cost, Growth, PackSpec};
use crate::plan::partition::sort_indices;
use crate::plan::share::{Chunks, Tree, TreeRow, Units};
use crate::polling::Ticks;

/// The most that a run costs besides what it shares, as a share of a rank's cost.
const FINE: f64 = 1.0 / 48.0;

/// Share by which the slowest rank may exceed the bound before other plans are tried.
const UNEVEN: f64 = 0.005;

/// Share by which the slowest rank may exceed the bound before parts are moved at random.
const ROUGH: f64 = 0.02;

/// Largest limit of a rank's cost that is tried, as a multiple of the bound.
const LOOSEST: f64 = 1.6;

/// Number of limits tried.
const LIMITS: usize = 8;

/// Number of runs that are examined for exchanges, in all plans.
const LOOKS: usize = 1 << 16;

/// Number of turns that they are divided into.
const TURNS: usize = 16;

/// Number of runs that are examined for exchanges after random moves.
const RANDOM_LOOKS: usize = 1 << 16;

/// Number of random moves before exchanges.
const MOVES: usize = 2;

/// Number of bins that are examined to place runs, in one plan.
const PLACES: usize = 1 << 17;

/// The rows of a mini-batch, in bins of which shared tokens are written once.
pub struct PackedTrees<'a> {
    /// The rows, and the tokens that they share.
    pub tree: &'a Tree,
    /// The row that the first of the costs of rows belongs to.
    pub first_row: usize,
    /// The cost that limits bins, or selects the bin to split.
    pub cost: &'a Cost<'a>,
    /// The cost of a number of shared tokens, to balance ranks.
    pub cost_of_shared: &'a dyn Fn(usize) -> f64,
    /// The cost of a bin besides its rows, to balance ranks.
    pub cost_of_bin: f64,
}

impl Deal<'_> {
    /// Pack the rows of a mini-batch into bins that hold shared tokens once, and give each rank the
    /// same number: the number of bins that trees fill, rounded up to the multiple in `spec`.
    ///
    /// If balanced, trees are cut and given to ranks and bins by cost, and the slowest rank is not
    /// slower than with [`Deal::pack`]: if it was, the bins are those of that plan.
    ///
    /// # Errors
    /// As [`Tree::pack`].
    pub fn pack_trees(
        self,
        trees: &PackedTrees,
        spec: &PackSpec,
        ranks: usize,
        ticks: &mut Ticks,
    ) -> Result<RankBins<Tree>> {
        let freely = PackSpec {
            min_bins: 0,
            bins_multiple_of: 1,
            ..spec.clone()
        };
        let balanced = |row: &TreeRow| match self {
            Self::Balanced { costs, .. } => trees.costs_of(row, costs),
            _ => [0.0; 2],
        };
        let chunks = trees.tree.chunks(&freely, trees.cost, balanced, ticks)?;
        let rows = trees.tree.rows().len();
        let wanted = { chunks.bins.count().max(spec.min_bins) };
        let wanted = wanted.next_multiple_of(spec.bins_multiple_of);
        check_room(wanted)?;
        let grown = PackSpec {
            min_bins: wanted.min(rows),
            ..freely
        };
        let plans_ranks = matches!(self, Self::Balanced { .. }) && spec.growth == Growth::Move;
        let total = chunks.cost();
        let chunks = chunks.grown(&grown, ticks)?;
        let filled = chunks.bins.count();
        let bins = if plans_ranks && filled == wanted {
            let planner = Planner {
                trees,
                spec: &grown,
                ranks,
                each: wanted / ranks,
            };
            planner.bins(&chunks, total, ticks)?
        } else {
            let mut bins = trees.tree.bins_of(&chunks, ticks)?;
            bins.resize(wanted, Tree::default());
            let cost = |bin: &Tree, costs: &[f64]| trees.cost_of(bin, costs);
            let is_empty = |bin: &Tree| bin.rows().is_empty();
            self.deal(bins, is_empty, cost, ranks, ticks)?
        };
        let found = RankBins { bins, filled };
        match self {
            Self::Balanced { costs, synthetic } => {
                self.unless_packed(found, trees, costs, synthetic, spec, ranks, ticks)
            }
            _ => Ok(found),
        }
    }

    /// These bins, or those of rows that share nothing between bins, if their slowest rank is
    /// faster; costliest bin first.
    #[allow(clippy::too_many_arguments, reason = "those of the plan")]
    fn unless_packed(
        self,
        found: RankBins<Tree>,
        trees: &PackedTrees,
        costs: &[f64],
        synthetic: f64,
        spec: &PackSpec,
        ranks: usize,
        ticks: &mut Ticks,
    ) -> Result<RankBins<Tree>> {
        let weighed = |bins: Vec<Tree>| -> Vec<(f64, Tree)> {
            let cost = |bin: &Tree| match bin.rows().is_empty() {
                true => synthetic,
                false => trees.cost_of(bin, costs),
            };
            bins.into_iter().map(|bin| (cost(&bin), bin)).collect()
        };
        let slowest = |bins: &[(f64, Tree)]| {
            let each = bins.len() / ranks;
            let ranks =
                { bins.chunks(each.max(1)) }.map(|rank| rank.iter().map(|(cost, _)| cost).sum());
            ranks.fold(0.0, f64::max) + each as f64 * trees.cost_of_bin
        };
        let (mut filled, mut bins) = (found.filled, weighed(found.bins));
        let rows = trees.tree.rows();
        let tokens = rows.iter().map(|row| spec.round_up(row.len));
        let tokens = tokens.fold(0, usize::saturating_add);
        let each = tokens.div_ceil(spec.capacity).div_ceil(ranks);
        let mean = costs.iter().sum::<f64>() / ranks as f64;
        let least = costs.iter().copied().fold(mean, f64::max);
        if slowest(&bins) > least + each as f64 * trees.cost_of_bin && rows.len() == costs.len() {
            let mut lens = vec![0; rows.len()];
            for row in rows {
                lens[row.row - trees.first_row] = row.len;
            }
            let limited = spec.costs(&lens, trees.cost)?;
            let packed = PackedRows {
                lens: &lens,
                groups: None,
                limited: limited.as_deref(),
            };
            let packed = self.pack(packed, spec, ranks, ticks)?;
            let mut bin_of = vec![0; rows.len()];
            for (bin, rows) in packed.bins.iter().enumerate() {
                for &row in rows {
                    bin_of[row] = bin;
                }
            }
            let of_place = |place: usize| Some(bin_of[rows[place].row - trees.first_row]);
            let others = weighed(trees.tree.parted(of_place, packed.bins.len(), ticks)?);
            if slowest(&others) < slowest(&bins) {
                (filled, bins) = (packed.filled, others);
            }
        }
        let each = bins.len() / ranks;
        for rank in bins.chunks_mut(each.max(1)) {
            rank.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        }
        let bins = bins.into_iter().map(|(_, bin)| bin).collect();
        Ok(RankBins { bins, filled })
    }
}

impl PackedTrees<'_> {
    /// The costs of a row, and of the tokens that it shares with the one before it.
    fn costs_of(&self, row: &TreeRow, costs: &[f64]) -> [f64; 2] {
        let shared = match row.shared {
            0 => 0.0,
            shared => (self.cost_of_shared)(shared),
        };
        [costs[row.row - self.first_row], shared]
    }

    /// The cost of a bin with rows.
    fn cost_of(&self, bin: &Tree, costs: &[f64]) -> f64 {
        let added = |row: &TreeRow| {
            let [alone, shared] = self.costs_of(row, costs);
            (alone - shared).max(0.0)
        };
        let added: Vec<_> = bin.rows().iter().map(added).collect();
        added[0] + pairwise_sum(&added[1..])
    }
}

/// Plans of the bins of ranks.
struct Planner<'a> {
    trees: &'a PackedTrees<'a>,
    spec: &'a PackSpec,
    ranks: usize,
    /// Number of bins per rank.
    each: usize,
}

impl Planner<'_> {
    /// The bins of all ranks.
    ///
    /// Plans are made until the slowest rank is nearly as fast as the bound: bins of chunks, dealt
    /// out by cost; chunks to the ranks that they fill best, up to a limit; and to the cheapest
    /// ranks. If none is, ranks exchange runs of rows. The bound is the costliest row, or the
    /// mean of ranks if no more tokens are duplicated than capacity requires: their cost is
    /// `total`.
    fn bins(&self, chunks: &Chunks, total: f64, ticks: &mut Ticks) -> Result<Vec<Tree>> {
        let rows = &chunks.rows;
        let costs = rows.alone.iter().map(|row| row.cost);
        let bound = costs.fold(total / self.ranks as f64, f64::max);
        let is_fine = |run: &Range<usize>| rows.added(run).cost <= bound * FINE;
        let runs = rows.cut(&chunks.chunks, is_fine, ticks)?;
        let runs = Runs::new(rows, runs, ticks)?;
        let goal = bound * (1.0 + UNEVEN);
        let mut plans = vec![self.dealt(&runs, chunks, ticks)?];
        let are_few = runs.rows.len().saturating_mul(self.each) <= PLACES;
        for number in 0..3 {
            if !are_few || plans.iter().any(|plan| plan.slowest() <= goal) {
                break;
            }
            let planned = match number {
                0 => self.fitted(&runs, bound, ticks)?,
                _ => self.placed(&runs, bound / f64::from(number), f64::INFINITY, ticks)?,
            };
            if let Some(mut plan) = planned
                && plan.fill()
            {
                plans.push(plan);
            }
        }
        let best = exchanged(plans, bound, ticks)?;
        let mut bin_of = vec![0; rows.alone.len()];
        for (bin, members) in best.members.iter().enumerate() {
            for &run in members {
                bin_of[runs.rows[run].clone()].fill(bin);
            }
        }
        let bin_of = |row: usize| Some(bin_of[row]);
        self.trees.tree.parted(bin_of, best.members.len(), ticks)
    }

    /// The bins of chunks, dealt out by cost.
    fn dealt<'r>(&'r self, runs: &'r Runs, chunks: &Chunks, ticks: &mut Ticks) -> Result<Bins<'r>> {
        let mut bins = Bins::new(runs, self.spec, self.ranks, self.each);
        let of_chunks = runs.of_chunks(&chunks.chunks);
        let of_bin = |bin: usize| chunks.bins.items(bin).iter().map(|&item| &of_chunks[item]);
        let cost = |bin: usize| of_bin(bin).map(|chunk| runs.units.of(chunk).cost).sum();
        let costs: Vec<f64> = (0..chunks.bins.count()).map(cost).collect();
        let dealt = deal_bins(&costs, self.ranks, ticks)?;
        for (to, from) in dealt.into_iter().enumerate() {
            for run in of_bin(from).cloned().flatten() {
                bins.add(run, to);
            }
        }
        Ok(bins)
    }

    /// Chunks to the ranks that they fill best, up to the lowest limit that suffices.
    fn fitted<'r>(
        &'r self,
        runs: &'r Runs,
        bound: f64,
        ticks: &mut Ticks,
    ) -> Result<Option<Bins<'r>>> {
        let goal = bound * (1.0 + UNEVEN);
        let (mut low, mut high) = (goal, bound * LOOSEST);
        let mut best = self.placed(runs, low, low, ticks)?;
        if best.is_none() {
            best = self.placed(runs, high, high, ticks)?;
            for _ in 0..LIMITS {
                if best.is_none() {
                    break;
                }
                let middle = low.midpoint(high);
                match self.placed(runs, middle, middle, ticks)? {
                    None => low = middle,
                    found => (best, high) = (found, middle),
                }
            }
        }
        Ok(best)
    }

    /// Chunks of a limited cost to ranks of a limited cost; None if there is no room.
    fn placed<'r>(
        &'r self,
        runs: &'r Runs,
        most: f64,
        most_of_rank: f64,
        ticks: &mut Ticks,
    ) -> Result<Option<Bins<'r>>> {
        let units: &Units = &runs.units;
        let limit = self.spec.whole_limit();
        let fits = |run: &Range<usize>| {
            let weight = units.of(run);
            weight.load.is_within(limit) && weight.cost <= most
        };
        let groups = units.cut(&units.trees(), fits, ticks)?;
        let mut bins = Bins::new(runs, self.spec, self.ranks, self.each);
        Ok(bins.place(&groups, most_of_rank, ticks)?.then_some(bins))
    }
}

/// The best of several plans, in each of which ranks exchange runs in turn, until its slowest rank
/// is nearly as fast as the bound. While it is far from that, parts of the best plan are moved at
/// random, and ranks exchange again.
fn exchanged<'r>(mut plans: Vec<Bins<'r>>, bound: f64, ticks: &mut Ticks) -> Result<Bins<'r>> {
    let goal = bound * (1.0 + UNEVEN);
    let mut total = LOOKS;
    let mut done = Vec::new();
    while !plans.is_empty() {
        for mut plan in fastest_first(std::mem::take(&mut plans)) {
            let mut looks = (LOOKS / TURNS).min(total);
            total -= looks;
            plan.exchange(goal, &mut looks, ticks)?;
            total += looks;
            match looks == 0 && total > 0 {
                true => plans.push(plan),
                false if plan.slowest() <= goal => return Ok(plan),
                false => done.push(plan),
            }
        }
    }
    let mut best = fastest_first(done).swap_remove(0);
    let (mut looks, mut random) = (RANDOM_LOOKS, Random::default());
    while best.slowest() > bound * (1.0 + ROUGH) && looks > 0 {
        let mut other = best.clone();
        for _ in 0..MOVES {
            other.perturb(&mut random);
        }
        looks = looks.saturating_sub(other.members.len() + other.runs.rows.len() / 16);
        other.exchange(goal, &mut looks, ticks)?;
        if other.slowest() < best.slowest() {
            best = other;
        }
    }
    Ok(best)
}

/// Plans, in the order of their slowest ranks.
fn fastest_first(plans: Vec<Bins>) -> Vec<Bins> {
    let slowest: Vec<_> = plans.iter().map(Bins::slowest).collect();
    let mut order: Vec<_> = (0..plans.len()).collect();
    sort_indices(&mut order, &|a, b| slowest[a].total_cmp(&slowest[b]));
    let mut plans: Vec<_> = plans.into_iter().map(Some).collect();
    { order.into_iter() }
        .filter_map(|index| plans[index].take())
        .collect()
}

/// The sum in the order in which NumPy adds: the same to the last bit.
fn pairwise_sum(values: &[f64]) -> f64 {
    if values.len() > 128 {
        let half = values.len() / 2;
        let (left, right) = values.split_at(half - half % 8);
        return pairwise_sum(left) + pairwise_sum(right);
    }
    let (eights, rest) = values.as_chunks::<8>();
    let eights = match eights {
        [] => 0.0,
        [first, others @ ..] => {
            let mut sums = *first;
            for values in others {
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += value;
                }
            }
            let [a, b, c, d, e, f, g, h] = sums;
            ((a + b) + (c + d)) + ((e + f) + (g + h))
        }
    };
    rest.iter().fold(eights, |sum, value| sum + value)
}
