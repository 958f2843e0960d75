//! One field of every row, whatever the rows are.

use std::slice;

use fastcollate::{
    Check, Column, Element, Error as Core, Place, Slice, SliceColumn, check_kind, check_values,
    read_slice,
};
use numpy::PyUntypedArray;
use numpy::prelude::*;
use pyo3::exceptions::PyMemoryError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMapping, PyString, PyTuple, PyType};

use super::array::{ArrayInput, ArrayView};
use super::arrow::{self, Chunk};
use super::list::{DecodeExact, read_items};
use super::number::{decode, has_len};
use super::ragged::{self, Parts};
use super::{describe, tensor};
use crate::error::{Error, Result};
use crate::interrupt::in_chunks;

const EXPECTED_FIELD: &str =
    "pass a sequence of rows, a 2-D array or tensor, a Ragged or an Arrow array of lists";
const EXPECTED_ROW: &str = "a row has to be a list or tuple of numbers, or a 1-D array or tensor";
const EXPECTED_ROW_OF_ANY: &str = "a row has to be a list, an array or a tensor of numbers";

/// For fewer rows than these there is memory; asking takes small batches time.
const MANY_ROWS: usize = 1 << 16;

/// Rows between two looks at pending signals.
const POLL_ROWS: usize = 1 << 16;

/// A field: its rows as they were handed in, each kept alive and read where it lies.
pub struct Rows<'py> {
    field: String,
    /// What the first row is called in errors.
    first: usize,
    rows: Vec<Row<'py>>,
    /// Arrays that hold several rows.
    shared: Vec<ArrayView<'py>>,
    /// Dimensions of a token's values.
    trailing: Vec<usize>,
    check: Check,
}

enum Row<'py> {
    /// With its length at the time of the plan.
    List(Bound<'py, PyList>, usize),
    Tuple(Bound<'py, PyTuple>),
    Array(ArrayView<'py>),
    /// Some tokens of a shared array.
    Part {
        array: usize,
        start: usize,
        len: usize,
    },
    /// One number for the whole row.
    Number(f32),
}

impl<'py> Rows<'py> {
    /// Take a field's rows, checking that each can hold values of type `T`.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` naming the field and the first row that cannot be read.
    pub fn new<T: Element>(field: &str, rows: &Bound<'py, PyAny>, check: Check) -> Result<Self> {
        Reader::new(field, false).read(rows)?.checked::<T>(check)
    }

    /// Take a field's rows, which may have more dimensions than one.
    ///
    /// # Errors
    /// As [`Rows::new`], and `ValueError` naming the first row of other dimensions than the rows
    /// before it.
    pub fn with_trailing<T: Element>(field: &str, rows: &Bound<'py, PyAny>) -> Result<Self> {
        Reader::new(field, true)
            .read(rows)?
            .checked::<T>(Check::None)
    }

    /// Take one row alone, which is the `index`th of its field.
    ///
    /// # Errors
    /// As [`Rows::new`].
    pub fn single<T: Element>(
        field: &str,
        index: usize,
        row: &Bound<'py, PyAny>,
        allows_trailing: bool,
        check: Check,
    ) -> Result<Self> {
        let mut reader = Reader::new(field, allows_trailing);
        reader.first = index;
        reader.read_row(0, row.clone())?;
        reader.read_device_rows()?;
        reader.finish().checked::<T>(check)
    }

    /// Take a field with one number per row, each a row of one item; `None` if the first item is a
    /// row itself.
    ///
    /// # Errors
    /// `TypeError` naming the first item that is no number, and what `check_count` says of their
    /// number.
    pub fn one_number_each(
        field: &str,
        numbers: &Bound<'py, PyAny>,
        check: Check,
        check_count: impl Fn(usize) -> Result<()>,
    ) -> Result<Option<Self>> {
        let numbers = numbers_of(field, numbers, check_count)?;
        Ok(numbers.map(|numbers| Self {
            rows: numbers.into_iter().map(Row::Number).collect(),
            check,
            ..Self::empty(field)
        }))
    }

    /// Take an array whose first dimension is the rows, with one token each.
    ///
    /// # Errors
    /// `TypeError` for what is no array of numbers.
    pub fn one_token_each<T: Element>(field: &str, values: &Bound<'py, PyAny>) -> Result<Self> {
        let mut reader = Reader::new(field, true);
        match as_array(values, || field.to_owned())? {
            Some(input) if input.array.ndim() > 0 => {
                let rows = input.array.shape()[0];
                reader.read_parts(input, 1, (0..rows).map(|row| (row, 1)))?;
                reader.finish().checked::<T>(Check::None)
            }
            _ => Err(reader.wrong_kind(values)),
        }
    }

    fn empty(field: &str) -> Self {
        Self {
            field: field.to_owned(),
            first: 0,
            rows: Vec::new(),
            shared: Vec::new(),
            trailing: Vec::new(),
            check: Check::None,
        }
    }

    /// Check that the rows can hold values of type `T`.
    fn checked<T: Element>(mut self, check: Check) -> Result<Self> {
        self.check = check;
        let field = &self.field;
        for array in &self.shared {
            // All of one kind.
            let values = array.values()?.ok_or_else(|| self.moved(0))?;
            check_kind::<T>(field, 0, &values)?;
        }
        for (index, row) in self.rows.iter().enumerate() {
            if let Row::Array(array) = row {
                let values = array.values()?.ok_or_else(|| self.moved(index))?;
                check_kind::<T>(field, self.first + index, &values)?;
            }
        }
        Ok(self)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Number of tokens of every row.
    pub fn lens(&self) -> Vec<usize> {
        self.rows.iter().map(Row::len).collect()
    }

    /// Dimensions of a token's values: none where these are single numbers.
    pub fn trailing(&self) -> &[usize] {
        &self.trailing
    }

    /// Whether each row is one number for all of its tokens.
    pub fn is_one_number_each(&self) -> bool {
        matches!(self.rows.first(), Some(Row::Number(_)))
    }

    /// Number of values of a token.
    pub fn inner(&self) -> usize {
        self.trailing.iter().product()
    }

    /// Ask that values be indices below a limit.
    pub fn refuse_from(&mut self, limit: i64) {
        self.check = Check::Index(limit);
    }

    /// A number that no value exceeds, with as many bits as the largest; none where there is no value.
    ///
    /// # Errors
    /// When an array was moved.
    pub fn largest(&self) -> Result<Option<i128>> {
        let mut largest = None;
        for row in 0..self.len() {
            let bound = self.slice(row)?.and_then(|values| values.upper_bound());
            largest = largest.max(bound);
        }
        Ok(largest)
    }

    /// The column over plain memory, if no row needs the interpreter to be read.
    ///
    /// # Errors
    /// When an array was moved.
    pub fn as_slices(&self) -> Result<Option<SliceColumn<'_>>> {
        let is_plain = self.rows.iter().all(|row| match row {
            Row::Array(array) => !array.is_tensor(),
            Row::Part { array, .. } => !self.shared[*array].is_tensor(),
            Row::Number(_) => true,
            Row::List(..) | Row::Tuple(_) => false,
        });
        if !is_plain {
            return Ok(None);
        }
        let slices = (0..self.len()).filter_map(|row| self.slice(row).transpose());
        let slices = slices.collect::<Result<_>>()?;
        Ok(Some(SliceColumn::new(
            &self.field,
            slices,
            self.inner(),
            self.check,
        )))
    }

    /// A row's values if it is plain memory.
    fn slice(&self, row: usize) -> Result<Option<Slice<'_>>> {
        Ok(match &self.rows[row] {
            Row::Array(array) => Some(array.values()?.ok_or_else(|| self.moved(row))?),
            Row::Part { array, start, len } => {
                let values = self.shared[*array].values()?;
                let values = values.ok_or_else(|| self.moved(row))?;
                let inner = self.inner();
                Some(values.range(start * inner..(start + len) * inner))
            }
            Row::Number(number) => Some(Slice::F32(slice::from_ref(number))),
            Row::List(..) | Row::Tuple(_) => None,
        })
    }

    fn moved(&self, row: usize) -> Error {
        Error::Moved {
            field: self.field.clone(),
            row: self.first + row,
        }
    }
}

impl<T: DecodeExact> Column<T> for Rows<'_> {
    type Error = Error;

    fn row_len(&self, turn: usize) -> usize {
        self.rows[turn].len()
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        in_chunks(from, out, self.inner(), |from, out| {
            self.read_chunk(turn, from, out)
        })
    }
}

impl Rows<'_> {
    fn read_chunk<T: DecodeExact>(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let (field, row) = (&self.field, self.first + turn);
        match &self.rows[turn] {
            Row::List(list, len) => read_items(list, *len, from, out, field, row)?,
            Row::Tuple(tuple) => read_items(tuple, tuple.len(), from, out, field, row)?,
            _ => {
                let values = self.slice(turn)?.expect("all other rows are plain memory");
                read_slice(field, row, &values, self.inner(), from, out)?;
            }
        }
        Ok(check_values(
            field,
            row,
            self.inner(),
            from,
            out,
            self.check,
        )?)
    }
}

impl Row<'_> {
    fn len(&self) -> usize {
        match self {
            Self::List(_, len) | Self::Part { len, .. } => *len,
            Self::Tuple(tuple) => tuple.len(),
            Self::Array(array) => array.tokens(),
            Self::Number(_) => 1,
        }
    }
}

/// What takes the rows of a field, whatever they come as.
struct Reader<'a, 'py> {
    field: &'a str,
    /// What the first row is called in errors.
    first: usize,
    /// Whether a row may have more dimensions than one.
    allows_trailing: bool,
    rows: Vec<Row<'py>>,
    shared: Vec<ArrayView<'py>>,
    /// Dimensions of a token's values, and the row that they were seen in first.
    trailing: Option<(Vec<usize>, usize)>,
    /// Rows that only another device can read.
    on_device: Vec<(usize, Bound<'py, PyAny>)>,
}

impl<'a, 'py> Reader<'a, 'py> {
    fn new(field: &'a str, allows_trailing: bool) -> Self {
        Self {
            field,
            first: 0,
            allows_trailing,
            rows: Vec::new(),
            shared: Vec::new(),
            trailing: None,
            on_device: Vec::new(),
        }
    }

    fn read(mut self, rows: &Bound<'py, PyAny>) -> Result<Rows<'py>> {
        let is_list = rows.is_exact_instance_of::<PyList>();
        if !is_list && self.read_column(rows)? {
            return Ok(self.finish());
        }
        let rows = match tensor::unbound(rows)? {
            Some(rows) => rows,
            None if is_sequence(rows)? => to_list(rows)?,
            None => return Err(self.wrong_kind(rows)),
        };
        self.reserve(rows.len())?;
        for (index, row) in rows.iter().enumerate() {
            self.read_row(index, row)?;
            if index % POLL_ROWS == POLL_ROWS - 1 {
                rows.py().check_signals()?;
            }
        }
        self.read_device_rows()?;
        Ok(self.finish())
    }

    /// Refuse more rows than there is memory for them and their plan, where allocating its tables
    /// would abort.
    fn reserve(&mut self, rows: usize) -> Result<()> {
        let plan = if rows < MANY_ROWS { 0 } else { rows };
        Vec::<[u64; 32]>::new()
            .try_reserve_exact(plan)
            .and_then(|()| self.rows.try_reserve_exact(rows))
            .map_err(|_| {
                PyMemoryError::new_err(format!("no memory for a plan of {rows} rows")).into()
            })
    }

    fn finish(self) -> Rows<'py> {
        Rows {
            first: self.first,
            rows: self.rows,
            shared: self.shared,
            trailing: self
                .trailing
                .map_or_else(Vec::new, |(trailing, _)| trailing),
            ..Rows::empty(self.field)
        }
    }

    /// Take an object that holds all rows in one piece of memory, or few, if it is one.
    fn read_column(&mut self, rows: &Bound<'py, PyAny>) -> Result<bool> {
        if !rows.is_instance_of::<PyUntypedArray>()
            && let Some(parts) = ragged::parts(rows)?
        {
            for Parts {
                values,
                starts,
                lens,
            } in parts
            {
                let values = as_array(&values, || self.field.to_owned())?;
                let values = values.ok_or_else(|| self.wrong_kind(rows))?;
                self.read_parts(values, 1, starts.into_iter().zip(lens))?;
            }
            return Ok(true);
        }
        if !tensor::is_nested(rows)?
            && let Some(input) = as_array(rows, || self.field.to_owned())?
            && !is_objects(&input.array)
        {
            let (count, len) = match *input.array.shape() {
                [] | [_] => return Err(self.wrong_kind(rows)),
                [count, len] => (count, len),
                [count, len, ..] if self.allows_trailing => (count, len),
                _ => {
                    let field = self.field.to_owned();
                    return Err(Error::shape(field, &input.array, EXPECTED_FIELD));
                }
            };
            self.reserve(count)?;
            self.read_parts(input, 2, (0..count).map(|row| (row * len, len)))?;
            return Ok(true);
        }
        if let Some(chunks) = arrow::chunks(rows, self.field)? {
            for Chunk { values, offsets } in chunks {
                let parts = offsets.windows(2).map(|ends| (ends[0], ends[1] - ends[0]));
                self.read_parts(ArrayInput::of_array(values), 1, parts)?;
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Take rows that are stretches (start, len) of one array, whose first dimensions, `leading` of
    /// them, count the tokens.
    fn read_parts(
        &mut self,
        values: ArrayInput<'py>,
        leading: usize,
        parts: impl Iterator<Item = (usize, usize)>,
    ) -> Result<()> {
        let (array, tokens) = self.share(values, leading)?;
        for (start, len) in parts {
            if start.checked_add(len).is_none_or(|end| end > tokens) {
                return Err(Error::Overrun {
                    field: self.field.to_owned(),
                    row: self.rows.len(),
                    start,
                    len,
                    tokens,
                });
            }
            self.rows.push(Row::Part { array, start, len });
        }
        Ok(())
    }

    /// Keep an array of which rows are parts; returns its number and its tokens.
    fn share(&mut self, input: ArrayInput<'py>, leading: usize) -> Result<(usize, usize)> {
        let view = ArrayView::new(input, leading, || self.field.to_owned())?;
        self.check_trailing(self.rows.len(), view.tokens(), view.trailing())?;
        let tokens = view.tokens();
        self.shared.push(view);
        Ok((self.shared.len() - 1, tokens))
    }

    fn read_row(&mut self, index: usize, row: Bound<'py, PyAny>) -> Result<()> {
        let place = || format!("{}[{}]", self.field, self.first + index);
        if self.allows_trailing && is_list_of_rows(&row)? {
            let py = row.py();
            let numpy = py.import(intern!(py, "numpy"))?;
            let array = numpy.call_method1(intern!(py, "array"), (&row,));
            let array = array.map_err(|cause| Error::raised(py, place(), cause))?;
            return self.read_row(index, array);
        }
        let row = match row.cast_into::<PyList>() {
            Ok(list) => {
                let len = list.len();
                self.check_trailing(index, len, &[])?;
                self.rows.push(Row::List(list, len));
                return Ok(());
            }
            Err(error) => error.into_inner(),
        };
        let row = match row.cast_into::<PyTuple>() {
            Ok(tuple) => {
                self.check_trailing(index, tuple.len(), &[])?;
                self.rows.push(Row::Tuple(tuple));
                return Ok(());
            }
            Err(error) => error.into_inner(),
        };
        let is_array = row.is_instance_of::<PyUntypedArray>();
        if !is_array && tensor::is_on_device(&row)? {
            self.on_device.push((index, row));
            // Until all of them are copied at once.
            self.rows.push(Row::Number(0.0));
            return Ok(());
        }
        match as_array(&row, place)? {
            Some(input) if self.is_row(input.array.ndim()) => {
                let view = ArrayView::new(input, 1, place)?;
                self.check_trailing(index, view.tokens(), view.trailing())?;
                self.rows.push(Row::Array(view));
                Ok(())
            }
            Some(input) if input.array.ndim() > 1 => Err(Error::shape(
                place(),
                &input.array,
                "a row has one dimension",
            )),
            _ => Err(Error::Kind {
                place: place(),
                found: describe(&row),
                expected: if self.allows_trailing {
                    EXPECTED_ROW_OF_ANY
                } else {
                    EXPECTED_ROW
                },
            }),
        }
    }

    fn is_row(&self, dimensions: usize) -> bool {
        dimensions == 1 || (dimensions > 1 && self.allows_trailing)
    }

    /// Copy the rows that lie on other devices: one copy for all of a device and dtype.
    fn read_device_rows(&mut self) -> Result<()> {
        let mut rest = std::mem::take(&mut self.on_device);
        while let Some((_, first)) = rest.first() {
            let py = first.py();
            let kind = |row: &Bound<'py, PyAny>| {
                let device = row.getattr(intern!(py, "device"))?;
                Ok::<_, PyErr>((device, row.getattr(intern!(py, "dtype"))?))
            };
            let wanted = kind(first)?;
            let (mut indices, mut tensors) = (Vec::new(), Vec::new());
            let mut others = Vec::new();
            for (index, row) in rest {
                let (device, dtype) = kind(&row)?;
                if device.eq(&wanted.0)? && dtype.eq(&wanted.1)? {
                    indices.push(index);
                    tensors.push(row);
                } else {
                    others.push((index, row));
                }
            }
            let mut parts = Vec::with_capacity(indices.len());
            let mut end = 0;
            for (&index, tensor) in indices.iter().zip(&tensors) {
                let shape: Vec<usize> = tensor.getattr(intern!(py, "shape"))?.extract()?;
                match shape.split_first() {
                    Some((&len, trailing)) if self.is_row(shape.len()) => {
                        self.check_trailing(index, len, trailing)?;
                        parts.push((index, end, len));
                        end += len;
                    }
                    _ => {
                        return Err(Error::Kind {
                            place: format!("{}[{}]", self.field, self.first + index),
                            found: format!("a tensor of shape {shape:?}"),
                            expected: EXPECTED_ROW,
                        });
                    }
                }
            }
            let place = || format!("{}[{}]", self.field, self.first + indices[0]);
            let values = tensor::concatenated(&tensors);
            let values = values.map_err(|cause| Error::raised(py, place(), cause))?;
            self.shared.push(ArrayView::new(values, 1, place)?);
            let array = self.shared.len() - 1;
            for (index, start, len) in parts {
                self.rows[index] = Row::Part { array, start, len };
            }
            rest = others;
        }
        Ok(())
    }

    /// Check that a row's tokens have values of the same shape as those of the rows before. A row
    /// without tokens says nothing of them if it has one dimension.
    fn check_trailing(&mut self, row: usize, tokens: usize, trailing: &[usize]) -> Result<()> {
        if !self.allows_trailing || (tokens == 0 && trailing.is_empty()) {
            return Ok(());
        }
        match &self.trailing {
            None => self.trailing = Some((trailing.to_vec(), row)),
            Some((expected, first)) if expected != trailing => {
                return Err(Core::Trailing {
                    field: self.field.to_owned(),
                    row,
                    found: trailing.to_vec(),
                    first: *first,
                    expected: expected.clone(),
                }
                .into());
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn wrong_kind(&self, rows: &Bound<'py, PyAny>) -> Error {
        Error::Kind {
            place: self.field.to_owned(),
            found: describe(rows),
            expected: EXPECTED_FIELD,
        }
    }
}

/// A field's numbers if it holds one per row.
fn numbers_of(
    field: &str,
    numbers: &Bound<PyAny>,
    check_count: impl Fn(usize) -> Result<()>,
) -> Result<Option<Vec<f32>>> {
    let is_list = numbers.is_exact_instance_of::<PyList>();
    if !is_list && (ragged::is_column(numbers)? || has_rows(numbers)?) {
        return Ok(None);
    }
    if let Some(input) = as_array(numbers, || field.to_owned())? {
        if input.array.ndim() != 1 {
            return Ok(None);
        }
        if !is_objects(&input.array) {
            check_count(input.array.len())?;
            return Ok(Some(numbers_in(field, input)?));
        }
    }
    if !is_sequence(numbers)? {
        return Ok(None);
    }
    if !is_list && arrow::is_array_of_lists(numbers, field)? {
        return Ok(None);
    }
    let is_on_device = match numbers.try_iter()?.next().transpose()? {
        Some(first) if !is_row(field, &first)? => tensor::is_on_device(&first)?,
        _ => return Ok(None),
    };
    let numbers = to_list(numbers)?;
    check_count(numbers.len())?;
    if is_on_device {
        // Copied at once; if torch cannot stack them, they are no numbers of one device.
        let stacked = tensor::stacked(&numbers);
        let place = || format!("{field}[0]");
        let stacked = stacked.map_err(|cause| Error::raised(numbers.py(), place(), cause))?;
        return Ok(Some(numbers_in(field, stacked)?));
    }
    let decode_at = |(row, number): (usize, Bound<PyAny>)| {
        decode(&number, || Place {
            field: field.to_owned(),
            row,
            position: None,
        })
    };
    let values = numbers.iter().enumerate().map(decode_at);
    Ok(Some(values.collect::<Result<_>>()?))
}

/// The numbers of an array of one dimension.
fn numbers_in(field: &str, input: ArrayInput) -> Result<Vec<f32>> {
    let view = ArrayView::new(input, 1, || field.to_owned())?;
    let mut values = vec![0.0; view.tokens()];
    let slice = view.values()?.ok_or_else(|| Error::Moved {
        field: field.to_owned(),
        row: 0,
    })?;
    read_slice(field, 0, &slice, 1, 0, &mut values)?;
    Ok(values)
}

/// Whether an object is a tensor of rows. Asked before its memory is, which may be a copy.
fn has_rows(object: &Bound<PyAny>) -> Result<bool> {
    Ok(tensor::dimensions(object)?.is_some_and(|dimensions| dimensions > 1))
}

/// Whether a row is a list of lists or arrays, one for each token.
fn is_list_of_rows(row: &Bound<PyAny>) -> Result<bool> {
    let first = match (row.cast::<PyList>(), row.cast::<PyTuple>()) {
        (Ok(list), _) => list.get_item(0),
        (_, Ok(tuple)) => tuple.get_item(0),
        _ => return Ok(false),
    };
    // An empty row has no first item, and is none.
    first.map_or(Ok(false), |first| Ok(has_len(&first)?))
}

/// Whether a field's first item can only be a row, not a number.
fn is_row(field: &str, item: &Bound<PyAny>) -> Result<bool> {
    if let Some(dimensions) = tensor::dimensions(item)? {
        return Ok(dimensions > 0);
    }
    match as_array(item, || format!("{field}[0]"))? {
        Some(input) => Ok(input.array.ndim() > 0),
        None => Ok(has_len(item)?),
    }
}

fn is_objects(array: &Bound<PyUntypedArray>) -> bool {
    array.ndim() == 1 && array.dtype().kind() == b'O'
}

/// Anything that is an array, or lends its memory as one: ndarray, tensor, `array.array`.
fn as_array<'py>(
    object: &Bound<'py, PyAny>,
    place: impl Fn() -> String,
) -> Result<Option<ArrayInput<'py>>> {
    static ARRAY_ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = object.py();
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(Some(ArrayInput::of_array(array.clone())));
    }
    if object.is_exact_instance_of::<PyList>() || object.is_exact_instance_of::<PyTuple>() {
        return Ok(None);
    }
    if tensor::is_tensor(object)? {
        let input = tensor::as_array(object);
        return input
            .map(Some)
            .map_err(|cause| Error::raised(py, place(), cause));
    }
    if object.is_instance(ARRAY_ARRAY.import(py, "array", "array")?)? {
        let numpy = py.import(intern!(py, "numpy"))?;
        let array = numpy.call_method1(intern!(py, "asarray"), (object,))?;
        return Ok(array.cast_into().ok().map(ArrayInput::of_array));
    }
    Ok(None)
}

/// Whether an object is a sequence of items, and does not only look like one.
fn is_sequence(object: &Bound<PyAny>) -> Result<bool> {
    if object.is_exact_instance_of::<PyList>() {
        return Ok(true);
    }
    let is_text = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>();
    let has = |method| object.get_type().hasattr(method);
    Ok(!is_text
        && object.cast::<PyMapping>().is_err()
        && has(intern!(object.py(), "__getitem__"))?
        && has(intern!(object.py(), "__len__"))?)
}

/// A sequence as a list of its items.
fn to_list<'py>(sequence: &Bound<'py, PyAny>) -> Result<Bound<'py, PyList>> {
    if let Ok(list) = sequence.cast_exact::<PyList>() {
        return Ok(list.clone());
    }
    let items = sequence.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(sequence.py(), items)?)
}
