//! Merging: which turns make a row, by policy or by a plan made before.

use std::vec;

use fastcollate::plan::merge::{
    Branch, Break, Difference, Exact, Kind, Masked, Merge as CoreMerge, Policy, Realign, Streams,
};
use fastcollate::plan::{Assembly, Turns};
use fastcollate::{Check, Error as Core, Tokens};
use numpy::PyArray1;
use numpy::ndarray::Ix1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::error::{Error, Result};
use crate::ingest::Rows;
use crate::interrupt::Interruptible;
use crate::plan::Plan;
use crate::tables::{
    self, Column, array, column, column_of, rows_of, rows_of_table, set_table, sources_of,
};

/// From so many tokens on other threads of the interpreter may run while plain memory is compared.
const DETACH_FROM: usize = 1 << 17;

/// How turns are merged: a policy and its options.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct MergeSpec(Kinds);

enum Kinds {
    Exact,
    Branch,
    Realign(Realign),
}

#[pymethods]
impl MergeSpec {
    #[new]
    fn new(
        policy: &str,
        realign: &str,
        max_drift_tokens: usize,
        fork_threshold: usize,
    ) -> PyResult<Self> {
        let masked = match realign {
            "response" => Masked::Response,
            "tail" => Masked::Tail,
            "span" => Masked::Span,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "realign is '{realign}'; pass 'tail', 'response' or 'span'"
                )));
            }
        };
        Ok(Self(match policy {
            "exact" => Kinds::Exact,
            "branch" => Kinds::Branch,
            "realign" => Kinds::Realign(Realign {
                masked,
                max_drift_tokens,
                fork_threshold,
            }),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "policy is '{policy}'; pass 'exact', 'branch' or 'realign'"
                )));
            }
        }))
    }
}

impl MergeSpec {
    /// Merge the turns of trajectories that end there.
    fn merge(
        &self,
        py: Python,
        prompts: &Rows,
        responses: &Rows,
        turns: &Turns,
        ends: Vec<usize>,
    ) -> Result<CoreMerge> {
        let tokens = (0..turns.count()).map(|turn| turns.stream_len(turn));
        let slices = if tokens.sum::<usize>() < DETACH_FROM {
            None
        } else {
            prompts.as_slices()?.zip(responses.as_slices()?)
        };
        match slices {
            Some((prompts, responses)) => py.detach(|| {
                let (prompts, responses) = (Interruptible(&prompts), Interruptible(&responses));
                self.merge_columns(&prompts, &responses, turns, ends)
            }),
            None => self.merge_columns(prompts, responses, turns, ends),
        }
    }

    fn merge_columns<C: Tokens<Error = Error>>(
        &self,
        prompts: &C,
        responses: &C,
        turns: &Turns,
        ends: Vec<usize>,
    ) -> Result<CoreMerge> {
        let streams = Streams {
            prompts,
            responses,
            turns,
        };
        fn by<C: Tokens<Error = Error>>(
            mut policy: impl Policy<C>,
            streams: &Streams<C>,
            ends: Vec<usize>,
        ) -> Result<CoreMerge> {
            CoreMerge::of_turns(streams, ends, &mut policy)
        }
        match &self.0 {
            Kinds::Exact => by(Exact, &streams, ends),
            Kinds::Branch => by(Branch::default(), &streams, ends),
            Kinds::Realign(realign) => by(*realign, &streams, ends),
        }
    }
}

/// Where trajectories end, and the argument that said so.
pub type Trajectories = (Vec<usize>, String);

/// What the rows of a batch are made of, if not of one turn each.
#[derive(FromPyObject)]
pub enum Making<'py> {
    /// Turns as merged before.
    Merged(Bound<'py, Merge>),
    /// Turns to be merged.
    ToMerge(Bound<'py, MergeSpec>, Trajectories),
    /// Rows of another batch, read from its outputs.
    Batch(Bound<'py, Plan>),
}

/// Which turns make which rows. Immutable; holds no token but those around breaks.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Merge(CoreMerge);

impl Merge {
    /// Make rows of turns.
    pub fn of_columns(
        py: Python,
        spec: &MergeSpec,
        prompts: &Rows,
        responses: &Rows,
        turns: &Turns,
        trajectories: Trajectories,
    ) -> Result<Self> {
        let (ends, name) = trajectories;
        turns.check_count(&name, ends.last().copied().unwrap_or(0))?;
        Ok(Self(spec.merge(py, prompts, responses, turns, ends)?))
    }

    /// The rows, if they can be made of these turns.
    ///
    /// # Errors
    /// Turns of other lengths than this was made for.
    pub fn assembly_for(&self, turns: &Turns) -> Result<&Assembly> {
        self.0.check_turns(turns)?;
        Ok(&self.0.assembly)
    }
}

/// Find which turns make a row. Trajectories without a token that trains may be left out.
#[pyfunction]
pub fn merge_turns<'py>(
    py: Python<'py>,
    prompts: &Bound<'py, PyAny>,
    responses: &Bound<'py, PyAny>,
    trajectories: Trajectories,
    spec: &MergeSpec,
    loss_masks: Option<&Bound<'py, PyAny>>,
    drop_untrainable: bool,
) -> Result<Merge> {
    let prompts = Rows::new::<i64>("prompts", prompts, Check::None)?;
    let responses = Rows::new::<i64>("responses", responses, Check::None)?;
    let turns = Turns::new(prompts.lens(), responses.lens())?;
    let mask = loss_masks.map(|masks| {
        let masks = Rows::new::<f32>("loss_masks", masks, Check::Number)?;
        turns.check_count("loss_masks", masks.len())?;
        turns.check_response_lens("loss_masks", &masks.lens())?;
        Ok::<_, Error>(masks)
    });
    let mask = mask.transpose()?;
    let merge = Merge::of_columns(py, spec, &prompts, &responses, &turns, trajectories)?;
    if drop_untrainable {
        return Ok(Merge(merge.0.without_untrainable(mask.as_ref())?));
    }
    Ok(merge)
}

#[pymethods]
impl Merge {
    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.assembly.rows().len()
    }

    /// Where the trajectories end, one past their last turns: int64 (trajectories,).
    #[getter]
    fn ends<'py>(&self, py: Python<'py>) -> Column<'py> {
        column_of(py, self.0.ends.iter().copied())
    }

    /// The trajectory of each row, int64 (rows,).
    #[getter]
    fn trajectories<'py>(&self, py: Python<'py>) -> Column<'py> {
        column_of(py, self.0.trajectories.iter().copied())
    }

    /// The last turn of each row, whose prompt + response are its tokens: int64 (rows,).
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> Column<'py> {
        sources_of(py, &self.0.assembly)
    }

    /// Prompt tokens of each row, int64 (rows,).
    #[getter]
    fn prompt_lens<'py>(&self, py: Python<'py>) -> Column<'py> {
        rows_of(py, &self.0.assembly, |row| row.prompt_len)
    }

    /// Response tokens of each row, observations included, int64 (rows,).
    #[getter]
    fn response_lens<'py>(&self, py: Python<'py>) -> Column<'py> {
        rows_of(py, &self.0.assembly, |row| row.response_len)
    }

    /// Prompt tokens of each turn, int64 (turns,).
    #[getter]
    fn turn_prompt_lens<'py>(&self, py: Python<'py>) -> Column<'py> {
        column_of(py, self.0.turns.prompt_lens().iter().copied())
    }

    /// Response tokens of each turn, int64 (turns,).
    #[getter]
    fn turn_response_lens<'py>(&self, py: Python<'py>) -> Column<'py> {
        column_of(py, self.0.turns.response_lens().iter().copied())
    }

    /// Tokens of turns' responses that stand in each row, int64 (rows,).
    #[getter]
    fn sampled_lens<'py>(&self, py: Python<'py>) -> Column<'py> {
        let pieces = |row| self.0.assembly.pieces(row).iter();
        let lens = (0..self.num_rows()).map(|row| pieces(row).map(|piece| piece.len).sum());
        column_of(py, lens)
    }

    /// For each break the turn, the position, where its ids begin, its kind, whether it was realigned,
    /// and the ids expected and found.
    #[allow(clippy::type_complexity, reason = "unpacked in one place")]
    fn breaks(&self) -> Vec<(usize, usize, usize, &'static str, bool, Vec<i64>, Vec<i64>)> {
        let kind = |broken: &Break| match broken.kind(&self.0.turns) {
            Kind::Shorter => "shorter",
            Kind::Drift => "drift",
            Kind::Diverged => "diverged",
        };
        let entry = |broken: &Break| {
            (
                broken.turn,
                broken.difference.position,
                broken.window_start(),
                kind(broken),
                broken.is_realigned,
                broken.expected.clone(),
                broken.found.clone(),
            )
        };
        self.0.breaks.iter().map(entry).collect()
    }

    /// The tables as NumPy arrays, all int64.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let merge = &self.0;
        let tables = PyDict::new(py);
        tables::set_assembly(&tables, &merge.turns, &merge.assembly)?;
        tables.set_item("trajectory_ends", self.ends(py))?;
        tables.set_item("trajectories", self.trajectories(py))?;
        set_table(&tables, "breaks", &merge.breaks, |broken| {
            let Difference { from, position } = broken.difference;
            let is_realigned = usize::from(broken.is_realigned);
            [broken.turn, from, position, is_realigned]
        })?;
        let ids = |ids: fn(&Break) -> &Vec<i64>| {
            PyArray1::from_iter(py, merge.breaks.iter().flat_map(ids).copied())
        };
        tables.set_item("break_expected_ids", ids(|broken| &broken.expected))?;
        tables.set_item("break_found_ids", ids(|broken| &broken.found))?;
        Ok(tables)
    }

    /// The merge of such tables, checked.
    #[classmethod]
    fn from_dict(_: &Bound<PyType>, tables: &Bound<PyDict>) -> Result<Self> {
        let (turns, assembly) = tables::assembly(tables)?;
        let breaks = breaks_of(tables, &turns)?;
        let ends = column(tables, "trajectory_ends")?;
        let trajectories = column(tables, "trajectories")?;
        let merge = CoreMerge::new(turns, assembly, ends, trajectories, breaks)?;
        Ok(Self(merge))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let from_dict = slf.get_type().getattr("from_dict")?;
        Ok((from_dict, (slf.get().to_dict(slf.py())?,)))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// The breaks of a merge's tables.
fn breaks_of(tables: &Bound<PyDict>, turns: &Turns) -> Result<Vec<Break>> {
    let invalid = |reason: &str| Error::from(Core::InvalidPlan(reason.to_owned()));
    let ids = |name| Ok::<_, Error>(array::<Ix1>(tables, name)?.as_array().to_vec());
    let (expected, found) = (ids("break_expected_ids")?, ids("break_found_ids")?);
    let (mut expected, mut found) = (expected.into_iter(), found.into_iter());
    let take = |ids: &mut vec::IntoIter<i64>, count| {
        let taken: Vec<_> = ids.by_ref().take(count).collect();
        let is_all = taken.len() == count;
        is_all
            .then_some(taken)
            .ok_or_else(|| invalid("breaks have too few ids"))
    };
    let mut breaks = Vec::new();
    for [turn, from, position, is_realigned] in rows_of_table(tables, "breaks")? {
        let difference = Difference { from, position };
        if !difference.fits(turn, turns) {
            return Err(invalid("a break is at no position of its turns"));
        }
        let [of_expected, of_found] = difference.windows(turn, turns);
        breaks.push(Break {
            turn,
            difference,
            is_realigned: is_realigned != 0,
            expected: take(&mut expected, of_expected.len())?,
            found: take(&mut found, of_found.len())?,
        });
    }
    if expected.len() + found.len() > 0 {
        return Err(invalid("breaks have too many ids"));
    }
    Ok(breaks)
}
