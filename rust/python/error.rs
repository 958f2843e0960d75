//! The one way from our errors into Python's exceptions.

use fastcollate::{Error as Core, Place};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Why a call fails: the core's reasons, those that only exist where Python objects are read, and
/// exceptions that pass through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The core refuses lengths, values or a plan.
    #[error(transparent)]
    Core(#[from] Core),

    /// An object of the wrong kind: a `TypeError`.
    #[error("{place} is {found}; {expected}")]
    Kind {
        place: String,
        found: String,
        expected: &'static str,
    },

    /// An array of the wrong shape: a `ValueError`.
    #[error("{place} has shape {found}; {expected}")]
    Shape {
        place: String,
        found: String,
        expected: &'static str,
    },

    /// An object whose own code raised while it was read.
    #[error("{place} could not be read: {cause}")]
    Raised { place: String, cause: PyErr },

    /// A list that changed its length between the plan and the reading.
    #[error(
        "{field}[{row}] changed from {expected} to {found} items while it was read; \
         do not modify inputs during the call"
    )]
    Changed {
        field: String,
        row: usize,
        expected: usize,
        found: usize,
    },

    /// A Python exception that is not ours to interpret, such as `KeyboardInterrupt`.
    #[error(transparent)]
    Python(#[from] PyErr),
}

/// The result of everything that talks to Python.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The error for an object whose own code raised `cause`: chained, unless it is an exception
    /// that nobody may swallow (`KeyboardInterrupt`, `SystemExit`).
    pub fn raised(py: Python, place: &Place, cause: PyErr) -> Self {
        if cause.is_instance_of::<PyException>(py) {
            let place = place.to_string();
            Self::Raised { place, cause }
        } else {
            Self::Python(cause)
        }
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Python(exception) => exception,
            Error::Kind { .. } | Error::Core(Core::Kind { .. }) => PyTypeError::new_err(message),
            Error::Raised { cause, .. } => Python::attach(|py| {
                let exception = if cause.is_instance_of::<PyTypeError>(py) {
                    PyTypeError::new_err(message)
                } else {
                    PyValueError::new_err(message)
                };
                exception.set_cause(py, Some(cause));
                exception
            }),
            Error::Shape { .. } | Error::Changed { .. } | Error::Core(_) => {
                PyValueError::new_err(message)
            }
        }
    }
}
