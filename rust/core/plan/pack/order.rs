//! The order in which items are packed.

/// Bits of a size that are looked at together.
const DIGIT: u32 = 11;

/// Items by size, the largest first, and of equal ones the first, or the last.
///
/// A radix sort: lengths of sequences are small numbers, so two passes do, where comparing would
/// take as much time as first fit itself.
pub fn largest(sizes: &[usize], last_first: bool) -> Vec<usize> {
    let most = sizes.iter().copied().max().unwrap_or(0);
    let key = |item: usize| (most - sizes[item], item);
    let mut keys: Vec<_> = if last_first {
        (0..sizes.len()).rev().map(key).collect()
    } else {
        (0..sizes.len()).map(key).collect()
    };
    let mut sorted = keys.clone();
    let mut shift = 0;
    while shift < usize::BITS && most >> shift > 0 {
        let digit = |key: usize| (key >> shift) & ((1 << DIGIT) - 1);
        let mut places = [0; 1 << DIGIT];
        for &(key, _) in &keys {
            places[digit(key)] += 1;
        }
        let mut place = 0;
        for count in &mut places {
            place += *count;
            *count = place - *count;
        }
        for &entry in &keys {
            let place = &mut places[digit(entry.0)];
            sorted[*place] = entry;
            *place += 1;
        }
        std::mem::swap(&mut keys, &mut sorted);
        shift += DIGIT;
    }
    keys.into_iter().map(|(_, item)| item).collect()
}
