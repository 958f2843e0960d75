//! Fields: options and values.

use std::sync::Arc;

use fastcollate::batch::{FieldKind, FieldSpec as Spec, Indices, Layers, OwnToken, Spread};
use fastcollate::plan::{Align, Chosen, Turns};
use fastcollate::{Check, Dtype, Element, Number};
use numpy::PyReadonlyArray1;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::error::{Result, caught};
use crate::names::Names;
use crate::plan::tables::{Column as IntColumn, column_of, usizes};
use crate::rows::{
    DecodeExact, Missing, Part, PyRows, Reader, SomeTokens, counts_of, number_of, values_of,
};

/// Reading and writing options of a field. Made once per field, not per call.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct FieldSpec(pub Spec);

/// Kinds of fields, without the number of experts.
const KINDS: Names<FieldKind> = Names::new(
    "align",
    &[
        (FieldKind::Response, "response"),
        (FieldKind::Cut, "cut"),
        (FieldKind::Sequence, "sequence"),
        (FieldKind::Counts(Align::Response), "response_counts"),
        (FieldKind::Counts(Align::Sequence), "sequence_counts"),
        (FieldKind::Ragged(OwnToken::Keep), "ragged"),
        (FieldKind::EXPERTS, "experts"),
        (FieldKind::CAPTURED, "captured"),
        (FieldKind::Row, "row"),
        (FieldKind::Array { is_joined: false }, "array"),
        (FieldKind::Array { is_joined: true }, "joined"),
        (FieldKind::Object, "object"),
    ],
);

/// Alignments that response fields may be given in.
const ALIGNS: Names<FieldKind> =
    Names::new("align", &[(FieldKind::Response, "response"), (FieldKind::Cut, "sequence")]);

/// The tokens that take a row's one number.
pub const SPREADS: Names<Spread> = Names::new(
    "spread",
    &[
        (Spread::All, "all"),
        (Spread::Trained, "trained"),
        (Spread::OfOutput, "of_output"),
        (Spread::Last, "last"),
        (Spread::LastOfRow, "last_of_row"),
    ],
);

/// What to do about tokens that are not among their own values.
const OWN_TOKENS: Names<OwnToken> = Names::new(
    "own_token",
    &[(OwnToken::Keep, "keep"), (OwnToken::Add, "add"), (OwnToken::Error, "error")],
);

#[pymethods]
impl FieldSpec {
    #[new]
    #[pyo3(signature = (
        key, name, align="response", plain=false, spread=None, weighs=false, any_length=false,
        fill=PyNumber::ZERO, gap_fill=PyNumber::ZERO, num_experts=None, dtype=Some("float32"),
        default=None, layers=None, own_token="keep"
    ))]
    #[allow(clippy::too_many_arguments, reason = "all but two have defaults")]
    fn new(
        key: String,
        name: String,
        align: &str,
        plain: bool,
        spread: Option<&str>,
        weighs: bool,
        any_length: bool,
        fill: PyNumber,
        gap_fill: PyNumber,
        num_experts: Option<i64>,
        dtype: Option<&str>,
        default: Option<PyNumber>,
        layers: Option<(usize, usize)>,
        own_token: &str,
    ) -> Result<Self> {
        let kind = match KINDS.value(align)? {
            FieldKind::Captured { indices, .. } => {
                let indices = match indices {
                    Indices::Experts { .. } => Indices::Experts { count: num_experts },
                    Indices::Any => Indices::Any,
                };
                indices.in_layers(layers.map(|(begin, end)| Layers { begin, end }))
            }
            FieldKind::Ragged(_) => FieldKind::Ragged(OWN_TOKENS.value(own_token)?),
            kind => kind,
        };
        let spec = Spec {
            key,
            name,
            kind,
            is_plain: plain,
            spread: spread.map(|name| SPREADS.value(name)).transpose()?,
            default: default.map(|number| number.0),
            weighs,
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

    /// Name of the output's dtype; None if it follows from the largest index.
    #[getter]
    fn dtype(&self) -> Option<&'static str> {
        self.0.dtype.map(Dtype::name)
    }

    /// The alignment of the rows.
    #[getter]
    fn align(&self) -> &'static str {
        KINDS.name(match self.0.kind {
            FieldKind::Captured { indices, .. } => match indices {
                Indices::Experts { .. } => FieldKind::EXPERTS,
                Indices::Any => FieldKind::CAPTURED,
            },
            FieldKind::Ragged(_) => FieldKind::Ragged(OwnToken::Keep),
            kind => kind,
        })
    }

    /// True for the loss mask.
    #[getter]
    fn weighs(&self) -> bool {
        self.0.weighs
    }

    /// Number of values of rows with these lengths for an alignment, from the first token of their
    /// sequences or responses on, int64; None if it does not follow from the lengths.
    #[staticmethod]
    fn row_lens<'py>(
        py: Python<'py>,
        align: &str,
        prompt_lens: PyReadonlyArray1<i64>,
        response_lens: PyReadonlyArray1<i64>,
    ) -> Result<Option<IntColumn<'py>>> {
        let kind = KINDS.value(align)?;
        let prompts = usizes("prompt_lens", &prompt_lens)?;
        let responses = usizes("response_lens", &response_lens)?;
        let lens = prompts
            .iter()
            .zip(&responses)
            .map(|(&prompt, &response)| kind.row_len(prompt, response));
        if lens.clone().any(|len| len.is_none()) {
            return Ok(None);
        }
        column_of(py, lens.flatten()).map(Some)
    }

    /// True if values are read and written here, and not kept by the caller.
    #[getter]
    fn is_written(&self) -> bool {
        self.0.is_written()
    }

    /// Read the one number of the row at this index; it may be None if there is a default.
    fn number(&self, number: Bound<PyAny>, index: usize) -> Result<Option<PyNumber>> {
        let holds_floats = self.0.dtype.is_none_or(Dtype::is_float);
        let number = number_of(&self.0.name, index, &number, holds_floats, self.missing())?;
        Ok(number.is_given.then_some(PyNumber(number.value)))
    }

    /// The values of the row at this index, whose tokens have any number of them, and the number of
    /// each token: arrays or tensors. They are the caller's own if given as such.
    fn nested_row<'py>(
        &self,
        row: &Bound<'py, PyAny>,
        index: usize,
    ) -> Result<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let name = &self.0.name;
        let values = values_as(self.0.dtype);
        Ok((values(row, name, index)?, counts_of(row, name, index)?))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let spec = &slf.get().0;
        let (num_experts, layers) = match spec.kind {
            FieldKind::Captured { indices, layers } => match indices {
                Indices::Experts { count } => (count, layers),
                Indices::Any => (None, layers),
            },
            _ => (None, None),
        };
        let arguments = (
            &spec.key,
            &spec.name,
            slf.get().align(),
            spec.is_plain,
            spec.spread.map(|spread| SPREADS.name(spread)),
            spec.weighs,
            spec.any_length,
            PyNumber(spec.fill),
            PyNumber(spec.gap_fill),
            num_experts,
            slf.get().dtype(),
            spec.default.map(PyNumber),
        );
        // Longer tuples have no conversion.
        let layers = layers.map(|Layers { begin, end }| (begin, end));
        let own_token = match spec.kind {
            FieldKind::Ragged(own_token) => own_token,
            _ => OwnToken::Keep,
        };
        let more = (layers, OWN_TOKENS.name(own_token));
        let arguments = arguments.into_pyobject(slf.py())?.add(more)?;
        Ok((slf.get_type(), arguments.cast_into()?))
    }

    /// The same response field, given along responses or along sequences, with a default or without.
    fn with_align(&self, align: &str, default: Option<PyNumber>) -> Result<Self> {
        let spec = Spec {
            kind: ALIGNS.value(align)?,
            default: default.map(|number| number.0),
            ..self.0.clone()
        };
        Ok(Self(spec.checked()?))
    }

    /// The same field with another output dtype; None if it follows from the largest index.
    fn with_dtype(&self, dtype: Option<&str>) -> Result<Self> {
        let dtype = dtype.map(|name| Dtype::of_name(&self.0.key, name, self.0.dtypes()));
        let spec = Spec { dtype: dtype.transpose()?, ..self.0.clone() };
        Ok(Self(spec.checked()?))
    }
}

impl FieldSpec {
    /// The meaning of rows that are None.
    pub fn missing(&self) -> Missing {
        match (self.0.default, self.0.kind) {
            (Some(default), _) => Missing::Is(default),
            (None, FieldKind::Response | FieldKind::Sequence) if !self.0.is_plain => {
                Missing::NeedsDefault
            }
            (None, _) => Missing::NoRow,
        }
    }

    /// Take the field's values, if they are written here.
    ///
    /// # Errors
    /// Inputs without one row per turn, and rows that cannot hold the output's kind of numbers.
    pub fn read<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        turns: &Turns,
    ) -> Result<Option<PyRows<'py>>> {
        let check_count = |rows| Ok(turns.check_count(&self.0.name, rows)?);
        // The dtype of routes may follow from all of them.
        let is_of_all = matches!(
            self.0.kind,
            FieldKind::Captured { indices: Indices::Experts { count: None }, .. }
        );
        let is_of_all = is_of_all && self.0.dtype.is_none();
        if !self.0.is_written() {
            check_count(values.len()?)?;
            return Ok(None);
        }
        let chosen = turns.chosen().filter(|_| !is_of_all);
        let some = values.cast::<SomeTokens>().ok().map(Bound::get);
        let values = some.map_or(values, |some| some.rows(values.py()));
        let mut rows = self.rows(values, chosen, check_count)?;
        if let Some(some) = some {
            some.set(&self.0.name, &mut rows, turns)?;
        }
        rows.fill_missing(|turn| {
            let (prompt, response) = (turns.prompt_lens()[turn], turns.response_lens()[turn]);
            self.0.kind.row_len(prompt, response).unwrap_or(0)
        });
        Ok(Some(rows))
    }

    /// Take the values of a field that is written.
    ///
    /// # Errors
    /// Those of `check_count`, and rows that cannot hold the output's kind of numbers.
    pub fn rows<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        chosen: Option<&Arc<Chosen>>,
        check_count: impl Fn(usize) -> Result<()>,
    ) -> Result<PyRows<'py>> {
        match self.0.dtype {
            // Read in the same way as for labels.
            _ if matches!(self.0.check(), Check::Whole(_)) => {
                self.read_as::<f64>(values, chosen, check_count)
            }
            Some(Dtype::F64) => self.read_as::<f64>(values, chosen, check_count),
            Some(dtype) if dtype.is_float() => self.read_as::<f32>(values, chosen, check_count),
            _ => self.read_as::<i64>(values, chosen, check_count),
        }
    }

    /// Take the field's values as numbers of a type.
    fn read_as<'py, T: Element + DecodeExact + numpy::Element>(
        &self,
        values: &Bound<'py, PyAny>,
        chosen: Option<&Arc<Chosen>>,
        check_count: impl Fn(usize) -> Result<()>,
    ) -> Result<PyRows<'py>> {
        let (name, check, missing) = (&self.0.name, self.0.check(), self.missing());
        if self.0.spread.is_some()
            && let Some(rows) =
                PyRows::one_number_each::<T>(name, values, chosen, check, missing, &check_count)?
        {
            return Ok(rows);
        }
        let reader = Reader::new::<T>(name, !self.0.is_plain).among(chosen);
        let rows = match self.0.kind {
            FieldKind::Ragged(_) => reader.of_part(values_as(self.0.dtype)).read(values),
            FieldKind::Counts(_) => reader.of_part(counts_of).read(values),
            FieldKind::Row => reader.read_one_token_each(values, &check_count),
            _ => reader.with_missing(missing).read(values),
        }?;
        let rows = rows.checked::<T>(match self.0.spread {
            _ if !self.0.is_plain => Check::None,
            // Numbers of rows are checked once it is known which of them train.
            Some(Spread::Trained) => Check::Number,
            _ => check,
        })?;
        check_count(rows.count())?;
        Ok(rows)
    }
}

/// The values of rows in an output's dtype, or one that holds all of its numbers.
fn values_as(dtype: Option<Dtype>) -> Part {
    match dtype {
        Some(Dtype::F64) => values_of::<f64>,
        Some(Dtype::F16 | Dtype::Bf16 | Dtype::F32) => values_of::<f32>,
        Some(Dtype::U8) => values_of::<u8>,
        Some(Dtype::I16) => values_of::<i16>,
        Some(Dtype::I32) => values_of::<i32>,
        Some(Dtype::Bool | Dtype::I64) | None => values_of::<i64>,
    }
}

/// A Python number.
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
