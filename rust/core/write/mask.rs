//! Masks need no values: they follow from the plan alone.

use std::convert::Infallible;

use super::{Destination, walk};
use crate::element::Binary;
use crate::plan::Band;

/// Write 1 where a segment lies and 0 elsewhere.
///
/// # Panics
/// If the destination has another size than the band.
pub fn write_mask<T: Binary>(band: &Band, destination: Destination<T>) {
    let Ok(()) = walk(band, &[T::ZERO], destination, |_, inside| {
        inside.fill(T::ONE);
        Ok::<(), Infallible>(())
    });
}
