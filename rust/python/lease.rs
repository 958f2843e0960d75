//! Leases: a batch's own hold on its memory, by which a later batch takes the memory over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::memory::{BufferPool, Slab};
use crate::output::{NamedArray, Written};

/// A batch's own hold on its memory. Arrays have holds of their own, so whether this is the last one
/// says whether anything still sees the memory.
#[pyclass(frozen, module = "fastcollate._fastcollate")]
pub struct Lease(Mutex<Option<Arc<Written>>>);

impl Lease {
    pub fn new(memory: Arc<Written>) -> Self {
        Self(Mutex::new(Some(memory)))
    }

    /// For single steps that run no Python code and never release the interpreter. So a fork finds it
    /// unlocked: it waits for the interpreter or, free-threaded, for all threads to be out of such steps.
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Written>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slab, if this is the last hold on it.
    fn end(&self) -> Option<Slab> {
        let mut memory = self.lock();
        match Arc::try_unwrap(memory.take()?) {
            Ok(written) => Some(written.into_slab()),
            Err(shared) => {
                *memory = Some(shared);
                None
            }
        }
    }
}

#[pymethods]
impl Lease {
    /// Move the hold to a new lease, or give None if it was moved before: so one call alone can take
    /// the memory over.
    fn claim(&self) -> Option<Self> {
        self.lock().take().map(Self::new)
    }

    /// Whether nothing else holds the memory.
    fn is_last(&self) -> bool {
        let memory = self.lock();
        // Nobody can get a hold in the meantime: they come from arrays, and from here.
        memory
            .as_ref()
            .is_some_and(|memory| Arc::strong_count(memory) == 1)
    }

    /// The keys of the outputs in the memory.
    fn names(&self) -> Vec<String> {
        let memory = self.lock();
        memory.as_ref().map_or(Vec::new(), |memory| memory.keys())
    }

    /// All outputs as one array of bytes, unless the memory was taken over.
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let memory = self.lock().clone();
        memory.map(|memory| memory.bytes(py)).transpose()
    }

    /// The outputs again, as new arrays.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Vec<NamedArray<'py>>> {
        let memory = self.lock().clone();
        memory.map_or(Ok(Vec::new()), |memory| memory.arrays(py))
    }
}

/// Memory for a batch: of the batch that `close` closes, or from a pool.
///
/// # Errors
/// `MemoryError`, and what `close` raises.
pub fn slab(
    bytes: usize,
    close: Option<&Bound<PyAny>>,
    pool: Option<&Bound<BufferPool>>,
) -> PyResult<Slab> {
    let pool = pool.map(|pool| &pool.get().pool);
    let Some(close) = close else {
        return Slab::take(bytes, pool);
    };
    let lease = close.call0()?.cast_into::<Lease>()?;
    let slab = lease.get().end();
    let slab = slab.ok_or_else(|| PyValueError::new_err("out is still in use"))?;
    slab.refit(bytes, pool)
}
