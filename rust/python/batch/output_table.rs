//! The table of a batch's outputs in Python.

use std::borrow::Cow;

use fastcollate::batch::{Output as Described, OutputAlign, PadValue, outputs};
use fastcollate::{Dtype, few};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyTuple, PyType};

use crate::batch::field::{FieldSpec, PyNumber};
use crate::batch::output_spec::OutputSpec;
use crate::error::Result;
use crate::names::Names;
use crate::plan::layout::LAYOUTS;

const ALIGNMENTS: Names<OutputAlign> = Names::new(
    "align",
    &[
        (OutputAlign::Sequence, "sequence"),
        (OutputAlign::Stream, "stream"),
        (OutputAlign::Response, "response"),
        (OutputAlign::Row, "row"),
        (OutputAlign::Object, "object"),
        (OutputAlign::Joined, "joined"),
        (OutputAlign::SequenceOffsets, "sequence_offsets"),
        (OutputAlign::StreamOffsets, "stream_offsets"),
        (OutputAlign::ResponseOffsets, "response_offsets"),
        (OutputAlign::JoinedOffsets, "joined_offsets"),
        (OutputAlign::Values, "values"),
        (OutputAlign::SequenceValues, "sequence_values"),
        (OutputAlign::StreamValues, "stream_values"),
        (OutputAlign::ResponseValues, "response_values"),
        (OutputAlign::Batch, "batch"),
    ],
);

/// An output of a batch: its alignment, padding value, dtype, and the index of its field.
#[pyclass(frozen, eq, module = "fastcollate._fastcollate")]
#[derive(Clone, PartialEq)]
pub struct Output {
    key: Cow<'static, str>,
    align: OutputAlign,
    fill: Option<PadValue>,
    dtype: Option<Dtype>,
    #[pyo3(get)]
    field: Option<usize>,
}

#[pymethods]
impl Output {
    #[new]
    fn new(
        key: String,
        align: &str,
        fill: Option<PyPadValue>,
        dtype: Option<&str>,
        field: Option<usize>,
    ) -> Result<Self> {
        let dtype = dtype.map(|name| Dtype::of_name(&key, name, Dtype::OF_FIELDS));
        Ok(Self {
            align: ALIGNMENTS.value(align)?,
            fill: fill.map(|fill| fill.0),
            dtype: dtype.transpose()?,
            key: key.into(),
            field,
        })
    }

    /// The key.
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    /// The alignment of the values.
    #[getter]
    fn align(&self) -> &'static str {
        ALIGNMENTS.name(self.align)
    }

    /// The padding value, if there can be padding: a number, `"indices"` (every index of the last
    /// dimension) or `"repeat_last"`.
    #[getter]
    fn fill(&self) -> Option<PyPadValue> {
        self.fill.map(PyPadValue)
    }

    /// Name of the dtype, if the core writes the output.
    #[getter]
    fn dtype(&self) -> Option<&'static str> {
        self.dtype.map(Dtype::name)
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let own = slf.get();
        let arguments = (own.key(), own.align(), own.fill(), own.dtype(), own.field);
        Ok((slf.get_type(), arguments.into_pyobject(slf.py())?))
    }

    fn __repr__(&self) -> String {
        format!("Output('{}', align='{}')", self.key, self.align())
    }
}

impl From<Described> for Output {
    fn from(output: Described) -> Self {
        Self {
            field: output.field(),
            key: output.key,
            align: output.align,
            fill: output.fill,
            dtype: output.dtype,
        }
    }
}

/// The outputs of a batch in order, described without their values.
#[pyclass(frozen, eq, module = "fastcollate._fastcollate")]
#[derive(PartialEq)]
pub struct OutputTable(Vec<Output>);

impl OutputTable {
    /// The table of a batch.
    pub fn new(outputs: impl IntoIterator<Item = Described>) -> Self {
        Self(few(outputs.into_iter().map(Output::from)))
    }
}

#[pymethods]
impl OutputTable {
    #[new]
    fn from_outputs(outputs: Vec<Bound<Output>>) -> Self {
        Self(few(outputs.iter().map(|output| output.get().clone())))
    }

    /// The outputs of a batch in a layout; `rounds_up` is true if the lengths of packed rows are
    /// rounded up.
    #[staticmethod]
    fn of_layout(
        layout: &str,
        rounds_up: bool,
        pad_token_id: i64,
        fields: Vec<Bound<FieldSpec>>,
        spec: &OutputSpec,
    ) -> Result<Self> {
        let fields: Vec<_> = few(fields.iter().map(|field| &field.get().0));
        let layout = LAYOUTS.value(layout)?;
        let outputs = outputs(&spec.0, &fields, pad_token_id, layout, rounds_up)?;
        Ok(Self::new(outputs))
    }

    fn __getitem__(&self, key: &str) -> PyResult<Output> {
        let output = self.0.iter().find(|output| output.key == key);
        let missing = || PyKeyError::new_err(key.to_owned());
        output.cloned().ok_or_else(missing)
    }

    fn __contains__(&self, key: &str) -> bool {
        self.0.iter().any(|output| output.key == key)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyList::new(py, self.0.iter().cloned())?.try_iter()
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyList>,))> {
        let outputs = PyList::new(slf.py(), slf.get().0.iter().cloned())?;
        Ok((slf.get_type(), (outputs,)))
    }
}

/// A padding value as Python has it.
struct PyPadValue(PadValue);

impl<'py> IntoPyObject<'py> for PyPadValue {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.0 {
            PadValue::Number(number) => PyNumber(number).into_pyobject(py),
            PadValue::Indices => "indices".into_bound_py_any(py),
            PadValue::RepeatLast => "repeat_last".into_bound_py_any(py),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for PyPadValue {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(match object.extract::<&str>() {
            Ok("indices") => PadValue::Indices,
            Ok("repeat_last") => PadValue::RepeatLast,
            _ => PadValue::Number(object.extract::<PyNumber>()?.0),
        }))
    }
}
