//! Pools: recycled memory of slabs.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use fastcollate::threads;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::slab::Memory;
use crate::rows::describe;

/// A pool returns memory of at most this many times the requested size, so that a long-lived small
/// batch does not hold the memory of a large one.
const LARGEST_FIT: usize = 4;

/// Memory up to this size is never too large for a request.
const SMALL: usize = 1 << 20;

/// A pool searches all idle slabs linearly, so it keeps no more than this.
const IDLE_SLABS: usize = 256;

/// Number of forks between this process and the one that imported the module. Counted by Python's
/// hook: asking for the process id is a system call, too slow for small batches.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Call in every forked child.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    threads::reset_in_child();
}

/// Call before every fork: waits for helper threads to end.
#[pyfunction]
pub fn before_fork() {
    threads::before_fork();
}

/// Call in the parent after every fork.
#[pyfunction]
pub fn after_fork() {
    threads::after_fork();
}

/// Idle memory for the next batches. Shared by the pool's Python object and its calls.
pub struct Pool {
    max_bytes: usize,
    /// Memory handed out and not yet returned.
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

    /// Make the pool this process's, and return `FORKS`: a forked child starts with an empty pool.
    /// None if it cannot be used, since at the fork a thread that the child does not have held its
    /// lock.
    pub fn enter(&self) -> Option<u32> {
        let forks = FORKS.load(Ordering::Relaxed);
        if self.forks.load(Ordering::Acquire) != forks {
            let mut idle = match self.idle.try_lock() {
                Ok(idle) => idle,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            // Unless another thread of this process has done so.
            if self.forks.load(Ordering::Acquire) != forks {
                *idle = Idle::default();
                self.live_bytes.store(0, Ordering::Relaxed);
                self.forks.store(forks, Ordering::Release);
            }
        }
        Some(forks)
    }

    /// Only after `enter`.
    pub fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return memory to the pool.
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

    /// Free the idle memory.
    pub fn clear(&self) {
        let idle = take(&mut *self.lock());
        drop(idle);
    }
}

/// Idle memory, the longest unused first.
#[derive(Default)]
pub struct Idle {
    slabs: VecDeque<Memory>,
    bytes: usize,
}

impl Idle {
    /// The smallest memory that fits and is not much too large; of several, the last used.
    pub fn take(&mut self, bytes: usize) -> Option<Memory> {
        let fitting = bytes..=bytes.saturating_mul(LARGEST_FIT).max(SMALL);
        let sizes = self.slabs.iter().map(Memory::size).enumerate().rev();
        let (index, _) =
            sizes.filter(|(_, size)| fitting.contains(size)).min_by_key(|&(_, size)| size)?;
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
/// Recycled memory need not be mapped by the system again, which takes as long as writing it. A
/// batch takes its memory from the pool, and the memory is returned when the last tensor, array or
/// view of it is freed, on any thread. A pool may be used by many threads. A forked child starts
/// with an empty one.
///
/// Parameters
/// ----------
/// max_bytes
///     Maximum number of bytes kept while no batch uses them. Beyond it, the longest unused are
///     freed.
///
/// Notes
/// -----
/// A batch gets up to an eighth more memory than it fills, so that the next may be slightly larger.
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

    /// Maximum number of idle bytes.
    #[getter]
    fn max_bytes(&self) -> usize {
        self.pool.max_bytes
    }

    /// Number of idle bytes.
    #[getter]
    fn idle_bytes(&self) -> usize {
        self.pool.enter().map_or(0, |_| self.pool.lock().bytes)
    }

    /// Bytes of batches that are alive, or that have a live tensor or view.
    #[getter]
    fn live_bytes(&self) -> usize {
        self.pool.enter().map_or(0, |_| self.pool.live_bytes.load(Ordering::Relaxed))
    }

    /// Free the idle bytes. Live batches keep theirs.
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
