//! The tokens that masks keep, such as the span of each row in an attention mask.

use std::iter::once;

use fastcollate::with_room;
use numpy::{Element, PyArrayMethods, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::error::Result;
use crate::plan::tables::{Column, column_of};

/// Items that are compared at once.
const BLOCK: usize = 64;

/// Offsets of the tokens that a mask of bytes, 0 or 1, keeps of each row.
///
/// # Errors
/// `MemoryError`.
#[pyfunction]
pub fn mask_offsets<'py>(py: Python<'py>, mask: PyReadonlyArray2<u8>) -> Result<Column<'py>> {
    let mut end = 0;
    let mask = mask.as_array();
    // Bytes are added many at a time, up to 255.
    let count = |flags: &[u8]| flags.iter().fold(0_u8, |sum, flag| sum + u8::from(*flag != 0));
    let ends = mask.rows().into_iter().map(|row| {
        end += match row.to_slice() {
            Some(flags) => flags.chunks(255).map(count).map(usize::from).sum(),
            None => row.iter().filter(|flag| **flag != 0).count(),
        };
        end
    });
    column_of(py, once(0).chain(ends))
}

/// Start and length of each row's span in a mask of 0 and 1; `None` if a row has several, and for
/// empty masks, and those of other numbers, dtypes and orders of memory.
///
/// # Errors
/// `MemoryError`.
#[pyfunction]
pub fn mask_spans<'py>(
    py: Python<'py>,
    mask: &Bound<'py, PyAny>,
) -> Result<Option<(Column<'py>, Column<'py>)>> {
    let spans = if let Ok(mask) = mask.extract() {
        spans_in::<u8>(&mask)?
    } else if let Ok(mask) = mask.extract() {
        spans_in::<i64>(&mask)?
    } else {
        None
    };
    let Some((starts, lens)) = spans else {
        return Ok(None);
    };
    Ok(Some((column_of(py, starts)?, column_of(py, lens)?)))
}

fn spans_in<T: Element + Copy + PartialEq + From<u8>>(
    mask: &PyReadonlyArray2<T>,
) -> Result<Option<(Vec<usize>, Vec<usize>)>> {
    let width = mask.shape()[1];
    if mask.is_empty() || !mask.is_c_contiguous() || !mask.data().is_aligned() {
        return Ok(None);
    }
    let Ok(flags) = mask.as_slice() else {
        return Ok(None);
    };
    let (mut starts, mut lens) = (with_room(mask.shape()[0])?, with_room(mask.shape()[0])?);
    for row in flags.chunks_exact(width) {
        let start = run(row, T::from(0));
        let len = run(&row[start..], T::from(1));
        let after = &row[start + len..];
        if run(after, T::from(0)) < after.len() {
            return Ok(None);
        }
        starts.push(start);
        lens.push(len);
    }
    Ok(Some((starts, lens)))
}

/// Number of items at the start that are one value.
fn run<T: Copy + PartialEq>(items: &[T], value: T) -> usize {
    let is_whole = |block: &&[T]| block.iter().fold(true, |all, item| all & (*item == value));
    let whole = items.chunks_exact(BLOCK).take_while(is_whole).count() * BLOCK;
    whole + items[whole..].iter().take_while(|item| **item == value).count()
}
