//! Arrays of a batch and their contents, written slice by slice.

use bytemuck::Pod;
use half::{bf16, f16};

use super::outputs::IGNORE_INDEX;
use super::ragged::{ValuesOfTokens, add_up, offset_at};
use crate::column::{AnyColumn, Column};
use crate::dtype::{Dtype, IntDtype};
use crate::element::{Binary, Element};
use crate::error::Result;
use crate::fill_number::Number;
use crate::memory::filled;
use crate::over_columns::{Rounding, TrainedValues, WholeNumbers};
use crate::plan::{Assembly, Grid, GridSlice};
use crate::streams::AnyStreams;
use crate::write::{
    Count, Destination, Fill, Labels, PositionPadding, write_field, write_labels, write_mask,
    write_positions, write_row_indices, write_subtree_ends, write_tokens,
};

/// Positions per job: at most some milliseconds, since a hook is called between jobs.
const SLICE_POSITIONS: usize = 1 << 18;

/// Fresh memory is mapped page by page on first touch.
const PAGE: usize = 4096;

/// The contents of an array.
#[derive(Debug)]
pub(super) enum Content {
    /// Derived from the plan alone.
    Derived(Derived),
    /// Read from columns.
    Read(Read),
    /// Token ids copied from the batch at the positions counted by segments.
    Copied(IntDtype),
}

/// Contents derived from the plan alone, without columns.
#[derive(Debug)]
pub(super) enum Derived {
    /// True where a row has a token; `inverted`, true where none has.
    Mask { inverted: bool, dtype: Dtype },
    /// Positions of tokens in their rows.
    Positions(PositionPadding, IntDtype),
    /// The row at each position; -1 on padding.
    RowIndices(IntDtype),
    /// One past the last column of its row that continues each position.
    SubtreeEnds,
    /// Small tables of the plan.
    Table(Vec<usize>, IntDtype),
}

/// Contents read from columns.
#[derive(Debug)]
pub(super) enum Read {
    /// Token streams.
    Tokens { pad: i64, dtype: IntDtype },
    /// The ids of tokens that train, by the loss mask.
    Labels { mask: Option<LossMask>, shifted: bool, dtype: IntDtype },
    /// A field.
    Field(Field),
    /// Offsets of values by the field that counts them, and the values before segments' positions.
    Offsets { counts: Field, starts: Vec<(usize, usize)> },
}

/// The loss mask as the condition for training.
#[derive(Debug, Clone)]
pub(super) struct LossMask {
    /// Index of the column among those of fields.
    pub column: usize,
    /// The assembly of its rows, if it differs from the batch's.
    pub assembly: Option<Assembly>,
    /// The dtype of its output.
    pub dtype: Dtype,
}

/// The values of a field.
#[derive(Debug)]
pub(super) struct Field {
    /// Index of the column among those of fields.
    pub column: usize,
    /// The assembly of the field's rows, if it differs from the batch's.
    pub assembly: Option<Assembly>,
    /// Number of values per token.
    pub inner: usize,
    /// The values of padding and gaps.
    pub filling: Filling,
    pub dtype: Dtype,
    /// True if the values are whole numbers of any input type.
    pub is_whole: bool,
    /// The loss mask, if only tokens that train by it have values.
    pub trained_by: Option<Box<LossMask>>,
    /// Index of the column that counts the values of tokens, if they may have any number.
    pub counts: Option<usize>,
}

/// The values of a field on padding and gaps.
#[derive(Debug, Clone, Copy)]
pub(super) enum Filling {
    /// One number on padding, another on gaps.
    Numbers { pad: Number, gap: Number },
    /// Every index once, from 0 to below this count.
    Indices(usize),
}

/// The columns and rows that arrays are read from.
pub(super) struct Source<'a> {
    pub tokens: &'a dyn AnyStreams,
    pub fields: Vec<&'a dyn AnyColumn>,
    pub assembly: &'a Assembly,
}

/// One slice of an array, to be written into `bytes`.
pub(super) struct Job<'a, S> {
    what: &'a S,
    slice: GridSlice<'a>,
    bytes: Destination<'a, u8>,
}

/// Evaluate `$body` with `$T` as the type of a dtype.
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr, bool => $bools:expr) => {
        match $dtype {
            Dtype::Bool => $bools,
            Dtype::U8 => with_dtype!(@ $T = u8, $body),
            Dtype::I16 => with_dtype!(@ $T = i16, $body),
            Dtype::I32 => with_dtype!(@ $T = i32, $body),
            Dtype::I64 => with_dtype!(@ $T = i64, $body),
            Dtype::F16 => with_dtype!(@ $T = f16, $body),
            Dtype::Bf16 => with_dtype!(@ $T = bf16, $body),
            Dtype::F32 => with_dtype!(@ $T = f32, $body),
            Dtype::F64 => with_dtype!(@ $T = f64, $body),
        }
    };
    (@ $T:ident = $type:ty, $body:expr) => {{
        type $T = $type;
        $body
    }};
}

impl Content {
    /// The number type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Derived(Derived::Mask { dtype, .. })
            | Self::Read(Read::Field(Field { dtype, .. })) => *dtype,
            Self::Derived(
                Derived::Positions(_, dtype)
                | Derived::RowIndices(dtype)
                | Derived::Table(_, dtype),
            )
            | Self::Read(Read::Tokens { dtype, .. } | Read::Labels { dtype, .. }) => {
                (*dtype).into()
            }
            Self::Derived(Derived::SubtreeEnds) => Dtype::I32,
            Self::Read(Read::Offsets { .. }) => Dtype::I64,
            Self::Copied(dtype) => (*dtype).into(),
        }
    }

    /// Number of values per position, and bytes per value.
    pub fn size(&self) -> (usize, usize) {
        let inner = match self {
            Self::Read(Read::Field(field)) => field.inner,
            _ => 1,
        };
        (inner, self.dtype().size())
    }

    /// The bytes of the array written over another grid.
    ///
    /// # Errors
    /// Those of the columns.
    pub(super) fn write_over(&self, grid: &Grid, source: &Source) -> Result<Vec<u8>> {
        let (inner, size) = self.size();
        let values = grid.positions().checked_mul(inner);
        let len = values.and_then(|values| values.checked_mul(size));
        let len = len.unwrap_or(usize::MAX);
        let mut words = filled(len.div_ceil(8), |_| 0_u64)?; // aligned for every dtype
        let values = &mut bytemuck::cast_slice_mut(&mut words)[..len];
        let bytes = Destination { values, is_zeroed: false };
        match self {
            Content::Derived(derived) => {
                jobs(derived, (inner, size), grid, bytes).for_each(Job::<Derived>::write);
            }
            Content::Read(read) => {
                for job in jobs(read, (inner, size), grid, bytes) {
                    job.write(source)?;
                }
            }
            // Nothing is read for it, so it cannot fail.
            Content::Copied(_) => {}
        }
        Ok(bytemuck::cast_slice(&words)[..len].to_vec())
    }
}

/// The jobs that write an array over a grid, with `inner` values of a given size per position.
pub(super) fn jobs<'a, S>(
    what: &'a S,
    (inner, size): (usize, usize),
    grid: &'a Grid,
    bytes: Destination<'a, u8>,
) -> impl Iterator<Item = Job<'a, S>> {
    let mut rest = bytes.values;
    // An empty grid may have any number of values per token.
    let slices = (!rest.is_empty()).then(|| grid.slices((SLICE_POSITIONS / inner).max(1)));
    slices.into_iter().flatten().map(move |slice| {
        let (values, tail) =
            std::mem::take(&mut rest).split_at_mut(slice.positions() * inner * size);
        rest = tail;
        let bytes = Destination { values, ..bytes };
        Job { what, slice, bytes }
    })
}

impl<'a, S> Job<'a, S> {
    /// Bytes to write.
    pub fn size(&self) -> usize {
        self.bytes.values.len()
    }

    /// Touch every page of fresh memory, so that the thread that writes it later has no page
    /// faults.
    pub fn touch(&mut self) {
        for page in self.bytes.values.chunks_mut(PAGE) {
            page[0] = 0;
        }
    }

    fn to<T: Pod>(self) -> Destination<'a, T> {
        Destination {
            values: bytemuck::cast_slice_mut(self.bytes.values),
            is_zeroed: self.bytes.is_zeroed,
        }
    }
}

impl Job<'_, Derived> {
    /// Write the slice.
    pub fn write(self) {
        let slice = self.slice;
        match self.what {
            Derived::Mask { inverted, dtype } => with_dtype!(
                dtype,
                T => write_binary(&slice, *inverted, self.to::<T>()),
                bool => write_binary(&slice, *inverted, self.to::<u8>())
            ),
            Derived::Positions(padding, IntDtype::I32) => {
                write_positions::<i32>(&slice, *padding, self.to());
            }
            Derived::Positions(padding, IntDtype::I64) => {
                write_positions::<i64>(&slice, *padding, self.to());
            }
            Derived::RowIndices(IntDtype::I32) => write_row_indices::<i32>(&slice, self.to()),
            Derived::RowIndices(IntDtype::I64) => write_row_indices::<i64>(&slice, self.to()),
            Derived::SubtreeEnds => write_subtree_ends::<i32>(&slice, self.to()),
            Derived::Table(table, IntDtype::I32) => write_table::<i32>(table, self.to()),
            Derived::Table(table, IntDtype::I64) => write_table::<i64>(table, self.to()),
        }
    }
}

impl Job<'_, Read> {
    /// Write the slice.
    ///
    /// # Errors
    /// Those of the columns.
    pub fn write(self, source: &Source) -> Result<()> {
        match self.what {
            Read::Tokens { pad, dtype } => match dtype {
                IntDtype::I32 => self.write_tokens::<i32>(source.tokens, *pad, source.assembly),
                IntDtype::I64 => self.write_tokens::<i64>(source.tokens, *pad, source.assembly),
            },
            Read::Labels { mask, shifted, dtype } => match dtype {
                IntDtype::I32 => {
                    self.write_labels::<i32>(source.tokens, mask.as_ref(), *shifted, source)
                }
                IntDtype::I64 => {
                    self.write_labels::<i64>(source.tokens, mask.as_ref(), *shifted, source)
                }
            },
            Read::Field(field) => with_dtype!(
                field.dtype,
                T => {
                    let slice = self.slice;
                    field.write::<T>(source.fields[field.column], &slice, source, self.to())
                },
                bool => self.write_bools(field, source)
            ),
            Read::Offsets { counts, starts } => {
                let (slice, before) = (self.slice, offset_at(self.slice.begin, starts));
                let Destination { values, is_zeroed } = self.to::<i64>();
                let to = Destination { values: &mut *values, is_zeroed };
                counts.write::<i64>(source.fields[counts.column], &slice, source, to)?;
                add_up(values, before);
                Ok(())
            }
        }
    }

    fn write_tokens<T: Element + Pod>(
        self,
        tokens: &dyn Column<T>,
        pad: i64,
        assembly: &Assembly,
    ) -> Result<()> {
        // The padding token was checked when the dtype of ids was chosen.
        let pad = Number::Int(pad).cast().unwrap_or(T::ZERO);
        let slice = self.slice;
        write_tokens(tokens, assembly, &slice, pad, self.to())
    }

    fn write_labels<T: Element + Pod>(
        self,
        tokens: &dyn Column<T>,
        mask: Option<&LossMask>,
        shifted: bool,
        source: &Source,
    ) -> Result<()> {
        let labels = Labels {
            mask: mask.map(|mask| {
                let assembly = mask.assembly.as_ref().unwrap_or(source.assembly);
                (source.fields[mask.column] as _, assembly)
            }),
            round: mask.map_or(|_| (), LossMask::rounding),
            shifted,
            ignored: Number::Int(IGNORE_INDEX).cast().unwrap_or(T::ZERO),
        };
        let slice = self.slice;
        write_labels(tokens, labels, source.assembly, &slice, self.to())
    }

    /// Write booleans; recycled memory may hold invalid ones.
    fn write_bools(self, field: &Field, source: &Source) -> Result<()> {
        self.bytes.values.fill(0);
        let values: &mut [bool] = bytemuck::checked::cast_slice_mut(self.bytes.values);
        let to = Destination { values, is_zeroed: true };
        field.write::<bool>(source.fields[field.column], &self.slice, source, to)
    }
}

impl LossMask {
    /// Rounds weights to the output's dtype.
    pub fn rounding(&self) -> Rounding {
        fn round(weights: &mut [f64], to: impl Fn(f64) -> f64) {
            for weight in weights {
                *weight = to(*weight);
            }
        }
        match self.dtype {
            Dtype::F16 => |weights| round(weights, |weight| f16::from_f32(weight as f32).into()),
            Dtype::Bf16 => |weights| round(weights, |weight| bf16::from_f32(weight as f32).into()),
            Dtype::F32 => |weights| round(weights, |weight| f64::from(weight as f32)),
            _ => |_| (),
        }
    }
}

impl Field {
    /// Write the values of the field's column.
    fn write<T: Element>(
        &self,
        column: &dyn Column<T>,
        slice: &GridSlice,
        source: &Source,
        to: Destination<T>,
    ) -> Result<()> {
        let [pad, gap] = self.filling.patterns(self.inner)?;
        let fill = Fill { pad: &pad, gap: &gap };
        let assembly = self.assembly.as_ref().unwrap_or(source.assembly);
        if let Some(mask) = &self.trained_by {
            let trained = TrainedValues {
                values: column,
                mask: source.fields[mask.column],
                round: mask.rounding(),
                fill: gap[0],
            };
            // Response starts of the mask's rows; not used with one number per row.
            let assembly = mask.assembly.as_ref().unwrap_or(source.assembly);
            return write_field(&trained, assembly, slice, fill, to);
        }
        if let Some(counts) = self.counts {
            let values = ValuesOfTokens { values: column, counts: source.fields[counts] };
            return write_field(&values, assembly, slice, fill, to);
        }
        if self.is_whole {
            return write_field(
                &WholeNumbers(source.fields[self.column]),
                assembly,
                slice,
                fill,
                to,
            );
        }
        write_field(column, assembly, slice, fill, to)
    }
}

impl Filling {
    /// The patterns of padding and gaps, for `inner` values per token.
    fn patterns<T: Element>(self, inner: usize) -> Result<[Vec<T>; 2]> {
        let cast = |number: Number| number.cast().unwrap_or(T::ZERO);
        Ok(match self {
            Self::Numbers { pad, gap } => {
                [filled(inner, |_| cast(pad))?, filled(inner, |_| cast(gap))?]
            }
            Self::Indices(count) => {
                let index = |at: usize| cast(Number::Int((at % count).try_into().unwrap_or(0)));
                [filled(inner, index)?, filled(inner, index)?]
            }
        })
    }
}

fn write_binary<T: Binary>(slice: &GridSlice, inverted: bool, to: Destination<T>) {
    let (inside, outside) = if inverted { (T::ZERO, T::ONE) } else { (T::ONE, T::ZERO) };
    write_mask(slice, inside, outside, to);
}

fn write_table<T: Count>(table: &[usize], to: Destination<T>) {
    for (to, &value) in to.values.iter_mut().zip(table) {
        *to = T::count(value);
    }
}
