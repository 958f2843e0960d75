//! Micro-batches: parts of about the same cost that none of them is too long.

use std::cmp::Reverse;

use super::Parts;
use super::karmarkar_karp::karmarkar_karp;
use super::weight::Weight;

/// In which order a rank gets its micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Those that cost most first.
    Descending,
    /// Those that cost least first.
    Ascending,
    /// Those that cost least at both ends.
    SmallEnds,
}

/// Items with lengths, of which one part can hold so much.
#[derive(Debug, Clone, Copy)]
pub struct Capped<'a, W> {
    /// What items cost. Parts are balanced by it.
    pub costs: &'a [W],
    /// How long items are.
    pub lens: &'a [usize],
    /// How long a part may be.
    pub capacity: usize,
}

impl<W: Weight> Capped<'_, W> {
    /// Part the items in the first number of parts from `first` on, in steps of `step`, with which
    /// no part is too long, but in no more than there are items.
    ///
    /// # Errors
    /// What `poll` returns, which is called between two numbers.
    pub fn fitting<E>(
        &self,
        first: usize,
        step: usize,
        mut poll: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<Parts>, E> {
        for count in (first..=self.lens.len()).step_by(step.max(1)) {
            let parts = karmarkar_karp(self.costs, count, false).sorted();
            let is_short = |part: &[usize]| {
                let len: usize = part.iter().map(|&item| self.lens[item]).sum();
                len <= self.capacity
            };
            if parts.iter().all(is_short) {
                return Ok(Some(parts));
            }
            poll()?;
        }
        Ok(None)
    }
}

/// Order parts by cost, and give every rank as many of them. The ranks' parts follow each other.
///
/// The costliest parts, one for each rank, are of the same place, then the next ones, so that ranks
/// wait little for each other. Among these, the rank with the least so far gets the costliest. Of
/// parts that cost the same, that with the higher first item counts as costlier, as in verl's
/// `rearrange_micro_batches`; of ranks, the first counts as having less.
pub fn micro_batches<W: Weight>(costs: &[W], parts: &Parts, ranks: usize, order: Order) -> Parts {
    let cost = |part: &[usize]| {
        let costs = part.iter().map(|&item| costs[item]);
        costs.fold(W::ZERO, |sum, cost| cost.added_to(sum))
    };
    let mut parts: Vec<_> = parts.iter().map(|part| (cost(part), part)).collect();
    parts.sort_unstable_by_key(|&(cost, part)| Reverse((cost, part.first().copied())));

    let mut loads: Vec<_> = (0..ranks).map(|rank| (W::ZERO, rank)).collect();
    let mut of_ranks = vec![Vec::new(); ranks];
    for wave in parts.chunks(ranks.max(1)) {
        loads.sort_unstable();
        for (load, &(_, part)) in loads.iter_mut().zip(wave) {
            of_ranks[load.1].push(part);
            let costs_of_part = part.iter().map(|&item| costs[item]);
            load.0 = costs_of_part.fold(load.0, |sum, cost| cost.added_to(sum));
        }
    }
    let ordered = of_ranks.into_iter().flat_map(|parts| order.of(parts));
    Parts::of(ordered.map(|part| part.iter().copied()))
}

impl Order {
    /// Bring what costs most first into this order.
    fn of<T: Copy>(self, mut sorted: Vec<T>) -> Vec<T> {
        match self {
            Order::Descending => {}
            Order::Ascending => sorted.reverse(),
            Order::SmallEnds => {
                let even = sorted.iter().step_by(2).rev();
                let odd = sorted.iter().skip(1).step_by(2);
                sorted = even.chain(odd).copied().collect();
            }
        }
        sorted
    }
}
