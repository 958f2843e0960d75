//! Arrow arrays of lists, by the PyCapsule interface: NumPy views of the memory they lie in.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, GenericListViewArray, OffsetSizeTrait, make_array, new_empty_array,
};
use arrow_data::transform::MutableArrayData;
use arrow_schema::{ArrowError, DataType};
use numpy::ndarray::ArrayViewD;
use numpy::{Element, PyArray1, PyArrayDyn, PyArrayMethods, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arrow_import::Source;
use super::reader::no_memory_for;
use crate::error::{Error, Result};

/// Rows that lie behind one another in one array.
pub struct Chunk<'py> {
    /// A read-only array, (tokens, *trailing). Its base keeps Arrow's memory alive.
    pub values: Bound<'py, PyUntypedArray>,
    /// Where rows begin in `values`, and their end.
    pub offsets: Vec<usize>,
}

/// The rows of an Arrow array, or of each chunk of a chunked one (at least one, maybe empty);
/// `None` if the object is not Arrow's. A table of one column is that column.
///
/// # Errors
/// `TypeError` if they are not lists of numbers, `ValueError` naming the row for nulls, and what
/// the object's own methods raise.
pub fn chunks<'py>(object: &Bound<'py, PyAny>, place: &str) -> Result<Option<Vec<Chunk<'py>>>> {
    let py = object.py();
    let Some(source) = Source::open(object, place)? else {
        return Ok(None);
    };
    let data_type = source.data_type.clone();
    check_type(&data_type, place)?;
    let mut arrays = source.arrays(py, place)?;
    if arrays.is_empty() {
        arrays.push(new_empty_array(&data_type));
    }
    let mut first_row = 0;
    let mut chunks = Vec::with_capacity(arrays.len());
    for array in arrays {
        let rows = Rows {
            place,
            first: first_row,
        };
        first_row += array.len();
        chunks.push(rows.chunk(py, &array)?);
    }
    Ok(Some(chunks))
}

/// Whether an object is one Arrow array, of which the items are lists.
///
/// To ask it for its first item instead would be to trust its offsets: Arrow's own library ends the
/// process where they do not fit.
///
/// # Errors
/// What the object's own methods raise.
pub fn is_array_of_lists(object: &Bound<PyAny>, place: &str) -> Result<bool> {
    if !object
        .get_type()
        .hasattr(intern!(object.py(), "__arrow_c_array__"))?
    {
        return Ok(false);
    }
    let source = Source::open(object, place)?;
    Ok(source.is_some_and(|source| source.data_type.is_nested()))
}

/// Check that arrays of a type can be imported: lists of numbers, however nested, or a table of one
/// such column.
fn check_type(data_type: &DataType, place: &str) -> Result<()> {
    let column = match data_type {
        DataType::Struct(fields) => match &fields[..] {
            [field] => field.data_type(),
            fields => {
                return Err(Error::Kind {
                    place: place.to_owned(),
                    found: format!("a table of {} columns", fields.len()),
                    expected: "pass one of them",
                });
            }
        },
        data_type => data_type,
    };
    let mut item = column;
    while let DataType::List(field)
    | DataType::LargeList(field)
    | DataType::ListView(field)
    | DataType::LargeListView(field)
    | DataType::FixedSizeList(field, _) = item
    {
        item = field.data_type();
    }
    let is_number = item.is_integer() || item.is_floating() || *item == DataType::Boolean;
    if column.is_nested() && is_number {
        return Ok(());
    }
    Err(wrong_type(place, column))
}

fn wrong_type(place: &str, data_type: &DataType) -> Error {
    Error::Kind {
        place: place.to_owned(),
        found: format!("an Arrow array of type {data_type}"),
        expected: "rows are lists of integers, floats or booleans",
    }
}

/// `chunks` for Python: each chunk's values and int64 offsets.
#[pyfunction]
pub fn arrow_chunks<'py>(
    object: &Bound<'py, PyAny>,
    place: &str,
) -> Result<Option<Vec<Bound<'py, PyTuple>>>> {
    let py = object.py();
    let Some(chunks) = chunks(object, place)? else {
        return Ok(None);
    };
    let pair = |chunk: Chunk<'py>| {
        let offsets = chunk.offsets.iter().map(|&offset| offset as i64);
        PyTuple::new(
            py,
            [
                chunk.values.into_any(),
                PyArray1::from_iter(py, offsets).into_any(),
            ],
        )
    };
    Ok(Some(chunks.into_iter().map(pair).collect::<PyResult<_>>()?))
}

fn invalid(place: &str, error: &ArrowError) -> Error {
    Error::Arrow {
        place: place.to_owned(),
        cause: error.to_string(),
    }
}

/// What errors are to say of a chunk: its field, and the row it begins with.
struct Rows<'a> {
    place: &'a str,
    first: usize,
}

impl Rows<'_> {
    fn chunk<'py>(&self, py: Python<'py>, array: &ArrayRef) -> Result<Chunk<'py>> {
        // A table has one column.
        let column = { array.as_struct_opt() }.map_or(array, |table| table.column(0));
        if let Some(row) = first_null(array).or_else(|| first_null(column)) {
            return Err(self.null(format!("[{}]", self.first + row)));
        }
        let (values, offsets) = self.lists(column)?;
        let place = |token| {
            let row = offsets.partition_point(|&offset| offset <= token) - 1;
            format!("[{}][{}]", self.first + row, token - offsets[row])
        };
        let values = self.numbers(py, values, column, place)?;
        Ok(Chunk { values, offsets })
    }

    /// The items of all rows, and where rows begin in them: from 0 on, since a slice may begin
    /// anywhere in its child.
    fn lists(&self, array: &ArrayRef) -> Result<(ArrayRef, Vec<usize>)> {
        match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                self.cut(list.values(), list.value_offsets())
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                self.cut(list.values(), list.value_offsets())
            }
            DataType::ListView(_) => self.viewed(array.as_list_view::<i32>()),
            DataType::LargeListView(_) => self.viewed(array.as_list_view::<i64>()),
            DataType::FixedSizeList(_, _) => {
                let list = array.as_fixed_size_list();
                let len = usize_of(list.value_length());
                let mut offsets = Vec::new();
                // Rows without items take no memory, so there may be any number of them.
                let count = list.len() + 1;
                { offsets.try_reserve_exact(count) }.map_err(|_| no_memory_for(list.len()))?;
                offsets.extend((0..count).map(|row| row * len));
                Ok((list.values().clone(), offsets))
            }
            _ => Err(wrong_type(self.place, array.data_type())),
        }
    }

    /// A list's child from its first row to its last.
    fn cut<O: OffsetSizeTrait>(
        &self,
        values: &ArrayRef,
        offsets: &[O],
    ) -> Result<(ArrayRef, Vec<usize>)> {
        let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
        // The producer's word is not taken for it: past the child is somebody else's memory.
        if first < O::zero() || last.as_usize() > values.len() || !offsets.is_sorted() {
            let error = ArrowError::InvalidArgumentError(format!(
                "its list offsets fall, or end behind its {} values",
                values.len()
            ));
            return Err(invalid(self.place, &error));
        }
        let (first, last) = (first.as_usize(), last.as_usize());
        let offsets = offsets.iter().map(|offset| offset.as_usize() - first);
        Ok((values.slice(first, last - first), offsets.collect()))
    }

    /// A list view's rows: viewed if they lie in order, else copied into order.
    fn viewed<O: OffsetSizeTrait>(
        &self,
        list: &GenericListViewArray<O>,
    ) -> Result<(ArrayRef, Vec<usize>)> {
        let rows = || list.offsets().iter().zip(list.sizes());
        let len = list.values().len();
        let is_inside = |(from, size): (&O, &O)| {
            *from >= O::zero()
                && *size >= O::zero()
                && from.as_usize().saturating_add(size.as_usize()) <= len
        };
        if !rows().all(is_inside) {
            let error = ArrowError::InvalidArgumentError(format!(
                "one of its list views ends behind its {len} values"
            ));
            return Err(invalid(self.place, &error));
        }
        let mut offsets = vec![0];
        let mut end = 0;
        offsets.extend(rows().map(|(_, size)| {
            end += size.as_usize();
            end
        }));
        let filled = || {
            let begins = rows().zip(&offsets);
            begins.filter(|((_, size), _)| **size > O::zero())
        };
        let first = filled().next().map_or(0, |((from, _), _)| from.as_usize());
        if filled().all(|((from, _), offset)| from.as_usize() == first + offset) {
            return Ok((list.values().slice(first, end), offsets));
        }
        let values = list.values().to_data();
        let mut ordered = MutableArrayData::new(vec![&values], false, end);
        for ((from, size), _) in filled() {
            let copied = ordered.try_extend(0, from.as_usize(), from.as_usize() + size.as_usize());
            copied.map_err(|error| invalid(self.place, &error))?;
        }
        Ok((make_array(ordered.freeze()), offsets))
    }

    /// A NumPy array of the numbers in `values`, where fixed-size lists are trailing dimensions.
    fn numbers<'py>(
        &self,
        py: Python<'py>,
        mut values: ArrayRef,
        array: &ArrayRef,
        place: impl Fn(usize) -> String,
    ) -> Result<Bound<'py, PyUntypedArray>> {
        let mut shape = vec![values.len()];
        // Items of a dimension that belong to one token.
        let mut items = 1;
        loop {
            if let Some(index) = first_null(&values) {
                return Err(self.null(place(index / items)));
            }
            let Some(list) = values.as_fixed_size_list_opt() else {
                break;
            };
            let size = usize_of(list.value_length());
            shape.push(size);
            items = items.saturating_mul(size.max(1));
            values = list.values().clone();
        }
        // As NumPy counts the bytes of an array: without dimensions of nothing.
        let bytes = shape
            .iter()
            .filter(|&&size| size > 0)
            .try_fold(size_of::<u64>(), |bytes, &size| bytes.checked_mul(size));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            let reason = format!("its values of shape {shape:?} are too large");
            return Err(invalid(
                self.place,
                &ArrowError::InvalidArgumentError(reason),
            ));
        }
        macro_rules! view {
            ($($variant:ident: $type:ty;)*) => {
                match values.data_type() {
                    DataType::Boolean => unpacked(py, &values, shape)?,
                    $(DataType::$variant => view::<$type>(py, values, &shape)?,)*
                    _ => return Err(wrong_type(self.place, array.data_type())),
                }
            };
        }
        Ok(view! {
            Int8: Int8Type;
            Int16: Int16Type;
            Int32: Int32Type;
            Int64: Int64Type;
            UInt8: UInt8Type;
            UInt16: UInt16Type;
            UInt32: UInt32Type;
            UInt64: UInt64Type;
            Float16: Float16Type;
            Float32: Float32Type;
            Float64: Float64Type;
        })
    }

    fn null(&self, subscript: String) -> Error {
        Error::Null {
            place: format!("{}{subscript}", self.place),
        }
    }
}

fn first_null(array: &ArrayRef) -> Option<usize> {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0)?;
    nulls.iter().position(|is_valid| !is_valid)
}

/// A fixed-size list's size, which Arrow declares signed and never makes negative.
fn usize_of(size: i32) -> usize {
    usize::try_from(size).unwrap_or(0)
}

/// Keeps Arrow's memory for the NumPy array that has it as its base.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct ArrowMemory(#[expect(dead_code, reason = "kept, not read")] ArrayRef);

/// A read-only NumPy array over the memory of an Arrow array of numbers.
fn view<'py, T>(
    py: Python<'py>,
    array: ArrayRef,
    shape: &[usize],
) -> PyResult<Bound<'py, PyUntypedArray>>
where
    T: ArrowPrimitiveType<Native: Element>,
{
    let numbers = array.as_primitive::<T>().values().clone();
    let items =
        ArrayViewD::from_shape(shape, &numbers[..]).expect("as many numbers as the shape has");
    let owner = Bound::new(py, ArrowMemory(array))?.into_any();
    // SAFETY: `items` lie in a buffer that `owner` shares and never changes: Arrow's memory stays
    // in place until the last array over it is dropped. Nobody writes into it, since the array is
    // made read-only before anybody else has it.
    let view = unsafe { PyArrayDyn::borrow_from_array(&items, owner) };
    read_only(view.as_untyped())
}

/// A NumPy array of Arrow's packed booleans.
fn unpacked<'py>(
    py: Python<'py>,
    array: &ArrayRef,
    shape: Vec<usize>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let booleans = array.as_boolean().values().iter();
    let flat = PyArray1::from_iter(py, booleans);
    read_only(flat.reshape(shape)?.as_untyped())
}

fn read_only<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    let flags = array.getattr(intern!(py, "flags"))?;
    flags.setattr(intern!(py, "writeable"), false)?;
    Ok(array.clone())
}
