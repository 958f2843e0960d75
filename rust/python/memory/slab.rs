//! Slabs: the memory of all outputs of a batch.

use std::mem::take;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use fastcollate::batch::CACHE_LINE;
use memmap2::MmapMut;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PySlice;

use super::pool::Pool;
use crate::error::no_memory;

/// From this size on, a slab is mapped with huge pages: fewer page faults. Below, an allocator such
/// as glibc's recycles mapped memory, which is faster still.
const MAP_FROM: usize = 32 << 20;

/// Bytes of an array, as a view.
///
/// # Errors
/// `MemoryError`.
pub fn bytes_at<'py>(
    memory: &Bound<'py, PyArray1<u8>>,
    range: Range<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    // `PySlice::new` of PyO3 0.30 never frees its numbers.
    let slice = memory.py().get_type::<PySlice>();
    memory.get_item(slice.call1((range.start, range.end))?)
}

/// The memory of all outputs of a batch. When dropped, it is returned to its pool.
pub struct Slab {
    memory: Memory,
    is_zeroed: bool,
    home: Option<Home>,
}

/// The pool that a slab's memory returns to.
struct Home {
    /// A freed pool takes nothing back.
    pool: Weak<Pool>,
    /// `FORKS` when it was taken. A child does not recycle memory from before the fork: writing to
    /// it would copy each page.
    forks: u32,
}

impl Slab {
    /// Memory of at least `bytes`, from the pool if it fits.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn take(bytes: usize, pool: Option<&Arc<Pool>>) -> PyResult<Self> {
        let Some((pool, forks)) = pool.and_then(|pool| Some((pool, pool.enter()?))) else {
            return Ok(Self { memory: Memory::zeroed(bytes)?, is_zeroed: true, home: None });
        };
        let recycled = pool.lock().take(bytes);
        let is_zeroed = recycled.is_none();
        let memory = match recycled {
            Some(memory) => memory,
            None => {
                let size = rounded(bytes);
                Memory::zeroed(size).or_else(|_| {
                    pool.clear();
                    Memory::zeroed(size)
                })?
            }
        };
        pool.live_bytes.fetch_add(memory.size(), Ordering::Relaxed);
        let home = Some(Home { pool: Arc::downgrade(pool), forks });
        Ok(Self { memory, is_zeroed, home })
    }

    /// True if all bytes are zero. Recycled memory holds the last batch.
    pub fn is_zeroed(&self) -> bool {
        self.is_zeroed
    }

    /// The memory from the first aligned byte on.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl Drop for Slab {
    /// May run on any thread, including torch's autograd threads: takes one short lock and calls no
    /// Python.
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        if let Some(pool) = home.pool.upgrade()
            && pool.enter() == Some(home.forks)
        {
            pool.give_back(take(&mut self.memory));
        }
    }
}

/// Bytes to allocate for a slab of `bytes`: up to an eighth more, so that a slightly larger batch
/// fits too. Untouched memory of a large slab costs nothing.
fn rounded(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 16).max(CACHE_LINE);
    bytes.next_multiple_of(step)
}

/// One allocation.
#[derive(Default)]
pub struct Memory {
    allocation: Allocation,
    /// Address of the first aligned byte.
    origin: usize,
}

enum Allocation {
    Heap(Vec<u8>),
    Mapped(MmapMut),
}

impl Default for Allocation {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl Memory {
    /// `bytes` bytes, all zero.
    pub fn zeroed(bytes: usize) -> PyResult<Self> {
        let out_of_memory = |error: &dyn std::fmt::Display| {
            no_memory(&format!("cannot take {bytes} bytes for the batch: {error}"))
        };
        if bytes >= MAP_FROM {
            let map = MmapMut::map_anon(bytes).map_err(|error| out_of_memory(&error))?;
            // A hint: without huge pages writing is only slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            return Ok(Self { allocation: Allocation::Mapped(map), origin: 0 });
        }
        let mut memory = Vec::new();
        let len = bytes + CACHE_LINE;
        memory.try_reserve_exact(len).map_err(|error| out_of_memory(&error))?;
        #[expect(clippy::disallowed_methods, reason = "after taking the room")]
        memory.resize(len, 0);
        let origin = memory.as_ptr().align_offset(CACHE_LINE);
        Ok(Self { allocation: Allocation::Heap(memory), origin })
    }

    /// Number of bytes from the first aligned one on.
    pub fn size(&self) -> usize {
        match &self.allocation {
            Allocation::Heap(memory) => memory.len().saturating_sub(CACHE_LINE),
            Allocation::Mapped(map) => map.len(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.allocation {
            Allocation::Heap(memory) => &mut memory[self.origin..],
            Allocation::Mapped(map) => map,
        }
    }
}
