//! Open bins, in an order that changes while they fill up.

use std::collections::BTreeMap;

use super::treap::Treap;
use super::{Items, Load};

/// The sort key of bins, with a tie-breaker. Keys are unique.
pub type Key = (usize, usize);

/// Bins; those that are not full have a key.
pub struct OpenBins {
    limit: Load,
    /// A bin without capacity for this load is full.
    least: Load,
    loads: Vec<Load>,
    order: Order,
}

enum Order {
    /// If the first bin by key fits, or none does.
    Plain(BTreeMap<Key, usize>),
    /// If a bin that fits has to be searched.
    Searched(Treap),
}

impl OpenBins {
    /// Without bins, for these items.
    pub fn new(items: Items, limit: Load) -> Self {
        Self {
            limit,
            least: items.least(),
            loads: Vec::new(),
            order: if items.are_plain() {
                Order::Plain(BTreeMap::new())
            } else {
                Order::Searched(Treap::default())
            },
        }
    }

    /// Add an item to the first bin from a key on that it fits, or to a new one.
    ///
    /// That bin is left without a key.
    pub fn add(&mut self, item: Load, from: Key) -> usize {
        let Self { limit, loads, .. } = self;
        let found = match &mut self.order {
            Order::Plain(bins) => {
                let first = bins.range(from..).next();
                let first = first.filter(|&(_, &bin)| loads[bin].has_room_for(item, *limit));
                let first = first.map(|(&key, &bin)| (key, bin));
                first.map(|(key, bin)| {
                    bins.remove(&key);
                    bin
                })
            }
            Order::Searched(bins) => {
                let found = bins.first(from, |load| load.has_room_for(item, *limit));
                found.inspect(|&bin| bins.remove(bin))
            }
        };
        let Some(bin) = found else {
            loads.push(item);
            return loads.len() - 1;
        };
        loads[bin] = loads[bin].plus(item);
        bin
    }

    /// Set the key of a bin without one, unless the bin is full.
    pub fn set_key(&mut self, bin: usize, key: Key) {
        let load = self.loads[bin];
        if load.has_room_for(self.least, self.limit) {
            match &mut self.order {
                Order::Plain(bins) => {
                    bins.insert(key, bin);
                }
                Order::Searched(bins) => bins.insert(bin, key, load),
            }
        }
    }

    /// The load of each bin.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }
}
