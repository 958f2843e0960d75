//! Ctrl-C: long work looks at pending signals every few milliseconds.

use std::time::{Duration, Instant};

use fastcollate::{Error as Core, Ticks};
use pyo3::prelude::*;

use crate::error::{Error, Result};

/// Raise what a signal handler raised, if a signal came.
///
/// # Errors
/// The exception.
pub fn poll() -> Result<(), Core> {
    Ok(Python::attach(|py| py.check_signals()).map_err(Error::from)?)
}

/// Time between two looks at pending signals. Each may wait for the interpreter.
const PATIENCE: Duration = Duration::from_millis(50);

/// Do work with the interpreter released, and end it with what a signal handler raised.
///
/// # Errors
/// Those of the work, and the handler's exception.
pub fn stoppable<T: Send>(
    py: Python,
    work: impl FnOnce(&mut Ticks) -> Result<T, Core> + Send,
) -> Result<T> {
    let done = py.detach(|| {
        let mut last = Instant::now();
        work(&mut Ticks::new(&mut || {
            if last.elapsed() < PATIENCE {
                return Ok(());
            }
            poll()?;
            last = Instant::now();
            Ok(())
        }))
    });
    Ok(done?)
}
