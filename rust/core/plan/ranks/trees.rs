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

/// Number of runs that are examined for exchanges.
const LOOKS: usize = 1 << 16;

/// Number of runs that are examined for exchanges after random moves.
const RANDOM_LOOKS: usize = 1 << 17;

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
            plan_bins(trees.tree, &chunks, total, &grown, ranks, ticks)?
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

/// The bins of all ranks: those of chunks, dealt out by cost, between which ranks exchange runs of
/// rows until the slowest one is nearly as fast as the bound. While it is far from that, parts are
/// moved at random, and ranks exchange again.
///
/// The bound is the costliest row, or the mean of ranks if no more tokens are duplicated than
/// capacity requires: their cost is `total`.
fn plan_bins(
    tree: &Tree,
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
    let runs = rows.cut(&chunks.chunks, is_fine, ticks)?;
    let runs = Runs::new(rows, runs, ticks)?;

    let of_bin = |bin: usize| { chunks.bins.items(bin).iter() }.map(|&item| &chunks.chunks[item]);
    let count = chunks.bins.count();
    let cost = |bin: usize| -> f64 { of_bin(bin).map(|chunk| rows.of(chunk).cost).sum() };
    let costs: Vec<_> = (0..count).map(cost).collect();
    let dealt = deal_bins(&costs, ranks, ticks)?.into_iter();
    let members = dealt.map(|bin| of_bin(bin).flat_map(|chunk| runs.of_rows(chunk)).collect());
    let mut best = Bins::new(&runs, spec, ranks, members.collect());

    let goal = bound * (1.0 + UNEVEN);
    best.exchange(goal, &mut { LOOKS }, ticks)?;
    let (mut looks, mut random) = (RANDOM_LOOKS, Random::default());
    while best.slowest() > bound * (1.0 + ROUGH) && looks > 0 {
        let mut other = best.clone();
        for _ in 0..MOVES {
            other.perturb(&mut random);
        }
        looks = looks.saturating_sub(count + runs.rows.len() / 16);
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
    tree.parted(|row| Some(bin_of[row]), count, ticks)
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
