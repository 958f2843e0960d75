//! Fields: how their values are read, what their rows are made of and where they go.

use fastcollate::batch::{FieldKind, FieldSpec as Spec, Number};
use fastcollate::plan::merge::Merge;
use fastcollate::plan::{Align, Assembly, Grid, Layout, Placement, Turns};
use fastcollate::{Check, Column, Dtype, Element, Error as Core};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple, PyType};

use crate::error::{Result, caught};
use crate::ingest::Rows;
use crate::job::Filling;

/// How a field is read and written. Made once for a field, not once a call.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct FieldSpec(pub Spec);

/// The kinds of fields by their names, without what is known of experts.
const KINDS: [(FieldKind, &str); 6] = [
    (FieldKind::Response, "response"),
    (FieldKind::Sequence, "sequence"),
    (FieldKind::Experts { count: None }, "experts"),
    (FieldKind::Row, "row"),
    (FieldKind::Object { is_joined: false }, "object"),
    (FieldKind::Object { is_joined: true }, "joined"),
];

#[pymethods]
impl FieldSpec {
    #[new]
    #[pyo3(signature = (
        key, name, align="response", plain=false, per_row=false, refuses_nan=false, any_length=false,
        fill=PyNumber::ZERO, gap_fill=PyNumber::ZERO, num_experts=None, dtype=Some("float32")
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
        fill: PyNumber,
        gap_fill: PyNumber,
        num_experts: Option<i64>,
        dtype: Option<&str>,
    ) -> Result<Self> {
        let kind = match KINDS.iter().find(|(_, other)| *other == align) {
            Some((FieldKind::Experts { .. }, _)) => FieldKind::Experts { count: num_experts },
            Some((kind, _)) => *kind,
            None => {
                return Err(PyValueError::new_err(format!(
                    "align is '{align}'; pass 'response' or 'sequence'"
                ))
                .into());
            }
        };
        let spec = Spec {
            key,
            name,
            kind,
            is_plain: plain,
            per_row,
            refuses_nan,
            any_length,
            fill: fill.0,
            gap_fill: gap_fill.0,
            dtype: None,
        };
        Self(spec).with_dtype(dtype)
    }

    /// The output's key.
    #[getter]
    fn key(&self) -> &str {
        &self.0.key
    }

    /// Name of the output's dtype; none where the largest index decides.
    #[getter]
    fn dtype(&self) -> Option<&'static str> {
        self.0.dtype.map(Dtype::name)
    }

    /// What the rows hold.
    #[getter]
    fn align(&self) -> &'static str {
        let is_like = |(kind, _): &&(FieldKind, _)| match (kind, self.0.kind) {
            (FieldKind::Experts { .. }, FieldKind::Experts { .. }) => true,
            (kind, own) => *kind == own,
        };
        KINDS.iter().find(is_like).map_or("", |(_, name)| name)
    }

    /// Whether values are read and written here, and not kept by the caller.
    #[getter]
    fn is_written(&self) -> bool {
        !matches!(self.0.kind, FieldKind::Object { .. })
    }

    /// Read a number of the row of that index.
    fn number(&self, number: Bound<PyAny>, index: usize) -> Result<f64> {
        let row = PyList::new(number.py(), [number])?;
        let check = self.0.check();
        let row = Rows::single::<f64>(&self.0.name, index, row.as_any(), false, check)?;
        let mut numbers = [0.0];
        row.read(0, 0, &mut numbers)?;
        Ok(numbers[0])
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let spec = &slf.get().0;
        let num_experts = match spec.kind {
            FieldKind::Experts { count } => count,
            _ => None,
        };
        let arguments = (
            &spec.key,
            &spec.name,
            slf.get().align(),
            spec.is_plain,
            spec.per_row,
            spec.refuses_nan,
            spec.any_length,
            PyNumber(spec.fill),
            PyNumber(spec.gap_fill),
            num_experts,
            slf.get().dtype(),
        );
        let arguments = arguments.into_pyobject(slf.py())?;
        Ok((slf.get_type(), arguments))
    }

    /// The same field as an output of another dtype; none where the largest index decides.
    fn with_dtype(&self, dtype: Option<&str>) -> Result<Self> {
        let dtype = dtype.map(|name| Dtype::of_name(&self.0.key, name, self.0.dtypes()));
        let spec = Spec {
            dtype: dtype.transpose()?,
            ..self.0.clone()
        };
        Ok(Self(spec.checked()?))
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
    /// Whether rows of turns may be one number, which merging has to make one of.
    pub fn may_be_numbers(&self) -> bool {
        self.0.per_row
    }

    /// Merge the field's numbers, if each turn has one, and count the values that are not 0 on tokens
    /// that realigning masked.
    ///
    /// # Errors
    /// Rows of wrong lengths, and numbers that would be dropped.
    pub fn merge(&self, rows: &mut Rows, merge: &Merge) -> Result<usize> {
        let name = &self.0.name;
        if let Some(mut numbers) = rows.numbers() {
            merge.merge_numbers(name, &mut numbers)?;
            let masked = merge.count_masked_numbers(&numbers);
            rows.set_numbers(numbers);
            return Ok(masked);
        }
        merge.turns.check_response_lens(name, &rows.lens())?;
        merge.count_masked(rows)
    }

    /// Take the field's values.
    ///
    /// # Errors
    /// What is no field of so many rows, and rows that cannot hold the output's kind of numbers.
    pub fn read<'py>(&self, values: &Bound<'py, PyAny>, turns: &Turns) -> Result<Rows<'py>> {
        let name = &self.0.name;
        let check = self.0.check();
        let check_count = |rows| Ok(turns.check_count(name, rows)?);
        match self.0.dtype {
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
        let name = &self.0.name;
        if let FieldKind::Object { .. } = self.0.kind {
            check_count(values.len()?)?;
            return Ok(Rows::of_parts(name, 0, Vec::new(), Vec::new(), Vec::new()));
        }
        if self.0.per_row
            && let Some(rows) = Rows::one_number_each::<T>(name, values, check, &check_count)?
        {
            return Ok(rows);
        }
        let rows = match self.0.kind {
            FieldKind::Row => Rows::one_token_each::<T>(name, values, &check_count),
            _ if self.0.is_plain => Rows::new::<T>(name, values, check),
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
    ) -> Result<Option<FieldPlan>> {
        let name = &self.0.name;
        let (pad, gap) = (self.0.fill, self.0.gap_fill);
        let of_values = |assembly, grid| {
            Ok(Some(FieldPlan {
                assembly,
                grid,
                captured: None,
                filling: Filling::Numbers { pad, gap },
                dtype: self.0.dtype.unwrap_or(Dtype::F32),
            }))
        };
        match self.0.kind {
            FieldKind::Row => {
                let assembly = batch.with_one_each();
                let lens = assembly.rows().iter().map(|row| row.response_len);
                let grid = Grid::aligned(lens, 1, Align::Left)?;
                of_values(Some(assembly), Some(grid))
            }
            FieldKind::Response if rows.is_one_number_each() => {
                of_values(Some(batch.on_last_token(name)?), None)
            }
            FieldKind::Response if self.0.any_length && placement.layout == Layout::Packed => {
                let assembly = batch.with_last_tokens(name, &rows.lens())?;
                // A grid of its own: as in SkyRL, what is shifted out of a row may be lost.
                of_values(Some(assembly), Some(placement.response.clone()))
            }
            FieldKind::Response if self.0.any_length && placement.layout == Layout::Jagged => {
                let reason =
                    format!("{name} has rows of any length, which jagged rows cannot hold");
                Err(Core::InvalidPlan(reason).into())
            }
            FieldKind::Response if self.0.any_length => {
                let lens = rows.lens();
                let assembly = batch.with_response_lens(name, &lens)?;
                let width = placement.response.width();
                let grid = Grid::aligned(lens.into_iter(), width, Align::Right)?;
                of_values(Some(assembly), Some(grid))
            }
            FieldKind::Response => {
                turns.check_response_lens(name, &rows.lens())?;
                of_values(None, None)
            }
            FieldKind::Sequence => {
                let lens = rows.lens();
                turns.check_stream_lens(name, &lens, false)?;
                let assembly = batch.with_streams(&lens, true);
                of_values(Some(assembly), Some(placement.sequence.clone()))
            }
            FieldKind::Experts { count } => {
                let step = Step { turns, step, batch };
                self.plan_experts(count, rows, step, placement).map(Some)
            }
            FieldKind::Object { .. } => Ok(None),
        }
    }

    fn plan_experts(
        &self,
        num_experts: Option<i64>,
        rows: &mut Rows,
        Step { turns, step, batch }: Step,
        placement: &Placement,
    ) -> Result<FieldPlan> {
        let name = &self.0.name;
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
        if let Some(num_experts) = num_experts.filter(|&count| count < padding_needs) {
            return Err(PyValueError::new_err(format!(
                "num_experts is {num_experts}, but {name} has {topk} different experts per token"
            ))
            .into());
        }
        let limit = match (num_experts, self.0.dtype) {
            (Some(num_experts), _) => num_experts,
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
        let dtype = match (self.0.dtype, limit.max(padding_needs)) {
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
}

/// A number of Python's.
#[derive(Clone, Copy)]
pub struct PyNumber(pub Number);

impl PyNumber {
    const ZERO: Self = Self(Number::Int(0));
}

impl<'py> IntoPyObject<'py> for PyNumber {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.0 {
            Number::Int(int) => int.into_bound_py_any(py),
            Number::Float(float) => float.into_bound_py_any(py),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for PyNumber {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let number = match caught(object.py(), object.extract::<i64>())? {
            Some(int) => Number::Int(int),
            None => Number::Float(object.extract()?),
        };
        Ok(Self(number))
    }
}
