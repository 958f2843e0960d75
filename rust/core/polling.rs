//! Hooks that may end long work. Long plans count ticks, and call one every few thousand; long reads
//! and comparisons are cut into chunks, with a hook between them.

use std::cell::Cell;

use crate::column::{At, Column, FieldColumn, SliceColumn, Tokens};
use crate::element::Element;
use crate::error::Result;
use crate::memory::{add, with_room};

/// Values read between two calls of the hook: a few tens of microseconds.
const CHUNK: usize = 1 << 16;

/// Tokens compared between two calls of the hook; comparing is fast.
const COMPARED: usize = 1 << 18;

/// Fixed cost of comparing a span or a turn, in compared tokens.
const OVERHEAD: usize = 1 << 9;

/// Ticks between two calls of the hook. One takes from a nanosecond to a few microseconds.
const EVERY: usize = 1 << 12;

/// A hook that long work calls every few milliseconds: an error ends the work.
pub type Poll<'a> = &'a (dyn Fn() -> Result<()> + Sync);

/// Read a long span chunk by chunk, with `inner` values per token.
///
/// # Errors
/// Those of the hook and of `read`.
pub fn in_chunks<T>(
    from: usize,
    out: &mut [T],
    inner: usize,
    poll: Poll,
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

/// Compare a span chunk by chunk: `compare` takes the number of tokens done and the number to
/// compare. Short spans count together.
///
/// # Errors
/// Those of the hook and of `compare`.
pub fn compared_in_chunks(
    len: usize,
    poll: Poll,
    mut compare: impl FnMut(usize, usize) -> Result<usize>,
) -> Result<usize> {
    for done in (0..len).step_by(COMPARED) {
        let count = COMPARED.min(len - done);
        poll_after(count + OVERHEAD, poll)?;
        let common = compare(done, count)?;
        if common < count {
            return Ok(done + common);
        }
    }
    Ok(len)
}

/// Call the hook if it is due, after a turn or another step of long work.
///
/// # Errors
/// Those of the hook.
pub fn poll_step(poll: Poll) -> Result<()> {
    poll_after(OVERHEAD, poll)
}

/// Call the hook once this many compared tokens have been done since the last call.
fn poll_after(tokens: usize, poll: Poll) -> Result<()> {
    thread_local! {
        static SINCE_POLL: Cell<usize> = const { Cell::new(0) };
    }
    let since = SINCE_POLL.get() + tokens;
    SINCE_POLL.set(since % COMPARED);
    if since >= COMPARED { poll() } else { Ok(()) }
}

/// A column of plain memory that is read chunk by chunk.
pub struct Polled<'a> {
    column: &'a SliceColumn<'a>,
    poll: Poll<'a>,
}

impl<'a> Polled<'a> {
    /// Call the hook between chunks of this column.
    pub fn new(column: &'a SliceColumn<'a>, poll: Poll<'a>) -> Self {
        Self { column, poll }
    }
}

impl<T: Element> Column<T> for Polled<'_> {
    fn row_len(&self, turn: usize) -> usize {
        Column::<T>::row_len(self.column, turn)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        in_chunks(from, out, self.column.inner(), self.poll, |from, out| {
            self.column.read(turn, from, out)
        })
    }
}

impl Tokens for Polled<'_> {
    fn common_len(&self, at: At, other: &Self, other_at: At, len: usize) -> Result<usize> {
        compared_in_chunks(len, self.poll, |done, len| {
            let (at, other_at) = (at.after(done), other_at.after(done));
            self.column.common_len(at, other.column, other_at, len)
        })
    }

    fn pause(&self) -> Result<()> {
        poll_step(self.poll)
    }
}

/// Counts the ticks of long work and calls a hook every few thousand.
///
/// The hook decides how often it does more than read a clock. An error that it returns ends the
/// work.
pub struct Ticks<'a> {
    hook: &'a mut dyn FnMut() -> Result<()>,
    left: usize,
}

impl<'a> Ticks<'a> {
    /// Call this hook.
    pub fn new(hook: &'a mut dyn FnMut() -> Result<()>) -> Self {
        Self { hook, left: EVERY }
    }

    /// Count finished ticks.
    ///
    /// # Errors
    /// Those of the hook.
    #[inline]
    pub fn done(&mut self, ticks: usize) -> Result<()> {
        if ticks < self.left {
            self.left -= ticks;
            return Ok(());
        }
        self.left = EVERY;
        (self.hook)()
    }

    /// A vector of values, with a tick for each.
    ///
    /// # Errors
    /// Those of the hook, and [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn gathered<T>(&mut self, values: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
        let mut values = values.into_iter();
        let mut found = with_room(values.size_hint().0)?;
        loop {
            let before = found.len();
            // Sooner than `take`, whose adapter is not inlined.
            while found.len() < before + EVERY
                && let Some(value) = values.next()
            {
                add(&mut found, value)?;
            }
            self.done(found.len() - before)?;
            if found.len() < before + EVERY {
                return Ok(found);
            }
        }
    }
}

/// Do work without a hook.
///
/// # Panics
/// If the work fails.
pub fn unstopped<T>(work: impl FnOnce(&mut Ticks) -> Result<T>) -> T {
    work(&mut Ticks::new(&mut || Ok(()))).expect("nothing stops it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_hook_is_called_after_every_few_thousand_ticks() {
        let mut calls = 0;
        let mut hook = || {
            calls += 1;
            if calls == 3 {
                return Err(Error::NothingTrains);
            }
            Ok(())
        };
        let mut ticks = Ticks::new(&mut hook);
        for _ in 0..3 * EVERY - 1 {
            assert_eq!(ticks.done(1), Ok(()));
        }
        assert_eq!(ticks.done(1), Err(Error::NothingTrains));
        assert_eq!(ticks.done(EVERY - 1), Ok(()));
        assert_eq!(unstopped(|ticks| ticks.done(usize::MAX).map(|()| 5)), 5);
    }
}
