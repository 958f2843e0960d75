//! Partitioning: items are divided into parts of about the same weight.

mod by_weight;
mod karmarkar_karp;
mod lpt;
mod micro_batches;
mod sorting;
mod state;
mod swap;
mod weight;

pub use by_weight::{Algorithm, Weights};
pub use karmarkar_karp::{Differencing, karmarkar_karp};
pub use lpt::{First, Item, balance};
pub use micro_batches::{Capped, Counts, Order, micro_batches};
pub use swap::swap;
pub use weight::{Float, Short, Weight};

use crate::error::Result;
use crate::ticks::Ticks;
use sorting::sort;

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
    pub fn of(parts: impl IntoIterator<Item = impl IntoIterator<Item = usize>>) -> Self {
        let mut all = Self::with_capacity(0, 0);
        for part in parts {
            all.push(part);
        }
        all
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
