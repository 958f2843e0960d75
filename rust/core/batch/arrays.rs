//! Arrays of a batch: what is written to each, band by band.

use bytemuck::Pod;
use half::{bf16, f16};

use super::outputs::IGNORE_INDEX;
use crate::column::{AnyColumn, Column, Rounding, TrainedValues, WholeNumbers};
use crate::dtype::{Dtype, IntDtype};
use crate::element::{Binary, Element};
use crate::error::Result;
use crate::fill_number::Number;
use crate::memory::filled;
use crate::plan::{Assembly, Band, Grid};
use crate::streams::AnyStreams;
use crate::write::{
    Count, Destination, Fill, Labels, PositionPadding, write_field, write_labels, write_mask,
    write_positions, write_row_indices, write_subtree_ends, write_tokens,
};

/// Positions of a job: some milliseconds at most, since a hook is called between jobs.
const BAND: usize = 1 << 18;

/// Fresh memory is mapped page by page, where it is first touched.
const PAGE: usize = 4096;

/// What an array holds.
#[derive(Debug)]
pub(super) enum Content {
    /// What follows from the plan alone.
    Derived(Derived),
    /// What is read from columns.
    Read(Read),
    /// The token ids of the batch at the positions that segments count.
    Copied(IntDtype),
}

/// What follows from the plan alone, for which no column is needed.
#[derive(Debug)]
pub(super) enum Derived {
    /// Whether a row lies at a position, or, inverted, whether none does.
    Mask { inverted: bool, dtype: Dtype },
    /// Positions of tokens in their rows.
    Positions(PositionPadding, IntDtype),
    /// Which row lies at a position; -1 on padding.
    RowIndices(IntDtype),
    /// One past the last column of its row that follows on each position.
    SubtreeEnds,
    /// Small numbers of the plan.
    Table(Vec<usize>, IntDtype),
}

/// What is read from columns.
#[derive(Debug)]
pub(super) enum Read {
    /// Token streams.
    Tokens { pad: i64, dtype: IntDtype },
    /// The ids of tokens that train, by the loss mask.
    Labels {
        mask: Option<LossMask>,
        shifted: bool,
        dtype: IntDtype,
    },
    /// A field.
    Field(Field),
}

/// The loss mask, as it says what trains.
#[derive(Debug, Clone)]
pub(super) struct LossMask {
    /// Which one of the columns of fields.
    pub column: usize,
    /// What its rows are made of, if that is not what the batch's are.
    pub assembly: Option<Assembly>,
    /// Of the output that it is.
    pub dtype: Dtype,
}

/// The values of a field.
#[derive(Debug)]
pub(super) struct Field {
    /// Which one of the columns of fields.
    pub column: usize,
    /// What the field's rows are made of, if that is not what the batch's are.
    pub assembly: Option<Assembly>,
    /// Number of values per token.
    pub inner: usize,
    /// What stands where no value goes.
    pub filling: Filling,
    pub dtype: Dtype,
    /// Whether the values are whole numbers, whatever type they come in.
    pub is_whole: bool,
    /// The loss mask, if values are for tokens alone that train by it.
    pub trained_by: Option<Box<LossMask>>,
}

/// What a field holds where no value goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Filling {
    /// One number on padding, another on gaps.
    Numbers { pad: Number, gap: Number },
    /// Every index once, from 0 on, for this many values.
    Indices(usize),
}

/// What arrays are read from.
pub(super) struct Source<'a> {
    pub tokens: &'a dyn AnyStreams,
    pub fields: Vec<&'a dyn AnyColumn>,
    pub assembly: &'a Assembly,
}

/// One band of an array, to be written into `bytes`.
pub(super) struct Job<'a, S> {
    what: &'a S,
    band: Band<'a>,
    bytes: Destination<'a, u8>,
}

/// Evaluate `$body` with the type `$T` that a dtype stands for.
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
            Self::Copied(dtype) => (*dtype).into(),
        }
    }

    /// Number of values at a position, and bytes of a value.
    pub fn size(&self) -> (usize, usize) {
        let inner = match self {
            Self::Read(Read::Field(field)) => field.inner,
            _ => 1,
        };
        (inner, self.dtype().size())
    }
}

/// The jobs that write something over a grid, of `inner` values of a size each.
pub(super) fn jobs<'a, S>(
    what: &'a S,
    (inner, size): (usize, usize),
    grid: &'a Grid,
    bytes: Destination<'a, u8>,
) -> impl Iterator<Item = Job<'a, S>> {
    let mut rest = bytes.values;
    // Where there is nothing to write, a token may have any number of values.
    let bands = (!rest.is_empty()).then(|| grid.bands((BAND / inner).max(1)));
    bands.into_iter().flatten().map(move |band| {
        let (values, tail) =
            std::mem::take(&mut rest).split_at_mut(band.positions() * inner * size);
        rest = tail;
        let bytes = Destination { values, ..bytes };
        Job { what, band, bytes }
    })
}

impl<'a, S> Job<'a, S> {
    /// Bytes to be written.
    pub fn size(&self) -> usize {
        self.bytes.values.len()
    }

    /// Touch every page of fresh memory, so that a thread that writes it later need not wait for
    /// the system.
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
    /// Write the band.
    pub fn write(self) {
        let band = self.band;
        match self.what {
            Derived::Mask { inverted, dtype } => with_dtype!(
                dtype,
                T => write_binary(&band, *inverted, self.to::<T>()),
                bool => write_binary(&band, *inverted, self.to::<u8>())
            ),
            Derived::Positions(padding, IntDtype::I32) => {
                write_positions::<i32>(&band, *padding, self.to());
            }
            Derived::Positions(padding, IntDtype::I64) => {
                write_positions::<i64>(&band, *padding, self.to());
            }
            Derived::RowIndices(IntDtype::I32) => write_row_indices::<i32>(&band, self.to()),
            Derived::RowIndices(IntDtype::I64) => write_row_indices::<i64>(&band, self.to()),
            Derived::SubtreeEnds => write_subtree_ends::<i32>(&band, self.to()),
            Derived::Table(table, IntDtype::I32) => write_table::<i32>(table, self.to()),
            Derived::Table(table, IntDtype::I64) => write_table::<i64>(table, self.to()),
        }
    }
}

impl Job<'_, Read> {
    /// Write the band.
    ///
    /// # Errors
    /// What the columns raise.
    pub fn write(self, source: &Source) -> Result<()> {
        match self.what {
            Read::Tokens { pad, dtype } => match dtype {
                IntDtype::I32 => self.write_tokens::<i32>(source.tokens, *pad, source.assembly),
                IntDtype::I64 => self.write_tokens::<i64>(source.tokens, *pad, source.assembly),
            },
            Read::Labels {
                mask,
                shifted,
                dtype,
            } => match dtype {
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
                    let band = self.band;
                    field.write::<T>(source.fields[field.column], &band, source, self.to())
                },
                bool => self.write_bools(field, source)
            ),
        }
    }

    fn write_tokens<T: Element + Pod>(
        self,
        tokens: &dyn Column<T>,
        pad: i64,
        assembly: &Assembly,
    ) -> Result<()> {
        // A padding token is checked where the dtype of ids is chosen.
        let pad = Number::Int(pad).cast().unwrap_or(T::ZERO);
        let band = self.band;
        write_tokens(tokens, assembly, &band, pad, self.to())
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
        let band = self.band;
        write_labels(tokens, labels, source.assembly, &band, self.to())
    }

    /// Write booleans, which recycled memory may hold invalid ones of.
    fn write_bools(self, field: &Field, source: &Source) -> Result<()> {
        self.bytes.values.fill(0);
        let values: &mut [bool] = bytemuck::checked::cast_slice_mut(self.bytes.values);
        let to = Destination {
            values,
            is_zeroed: true,
        };
        field.write::<bool>(source.fields[field.column], &self.band, source, to)
    }
}

impl LossMask {
    /// What rounds weights to those of the output.
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
    /// Write the values of a column, which is the field's.
    fn write<T: Element>(
        &self,
        column: &dyn Column<T>,
        band: &Band,
        source: &Source,
        to: Destination<T>,
    ) -> Result<()> {
        let [pad, gap] = self.filling.patterns(self.inner)?;
        let fill = Fill {
            pad: &pad,
            gap: &gap,
        };
        let assembly = self.assembly.as_ref().unwrap_or(source.assembly);
        if let Some(mask) = &self.trained_by {
            let trained = TrainedValues {
                values: column,
                mask: source.fields[mask.column],
                round: mask.rounding(),
                fill: gap[0],
            };
            // Where the mask's rows begin; of one number a row, that says nothing.
            let assembly = mask.assembly.as_ref().unwrap_or(source.assembly);
            return write_field(&trained, assembly, band, fill, to);
        }
        if self.is_whole {
            return write_field(
                &WholeNumbers(source.fields[self.column]),
                assembly,
                band,
                fill,
                to,
            );
        }
        write_field(column, assembly, band, fill, to)
    }
}

impl Filling {
    /// What stands on padding and on gaps, for the `inner` values of a token.
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

fn write_binary<T: Binary>(band: &Band, inverted: bool, to: Destination<T>) {
    let (inside, outside) = if inverted {
        (T::ZERO, T::ONE)
    } else {
        (T::ONE, T::ZERO)
    };
    write_mask(band, inside, outside, to);
}

fn write_table<T: Count>(table: &[usize], to: Destination<T>) {
    for (to, &value) in to.values.iter_mut().zip(table) {
        *to = T::count(value);
    }
}
