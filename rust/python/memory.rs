//! Memory: slabs, which hold all outputs of a batch, and pools, which recycle them.

use std::collections::VecDeque;
use std::mem::take;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use fastcollate::batch::ALIGNMENT;
use fastcollate::threads;
use memmap2::MmapMut;
use numpy::PyArray1;
use pyo3::exceptions::{PyException, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PySlice;

use crate::ingest::describe;

/// From this size on a slab is mapped and huge pages are asked for: fewer page faults. Below, an
/// allocator such as glibc's recycles memory that is mapped already, which is faster still.
const MAP_FROM: usize = 32 << 20;

/// A pool hands out memory of up to this many times the size that is asked for, so that a small
/// batch that lives long does not hold the memory of a large one.
const LARGEST_FIT: usize = 4;

/// Below this size any memory is small.
const SMALL: usize = 1 << 20;

/// A pool looks through all it has, so it keeps no more slabs than can be looked through at once.
const IDLE_SLABS: usize = 256;

/// How many forks this process is away from the one that imported the module. Counted by Python's
/// hook, since asking for the process id is a system call, which small batches would notice.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// To be called in every forked child.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    threads::reset_in_child();
}

/// To be called before every fork: wait for threads of ours to end.
#[pyfunction]
pub fn before_fork() {
    threads::before_fork();
}

/// To be called in the parent after every fork.
#[pyfunction]
pub fn after_fork() {
    threads::after_fork();
}

/// Bytes of an array, as a view.
///
/// # Errors
/// `MemoryError`.
pub fn bytes_at<'py>(
    memory: &Bound<'py, PyArray1<u8>>,
    range: Range<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    // `PySlice::new` of PyO3 0.30 never frees the numbers.
    let slice = memory.py().get_type::<PySlice>();
    memory.get_item(slice.call1((range.start, range.end))?)
}

/// The memory of all outputs of a batch. When it is dropped, its pool takes the memory back.
pub struct Slab {
    memory: Memory,
    is_zeroed: bool,
    home: Option<Home>,
}

/// Where a slab's memory goes back to.
struct Home {
    /// A pool that is gone keeps nothing.
    pool: Weak<Pool>,
    /// When it was taken. Memory from before a fork is not the child's to recycle: writing to it
    /// would copy each page.
    forks: u32,
}

impl Slab {
    /// Memory of at least `bytes`, from the pool if it has some that fits.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn take(bytes: usize, pool: Option<&Arc<Pool>>) -> PyResult<Self> {
        let Some((pool, forks)) = pool.and_then(|pool| Some((pool, pool.enter()?))) else {
            return Ok(Self {
                memory: Memory::zeroed(bytes)?,
                is_zeroed: true,
                home: None,
            });
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
        let home = Some(Home {
            pool: Arc::downgrade(pool),
            forks,
        });
        Ok(Self {
            memory,
            is_zeroed,
            home,
        })
    }

    /// Whether all bytes are zero. Those of recycled memory are what the last batch left.
    pub fn is_zeroed(&self) -> bool {
        self.is_zeroed
    }

    /// The memory from the first aligned byte on.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl Drop for Slab {
    /// May run on any thread, one of torch's autograd among them: takes one short lock and calls
    /// nothing of Python's.
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        if let Some(pool) = home.pool.upgrade()
            && pool.enter() == Some(home.forks)
        {
            pool.give_back(take(&mut self.memory));
        }
    }
}

/// Bytes to allocate for a slab of `bytes`: up to an eighth more, so that a batch that is slightly
/// larger than the last fits too. Of a large slab that costs nothing until it is touched.
fn rounded(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 16).max(ALIGNMENT);
    bytes.next_multiple_of(step)
}

/// One allocation.
#[derive(Default)]
struct Memory {
    allocation: Allocation,
    /// Its first aligned byte.
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
    /// So many bytes, all zero.
    fn zeroed(bytes: usize) -> PyResult<Self> {
        let out_of_memory = |error: &dyn std::fmt::Display| {
            PyMemoryError::new_err(format!("cannot take {bytes} bytes for the batch: {error}"))
        };
        if bytes >= MAP_FROM {
            let map = MmapMut::map_anon(bytes).map_err(|error| out_of_memory(&error))?;
            // A hint: without huge pages it is only slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            return Ok(Self {
                allocation: Allocation::Mapped(map),
                origin: 0,
            });
        }
        let mut memory = Vec::new();
        let len = bytes + ALIGNMENT;
        memory
            .try_reserve_exact(len)
            .map_err(|error| out_of_memory(&error))?;
        memory.resize(len, 0);
        let origin = memory.as_ptr().align_offset(ALIGNMENT);
        Ok(Self {
            allocation: Allocation::Heap(memory),
            origin,
        })
    }

    /// Bytes from the first aligned one on.
    fn size(&self) -> usize {
        match &self.allocation {
            Allocation::Heap(memory) => memory.len().saturating_sub(ALIGNMENT),
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

/// Memory that waits for its next batch. Shared by the pool's Python object and its calls.
pub struct Pool {
    max_bytes: usize,
    /// Memory handed out and not yet back.
    live_bytes: AtomicUsize,
    idle: Mutex<Idle>,
    /// `FORKS` when the above was last used.
    forks: AtomicU32,
}

impl Pool {
    fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            live_bytes: AtomicUsize::new(0),
            idle: Mutex::default(),
            forks: AtomicU32::new(FORKS.load(Ordering::Relaxed)),
        }
    }

    /// Make sure that the pool is this process's, and return `FORKS`: a forked child starts with an
    /// empty pool. None if it cannot be used: a thread that the child does not have was just using
    /// it, and will never unlock it.
    fn enter(&self) -> Option<u32> {
        let forks = FORKS.load(Ordering::Relaxed);
        if self.forks.load(Ordering::Acquire) != forks {
            let mut idle = match self.idle.try_lock() {
                Ok(idle) => idle,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            // Unless another thread of this process was faster.
            if self.forks.load(Ordering::Acquire) != forks {
                *idle = Idle::default();
                self.live_bytes.store(0, Ordering::Relaxed);
                self.forks.store(forks, Ordering::Release);
            }
        }
        Some(forks)
    }

    /// Only for those who entered.
    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take memory back that was handed out.
    fn give_back(&self, memory: Memory) {
        let size = memory.size();
        self.live_bytes.fetch_sub(size, Ordering::Relaxed);
        if size > self.max_bytes {
            return;
        }
        let mut surplus = Vec::new(); // freed when the pool is unlocked again
        let mut idle = self.lock();
        idle.bytes += size;
        idle.slabs.push_back(memory);
        while idle.bytes > self.max_bytes || idle.slabs.len() > IDLE_SLABS {
            surplus.extend(idle.remove(0));
        }
    }

    /// Free the memory that is idle.
    fn clear(&self) {
        let idle = take(&mut *self.lock());
        drop(idle);
    }
}

/// What a pool has to hand out, the longest unused first.
#[derive(Default)]
struct Idle {
    slabs: VecDeque<Memory>,
    bytes: usize,
}

impl Idle {
    /// The smallest that fits and is not much too large; of several, the last used.
    fn take(&mut self, bytes: usize) -> Option<Memory> {
        let fitting = bytes..=bytes.saturating_mul(LARGEST_FIT).max(SMALL);
        let sizes = self.slabs.iter().map(Memory::size).enumerate().rev();
        let (index, _) = sizes
            .filter(|(_, size)| fitting.contains(size))
            .min_by_key(|&(_, size)| size)?;
        self.remove(index)
    }

    fn remove(&mut self, index: usize) -> Option<Memory> {
        let memory = self.slabs.remove(index)?;
        self.bytes -= memory.size();
        Some(memory)
    }
}

/// Recycles the memory of batches.
///
/// Memory that is used again need not be mapped by the system again, which takes as long as writing
/// it. A batch takes its memory from a pool, and it goes back by itself when the last tensor, array or
/// view of it is gone, on whatever thread; until then nobody else gets it. A pool may be used by
/// many threads. A forked child starts with an empty one.
///
/// Parameters
/// ----------
/// max_bytes
///     The most bytes that are kept while no batch uses them. Beyond, the longest unused are freed.
///
/// Notes
/// -----
/// A batch gets up to an eighth more memory than it fills, so that the next may be a bit larger.
#[pyclass(frozen, module = "fastcollate")]
pub struct BufferPool {
    pub pool: Arc<Pool>,
}

#[pymethods]
impl BufferPool {
    #[new]
    fn new(max_bytes: &Bound<PyAny>) -> PyResult<Self> {
        let py = max_bytes.py();
        let bytes = match max_bytes.extract::<usize>() {
            Ok(bytes) => bytes,
            Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
            Err(error) => {
                let found = describe(max_bytes)?;
                let message = format!("max_bytes is {found}; pass a number of bytes from 0 on");
                return Err(if error.is_instance_of::<PyTypeError>(py) {
                    PyTypeError::new_err(message)
                } else {
                    PyValueError::new_err(message)
                });
            }
        };
        let pool = Arc::new(Pool::new(bytes));
        Ok(Self { pool })
    }

    /// The most bytes that are kept idle.
    #[getter]
    fn max_bytes(&self) -> usize {
        self.pool.max_bytes
    }

    /// Bytes that wait for a batch.
    #[getter]
    fn idle_bytes(&self) -> usize {
        self.pool.enter().map_or(0, |_| self.pool.lock().bytes)
    }

    /// Bytes of batches that are alive, or of which any tensor or view is.
    #[getter]
    fn live_bytes(&self) -> usize {
        self.pool
            .enter()
            .map_or(0, |_| self.pool.live_bytes.load(Ordering::Relaxed))
    }

    /// Free the idle bytes. Batches that are alive keep theirs.
    fn clear(&self) {
        if self.pool.enter().is_some() {
            self.pool.clear();
        }
    }

    fn __repr__(&self) -> String {
        format!(
            "BufferPool(max_bytes={}): {} bytes idle, {} live",
            self.max_bytes(),
            self.idle_bytes(),
            self.live_bytes()
        )
    }
}
