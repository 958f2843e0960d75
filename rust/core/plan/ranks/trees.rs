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
use crate::plan::share::{Chunks, Tree, TreeRow};
use crate::polling::Ticks;

/// The most that a run costs besides what it shares, as a share of a rank's cost.
const FINE: f64 = 1.0 / 48.0;

/// Share by which the slowest rank may exceed the bound before ranks exchange runs.
const UNEVEN: f64 = 0.005;

/// Share by which the slowest rank may exceed the bound before parts are moved at random.
const ROUGH: f64 = 0.02;

/// Largest limit of a rank's cost that is tried, as a multiple of the goal.
const LOOSEST: f64 = 1.6;

/// Number of limits tried.
const LIMITS: usize = 7;

/// Number of bins that are examined to place runs, in one plan.
const PLACES: usize = 1 << 20;

/// Number of runs that are examined for exchanges.
const LOOKS: usize = 1 << 16;

/// Number of runs that are examined for exchanges after random moves.
const RANDOM_LOOKS: usize = 1 << 16;

/// Number of random moves before exchanges.
const MOVES: usize = 2;

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
        let freely = PackSpec { min_bins: 0, bins_multiple_of: 1, ..spec.clone() };
        let balanced = |row: &TreeRow| match self {
            Self::Balanced { costs, .. } => trees.costs_of(row, costs),
            _ => [0.0; 2],
        };
        let chunks = trees.tree.chunks(&freely, trees.cost, balanced, ticks)?;
        let rows = trees.tree.rows().len();
        let wanted = chunks.bins.count().max(spec.min_bins).next_multiple_of(spec.bins_multiple_of);
        check_room(wanted)?;
        let grown = PackSpec { min_bins: wanted.min(rows), ..freely };
        let plans_ranks = matches!(self, Self::Balanced { .. }) && spec.growth == Growth::Move;
        let total = chunks.cost();
        let chunks = chunks.grown(&grown, ticks)?;
        let filled = chunks.bins.count();
        let bins = if plans_ranks && filled == wanted {
            trees.planned(&chunks, total, &grown, ranks, ticks)?
        } else {
            let mut bins = trees.tree.bins_of(&chunks, ticks)?;
            bins.resize(wanted, Tree::default());
            self.deal(bins, |bin, costs| trees.cost_of(bin, costs), ranks, ticks)?
        };
        self.unless_packed(RankBins { bins, filled }, trees, spec, ranks, ticks)
    }

    /// These bins or, of balanced ranks, those of rows that share nothing between bins, if their
    /// slowest rank is faster; costliest bin first.
    fn unless_packed(
        self,
        found: RankBins<Tree>,
        trees: &PackedTrees,
        spec: &PackSpec,
        ranks: usize,
        ticks: &mut Ticks,
    ) -> Result<RankBins<Tree>> {
        let Self::Balanced { costs, synthetic } = self else { return Ok(found) };
        let weighed = |bins: Vec<Tree>| -> Vec<(f64, Tree)> {
            let cost = |bin: &Tree| trees.cost_of(bin, costs).unwrap_or(synthetic);
            bins.into_iter().map(|bin| (cost(&bin), bin)).collect()
        };
        let slowest = |bins: &[(f64, Tree)]| {
            let each = bins.len() / ranks;
            let ranks =
                bins.chunks(each.max(1)).map(|rank| rank.iter().map(|(cost, _)| cost).sum());
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
            let limited = limited.as_deref();
            let packed =
                PackedRows { lens: &lens, groups: None, limited, first_row: trees.first_row };
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

    /// The cost of a bin; None for one without rows.
    fn cost_of(&self, bin: &Tree, costs: &[f64]) -> Option<f64> {
        let added = |row: &TreeRow| {
            let [alone, shared] = self.costs_of(row, costs);
            (alone - shared).max(0.0)
        };
        (!bin.rows().is_empty()).then(|| bin.rows().iter().map(added).sum())
    }

    /// The bins of all ranks. The bound is the costliest row, or the mean of ranks if no more tokens
    /// are duplicated than capacity requires: their cost is `total`.
    ///
    /// Bins of chunks are dealt out by cost, or chunks go to the ranks that they fill best. Then
    /// ranks exchange runs of rows until the slowest one is nearly as fast as the bound. While the
    /// better plan is far from that, parts are moved at random, and ranks exchange again.
    fn planned(
        &self,
        chunks: &Chunks,
        total: f64,
        spec: &PackSpec,
        ranks: usize,
        ticks: &mut Ticks,
    ) -> Result<Vec<Tree>> {
        let rows = &chunks.rows;
        let costs = rows.alone.iter().map(|row| row.cost);
        let bound = costs.fold(total / ranks as f64, f64::max);
        let is_fine = |run: &Range<usize>| rows.added(run).cost <= bound * FINE;
        let runs = Runs::new(rows, rows.cut(&chunks.chunks, is_fine, ticks)?, ticks)?;
        let goal = bound * (1.0 + UNEVEN);
        let empty = Bins::new(&runs, spec, ranks, chunks.bins.count() / ranks);
        let mut best = dealt(empty.clone(), chunks, ticks)?;
        best.exchange(goal, &mut { LOOKS }, ticks)?;
        let are_few = runs.rows.len().saturating_mul(best.members.len()) <= PLACES;
        if are_few
            && best.slowest() > goal
            && let Some(mut plan) = fitted(&empty, goal, ticks)?
        {
            plan.exchange(goal, &mut { LOOKS }, ticks)?;
            if plan.slowest() < best.slowest() {
                best = plan;
            }
        }
        let (mut looks, mut random) = (RANDOM_LOOKS, Random::default());
        while best.slowest() > bound * (1.0 + ROUGH) && looks > 0 {
            let mut other = best.clone();
            for _ in 0..MOVES {
                other.perturb(&mut random);
            }
            looks = looks.saturating_sub(other.members.len() + runs.rows.len() / 16);
            other.exchange(goal, &mut looks, ticks)?;
            if other.slowest() < best.slowest() {
                best = other;
            }
        }
        let mut bin_of = vec![0; rows.alone.len()];
        for (bin, members) in best.members.iter().enumerate() {
            for &run in members {
                bin_of[runs.rows[run].clone()].fill(bin);
            }
        }
        self.tree.parted(|row| Some(bin_of[row]), best.members.len(), ticks)
    }
}

/// The bins of chunks, dealt out by cost.
fn dealt<'a>(mut bins: Bins<'a>, chunks: &Chunks, ticks: &mut Ticks) -> Result<Bins<'a>> {
    let of_chunks = bins.runs.of_chunks(&chunks.chunks);
    let of_bin = |bin: usize| chunks.bins.items(bin).iter().map(|&item| &of_chunks[item]);
    let cost = |bin: usize| of_bin(bin).map(|runs| bins.runs.units.of(runs).cost).sum();
    let costs: Vec<f64> = (0..chunks.bins.count()).map(cost).collect();
    let order = deal_bins(&costs, bins.ranks.len(), ticks)?;
    for (to, from) in order.into_iter().enumerate() {
        bins.set(to, of_bin(from).cloned().flatten().collect());
    }
    Ok(bins)
}

/// Chunks of a limited cost, on ranks up to the same limit, which is the goal or the lowest that
/// suffices; None if there is no room.
fn fitted<'a>(empty: &Bins<'a>, goal: f64, ticks: &mut Ticks) -> Result<Option<Bins<'a>>> {
    let (units, whole) = (&empty.runs.units, empty.spec.whole_limit());
    let (mut low, mut high, mut most, mut best) = (goal, goal * LOOSEST, goal, None);
    for _ in 0..LIMITS {
        let fits = |run: &Range<usize>| {
            let weight = units.of(run);
            weight.load.is_within(whole) && weight.cost <= most
        };
        let mut groups = units.cut(&units.trees(), fits, ticks)?;
        groups.sort_by(|a, b| units.of(b).cost.total_cmp(&units.of(a).cost));
        let mut bins = empty.clone();
        match bins.place(&groups, most, ticks)? {
            true if most <= goal => return Ok(Some(bins)),
            true => (best, high) = (Some(bins), most),
            false => low = most,
        }
        most = low.midpoint(high);
    }
    Ok(best)
}
