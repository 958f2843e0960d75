//! Partitions of items whose weights have one of several types.

use super::Parts;
use super::karmarkar_karp::karmarkar_karp;
use super::lpt::{First, Item, balance};
use super::micro_batches::{Capped, Counts, Order, micro_batches};
use super::swap::swap;
use super::weight::Short;
use crate::error::Result;
use crate::memory::check_room;
use crate::polling::Ticks;

/// Weights of items: finite numbers that are not negative.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the types say what they are")]
pub enum Weights {
    Integers(Vec<i64>),
    Singles(Vec<f32>),
    Doubles(Vec<f64>),
}

/// The partition algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// The method of Karmarkar and Karp.
    KarmarkarKarp,
    /// The same, with the items of a part in the order of joining.
    Grown,
    /// Largest first.
    LargestFirst,
    /// Largest first, then swaps.
    Swapped,
}

/// Evaluate `$body` with the weights as a slice of their type.
macro_rules! with_weights {
    ($weights:expr, $values:ident => $body:expr) => {
        match $weights {
            Weights::Integers($values) => match Short::all($values) {
                Some($values) => {
                    let $values = &$values;
                    $body
                }
                None => $body,
            },
            Weights::Singles($values) => $body,
            Weights::Doubles($values) => $body,
        }
    };
}

impl Weights {
    /// Number of items.
    pub fn count(&self) -> usize {
        match self {
            Self::Integers(weights) => weights.len(),
            Self::Singles(weights) => weights.len(),
            Self::Doubles(weights) => weights.len(),
        }
    }

    /// Partition items into parts of about the same weight; there are at least as many items as
    /// parts. For parts of equal size, the number of items is a multiple of the number of parts.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn partition(
        &self,
        parts: usize,
        algorithm: Algorithm,
        equal_size: bool,
        ticks: &mut Ticks,
    ) -> Result<Parts> {
        check_room(self.count())?;
        let found = match algorithm {
            Algorithm::LargestFirst | Algorithm::Swapped => {
                let costs = self.doubles(ticks)?;
                let most = match equal_size {
                    true => costs.len().div_ceil(parts.max(1)),
                    false => usize::MAX,
                };
                let found = largest_first(&costs, parts, most, ticks)?;
                if algorithm == Algorithm::Swapped {
                    return swap(&costs, &found, equal_size, 64 * parts + 256, ticks);
                }
                return Ok(found);
            }
            Algorithm::KarmarkarKarp | Algorithm::Grown => {
                with_weights!(self, weights => karmarkar_karp(weights, parts, equal_size, ticks))?
            }
        };
        if algorithm == Algorithm::Grown {
            return Ok(found);
        }
        found.sorted(ticks)
    }

    /// Partition items of these lengths into the fewest parts found to be within the capacity; None
    /// if that takes more parts than items. With an order, parts are assigned to ranks in it.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn micro_batches(
        &self,
        lens: &[usize],
        capacity: usize,
        counts: Counts,
        ranks: Option<(usize, Order)>,
        ticks: &mut Ticks,
    ) -> Result<Option<Parts>> {
        check_room(lens.len())?;
        with_weights!(self, costs => {
            let items = Capped { costs, lens, capacity };
            let parts = items.fitting(counts, ticks)?;
            let Some((parts, (ranks, order))) = parts.as_ref().zip(ranks) else {
                return Ok(parts);
            };
            micro_batches(costs, parts, ranks, order, ticks).map(Some)
        })
    }

    fn doubles(&self, ticks: &mut Ticks) -> Result<Vec<f64>> {
        match self {
            Self::Integers(weights) => ticks.gathered(weights.iter().map(|&weight| weight as f64)),
            Self::Singles(weights) => ticks.gathered(weights.iter().map(|&weight| weight.into())),
            Self::Doubles(weights) => ticks.gathered(weights.iter().copied()),
        }
    }
}

/// Give every item, the largest first, to the lightest part with fewer than `most` items.
pub(in crate::plan) fn largest_first(
    costs: &[f64],
    parts: usize,
    most: usize,
    ticks: &mut Ticks,
) -> Result<Parts> {
    let items = ticks.gathered(costs.iter().map(|&cost| Item { rows: 1, cost }))?;
    // Without parts, no item has a place.
    let taken = vec![Item::NOTHING; parts];
    let part_of = balance(&items, &taken, most, First::Costly, ticks)?.unwrap_or_default();
    let mut members = vec![Vec::new(); parts];
    for (item, part) in part_of.into_iter().enumerate() {
        ticks.done(1)?;
        members[part].push(item);
    }
    Parts::of(members, ticks)
}
