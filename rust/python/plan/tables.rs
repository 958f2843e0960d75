//! Tables of plans as int64 NumPy arrays, and back.

use std::borrow::Cow;
use std::sync::Arc;

use fastcollate::plan::{Assembly, BinLayout, Chosen, Grid, Piece, Row, Segment, Turns};
use fastcollate::{Error as Core, check_room, gathered, try_gathered};
use numpy::ndarray::{Array2, ArrayView1, Dimension, Ix1, Ix2};
use numpy::prelude::*;
use numpy::{Element, PyArray1, PyReadonlyArray, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::error::Result;
use crate::plan::layout::{PADDING_AS, SHIFTS};
use crate::rows::intern;

/// A table of one column.
pub type Column<'py> = Bound<'py, PyArray1<i64>>;

/// Number of values between two polls for signals.
pub const LONG: usize = 1 << 18;

/// Lengths and indices count items in memory, so they fit in int64.
pub fn to_i64(value: usize) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// A column of a table.
///
/// # Errors
/// `MemoryError`.
pub fn column_of<'py>(
    py: Python<'py>,
    values: impl IntoIterator<Item = usize>,
) -> Result<Column<'py>> {
    array_of(py, values.into_iter().map(to_i64))
}

/// Number of values that take less time to copy than to hand over.
const FEW: usize = 1 << 9;

/// An array of values.
///
/// # Errors
/// `MemoryError`.
pub fn array_of<'py, T: Element>(
    py: Python<'py>,
    values: impl IntoIterator<Item = T>,
) -> Result<Bound<'py, PyArray1<T>>> {
    let values = gathered(values)?;
    poll_after(py, values.len())?;
    Ok(match values.len() {
        0..=FEW => PyArray1::from_slice(py, &values),
        _ => PyArray1::from_vec(py, values),
    })
}

/// Check signals after a loop over so many values, if it took milliseconds.
///
/// # Errors
/// The exception of a signal handler.
pub fn poll_after(py: Python, count: usize) -> PyResult<()> {
    if count < LONG {
        return Ok(());
    }
    py.check_signals()
}

/// The values of an array, copied if it is not contiguous.
///
/// # Errors
/// `MemoryError`.
pub fn values<'a, T: Element + Copy>(array: &'a PyReadonlyArray1<T>) -> Result<Cow<'a, [T]>> {
    match array.as_slice() {
        Ok(values) => Ok(Cow::Borrowed(values)),
        Err(_) => copied(array).map(Cow::Owned),
    }
}

/// A copy of the values of an array.
///
/// # Errors
/// `MemoryError`.
pub fn copied<T: Element + Copy>(array: &PyReadonlyArray1<T>) -> Result<Vec<T>> {
    let values = gathered(array.as_array().iter().copied())?;
    poll_after(array.py(), values.len())?;
    Ok(values)
}

/// The items of each part as a list of lists: `tolist` of them all, and slices of that, take half
/// as long again.
#[pyfunction]
pub fn lists_of<'py>(
    py: Python<'py>,
    offsets: PyReadonlyArray1<i64>,
    items: PyReadonlyArray1<i64>,
) -> Result<Bound<'py, PyList>> {
    let (offsets, items) = (usizes("offsets", &offsets)?, copied(&items)?);
    // Of an item as a Python number and its place in a list.
    check_room(items.len() / 8 + offsets.len())?;
    let _paused = (offsets.len() > LONG).then(|| NoCollection::begin(py)).transpose()?;
    let lists = PyList::empty(py);
    let mut polled = 0;
    for (index, ends) in offsets.windows(2).enumerate() {
        let part = items
            .get(ends[0]..ends[1])
            .ok_or_else(|| Core::InvalidPlan("its offsets do not fit".to_owned()))?;
        lists.append(PyList::new(py, part)?)?;
        if ends[1] + index - polled >= LONG {
            polled = ends[1] + index;
            py.check_signals()?;
        }
    }
    Ok(lists)
}

/// Python's collector of garbage, paused: it would visit millions of new lists again and again, for
/// 0.35 seconds each time, in which no signal is handled.
struct NoCollection<'py>(Option<Bound<'py, PyModule>>);

impl<'py> NoCollection<'py> {
    fn begin(py: Python<'py>) -> PyResult<Self> {
        let collector = py.import(intern!(py, "gc"))?;
        let is_on = collector.call_method0(intern!(py, "isenabled"))?.is_truthy()?;
        collector.call_method0(intern!(py, "disable"))?;
        Ok(Self(is_on.then_some(collector)))
    }
}

impl Drop for NoCollection<'_> {
    fn drop(&mut self) {
        let Some(collector) = &self.0 else { return };
        if let Err(error) = collector.call_method0("enable") {
            error.write_unraisable(collector.py(), Some(collector));
        }
    }
}

/// One value per row.
pub fn rows_of<'py>(
    py: Python<'py>,
    assembly: &Assembly,
    value: impl Fn(&Row) -> usize,
) -> Result<Column<'py>> {
    column_of(py, assembly.rows().iter().map(value))
}

/// The last turn of each row, -1 for synthetic ones.
pub fn sources_of<'py>(py: Python<'py>, assembly: &Assembly) -> Result<Column<'py>> {
    let source = |row: &Row| row.source.map_or(-1, to_i64);
    array_of(py, assembly.rows().iter().map(source))
}

/// Write a table of `N` columns.
pub fn set_table<T, const N: usize>(
    tables: &Bound<PyDict>,
    name: &str,
    items: &[T],
    row: impl Fn(&T) -> [usize; N],
) -> Result<()> {
    let rows = gathered(items.iter().map(|item| row(item).map(to_i64)))?;
    tables.set_item(name, Array2::from(rows).into_pyarray(tables.py()))?;
    Ok(())
}

/// Write the tables of turns and rows.
pub fn set_assembly(tables: &Bound<PyDict>, turns: &Turns, assembly: &Assembly) -> Result<()> {
    let py = tables.py();
    let column = |values: &[usize]| column_of(py, values.iter().copied());
    if let Some(chosen) = turns.chosen() {
        tables.set_item("turns", column(&chosen.numbers)?)?;
        tables.set_item("num_turns", column(&[chosen.total])?)?;
    }
    let (pieces, offsets) = assembly.piece_table();
    tables.set_item("turn_prompt_lens", column(turns.prompt_lens())?)?;
    tables.set_item("turn_response_lens", column(turns.response_lens())?)?;
    tables.set_item("source", sources_of(py, assembly)?)?;
    tables.set_item("prompt_lens", rows_of(py, assembly, |row| row.prompt_len)?)?;
    tables.set_item("response_lens", rows_of(py, assembly, |row| row.response_len)?)?;
    let is_padding = |row: &Row| usize::from(row.is_padding);
    tables.set_item("is_padding", rows_of(py, assembly, is_padding)?)?;
    tables.set_item("piece_offsets", column(offsets)?)?;
    set_table(tables, "pieces", pieces, |piece| {
        let trains = usize::from(piece.trains);
        [piece.turn, piece.from, piece.start, piece.len, trains]
    })
}

/// Read the tables of turns and rows, checked.
///
/// # Errors
/// Tables that are missing or invalid.
pub fn assembly(tables: &Bound<PyDict>) -> Result<(Turns, Assembly)> {
    let prompt_lens = column(tables, "turn_prompt_lens")?;
    let chosen = chosen(tables, prompt_lens.len())?.map(Arc::new);
    let turns = Turns::among(prompt_lens, column(tables, "turn_response_lens")?, chosen)?;
    let source = copied(&array::<Ix1>(tables, "source")?)?;
    check_room(source.len().max(turns.count()))?;
    let is_padding = column(tables, "is_padding")?;
    let prompt_lens = column(tables, "prompt_lens")?;
    let response_lens = column(tables, "response_lens")?;
    if source.iter().any(|&turn| turn < -1) || is_padding.iter().any(|&flag| flag > 1) {
        let reason = "source must hold turns or -1, and is_padding 0 or 1";
        return Err(Core::InvalidPlan(reason.to_owned()).into());
    }
    let lens = [prompt_lens.len(), response_lens.len(), is_padding.len()];
    if lens != [source.len(); 3] {
        let reason = "source, prompt_lens, response_lens and is_padding must be of one length";
        return Err(Core::InvalidPlan(reason.to_owned()).into());
    }
    let rows = (0..source.len()).map(|row| Row {
        source: usize::try_from(source[row]).ok(),
        prompt_len: prompt_lens[row],
        response_len: response_lens[row],
        is_padding: is_padding[row] != 0,
    });
    let pieces: Vec<[_; 5]> = rows_of_table(tables, "pieces")?;
    if let Some(piece) = pieces.iter().position(|[.., trains]| *trains > 1) {
        let reason = format!("trains of piece {piece} must be 0 or 1");
        return Err(Core::InvalidPlan(reason).into());
    }
    let pieces = pieces.into_iter().map(|[turn, from, start, len, trains]| Piece {
        turn,
        from,
        start,
        len,
        trains: trains != 0,
    });
    let offsets = column(tables, "piece_offsets")?;
    let assembly = Assembly::new(gathered(rows)?, gathered(pieces)?, offsets)?;
    assembly.check_turns(&turns)?;
    Ok((turns, assembly))
}

/// The numbers of these turns, if they are not all of the input.
fn chosen(tables: &Bound<PyDict>, count: usize) -> Result<Option<Chosen>> {
    if !tables.contains("turns")? {
        return Ok(None);
    }
    let (numbers, total) = (column(tables, "turns")?, column(tables, "num_turns")?);
    let [total] = total[..] else {
        return Err(Core::InvalidPlan("num_turns must be one number".to_owned()).into());
    };
    let is_rising = numbers.is_sorted_by(|a, b| a < b);
    let chosen = Chosen { numbers, total };
    if !is_rising || !chosen.is_part() || chosen.numbers.len() != count {
        let reason = "turns must rise to below num_turns, with one for each length";
        return Err(Core::InvalidPlan(reason.to_owned()).into());
    }
    Ok(Some(chosen))
}

/// A table as an owned array with the given number of dimensions: the input may be misaligned, or
/// may change.
pub fn array<'py, D: Dimension>(
    tables: &Bound<'py, PyDict>,
    name: &str,
) -> Result<PyReadonlyArray<'py, i64, D>> {
    let invalid = |reason: &str| Core::InvalidPlan(format!("{name} {reason}"));
    let table = tables.get_item(name)?.ok_or_else(|| invalid("is missing"))?;
    let py = tables.py();
    let table = py.import("fastcollate.common.arrays")?.call_method1("read_array", (table,))?;
    let kind: char = table.getattr("dtype")?.getattr("kind")?.extract()?;
    if kind != 'i' {
        return Err(invalid("must hold signed integers").into());
    }
    let copy = table.call_method1("astype", ("int64",))?;
    let array = copy.extract::<PyReadonlyArray<i64, D>>();
    Ok(array.map_err(|_| invalid("has another number of dimensions than to_dict gives it"))?)
}

/// A table of one column.
///
/// # Errors
/// A table that is missing, has other dimensions or types, or holds a negative number.
pub fn column(tables: &Bound<PyDict>, name: &str) -> Result<Vec<usize>> {
    usizes(name, &array::<Ix1>(tables, name)?)
}

/// The numbers of an array.
///
/// # Errors
/// A negative number.
pub fn usizes(name: &str, array: &PyReadonlyArray<i64, Ix1>) -> Result<Vec<usize>> {
    let values = array.as_array();
    if let Some(&negative) = values.iter().find(|&&value| value < 0) {
        to_usize(name, negative)?;
    }
    let found = gathered(values.iter().map(|&value| value.unsigned_abs() as usize))?;
    poll_after(array.py(), found.len())?;
    Ok(found)
}

/// The rows of a table of `N` columns.
///
/// # Errors
/// As [`column`].
pub fn rows_of_table<const N: usize>(
    tables: &Bound<PyDict>,
    name: &str,
) -> Result<Vec<[usize; N]>> {
    let array = array::<Ix2>(tables, name)?;
    let array = array.as_array();
    if array.ncols() != N {
        let reason = format!("{name} has {} columns, but must have {N}", array.ncols());
        return Err(Core::InvalidPlan(reason).into());
    }
    let row = |row: ArrayView1<i64>| {
        let mut values = [0; N];
        for (to, &value) in values.iter_mut().zip(row) {
            *to = to_usize(name, value)?;
        }
        Ok(values)
    };
    try_gathered(array.rows().into_iter().map(row))
}

fn to_usize(name: &str, value: i64) -> Result<usize> {
    let negative = |_| Core::InvalidPlan(format!("{name} holds the negative number {value}"));
    Ok(value.try_into().map_err(negative)?)
}

/// The columns of a segment in the table.
pub fn columns_of(segment: &Segment) -> [usize; 5] {
    let Segment { row, from, len, dst_row, dst_col } = *segment;
    [row, from, len, dst_row, dst_col]
}

/// Store a grid in tables.
pub fn set_grid(tables: &Bound<PyDict>, name: &str, grid: &Grid) -> Result<()> {
    let shape = column_of(tables.py(), [grid.rows(), grid.width()])?;
    tables.set_item(format!("{name}_shape"), shape)?;
    set_table(tables, &format!("{name}_segments"), grid.segments(), columns_of)
}

/// The grid of tables.
pub fn grid(tables: &Bound<PyDict>, name: &str) -> Result<Grid> {
    let shape_name = format!("{name}_shape");
    let shape = column(tables, &shape_name)?;
    let [rows, width] = shape[..] else {
        return Err(Core::InvalidPlan(format!("{shape_name} must be (rows, width)")).into());
    };
    let segments = rows_of_table(tables, &format!("{name}_segments"))?
        .into_iter()
        .map(|[row, from, len, dst_row, dst_col]| Segment { row, from, len, dst_row, dst_col });
    Ok(Grid::new(rows, width, gathered(segments)?)?)
}

/// The layout of bins, if the tables have one.
pub fn packing(tables: &Bound<PyDict>) -> Result<Option<BinLayout>> {
    if !tables.contains("packing")? {
        return Ok(None);
    }
    let options = column(tables, "packing")?;
    let packing = match options[..] {
        [multiple_of, shift, padding_as] => SHIFTS
            .at(shift)
            .zip(PADDING_AS.at(padding_as))
            .map(|(shift, padding_as)| BinLayout { multiple_of, shift, padding_as }),
        _ => None,
    };
    let unknown =
        || Core::InvalidPlan("packing must be (multiple_of, shift, padding_as)".to_owned());
    Ok(Some(packing.ok_or_else(unknown)?))
}
