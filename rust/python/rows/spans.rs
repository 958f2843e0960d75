//! Masks that keep one span of each row, such as attention masks.

use fastcollate::with_room;
use numpy::{Element, PyArrayMethods, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::error::Result;
use crate::plan::tables::{Column, column_of};

/// Items that are compared at once.
const BLOCK: usize = 64;

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
