//! A required number of bins: the capacity that it takes, and bins that are added.

use std::borrow::Cow;
use std::collections::BinaryHeap;

use super::{ItemBins, Items, Load, Packer};
use crate::error::Result;
use crate::plan::partition::sort_indices;
use crate::polling::Ticks;

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

/// Add bins up to the given number: the heaviest bin of two or more items, of equal ones the last,
/// keeps one half of them, and a new bin takes the other.
///
/// Items go to the lighter half, the heaviest item first; ties go to the first item, and to the
/// half that is kept. These are the bins of slime and prime-rl. If all weights are 0, the new bin
/// takes the second half. Weights are finite and not negative. No bin stays empty if there are at
/// least as many items as bins.
///
/// # Errors
/// Those of `ticks`.
pub fn halve(
    packed: &ItemBins,
    weights: &[f64],
    bins: usize,
    ticks: &mut Ticks,
) -> Result<ItemBins> {
    let mut contents: Vec<Cow<[usize]>> =
        (0..packed.count()).map(|bin| packed.items(bin).into()).collect();
    // The bits of floats that are not negative are ordered like the floats.
    let key = |bin: usize, items: &[usize]| {
        let weight = items.iter().fold(0.0, |sum, &item| sum + weights[item]);
        (items.len() > 1).then_some((weight.to_bits(), bin))
    };
    let all = contents.iter().enumerate();
    let mut heaviest: BinaryHeap<_> = all.filter_map(|(bin, items)| key(bin, items)).collect();
    while contents.len() < bins
        && let Some((_, bin)) = heaviest.pop()
    {
        ticks.done(contents[bin].len())?;
        let [kept, given] = halves(&contents[bin], weights);
        heaviest.extend(key(bin, &kept));
        heaviest.extend(key(contents.len(), &given));
        contents[bin] = kept.into();
        contents.push(given.into());
    }
    let mut out = ItemBins {
        offsets: Vec::with_capacity(contents.len() + 1),
        items: Vec::with_capacity(packed.items.len()),
    };
    out.offsets.push(0);
    for items in contents {
        ticks.done(items.len())?;
        out.items.extend(&*items);
        out.offsets.push(out.items.len());
    }
    Ok(out)
}

/// Two halves of about the same weight, neither empty.
fn halves(items: &[usize], weights: &[f64]) -> [Vec<usize>; 2] {
    let mut order = items.to_vec();
    sort_indices(&mut order, &|a, b| weights[b].total_cmp(&weights[a]));
    let mut halves = [Vec::new(), Vec::new()];
    let mut sums = [0.0, 0.0];
    for item in order {
        let half = usize::from(sums[0] > sums[1]);
        halves[half].push(item);
        sums[half] += weights[item];
    }
    if halves[1].is_empty() {
        let middle = halves[0].len().div_ceil(2);
        halves[1] = halves[0].split_off(middle);
    }
    halves
}

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
    let mut order: Vec<_> = (0..count).map(|bin| (packed.items(bin).len(), bin)).collect();
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

    let mut out = ItemBins { offsets: vec![0], items: Vec::with_capacity(packed.items.len()) };
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
