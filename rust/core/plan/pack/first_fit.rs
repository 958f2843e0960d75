//! First fit: each item goes to the first bin that has room for it.

use super::tree::{Least, Tree};
use super::{Items, Load, Packed};

/// Pack items in this order.
pub fn pack(items: Items, limit: Load, order: impl ExactSizeIterator<Item = usize>) -> Packed {
    if items.are_plain() {
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
    let mut loads = Tree::new(&[]);
    let mut counts: Vec<usize> = Vec::new();
    let mut placed = Vec::with_capacity(order.len());
    // The last item's size, its bin, and what that holds: the tree learns it when another bin is
    // looked for, since it takes a logarithmic number of steps.
    let (mut size, mut bin, mut load) = (0, 0, usize::CLOSED);
    for item in order {
        let is_equal = sizes[item] == size;
        size = sizes[item];
        let fits = |load: usize| load.saturating_add(size) <= limit.size;
        if !(is_equal && fits(load)) {
            if bin < loads.len() {
                loads.set(bin, load);
            }
            // Bins only fill up: what had no room for the last item has none for an equal one.
            let found = loads.first(if is_equal { bin } else { 0 }, fits);
            bin = found.unwrap_or(loads.len());
            load = found.map_or(0, |bin| loads.get(bin));
            if found.is_none() {
                loads.push(usize::CLOSED);
                counts.push(0);
            }
        }
        counts[bin] += 1;
        let is_full = counts[bin] >= limit.count;
        load = if is_full {
            usize::CLOSED
        } else {
            load.saturating_add(size)
        };
        placed.push((item, bin));
    }
    Packed::new(&placed, loads.len())
}
