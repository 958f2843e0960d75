//! Pools: the memory of slabs that are gone, for the next ones.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use fastcollate::threads;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::slab::Memory;
use crate::ingest::describe;

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

/// Memory that waits for its next batch. Shared by the pool's Python object and its calls.
pub struct Pool {
    max_bytes: usize,
    /// Memory handed out and not yet back.
    pub live_bytes: AtomicUsize,
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
    pub fn enter(&self) -> Option<u32> {
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
    pub fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take memory back that was handed out.
    pub fn give_back(&self, memory: Memory) {
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
    pub fn clear(&self) {
        let idle = take(&mut *self.lock());
        drop(idle);
    }
}

/// What a pool has to hand out, the longest unused first.
#[derive(Default)]
pub struct Idle {
    slabs: VecDeque<Memory>,
    bytes: usize,
}

impl Idle {
    /// The smallest that fits and is not much too large; of several, the last used.
    pub fn take(&mut self, bytes: usize) -> Option<Memory> {
        let fitting = bytes..=bytes.saturating_mul(LARGEST_FIT).max(SMALL);
        let mut found = None;
        for (index, size) in self.slabs.iter().map(Memory::size).enumerate() {
            if fitting.contains(&size) && found.is_none_or(|(least, _)| size <= least) {
                found = Some((size, index));
            }
        }
        self.remove(found?.1)
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
                let message = format!("max_bytes is {found}; pass a number of bytes, 0 or more");
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
