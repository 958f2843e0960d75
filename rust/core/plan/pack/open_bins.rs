//! Bins in an order that changes while they fill up.

use std::collections::BTreeMap;

use super::treap::Treap;
use super::{Items, Load};

/// What bins are ordered by, and of equal ones by what. No two bins have the same.
pub type Key = (usize, usize);

/// Bins, those of which that are not full have a key.
pub struct OpenBins {
    limit: Load,
    /// What a bin needs room for not to be full.
    least: Load,
    loads: Vec<Load>,
    order: Order,
}

enum Order {
    /// Where what comes first by key fits, or nothing does.
    Plain(BTreeMap<Key, usize>),
    /// Where what fits has to be looked for.
    Searched(Treap),
}

impl OpenBins {
    /// No bins for these items yet.
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

    /// Add an item to the first bin from a key on that has room for it, or to a new one.
    ///
    /// That bin has no key then.
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

    /// Give a bin without a key one, unless it is full.
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

    /// What each bin holds.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }
}
