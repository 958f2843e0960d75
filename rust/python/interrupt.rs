//! Ctrl-C: long work looks at pending signals every few milliseconds.

use fastcollate::{Column, Element, SliceColumn};
use pyo3::prelude::*;

use crate::error::{Error, Result};

/// Values read between two looks at pending signals.
const CHUNK: usize = 1 << 16;

/// Raise what a signal handler raised, if a signal came.
pub fn poll() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Read a long stretch piece by piece.
pub fn in_chunks<T>(
    from: usize,
    out: &mut [T],
    mut read: impl FnMut(usize, &mut [T]) -> Result<()>,
) -> Result<()> {
    for (index, chunk) in out.chunks_mut(CHUNK).enumerate() {
        if index > 0 {
            poll()?;
        }
        read(from + index * CHUNK, chunk)?;
    }
    Ok(())
}

/// A column of plain memory that is read piece by piece.
pub struct Interruptible<'a>(pub SliceColumn<'a>);

impl<T: Element> Column<T> for Interruptible<'_> {
    type Error = Error;

    fn row_len(&self, turn: usize) -> usize {
        Column::<T>::row_len(&self.0, turn)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        in_chunks(from, out, |from, out| Ok(self.0.read(turn, from, out)?))
    }
}
