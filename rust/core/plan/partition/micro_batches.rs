//! Micro-batches: parts of about the same cost that none of them is too long.

use super::Parts;
use super::karmarkar_karp::Differencing;
use super::sorting::sort;
use super::weight::Weight;
use crate::error::Result;
use crate::ticks::Ticks;

/// What a stride may be at most, as a share of the number: less than one in a hundred.
const COARSE: usize = 128;

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

/// Which numbers of parts are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// The first one.
    pub first: usize,
    /// How far they are apart.
    pub step: usize,
    /// Whether none is left out before one will do.
    pub all: bool,
}

impl<W: Weight> Capped<'_, W> {
    /// Part the items in as few parts as were found to do, so that no part is too long, but in no
    /// more than there are items.
    ///
    /// From twice `COARSE` steps on, numbers are not tried one by one, unless all are: the stride
    /// doubles until one will do, and what lies between is bisected down to a stride of a
    /// `COARSE`th. So the number found exceeds the smallest by as much at most, if more parts
    /// than will do would always do. That is not certain, but nearly so.
    ///
    /// # Errors
    /// What `ticks` are stopped by.
    pub fn fitting(&self, counts: Counts, ticks: &mut Ticks) -> Result<Option<Parts>> {
        let Counts { first, step, all } = counts;
        let step = step.max(1);
        let Some(most) = self.lens.len().checked_sub(first) else {
            return Ok(None);
        };
        let differencing = Differencing::new(self.costs, ticks)?;
        let parts_of = |index: usize, ticks: &mut Ticks| {
            let parts = differencing.parts(first + index * step, false, ticks)?;
            self.is_short(&parts, ticks)
                .map(|is_short| is_short.then_some(parts))
        };
        let finest = |index: usize| {
            let ticks = (first / step).saturating_add(index);
            if all { 1 } else { (ticks / COARSE).max(1) }
        };

        let last = most / step;
        // As a rule, a few in a hundred more than `first` will do.
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
        // The number before did not do, this one does.
        while let Some(before) = tried.filter(|&before| index - before > finest(before)) {
            let middle = before.midpoint(index);
            match parts_of(middle, ticks)? {
                Some(parts) => (index, found) = (middle, parts),
                None => tried = Some(middle),
            }
        }
        found.sorted(ticks).map(Some)
    }

    /// Whether no part is too long.
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

/// Order parts by cost, and give every rank as many of them. The ranks' parts follow each other.
///
/// The costliest parts, one for each rank, are of the same place, then the next ones, so that ranks
/// wait little for each other. Among these, the rank with the least so far gets the costliest. Of
/// parts that cost the same, that with the higher first item counts as costlier, as in verl's
/// `rearrange_micro_batches`; of ranks, the first counts as having less.
///
/// # Errors
/// What `ticks` are stopped by.
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

    // Of the same type as parts, so that there is one sort.
    let mut loads: Vec<_> = (0..ranks)
        .map(|rank| (W::ZERO, None::<usize>, rank))
        .collect();
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
