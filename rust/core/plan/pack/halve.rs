//! Halving: the heaviest bin is split in two until there are enough bins.

use std::borrow::Cow;
use std::collections::BinaryHeap;

use super::ItemBins;
use crate::error::Result;
use crate::ticks::Ticks;

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
    let mut contents: Vec<Cow<[usize]>> = { 0..packed.count() }
        .map(|bin| packed.items(bin).into())
        .collect();
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
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
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
