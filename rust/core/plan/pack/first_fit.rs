//! First fit: each item goes to the first bin that has room for it.

use super::tree::{Least, Tree};
use super::{Items, Load, Packed};

/// Pack items in this order.
pub fn pack(items: Items, limit: Load, order: impl ExactSizeIterator<Item = usize>) -> Packed {
    if items.counts.is_none() && items.costs.is_none() {
        return pack_sizes(items.sizes, limit, order);
    }
    let least = items.least();
    let mut loads = Tree::new(&[]);
    let mut placed = Vec::with_capacity(order.len());
    for item in order {
        let load = items.get(item);
        let found = loads.first(0, |bin: Load| bin.has_room_for(load, limit));
        let bin = found.unwrap_or(loads.len());
        let load = found.map_or(load, |bin| loads.get(bin).plus(load));
        if found.is_none() {
            loads.push(load);
        }
        let is_open = load.has_room_for(least, limit);
        loads.set(bin, if is_open { load } else { Load::CLOSED });
        placed.push((item, bin));
    }
    Packed::new(&placed, loads.len())
}

/// The same where each item counts once and costs nothing: a tree of one number per bin.
fn pack_sizes(sizes: &[usize], limit: Load, order: impl ExactSizeIterator<Item = usize>) -> Packed {
    let mut loads: Tree<usize> = Tree::new(&[]);
    let mut counts: Vec<usize> = Vec::new();
    let mut placed = Vec::with_capacity(order.len());
    let mut last = (0, 0);
    for item in order {
        let size = sizes[item];
        // Bins only fill up: what had no room for the last item has none for one of that size.
        let from = if last.0 == size { last.1 } else { 0 };
        let found = loads.first(from, |load| load.saturating_add(size) <= limit.size);
        let bin = found.unwrap_or(loads.len());
        if found.is_none() {
            loads.push(0);
            counts.push(0);
        }
        counts[bin] += 1;
        let load = loads.get(bin).saturating_add(size);
        let is_open = counts[bin] < limit.count;
        loads.set(bin, if is_open { load } else { usize::CLOSED });
        placed.push((item, bin));
        last = (size, bin);
    }
    Packed::new(&placed, loads.len())
}
