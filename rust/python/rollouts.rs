//! Reading calls of language models from JSON.

use fastcollate::rollouts::{
    BadLogprobs, Call, Calls, Column, KINDS, Kept, Place, Role, Rows, Schema, join_nodes, lines_of,
    read_bodies,
};
use fastcollate::{Error, check_room, few, gathered, try_gathered};
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::error::Result;
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::tables::{Column as Integers, array_of, column_of, to_i64, values as values_of};

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
const COLUMNS: Names<Column> = Names::new(
    "column",
    &[
        (Column::Prompts, "prompts"),
        (Column::Responses, "responses"),
        (Column::Sequences, "sequences"),
        (Column::Targets, "targets"),
        (Column::LogprobIds, "logprob_ids"),
        (Column::LogprobTokens, "logprob_tokens"),
        (Column::PromptLens, "prompt_lens"),
        (Column::ResponseLens, "response_lens"),
        (Column::Logprobs, "logprobs"),
        (Column::LossMask, "loss_mask"),
        (Column::AttentionMask, "attention_mask"),
        (Column::Trains, "trains"),
        (Column::Masked, "masked"),
        (Column::Index, "event.index"),
        (Column::Total, "event.total"),
    ],
);

/// JSON bodies: one each, or one in each line.
#[derive(FromPyObject)]
pub enum Input<'py> {
    Lines(PyBackedBytes),
    Each(Bound<'py, PyList>),
}

/// The name of bodies in errors, with `{}` for their numbers from the second on; and advice.
type Named = (String, usize, String);

fn named(place: &Named, body: usize) -> String {
    place.0.replace("{}", &(place.1 + body).to_string())
}

/// The paths of a source's columns, checked.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct CallSchema {
    core: Schema,
    /// The names of columns that are passed on as JSON.
    kept: Vec<String>,
    are_nodes: bool,
}

#[pymethods]
impl CallSchema {
    /// Paths by column; columns with another name than the reader's are passed on.
    #[new]
    fn new(calls: &Bound<'_, PyList>, paths: &Bound<'_, PyList>, are_nodes: bool) -> Result<Self> {
        check_room(calls.len() + paths.len())?;
        let calls: Vec<String> = calls.extract()?;
        let paths: Vec<(String, String)> = paths.extract()?;
        let (mut kept, mut roles) = (Vec::new(), Vec::new());
        for (name, path) in &paths {
            let role = COLUMNS.value(name).map_or_else(
                |_| {
                    Role::Kept(
                        { kept.iter() }
                            .position(|known| known == name)
                            .unwrap_or(kept.len()),
                    )
                },
                Role::Column,
            );
            if role == Role::Kept(kept.len()) {
                kept.push(name.clone());
            }
            roles.push((role, path.as_str()));
        }
        let kinds = kept.iter().map(|name| match name.as_str() {
            "support" => Kept::Parts,
            "finish_reasons" => Kept::Reason,
            _ => Kept::Value,
        });
        let core = Schema::new(calls.iter().map(String::as_str), roles, few(kinds))?;
        Ok(Self {
            core,
            kept,
            are_nodes,
        })
    }
}

/// Read the calls of bodies, or the nodes of trees: arrays by column, JSON as a list of bytes or
/// None for each call.
#[pyfunction]
pub fn read_calls<'py>(
    py: Python<'py>,
    bodies: Input<'py>,
    schema: &CallSchema,
    bad_logprobs: &str,
    place: &Bound<'py, PyTuple>,
) -> Result<Bound<'py, PyDict>> {
    check_room(schema.kept.len())?;
    let place: Named = place.extract()?;
    let policy = BAD_LOGPROBS.value(bad_logprobs)?;
    let mut calls = Calls::new(policy, schema.are_nodes, schema.core.kept.len());
    let (lines, each) = match bodies {
        Input::Lines(text) => (Some(text), Vec::new()),
        Input::Each(each) => (None, try_gathered(each.iter().map(bytes_of))?),
    };
    stoppable(py, |ticks| {
        let bodies = match &lines {
            Some(text) => lines_of(text)?,
            None => gathered(each.iter().map(|body| &**body).enumerate())?,
        };
        read_bodies(
            &bodies,
            &schema.core,
            &mut calls,
            |body| named(&place, body),
            ticks,
        )
    })?;
    columns(py, calls, &schema.kept)
}

fn bytes_of(body: Bound<PyAny>) -> Result<PyBackedBytes> {
    Ok(body.cast_into::<PyBytes>().map_err(PyErr::from)?.into())
}

/// Rows of int32, or of the bits of float32: values, offsets, and true for rows that are there.
type Given<'py> = (
    PyReadonlyArray1<'py, i32>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, bool>,
);

/// Make calls, or nodes, of columns that were read elsewhere. `places` are the body of each call,
/// the number of its array, and its own number.
#[pyfunction]
pub fn make_calls<'py>(
    py: Python<'py>,
    given: Vec<(String, Given<'py>)>,
    places: [PyReadonlyArray1<'py, i64>; 3],
    num_bodies: usize,
    bad_logprobs: &str,
    are_nodes: bool,
    place: Named,
) -> Result<Bound<'py, PyDict>> {
    let policy = BAD_LOGPROBS.value(bad_logprobs)?;
    let given = try_gathered(given.iter().map(|(name, (values, offsets, have))| {
        let rows = (values_of(values)?, values_of(offsets)?, values_of(have)?);
        Ok::<_, crate::error::Error>((COLUMNS.value(name)?, rows))
    }))?;
    let [bodies, trees, indices] = places.each_ref().map(values_of);
    let (bodies, trees, indices) = (bodies?, trees?, indices?);
    let name = |Place { body, index, .. }| format!("{}: call {index}", named(&place, body));
    let mut calls = Calls::new(policy, are_nodes, 0);
    stoppable(py, |ticks| {
        for row in 0..bodies.len() {
            let mut call = Call::default();
            for (column, (values, offsets, have)) in &given {
                if have.get(row) == Some(&true) {
                    let found = row_of(values, offsets, row);
                    let wrong = || Error::Body("a column has other rows".to_owned());
                    call.columns[*column as usize] = Some(found.ok_or_else(wrong)?);
                }
            }
            let count = |counts: &[i64]| {
                counts
                    .get(row)
                    .map_or(0, |&one| one.try_into().unwrap_or(0))
            };
            let (body, tree, index) = (count(&bodies), count(&trees), count(&indices));
            calls.add(&call, Place { body, tree, index }, name)?;
            ticks.done(1 + calls.responses.values.len() / (row + 1))?;
        }
        calls.num_bodies = num_bodies;
        calls.finish(name)
    })?;
    columns(py, calls, &[])
}

/// A row of values, if there is one.
pub fn row_of<'a, T>(values: &'a [T], offsets: &[i64], row: usize) -> Option<&'a [T]> {
    let at = |row: usize| usize::try_from(*offsets.get(row)?).ok();
    values.get(at(row)?..at(row + 1)?)
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
        place: Named,
    ) -> Result<Bound<'py, PyDict>> {
        let policy = BAD_LOGPROBS.value(bad_logprobs)?;
        let parents = values_of(&parents)?;
        let parents = gathered(parents.iter().map(|&parent| usize::try_from(parent).ok()))?;
        let are_dropped = values_of(&are_dropped)?;
        let name = |body| named(&place, body);
        let (rows, leaves) = stoppable(py, |ticks| {
            join_nodes(&self.0, &parents, &are_dropped, policy, name, ticks)
        })?;
        let found = columns(py, rows, &[])?;
        found.set_item("leaves", column_of(py, leaves)?)?;
        Ok(found)
    }
}

fn columns<'py>(py: Python<'py>, calls: Calls, kept: &[String]) -> Result<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let part = |part: fn(&Place) -> usize| column_of(py, calls.places.iter().map(part));
    columns.set_item("bodies", part(|place| place.body)?)?;
    columns.set_item("trees", part(|place| place.tree)?)?;
    columns.set_item("indices", part(|place| place.index)?)?;
    columns.set_item("num_bodies", calls.num_bodies)?;
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
    let have_logprobs = calls.have_logprobs();
    let numbers = |values, have: bool| have.then(|| PyArray1::from_vec(py, values));
    columns.set_item("logprobs", numbers(calls.logprobs, have_logprobs))?;
    columns.set_item("loss_mask", numbers(calls.loss_mask, calls.have_masks))?;
    let bad = column_of(py, calls.bad.iter().flatten().copied())?;
    columns.set_item("bad_logprobs", bad.reshape([calls.bad.len(), KINDS])?)?;
    columns.set_item("prompts", rows(py, calls.prompts)?)?;
    columns.set_item("responses", rows(py, calls.responses)?)?;
    columns.set_item("have_prompts", PyArray1::from_vec(py, calls.have_prompts))?;
    Ok(columns)
}

/// Values, and the offsets of rows.
type Ragged<'py, T> = (Bound<'py, PyArray1<T>>, Integers<'py>);

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
