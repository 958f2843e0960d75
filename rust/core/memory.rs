//! Allocations of sizes that come from outside.

use crate::error::{Error, Result};

/// A vector of `count` values, computed by index.
///
/// # Errors
/// [`Error::NoMemory`]; a plain allocation would abort the process.
pub fn filled<T>(count: usize, value: impl Fn(usize) -> T) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|error| {
        Error::NoMemory(format!("cannot take memory for {count} values: {error}"))
    })?;
    values.extend((0..count).map(value));
    Ok(values)
}
