//! A number of bins: the smallest capacity is looked for with which they do.

use super::{ItemBins, Items, Load, Packer};
use crate::error::Result;
use crate::ticks::Ticks;

/// How exact the capacity is: to a share of one in so many.
const EXACT: usize = 1024;

/// Pack items into no more than so many bins, of as small a capacity as was found: MULTIFIT, of Coffman,
/// Garey and Johnson (1978), by bisection.
///
/// A capacity is tried that no less will do than: the mean load, or the largest item. So none is tried
/// above the `limit` if that will do, which also limits what else bins hold. The capacity found exceeds
/// the smallest by one in `EXACT` at most, if every larger one than it did, too, which is not certain
/// but nearly so. None if it is the other limits that so many bins do not keep to.
///
/// # Errors
/// What `ticks` are stopped by.
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
    // First fit always does with it: of two bins, one is fuller than the mean load.
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
