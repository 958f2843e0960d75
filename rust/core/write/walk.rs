//! The walk over a slice: padding is filled here, segments are written by the writers.

use crate::element::Binary;
use crate::plan::{GridSlice, Segment};

/// The destination of a slice.
#[derive(Debug)]
pub struct Destination<'a, T> {
    /// The slice's positions times the values per token.
    pub values: &'a mut [T],
    /// True if the memory is already zero, so that zero padding need not be written (nor its pages
    /// touched).
    pub is_zeroed: bool,
}

/// Walk a slice: fill positions outside its segments with the pattern `pad`, and pass each segment's
/// destination to `write`.
pub fn walk<T: Binary, E>(
    slice: &GridSlice,
    pad: &[T],
    destination: Destination<T>,
    mut write: impl FnMut(&Segment, &mut [T]) -> Result<(), E>,
) -> Result<(), E> {
    let Destination { values, is_zeroed } = destination;
    assert_eq!(values.len(), slice.positions() * pad.len());
    let pad_is_zero = pad.iter().all(|&value| value.is_zero());
    let fill_padding = |values: &mut [T]| match (pad_is_zero, is_zeroed) {
        (true, true) => {}
        // A constant zero, which is cleared faster than any other value is filled.
        (true, false) => values.fill(T::ZERO),
        (false, _) => fill(values, pad),
    };
    let mut rest = values;
    let mut at = slice.begin;
    for segment in slice.segments {
        let place = slice.position_of(segment);
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
pub fn fill<T: Copy>(values: &mut [T], pattern: &[T]) {
    if let [value] = pattern {
        values.fill(*value);
    } else {
        for token in values.chunks_exact_mut(pattern.len()) {
            token.copy_from_slice(pattern);
        }
    }
}
