//! Places of values: grids of fields with the assemblies of their rows, and segments of packed rows.

use std::borrow::Cow;

use super::arrays::{Content, Field, Filling, Read, Source};
use super::planned::{Array, Planned};
use super::{BatchRows, FieldKind, FieldSpec, Spread};
use crate::check::Check;
use crate::column::FieldColumn;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::memory::{gathered, try_gathered};
use crate::plan::merge::Merge;
use crate::plan::{Align, BinLayout, BinSpan, Edge, Form, Grid, Placement, Turns};

/// The place of an array.
#[derive(Debug)]
pub(super) enum ArrayGrid {
    /// The grid of token streams.
    Sequence,
    /// The grid of responses.
    Response,
    /// The grid of responses, without tokens that nothing predicts.
    Predicted(Grid),
    /// The grid of responses, without tokens that do not train.
    Trained(Grid),
    /// On a grid of its own.
    Own(Grid),
    /// Some positions of another place.
    Part(Box<ArrayGrid>, Grid),
}

impl ArrayGrid {
    /// The grid of the place.
    pub fn grid<'a>(&'a self, placement: &'a Placement) -> &'a Grid {
        match self {
            Self::Sequence => &placement.sequence,
            Self::Response => &placement.response,
            Self::Predicted(grid) | Self::Trained(grid) | Self::Own(grid) | Self::Part(_, grid) => {
                grid
            }
        }
    }

    /// The place with all its positions.
    pub fn whole(&self) -> &Self {
        match self {
            Self::Part(whole, _) => whole,
            _ => self,
        }
    }
}

/// The place of a response grid; `own` is used if the grid is owned.
pub(super) fn of_responses(grid: Cow<Grid>, own: fn(Grid) -> ArrayGrid) -> ArrayGrid {
    match grid {
        Cow::Borrowed(_) => ArrayGrid::Response,
        Cow::Owned(grid) => own(grid),
    }
}

/// A planned field.
pub(super) struct Placed {
    pub field: Field,
    pub array_grid: ArrayGrid,
    /// Trailing dimensions of a token's values.
    pub trailing: Vec<usize>,
    /// The places of captured indices, if the field holds such.
    pub captured: Option<Grid>,
    /// The positions where segments and the grid's end begin, with the values before them, if the
    /// field counts values.
    pub starts: Vec<(usize, usize)>,
}

impl FieldSpec {
    /// Merge the field's numbers if there is one per turn, and count non-zero values on tokens that
    /// realigning masked.
    ///
    /// # Errors
    /// Rows of wrong lengths, and numbers that would be dropped.
    pub fn merge(
        &self,
        column: &mut dyn FieldColumn,
        turns: &Turns,
        merge: &Merge,
    ) -> Result<usize> {
        if let Some(mut numbers) = column.numbers()? {
            merge.merge_numbers(&self.name, turns, &mut numbers)?;
            let masked = merge.count_masked_numbers(turns, &numbers);
            column.set_numbers(numbers)?;
            return Ok(masked);
        }
        let align = self.align();
        turns.check_lens(&self.name, &column.lens()?, align)?;
        merge.count_masked(turns, column, align)
    }

    /// Plan the assembly, place and dtype of the field, whose column has this index.
    ///
    /// # Errors
    /// Rows of wrong lengths or dimensions, and impossible dtypes.
    pub(super) fn array_grid(
        &self,
        column: &mut dyn FieldColumn,
        index: usize,
        rows: &BatchRows,
        placement: &Placement,
    ) -> Result<Placed> {
        let name = &self.name;
        let lens = column.lens()?;
        let batch = rows.read();
        let (assembly, array_grid) = match self.kind {
            FieldKind::Captured { indices, layers } => {
                return self.place_captured(column, index, (indices, layers), rows, placement);
            }
            FieldKind::Row | FieldKind::Array { .. } | FieldKind::Object => {
                let assembly = batch.with_one_each();
                let lens = assembly.rows().iter().map(|row| row.response_len);
                let grid = Grid::aligned(lens, 1, Edge::Left)?;
                (Some(assembly), ArrayGrid::Own(grid))
            }
            FieldKind::Sequence | FieldKind::Counts(Align::Sequence) => {
                rows.turns.check_stream_lens(name, &lens, false)?;
                let array_grid = match placement.layout.is_tree() {
                    true => ArrayGrid::Own(Placement::streams(batch)?),
                    false => ArrayGrid::Sequence,
                };
                (Some(batch.with_streams(&lens)), array_grid)
            }
            FieldKind::Response | FieldKind::Cut if column.is_one_number_each() => {
                let spread = self.spread.unwrap_or(Spread::LastOfRow);
                let numbers = column.numbers()?.unwrap_or_default();
                let given = |turn| column.is_given(turn).then(|| numbers[turn]);
                let is_lost = |turn| spread.loses(given(turn));
                let assembly = match spread {
                    Spread::All | Spread::Trained | Spread::OfOutput => None,
                    Spread::Last => Some(batch.on_last_tokens(is_lost)),
                    Spread::LastOfRow => Some(batch.on_last_token(is_lost)),
                };
                let (number, form) = (|turn| rows.turns.number(turn), rows.turns.form());
                let lost = |turn| spread.no_token(name, number(turn), form);
                let array_grid = match spread {
                    Spread::Trained | Spread::OfOutput => {
                        ArrayGrid::Trained(placement.trained_responses(batch)?)
                    }
                    Spread::All | Spread::Last | Spread::LastOfRow => ArrayGrid::Response,
                };
                (assembly.transpose().map_err(lost)?, array_grid)
            }
            FieldKind::Cut => {
                rows.turns.check_stream_lens(name, &lens, false)?;
                for row in batch.rows() {
                    if let Some(turn) = row.source {
                        self.check_prompt(column, turn, row.prompt_len)?;
                    }
                }
                (Some(batch.after_prompts(rows.turns)), ArrayGrid::Response)
            }
            // Placed by its counts (`Placed::place_values`), once they have a place.
            FieldKind::Ragged(_) => (None, ArrayGrid::Response),
            FieldKind::Counts(Align::Response) => {
                rows.turns.check_response_lens(name, &lens)?;
                (None, ArrayGrid::Response)
            }
            FieldKind::Response if !self.any_length => {
                rows.turns.check_response_lens(name, &lens)?;
                match self.spread {
                    // Of what a mask allows now, which may change again.
                    Some(Spread::OfOutput) => {
                        (None, ArrayGrid::Own(placement.trained_responses(batch)?))
                    }
                    _ => (None, ArrayGrid::Response),
                }
            }
            FieldKind::Response => match placement.layout.form() {
                Form::Packed => {
                    let assembly = batch.with_last_tokens(name, &lens, rows.turns)?;
                    // As in SkyRL, values shifted out of a row may be lost, and the last position,
                    // which predicts nothing, has none.
                    (Some(assembly), ArrayGrid::Own(placement.response.without_last_column()?))
                }
                Form::Jagged | Form::Tree => {
                    let reason =
                        format!("{name} has rows of any length, which jagged rows cannot hold");
                    return Err(Error::InvalidPlan(reason));
                }
                Form::Padded => {
                    let assembly = batch.with_response_lens(name, &lens, rows.turns)?;
                    let width = placement.response.width();
                    let grid = Grid::aligned(lens.into_iter(), width, Edge::Right)?;
                    (Some(assembly), ArrayGrid::Own(grid))
                }
            },
        };
        let (pad, gap) = (self.fill, self.gap_fill);
        let field = Field {
            column: index,
            assembly,
            inner: column.inner(),
            filling: Filling::Numbers { pad, gap },
            dtype: self.dtype.unwrap_or(Dtype::F32),
            is_whole: matches!(self.check(), Check::Whole(_)),
            trained_by: None,
            counts: None,
        };
        Ok(Placed {
            field,
            array_grid,
            trailing: column.trailing().to_vec(),
            captured: None,
            starts: Vec::new(),
        })
    }
}

/// Check that the values of tokens that nothing predicts, which have no place, are numbers, although
/// no output has them.
///
/// # Errors
/// Those of the columns.
pub(super) fn check_unplaced(
    planned: &Planned,
    placement: &Placement,
    source: &Source,
) -> Result<()> {
    let mut unpredicted = placement.unpredicted(source.assembly).peekable();
    if unpredicted.peek().is_none() {
        return Ok(());
    }
    let all = Grid::of_tokens(unpredicted)?;
    // Arrays with places of their own, such as fields of whole sequences, have lost nothing.
    let has_lost = |array: &Array| match array.array_grid.whole() {
        ArrayGrid::Predicted(_) => true,
        ArrayGrid::Response => placement.is_shifted(),
        ArrayGrid::Sequence | ArrayGrid::Trained(_) | ArrayGrid::Own(_) | ArrayGrid::Part(..) => {
            false
        }
    };
    for (_, array) in planned.arrays() {
        if matches!(array.content, Content::Read(Read::Field(_))) && has_lost(array) {
            array.content.write_over(&all, source)?;
        }
    }
    Ok(())
}

/// The segments of packed rows.
#[derive(Default)]
pub(super) struct Segments {
    spans: Vec<BinSpan>,
    /// Segment lengths of every output row, in tokens.
    in_tokens: Vec<Vec<usize>>,
    /// The same in places; none if lengths are not rounded up.
    in_places: Vec<Vec<usize>>,
}

impl Segments {
    /// The segments of a batch's placement; none if it is not packed.
    ///
    /// # Errors
    /// More tokens than int32 can count in a packed array.
    pub fn of_placement(placement: &Placement) -> Result<Self> {
        let sequence = &placement.sequence;
        let tokens = sequence.positions();
        let is_shared = !placement.layout.is_padded();
        if is_shared && i32::try_from(tokens).is_err() {
            return Err(Error::TooManyTokens { tokens });
        }
        let Some(bin_layout) = placement.bin_layout else {
            return Ok(Self::default());
        };
        let spans = bin_layout.spans(sequence);
        let in_places = match bin_layout.multiple_of {
            1 => Vec::new(),
            _ => bin_layout.segment_lens(sequence, &spans, true),
        };
        Ok(Self { in_tokens: bin_layout.segment_lens(sequence, &spans, false), in_places, spans })
    }

    /// Segment offsets over the concatenated output rows, with the end of the last.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn offsets(&self, padded: bool) -> Result<Vec<usize>> {
        cumulative(self.lens(padded).iter().flatten().copied())
    }

    /// The length of the longest segment.
    pub fn longest(&self, padded: bool) -> usize {
        let lens = self.lens(padded).iter().flatten();
        lens.copied().max().unwrap_or(0)
    }

    /// Segment offsets in every output row, with the end of the last.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn offsets_by_row(&self, padded: bool) -> Result<Vec<Vec<i32>>> {
        let as_i32 = |count: usize| i32::try_from(count).unwrap_or(i32::MAX); // they were counted
        let of_row = |lens: &Vec<usize>| {
            let ends = cumulative(lens.iter().copied())?;
            gathered(ends.into_iter().map(as_i32))
        };
        try_gathered(self.lens(padded).iter().map(of_row))
    }

    /// The grid for positions: each segment with its padding counts from 0.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn positions(&self, sequence: &Grid) -> Result<Grid> {
        BinLayout::positions(sequence, &self.spans)
    }

    fn lens(&self, padded: bool) -> &[Vec<usize>] {
        if padded { &self.in_places } else { &self.in_tokens }
    }
}

/// Row offsets of a jagged grid, with the end of the last.
///
/// # Errors
/// [`Error::NoMemory`].
pub(super) fn row_offsets(grid: &Grid) -> Result<Vec<usize>> {
    let starts = grid.segments().iter().map(|segment| segment.dst_col);
    gathered(starts.chain([grid.width()]))
}

fn cumulative(lens: impl Iterator<Item = usize>) -> Result<Vec<usize>> {
    let mut end = 0;
    let ends = lens.map(|len| {
        end += len;
        end
    });
    gathered(std::iter::once(0).chain(ends))
}
