//! First fit: each item goes to the first bin that it fits. The caller chooses the order of items
//! (`Packer::pack`).

use super::load_tree::{Least, Tree};
use super::{ItemBins, Items, Load};
use crate::error::Result;
use crate::ticks::Ticks;

/// Pack items in the given order.
///
/// # Errors
/// Those of `ticks`.
pub fn pack(
    items: Items,
    limit: Load,
    order: impl ExactSizeIterator<Item = usize>,
    ticks: &mut Ticks,
) -> Result<ItemBins> {
    if items.are_plain() {
        return pack_sizes(items.sizes, limit, order, ticks);
    }
    let least = items.least();
    let mut loads = Tree::new(&[]);
    let mut placed = Vec::with_capacity(order.len());
    for item in order {
        ticks.done(1)?;
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
    ItemBins::new(&placed, loads.len(), ticks)
}

/// The same for items that count once and cost nothing: a tree of one number per bin.
fn pack_sizes(
    sizes: &[usize],
    limit: Load,
    order: impl ExactSizeIterator<Item = usize>,
    ticks: &mut Ticks,
) -> Result<ItemBins> {
    // The last bin is not in the tree: most items go there, and each would update the tree up to
    // the root.
    let mut loads = Tree::new(&[]);
    let mut last = usize::CLOSED;
    let mut counts = vec![0_usize];
    let mut placed = Vec::with_capacity(order.len());
    let (mut size, mut bin) = (0, 0);
    for item in order {
        ticks.done(1)?;
        // Bins only fill up: a bin too full for the previous item is too full for an equal one.
        let from = if sizes[item] == size { bin } else { 0 };
        size = sizes[item];
        let fits = |load: usize| load.saturating_add(size) <= limit.size;
        let found = if from < loads.len() {
            loads.first(from, fits)
        } else {
            None
        };
        bin = found.unwrap_or(loads.len());
        if found.is_none() && !fits(last) {
            if !placed.is_empty() {
                loads.push(last);
                counts.push(0);
                bin += 1;
            }
            last = 0;
        }
        counts[bin] += 1;
        let load = found
            .map_or(last, |bin| loads.get(bin))
            .saturating_add(size);
        let is_full = counts[bin] >= limit.count;
        let load = if is_full { usize::CLOSED } else { load };
        match found {
            Some(bin) => loads.set(bin, load),
            None => last = load,
        }
        placed.push((item, bin));
    }
    let bins = if placed.is_empty() { 0 } else { counts.len() };
    ItemBins::new(&placed, bins, ticks)
}
