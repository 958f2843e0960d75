//! Micro-batches: parts of about the same cost, none of which is too long.

use super::Parts;
use super::karmarkar_karp::Differencing;
use super::sort;
use super::weight::Weight;
use crate::error::Result;
use crate::polling::Ticks;

/// Maximum stride, as a share of the number: less than one in a hundred.
const COARSE: usize = 128;

/// The order of a rank's micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The costliest first.
    Descending,
    /// The cheapest first.
    Ascending,
    /// The cheapest at both ends.
    SmallEnds,
}

/// Items with lengths, and the capacity of a part.
#[derive(Debug, Clone, Copy)]
pub struct Capped<'a, W> {
    /// Costs of items, by which parts are balanced.
    pub costs: &'a [W],
    /// Lengths of items.
    pub lens: &'a [usize],
    /// Maximum length of a part.
    pub capacity: usize,
}

/// The numbers of parts to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// The first number.
    pub first: usize,
    /// The step between numbers.
    pub step: usize,
    /// True if every number is tried until one suffices.
    pub all: bool,
}

impl<W: Weight> Capped<'_, W> {
    /// Partition the items into the fewest parts found such that none is too long; None if that
    /// takes more parts than items.
    ///
    /// From twice `COARSE` steps on, unless all numbers are tried, the stride doubles until a
    /// number suffices, and the interval is bisected down to a stride of one `COARSE`th. The number
    /// found exceeds the smallest by at most that share, if every larger number suffices as well,
    /// which is nearly certain.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn fitting(&self, counts: Counts, ticks: &mut Ticks) -> Result<Option<Parts>> {
        let Counts { first, step, all } = counts;
        let step = step.max(1);
        let Some(most) = self.lens.len().checked_sub(first) else {
            return Ok(None);
        };
        let differencing = Differencing::new(self.costs, ticks)?;
        let parts_of = |index: usize, ticks: &mut Ticks| {
            let parts = differencing.parts(first + index * step, false, ticks)?;
            self.is_short(&parts, ticks).map(|is_short| is_short.then_some(parts))
        };
        let finest = |index: usize| {
            let ticks = (first / step).saturating_add(index);
            if all { 1 } else { (ticks / COARSE).max(1) }
        };

        let last = most / step;
        // Usually, a few percent more than `first` suffice.
        let (mut index, mut stride) = (0, 4 * finest(0));
        let mut tried = None;
        let mut found = loop {
            if let Some(parts) = parts_of(index, ticks)? {
                break parts;
            }
            if index == last {
                return Ok(None);
            }
            tried = Some(index);
            if finest(index) == 1 {
                stride = 1;
            }
            index = index.saturating_add(stride).min(last);
            stride = stride.saturating_mul(2);
        };
        // The number before did not suffice, this one does.
        while let Some(before) = tried.filter(|&before| index - before > finest(before)) {
            let middle = before.midpoint(index);
            match parts_of(middle, ticks)? {
                Some(parts) => (index, found) = (middle, parts),
                None => tried = Some(middle),
            }
        }
        found.sorted(ticks).map(Some)
    }

    /// True if no part is too long.
    fn is_short(&self, parts: &Parts, ticks: &mut Ticks) -> Result<bool> {
        for part in parts.iter() {
            ticks.done(part.len())?;
            let lens = part.iter().map(|&item| self.lens[item]);
            if lens.sum::<usize>() > self.capacity {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Order parts by cost, and give every rank the same number. Returns the parts rank by rank.
///
/// The costliest parts, one for each rank, run at the same time, then the next ones, so that ranks
/// wait little for each other. Of these, the rank with the lowest cost so far gets the costliest.
/// Of parts of equal cost, the one with the higher first item counts as costlier, as in verl's
/// `rearrange_micro_batches`; of equal ranks, the first counts as the one of lower cost.
///
/// # Errors
/// Those of `ticks`.
pub fn micro_batches<W: Weight>(
    costs: &[W],
    parts: &Parts,
    ranks: usize,
    order: Order,
    ticks: &mut Ticks,
) -> Result<Parts> {
    let mut sorted = Vec::with_capacity(parts.iter().len());
    for (index, part) in parts.iter().enumerate() {
        ticks.done(part.len())?;
        let costs = part.iter().map(|&item| costs[item]);
        let cost = costs.fold(W::ZERO, |sum, cost| cost.added_to(sum));
        sorted.push((cost, part.first().copied(), index));
    }
    sort(&mut sorted, ticks)?;

    // Of the same type as parts, so that one sort is compiled.
    let mut loads: Vec<_> = (0..ranks).map(|rank| (W::ZERO, None::<usize>, rank)).collect();
    let mut of_ranks = vec![Vec::new(); ranks];
    for wave in sorted.rchunks(ranks.max(1)) {
        loads.sort_unstable();
        for (load, &(.., index)) in loads.iter_mut().zip(wave.iter().rev()) {
            let part = parts.get(index);
            ticks.done(part.len())?;
            of_ranks[load.2].push(part);
            let costs_of_part = part.iter().map(|&item| costs[item]);
            load.0 = costs_of_part.fold(load.0, |sum, cost| cost.added_to(sum));
        }
    }
    let mut out = Parts::with_capacity(parts.iter().len(), parts.indices.len());
    for part in of_ranks.into_iter().flat_map(|parts| order.of(parts)) {
        ticks.done(part.len())?;
        out.push(part.iter().copied());
    }
    Ok(out)
}

impl Order {
    /// Rearrange items sorted costliest first into this order.
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
