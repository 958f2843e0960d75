//! Reading calls of language models from JSON.

use std::borrow::Cow;

use fastcollate::rollouts::{
    BadLogprobs, Bodies, Call, Calls, Ids, KINDS, Kept, Logprobs, Numbers, Place, Role, Rows,
    Schema, join_nodes, read_bodies,
};
use fastcollate::{Error, gathered, try_gathered};
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
        (Role::Ids(Ids::Prompts), "prompts"),
        (Role::Ids(Ids::Responses), "responses"),
        (Role::Ids(Ids::Sequences), "sequences"),
        (Role::Ids(Ids::Targets), "targets"),
        (Role::Ids(Ids::LogprobIds), "logprob_ids"),
        (Role::Ids(Ids::LogprobTokens), "logprob_tokens"),
        (Role::Ids(Ids::PromptLens), "prompt_lens"),
        (Role::Ids(Ids::ResponseLens), "response_lens"),
        (Role::Numbers(Numbers::Logprobs), "logprobs"),
        (Role::Numbers(Numbers::LossMask), "loss_mask"),
        (Role::Numbers(Numbers::AttentionMask), "attention_mask"),
        (Role::Numbers(Numbers::Trains), "trains"),
        (Role::Numbers(Numbers::Masked), "masked"),
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
    fn new(calls: Vec<String>, paths: Vec<(String, String)>) -> Result<Self> {
        let mut kept: Vec<String> = Vec::new();
        let role = |(name, path): &(String, String)| {
            let role = ROLES.value(name).unwrap_or_else(|_| {
                let known = kept.iter().position(|known| known == name);
                Role::Kept(known.unwrap_or_else(|| {
                    kept.push(name.clone());
                    kept.len() - 1
                }))
            });
            (role, path.clone())
        };
        let roles: Vec<_> = paths.iter().map(role).collect();
        let roles = roles.iter().map(|(role, path)| (*role, path.as_str()));
        let kinds = kept.iter().map(|name| match name.as_str() {
            "support" => Kept::Parts,
            "finish_reasons" => Kept::Reason,
            _ => Kept::Value,
        });
        let core = Schema::new(calls.iter().map(String::as_str), roles, kinds.collect())?;
        Ok(Self { core, kept })
    }
}

/// Read the calls of bodies, or the nodes of trees: arrays by column, JSON as a list of bytes or
/// None for each call.
///
/// `place` names bodies in errors, with `{}` for their numbers from `first` on.
#[pyfunction]
pub fn read_calls<'py>(
    py: Python<'py>,
    bodies: Input,
    schema: &CallSchema,
    bad_logprobs: &str,
    are_nodes: bool,
    place: &str,
    first: usize,
) -> Result<Bound<'py, PyDict>> {
    let policy = BAD_LOGPROBS.value(bad_logprobs)?;
    let mut calls = Calls::new(policy, are_nodes, schema.core.kept.len());
    let name = |body: usize| named(place, first + body);
    stoppable(py, |ticks| match &bodies {
        Input::Lines(lines) => {
            read_bodies(Bodies::Lines(lines), &schema.core, &mut calls, name, ticks)
        }
        Input::Each(bodies) => {
            let bodies: Vec<&[u8]> = gathered(bodies.iter().map(|body| &**body))?;
            read_bodies(Bodies::Each(&bodies), &schema.core, &mut calls, name, ticks)
        }
    })?;
    columns(py, calls, &schema.kept)
}

/// Rows of numbers: values, and offsets.
type Given<'py, T> = (PyReadonlyArray1<'py, T>, PyReadonlyArray1<'py, i64>);

/// A row, and true if there is one.
type GivenRows<'py, T> = (Given<'py, T>, PyReadonlyArray1<'py, bool>);

/// Make calls, or nodes, of columns that were read elsewhere: rows of int32 ids and of float32
/// numbers by role. `places` are the body of each call, the number of its array, and its own
/// number.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "columns")]
pub fn make_calls<'py>(
    py: Python<'py>,
    ids: Vec<(String, GivenRows<'py, i32>)>,
    numbers: Vec<(String, GivenRows<'py, f32>)>,
    places: [PyReadonlyArray1<'py, i64>; 3],
    num_bodies: usize,
    bad_logprobs: &str,
    are_nodes: bool,
    place: &str,
    first: usize,
) -> Result<Bound<'py, PyDict>> {
    let policy = BAD_LOGPROBS.value(bad_logprobs)?;
    let other = |name: &str| Error::Body(format!("{name} is a column of other values"));
    let ids = try_gathered(ids.iter().map(|(name, rows)| match ROLES.value(name)? {
        Role::Ids(column) => Ok::<_, crate::error::Error>((column as usize, Rowed::new(rows))),
        _ => Err(other(name).into()),
    }))?;
    let numbers = try_gathered(numbers.iter().map(|(name, rows)| match ROLES.value(name)? {
        Role::Numbers(column) => Ok::<_, crate::error::Error>((column as usize, Rowed::new(rows))),
        _ => Err(other(name).into()),
    }))?;
    let [bodies, trees, indices] = places.each_ref().map(counts);
    let (bodies, trees, indices) = (bodies?, trees?, indices?);
    let mut calls = Calls::new(policy, are_nodes, 0);
    stoppable(py, |ticks| {
        for (row, ((&body, &tree), &index)) in
            { bodies.iter().zip(&trees).zip(&indices) }.enumerate()
        {
            let mut call = Call::default();
            for (column, rows) in &ids {
                call.ids[*column] = rows.row(row)?;
            }
            for (column, rows) in &numbers {
                call.numbers[*column] = rows.row(row)?;
            }
            let name = || format!("{}: call {index}", named(place, first + body));
            calls.add(&call, Place { body, tree, index }, name)?;
            ticks.done(1 + calls.responses.values.len() / (row + 1))?;
        }
        calls.num_bodies = num_bodies;
        calls.finish(|body| named(place, first + body))
    })?;
    columns(py, calls, &[])
}

/// Nodes of trees of calls.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct CallNodes(Calls);

#[pymethods]
impl CallNodes {
    /// Make a row of each leaf; arrays by column, and the leaf of each.
    ///
    /// `parents` are the number of each node's parent or -1.
    fn join<'py>(
        &self,
        py: Python<'py>,
        parents: PyReadonlyArray1<'py, i64>,
        are_dropped: PyReadonlyArray1<'py, bool>,
        bad_logprobs: &str,
        place: &str,
        first: usize,
    ) -> Result<Bound<'py, PyDict>> {
        let policy = BAD_LOGPROBS.value(bad_logprobs)?;
        let parents = values_of(&parents);
        let parents = gathered(parents.iter().map(|&parent| usize::try_from(parent).ok()))?;
        let are_dropped = values_of(&are_dropped);
        let name = |body: usize| named(place, first + body);
        let (rows, leaves) = stoppable(py, |ticks| {
            join_nodes(&self.0, &parents, &are_dropped, policy, name, ticks)
        })?;
        let found = columns(py, rows, &[])?;
        found.set_item("leaves", array_of(py, leaves.into_iter().map(to_i64))?)?;
        Ok(found)
    }
}

/// The name of a body.
fn named(place: &str, body: usize) -> String {
    place.replace("{}", &body.to_string())
}

/// Rows of a column.
struct Rowed<'a, T: Clone> {
    values: Cow<'a, [T]>,
    offsets: Cow<'a, [i64]>,
    have: Cow<'a, [bool]>,
}

impl<'a, T: Element + Copy> Rowed<'a, T> {
    fn new(((values, offsets), have): &'a GivenRows<'_, T>) -> Self {
        Self {
            values: values_of(values),
            offsets: values_of(offsets),
            have: values_of(have),
        }
    }

    /// A row, if there is one.
    fn row(&self, row: usize) -> Result<Option<&[T]>, Error> {
        let span = || {
            let start = usize::try_from(*self.offsets.get(row)?).ok()?;
            let end = usize::try_from(*self.offsets.get(row + 1)?).ok()?;
            self.values.get(start..end)
        };
        match self.have.get(row) {
            Some(true) => span()
                .map(Some)
                .ok_or_else(|| Error::Body("a column has other rows".to_owned())),
            _ => Ok(None),
        }
    }
}

/// Numbers that are not negative.
fn counts(array: &PyReadonlyArray1<i64>) -> Result<Vec<usize>> {
    Ok(gathered(
        array
            .as_array()
            .iter()
            .map(|&count| usize::try_from(count).unwrap_or(0)),
    )?)
}

fn columns<'py>(py: Python<'py>, mut calls: Calls, kept: &[String]) -> Result<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let part = |part: fn(&Place) -> usize| {
        array_of(py, calls.places.iter().map(|place| to_i64(part(place))))
    };
    columns.set_item("bodies", part(|place| place.body)?)?;
    columns.set_item("trees", part(|place| place.tree)?)?;
    columns.set_item("indices", part(|place| place.index)?)?;
    columns.set_item("num_bodies", calls.num_bodies)?;
    if calls.have_routes {
        let routes = std::mem::take(&mut calls.routes).into_iter();
        let routes = routes.map(|one| one.map(|bytes| PyArray1::from_vec(py, bytes)));
        columns.set_item("routes", gathered(routes)?)?;
    }
    let texts = PyDict::new(py);
    for (name, rows) in kept.iter().zip(&calls.kept) {
        if !rows.values.is_empty() {
            texts.set_item(name, json_of(py, rows)?)?;
        }
    }
    columns.set_item("kept", texts)?;
    if calls.are_nodes {
        columns.set_item("nodes", CallNodes(calls))?;
        return Ok(columns);
    }
    columns.set_item("prompts", rows(py, calls.prompts)?)?;
    columns.set_item("responses", rows(py, calls.responses)?)?;
    columns.set_item("have_prompts", PyArray1::from_vec(py, calls.have_prompts))?;
    columns.set_item("logprobs", logprobs(py, calls.logprobs)?)?;
    let mask = calls
        .have_masks
        .then(|| PyArray1::from_vec(py, calls.loss_mask));
    columns.set_item("loss_mask", mask)?;
    Ok(columns)
}

/// Log-probabilities, or None if no call has them; positions of those that are none; and their
/// number, calls x kinds.
pub type Settled<'py> = (
    Option<Bound<'py, PyArray1<f32>>>,
    Column<'py>,
    Bound<'py, PyArray2<i64>>,
);

/// The arrays of log-probabilities.
pub fn logprobs(py: Python<'_>, found: Logprobs) -> Result<Settled<'_>> {
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
fn json_of<'py>(py: Python<'py>, rows: &Rows<u8>) -> Result<Bound<'py, PyList>> {
    let copied = |text: &[u8]| {
        PyBytes::new_with(py, text.len(), |out| {
            out.copy_from_slice(text);
            Ok(())
        })
    };
    let texts = (0..rows.ends.len()).map(|row| {
        let text = Some(rows.row(row)).filter(|text| !text.is_empty());
        { text.map(copied).transpose() }.map_err(crate::error::Error::from)
    });
    Ok(PyList::new(py, try_gathered(texts)?)?)
}
