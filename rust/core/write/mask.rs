//! Masks need no values: they follow from the plan alone.

use std::convert::Infallible;

use super::{Destination, walk};
use crate::element::Binary;
use crate::plan::Band;

/// Write `inside` where a segment lies and `outside` elsewhere.
///
/// # Panics
/// If the destination has another size than the band.
pub fn write_mask<T: Binary>(band: &Band, inside: T, outside: T, destination: Destination<T>) {
    let Ok(()) = walk(band, &[outside], destination, |_, values| {
        values.fill(inside);
        Ok::<(), Infallible>(())
    });
}
