//! Prefix sharing between rows.

use fastcollate::plan::share::{self, Node, Share, ShareIds, Tree, TreeRow};
use fastcollate::plan::{Assembly, PackedTrees};
use fastcollate::{Error as Core, Ticks, filled, gathered, try_gathered, with_room};
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::{Error, Result};
use crate::interrupt::{poll, stoppable};
use crate::names::Names;
use crate::plan::layout::LayoutSpec;
use crate::plan::merging::{Merge, compared};
use crate::plan::packing::{PackSpec, Ranks, check_fit};
use crate::plan::tables::{Column, array_of, column_of, copied, rows_of, to_i64, usizes};
use crate::rows::TokenInput;

/// Rules for sharing tokens between rows.
pub const SHARES: Names<Share> = Names::new(
    "share",
    &[(Share::All, "all"), (Share::Group, "group"), (Share::Prompts, "prompts")],
);

/// Rows sorted by their tokens, each with the length of its common prefix with the previous row.
/// Holds no tokens.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct PrefixTree(Tree);

/// Sort rows by their tokens: those of each turn, or of a merge of turns.
///
/// # Returns
/// The sorted rows, the length that each shares with the previous one, and the prompt and response
/// lengths by row: all int64.
#[pyfunction]
pub fn share_prefixes<'py>(
    py: Python<'py>,
    tokens: TokenInput<'py>,
    merge: Option<&Merge>,
    share: &Bound<PyAny>,
    uids: Option<PyReadonlyArray1<'py, i64>>,
    same_inputs: Option<PyReadonlyArray1<'py, i64>>,
) -> Result<[Column<'py>; 4]> {
    let share = SHARES.read(share)?;
    let tokens = tokens.read(None)?;
    let turns = tokens.turns()?;
    let own;
    let assembly = match merge {
        Some(merge) => {
            merge.core().check_turns(&turns)?;
            &merge.core().assembly
        }
        None => {
            own = Assembly::row_per_turn(&turns, &mut Ticks::new(&mut poll))?;
            &own
        }
    };
    let uids = uids.map(|ids| usizes("uids", &ids)).transpose()?;
    let same_inputs = same_inputs.map(|ids| usizes("same_inputs", &ids)).transpose()?;
    for (name, ids) in [("uids", &uids), ("same_inputs", &same_inputs)] {
        if let Some(ids) = ids {
            turns.check_count(name, ids.len())?;
        }
    }
    let ids = ShareIds { uids: uids.as_deref(), same_inputs: same_inputs.as_deref() };
    let rows = assembly.rows();
    let tree = compared(py, &tokens, &turns, |streams| Tree::of_rows(streams, rows, share, ids))?;
    let (order, shared) = columns(py, tree.rows())?;
    let prompt_lens = rows_of(py, assembly, |row| row.prompt_len)?;
    let response_lens = rows_of(py, assembly, |row| row.response_len)?;
    Ok([order, shared, prompt_lens, response_lens])
}

/// Hash the prompt of each row: 128 bits as two uint64, (rows, 2), independent of the input's type.
#[pyfunction]
pub fn hash_prompts<'py>(
    py: Python<'py>,
    tokens: TokenInput<'py>,
) -> Result<Bound<'py, PyArray2<u64>>> {
    let tokens = tokens.read(None)?;
    let turns = tokens.turns()?;
    let hashes = compared(py, &tokens, &turns, share::prompt_hashes)?;
    Ok(Array2::from(hashes).into_pyarray(py))
}

impl PrefixTree {
    /// The tree.
    pub fn core(&self) -> &Tree {
        &self.0
    }
}

/// The sorted rows of trees, with their shared lengths; prompt and response lengths are by row.
///
/// # Errors
/// Tables that do not fit together.
fn tree_rows(
    order: &PyReadonlyArray1<i64>,
    shared: &PyReadonlyArray1<i64>,
    lengths: &PyReadonlyArray1<i64>,
) -> Result<Vec<TreeRow>> {
    let (order, shared) = (usizes("order", order)?, usizes("shared", shared)?);
    let lens = usizes("lengths", lengths)?;
    if order.len() != lens.len() || shared.len() != lens.len() {
        let reason = "order, shared and lengths must be of one length";
        return Err(Core::InvalidPlan(reason.to_owned()).into());
    }
    let row = |(row, shared): (usize, usize)| {
        let last = lens.len() - 1;
        let missing =
            || Core::InvalidPlan(format!("order has row {row}, but rows must be from 0 to {last}"));
        let len = *lens.get(row).ok_or_else(missing)?;
        Ok(TreeRow { row, len, shared })
    };
    Ok(try_gathered::<_, Core>(order.into_iter().zip(shared).map(row))?)
}

#[pymethods]
impl PrefixTree {
    /// The tree of sorted rows, with their shared lengths; lengths are by row.
    ///
    /// # Errors
    /// `ValueError` with the first defect of the tables.
    #[new]
    fn new(
        order: PyReadonlyArray1<i64>,
        shared: PyReadonlyArray1<i64>,
        lengths: PyReadonlyArray1<i64>,
    ) -> Result<Self> {
        let tree = tree_rows(&order, &shared, &lengths).and_then(|rows| Ok(Tree::new(rows)?));
        Ok(Self(tree.map_err(|error| match error {
            Error::Core(Core::InvalidPlan(reason)) => PyValueError::new_err(reason).into(),
            other => other,
        })?))
    }

    /// Number of token pairs in attention.
    #[getter]
    fn attention_pairs(&self) -> u128 {
        self.0.attention_pairs()
    }

    /// Starts, lengths, parents (-1 for roots), depths and subtree ends of nodes; and the last node
    /// of each row, -1 for empty rows: all int64.
    fn nodes<'py>(&self, py: Python<'py>) -> Result<[Column<'py>; 6]> {
        let found = self.0.nodes()?;
        let of = |value: fn(&Node) -> usize| column_of(py, found.nodes.iter().map(value));
        let index = |node: Option<usize>| node.map_or(-1, to_i64);
        let parents = found.nodes.iter().map(|node| index(node.parent));
        let mut leaves = filled(self.0.rows().len(), |_| -1)?;
        for (row, &leaf) in self.0.rows().iter().zip(&found.leaves) {
            leaves[row.row] = index(leaf);
        }
        Ok([
            of(|node| node.start)?,
            of(|node| node.len)?,
            array_of(py, parents)?,
            of(|node| node.depth)?,
            of(|node| node.subtree_end)?,
            PyArray1::from_vec(py, leaves),
        ])
    }

    /// The tree of some rows, renumbered: their order, and their shared lengths.
    fn select<'py>(
        &self,
        py: Python<'py>,
        rows: PyReadonlyArray1<i64>,
    ) -> Result<(Column<'py>, Column<'py>)> {
        let mut numbers = filled(self.0.rows().len(), |_| None)?;
        for (number, row) in usizes("rows", &rows)?.into_iter().enumerate() {
            let invalid =
                || Core::InvalidPlan(format!("row {row} is not there, or is there twice"));
            let known = numbers.get_mut(row).filter(|known| known.is_none());
            *known.ok_or_else(invalid)? = Some(number);
        }
        let number = |index: usize| numbers[self.0.rows()[index].row];
        let selected = stoppable(py, |ticks| {
            let of_part = |index| number(index).map(|_| 0);
            self.0.parted(of_part, 1, ticks)
        })?;
        let rows = selected[0]
            .rows()
            .iter()
            .map(|row| TreeRow { row: numbers[row.row].unwrap_or_default(), ..*row });
        columns(py, &gathered(rows)?)
    }

    /// The length that each row shares with the previous one within the limits of a layout: int64.
    fn within<'py>(&self, py: Python<'py>, layout: &LayoutSpec) -> Result<Column<'py>> {
        let tree = layout.core().tree_spec();
        let limits = tree.map(|tree| tree.limits).unwrap_or_default();
        let found = self.0.within(&limits)?;
        column_of(py, found.rows().iter().map(|row| row.shared))
    }

    /// Pack the rows of a mini-batch for ranks with equal numbers of bins. `shared` has the numbers
    /// of tokens that rows may share, ascending and without 0, and `shared_costs` their costs.
    /// `bin_cost` is that of a bin besides its rows.
    ///
    /// # Returns
    /// The rows, int64, with -1 as the one row of an empty bin; the number of rows per bin, int64
    /// (bins,); the number of filled bins; the length that each row shares with the previous one.
    fn pack_for_ranks<'py>(
        &self,
        py: Python<'py>,
        spec: &PackSpec,
        shared: PyReadonlyArray1<i64>,
        shared_costs: PyReadonlyArray1<f64>,
        bin_cost: f64,
        ranks: Ranks,
    ) -> Result<(Column<'py>, Column<'py>, usize, Column<'py>)> {
        let shared = usizes("shared", &shared)?;
        let costs = copied(&shared_costs)?;
        let numbers = self.0.rows().iter().map(|row| row.row);
        let first_row = numbers.clone().min().unwrap_or(0);
        let count = numbers.map(|row| row + 1 - first_row).max();
        let has_costs = ranks.costs.as_ref().is_none_or(|costs| Some(costs.len()) >= count);
        check_fit(ranks.count > 0 && shared.len() == costs.len() && has_costs)?;
        let cost_of_shared = |len: usize| match shared.binary_search(&len) {
            Ok(index) => costs[index],
            Err(_) => 0.0,
        };
        let found = stoppable(py, |ticks| {
            let own = spec.core.for_ranks(ranks.count);
            spec.cost.with(|cost| {
                let trees = PackedTrees {
                    tree: &self.0,
                    first_row,
                    cost: &cost,
                    cost_of_shared: &cost_of_shared,
                    cost_of_bin: bin_cost,
                };
                ranks.deal().pack_trees(&trees, &own, ranks.count, ticks)
            })
        })?;
        let counts = found.bins.iter().map(|tree| tree.rows().len().max(1));
        let rows = found.bins.iter().flat_map(|tree| {
            let synthetic = tree.rows().is_empty().then_some((-1, 0));
            let rows = tree.rows().iter();
            rows.map(|row| (to_i64(row.row), to_i64(row.shared))).chain(synthetic)
        });
        let (rows, shared): (Vec<_>, Vec<_>) = rows.unzip();
        Ok((
            PyArray1::from_vec(py, rows),
            column_of(py, counts)?,
            found.filled,
            PyArray1::from_vec(py, shared),
        ))
    }

    /// The trees of mini-batches with these row offsets; the last offset is the number of rows.
    fn parted(&self, py: Python<'_>, offsets: PyReadonlyArray1<i64>) -> Result<Vec<Self>> {
        let offsets = usizes("offsets", &offsets)?;
        let rows = self.0.rows();
        if offsets.first() != Some(&0) || offsets.last() != Some(&rows.len()) {
            let reason = "offsets of mini-batches do not match the rows".to_owned();
            return Err(Core::InvalidPlan(reason).into());
        }
        let part = |index: usize| {
            let row = rows[index].row;
            Some(offsets.partition_point(|&offset| offset <= row) - 1)
        };
        let parts = stoppable(py, |ticks| self.0.parted(part, offsets.len() - 1, ticks))?;
        Ok(gathered(parts.into_iter().map(Self))?)
    }

    /// Pack the rows into bins.
    ///
    /// # Returns
    /// Bin offsets, with the end of the last; the rows of all bins, and the length that each shares
    /// with the previous one in its bin: all int64.
    fn pack<'py>(&self, py: Python<'py>, spec: &PackSpec) -> Result<[Column<'py>; 3]> {
        let bins =
            stoppable(py, |ticks| spec.cost.with(|cost| self.0.pack(&spec.core, &cost, ticks)))?;
        let mut offsets = vec![0];
        let mut rows = with_room(self.0.rows().len())?;
        for bin in bins {
            rows.extend(bin.rows());
            offsets.push(rows.len());
        }
        let (order, shared) = columns(py, &rows)?;
        Ok([column_of(py, offsets)?, order, shared])
    }
}

/// Rows, and the length that each shares with the previous one.
pub fn columns<'py>(py: Python<'py>, rows: &[TreeRow]) -> Result<(Column<'py>, Column<'py>)> {
    let of = |value: fn(&TreeRow) -> usize| column_of(py, rows.iter().map(value));
    Ok((of(|row| row.row)?, of(|row| row.shared)?))
}
