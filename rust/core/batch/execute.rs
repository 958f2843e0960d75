//! Execution: order and threads of the jobs.

use std::iter::from_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::vec;

use super::Columns;
use super::arrays::{Derived, Job, Read, Source};
use crate::column::SliceColumn;
use crate::error::Result;
use crate::memory::{few, gathered};
use crate::plan::Assembly;
use crate::polling::{Poll, Polled};
use crate::threads::{help, is_forking};

/// A second thread pays from this size on, even if it sometimes waits some milliseconds for a busy
/// core, as long as writing 64 MiB takes. The limit is the same for recycled memory: one core fills
/// it at 36 GB/s, two at 38.
const PARALLEL_FROM: usize = 64 << 20;

/// Copying is bound by memory bandwidth, which a few threads saturate; other cores are left free.
const MAX_THREADS: usize = 4;

/// All jobs of a batch.
pub(super) struct Jobs<'a> {
    /// Derived from the plan alone: any thread may write them.
    pub derived: Vec<Job<'a, Derived>>,
    /// Read from columns.
    pub read: Vec<Job<'a, Read>>,
    /// True if the memory is fresh: its pages are mapped on first touch.
    pub is_fresh: bool,
}

impl Jobs<'_> {
    /// Bytes to write.
    fn size(&self) -> usize {
        let derived: usize = self.derived.iter().map(Job::size).sum();
        derived + self.read.iter().map(Job::size).sum::<usize>()
    }
}

/// Write all jobs; only this thread reads columns, which may belong to it.
///
/// For a large batch a second thread writes the derived jobs, and then maps the memory of values
/// from the end on, which takes the system about as long as copying them. This thread never waits
/// for a job that the other has not begun. Recycled memory is mapped already: there, the second
/// thread shares the masks only. Mapping first, right ahead of this thread, takes an unpredictable
/// 53 or 85 ms instead of 60.
pub(super) fn write(jobs: Jobs, source: &Source, poll: Poll) -> Result<()> {
    let mut read = |job: Job<Read>| {
        job.write(source)?;
        poll()
    };
    let derive = |job: Job<Derived>| {
        job.write();
        poll()
    };
    if jobs.size() < PARALLEL_FROM || cores() < 2 {
        jobs.read.into_iter().try_for_each(read)?;
        return jobs.derived.into_iter().try_for_each(derive);
    }
    let (masks, values) = (Queue::new(jobs.derived), Queue::new(jobs.read));
    thread::scope(|scope| {
        let (to_reader, mapped) = channel();
        let to_reader = jobs.is_fresh.then_some(to_reader);
        let second = || {
            while let Some(job) = masks.next_for_helper() {
                job.write();
            }
            let Some(to_reader) = to_reader else { return };
            while !is_forking()
                && let Some(mut job) = values.next_back()
            {
                job.touch();
                if to_reader.send(job).is_err() {
                    return;
                }
            }
        };
        help(scope, second);
        let mut all = from_fn(|| values.next()).chain(mapped);
        let result = all
            .try_for_each(&mut read)
            .and_then(|()| from_fn(|| masks.next()).try_for_each(derive));
        if result.is_err() {
            // The other jobs are dropped, which stops the other thread.
            values.clear();
            masks.clear();
        }
        result
    })
}

/// Write all jobs from plain memory, with as many threads as pay.
///
/// Each thread takes the next free job; only this one calls the hook.
pub(super) fn write_slices(
    jobs: Jobs,
    columns: &Columns<SliceColumn>,
    assembly: &Assembly,
    poll: Poll,
) -> Result<()> {
    let (polled, unpolled) = (columns.polled(poll), columns.polled(&|| Ok(())));
    let threads = threads_for(jobs.size());
    let read = Queue::new(gathered(jobs.read.into_iter().enumerate())?);
    let derived = Queue::new(jobs.derived);
    let errors = Mutex::new(Vec::new());
    let failed = |index, error| {
        // The other jobs are dropped, which stops the other threads.
        read.clear();
        derived.clear();
        unpoisoned(&errors).push((index, error));
    };
    let helper = || {
        let source = unpolled.source(assembly);
        while let Some((index, job)) = read.next_for_helper() {
            if let Err(error) = job.write(&source) {
                failed(index, error);
            }
        }
        while let Some(job) = derived.next_for_helper() {
            job.write();
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            help(scope, helper);
        }
        let source = polled.source(assembly);
        while let Some((index, job)) = read.next() {
            let written = job.write(&source);
            if let Err(error) = written.and_then(|()| poll()) {
                failed(index, error);
            }
        }
        while let Some(job) = derived.next() {
            job.write();
            if let Err(error) = poll() {
                failed(usize::MAX, error);
            }
        }
    });
    // Jobs are taken in order, so the first error does not depend on the threads.
    let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    match errors.into_iter().min_by_key(|(index, _)| *index) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

impl<'a> Columns<SliceColumn<'a>> {
    /// The columns, with a hook called between chunks of long rows.
    fn polled(&'a self, poll: Poll<'a>) -> Columns<Polled<'a>> {
        let polled = |column| Polled::new(column, poll);
        Columns { tokens: self.tokens.map(polled), fields: few(self.fields.iter().map(polled)) }
    }
}

/// Jobs that any thread may take, in order.
struct Queue<J>(Mutex<vec::IntoIter<J>>);

impl<J> Queue<J> {
    fn new(jobs: Vec<J>) -> Self {
        Self(Mutex::new(jobs.into_iter()))
    }

    fn lock(&self) -> MutexGuard<'_, vec::IntoIter<J>> {
        unpoisoned(&self.0)
    }

    fn next(&self) -> Option<J> {
        self.lock().next()
    }

    /// As `next`; returns no job to a helper while the process forks.
    fn next_for_helper(&self) -> Option<J> {
        if is_forking() { None } else { self.next() }
    }

    fn next_back(&self) -> Option<J> {
        self.lock().next_back()
    }

    fn clear(&self) {
        self.lock().by_ref().for_each(drop);
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of threads for this many bytes.
fn threads_for(bytes: usize) -> usize {
    if bytes < PARALLEL_FROM { 1 } else { cores().min(MAX_THREADS) }
}

fn cores() -> usize {
    /// 0 until known. No lock: if another thread forks while the caller's is paused here, the child
    /// would find it locked.
    static CORES: AtomicUsize = AtomicUsize::new(0);
    match CORES.load(Ordering::Relaxed) {
        0 => {
            let cores = thread::available_parallelism().map_or(1, Into::into);
            CORES.store(cores, Ordering::Relaxed);
            cores
        }
        cores => cores,
    }
}
