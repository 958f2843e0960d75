//! Reading calls of language models from JSON.

use fastcollate::rollouts::{
    BadLogprobs, Call, Calls, Column, KINDS, Kept, Place, Role, Rows, Schema, UNKNOWN, join_nodes,
    lines_of, read_bodies, token_of,
};
use fastcollate::{add, check_room, few, gathered, try_gathered};
use numpy::{Element, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::error::{Error, Result};
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::tables::{Column as Integers, array_of, column_of, to_i64, values as values_of};
use crate::rows::{ids_of, to_list};
use crate::sampled::{Numbers, wrong};

/// What happens to log-probabilities that are none.
pub const BAD_LOGPROBS: Names<BadLogprobs> = Names::new(
    "bad_logprobs",
    &[(BadLogprobs::Error, "error"), (BadLogprobs::Mask, "mask"), (BadLogprobs::Keep, "keep")],
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
                    let known = kept.iter().position(|known| known == name);
                    Role::Kept(known.unwrap_or_else(|| {
                        kept.push(name.clone());
                        kept.len() - 1
                    }))
                },
                Role::Column,
            );
            roles.push((role, path.as_str()));
        }
        let kinds = kept.iter().map(|name| match name.as_str() {
            "support" => Kept::Parts,
            "finish_reasons" => Kept::Reason,
            _ => Kept::Value,
        });
        let core = Schema::new(calls.iter().map(String::as_str), roles, few(kinds))?;
        Ok(Self { core, kept, are_nodes })
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
        read_bodies(&bodies, &schema.core, &mut calls, |body| named(&place, body), ticks)
    })?;
    columns(py, calls, &schema.kept)
}

fn bytes_of(body: Bound<PyAny>) -> Result<PyBackedBytes> {
    Ok(body.cast_into::<PyBytes>().map_err(PyErr::from)?.into())
}

/// Make calls, or nodes, of the objects of each column, which are None for calls without. A loss mask
/// may be made of the `bits` of flags; for `may_have_lists`, see [`Numbers`]. `places` are the body of
/// each call, the number of its array, and its own number.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called once")]
pub fn make_calls<'py>(
    py: Python<'py>,
    given: Vec<(String, Bound<'py, PyList>)>,
    bits: Option<u32>,
    may_have_lists: bool,
    places: &Bound<'py, PyList>,
    num_bodies: usize,
    bad_logprobs: &str,
    are_nodes: bool,
    bodies: Named,
) -> Result<Bound<'py, PyDict>> {
    let mut calls = Calls::new(BAD_LOGPROBS.value(bad_logprobs)?, are_nodes, 0);
    let name = |Place { body, index, .. }| format!("{}: call {index}", named(&bodies, body));
    let known = |(name, objects): (String, _)| Ok::<_, Error>((COLUMNS.value(&name)?, objects));
    let given = try_gathered(given.into_iter().map(known))?;
    for (row, own) in places.iter().enumerate() {
        py.check_signals()?;
        let (body, tree, index) = own.extract()?;
        let place = Place { body, tree, index };
        let mut found: [Option<Vec<i32>>; _] = [const { None }; Call::COLUMNS];
        for (column, objects) in &given {
            let column = *column;
            let value = objects.get_item(row)?;
            if value.is_none() {
                continue;
            }
            let raised = |error| Error::raised(py, name(place), error);
            let values = match column {
                Column::LogprobTokens => ids_in_texts(&value).map_err(raised)?,
                _ if column.is_ids() => {
                    let row = match column.is_per_token() {
                        true => value,
                        false => PyList::new(py, [value])?.into_any(),
                    };
                    let name = COLUMNS.name(column);
                    let read = |name: &str| ids_of(name, index, &row);
                    // The name of a body takes longer than reading a short row.
                    read(name).or_else(|error| match error {
                        Error::Python(_) => Err(error),
                        _ => read(&format!("{}: {name}", named(&bodies, body))),
                    })?
                }
                _ => {
                    let mut numbers = Numbers {
                        response: found[Column::Responses as usize].as_deref().unwrap_or(&[]),
                        are_logprobs: column == Column::Logprobs,
                        may_have_lists,
                        bits: bits.filter(|_| column == Column::LossMask),
                        ..Numbers::default()
                    };
                    let read = match column.is_per_token() {
                        true => numbers.read(&value),
                        false => numbers.item(&value),
                    };
                    read.map_err(raised)?;
                    let Numbers { values, ids, .. } = numbers;
                    if !ids.is_empty() {
                        found[Column::LogprobIds as usize] = Some(ids);
                    }
                    values
                }
            };
            found[column as usize] = Some(values);
        }
        let columns = found.each_ref().map(|values| values.as_deref());
        calls.add(&Call { columns }, place, name)?;
    }
    calls.num_bodies = num_bodies;
    calls.finish(name)?;
    columns(py, calls, &[])
}

/// The ids in texts `token_id:17` of tokens; [`UNKNOWN`] for other texts and None.
fn ids_in_texts(texts: &Bound<PyAny>) -> PyResult<Vec<i32>> {
    let mut ids = Vec::new();
    for text in to_list(texts)?.iter() {
        let id = match text.cast::<PyString>() {
            Ok(text) => token_of(text.to_string_lossy().as_bytes()),
            Err(_) if text.is_none() => UNKNOWN,
            Err(_) => return Err(wrong(&text, "the text of a token is expected")),
        };
        add(&mut ids, id).map_err(Error::from)?;
    }
    Ok(ids)
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
    let is_padded = !calls.attention.values.is_empty();
    columns.set_item("attention", is_padded.then(|| rows(py, calls.attention)).transpose()?)?;
    columns.set_item("are_whole", calls.whole.is_some())?;
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
        text.map(copied).transpose().map_err(Error::from)
    });
    Ok(PyList::new(py, try_gathered(texts)?)?)
}
