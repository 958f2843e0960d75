//! The outputs of a batch besides its fields, as Python options.

use fastcollate::batch::{Beside, LOSS_MASK, OutputSpec as Spec, PositionIds};
use fastcollate::write::PositionPadding;
use fastcollate::{Dtype, IntDtype};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::error::Result;
use crate::names::Names;

/// Outputs that are not fields: their dtypes, and which of the optional ones are present.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct OutputSpec(pub Spec);

#[pymethods]
impl OutputSpec {
    #[new]
    #[pyo3(signature = (
        input_ids="int64", attention_mask="int64", response_mask="int64",
        position_ids=None, labels=None, sequence_ids="int64", bare=false, loss_mask=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "all have defaults")]
    fn new(
        input_ids: &str,
        attention_mask: &str,
        response_mask: &str,
        position_ids: Option<(String, String)>,
        labels: Option<(bool, String)>,
        sequence_ids: &str,
        bare: bool,
        loss_mask: Option<&str>,
    ) -> Result<Self> {
        let mask = |key, name: &str| Dtype::of_name(key, name, Dtype::OF_MASKS);
        let (positions, dtype) = match &position_ids {
            Some((positions, dtype)) => (POSITIONS.value(positions)?, dtype.as_str()),
            None => (PositionIds::Default, "int64"),
        };
        let labels = labels.map(|(shifted, dtype)| {
            IntDtype::of_name("labels", &dtype).map(|dtype| (shifted, dtype))
        });
        let spec = Spec {
            input_ids: IntDtype::of_name("input_ids", input_ids)?,
            attention_mask: mask("attention_mask", attention_mask)?,
            response_mask: mask("response_mask", response_mask)?,
            sequence_ids: IntDtype::of_name("sequence_ids", sequence_ids)?,
            position_ids: (positions, IntDtype::of_name("position_ids", dtype)?),
            labels: labels.transpose()?,
            beside: if bare { Beside::Ids } else { Beside::All },
            loss_mask: loss_mask
                .map(|name| Dtype::of_name(LOSS_MASK, name, Dtype::OF_WEIGHTS))
                .transpose()?,
        };
        Ok(Self(spec))
    }

    /// `"default"`, `"omitted"` or the padding of the positions, and their dtype.
    #[getter]
    fn position_ids(&self) -> (&'static str, &'static str) {
        let (positions, dtype) = self.0.position_ids;
        (POSITIONS.name(positions), dtype.name())
    }

    /// True if labels are shifted, and their dtype; None without labels.
    #[getter]
    fn labels(&self) -> Option<(bool, &'static str)> {
        self.0.labels.map(|(shifted, dtype)| (shifted, dtype.name()))
    }

    /// The dtype of the ids.
    #[getter]
    fn input_ids(&self) -> &'static str {
        self.0.input_ids.name()
    }

    /// The dtype of the loss mask, if it selects what trains.
    #[getter]
    fn loss_mask(&self) -> Option<&'static str> {
        self.0.loss_mask.map(Dtype::name)
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let own = slf.get();
        let arguments = (
            own.input_ids(),
            own.0.attention_mask.name(),
            own.0.response_mask.name(),
            own.position_ids(),
            own.labels(),
            own.0.sequence_ids.name(),
            own.0.beside == Beside::Ids,
            own.loss_mask(),
        );
        Ok((slf.get_type(), arguments.into_pyobject(slf.py())?))
    }
}

/// Which batches have positions, and their padding.
pub const POSITIONS: Names<PositionIds> = Names::new(
    "position_ids",
    &[
        (PositionIds::Padded(PositionPadding::Zero), "zero"),
        (PositionIds::Padded(PositionPadding::One), "one"),
        (PositionIds::Padded(PositionPadding::RepeatLast), "repeat_last"),
        (PositionIds::Default, "default"),
        (PositionIds::Omitted, "omitted"),
    ],
);
