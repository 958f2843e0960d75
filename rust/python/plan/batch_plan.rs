//! The plan in Python: an opaque value with its tables as NumPy arrays.

use std::ops::Range;
use std::sync::Arc;

use fastcollate::batch::RowSource;
use fastcollate::plan::{
    Align, Assembly, AttentionRange, Chunk, CpRank, Grid, Layout, PathSegment, Per, Placement,
    Segment, Shard, Shift, Turns, Values, WidthOptions, gather_positions,
};
use fastcollate::{Error as Core, Ticks, filled, gathered, try_gathered};
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArray4, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyAttributeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::error::{Error, Result};
use crate::interrupt::poll;
use crate::plan::layout::{LAYOUTS, LayoutSpec, PADDING_AS, SHIFTS};
use crate::plan::shard::ShardSpec;
use crate::plan::tables::{
    self, Column, array_of, column, column_of, rows_of, sources_of, to_i64, usizes,
};

/// Number of blocks per block, their indices, and the longest list of them.
type BlockArrays<'py> = (Bound<'py, PyArray4<i32>>, Bound<'py, PyArray2<i32>>, usize);

/// The keys of paths, the offsets of segments and of paths, and the longest of each.
type PathArrays<'py> = (Column<'py>, [Bound<'py, PyArray1<i32>>; 2], usize, usize);

/// Begins and ends of spans.
type Span<'py> = Bound<'py, PyArray2<i32>>;

/// The rows of a batch and their placement. Immutable; holds no tokens.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Plan {
    /// Shared by the plans of a batch's shards.
    pub turns: Arc<Turns>,
    pub assembly: Assembly,
    pub placement: Placement,
}

impl Plan {
    /// The turns that the rows of a shard consist of.
    pub fn turns_of(&self, shard: &Shard) -> Arc<Turns> {
        let turns = self.assembly.turns_of(shard, &self.turns);
        turns.map_or_else(|| self.turns.clone(), Arc::new)
    }
}

#[pymethods]
impl Plan {
    /// The error for an unknown attribute lists the public ones.
    fn __getattr__(slf: &Bound<'_, Self>, name: &str) -> PyResult<Py<PyAny>> {
        let names = slf.py().import("fastcollate.common.names")?;
        let message = names.call_method1("unknown_attribute", (slf.get_type(), name))?;
        Err(PyAttributeError::new_err(message.unbind()))
    }

    /// The layout's name.
    #[getter]
    fn layout(&self) -> &'static str {
        LAYOUTS.name(self.placement.layout)
    }

    /// True if outputs have no row dimension: all values are concatenated.
    #[getter]
    fn is_jagged(&self) -> bool {
        self.placement.layout.is_jagged()
    }

    /// True if output rows are bins of several rows.
    #[getter]
    fn has_bins(&self) -> bool {
        self.placement.layout.has_bins()
    }

    /// True if each token has a place of its own in output rows of several rows.
    #[getter]
    fn is_packed(&self) -> bool {
        self.placement.layout.is_packed()
    }

    /// True if rows overlap, with shared tokens stored once.
    #[getter]
    fn is_tree(&self) -> bool {
        self.placement.layout.is_tree()
    }

    /// The leading dimensions of outputs of token streams or, if not `of_sequence`, of responses.
    fn leading_shape<'py>(
        &self,
        py: Python<'py>,
        of_sequence: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (align, grid) = match of_sequence {
            true => (Align::Sequence, &self.placement.sequence),
            false => (Align::Response, &self.placement.response),
        };
        match self.placement.layout.has_rows(align) {
            true => PyTuple::new(py, [grid.rows(), grid.width()]),
            false => PyTuple::new(py, [grid.width()]),
        }
    }

    /// Number of turns that rows were made of, those in other shards included.
    #[getter]
    fn num_turns(&self) -> usize {
        self.turns.total()
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.assembly.rows().len()
    }

    /// Number of output rows.
    #[getter]
    fn num_output_rows(&self) -> usize {
        self.placement.sequence.rows()
    }

    /// Width of sequence-aligned outputs such as `input_ids`.
    #[getter]
    fn width(&self) -> usize {
        self.placement.sequence.width()
    }

    /// Width of response-aligned outputs such as `loss_mask`.
    #[getter]
    fn response_width(&self) -> usize {
        self.placement.response.width()
    }

    /// Number of positions with tokens of real rows.
    #[getter]
    fn num_placed(&self) -> usize {
        let rows = self.assembly.rows();
        let segments = self.placement.sequence.segments().iter();
        let real = segments.filter(|segment| !rows[segment.row].is_padding);
        real.map(|segment| segment.len).sum()
    }

    /// The number of response positions of each row that are set in `flags`, one flag per position of
    /// a response-aligned output: int64 (rows,).
    fn count_in_responses<'py>(
        &self,
        py: Python<'py>,
        flags: PyReadonlyArray1<bool>,
    ) -> Result<Column<'py>> {
        let flags = tables::values(&flags)?;
        let mut counts = filled(self.num_rows(), |_| 0)?;
        for segment in self.placement.response.segments() {
            let start = segment.dst_row * self.response_width() + segment.dst_col;
            let set = flags.get(start..start + segment.len).unwrap_or(&[]);
            counts[segment.row] += set.iter().filter(|&&flag| flag).count();
        }
        column_of(py, counts)
    }

    /// Number of positions of all output rows, in sequence-aligned outputs.
    #[getter]
    fn num_positions(&self) -> usize {
        self.placement.sequence.positions()
    }

    /// Number of tokens of the longest row.
    #[getter]
    fn longest_row(&self) -> usize {
        self.assembly.longest().sequence
    }

    /// Number of prompt tokens of each row, int64 (rows,).
    #[getter]
    fn prompt_lens<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        rows_of(py, &self.assembly, |row| row.prompt_len)
    }

    /// Number of response tokens of each row, int64 (rows,).
    #[getter]
    fn response_lens<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        rows_of(py, &self.assembly, |row| row.response_len)
    }

    /// The last turn of each row, whose prompt + response are its tokens: int64 (rows,).
    #[getter]
    fn sources<'py>(&self, py: Python<'py>) -> Result<Column<'py>> {
        sources_of(py, &self.assembly)
    }

    /// Check that a shard consists of these rows. Returns its first row if it is a view of the
    /// outputs: its rows are contiguous, none is padding, and the step is no wider.
    fn first_in_view(&self, shard: &ShardSpec) -> Result<Option<usize>> {
        let (rows, longest) = (self.assembly.rows(), self.assembly.longest());
        shard.0.check(rows.len(), |row| &rows[row], Some(longest))?;
        Ok(self.placement.first_in_view(&shard.0))
    }

    /// The layout of a shard of these rows, with the width of its step.
    fn layout_for(&self, shard: &ShardSpec) -> Result<LayoutSpec> {
        let in_tree = || Core::InvalidPlan("rows cannot be picked from a tree".to_owned());
        let layout = self.placement.layout_for(&shard.0);
        Ok(layout.map(LayoutSpec::of_rows).ok_or_else(in_tree)?)
    }

    /// The plan of some of the rows in a new layout.
    fn pick(&self, py: Python, shard: &ShardSpec, layout: &LayoutSpec) -> Result<Self> {
        let source = RowSource::Batch(&self.assembly);
        let rows =
            source.rows(&self.turns, Some(&shard.0), layout.core(), &mut Ticks::new(&mut poll))?;
        let placement = layout.place(py, &rows, Some(&shard.0))?;
        let turns = self.turns_of(&shard.0);
        Ok(Self { turns, assembly: rows.into_assembly(), placement })
    }

    /// The plan of a shard's rows alone, with their places in the outputs, and their numbers,
    /// ascending, int64; None if all rows are in the shard, or none, or output rows are bins.
    fn part<'py>(&self, py: Python<'py>, shard: &ShardSpec) -> Result<Option<(Self, Column<'py>)>> {
        let chosen = RowSource::Batch(&self.assembly).chosen(&shard.0, self.placement.layout);
        let Some(chosen) = chosen.filter(|_| !self.placement.layout.has_bins()) else {
            return Ok(None);
        };
        let numbers = &chosen.numbers;
        if numbers.is_empty() {
            return Ok(None);
        }
        let placement = Placement {
            sequence: self.placement.sequence.of_rows(numbers),
            response: self.placement.response.of_rows(numbers),
            ..self.placement
        };
        let turns = self.turns_of(&shard.0);
        let part = Self { turns, assembly: self.assembly.part(numbers), placement };
        Ok(Some((part, column_of(py, numbers.iter().copied())?)))
    }

    /// The rows of some bins of a tree, int64, and their plan.
    fn select_bins<'py>(
        &self,
        py: Python<'py>,
        bins: PyReadonlyArray1<i64>,
    ) -> Result<(Column<'py>, Self)> {
        let bins = usizes("bins", &bins)?;
        let (rows, assembly, placement) = self.placement.of_some_bins(&self.assembly, &bins)?;
        let plan = Self { turns: self.turns.clone(), assembly, placement };
        Ok((column_of(py, rows)?, plan))
    }

    /// The plan of one output row, for attention alone: it has no rows. Its width is that of the
    /// tokens, rounded up to a multiple, and at most that of this plan.
    fn of_bin(&self, bin: usize, multiple_of: usize) -> Result<Self> {
        let placement = self.placement.of_bin(bin, multiple_of)?;
        let assembly = self.assembly.picked(&[]);
        Ok(Self { turns: self.turns.clone(), assembly, placement })
    }

    /// The predictors of the response tokens of a tree's rows, as flat positions, and the bin of
    /// each row, all int64.
    fn tree_positions<'py>(&self, py: Python<'py>) -> Result<(Column<'py>, Column<'py>)> {
        if !self.is_tree() {
            return Err(Core::InvalidPlan("its rows are in no tree".to_owned()).into());
        }
        let runs = self.placement.predictors(&self.assembly)?;
        let mut predictors = filled(runs.positions(), |_| 0)?;
        for run in runs.segments() {
            let positions = predictors[run.dst_col..].iter_mut().take(run.len);
            positions.zip(run.from..).for_each(|(to, position)| *to = to_i64(position));
        }
        let bins = self.placement.row_bins(&self.assembly);
        Ok((PyArray1::from_vec(py, predictors), column_of(py, bins)?))
    }

    /// Flat positions of response tokens' values in an output of width `width` or its own, int64, and
    /// their number per row or turn, int64; -1 for tokens without a position, if `may_miss`.
    #[allow(clippy::too_many_arguments, reason = "most by name")]
    #[pyo3(signature = (of_sequence, next_token=false, width=None, per_turn=false, gaps=true,
        padding=true, may_miss=true))]
    fn gather_positions<'py>(
        &self,
        py: Python<'py>,
        of_sequence: bool,
        next_token: bool,
        width: Option<usize>,
        per_turn: bool,
        gaps: bool,
        padding: bool,
        may_miss: bool,
    ) -> Result<(Column<'py>, Column<'py>)> {
        let (align, own_width) = match of_sequence {
            true => (Align::Sequence, self.width()),
            false => (Align::Response, self.response_width()),
        };
        let width = width.unwrap_or(own_width);
        let shift = if next_token { Shift::NextToken } else { Shift::None };
        let per = if per_turn { Per::Turn } else { Per::Row { gaps, padding } };
        let values = Values { align, shift, width };
        let (turns, assembly, placement) = (&self.turns, &self.assembly, &self.placement);
        let (positions, lens) =
            gather_positions(turns, assembly, placement, values, per, may_miss)?;
        let positions = positions.into_iter().map(|position| position.map_or(-1, to_i64));
        Ok((array_of(py, positions)?, column_of(py, lens)?))
    }

    /// Flat start of each row in the outputs: int64 (rows,), for token streams and for responses.
    /// In a tree, the streams are those of `stream_positions`.
    fn row_starts<'py>(&self, py: Python<'py>) -> Result<(Column<'py>, Column<'py>)> {
        let starts = |grid: &Grid| {
            let mut starts = filled(self.num_rows(), |_| 0)?;
            // From the last segment of a row to its first, whose value remains.
            for segment in grid.segments().iter().rev() {
                starts[segment.row] = to_i64(segment.dst_row * grid.width() + segment.dst_col);
            }
            Ok::<_, Core>(PyArray1::from_vec(py, starts))
        };
        let streams = match self.placement.layout.is_tree() {
            true => starts(&Placement::streams(&self.assembly)?)?,
            false => starts(&self.placement.sequence)?,
        };
        Ok((streams, starts(&self.placement.response)?))
    }

    /// Flat positions of the tokens of each row's stream in a tree, row by row: int64. None in
    /// other layouts, where streams are spans.
    fn stream_positions<'py>(&self, py: Python<'py>) -> Result<Option<Column<'py>>> {
        let Placement { layout, sequence, .. } = &self.placement;
        if !layout.is_tree() {
            return Ok(None);
        }
        let paths = self.placement.paths(&self.assembly)?;
        let rows = (0..self.num_rows()).flat_map(|row| paths.of_row(row));
        let positions = rows.flat_map(|part| {
            let begin = part.dst_row * sequence.width() + part.dst_col;
            begin..begin + part.len
        });
        array_of(py, positions.map(to_i64)).map(Some)
    }

    /// End of the subtree of each position in its output row, int32 (positions,).
    fn subtree_ends<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray1<i32>>> {
        Ok(PyArray1::from_vec(py, self.placement.subtree_ends()?))
    }

    /// Number of tokens before each position in its sequence, int32 (positions,).
    fn depths<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray1<i32>>> {
        Ok(PyArray1::from_vec(py, self.placement.depths()?))
    }

    /// For each block of queries, the blocks of keys attended in part and in full; and the same for
    /// each block of keys: the number of blocks, int32 (4, rows, 1, blocks), and their indices,
    /// int32: four times a list of at most `most` for each block, which begins `most` after the one
    /// before, and room for one as long as there are blocks at the end; and `most`.
    fn block_tables<'py>(
        &self,
        py: Python<'py>,
        block_size: usize,
        window: Option<usize>,
    ) -> PyResult<BlockArrays<'py>> {
        if block_size == 0 {
            return Err(PyValueError::new_err("block_size is 0; pass 1 or more"));
        }
        let rows = self.num_output_rows();
        let blocks = self.width().div_ceil(block_size);
        let placement = &self.placement;
        let tables = py.detach(|| placement.block_tables(block_size, window));
        let tables = tables.map_err(Error::from)?;
        let most = tables.most();
        // NumPy requests large pages, and raises if memory runs out.
        let zeros = py.import("numpy")?.getattr("zeros")?;
        let counts: Bound<PyArray4<i32>> =
            zeros.call1(((4, rows, 1, blocks), "int32"))?.cast_into()?;
        let len = rows.saturating_mul(blocks).saturating_mul(most);
        let len = len.saturating_add(blocks - most);
        let indices: Bound<PyArray2<i32>> = zeros.call1(((4, len), "int32"))?.cast_into()?;
        let (mut to_counts, mut to_indices) = (counts.try_readwrite()?, indices.try_readwrite()?);
        let (to_counts, to_indices) = (to_counts.as_slice_mut()?, to_indices.as_slice_mut()?);
        py.detach(|| tables.write(to_counts, to_indices)).map_err(Error::from)?;
        Ok((counts, indices, most))
    }

    /// Spans of queries and the spans of keys they attend to, as flat positions: int32 (ranges, 2)
    /// each, and whether the attention is causal, bool (ranges,).
    fn attention_ranges<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<(Span<'py>, Span<'py>, Bound<'py, PyArray1<bool>>)> {
        let ranges = self.placement.attention_ranges()?;
        let count = |count: usize| {
            i32::try_from(count).map_err(|_| Core::TooManyPositions { count: self.num_positions() })
        };
        let spans = |of: fn(&AttentionRange) -> &Range<usize>| {
            let span = |range| Ok::<_, Core>([count(of(range).start)?, count(of(range).end)?]);
            let spans = try_gathered(ranges.iter().map(span))?;
            Ok::<_, Core>(Array2::from(spans).into_pyarray(py))
        };
        let is_causal = ranges.iter().map(|range| range.is_causal);
        Ok((spans(|range| &range.queries)?, spans(|range| &range.keys)?, array_of(py, is_causal)?))
    }

    /// Number of segments in attention, and of keys on their paths.
    fn path_sizes(&self) -> Result<(usize, usize)> {
        let paths = self.placement.attention_paths()?;
        Ok((paths.segments.len(), paths.keys))
    }

    /// The paths of segments: the positions of their keys, int64 (keys,); the offsets of segments
    /// and of paths, int32 (segments + 1,); and the longest of each.
    fn attention_paths<'py>(&self, py: Python<'py>) -> PyResult<PathArrays<'py>> {
        let paths = py.detach(|| self.placement.attention_paths());
        let paths = paths.map_err(Error::from)?;
        paths.check().map_err(Error::from)?;
        // NumPy requests large pages, and raises if memory runs out.
        let keys = py.import("numpy")?.getattr("empty")?;
        let keys: Column = keys.call1((paths.keys, "int64"))?.cast_into()?;
        let mut written = keys.try_readwrite()?;
        let values = written.as_slice_mut()?;
        py.detach(|| paths.write_keys(values));
        drop(written);
        let offsets = |len: fn(&PathSegment) -> usize| {
            let ends = paths.segments.iter().scan(0, move |end, segment| {
                *end += len(segment);
                Some(i32::try_from(*end).unwrap_or(i32::MAX))
            });
            array_of(py, [0].into_iter().chain(ends))
        };
        let longest = |len: fn(&PathSegment) -> usize| paths.segments.iter().map(len).max();
        Ok((
            keys,
            [offsets(|one| one.len)?, offsets(PathSegment::path_len)?],
            longest(|one| one.len).unwrap_or(0),
            longest(PathSegment::path_len).unwrap_or(0),
        ))
    }

    /// Spans of rows in output rows: the offsets of output rows among the spans, and of each span
    /// its row, its start in the row, and its length, all int64. None if the layout is not packed.
    fn bins<'py>(&self, py: Python<'py>) -> Result<Option<[Column<'py>; 4]>> {
        if self.placement.bin_layout.is_none() {
            return Ok(None);
        }
        let sequence = &self.placement.sequence;
        let segments = sequence.segments();
        let begin = |bin| segments.partition_point(|segment| segment.dst_row < bin);
        let of_segments = |value: fn(&Segment) -> usize| column_of(py, segments.iter().map(value));
        Ok(Some([
            column_of(py, (0..=sequence.rows()).map(begin))?,
            of_segments(|segment| segment.row)?,
            of_segments(|segment| segment.from)?,
            of_segments(|segment| segment.len)?,
        ]))
    }

    /// The chunks of one of several context-parallel ranks in packed rows: their starts and
    /// lengths, as flat positions, int64 (chunks,).
    fn chunks<'py>(&self, py: Python<'py>, size: usize, rank: usize) -> Result<[Column<'py>; 2]> {
        let chunks = CpRank { size, rank }.chunks(&self.placement)?;
        let of_chunks = |value: fn(&Chunk) -> usize| column_of(py, chunks.iter().map(value));
        Ok([of_chunks(|chunk| chunk.begin)?, of_chunks(|chunk| chunk.len)?])
    }

    /// Length that every packed sequence is rounded up to a multiple of.
    #[getter]
    fn multiple_of(&self) -> usize {
        self.placement.bin_layout.map_or(1, |packing| packing.multiple_of)
    }

    /// True if a position in response-aligned fields holds the value of the next token.
    #[getter]
    fn is_shifted(&self) -> bool {
        self.placement.is_shifted()
    }

    /// Number of sampled tokens of real rows with no token before them in their part of a row, so
    /// that nothing predicts them.
    #[getter]
    fn num_unpredicted(&self) -> usize {
        self.placement.unpredicted(&self.assembly).count()
    }

    /// Number of response tokens without a place because a packer split their sequence before them.
    #[getter]
    fn num_lost(&self) -> usize {
        let sequence = &self.placement.sequence;
        let packing = self.placement.bin_layout;
        packing.map_or(0, |packing| packing.num_lost(&self.assembly, sequence))
    }

    /// Spans in which the tokens of rows are read: the row, the start in the row, the length, and
    /// the output row and column, int64 (spans, 5). In a tree they overlap.
    fn read_segments<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray2<i64>>> {
        let segments = self.placement.read_segments(&self.assembly)?;
        let columns = |segment| tables::columns_of(segment).map(to_i64);
        let rows = gathered(segments.iter().map(columns))?;
        Ok(Array2::from(rows).into_pyarray(py))
    }

    /// The plan's tables as NumPy arrays, all int64.
    fn to_dict<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let tables = PyDict::new(py);
        let layout = LAYOUTS.index_of(self.placement.layout);
        tables.set_item("layout", column_of(py, [layout])?)?;
        tables::set_assembly(&tables, &self.turns, &self.assembly)?;
        let Placement { sequence, response, .. } = &self.placement;
        tables::set_grid(&tables, "sequence", sequence)?;
        tables::set_grid(&tables, "response", response)?;
        if let Some(packing) = self.placement.bin_layout {
            let shift = SHIFTS.index_of(packing.shift);
            let padding_as = PADDING_AS.index_of(packing.padding_as);
            let options = [packing.multiple_of, shift, padding_as];
            tables.set_item("packing", column_of(py, options)?)?;
        }
        Ok(tables)
    }

    /// The plan of these tables, checked.
    #[classmethod]
    fn _from_dict(_: &Bound<PyType>, tables: &Bound<PyDict>) -> Result<Self> {
        let (turns, assembly) = tables::assembly(tables)?;
        let layout = match column(tables, "layout")?[..] {
            [index] => LAYOUTS.at(index),
            _ => None,
        };
        let unknown = || Core::InvalidPlan("layout must be the number of a layout".to_owned());
        let layout = layout.ok_or_else(unknown)?;
        let placement = Placement::new(
            &assembly,
            layout,
            tables::grid(tables, "sequence")?,
            tables::grid(tables, "response")?,
            tables::packing(tables)?,
        )?;
        Ok(Self { turns: Arc::new(turns), assembly, placement })
    }

    /// The jagged plan of the rows of several plans, in order, from their tables of turns and rows.
    #[staticmethod]
    fn joined(plans: Vec<Bound<PyDict>>) -> Result<Self> {
        let plans = plans.iter().map(tables::assembly);
        let plans = try_gathered(plans)?;
        let parts = gathered(plans.iter().map(|(turns, rows)| (turns, rows)))?;
        let (turns, assembly) = Assembly::joined(&parts)?;
        let placement = Placement::of_layout(&assembly, Layout::Jagged, WidthOptions::default())?;
        Ok(Self { turns: Arc::new(turns), assembly, placement })
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyDict>,))> {
        let from_dict = slf.get_type().getattr("_from_dict")?;
        Ok((from_dict, (slf.get().to_dict(slf.py())?,)))
    }

    fn __eq__(&self, other: &Self) -> bool {
        (&self.turns, &self.assembly) == (&other.turns, &other.assembly)
            && self.placement == other.placement
    }

    fn __repr__(&self) -> String {
        format!(
            "Plan(num_rows={}, width={}, response_width={})",
            self.num_rows(),
            self.width(),
            self.response_width()
        )
    }
}
