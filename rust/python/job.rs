//! Jobs: the bands of all outputs, and the order and threads in which they are written.

use std::iter::from_fn;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use bytemuck::Pod;
use fastcollate::plan::{Assembly, Band, Grid};
use fastcollate::write::{Destination, Fill, write_mask, write_responses, write_tokens};
use fastcollate::{Column, Element, bf16, f16};

use crate::error::{Error, Result};
use crate::interrupt::poll;
use crate::output::Dtype;

/// Positions of a job: some milliseconds at most, since signals are looked at between jobs.
const BAND: usize = 1 << 18;

/// From this size on a second thread pays, even where it has to wait for a busy core now and then:
/// that takes some milliseconds, as long as 64 MiB do.
const PARALLEL_FROM: usize = 64 << 20;

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

/// One band of an output, to be written into `bytes`, which are zero.
pub struct Job<'a> {
    content: Content<'a>,
    dtype: Dtype,
    band: Band<'a>,
    bytes: &'a mut [u8],
}

impl<'a> Job<'a> {
    /// The jobs that write an output, whose dtype is one of the content's.
    pub fn of_output(
        content: Content<'a>,
        dtype: Dtype,
        grid: &'a Grid,
        bytes: &'a mut [u8],
    ) -> impl Iterator<Item = Self> {
        let mut rest = bytes;
        grid.bands(BAND).map(move |band| {
            let (bytes, tail) =
                std::mem::take(&mut rest).split_at_mut(band.positions() * dtype.size());
            rest = tail;
            Self {
                content,
                dtype,
                band,
                bytes,
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
                // Checked where the padding token came in.
                let pad = i32::try_from(pad).unwrap_or_default();
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

    fn write_mask(self) {
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

    /// Touch every page, so that a thread that writes it later need not wait for the system.
    fn touch(&mut self) {
        for page in self.bytes.chunks_mut(PAGE) {
            page[0] = 0;
        }
    }
}

fn destination<T: Pod>(bytes: &mut [u8]) -> Destination<'_, T> {
    Destination {
        values: bytemuck::cast_slice_mut(bytes),
        is_zeroed: true,
    }
}

/// Write all jobs; `write` is called by this thread alone, so it may talk to Python.
///
/// For a large batch a second thread writes the masks, which need no input, and then maps the memory
/// of values from the end on, which takes the system about as long as copying them. This thread
/// never waits for a job that the other has not begun. Mapping first, right ahead of this thread,
/// takes 53 ms or 85 instead of 60, and which of the two cannot be foreseen.
pub fn execute(jobs: Vec<Job>, mut write: impl FnMut(Job) -> Result<()>) -> Result<()> {
    let mut write = |job: Job| {
        write(job)?;
        Ok(poll()?)
    };
    let bytes: usize = jobs.iter().map(|job| job.bytes.len()).sum();
    if bytes < PARALLEL_FROM || !has_two_cores() {
        return jobs.into_iter().try_for_each(write);
    }
    let (masks, values): (Vec<_>, Vec<_>) = jobs
        .into_iter()
        .partition(|job| matches!(job.content, Content::Mask));
    let (masks, values) = (Queue::new(masks), Queue::new(values));
    thread::scope(|scope| {
        let (to_writer, mapped) = channel();
        let second = || {
            while let Some(job) = masks.next() {
                job.write_mask();
            }
            while let Some(mut job) = values.next_back() {
                job.touch();
                if to_writer.send(job).is_err() {
                    return;
                }
            }
            drop(to_writer);
        };
        // If it cannot be started, this thread does all.
        let _ = thread::Builder::new().spawn_scoped(scope, second);
        let result = from_fn(|| values.next())
            .chain(mapped)
            .chain(from_fn(|| masks.next()))
            .try_for_each(&mut write);
        if result.is_err() {
            // Nobody wants the rest: taking it stops the other thread.
            values.clear();
            masks.clear();
        }
        result
    })
}

/// Jobs that any thread may take, in order.
struct Queue<'a>(Mutex<std::vec::IntoIter<Job<'a>>>);

impl<'a> Queue<'a> {
    fn new(jobs: Vec<Job<'a>>) -> Self {
        Self(Mutex::new(jobs.into_iter()))
    }

    fn lock(&self) -> MutexGuard<'_, std::vec::IntoIter<Job<'a>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job<'a>> {
        self.lock().next()
    }

    fn next_back(&self) -> Option<Job<'a>> {
        self.lock().next_back()
    }

    fn clear(&self) {
        self.lock().by_ref().for_each(drop);
    }
}

fn has_two_cores() -> bool {
    static CORES: OnceLock<usize> = OnceLock::new();
    let count = || thread::available_parallelism().map_or(1, Into::into);
    *CORES.get_or_init(count) > 1
}
