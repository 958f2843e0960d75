//! Fields: how their values are read, what their rows are made of and where they go.

use fastcollate::plan::merge::Merge;
use fastcollate::plan::{Align, Assembly, Grid, Layout, Placement, Turns};
use fastcollate::{Check, Column, Element, Error as Core};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::error::{Error, Result, caught};
use crate::ingest::{DecodeExact, Rows};
use crate::job::{Filling, Number};
use crate::memory::filled;
use crate::output::Dtype;

/// What the rows of a field belong to.
#[derive(Clone, Copy, PartialEq)]
enum Aligned {
    /// One value per response token.
    Response,
    /// One value per token.
    Sequence,
    /// Routes of tokens through experts: of a row's tokens, the first so many have them.
    Experts,
    /// One value per row.
    Row,
}

/// How a field is read and written. Made once for a field, not once a call.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct FieldSpec {
    /// The output's key.
    #[pyo3(get)]
    key: String,
    /// The argument's name, for errors.
    name: String,
    aligned: Aligned,
    /// Whether a token has one float value, as in the fields that every batch can have.
    is_plain: bool,
    /// Whether one number per row is accepted too; it lands on the last response token.
    per_row: bool,
    /// Whether NaN is an error.
    refuses_nan: bool,
    /// Whether a row may have any length up to the widest response, right-aligned there; in packed
    /// batches up to its own response, of which it has the last tokens.
    any_length: bool,
    filling: (Number, Number),
    /// How many experts there are, if that is known.
    num_experts: Option<i64>,
    /// The output's dtype; none where the largest index decides.
    dtype: Option<Dtype>,
}

#[pymethods]
impl FieldSpec {
    #[new]
    #[pyo3(signature = (
        key, name, align="response", plain=false, per_row=false, refuses_nan=false, any_length=false,
        fill=Number::Int(0), gap_fill=Number::Int(0), num_experts=None, dtype=Some("float32")
    ))]
    #[allow(clippy::too_many_arguments, reason = "all but two have defaults")]
    fn new(
        key: String,
        name: String,
        align: &str,
        plain: bool,
        per_row: bool,
        refuses_nan: bool,
        any_length: bool,
        fill: Number,
        gap_fill: Number,
        num_experts: Option<i64>,
        dtype: Option<&str>,
    ) -> PyResult<Self> {
        let mut spec = Self {
            key,
            name,
            aligned: match align {
                "response" => Aligned::Response,
                "sequence" => Aligned::Sequence,
                "experts" => Aligned::Experts,
                "row" => Aligned::Row,
                _ => {
                    return Err(PyValueError::new_err(format!(
                        "align is '{align}'; pass 'response' or 'sequence'"
                    )));
                }
            },
            is_plain: plain,
            per_row,
            refuses_nan,
            any_length,
            filling: (fill, gap_fill),
            num_experts,
            dtype: None,
        };
        spec.set_dtype(dtype)?;
        Ok(spec)
    }

    /// Name of the output's dtype; none where the largest index decides.
    #[getter]
    fn dtype(&self) -> Option<&'static str> {
        self.dtype.map(Dtype::name)
    }

    /// What the rows belong to.
    #[getter]
    fn align(&self) -> &'static str {
        match self.aligned {
            Aligned::Response => "response",
            Aligned::Sequence => "sequence",
            Aligned::Experts => "experts",
            Aligned::Row => "row",
        }
    }

    /// What padding holds.
    #[getter]
    fn fill(&self) -> Number {
        self.filling.0
    }

    /// One row's values, the `index`th of the field, as a compact array of their own.
    ///
    /// Floats are kept in float32, which all narrower outputs are rounded from, or in float64.
    fn pack<'py>(&self, row: &Bound<'py, PyAny>, index: usize) -> Result<Bound<'py, PyAny>> {
        let check = self.check_of_values();
        let (name, has_trailing) = (&self.name, !self.is_plain);
        match self.dtype.unwrap_or(Dtype::I32) {
            Dtype::Bool => packed::<bool>(name, row, index, has_trailing, check),
            Dtype::U8 => packed::<u8>(name, row, index, has_trailing, check),
            Dtype::I16 => packed::<i16>(name, row, index, has_trailing, check),
            Dtype::I32 => packed::<i32>(name, row, index, has_trailing, check),
            Dtype::I64 => packed::<i64>(name, row, index, has_trailing, check),
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => {
                packed::<f32>(name, row, index, has_trailing, check)
            }
            Dtype::F64 => packed::<f64>(name, row, index, has_trailing, check),
        }
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let spec = slf.get();
        let arguments = (
            &spec.key,
            &spec.name,
            spec.align(),
            spec.is_plain,
            spec.per_row,
            spec.refuses_nan,
            spec.any_length,
            spec.filling.0,
            spec.filling.1,
            spec.num_experts,
            spec.dtype(),
        );
        Ok((slf.get_type(), arguments.into_pyobject(slf.py())?))
    }

    /// The same field as an output of another dtype.
    fn with_dtype(&self, dtype: &str) -> PyResult<Self> {
        let mut spec = Self {
            key: self.key.clone(),
            name: self.name.clone(),
            ..*self
        };
        spec.set_dtype(Some(dtype))?;
        Ok(spec)
    }
}

/// What a field's rows are made of and where they lie, where that differs from the batch's plan.
pub struct FieldPlan {
    pub assembly: Option<Assembly>,
    pub grid: Option<Grid>,
    /// Where routes were captured, if the field holds routes.
    pub captured: Option<Grid>,
    pub filling: Filling,
    pub dtype: Dtype,
}

/// What a batch is a part of.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// All turns that there are.
    pub turns: &'a Turns,
    /// All rows that they make.
    pub step: &'a Assembly,
    /// The rows that are written.
    pub batch: &'a Assembly,
}

impl FieldSpec {
    /// The output's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether rows of turns may be one number, which merging has to make one of.
    pub fn may_be_numbers(&self) -> bool {
        self.per_row
    }

    /// Merge the field's numbers, if each turn has one, and count the values that are not 0 on tokens
    /// that realigning masked.
    ///
    /// # Errors
    /// Rows of wrong lengths, and numbers that would be dropped.
    pub fn merge(&self, rows: &mut Rows, merge: &Merge) -> Result<usize> {
        let name = &self.name;
        if let Some(mut numbers) = rows.numbers() {
            merge.merge_numbers(name, &mut numbers)?;
            let masked = merge.count_masked_numbers(&numbers);
            rows.set_numbers(numbers);
            return Ok(masked);
        }
        merge.turns.check_response_lens(name, &rows.lens())?;
        merge.count_masked(rows)
    }

    /// Whether each row of the output is one value.
    pub fn is_per_row(&self) -> bool {
        self.aligned == Aligned::Row
    }

    /// Take the field's values.
    ///
    /// # Errors
    /// What is no field of so many rows, and rows that cannot hold the output's kind of numbers.
    pub fn read<'py>(&self, values: &Bound<'py, PyAny>, turns: &Turns) -> Result<Rows<'py>> {
        let name = &self.name;
        let check = self.check_of_values();
        let check_count = |rows| Ok(turns.check_count(name, rows)?);
        match self.dtype {
            Some(Dtype::F64) => self.read_as::<f64>(values, check, check_count),
            Some(dtype) if dtype.is_float() => self.read_as::<f32>(values, check, check_count),
            _ => self.read_as::<i64>(values, check, check_count),
        }
    }

    /// Take the field's values as numbers of a type.
    fn read_as<'py, T: Element>(
        &self,
        values: &Bound<'py, PyAny>,
        check: Check,
        check_count: impl Fn(usize) -> Result<()>,
    ) -> Result<Rows<'py>> {
        let name = &self.name;
        if self.per_row
            && let Some(rows) = Rows::one_number_each::<T>(name, values, check, &check_count)?
        {
            return Ok(rows);
        }
        let rows = match self.aligned {
            Aligned::Row => Rows::one_token_each::<T>(name, values, &check_count),
            _ if self.is_plain => Rows::new::<T>(name, values, check),
            _ => Rows::with_trailing::<T>(name, values),
        }?;
        check_count(rows.len())?;
        Ok(rows)
    }

    /// Plan where the rows go, and choose the dtype.
    ///
    /// # Errors
    /// Rows of wrong lengths or dimensions, and dtypes that cannot be.
    pub fn plan(
        &self,
        rows: &mut Rows,
        Step { turns, step, batch }: Step,
        placement: &Placement,
    ) -> Result<FieldPlan> {
        let name = &self.name;
        let (pad, gap) = self.filling;
        let of_values = |assembly, grid| {
            Ok(FieldPlan {
                assembly,
                grid,
                captured: None,
                filling: Filling::Numbers { pad, gap },
                dtype: self.dtype.unwrap_or(Dtype::F32),
            })
        };
        match self.aligned {
            Aligned::Row => {
                let assembly = batch.with_one_each();
                let lens = assembly.rows().iter().map(|row| row.response_len);
                let grid = Grid::aligned(lens, 1, Align::Left)?;
                of_values(Some(assembly), Some(grid))
            }
            Aligned::Response if rows.is_one_number_each() => {
                of_values(Some(batch.on_last_token(name)?), None)
            }
            Aligned::Response if self.any_length && placement.layout == Layout::Packed => {
                let assembly = batch.with_last_tokens(name, &rows.lens())?;
                // A grid of its own: as in SkyRL, what is shifted out of a row may be lost.
                of_values(Some(assembly), Some(placement.response.clone()))
            }
            Aligned::Response if self.any_length && placement.layout == Layout::Jagged => {
                let reason =
                    format!("{name} has rows of any length, which jagged rows cannot hold");
                Err(Core::InvalidPlan(reason).into())
            }
            Aligned::Response if self.any_length => {
                let lens = rows.lens();
                let assembly = batch.with_response_lens(name, &lens)?;
                let width = placement.response.width();
                let grid = Grid::aligned(lens.into_iter(), width, Align::Right)?;
                of_values(Some(assembly), Some(grid))
            }
            Aligned::Response => {
                turns.check_response_lens(name, &rows.lens())?;
                of_values(None, None)
            }
            Aligned::Sequence => {
                let lens = rows.lens();
                turns.check_stream_lens(name, &lens, false)?;
                let assembly = batch.with_streams(&lens, true);
                of_values(Some(assembly), Some(placement.sequence.clone()))
            }
            Aligned::Experts => self.plan_experts(rows, Step { turns, step, batch }, placement),
        }
    }

    fn plan_experts(
        &self,
        rows: &mut Rows,
        Step { turns, step, batch }: Step,
        placement: &Placement,
    ) -> Result<FieldPlan> {
        let name = &self.name;
        let topk = match *rows.trailing() {
            [_, topk] if topk > 0 => topk,
            _ => return Err(PyValueError::new_err(format!(
                "{name} has values of shape {:?} per token; pass rows of shape (tokens, layers, topk)",
                rows.trailing()
            ))
            .into()),
        };
        let lens = rows.lens();
        turns.check_stream_lens(name, &lens, true)?;
        // What pads has no routes of its own: those of a copied row would count as real.
        let assembly = batch.with_streams(&lens, false);
        let padding_needs = i64::try_from(topk).unwrap_or(i64::MAX);
        if let Some(num_experts) = self.num_experts.filter(|&count| count < padding_needs) {
            return Err(PyValueError::new_err(format!(
                "num_experts is {num_experts}, but {name} has {topk} different experts per token"
            ))
            .into());
        }
        let limit = match (&self.num_experts, &self.dtype) {
            (Some(num_experts), _) => *num_experts,
            // What does not fit is found when it is read; only negative ones are left to refuse.
            (None, Some(_)) => i64::MAX,
            (None, None) => {
                // Of all rows of the step, so that the ranks agree on the dtype.
                let sources = step.rows().iter().filter_map(|row| row.source);
                let largest = rows.largest(sources)?.unwrap_or(0);
                i64::try_from(largest.saturating_add(1)).unwrap_or(i64::MAX)
            }
        };
        rows.refuse_from(limit);
        let dtype = match (self.dtype, limit.max(padding_needs)) {
            (Some(dtype), _) => dtype,
            (None, ..=0x100) => Dtype::U8,
            (None, ..=0x8000) => Dtype::I16,
            (None, _) => Dtype::I32,
        };
        let captured: Vec<_> = (0..batch.rows().len())
            .map(|row| assembly.pieces(row).iter().map(|piece| piece.len).sum())
            .collect();
        Ok(FieldPlan {
            assembly: Some(assembly),
            grid: Some(placement.sequence.clone()),
            captured: Some(placement.sequence.truncated(&captured)),
            filling: Filling::Indices(topk),
            dtype,
        })
    }

    fn check_of_values(&self) -> Check {
        if self.refuses_nan {
            Check::Number
        } else {
            Check::None
        }
    }

    /// Take the dtype of a name, and check that the parts go together.
    fn set_dtype(&mut self, name: Option<&str>) -> PyResult<()> {
        let key = &self.key;
        let dtypes = match self.aligned {
            Aligned::Experts => Dtype::OF_INDICES,
            _ if self.is_plain => Dtype::FLOATS,
            _ => Dtype::OF_FIELDS,
        };
        let dtype = name.map(|name| Dtype::of_name(key, name, dtypes));
        self.dtype = dtype.transpose()?;
        let (pad, gap) = self.filling;
        if let Some(dtype) = self.dtype
            && let Some(fill) = [pad, gap].iter().find(|fill| !fill.fits(dtype))
        {
            return Err(PyValueError::new_err(format!(
                "{key} has the fill {fill}, which does not fit {}",
                dtype.name()
            )));
        }
        self.check_experts()
    }

    fn check_experts(&self) -> PyResult<()> {
        let Some(count) = self.num_experts else {
            return Ok(());
        };
        let key = &self.key;
        let problem = match self.dtype.unwrap_or(Dtype::I32) {
            _ if count < 1 => "pass a number from 1 on".to_owned(),
            dtype if Number::Int(count - 1).fits(dtype) => return Ok(()),
            dtype => format!("but {} has no indices for so many", dtype.name()),
        };
        let message = format!("num_experts of {key} is {count}; {problem}");
        Err(PyValueError::new_err(message))
    }
}

/// One row of token ids, the `index`th of a field, as an array of its own: of int32 if they fit, else
/// of int64.
#[pyfunction]
pub fn pack_ids<'py>(
    name: &str,
    row: &Bound<'py, PyAny>,
    index: usize,
) -> Result<Bound<'py, PyAny>> {
    match packed::<i32>(name, row, index, false, Check::None) {
        Err(Error::Core(Core::DoesNotFit { .. })) => {
            packed::<i64>(name, row, index, false, Check::None)
        }
        result => result,
    }
}

/// One row's values as an array of their own.
fn packed<'py, T: DecodeExact + numpy::Element>(
    name: &str,
    row: &Bound<'py, PyAny>,
    index: usize,
    allows_trailing: bool,
    check: Check,
) -> Result<Bound<'py, PyAny>> {
    let rows = Rows::single::<T>(name, index, row, allows_trailing, check)?;
    let tokens = rows.lens()[0];
    let mut values = filled(tokens * rows.inner(), |_| T::ZERO)?;
    rows.read(0, 0, &mut values)?;
    let array = PyArray1::from_vec(row.py(), values);
    if rows.trailing().is_empty() {
        return Ok(array.into_any());
    }
    let shape: Vec<_> = [&[tokens], rows.trailing()].concat();
    Ok(array.reshape(shape)?.into_any())
}

impl<'py> IntoPyObject<'py> for Number {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Int(int) => int.into_bound_py_any(py),
            Self::Float(float) => float.into_bound_py_any(py),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Number {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match caught(object.py(), object.extract::<i64>())? {
            Some(int) => Ok(Self::Int(int)),
            None => object.extract::<f64>().map(Self::Float),
        }
    }
}
