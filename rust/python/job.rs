//! Jobs: the bands of all outputs, each of which can be written by itself.

use bytemuck::Pod;
use fastcollate::plan::{Assembly, Band, Grid};
use fastcollate::write::{Destination, Fill, write_mask, write_responses, write_tokens};
use fastcollate::{Column, Element, bf16, f16};
use pyo3::exceptions::PyValueError;

use crate::error::{Error, Result};
use crate::output::Dtype;

/// Positions of a job: some milliseconds at most, since signals are looked at between jobs.
const BAND: usize = 1 << 18;

/// Fresh memory is mapped page by page, where it is first touched.
const PAGE: usize = 4096;

/// What an output holds.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    /// Token streams of the batch's assembly, from columns 0 and 1.
    Tokens { pad: i64 },
    /// 1 where rows lie: it follows from the grid alone.
    Mask,
    /// A response-aligned field, and what its rows are made of.
    Field {
        column: usize,
        assembly: &'a Assembly,
    },
}

impl Content<'_> {
    /// The number types that such an output can have.
    pub fn dtypes(&self) -> &'static [Dtype] {
        match self {
            Self::Tokens { .. } => &[Dtype::I64, Dtype::I32],
            Self::Mask => &[Dtype::I64, Dtype::I32, Dtype::Bool],
            Self::Field { .. } => &[Dtype::F32, Dtype::Bf16, Dtype::F16],
        }
    }
}

/// Columns that all types of values can be read from.
pub trait Columns<E>:
    Column<i32, Error = E>
    + Column<i64, Error = E>
    + Column<f16, Error = E>
    + Column<bf16, Error = E>
    + Column<f32, Error = E>
{
}

impl<E, C> Columns<E> for C where
    C: Column<i32, Error = E>
        + Column<i64, Error = E>
        + Column<f16, Error = E>
        + Column<bf16, Error = E>
        + Column<f32, Error = E>
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
        grid.bands(BAND).map(move |band| {
            let (values, tail) =
                std::mem::take(&mut rest).split_at_mut(band.positions() * dtype.size());
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
            (Content::Mask, _) => self.write_mask(),
            (Content::Tokens { pad }, Dtype::I32) => {
                let misfit = |_| PyValueError::new_err("pad_token_id does not fit int32");
                let pad = i32::try_from(pad).map_err(misfit)?;
                self.write_tokens(columns, assembly, pad)?;
            }
            (Content::Tokens { pad }, _) => self.write_tokens(columns, assembly, pad)?,
            (Content::Field { column, assembly }, dtype) => match dtype {
                Dtype::F16 => self.write_field::<f16, C>(&columns[column], assembly)?,
                Dtype::Bf16 => self.write_field::<bf16, C>(&columns[column], assembly)?,
                _ => self.write_field::<f32, C>(&columns[column], assembly)?,
            },
        }
        Ok(())
    }

    /// Write a mask, for which no column is needed, nor Python.
    pub fn write_mask(self) {
        match self.dtype {
            Dtype::Bool => write_mask::<u8>(&self.band, destination(self.bytes)),
            Dtype::I32 => write_mask::<i32>(&self.band, destination(self.bytes)),
            _ => write_mask::<i64>(&self.band, destination(self.bytes)),
        }
    }

    fn write_tokens<T: Element + Pod, C: Column<T>>(
        self,
        columns: &[C],
        assembly: &Assembly,
        pad: T,
    ) -> Result<(), C::Error> {
        let [prompts, responses, ..] = columns else {
            unreachable!("a batch has prompts and responses");
        };
        let to = destination(self.bytes);
        write_tokens(prompts, responses, assembly, &self.band, pad, to)
    }

    fn write_field<T: Element + Pod, C: Column<T>>(
        self,
        column: &C,
        assembly: &Assembly,
    ) -> Result<(), C::Error> {
        let fill = Fill {
            pad: &[T::ZERO],
            gap: &[T::ZERO],
            gaps_untrained: false,
        };
        write_responses(column, assembly, &self.band, fill, destination(self.bytes))
    }

    /// Whether this is a band of a mask.
    pub fn is_mask(&self) -> bool {
        matches!(self.content, Content::Mask)
    }

    /// Bytes to be written.
    pub fn size(&self) -> usize {
        self.bytes.values.len()
    }

    /// Whether the memory is fresh: its pages are mapped when they are touched.
    pub fn is_fresh(&self) -> bool {
        self.bytes.is_zeroed
    }

    /// Touch every page of fresh memory, so that a thread that writes it later need not wait for the system.
    pub fn touch(&mut self) {
        for page in self.bytes.values.chunks_mut(PAGE) {
            page[0] = 0;
        }
    }
}

fn destination<T: Pod>(bytes: Destination<u8>) -> Destination<T> {
    Destination {
        values: bytemuck::cast_slice_mut(bytes.values),
        is_zeroed: bytes.is_zeroed,
    }
}
