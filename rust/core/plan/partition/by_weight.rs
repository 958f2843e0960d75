//! Partitions of items whose weights come in one of several types.

use super::Parts;
use super::karmarkar_karp::karmarkar_karp;
use super::lpt::{First, Item, balance};
use super::micro_batches::{Capped, Counts, Order, micro_batches};
use super::swap::swap;
use super::weight::Short;
use crate::error::Result;
use crate::ticks::Ticks;

/// What items weigh: numbers that are neither negative nor infinite.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the types say what they are")]
pub enum Weights {
    Integers(Vec<i64>),
    Singles(Vec<f32>),
    Doubles(Vec<f64>),
}

/// How items are parted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// That of Karmarkar and Karp.
    KarmarkarKarp,
    /// The same, with the items of a part in the order in which it grew.
    Grown,
    /// Largest first.
    LargestFirst,
    /// Largest first, and swaps then.
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

    /// Part items so that all parts weigh about the same; there are as many items as parts, at least.
    /// Parts of equal size need a number of items that is a multiple of theirs.
    ///
    /// # Errors
    /// What `ticks` are stopped by.
    pub fn partition(
        &self,
        parts: usize,
        algorithm: Algorithm,
        equal_size: bool,
        ticks: &mut Ticks,
    ) -> Result<Parts> {
        let found = match algorithm {
            Algorithm::LargestFirst | Algorithm::Swapped => {
                let costs = self.doubles();
                let found = largest_first(&costs, parts, equal_size, ticks)?;
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

    /// Part items of these lengths in as few parts as were found to keep each within the capacity; none
    /// if there are fewer items. With an order, they are assigned to ranks in it.
    ///
    /// # Errors
    /// What `ticks` are stopped by.
    pub fn micro_batches(
        &self,
        lens: &[usize],
        capacity: usize,
        counts: Counts,
        ranks: Option<(usize, Order)>,
        ticks: &mut Ticks,
    ) -> Result<Option<Parts>> {
        with_weights!(self, costs => {
            let items = Capped { costs, lens, capacity };
            let parts = items.fitting(counts, ticks)?;
            let Some((parts, (ranks, order))) = parts.as_ref().zip(ranks) else {
                return Ok(parts);
            };
            micro_batches(costs, parts, ranks, order, ticks).map(Some)
        })
    }

    fn doubles(&self) -> Vec<f64> {
        match self {
            Self::Integers(weights) => weights.iter().map(|&weight| weight as f64).collect(),
            Self::Singles(weights) => weights.iter().map(|&weight| weight.into()).collect(),
            Self::Doubles(weights) => weights.clone(),
        }
    }
}

/// Give every item, the largest first, to the part that weighs least.
fn largest_first(
    costs: &[f64],
    parts: usize,
    equal_size: bool,
    ticks: &mut Ticks,
) -> Result<Parts> {
    let items: Vec<_> = costs.iter().map(|&cost| Item { rows: 1, cost }).collect();
    let capacity = if equal_size {
        costs.len().div_ceil(parts.max(1))
    } else {
        usize::MAX
    };
    // Without any part, there is no room.
    let taken = vec![Item::NOTHING; parts];
    let part_of = balance(&items, &taken, capacity, First::Costly, ticks)?.unwrap_or_default();
    let mut members = vec![Vec::new(); parts];
    for (item, part) in part_of.into_iter().enumerate() {
        members[part].push(item);
    }
    Ok(Parts::of(members))
}
