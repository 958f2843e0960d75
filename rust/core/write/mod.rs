//! Writers: they walk a band of the plan and fill it, every position once. They decide nothing.
//!
//! Columns come as trait objects, so that writers are compiled once for each number type. A column is
//! called once for each span of a row.

mod labels;
mod mask;
mod positions;
mod rows;

pub use labels::{Labels, write_labels};
pub use mask::write_mask;
pub use positions::{Count, PositionPadding, write_positions, write_row_indices};
pub use rows::{Fill, write_field, write_tokens};

use crate::element::Binary;
use crate::plan::{Band, Segment};

/// Where a band goes.
#[derive(Debug)]
pub struct Destination<'a, T> {
    /// Exactly the band's positions, times the values per token.
    pub values: &'a mut [T],
    /// Whether the memory is zero already, so that zero padding need not be written (nor its pages
    /// touched).
    pub is_zeroed: bool,
}

/// Walk a band: fill what lies outside its segments with the pattern `pad`, hand each segment's
/// destination to `write`.
fn walk<T: Binary, E>(
    band: &Band,
    pad: &[T],
    destination: Destination<T>,
    mut write: impl FnMut(&Segment, &mut [T]) -> Result<(), E>,
) -> Result<(), E> {
    let Destination { values, is_zeroed } = destination;
    assert_eq!(values.len(), band.positions() * pad.len());
    let pad_is_zero = pad.iter().all(|&value| value.is_zero());
    let fill_padding = |values: &mut [T]| match (pad_is_zero, is_zeroed) {
        (true, true) => {}
        // Known to the compiler as zero, which is cleared faster than anything else is filled.
        (true, false) => values.fill(T::ZERO),
        (false, _) => fill(values, pad),
    };
    let mut rest = values;
    let mut at = band.begin;
    for segment in band.segments {
        let place = band.place(segment);
        let (padding, tail) = rest.split_at_mut((place - at) * pad.len());
        let (inside, tail) = tail.split_at_mut(segment.len * pad.len());
        fill_padding(padding);
        write(segment, inside)?;
        rest = tail;
        at = place + segment.len;
    }
    fill_padding(rest);
    Ok(())
}

/// Repeat a pattern over `values`.
fn fill<T: Copy>(values: &mut [T], pattern: &[T]) {
    if let [value] = pattern {
        values.fill(*value);
    } else {
        for token in values.chunks_exact_mut(pattern.len()) {
            token.copy_from_slice(pattern);
        }
    }
}
