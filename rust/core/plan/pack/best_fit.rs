//! Best fit: each item goes to the bin that it leaves the least room in.

use super::open_bins::OpenBins;
use super::{ItemBins, Items, Load};
use crate::error::Result;
use crate::ticks::Ticks;

/// Pack items, the largest first. Of bins with as much room, the first to have had it is taken.
///
/// # Errors
/// What `ticks` are stopped by.
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
