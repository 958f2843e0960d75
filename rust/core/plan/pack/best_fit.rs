//! Best fit: each item goes to the bin with the least capacity left.

use super::open_bins::OpenBins;
use super::{ItemBins, Items, Load};
use crate::error::Result;
use crate::ticks::Ticks;

/// Pack items, the largest first. Of bins with equal capacity left, the first to have reached it is
/// taken.
///
/// # Errors
/// Those of `ticks`.
pub fn pack(items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
    let mut bins = OpenBins::new(items, limit);
    let mut placed = Vec::with_capacity(items.len());
    for (time, item) in items.largest_and_first(ticks)?.into_iter().enumerate() {
        ticks.done(1)?;
        let load = items.get(item);
        let bin = bins.add(load, (load.size, 0));
        let room = limit.size.saturating_sub(bins.loads()[bin].size);
        bins.set_key(bin, (room, time));
        placed.push((item, bin));
    }
    ItemBins::new(&placed, bins.loads().len(), ticks)
}
