//! Partitioning: numbers are parted so that all parts weigh about the same.

mod karmarkar_karp;
mod lpt;
mod micro_batches;
mod swap;
mod weight;

pub use karmarkar_karp::karmarkar_karp;
pub use lpt::{First, Item, balance};
pub use micro_batches::{Capped, Order, micro_batches};
pub use swap::swap;
pub use weight::{Float, Weight};

/// Indices of items by part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// Where parts begin among the indices, and where the last ends.
    pub offsets: Vec<usize>,
    /// The items of all parts.
    pub indices: Vec<usize>,
}

impl Parts {
    /// Lay parts out one behind the other.
    pub fn of(parts: impl IntoIterator<Item = impl IntoIterator<Item = usize>>) -> Self {
        let mut all = Self {
            offsets: vec![0],
            indices: Vec::new(),
        };
        for part in parts {
            all.indices.extend(part);
            all.offsets.push(all.indices.len());
        }
        all
    }

    /// Sort the items of every part.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        for ends in self.offsets.windows(2) {
            self.indices[ends[0]..ends[1]].sort_unstable();
        }
        self
    }

    /// The parts, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[usize]> {
        self.offsets
            .windows(2)
            .map(|ends| &self.indices[ends[0]..ends[1]])
    }
}
