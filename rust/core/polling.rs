//! Long reads and comparisons are cut into chunks; a hook between the chunks may end them.
//! Plans count ticks instead (`ticks.rs`).

use std::cell::Cell;

use crate::column::{At, Column, FieldColumn, SliceColumn, Tokens};
use crate::element::Element;
use crate::error::Result;

/// Values read between two calls of the hook: a few tens of microseconds.
const CHUNK: usize = 1 << 16;

/// Tokens compared between two calls of the hook; comparing is fast.
const COMPARED: usize = 1 << 18;

/// Fixed cost of comparing a span or a turn, in compared tokens.
const OVERHEAD: usize = 1 << 9;

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
            { self.column }.common_len(at, other.column, other_at, len)
        })
    }

    fn pause(&self) -> Result<()> {
        poll_step(self.poll)
    }
}
