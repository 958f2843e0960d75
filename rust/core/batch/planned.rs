//! A planned batch: its outputs, the memory of their arrays, and writing.

use std::borrow::Cow;
use std::ops::Range;

use super::array_grids::{ArrayGrid, Placed, Segments, check_unplaced, of_responses, row_offsets};
use super::arrays::{Content, Derived, LossMask, Read, jobs};
use super::execute::{self, Jobs};
use super::field::check_numbers;
use super::outputs::{LOGPROBS, LOSS_MASK, Output, OutputSpec, PositionIds, What, outputs};
use super::{BatchRows, Columns, FieldKind, FieldSpec, OutputAlign};
use crate::column::{AnyColumn, FieldColumn, SliceColumn, Tokens};
use crate::dtype::{Dtype, IntDtype};
use crate::error::{Error, Result};
use crate::memory::{check_room, few, try_gathered, with_room};
use crate::plan::{Align, Assembly, Chunk, CpRank, Grid, Placement, Row, Segment};
use crate::polling::Poll;
use crate::write::{Destination, PositionPadding};

/// Arrays begin on cache lines, so that one never shares a line with the next.
pub const CACHE_LINE: usize = 64;

/// Number of log-probabilities that are examined.
const LOOKS: usize = 1 << 12;

/// Least number of prompt tokens that responses do not repeat by chance.
const BY_CHANCE: usize = 6;

/// A requested batch, without rows and their placement.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The value of ids on padding.
    pub pad_token_id: i64,
    /// The fields.
    pub fields: &'a [&'a FieldSpec],
    /// The outputs that are not fields.
    pub outputs: &'a OutputSpec,
    /// The rank whose chunks of the per-token outputs are written, if ranks share packed rows.
    pub cp: Option<CpRank>,
}

/// A planned batch, ready to be written.
#[derive(Debug)]
pub struct Planned {
    /// The outputs, in order.
    pub outputs: Vec<PlannedOutput>,
    num_bytes: usize,
}

/// A planned output.
#[derive(Debug)]
pub struct PlannedOutput {
    /// Its description, independent of values.
    pub output: Output,
    /// Its value.
    pub value: Value,
}

/// The value of an output.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "most are arrays")]
pub enum Value {
    /// An array in the memory of the batch.
    Array(Array),
    /// A number of tokens.
    Length(usize),
    /// One small array per output row.
    ByRow(Vec<Vec<i32>>),
    /// Kept by the caller.
    Given,
}

/// An array in the memory of a batch.
#[derive(Debug)]
pub struct Array {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its bytes in the memory of the batch.
    pub bytes: Range<usize>,
    pub(super) array_grid: ArrayGrid,
    pub(super) content: Content,
}

impl Request<'_> {
    /// Plan a batch: all errors in lengths and dimensions are found here. Values are read only if
    /// they have no place, to choose a dtype, or to refuse NaN among numbers of rows. The hook is
    /// called between steps.
    ///
    /// # Errors
    /// Inputs that do not fit together, and errors of the columns and of the hook.
    ///
    /// # Panics
    /// If the number of columns is not the number of written fields.
    pub fn plan<C: FieldColumn + Tokens>(
        &self,
        rows: &BatchRows,
        placement: &Placement,
        columns: &mut Columns<C>,
        poll: Poll,
    ) -> Result<Planned> {
        let fields = columns.fields.iter_mut();
        let mut fields: Vec<_> = few(fields.map(|field| field as &mut dyn FieldColumn));
        let planned = self.plan_fields(rows, placement, &mut fields, poll)?;
        check_unplaced(&planned, placement, &columns.source(rows.read()))?;
        Ok(planned)
    }

    /// Index of the loss mask among the fields, if present.
    pub(super) fn loss_mask(&self) -> Option<usize> {
        self.fields.iter().position(|field| field.weighs)
    }

    /// Plan a batch of these fields, without reading values that have no place.
    fn plan_fields(
        &self,
        rows: &BatchRows,
        placement: &Placement,
        columns: &mut [&mut dyn FieldColumn],
        poll: Poll,
    ) -> Result<Planned> {
        check_room(rows.turns.count().max(rows.read().rows().len()))?;
        let is_written = |field: &&&FieldSpec| field.is_written();
        let count = self.fields.iter().filter(is_written).count();
        assert_eq!(count, columns.len(), "one column for each field");
        let mut indexed = columns.iter_mut().enumerate();
        let mut placed = with_room(self.fields.len())?;
        for field in self.fields {
            let column = indexed.by_ref().take(usize::from(field.is_written())).next();
            placed.push(match column {
                Some((index, column)) => Some(field.array_grid(*column, index, rows, placement)?),
                None => None,
            });
            poll()?;
        }
        let rounds_up = placement.bin_layout.is_some_and(|layout| layout.multiple_of > 1);
        let (pad, layout) = (self.pad_token_id, placement.layout);
        let table = outputs(self.outputs, self.fields, pad, layout, rounds_up)?;
        let loss_mask = self.loss_mask();
        let mask = loss_mask.and_then(|index| placed[index].as_ref());
        let mask = mask.map(|mask| LossMask {
            column: mask.field.column,
            assembly: mask.field.assembly.clone(),
            dtype: mask.field.dtype,
        });
        check_numbers(self.fields, columns, rows, placement, mask.as_ref())?;
        let chunks = self.cp.map(|rank| rank.chunks(placement)).transpose()?;
        self.place_values(&mut placed, columns, rows, placement, chunks.as_deref())?;
        poll()?;
        let mut planner = Planner {
            request: self,
            assembly: rows.read(),
            placement,
            segments: Segments::of_placement(placement)?,
            chunks,
            loss_mask,
            mask,
            placed,
            captured: None,
            end: 0,
        };
        let outputs = table.into_iter().map(|output| {
            let planned = planner.planned(output);
            poll().and(planned)
        });
        Ok(Planned { outputs: try_gathered(outputs)?, num_bytes: planner.end })
    }

    /// Place the values of ragged fields, each by the counts in the field after it.
    fn place_values(
        &self,
        placed: &mut [Option<Placed>],
        columns: &[&mut dyn FieldColumn],
        rows: &BatchRows,
        placement: &Placement,
        chunks: Option<&[Chunk]>,
    ) -> Result<()> {
        let fields = self.fields.iter();
        for (values, field) in fields.enumerate() {
            if let FieldKind::Ragged(_) = field.kind
                && let Some([Some(values), Some(counts)]) = placed.get_mut(values..values + 2)
            {
                let grid = counts.array_grid.grid(placement);
                let grid = match chunks {
                    Some(chunks) => grid.only(chunks),
                    None => grid.clone(),
                };
                let lens = columns[values.field.column].lens()?;
                let column = &*columns[counts.field.column];
                values.place_values(field, &lens, counts, column, rows, &grid)?;
            }
        }
        Ok(())
    }
}

/// Plans the outputs one by one, in the order of the table.
struct Planner<'a> {
    request: &'a Request<'a>,
    assembly: &'a Assembly,
    placement: &'a Placement,
    segments: Segments,
    /// The positions written; none for all.
    chunks: Option<Vec<Chunk>>,
    /// Index of the loss mask among the fields.
    loss_mask: Option<usize>,
    /// The loss mask as the condition for training.
    mask: Option<LossMask>,
    /// Each field until it is planned; none for fields kept by the caller.
    placed: Vec<Option<Placed>>,
    /// Captured indices of the last field.
    captured: Option<Grid>,
    /// End of the last array in memory.
    end: usize,
}

impl Planner<'_> {
    fn planned(&mut self, mut output: Output) -> Result<PlannedOutput> {
        let (spec, placement) = (self.request.outputs, self.placement);
        let (sequence, i32) = (&placement.sequence, IntDtype::I32);
        let value = match output.what {
            What::InputIds => {
                let (pad, dtype) = (self.request.pad_token_id, spec.input_ids);
                let tokens = Read::Tokens { pad, dtype };
                self.array(&output, ArrayGrid::Sequence, Content::Read(tokens), &[])
            }
            What::AttentionMask => self.mask(&output, ArrayGrid::Sequence, spec.attention_mask),
            What::ResponseMask => {
                let array_grid =
                    of_responses(placement.real_responses(self.assembly), ArrayGrid::Own);
                self.mask(&output, array_grid, spec.response_mask)
            }
            What::SequenceIds => {
                let rows = Derived::RowIndices(spec.sequence_ids);
                self.derived(&output, ArrayGrid::Sequence, rows)
            }
            What::PositionIds => {
                let (positions, dtype) = spec.position_ids;
                let padding = match positions {
                    PositionIds::Padded(padding) => Some(padding),
                    PositionIds::Default | PositionIds::Omitted => None,
                };
                // In a tree, segments continue from where they branch off the previous row.
                let array_grid = match (placement.layout.is_packed(), padding) {
                    // Every part of a sequence counts from 0, and by default so does its padding.
                    (true, Some(_)) => ArrayGrid::Own(sequence.restarting()),
                    (true, None) => ArrayGrid::Own(self.segments.positions(sequence)?),
                    // Padding does not continue rows that add no token to a tree.
                    (false, _) if placement.layout.is_tree() => {
                        ArrayGrid::Own(sequence.without_empty())
                    }
                    (false, _) => ArrayGrid::Sequence,
                };
                let padding = padding.unwrap_or(PositionPadding::Zero);
                self.derived(&output, array_grid, Derived::Positions(padding, dtype))
            }
            What::Labels { shifted, dtype } => {
                let array_grid = match placement.labels(self.assembly, shifted) {
                    Cow::Borrowed(_) => ArrayGrid::Sequence,
                    Cow::Owned(grid) => ArrayGrid::Own(grid),
                };
                let labels = Read::Labels { mask: self.mask.clone(), shifted, dtype };
                self.array(&output, array_grid, Content::Read(labels), &[])
            }
            What::LossMask { dtype } => {
                let array_grid = ArrayGrid::Own(placement.trained_responses(self.assembly)?);
                self.mask(&output, array_grid, dtype)
            }
            What::Offsets(align, dtype) => {
                let grid = match align {
                    Align::Sequence if placement.layout.is_tree() => {
                        &Placement::streams(self.assembly)?
                    }
                    Align::Sequence => sequence,
                    Align::Response => &placement.response,
                };
                self.table(&output, row_offsets(grid)?, dtype)
            }
            What::SubtreeEnd => {
                let array_grid = ArrayGrid::Own(placement.subtrees()?);
                self.derived(&output, array_grid, Derived::SubtreeEnds)
            }
            What::Targets => {
                let array_grid = ArrayGrid::Own(placement.targets(self.assembly)?);
                self.array(&output, array_grid, Content::Copied(spec.input_ids), &[])
            }
            What::Predictors => {
                let array_grid = ArrayGrid::Own(placement.predictors(self.assembly)?);
                let places = Derived::Positions(PositionPadding::Zero, IntDtype::I64);
                self.derived(&output, array_grid, places)
            }
            What::RowBins => {
                let bins = placement.row_bins(self.assembly);
                let array_grid = ArrayGrid::Own(Grid::new(bins.len(), 1, Vec::new())?);
                self.derived(&output, array_grid, Derived::Table(bins, IntDtype::I64))
            }
            What::Segments { padded } => self.table(&output, self.segments.offsets(padded)?, i32),
            What::Widths => {
                let rows = self.assembly.rows().iter();
                Ok(Value::Length(rows.map(Row::len).max().unwrap_or(0)))
            }
            What::LongestSegment { padded } => Ok(Value::Length(self.segments.longest(padded))),
            What::RowSegments { padded } => Ok(Value::ByRow(self.segments.offsets_by_row(padded)?)),
            What::Field(index) => match self.placed[index].take() {
                None => Ok(Value::Given),
                Some(Placed { mut field, mut array_grid, trailing, captured, starts }) => {
                    let is_mask = spec.loss_mask.is_some() && self.loss_mask == Some(index);
                    if is_mask && let ArrayGrid::Response = array_grid {
                        let grid = placement.predicted_responses(self.assembly);
                        array_grid = of_responses(grid, ArrayGrid::Predicted);
                    }
                    if let ArrayGrid::Trained(_) = array_grid {
                        field.trained_by = self.mask.clone().map(Box::new);
                    }
                    output.dtype = Some(field.dtype);
                    self.captured = captured;
                    let read = match starts.is_empty() {
                        true => Read::Field(field),
                        false => Read::Offsets { counts: field, starts },
                    };
                    self.array(&output, array_grid, Content::Read(read), &trailing)
                }
            },
            What::UncapturedMask(_) => {
                let grid = self.captured.take();
                let (inverted, dtype) = (true, Dtype::Bool);
                let array_grid = grid.map_or(ArrayGrid::Sequence, ArrayGrid::Own);
                self.derived(&output, array_grid, Derived::Mask { inverted, dtype })
            }
            What::JoinedOffsets(_) => Ok(Value::Given),
        };
        let value = value?;
        Ok(PlannedOutput { output, value })
    }

    fn mask(&mut self, output: &Output, array_grid: ArrayGrid, dtype: Dtype) -> Result<Value> {
        let inverted = false;
        self.derived(output, array_grid, Derived::Mask { inverted, dtype })
    }

    fn table(&mut self, output: &Output, table: Vec<usize>, dtype: IntDtype) -> Result<Value> {
        let array_grid = ArrayGrid::Own(Grid::new(1, table.len(), Vec::new())?);
        self.derived(output, array_grid, Derived::Table(table, dtype))
    }

    fn derived(
        &mut self,
        output: &Output,
        array_grid: ArrayGrid,
        derived: Derived,
    ) -> Result<Value> {
        self.array(output, array_grid, Content::Derived(derived), &[])
    }

    /// Append an array at a place to the memory.
    fn array(
        &mut self,
        output: &Output,
        array_grid: ArrayGrid,
        content: Content,
        trailing: &[usize],
    ) -> Result<Value> {
        let array_grid = match (&self.chunks, output.align) {
            (Some(chunks), OutputAlign::Sequence | OutputAlign::Response) => {
                let grid = array_grid.grid(self.placement).only(chunks);
                ArrayGrid::Part(Box::new(array_grid), grid)
            }
            _ => array_grid,
        };
        let grid = array_grid.grid(self.placement);
        let mut shape = match output.align {
            OutputAlign::Row => vec![grid.rows()],
            OutputAlign::Sequence if self.placement.layout.has_rows(Align::Sequence) => {
                vec![grid.rows(), grid.width()]
            }
            OutputAlign::Response if self.placement.layout.has_rows(Align::Response) => {
                vec![grid.rows(), grid.width()]
            }
            _ => vec![grid.width()],
        };
        shape.extend(trailing);
        let begin = self.end.next_multiple_of(CACHE_LINE);
        let bytes = shape
            .iter()
            .try_fold(content.dtype().size(), |bytes, &len| bytes.checked_mul(len))
            .and_then(|bytes| bytes.checked_add(begin))
            .filter(|&end| end <= isize::MAX.unsigned_abs() - 2 * CACHE_LINE);
        let Some(end) = bytes else {
            let message = "the batch is larger than any memory";
            return Err(Error::NoMemory(message.to_owned()));
        };
        self.end = end;
        Ok(Value::Array(Array { shape, bytes: begin..end, array_grid, content }))
    }
}

impl Planned {
    /// Bytes of memory for all arrays.
    pub fn num_bytes(&self) -> usize {
        self.num_bytes.next_multiple_of(CACHE_LINE)
    }

    /// The arrays in the memory of the batch, with their outputs.
    pub fn arrays(&self) -> impl Iterator<Item = (&Output, &Array)> {
        self.outputs.iter().filter_map(|planned| match &planned.value {
            Value::Array(array) => Some((&planned.output, array)),
            _ => None,
        })
    }

    /// False if a given loss mask was written to this memory as zeros alone.
    #[must_use]
    pub fn trains(&self, memory: &[u8]) -> bool {
        let is_given = |output: &Output| matches!(output.what, What::Field(_));
        let mut masks = self.arrays().filter(|(output, _)| output.key == LOSS_MASK);
        masks.all(|(output, array)| {
            let bytes = &memory[array.bytes.clone()];
            !is_given(output) || bytes.is_empty() || bytes.iter().any(|&byte| byte != 0)
        })
    }

    /// True if most of the first log-probabilities that were written to this memory are above 0.
    #[must_use]
    pub fn has_positive_logprobs(&self, memory: &[u8]) -> bool {
        let is_plain = |(output, array): &(&Output, &Array)| {
            output.key == LOGPROBS && array.content.dtype() == Dtype::F32
        };
        let Some((_, array)) = self.arrays().find(is_plain) else {
            return false;
        };
        let bytes = &memory[array.bytes.clone()];
        let values = bytes.as_chunks::<4>().0.iter().take(LOOKS).map(|&it| f32::from_ne_bytes(it));
        let (mut above, mut below) = (0, 0);
        for value in values {
            above += usize::from(value > 0.0);
            below += usize::from(value < 0.0);
        }
        above > below
    }

    /// True if every response begins with its whole prompt, in ids that were written to this memory
    /// as whole rows; prompts of one repeated token do not count.
    #[must_use]
    pub fn repeats_prompts(&self, rows: &[Row], placement: &Placement, memory: &[u8]) -> bool {
        let is_whole = |array: &Array| !matches!(array.array_grid, ArrayGrid::Part(..));
        let of_ids =
            |(output, array): &(&Output, &Array)| output.what == What::InputIds && is_whole(array);
        let Some((_, ids)) = self.arrays().find(of_ids) else {
            return false;
        };
        let (bytes, size) = (&memory[ids.bytes.clone()], ids.content.dtype().size());
        let grid = placement.sequence.whole();
        let position = |segment: &Segment| grid.position_of(segment);
        let mut segments = placement.sequence.segments().iter().peekable();
        let (mut repeated, mut differ) = (0, false);
        while let Some(segment) = segments.next() {
            let begin = position(segment);
            let mut end = begin + segment.len;
            // A row's prompt and response, if they lie next to each other.
            while let Some(next) = segments.next_if(|next| next.row == segment.row) {
                end += if position(next) == end { next.len } else { 0 };
            }
            if segment.from > 0 {
                continue; // the rest of a row, or what a row of a tree does not share
            }
            let len = rows[segment.row].prompt_len;
            if end - begin <= 2 * len {
                return false;
            }
            let (prompt, rest) = bytes[begin * size..end * size].split_at(len * size);
            if !rest.starts_with(prompt) {
                return false; // usually the first row
            }
            repeated += len;
            differ |= prompt.chunks(size).any(|id| id != &prompt[..size]);
        }
        differ && repeated >= BY_CHANCE
    }

    /// Write all arrays to memory of [`num_bytes`](Self::num_bytes) bytes; `is_zeroed` is true if
    /// it is all zero. Only this thread reads the columns and calls the hook.
    ///
    /// # Errors
    /// Those of the columns and the hook; the memory is then partly written.
    ///
    /// # Panics
    /// If the memory is too small, or not aligned for its numbers.
    pub fn write<C: Tokens + AnyColumn>(
        &self,
        columns: &Columns<C>,
        assembly: &Assembly,
        placement: &Placement,
        memory: &mut [u8],
        is_zeroed: bool,
        poll: Poll,
    ) -> Result<()> {
        let jobs = self.jobs(placement, memory, is_zeroed);
        execute::write(jobs, &columns.source(assembly), poll)?;
        self.copy_ids(placement, memory);
        Ok(())
    }

    /// As [`write`](Self::write), from plain memory and with as many threads as pay; only this
    /// thread calls the hook.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Panics
    /// As [`write`](Self::write).
    pub fn write_slices(
        &self,
        columns: &Columns<SliceColumn>,
        assembly: &Assembly,
        placement: &Placement,
        memory: &mut [u8],
        is_zeroed: bool,
        poll: Poll,
    ) -> Result<()> {
        let jobs = self.jobs(placement, memory, is_zeroed);
        execute::write_slices(jobs, columns, assembly, poll)?;
        self.copy_ids(placement, memory);
        Ok(())
    }

    /// Copy token ids of the batch, which were written first.
    fn copy_ids(&self, placement: &Placement, memory: &mut [u8]) {
        let ids = self.arrays().find(|(output, _)| output.what == What::InputIds);
        for (_, array) in self.arrays() {
            let (Content::Copied(dtype), Some((_, ids))) = (&array.content, ids) else {
                continue;
            };
            let size = Dtype::from(*dtype).size();
            let (before, rest) = memory.split_at_mut(array.bytes.start);
            let ids = &before[ids.bytes.clone()];
            for run in array.array_grid.grid(placement).segments() {
                let to = &mut rest[run.dst_col * size..][..run.len * size];
                to.copy_from_slice(&ids[run.from * size..][..run.len * size]);
            }
        }
    }

    fn jobs<'a>(
        &'a self,
        placement: &'a Placement,
        memory: &'a mut [u8],
        is_zeroed: bool,
    ) -> Jobs<'a> {
        let mut all = Jobs { derived: Vec::new(), read: Vec::new(), is_fresh: is_zeroed };
        let (mut rest, mut at) = (memory, 0);
        for (_, array) in self.arrays() {
            let (_, tail) = rest.split_at_mut(array.bytes.start - at);
            let (values, tail) = tail.split_at_mut(array.bytes.len());
            (rest, at) = (tail, array.bytes.end);
            let bytes = Destination { values, is_zeroed };
            let grid = array.array_grid.grid(placement);
            let size = array.content.size();
            match &array.content {
                Content::Derived(derived) => all.derived.extend(jobs(derived, size, grid, bytes)),
                Content::Read(read) => all.read.extend(jobs(read, size, grid, bytes)),
                Content::Copied(_) => {}
            }
        }
        all
    }
}

impl Array {
    /// The number type.
    pub fn dtype(&self) -> Dtype {
        self.content.dtype()
    }
}
