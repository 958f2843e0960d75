//! Concatenation: sequences end to end, cut where a bin is full.

use crate::error::{Error, Result};
use crate::plan::{Bins, Span};
use crate::ticks::Ticks;

/// Lay sequences end to end, and cut them into bins of limited tokens and spans.
///
/// The tokens of each span are rounded up to a multiple. These are torchtune's bins with splitting,
/// and TRL's wrapped ones.
///
/// # Errors
/// Those of `ticks`; [`Error::NoRoom`] if a span of one token does not fit a bin.
pub fn concat(
    lens: &[usize],
    capacity: usize,
    multiple: usize,
    count: usize,
    ticks: &mut Ticks,
) -> Result<Bins> {
    if multiple == 0 || multiple > capacity || count == 0 {
        return Err(Error::NoRoom { multiple, capacity });
    }
    let mut bins = Bins {
        offsets: vec![0],
        spans: Vec::with_capacity(lens.len()),
    };
    let mut room = capacity;
    for (index, &len) in lens.iter().enumerate() {
        let mut from = 0;
        loop {
            ticks.done(1)?;
            let fits = room / multiple * multiple;
            let start = bins.offsets[bins.offsets.len() - 1];
            if bins.spans.len() - start == count || (from < len && fits == 0) {
                bins.offsets.push(bins.spans.len());
                room = capacity;
                continue;
            }
            let len = fits.min(len - from);
            bins.spans.push(Span { index, from, len });
            room -= len.next_multiple_of(multiple);
            from += len;
            if from == lens[index] {
                break;
            }
        }
    }
    if !bins.spans.is_empty() {
        bins.offsets.push(bins.spans.len());
    }
    Ok(bins)
}
