//! Spreading: items move to additional bins, so that every rank gets the same number.

use super::ItemBins;
use crate::error::Result;
use crate::ticks::Ticks;

/// Add bins up to the given number, each of which takes the last item of another.
///
/// Bins give items in the order of their numbers of items, of equal ones the last first, each until
/// it has one left: this is SkyRL's and NeMo-RL's adjustment. No bin stays empty if there are at
/// least as many items as bins.
///
/// # Errors
/// Those of `ticks`.
pub fn spread(packed: &ItemBins, bins: usize, ticks: &mut Ticks) -> Result<ItemBins> {
    let count = packed.count();
    let mut order: Vec<_> = (0..count)
        .map(|bin| (packed.items(bin).len(), bin))
        .collect();
    order.sort_unstable();

    let mut missing = bins.saturating_sub(count);
    let mut moved = Vec::with_capacity(missing);
    let mut kept = vec![0; count];
    for (len, bin) in order.into_iter().rev() {
        ticks.done(1)?;
        let given = missing.min(len.saturating_sub(1));
        kept[bin] = len - given;
        missing -= given;
        moved.extend(packed.items(bin).iter().rev().take(given));
    }

    let mut out = ItemBins {
        offsets: vec![0],
        items: Vec::with_capacity(packed.items.len()),
    };
    for (bin, kept) in kept.into_iter().enumerate() {
        ticks.done(kept)?;
        out.items.extend(&packed.items(bin)[..kept]);
        out.offsets.push(out.items.len());
    }
    for item in moved {
        out.items.push(item);
        out.offsets.push(out.items.len());
    }
    Ok(out)
}
