//! The order in which items are packed.

use crate::error::Result;
use crate::ticks::Ticks;

/// Items by size, the largest first; of equal ones, the first or the last.
///
/// A radix sort: lengths are small enough for one or two passes. A comparison sort would take
/// longer than placing the items.
///
/// # Errors
/// Those of `ticks`.
pub fn largest(sizes: &[usize], last_first: bool, ticks: &mut Ticks) -> Result<Vec<usize>> {
    let most = sizes.iter().copied().max().unwrap_or(0);
    let mut order: Vec<_> = if last_first {
        (0..sizes.len()).rev().collect()
    } else {
        (0..sizes.len()).collect()
    };
    // Not many more counters than items, and no more than fit the cache.
    let bits = usize::BITS - most.leading_zeros();
    let passes = bits.div_ceil(sizes.len().max(1).ilog2().clamp(8, 14));
    let width = bits.checked_div(passes).unwrap_or(0) + 1;
    let mut sorted = order.clone();
    for shift in (0..passes).map(|pass| pass * width) {
        let digit = |item: usize| ((most - sizes[item]) >> shift) & ((1 << width) - 1);
        let mut places = vec![0; 1 << width];
        for &item in &order {
            ticks.done(1)?;
            places[digit(item)] += 1;
        }
        let mut place = 0;
        for count in &mut places {
            place += *count;
            *count = place - *count;
        }
        for &item in &order {
            ticks.done(1)?;
            let place = &mut places[digit(item)];
            sorted[*place] = item;
            *place += 1;
        }
        std::mem::swap(&mut order, &mut sorted);
    }
    Ok(order)
}
