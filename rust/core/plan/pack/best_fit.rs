//! Best fit: each item goes to the bin that it leaves the least room in.

use std::collections::BTreeMap;

use super::{Items, Load, Packed};

/// Pack items in this order.
pub fn pack(items: Items, limit: Load, order: impl ExactSizeIterator<Item = usize>) -> Packed {
    let least = items.least();
    let mut loads: Vec<Load> = Vec::new();
    // Bins with room for any item: by that room, of equal ones the first to have had as much.
    let mut open = BTreeMap::new();
    let mut placed = Vec::with_capacity(order.len());
    for (time, item) in order.enumerate() {
        let load = items.get(item);
        let found = open
            .range((load.size, 0)..)
            .find(|&(_, &bin): &(_, &usize)| loads[bin].has_room_for(load, limit))
            .map(|(&key, &bin)| (key, bin));
        let bin = match found {
            Some((key, bin)) => {
                open.remove(&key);
                loads[bin] = loads[bin].plus(load);
                bin
            }
            None => {
                loads.push(load);
                loads.len() - 1
            }
        };
        if loads[bin].has_room_for(least, limit) {
            open.insert((limit.size - loads[bin].size, time), bin);
        }
        placed.push((item, bin));
    }
    Packed::new(&placed, loads.len())
}
