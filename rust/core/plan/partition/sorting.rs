//! Interruptible sorting.

use crate::error::Result;
use crate::ticks::Ticks;

/// Number of values sorted between two polls.
const PIECE: usize = 1 << 16;

/// Sort distinct values.
///
/// Large slices are partitioned around a value from their middle, unless the two sides are too
/// uneven.
///
/// # Errors
/// Those of `ticks`. The values are then in unspecified order.
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
        // The sample does not represent the values.
        values.sort_unstable();
        return ticks.done(len);
    }
    let (less, more) = values.split_at_mut(end);
    sort(less, ticks)?;
    sort(more, ticks)
}
