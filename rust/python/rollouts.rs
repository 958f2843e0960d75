//! Reading calls of language models from JSON.

use fastcollate::gathered;
use fastcollate::rollouts::{
    BadLogprobs, Bodies, Calls, KINDS, Logprobs, Role, Rows, Schema, read_bodies,
};
use numpy::{Element, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::error::Result;
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::tables::{Column, array_of, to_i64, values as values_of};

/// What happens to log-probabilities that are none.
pub const BAD_LOGPROBS: Names<BadLogprobs> = Names::new(
    "bad_logprobs",
    &[
        (BadLogprobs::Error, "error"),
        (BadLogprobs::Mask, "mask"),
        (BadLogprobs::Keep, "keep"),
    ],
);

/// The columns that the reader understands.
const ROLES: Names<Role> = Names::new(
    "role",
    &[
        (Role::Prompts, "prompts"),
        (Role::Responses, "responses"),
        (Role::Logprobs, "logprobs"),
        (Role::LogprobIds, "logprob_ids"),
        (Role::LogprobTokens, "logprob_tokens"),
        (Role::LossMask, "loss_mask"),
        (Role::Routes, "encoded.routes"),
        (Role::ResponsesOfCalls, "calls.responses"),
        (Role::Index, "event.index"),
        (Role::Total, "event.total"),
    ],
);

/// JSON bodies: one each, or one in each line.
#[derive(FromPyObject)]
pub enum Input {
    Lines(PyBackedBytes),
    Each(Vec<PyBackedBytes>),
}

/// The paths of a source's columns, checked.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct CallSchema {
    core: Schema,
    /// The names of columns that are passed on as JSON.
    kept: Vec<String>,
}

#[pymethods]
impl CallSchema {
    /// Paths by column; columns with another name than the reader's are passed on.
    #[new]
    fn new(calls: Option<&str>, paths: Vec<(String, String)>) -> Result<Self> {
        let mut kept: Vec<String> = Vec::new();
        let role = |(name, path): &(String, String)| {
            let role = ROLES.value(name).unwrap_or_else(|_| {
                let known = kept.iter().position(|known| known == name);
                let column = known.unwrap_or_else(|| {
                    kept.push(name.clone());
                    kept.len() - 1
                });
                match name == "support" {
                    true => Role::Joined(column),
                    false => Role::Kept(column),
                }
            });
            (role, path.clone())
        };
        let roles: Vec<_> = paths.iter().map(role).collect();
        let roles = roles.iter().map(|(role, path)| (*role, path.as_str()));
        let core = Schema::new(calls, roles)?;
        Ok(Self { core, kept })
    }
}

/// Read the calls of bodies: arrays by column, JSON as a list of bytes or None for each call.
#[pyfunction]
pub fn read_calls<'py>(
    py: Python<'py>,
    bodies: Input,
    schema: &CallSchema,
    bad_logprobs: &str,
) -> Result<Bound<'py, PyDict>> {
    let policy = BAD_LOGPROBS.value(bad_logprobs)?;
    let calls = stoppable(py, |ticks| match &bodies {
        Input::Lines(lines) => read_bodies(Bodies::Lines(lines), &schema.core, policy, ticks),
        Input::Each(bodies) => {
            let bodies: Vec<&[u8]> = gathered(bodies.iter().map(|body| &**body))?;
            read_bodies(Bodies::Each(&bodies), &schema.core, policy, ticks)
        }
    })?;
    columns(py, calls, &schema.kept)
}

fn columns<'py>(py: Python<'py>, calls: Calls, kept: &[String]) -> Result<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let flags = |flags: Vec<bool>| PyArray1::from_vec(py, flags);
    let (prompts, responses) = (rows(py, calls.prompts)?, rows(py, calls.responses)?);
    columns.set_item("prompts", prompts)?;
    columns.set_item("responses", responses)?;
    columns.set_item("have_prompts", flags(calls.have_prompts))?;
    columns.set_item("logprobs", logprobs(py, calls.logprobs)?)?;
    columns.set_item("num_bodies", calls.num_bodies)?;
    let masks = calls
        .have_masks
        .then(|| PyArray1::from_vec(py, calls.loss_mask));
    columns.set_item("loss_mask", masks)?;
    for (name, indices) in [("bodies", calls.bodies), ("indices", calls.indices)] {
        columns.set_item(name, array_of(py, indices.into_iter().map(to_i64))?)?;
    }
    columns.set_item("cut", calls.cut)?;
    let routes = calls.routes.into_iter();
    let routes = routes.map(|one| one.map(|bytes| PyArray1::from_vec(py, bytes)));
    columns.set_item("routes", routes.collect::<Vec<_>>())?;
    let texts = PyDict::new(py);
    for (name, rows) in kept.iter().zip(&calls.kept) {
        texts.set_item(name, json_of(py, rows)?)?;
    }
    columns.set_item("kept", texts)?;
    Ok(columns)
}

/// Treat log-probabilities of calls, which lie one after the other, as those of bodies are.
///
/// `given` has the number of each call's, or None; `lengths` those of the responses. A call's name
/// in errors is its output and its index there.
#[pyfunction]
pub fn settle_logprobs<'py>(
    py: Python<'py>,
    values: PyReadonlyArray1<f32>,
    given: Vec<Option<usize>>,
    lengths: Vec<usize>,
    names: Vec<(usize, usize)>,
    bad_logprobs: &str,
) -> Result<Settled<'py>> {
    let values = values_of(&values);
    let mut found = Logprobs::new(BAD_LOGPROBS.value(bad_logprobs)?);
    let name = |call: usize| {
        let (output, index) = names[call];
        format!("outputs[{output}]: call {index}")
    };
    let mut start = 0;
    for (call, (given, &length)) in given.iter().zip(&lengths).enumerate() {
        let span = given.map(|len| start..start + len);
        let row = span.and_then(|span| values.get(span));
        found.add(row, length, || name(call))?;
        start += given.unwrap_or(0);
    }
    found.finish(name)?;
    logprobs(py, found)
}

/// Log-probabilities, or None if no call has them; positions of those that are none; and their
/// number, calls x kinds.
type Settled<'py> = (
    Option<Bound<'py, PyArray1<f32>>>,
    Column<'py>,
    Bound<'py, PyArray2<i64>>,
);

fn logprobs(py: Python<'_>, found: Logprobs) -> Result<Settled<'_>> {
    let has_any = found.are_given.contains(&true);
    let counts = found.counts.iter().flatten().copied().map(to_i64);
    let calls = found.counts.len();
    Ok((
        has_any.then(|| PyArray1::from_vec(py, found.values)),
        array_of(py, found.bad.into_iter().map(to_i64))?,
        array_of(py, counts)?.reshape([calls, KINDS])?,
    ))
}

/// Values, and the offsets of rows.
type Ragged<'py, T> = (Bound<'py, PyArray1<T>>, Column<'py>);

fn rows<T: Element>(py: Python<'_>, rows: Rows<T>) -> Result<Ragged<'_, T>> {
    let offsets = [0].into_iter().chain(rows.ends).map(to_i64);
    Ok((PyArray1::from_vec(py, rows.values), array_of(py, offsets)?))
}

/// JSON of each call, or None.
fn json_of<'py>(py: Python<'py>, rows: &Rows<u8>) -> PyResult<Bound<'py, PyList>> {
    let starts = [0].into_iter().chain(rows.ends.iter().copied());
    let texts = starts
        .zip(&rows.ends)
        .map(|(start, &end)| (start < end).then(|| PyBytes::new(py, &rows.values[start..end])));
    PyList::new(py, texts.collect::<Vec<_>>())
}
