//! Sorting that can be stopped.

use crate::error::Result;
use crate::ticks::Ticks;

/// So many values are sorted between two looks.
const PIECE: usize = 1 << 16;

/// Sort values of which no two are equal.
///
/// Large slices are parted around a value from their middle, as long as that helps.
///
/// # Errors
/// What `ticks` are stopped by. The values are in any order then.
pub fn sort<T: Ord + Copy>(values: &mut [T], ticks: &mut Ticks) -> Result<()> {
    let len = values.len();
    if len <= PIECE {
        values.sort_unstable();
        return ticks.done(len);
    }
    let mut sample: Vec<_> = values.iter().step_by(len / 128).copied().collect();
    sample.sort_unstable();
    let middle = sample[sample.len() / 2];
    let mut end = 0;
    for index in 0..len {
        ticks.done(1)?;
        let is_less = values[index] < middle;
        values.swap(index, end);
        end += usize::from(is_less);
    }
    if end.min(len - end) < len / 64 {
        // What was sampled does not tell how values are spread.
        values.sort_unstable();
        return ticks.done(len);
    }
    let (less, more) = values.split_at_mut(end);
    sort(less, ticks)?;
    sort(more, ticks)
}
