//! Ctrl-C: long work looks at pending signals every few milliseconds.

use std::cell::Cell;
use std::time::{Duration, Instant};

use fastcollate::{At, Column, Element, SliceColumn, Steps, Tokens};
use pyo3::prelude::*;

use crate::error::{Error, Result};

/// Values read between two looks at pending signals.
const CHUNK: usize = 1 << 16;

/// Tokens compared between two looks: that is fast.
const COMPARED: usize = 1 << 18;

/// How many compared tokens the comparison of a stretch takes as long as, or a turn, whatever it has.
const OVERHEAD: usize = 1 << 9;

/// Raise what a signal handler raised, if a signal came.
pub fn poll() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Time between two looks at pending signals. Each may wait for the interpreter.
const PATIENCE: Duration = Duration::from_millis(50);

/// Do work with the interpreter released, and end it with what a signal handler raised.
///
/// # Errors
/// Those of the work, and the handler's exception.
pub fn stoppable<T: Send>(
    py: Python,
    work: impl FnOnce(&mut Steps<Error>) -> Result<T> + Send,
) -> Result<T> {
    py.detach(|| {
        let mut last = Instant::now();
        work(&mut Steps::new(&mut || {
            if last.elapsed() < PATIENCE {
                return Ok(());
            }
            poll()?;
            last = Instant::now();
            Ok(())
        }))
    })
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

/// Compare a stretch piece by piece: `compare` takes how many tokens are done, and how many to
/// compare. Short stretches count together.
pub fn compared_in_chunks(
    len: usize,
    mut compare: impl FnMut(usize, usize) -> Result<usize>,
) -> Result<usize> {
    for done in (0..len).step_by(COMPARED) {
        let count = COMPARED.min(len - done);
        poll_after(count + OVERHEAD)?;
        let common = compare(done, count)?;
        if common < count {
            return Ok(done + common);
        }
    }
    Ok(len)
}

/// A turn or another step of long work: look at pending signals if it is time.
pub fn step() -> Result<()> {
    poll_after(OVERHEAD)
}

/// Look at pending signals if work of so many compared tokens has been done since the last time.
fn poll_after(tokens: usize) -> Result<()> {
    thread_local! {
        static SINCE_POLL: Cell<usize> = const { Cell::new(0) };
    }
    let since = SINCE_POLL.get() + tokens;
    SINCE_POLL.set(since % COMPARED);
    if since >= COMPARED {
        poll()?;
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

impl Tokens for Interruptible<'_> {
    fn common_len(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize> {
        compared_in_chunks(len, |done, len| {
            Ok({ self.0 }.common_len(at.behind(done), other.0, other_at.behind(done), len)?)
        })
    }

    fn pause(&self) -> Result<()> {
        step()
    }
}
