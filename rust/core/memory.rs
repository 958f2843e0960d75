//! Memory of sizes that come from outside.

use crate::error::{Error, Result};

/// As many values as somebody else says, by their numbers.
///
/// # Errors
/// [`Error::NoMemory`], where another allocation would end the process.
pub fn filled<T>(count: usize, value: impl Fn(usize) -> T) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|error| {
        Error::NoMemory(format!("cannot take memory for {count} values: {error}"))
    })?;
    values.extend((0..count).map(value));
    Ok(values)
}
