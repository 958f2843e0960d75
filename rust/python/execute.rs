//! Execution: the order and the threads in which jobs are written.

use std::iter::from_fn;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{thread, vec};

use crate::error::Result;
use crate::interrupt::poll;
use crate::job::Job;

/// From this size on a second thread pays, even where it has to wait for a busy core now and then:
/// that takes some milliseconds, as long as 64 MiB do.
const PARALLEL_FROM: usize = 64 << 20;

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
    if bytes < PARALLEL_FROM || !has_two_cores() {
        return jobs.into_iter().try_for_each(write);
    }
    let (masks, values): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Job::is_mask);
    let (masks, values) = (Queue::new(masks), Queue::new(values));
    thread::scope(|scope| {
        let (to_writer, mapped) = channel();
        let to_writer = is_fresh.then_some(to_writer);
        let second = || {
            while let Some(job) = masks.next() {
                job.write_mask();
            }
            let Some(to_writer) = to_writer else { return };
            while let Some(mut job) = values.next_back() {
                job.touch();
                if to_writer.send(job).is_err() {
                    return;
                }
            }
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
struct Queue<'a>(Mutex<vec::IntoIter<Job<'a>>>);

impl<'a> Queue<'a> {
    fn new(jobs: Vec<Job<'a>>) -> Self {
        Self(Mutex::new(jobs.into_iter()))
    }

    fn lock(&self) -> MutexGuard<'_, vec::IntoIter<Job<'a>>> {
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
