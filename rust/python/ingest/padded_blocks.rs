//! Padded rows, and what is no padding of them.

use fastcollate::Error as Core;
use numpy::prelude::*;
use numpy::{Element, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1, PyUntypedArray};
use pyo3::prelude::*;

use crate::error::Result;
use crate::plan::tables::usizes;

/// Copy rows without their padding into a flat array, which they fill.
///
/// Values of any dtype come as unsigned integers of their bits, and lengths count values.
///
/// # Errors
/// `ValueError` if lengths, rows and values do not fit each other.
#[pyfunction]
pub fn copy_rows(
    rows: &Bound<PyUntypedArray>,
    lengths: PyReadonlyArray1<i64>,
    is_left: bool,
    out: &Bound<PyAny>,
) -> Result<()> {
    let lens = usizes("lengths", &lengths)?;
    match rows.dtype().itemsize() {
        1 => copy::<u8>(rows, &lens, is_left, out),
        2 => copy::<u16>(rows, &lens, is_left, out),
        4 => copy::<u32>(rows, &lens, is_left, out),
        _ => copy::<u64>(rows, &lens, is_left, out),
    }
}

/// The interpreter is held: a tensor's memory may go elsewhere while others run.
fn copy<T: Element + Copy>(
    rows: &Bound<PyUntypedArray>,
    lens: &[usize],
    is_left: bool,
    out: &Bound<PyAny>,
) -> Result<()> {
    let invalid = || Core::InvalidPlan("its rows do not fit their lengths".to_owned());
    let rows: PyReadonlyArray2<T> = rows.extract()?;
    let mut out: PyReadwriteArray1<T> = out.extract()?;
    let mut out = out.as_slice_mut().map_err(|_| invalid())?;
    let rows = rows.as_array();
    if rows.nrows() != lens.len() {
        return Err(invalid().into());
    }
    for (row, &len) in rows.rows().into_iter().zip(lens) {
        let start = if is_left {
            row.len().checked_sub(len)
        } else {
            Some(0)
        };
        let start = start.filter(|start| start + len <= row.len());
        let (Some(start), Some((to, rest))) = (start, out.split_at_mut_checked(len)) else {
            return Err(invalid().into());
        };
        match row.to_slice() {
            Some(row) => to.copy_from_slice(&row[start..start + len]),
            None => {
                let values = row.into_iter().skip(start);
                to.iter_mut()
                    .zip(values)
                    .for_each(|(to, &value)| *to = value);
            }
        }
        out = rest;
    }
    if out.is_empty() {
        Ok(())
    } else {
        Err(invalid().into())
    }
}
