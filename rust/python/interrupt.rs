//! Ctrl-C: long work polls for signals every few milliseconds.

use std::time::{Duration, Instant};

use fastcollate::{Error as Core, Ticks};
use pyo3::prelude::*;

use crate::error::{Error, Result};

/// Run pending signal handlers, and raise their exception.
///
/// # Errors
/// The exception.
pub fn poll() -> Result<(), Core> {
    Ok(Python::attach(|py| py.check_signals()).map_err(Error::from)?)
}

/// Time between two polls for signals. Each may wait for the interpreter.
const PATIENCE: Duration = Duration::from_millis(50);

/// Do work with the interpreter released; an exception of a signal handler ends it.
///
/// # Errors
/// Those of the work, and the handler's exception.
pub fn stoppable<T: Send>(
    py: Python,
    work: impl FnOnce(&mut Ticks) -> Result<T, Core> + Send,
) -> Result<T> {
    let done = py.detach(|| {
        let mut last = None;
        work(&mut Ticks::new(&mut || {
            if last.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                return Ok(());
            }
            poll()?;
            last = Some(Instant::now());
            Ok(())
        }))
    });
    py.check_signals()?;
    Ok(done?)
}
