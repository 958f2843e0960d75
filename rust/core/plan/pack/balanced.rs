//! Emptiest fit: each item goes to the bin with the fewest tokens that it fits.

use super::open_bins::OpenBins;
use super::{ItemBins, Items, Load};
use crate::error::Result;
use crate::ticks::Ticks;

/// Pack items, the largest first. Of bins with equally many tokens, the first is taken.
///
/// # Errors
/// Those of `ticks`.
pub fn pack(items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
    let mut bins = OpenBins::new(items, limit);
    let mut placed = Vec::with_capacity(items.len());
    for item in items.largest_and_first(ticks)? {
        ticks.done(1)?;
        let bin = bins.add(items.get(item), (0, 0));
        bins.set_key(bin, (bins.loads()[bin].size, bin));
        placed.push((item, bin));
    }
    ItemBins::new(&placed, bins.loads().len(), ticks)
}
