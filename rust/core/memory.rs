//! Memory for sizes that come from outside: a failed allocation would abort the process.

use std::collections::TryReserveError;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::error::{Error, Result};

/// Bytes that any step of planning takes for a row, a turn, a piece or a bin, at most.
const BYTES_EACH: usize = 512;

/// Bytes that any step of planning takes besides.
const BYTES_BESIDES: usize = 1 << 15;

/// From this size on, room is asked of the system, where it takes some microseconds and leaves no
/// trace: glibc's allocator keeps smaller blocks, and then treats others of their size differently.
const FROM_SYSTEM: usize = (32 << 20) + 1;

/// Steps up to this size are asked for together: asking for each took a seventh of a small batch's
/// time, and half of the time of packing a thousand lengths.
const SMALL: usize = FROM_SYSTEM / 16;

/// Check that there is memory for a step of planning over so many rows, or other items; for small
/// steps, before the first one and whenever they add up to what is asked for.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn check_room(count: usize) -> Result<()> {
    static SUM: AtomicUsize = AtomicUsize::new(0);
    let bytes = count.saturating_mul(BYTES_EACH).saturating_add(BYTES_BESIDES);
    if bytes <= SMALL {
        let before = SUM.fetch_add(bytes, Relaxed);
        if before != 0 && before % FROM_SYSTEM + bytes < FROM_SYSTEM {
            return Ok(());
        }
    }
    let mut room = Vec::<u8>::new();
    let reserved = room.try_reserve_exact(bytes.max(FROM_SYSTEM));
    // Otherwise, a compiler may leave out the allocation.
    black_box(&room);
    reserved.map_err(|_| Error::NoMemory(format!("no memory for a plan of {count} rows")))
}

/// Check that there is memory for so many values.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn check_room_of<T>(count: usize) -> Result<()> {
    black_box(&with_room::<T>(count)?);
    Ok(())
}

/// A vector of `count` values, computed by index.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn filled<T>(count: usize, value: impl FnMut(usize) -> T) -> Result<Vec<T>> {
    gathered((0..count).map(value))
}

/// A vector of values.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn gathered<T>(values: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let values = values.into_iter();
    let (least, most) = values.size_hint();
    let mut found = with_room(least)?;
    if most == Some(least) {
        found.extend(values);
        return Ok(found);
    }
    for value in values {
        add(&mut found, value)?;
    }
    Ok(found)
}

/// A vector of checked values.
///
/// # Errors
/// The first of the values', and [`Error::NoMemory`].
pub fn try_gathered<T, E: From<Error>>(
    values: impl IntoIterator<Item = Result<T, E>>,
) -> Result<Vec<T>, E> {
    let values = values.into_iter();
    let mut found = with_room(values.size_hint().0)?;
    for value in values {
        add(&mut found, value?)?;
    }
    Ok(found)
}

/// A collection of few values: of fields, options or names, never of rows or tokens.
#[expect(clippy::disallowed_methods, reason = "they are few")]
pub fn few<T, C: FromIterator<T>>(values: impl IntoIterator<Item = T>) -> C {
    values.into_iter().collect()
}

/// Add a value.
///
/// # Errors
/// [`Error::NoMemory`].
#[inline(always)]
pub fn add<T>(values: &mut Vec<T>, value: T) -> Result<()> {
    if values.len() == values.capacity() {
        grow(values)?;
    }
    values.push(value);
    Ok(())
}

/// Make room for a value: apart, as it is rare.
#[cold]
fn grow<T>(values: &mut Vec<T>) -> Result<()> {
    reserve(values, 1)
}

/// Add copies of values.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn extend<T: Copy>(values: &mut Vec<T>, more: &[T]) -> Result<()> {
    reserve(values, more.len())?;
    values.extend_from_slice(more);
    Ok(())
}

/// Add copies of a value up to a length, or cut the vector to it.
///
/// # Errors
/// [`Error::NoMemory`].
#[expect(clippy::disallowed_methods, reason = "after taking the room")]
pub fn resize<T: Clone>(values: &mut Vec<T>, len: usize, value: T) -> Result<()> {
    reserve(values, len.saturating_sub(values.len()))?;
    values.resize(len, value);
    Ok(())
}

/// An empty vector with room for `count` values.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn with_room<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|error| refused(count, &error))?;
    Ok(values)
}

/// Take room for more values.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn reserve<T>(values: &mut Vec<T>, more: usize) -> Result<()> {
    let count = values.len().saturating_add(more);
    values.try_reserve(more).map_err(|error| refused(count, &error))
}

#[cold]
fn refused(count: usize, error: &TryReserveError) -> Error {
    Error::NoMemory(format!("cannot take memory for {count} values: {error}"))
}
