//! Rows that begin or end with padding.

use fastcollate::{Column, FieldColumn};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use super::list::{Items, exact};
use super::nested::is_array;
use super::object::to_list;
use super::py_rows::PyRows;
use crate::error::Result;

/// Least number of padding tokens at an edge of a row that looks padded; `padded_blocks.py` explains
/// it, and reads all rows if an edge is found.
pub const PADDED_RUN: usize = 2;

/// Number of rows that are read if they are arrays: one takes as long as some lists.
const FEW: usize = 16;

/// True if rows are of one kind and length, and one of them begins or ends with padding; of arrays,
/// only some are read.
///
/// # Errors
/// Those of rows that cannot be read.
#[pyfunction]
pub fn have_padded_edges(rows: &Bound<PyAny>, pad: i64) -> Result<bool> {
    let rows = to_list(rows)?;
    let (Some(first), Some(last)) = (rows.iter().next(), rows.iter().next_back()) else {
        return Ok(false);
    };
    let (kind, width) = (first.get_type(), first.len()?);
    let is_like =
        |row: &Bound<PyAny>| Ok::<_, PyErr>(row.get_type().is(&kind) && row.len()? == width);
    let are_lists = Items::exact(&first).is_some();
    if !is_like(&last)? || width <= PADDED_RUN || !(are_lists || is_array(&first)?) {
        return Ok(false); // lengths usually differ, and no item is read
    }
    let mut found = false;
    for row in rows.iter().step_by(if are_lists { 1 } else { rows.len().div_ceil(FEW) }) {
        if !is_like(&row)? {
            return Ok(false);
        }
        let items = Items::exact(&row);
        let array = match items {
            Some(_) => None,
            None => Some(PyRows::single::<i64>("rows", 0, &row)?.without_booleans()?),
        };
        if let Some(array) = &array
            && array.lens()? != [width]
        {
            return Ok(false); // a subclass says so
        }
        for [outer, inner] in [[0, 1], [width - 1, width - 2]] {
            let mut edge = [0; PADDED_RUN];
            if let Some(array) = &array {
                array.read(0, outer.min(inner), &mut edge)?;
                found |= edge == [pad; PADDED_RUN];
                continue;
            }
            // Reading other items would run their code.
            let item = |at| items?.get(at).filter(|item| item.is_exact_instance_of::<PyInt>());
            let Some(outer) = item(outer) else {
                return Ok(false);
            };
            let is_pad = |item: &Bound<PyAny>| exact::<i64>(item) == Some(pad);
            found |= is_pad(&outer) && item(inner).is_some_and(|item| is_pad(&item));
        }
    }
    Ok(found)
}
