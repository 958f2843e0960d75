//! Partitioning: items are divided into parts of about the same weight.

mod by_weight;
mod karmarkar_karp;
mod lpt;
mod micro_batches;
mod swap;
mod weight;

pub(in crate::plan) use by_weight::largest_first;
pub use by_weight::{Algorithm, Weights};
pub use karmarkar_karp::{Differencing, karmarkar_karp};
pub use lpt::{First, Item, balance};
pub use micro_batches::{Capped, Counts, Order, micro_batches};
pub use swap::swap;
pub use weight::{Float, Short, Weight};

use std::cmp::Ordering;

use crate::error::Result;
use crate::polling::Ticks;

/// Number of values sorted between two polls.
const PIECE: usize = 1 << 16;

/// Indices of items by part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// Offsets of parts in the indices, one more than parts.
    pub offsets: Vec<usize>,
    /// The items of all parts.
    pub indices: Vec<usize>,
}

impl Parts {
    /// No parts, with reserved memory.
    fn with_capacity(parts: usize, items: usize) -> Self {
        let mut all = Self {
            offsets: Vec::with_capacity(parts.min(items) + 1),
            indices: Vec::with_capacity(items),
        };
        all.offsets.push(0);
        all
    }

    /// The given parts, in order.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn of(parts: Vec<Vec<usize>>, ticks: &mut Ticks) -> Result<Self> {
        let mut all = Self::with_capacity(0, 0);
        for part in parts {
            ticks.done(part.len())?;
            all.push(part);
        }
        Ok(all)
    }

    fn push(&mut self, part: impl IntoIterator<Item = usize>) {
        self.indices.extend(part);
        self.offsets.push(self.indices.len());
    }

    /// Sort the items of every part.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn sorted(mut self, ticks: &mut Ticks) -> Result<Self> {
        for ends in self.offsets.windows(2) {
            sort(&mut self.indices[ends[0]..ends[1]], ticks)?;
        }
        Ok(self)
    }

    /// A part.
    pub fn get(&self, part: usize) -> &[usize] {
        &self.indices[self.offsets[part]..self.offsets[part + 1]]
    }

    /// The parts, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[usize]> {
        (1..self.offsets.len()).map(|end| self.get(end - 1))
    }
}

/// Sort indices; equal ones stay in order. Compiled once, for sorts that take no time to speak of.
pub(in crate::plan) fn sort_indices(
    order: &mut [usize],
    compare: &dyn Fn(usize, usize) -> Ordering,
) {
    order.sort_by(|&a, &b| compare(a, b));
}

/// Sort distinct values.
///
/// Large slices are partitioned around a value from their middle, unless the two sides are too
/// uneven.
///
/// # Errors
/// Those of `ticks`. The values are then in unspecified order.
pub(in crate::plan) fn sort<T: Ord + Copy>(values: &mut [T], ticks: &mut Ticks) -> Result<()> {
    let len = values.len();
    if len <= PIECE {
        values.sort_unstable();
        return ticks.done(len);
    }
    let mut sample: Vec<_> = values.iter().step_by(len / 128).copied().collect();
    sample.sort_unstable();
    let middle = sample[sample.len() / 2];
    let mut end = 0;
    for index in 0..len {
        ticks.done(1)?;
        let is_less = values[index] < middle;
        values.swap(index, end);
        end += usize::from(is_less);
    }
    if end.min(len - end) < len / 64 {
        // The sample does not represent the values.
        values.sort_unstable();
        return ticks.done(len);
    }
    let (less, more) = values.split_at_mut(end);
    sort(less, ticks)?;
    sort(more, ticks)
}
