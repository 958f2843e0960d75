//! First fit: each item goes to the first bin that has room for it.

use super::tree::{Least, Tree};
use super::{Items, Load, Packed};

/// Pack items in this order.
pub fn pack(items: Items, limit: Load, order: impl IntoIterator<Item = usize>) -> Packed {
    let mut placed = Vec::with_capacity(items.len());
    if items.counts.is_some() || items.costs.is_some() {
        let mut tree = Tree::<Load>::new();
        for item in order {
            let load = items.get(item);
            let bin = tree.first(|bin| bin.plus(load).is_within(limit));
            match bin {
                Some(bin) => tree.set(bin, tree.get(bin).plus(load)),
                None => tree.push(load),
            }
            placed.push((bin.unwrap_or(tree.len() - 1), item));
        }
        return Packed::of_placed(&placed, tree.len());
    }
    let mut tree = Tree::<usize>::new();
    let mut counts = Vec::new();
    for item in order {
        let size = items.sizes[item];
        let found = tree.first(|bin| bin.saturating_add(size) <= limit.size);
        let bin = found.unwrap_or_else(|| {
            tree.push(0);
            counts.push(0);
            counts.len() - 1
        });
        counts[bin] += 1;
        let is_full = counts[bin] >= limit.count;
        tree.set(
            bin,
            if is_full {
                usize::CLOSED
            } else {
                tree.get(bin).saturating_add(size)
            },
        );
        placed.push((bin, item));
    }
    Packed::of_placed(&placed, tree.len())
}
