//! The emptiest bin: each item goes to the bin with the fewest tokens that has room for it.

use std::collections::BTreeSet;

use super::{Items, Load};

/// Bins by their tokens.
pub struct Emptiest {
    limit: Load,
    least: Load,
    loads: Vec<Load>,
    /// Of bins with room for any item: tokens, a rank among bins of as many, and the bin.
    open: BTreeSet<(usize, usize, usize)>,
}

impl Emptiest {
    pub fn new(items: Items, limit: Load) -> Self {
        Self {
            limit,
            least: items.least(),
            loads: Vec::new(),
            open: BTreeSet::new(),
        }
    }

    /// Place an item, and say in which bin. That bin gets a rank.
    pub fn place(&mut self, item: Load, rank: impl FnOnce(usize) -> usize) -> usize {
        let Self {
            limit, loads, open, ..
        } = self;
        let found = (open.iter().copied())
            .take_while(|&(size, ..)| size.saturating_add(item.size) <= limit.size)
            .find(|&(.., bin)| loads[bin].has_room_for(item, *limit));
        let bin = match found {
            Some(key) => {
                open.remove(&key);
                let bin = key.2;
                loads[bin] = loads[bin].plus(item);
                bin
            }
            None => {
                loads.push(item);
                loads.len() - 1
            }
        };
        if loads[bin].has_room_for(self.least, *limit) {
            open.insert((loads[bin].size, rank(bin), bin));
        }
        bin
    }

    /// What each bin holds.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }
}
