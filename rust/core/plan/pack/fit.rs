//! Packing into a number of bins: a search for the smallest capacity that suffices.

use super::{ItemBins, Items, Load, Packer};
use crate::error::Result;
use crate::ticks::Ticks;

/// Precision of the capacity: to one part in this number.
const EXACT: usize = 1024;

/// Pack items into at most the given number of bins, of the smallest capacity found: MULTIFIT of
/// Coffman, Garey and Johnson (1978), by bisection.
///
/// The lower bound of the search is the mean load or the largest item. No capacity above `limit` is
/// tried if `limit` suffices; it also limits the other loads of bins. The capacity found exceeds
/// the smallest by at most one in `EXACT` if all larger capacities suffice as well, which is nearly
/// certain. None if the other limits make the number of bins impossible.
///
/// # Errors
/// Those of `ticks`.
pub fn fit(
    packer: Packer,
    items: Items,
    bins: usize,
    limit: Load,
    ticks: &mut Ticks,
) -> Result<Option<ItemBins>> {
    let total = items.sizes.iter().copied().fold(0, usize::saturating_add);
    let largest = items.sizes.iter().copied().max().unwrap_or(0);
    let mut at = |size| packer.pack(items, Load { size, ..limit }, ticks);
    let mut low = total.div_ceil(bins.max(1)).max(largest);
    // First fit always succeeds with it: of two bins, one is fuller than the mean load.
    let mut high = low.saturating_add(largest).min(limit.size.max(low));
    let mut found = at(high)?;
    while found.count() > bins {
        if high >= total {
            return Ok(None);
        }
        high = high.saturating_mul(2).min(total);
        found = at(high)?;
    }
    while high - low > low / EXACT {
        let middle = low.midpoint(high);
        let packed = at(middle)?;
        if packed.count() <= bins {
            (high, found) = (middle, packed);
        } else {
            low = middle + 1;
        }
    }
    Ok(Some(found))
}
