//! Execution: the order and the threads in which jobs are written.

use std::iter::from_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::vec;

use fastcollate::SliceColumn;
use fastcollate::plan::Assembly;

use crate::error::Result;
use crate::interrupt::{Interruptible, poll};
use crate::job::Job;
use crate::threads::{help, is_forking};

/// From this size on a second thread pays, even where it has to wait for a busy core now and then:
/// that takes some milliseconds, as long as 64 MiB do. Recycled memory asks for no less: where one
/// core fills it with 36 GB/s, two fill it with 38.
const PARALLEL_FROM: usize = 64 << 20;

/// Copying is bound by memory, which a few threads saturate; the other cores have work of their own.
const MAX_THREADS: usize = 4;

/// Write all jobs; `write` is called by this thread alone, so it may talk to Python.
///
/// For a large batch a second thread writes the masks, which need no input, and then maps the memory
/// of values from the end on, which takes the system about as long as copying them. This thread
/// never waits for a job that the other has not begun. Recycled memory is mapped: there, the second
/// thread shares the masks only. Mapping first, right ahead of this thread,
/// takes 53 ms or 85 instead of 60, and which of the two cannot be foreseen.
pub fn execute(jobs: Vec<Job>, mut write: impl FnMut(Job) -> Result<()>) -> Result<()> {
    let mut write = |job: Job| {
        write(job)?;
        Ok(poll()?)
    };
    let is_fresh = jobs.iter().all(Job::is_fresh);
    let bytes: usize = jobs.iter().map(Job::size).sum();
    if bytes < PARALLEL_FROM || cores() < 2 {
        return jobs.into_iter().try_for_each(write);
    }
    let (masks, values): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Job::is_planned);
    let (masks, values) = (Queue::new(masks), Queue::new(values));
    thread::scope(|scope| {
        let (to_writer, mapped) = channel();
        let to_writer = is_fresh.then_some(to_writer);
        let second = || {
            while let Some(job) = masks.next_for_helper() {
                job.write_planned();
            }
            let Some(to_writer) = to_writer else { return };
            while !is_forking()
                && let Some(mut job) = values.next_back()
            {
                job.touch();
                if to_writer.send(job).is_err() {
                    return;
                }
            }
        };
        help(scope, second);
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

/// Write all jobs from plain memory, on as many threads as pay.
///
/// Every thread takes the next job that nobody has; only this one looks at pending signals.
pub fn execute_slices(jobs: Vec<Job>, columns: &[SliceColumn], assembly: &Assembly) -> Result<()> {
    let interruptible: Vec<_> = columns.iter().map(Interruptible).collect();
    let threads = threads_for(jobs.iter().map(Job::size).sum());
    let queue = Queue::new(jobs.into_iter().enumerate().collect());
    let errors = Mutex::new(Vec::new());
    let failed = |index, error| {
        // Nobody wants the rest: taking it stops the other threads.
        queue.clear();
        unpoisoned(&errors).push((index, error));
    };
    let helper = || {
        while let Some((index, job)) = queue.next_for_helper() {
            if let Err(error) = job.write(columns, assembly) {
                failed(index, error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            help(scope, helper);
        }
        while let Some((index, job)) = queue.next() {
            let written = job.write(&interruptible, assembly);
            if let Err(error) = written.and_then(|()| Ok(poll()?)) {
                failed(index, error);
            }
        }
    });
    // Jobs are taken in order, so the first that failed is the same however threads run.
    let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    match errors.into_iter().min_by_key(|(index, _)| *index) {
        Some((_, error)) => Err(error),
        None => Ok(()),
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

    /// As `next`; a helper has no next job while the process forks.
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

/// Threads that together write so many bytes.
fn threads_for(bytes: usize) -> usize {
    if bytes < PARALLEL_FROM {
        1
    } else {
        cores().min(MAX_THREADS)
    }
}

fn cores() -> usize {
    /// 0 until it is known. No lock: the interpreter may be released here, and who forks then would
    /// leave it locked in the child.
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
