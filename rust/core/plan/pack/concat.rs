//! Concatenation: one sequence behind the other, cut where a bin is full.

use crate::error::Error;
use crate::plan::{Bins, Stretch};
use crate::steps::Steps;

/// Lay sequences end to end, and cut them into bins of so many tokens and stretches at most.
///
/// Each stretch takes room for its tokens rounded up to a multiple. These are torchtune's bins with
/// splitting, and TRL's wrapped ones.
///
/// # Errors
/// What `steps` are stopped by; [`Error::InvalidPlan`] if a bin has no room for a stretch of one
/// token.
pub fn concat<E: From<Error>>(
    lens: &[usize],
    capacity: usize,
    multiple: usize,
    count: usize,
    steps: &mut Steps<E>,
) -> Result<Bins, E> {
    if multiple == 0 || multiple > capacity || count == 0 {
        let reason = "no bin has room for a token".to_owned();
        return Err(Error::InvalidPlan(reason).into());
    }
    let mut bins = Bins {
        offsets: vec![0],
        stretches: Vec::with_capacity(lens.len()),
    };
    let mut room = capacity;
    for (index, &len) in lens.iter().enumerate() {
        let mut from = 0;
        loop {
            steps.done(1)?;
            let fits = room / multiple * multiple;
            let start = bins.offsets[bins.offsets.len() - 1];
            if bins.stretches.len() - start == count || (from < len && fits == 0) {
                bins.offsets.push(bins.stretches.len());
                room = capacity;
                continue;
            }
            let len = fits.min(len - from);
            bins.stretches.push(Stretch { index, from, len });
            room -= len.next_multiple_of(multiple);
            from += len;
            if from == lens[index] {
                break;
            }
        }
    }
    if !bins.stretches.is_empty() {
        bins.offsets.push(bins.stretches.len());
    }
    Ok(bins)
}
