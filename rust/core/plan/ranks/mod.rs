//! Bins for ranks: the rows of a mini-batch are packed into the same number of bins per rank.

mod bins;
mod exchange;
mod rows;
mod runs;
mod trees;

pub use rows::PackedRows;
pub use trees::PackedTrees;

use std::cmp::Reverse;

use super::pack::PackSpec;
use super::partition::{Float, Parts, karmarkar_karp, largest_first, sort, swap};
use crate::error::Result;
use crate::memory::{check_room, with_room};
use crate::polling::Ticks;

/// Number of items examined for exchanges.
const LOOKS: usize = 1 << 20;

/// The assignment of a mini-batch's rows or bins to ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Deal<'a> {
    /// Consecutive ones, about the same number for each rank.
    Contiguous,
    /// To the ranks in turn.
    Strided,
    /// About the same cost for all ranks.
    Balanced {
        /// Costs of all rows: finite and not negative.
        costs: &'a [f64],
        /// Cost of a synthetic row.
        synthetic: f64,
    },
}

/// The bins of a mini-batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankBins<T = Vec<usize>> {
    /// The rows of each bin, rank by rank. An empty bin needs a synthetic row.
    pub bins: Vec<T>,
    /// Number of bins with rows.
    pub filled: usize,
}

impl PackSpec {
    /// The options of a mini-batch: those of each rank, with the same number of bins for all.
    #[must_use]
    pub fn for_ranks(&self, ranks: usize) -> Self {
        let multiple = self.bins_multiple_of;
        let (mut divisor, mut rest) = (ranks, multiple);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Self {
            num_bins: self.num_bins.map(|bins| bins.saturating_mul(ranks)),
            bins_multiple_of: (ranks / divisor).saturating_mul(multiple),
            ..self.clone()
        }
    }
}

impl Deal<'_> {
    /// Give each rank the same number of bins; `cost` is that of a bin, None for one without rows.
    fn deal<T: Default>(
        self,
        mut bins: Vec<T>,
        cost: impl Fn(&T, &[f64]) -> Option<f64>,
        ranks: usize,
        ticks: &mut Ticks,
    ) -> Result<Vec<T>> {
        let count = bins.len();
        let order: Vec<_> = match self {
            Self::Contiguous => return Ok(bins),
            Self::Strided => (0..ranks).flat_map(|rank| (rank..count).step_by(ranks)).collect(),
            Self::Balanced { costs, synthetic } => {
                let cost = |bin: &T| cost(bin, costs).unwrap_or(synthetic);
                let costs: Vec<_> = bins.iter().map(cost).collect();
                deal_bins(&costs, ranks, ticks)?
            }
        };
        ticks.gathered(order.into_iter().map(|bin| std::mem::take(&mut bins[bin])))
    }
}

/// Give each rank the same number of bins, of about the same cost. Returns the bins rank by rank,
/// costliest first; ties in order.
///
/// # Errors
/// Those of `ticks`.
pub fn deal_bins(costs: &[f64], ranks: usize, ticks: &mut Ticks) -> Result<Vec<usize>> {
    check_room(costs.len())?;
    let parts = balanced(costs, ranks, ticks)?;
    let mut in_order = with_room(costs.len())?;
    for part in parts.iter() {
        in_order.extend(costly_first(part, costs, ticks)?);
    }
    Ok(in_order)
}

/// Partition bins, with the same number for every rank: by largest differencing, or largest first
/// with exchanges; the latter unless its slowest rank is slower.
fn balanced(costs: &[f64], ranks: usize, ticks: &mut Ticks) -> Result<Parts> {
    let each = costs.len() / ranks;
    let largest_first = largest_first(costs, ranks, each, ticks)?;
    let exchanged = swap(costs, &largest_first, true, rounds(ranks, costs.len()), ticks)?;
    let differenced = karmarkar_karp(costs, ranks, true, ticks)?;
    let slowest = |parts: &Parts| parts.iter().map(|part| sum(part, costs)).fold(0.0, f64::max);
    Ok(match slowest(&differenced) < slowest(&exchanged) {
        true => differenced.sorted(ticks)?,
        false => exchanged,
    })
}

/// Maximum number of exchanges: each one examines all items of two ranks.
fn rounds(ranks: usize, items: usize) -> usize {
    (64 * ranks + 256).min(LOOKS * ranks / items.max(1) + 16)
}

fn sum(items: &[usize], costs: &[f64]) -> f64 {
    items.iter().map(|&item| costs[item]).sum()
}

/// Items by cost, costliest first; ties in order.
///
/// # Errors
/// Those of `ticks`.
fn costly_first(items: &[usize], costs: &[f64], ticks: &mut Ticks) -> Result<Vec<usize>> {
    let keys = items.iter().enumerate();
    let mut order = ticks.gathered(keys.map(|(at, &item)| (Reverse(Float(costs[item])), at)))?;
    sort(&mut order, ticks)?;
    ticks.gathered(order.into_iter().map(|(_, at)| items[at]))
}
