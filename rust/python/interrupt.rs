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

/// Read a long stretch piece by piece; `inner` values are a token.
pub fn in_chunks<T>(
    from: usize,
    out: &mut [T],
    inner: usize,
    mut read: impl FnMut(usize, &mut [T]) -> Result<()>,
) -> Result<()> {
    let inner = inner.max(1);
    let tokens = (CHUNK / inner).max(1);
    for (index, chunk) in out.chunks_mut(tokens * inner).enumerate() {
        if index > 0 {
            poll()?;
        }
        read(from + index * tokens, chunk)?;
    }
    Ok(())
}

/// A column of plain memory that is read piece by piece.
pub struct Interruptible<'a>(pub &'a SliceColumn<'a>);

impl<T: Element> Column<T> for Interruptible<'_> {
    type Error = Error;

    fn row_len(&self, turn: usize) -> usize {
        Column::<T>::row_len(self.0, turn)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        in_chunks(from, out, self.0.inner(), |from, out| {
            Ok(self.0.read(turn, from, out)?)
        })
    }
}
