//! Merging turns into rows, by a policy or an existing plan.

use std::vec;

use fastcollate::plan::Turns;
use fastcollate::plan::merge::{
    Break, BreakKind, Difference, Masked, Merge as CoreMerge, MergePolicy, MergeRewards,
    MergeSpec as CoreSpec, Realign, Streams,
};
use fastcollate::polling::Polled;
use fastcollate::{Error as Core, FieldColumn, TokenStreams, check_room, gathered};
use numpy::PyReadonlyArray1;
use numpy::ndarray::Ix1;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::batch::field::FieldSpec;
use crate::error::{Error, Result};
use crate::interrupt::poll;
use crate::names::Names;
use crate::plan::batch_plan::Plan;
use crate::plan::tables::{
    self, Column, array, array_of, column, column_of, copied, rows_of, rows_of_table, set_table,
    sources_of, to_i64, usizes,
};
use crate::rows::{PyRows, TokenInput, slices_of};

/// From this number of tokens on, other Python threads may run while plain memory is compared.
const DETACH_FROM: usize = 1 << 17;

/// Merge policies, without the options of realigning.
pub const POLICIES: Names<MergePolicy> = Names::new(
    "policy",
    &[
        (MergePolicy::Exact, "exact"),
        (MergePolicy::Branch, "branch"),
        (
            MergePolicy::Realign(Realign {
                masked: Masked::Tail,
                max_drift_tokens: 0,
                fork_threshold: None,
            }),
            "realign",
        ),
    ],
);

/// Reasons why a turn does not continue the previous one.
const BREAK_KINDS: Names<BreakKind> = Names::new(
    "kind",
    &[
        (BreakKind::Shorter, "shorter"),
        (BreakKind::Drift, "drift"),
        (BreakKind::Diverged, "diverged"),
    ],
);

/// Tokens masked by realigning.
pub const MASK_DRIFTS: Names<Masked> = Names::new(
    "mask_drift",
    &[(Masked::Tail, "tail"), (Masked::Response, "response"), (Masked::Span, "span")],
);

/// Rules for a row's reward.
pub const MERGE_REWARDS: Names<MergeRewards> = Names::new(
    "merge_rewards",
    &[(MergeRewards::Error, "error"), (MergeRewards::Sum, "sum"), (MergeRewards::Last, "last")],
);

/// Merge options: a policy with its options, and the rule for rewards.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct MergeSpec(pub CoreSpec);

#[pymethods]
impl MergeSpec {
    #[new]
    fn new(
        policy: &str,
        mask_drift: &str,
        max_drift_tokens: usize,
        fork_threshold: Option<usize>,
        merge_rewards: &str,
    ) -> PyResult<Self> {
        let realign =
            Realign { masked: MASK_DRIFTS.value(mask_drift)?, max_drift_tokens, fork_threshold };
        Ok(Self(CoreSpec {
            policy: match POLICIES.value(policy)? {
                MergePolicy::Realign(_) => MergePolicy::Realign(realign),
                policy => policy,
            },
            rewards: MERGE_REWARDS.value(merge_rewards)?,
        }))
    }
}

/// The ends of trajectories, and the argument that gave them.
pub type Trajectories<'py> = (PyReadonlyArray1<'py, i64>, String);

/// The source of a batch's rows, if they are not one turn each.
pub enum RowSource<'py> {
    /// Turns merged before.
    Merged(Bound<'py, Merge>),
    /// Turns to be merged.
    ToMerge(Bound<'py, MergeSpec>, Trajectories<'py>),
    /// Rows of another batch, read from its outputs.
    Batch(Bound<'py, Plan>),
}

// Not derived: then each kind that does not fit would cost an exception.
impl<'py> FromPyObject<'_, 'py> for RowSource<'py> {
    type Error = PyErr;

    fn extract(source: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(merge) = source.cast::<Merge>() {
            Ok(Self::Merged(merge.to_owned()))
        } else if let Ok(plan) = source.cast::<Plan>() {
            Ok(Self::Batch(plan.to_owned()))
        } else {
            let (spec, trajectories) = source.extract()?;
            Ok(Self::ToMerge(spec, trajectories))
        }
    }
}

/// The assignment of turns to rows. Immutable; holds no tokens except those around breaks.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Merge(CoreMerge);

/// Compare the tokens of turns; many plain ones with the interpreter released.
///
/// # Errors
/// Those of the comparison.
pub fn compared<T: Send>(
    py: Python,
    tokens: &TokenStreams<PyRows>,
    turns: &Turns,
    compare: impl FnOnce(&Streams) -> Result<T, Core> + Send,
) -> Result<T> {
    let lens = (0..turns.count()).map(|turn| turns.stream_len(turn));
    let slices = if lens.sum::<usize>() < DETACH_FROM { None } else { slices_of(tokens)? };
    let found = match &slices {
        None => compare(&Streams { tokens, turns }),
        Some(slices) => py.detach(|| {
            let tokens = &slices.map(|column| Polled::new(column, &poll));
            compare(&Streams { tokens, turns })
        }),
    };
    Ok(found?)
}

/// Merge turns.
///
/// # Errors
/// Trajectories of another number of turns, and errors of the columns.
pub fn merged(
    py: Python,
    spec: &MergeSpec,
    tokens: &TokenStreams<PyRows>,
    turns: &Turns,
    (ends, name): Trajectories,
) -> Result<Merge> {
    let ends = usizes(&name, &ends)?;
    turns.check_count(&name, ends.last().copied().unwrap_or(0))?;
    compared(py, tokens, turns, |streams| spec.0.merge(streams, ends)).map(Merge)
}

impl Merge {
    /// The rows and their other tables.
    pub fn core(&self) -> &CoreMerge {
        &self.0
    }
}

/// Merge turns into rows. Trajectories without a token that trains may be left out.
#[pyfunction]
pub fn merge_turns<'py>(
    py: Python<'py>,
    tokens: TokenInput<'py>,
    trajectories: Trajectories,
    spec: &MergeSpec,
    loss_mask: Option<(Bound<'py, PyAny>, Bound<'py, FieldSpec>)>,
    drop_untrainable: bool,
) -> Result<Merge> {
    let tokens = tokens.read(None)?;
    py.check_signals()?;
    let turns = tokens.turns()?;
    py.check_signals()?;
    let mask = loss_mask.map(|(masks, field)| {
        let (field, align) = (field.get(), field.get().0.align());
        let masks = field.read(&masks, &turns)?;
        if let Some(masks) = &masks {
            turns.check_lens("loss_mask", &masks.lens()?, align)?;
        }
        Ok::<_, Error>(masks.map(|masks| (masks, align)))
    });
    let mask = mask.transpose()?.flatten();
    let merge = merged(py, spec, &tokens, &turns, trajectories)?;
    if drop_untrainable {
        let mask = mask.as_ref().map(|(masks, align)| (masks as _, *align));
        return Ok(Merge(merge.0.without_untrainable(mask)?));
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

    /// Ends of the trajectories, one past their last turns: int64 (trajectories,).
    #[getter]
    fn ends<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        column_of(py, self.0.ends.iter().copied())
    }

    /// The trajectory of each row, int64 (rows,).
    #[getter]
    fn trajectories<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        column_of(py, self.0.trajectories.iter().copied())
    }

    /// The last turn of each row, whose prompt + response are its tokens: int64 (rows,).
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        sources_of(py, &self.0.assembly)
    }

    /// The row of each turn, -1 if its trajectory was left out: int64 (turns,).
    #[getter]
    fn turn_rows<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        let rows = self.0.turn_rows.iter();
        array_of(py, rows.map(|row| row.map_or(-1, to_i64)))
    }

    /// The rule for a row's one reward.
    #[getter]
    fn merge_rewards(&self) -> &'static str {
        MERGE_REWARDS.name(self.0.rewards)
    }

    /// Number of prompt tokens of each row, int64 (rows,).
    #[getter]
    fn prompt_lens<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        rows_of(py, &self.0.assembly, |row| row.prompt_len)
    }

    /// Number of response tokens of each row, observations included, int64 (rows,).
    #[getter]
    fn response_lens<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        rows_of(py, &self.0.assembly, |row| row.response_len)
    }

    /// Number of prompt tokens of each turn, int64 (turns,).
    #[getter]
    fn turn_prompt_lens<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        column_of(py, self.0.turns.prompt_lens().iter().copied())
    }

    /// Number of response tokens of each turn, int64 (turns,).
    #[getter]
    fn turn_response_lens<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        column_of(py, self.0.turns.response_lens().iter().copied())
    }

    /// Number of tokens of turns' responses in each row, int64 (rows,).
    #[getter]
    fn sampled_lens<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        let pieces = |row| self.0.assembly.pieces(row).iter();
        let lens = (0..self.num_rows()).map(|row| pieces(row).map(|piece| piece.len).sum());
        column_of(py, lens)
    }

    /// Number of turns that break.
    #[getter]
    fn num_breaks(&self) -> usize {
        self.0.breaks.len()
    }

    /// The turns that break, int64 (breaks,).
    #[getter]
    fn break_turns<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        column_of(py, self.0.breaks.iter().map(|broken| broken.turn))
    }

    /// Number of breaks of each kind, in the order of first occurrence.
    fn break_kinds(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(_, usize)> = Vec::new();
        for broken in &self.0.breaks {
            let kind = self.kind_of(broken);
            match counts.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => counts.push((kind, 1)),
            }
        }
        counts
    }

    /// A break's turn, position, start of its ids, kind, realigned flag, and the expected and found
    /// ids.
    #[allow(clippy::type_complexity, reason = "unpacked in one place")]
    fn break_at(
        &self,
        index: usize,
    ) -> PyResult<(usize, usize, usize, &'static str, bool, Vec<i64>, Vec<i64>)> {
        check_room(1).map_err(Error::from)?;
        let breaks = &self.0.breaks;
        let broken = breaks.get(index).ok_or_else(|| {
            let count = breaks.len();
            PyIndexError::new_err(format!("index is {index}, but there are {count} breaks"))
        })?;
        Ok((
            broken.turn,
            broken.difference.position,
            broken.window_start(),
            self.kind_of(broken),
            broken.is_realigned,
            broken.expected.clone(),
            broken.found.clone(),
        ))
    }

    /// The tables as NumPy arrays, all int64.
    fn to_dict<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let merge = &self.0;
        let tables = PyDict::new(py);
        tables::set_assembly(&tables, &merge.turns, &merge.assembly)?;
        tables.set_item("trajectory_ends", self.ends(py)?)?;
        tables.set_item("trajectories", self.trajectories(py)?)?;
        tables.set_item("turn_rows", self.turn_rows(py)?)?;
        tables
            .set_item("merge_rewards", column_of(py, [MERGE_REWARDS.index_of(self.0.rewards)])?)?;
        set_table(&tables, "breaks", &merge.breaks, |broken| {
            let Difference { from, position } = broken.difference;
            let is_realigned = usize::from(broken.is_realigned);
            [broken.turn, from, position, is_realigned]
        })?;
        let ids =
            |ids: fn(&Break) -> &Vec<i64>| array_of(py, merge.breaks.iter().flat_map(ids).copied());
        tables.set_item("break_expected_ids", ids(|broken| &broken.expected)?)?;
        tables.set_item("break_found_ids", ids(|broken| &broken.found)?)?;
        Ok(tables)
    }

    /// The merge of these tables, checked.
    #[classmethod]
    fn _from_dict(_: &Bound<PyType>, tables: &Bound<PyDict>) -> Result<Self> {
        let (turns, assembly) = tables::assembly(tables)?;
        let breaks = breaks_of(tables, &turns)?;
        let merge = CoreMerge {
            turns,
            assembly,
            ends: column(tables, "trajectory_ends")?,
            trajectories: column(tables, "trajectories")?,
            turn_rows: turn_rows_of(tables)?,
            breaks,
            rewards: rewards_of(tables)?,
        };
        Ok(Self(merge.checked()?))
    }

    /// The merge of the turns of several merges, in order.
    #[staticmethod]
    fn joined(merges: Vec<Bound<Self>>) -> Result<Self> {
        let merges = gathered(merges.iter().map(|merge| &merge.get().0))?;
        Ok(Self(CoreMerge::joined(&merges)?))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let from_dict = slf.get_type().getattr("_from_dict")?;
        Ok((from_dict, (slf.get().to_dict(slf.py())?,)))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Merge {
    fn kind_of(&self, broken: &Break) -> &'static str {
        BREAK_KINDS.name(broken.kind(&self.0.turns))
    }
}

/// The row of each turn, from a merge's tables.
fn turn_rows_of(tables: &Bound<PyDict>) -> Result<Vec<Option<usize>>> {
    let rows = array::<Ix1>(tables, "turn_rows")?;
    let rows = rows.as_array();
    if rows.iter().any(|&row| row < -1) {
        let reason = "turn_rows must hold rows or -1".to_owned();
        return Err(Core::InvalidPlan(reason).into());
    }
    Ok(gathered(rows.iter().map(|&row| row.try_into().ok()))?)
}

/// The rule for rewards, from a merge's tables.
fn rewards_of(tables: &Bound<PyDict>) -> Result<MergeRewards> {
    let known = match column(tables, "merge_rewards")?[..] {
        [place] => MERGE_REWARDS.at(place),
        _ => None,
    };
    let unknown = || Core::InvalidPlan("merge_rewards must be 0, 1 or 2".to_owned());
    Ok(known.ok_or_else(unknown)?)
}

/// The breaks, from a merge's tables.
fn breaks_of(tables: &Bound<PyDict>, turns: &Turns) -> Result<Vec<Break>> {
    let invalid = |reason: &str| Error::from(Core::InvalidPlan(reason.to_owned()));
    let ids = |name| copied(&array::<Ix1>(tables, name)?);
    let (expected, found) = (ids("break_expected_ids")?, ids("break_found_ids")?);
    let (mut expected, mut found) = (expected.into_iter(), found.into_iter());
    let take = |ids: &mut vec::IntoIter<i64>, count| {
        let taken = gathered(ids.by_ref().take(count))?;
        if taken.len() < count {
            return Err(invalid("breaks have too few ids"));
        }
        Ok(taken)
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
