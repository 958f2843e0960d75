//! Jobs: the bands of all outputs, each of which can be written by itself.

use bytemuck::Pod;
use fastcollate::batch::{NO_LABEL, Number};
use fastcollate::plan::{Assembly, Band, Grid};
use fastcollate::write::{
    Count, Destination, Fill, Labels, PositionPadding, write_field, write_labels, write_mask,
    write_positions, write_row_indices, write_tokens,
};
use fastcollate::{Binary, Column, Dtype, Element, bf16, f16};

use crate::error::{Error, Result};
use crate::memory::filled;

/// Positions of a job: some milliseconds at most, since signals are looked at between jobs.
const BAND: usize = 1 << 18;

/// Fresh memory is mapped page by page, where it is first touched.
const PAGE: usize = 4096;

/// What an output holds.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    /// Token streams of the batch's assembly, from columns 0 and 1.
    Tokens { pad: i64 },
    /// Whether a row lies at a position, or, inverted, whether none does: it follows from the grid
    /// alone.
    Mask { inverted: bool },
    /// Positions of tokens in their rows.
    Positions(PositionPadding),
    /// The ids of tokens that train, by the loss mask in a column.
    Labels {
        mask: Option<(usize, Dtype)>,
        shifted: bool,
    },
    /// A field, what its rows are made of, and its values per token.
    Field {
        column: usize,
        assembly: &'a Assembly,
        inner: usize,
        filling: Filling,
    },
    /// Which row lies at a position; -1 on padding.
    RowIndices,
    /// Small numbers of the plan.
    Table(&'a [usize]),
}

/// What a field holds where no value goes.
#[derive(Clone, Copy)]
pub enum Filling {
    /// One number on padding, another on gaps.
    Numbers { pad: Number, gap: Number },
    /// Every index once, from 0 on, for every so many values.
    Indices(usize),
}

impl Filling {
    /// What stands on padding and on gaps, for the `inner` values of a token.
    ///
    /// # Errors
    /// `MemoryError`.
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

impl Content<'_> {
    /// Number of values at a position.
    pub fn inner(&self) -> usize {
        match self {
            Self::Field { inner, .. } => *inner,
            _ => 1,
        }
    }
}

/// Columns that all types of values can be read from.
pub trait Columns<E>:
    Column<bool, Error = E>
    + Column<u8, Error = E>
    + Column<i16, Error = E>
    + Column<i32, Error = E>
    + Column<i64, Error = E>
    + Column<f16, Error = E>
    + Column<bf16, Error = E>
    + Column<f32, Error = E>
    + Column<f64, Error = E>
{
}

impl<E, C> Columns<E> for C where
    C: Column<bool, Error = E>
        + Column<u8, Error = E>
        + Column<i16, Error = E>
        + Column<i32, Error = E>
        + Column<i64, Error = E>
        + Column<f16, Error = E>
        + Column<bf16, Error = E>
        + Column<f32, Error = E>
        + Column<f64, Error = E>
{
}

/// One band of an output, to be written into `bytes`.
pub struct Job<'a> {
    content: Content<'a>,
    dtype: Dtype,
    band: Band<'a>,
    bytes: Destination<'a, u8>,
}

impl<'a> Job<'a> {
    /// The jobs that write an output, whose dtype is one of the content's.
    pub fn of_output(
        content: Content<'a>,
        dtype: Dtype,
        grid: &'a Grid,
        bytes: Destination<'a, u8>,
    ) -> impl Iterator<Item = Self> {
        let mut rest = bytes.values;
        let inner = content.inner();
        // Where there is nothing to write, a token may have any number of values.
        let bands = (!rest.is_empty()).then(|| grid.bands((BAND / inner).max(1)));
        bands.into_iter().flatten().map(move |band| {
            let (values, tail) =
                std::mem::take(&mut rest).split_at_mut(band.positions() * inner * dtype.size());
            rest = tail;
            Self {
                content,
                dtype,
                band,
                bytes: Destination { values, ..bytes },
            }
        })
    }

    /// Write the band from the columns.
    pub fn write<C: Columns<E>, E>(self, columns: &[C], assembly: &Assembly) -> Result<()>
    where
        Error: From<E>,
    {
        match (self.content, self.dtype) {
            (
                Content::Mask { .. }
                | Content::Table(_)
                | Content::Positions(_)
                | Content::RowIndices,
                _,
            ) => self.write_planned(),
            (Content::Tokens { pad }, Dtype::I32) => {
                self.write_tokens::<i32, C>(columns, assembly, pad)?;
            }
            (Content::Tokens { pad }, _) => {
                self.write_tokens::<i64, C>(columns, assembly, pad)?;
            }
            (Content::Labels { .. }, Dtype::I32) => {
                self.write_labels::<i32, C, E>(columns, assembly)?;
            }
            (Content::Labels { .. }, _) => self.write_labels::<i64, C, E>(columns, assembly)?,
            (Content::Field { column, .. }, dtype) => {
                let column = &columns[column];
                match dtype {
                    Dtype::Bool => self.write_bools(column)?,
                    Dtype::U8 => self.write_numbers::<u8, C, E>(column)?,
                    Dtype::I16 => self.write_numbers::<i16, C, E>(column)?,
                    Dtype::I32 => self.write_numbers::<i32, C, E>(column)?,
                    Dtype::I64 => self.write_numbers::<i64, C, E>(column)?,
                    Dtype::F16 => self.write_numbers::<f16, C, E>(column)?,
                    Dtype::Bf16 => self.write_numbers::<bf16, C, E>(column)?,
                    Dtype::F32 => self.write_numbers::<f32, C, E>(column)?,
                    Dtype::F64 => self.write_numbers::<f64, C, E>(column)?,
                }
            }
        }
        Ok(())
    }

    /// Write what follows from the plan alone, for which no column is needed, nor Python.
    pub fn write_planned(self) {
        match (self.content, self.dtype) {
            (Content::Mask { inverted }, Dtype::Bool) => self.write_mask::<u8>(inverted),
            (Content::Mask { inverted }, Dtype::I32) => self.write_mask::<i32>(inverted),
            (Content::Mask { inverted }, Dtype::F16) => self.write_mask::<f16>(inverted),
            (Content::Mask { inverted }, Dtype::Bf16) => self.write_mask::<bf16>(inverted),
            (Content::Mask { inverted }, Dtype::F32) => self.write_mask::<f32>(inverted),
            (Content::Mask { inverted }, _) => self.write_mask::<i64>(inverted),
            (Content::Table(table), Dtype::I32) => write_table::<i32>(table, self.bytes.values),
            (Content::Table(table), _) => write_table::<i64>(table, self.bytes.values),
            (Content::Positions(padding), Dtype::I32) => {
                let band = self.band;
                write_positions::<i32>(&band, padding, self.destination());
            }
            (Content::Positions(padding), _) => {
                let band = self.band;
                write_positions::<i64>(&band, padding, self.destination());
            }
            (Content::RowIndices, Dtype::I32) => {
                let band = self.band;
                write_row_indices::<i32>(&band, self.destination());
            }
            (Content::RowIndices, _) => {
                let band = self.band;
                write_row_indices::<i64>(&band, self.destination());
            }
            _ => unreachable!("is_planned was asked before"),
        }
    }

    fn write_mask<T: Binary + Pod>(self, inverted: bool) {
        let (inside, outside) = if inverted {
            (T::ZERO, T::ONE)
        } else {
            (T::ONE, T::ZERO)
        };
        let band = self.band;
        write_mask(&band, inside, outside, self.destination());
    }

    fn write_tokens<T: Element + Pod, C: Column<T>>(
        self,
        columns: &[C],
        assembly: &Assembly,
        pad: i64,
    ) -> Result<(), C::Error> {
        let [prompts, responses] = token_columns(columns);
        // Whoever asks for int32 has seen to it that the padding fits.
        let pad = Number::Int(pad).cast().unwrap_or(T::ZERO);
        let band = self.band;
        write_tokens(prompts, responses, assembly, &band, pad, self.destination())
    }

    fn write_labels<T, C, E>(self, columns: &[C], assembly: &Assembly) -> Result<(), E>
    where
        T: Element + Pod,
        C: Column<T, Error = E> + Column<f64, Error = E>,
    {
        let Content::Labels { mask, shifted } = self.content else {
            unreachable!("only labels are written so");
        };
        let [prompts, responses] = token_columns(columns);
        let labels = Labels {
            mask: mask.map(|(column, _)| &columns[column]),
            round: match mask {
                Some((_, Dtype::F16)) => |weight| f16::from_f32(weight as f32).into(),
                Some((_, Dtype::Bf16)) => |weight| bf16::from_f32(weight as f32).into(),
                Some((_, Dtype::F32)) => |weight| f64::from(weight as f32),
                _ => |weight| weight,
            },
            shifted,
            ignored: Number::Int(NO_LABEL).cast().unwrap_or(T::ZERO),
        };
        let band = self.band;
        write_labels(
            prompts,
            responses,
            labels,
            assembly,
            &band,
            self.destination(),
        )
    }

    fn write_numbers<T, C, E>(self, column: &C) -> Result<()>
    where
        T: Element + Pod,
        C: Column<T, Error = E>,
        Error: From<E>,
    {
        let (content, band) = (self.content, self.band);
        write_values(content, &band, column, self.destination())
    }

    /// Write booleans, which recycled memory may hold invalid ones of.
    fn write_bools<C, E>(self, column: &C) -> Result<()>
    where
        C: Column<bool, Error = E>,
        Error: From<E>,
    {
        self.bytes.values.fill(0);
        let values = bytemuck::checked::cast_slice_mut(self.bytes.values);
        let to = Destination {
            values,
            is_zeroed: true,
        };
        write_values(self.content, &self.band, column, to)
    }

    fn destination<T: Pod>(self) -> Destination<'a, T> {
        Destination {
            values: bytemuck::cast_slice_mut(self.bytes.values),
            is_zeroed: self.bytes.is_zeroed,
        }
    }

    /// Whether this follows from the plan alone.
    pub fn is_planned(&self) -> bool {
        matches!(
            self.content,
            Content::Mask { .. } | Content::Table(_) | Content::Positions(_) | Content::RowIndices
        )
    }

    /// Bytes to be written.
    pub fn size(&self) -> usize {
        self.bytes.values.len()
    }

    /// Whether the memory is fresh: its pages are mapped when they are touched.
    pub fn is_fresh(&self) -> bool {
        self.bytes.is_zeroed
    }

    /// Touch every page of fresh memory, so that a thread that writes it later need not wait for
    /// the system.
    pub fn touch(&mut self) {
        for page in self.bytes.values.chunks_mut(PAGE) {
            page[0] = 0;
        }
    }
}

fn write_values<T, C, E>(
    content: Content,
    band: &Band,
    column: &C,
    to: Destination<T>,
) -> Result<()>
where
    T: Element,
    C: Column<T, Error = E>,
    Error: From<E>,
{
    let Content::Field {
        assembly,
        inner,
        filling,
        ..
    } = content
    else {
        unreachable!("only fields are written so");
    };
    let [pad, gap] = filling.patterns(inner)?;
    let fill = Fill {
        pad: &pad,
        gap: &gap,
    };
    Ok(write_field(column, assembly, band, fill, to)?)
}

fn write_table<T: Count + Pod>(table: &[usize], bytes: &mut [u8]) {
    let values: &mut [T] = bytemuck::cast_slice_mut(bytes);
    for (to, &value) in values.iter_mut().zip(table) {
        *to = T::count(value);
    }
}

/// The prompts and the responses.
fn token_columns<C>(columns: &[C]) -> [&C; 2] {
    match columns {
        [prompts, responses, ..] => [prompts, responses],
        _ => unreachable!("a batch has prompts and responses"),
    }
}
