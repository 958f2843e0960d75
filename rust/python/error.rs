//! Conversion of all errors to Python exceptions.

use fastcollate::{Error as Core, few};
use pyo3::exceptions::{PyException, PyMemoryError, PyRecursionError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::hints::message;
use crate::rows::describe;

/// The error of a call: from the core, from reading Python objects, or an exception passed on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The core rejects lengths, values or a plan.
    #[error("{}", message(.0))]
    Core(Core),

    /// An object of the wrong kind: a `TypeError`.
    #[error("{location} is {found}; {expected}")]
    WrongType { location: String, found: String, expected: &'static str },

    /// An array of the wrong shape: a `ValueError`.
    #[error("{location} has shape {found}; {expected}")]
    Shape { location: String, found: String, expected: &'static str },

    /// A null in an Arrow array: a `ValueError`.
    #[error("{location} is null; fill or drop nulls first")]
    Null { location: String },

    /// An Arrow array that is invalid, or that its producer fails to make: a `ValueError`.
    #[error("{location} could not be read: {cause}; pass a valid Arrow array")]
    Arrow { location: String, cause: String },

    /// An object whose own code raised while it was read: a chained exception.
    #[error("{location} could not be read")]
    Raised { location: String, cause: PyErr },

    /// A row outside its column.
    #[error(
        "{field}[{row}] starts at {start} and has {len} tokens, but there are only {tokens} in all; \
         pass offsets and lengths within these"
    )]
    Overrun { field: String, row: usize, start: usize, len: usize, tokens: usize },

    /// A list whose length changed between planning and reading.
    #[error(
        "{field}[{row}] changed from {expected} to {found} items while it was read; \
         do not modify inputs during the call"
    )]
    Changed { field: String, row: usize, expected: usize, found: usize },

    /// An array or tensor whose memory was moved or changed between planning and reading.
    #[error(
        "{field}[{row}] was resized, moved or given another dtype while it was read; \
         do not modify inputs during the call"
    )]
    Moved { field: String, row: usize },

    /// A Python exception passed on unchanged, such as `KeyboardInterrupt`.
    #[error(transparent)]
    Python(#[from] PyErr),
}

/// The result of functions that use Python.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The error for an object whose own code raised `cause`: chained, except for exceptions that
    /// are not about the object (`KeyboardInterrupt`, `SystemExit`, `MemoryError`,
    /// `RecursionError`).
    pub fn raised(py: Python, location: impl ToString, cause: PyErr) -> Self {
        let is_about_the_object = cause.is_instance_of::<PyException>(py)
            && !cause.is_instance_of::<PyMemoryError>(py)
            && !cause.is_instance_of::<PyRecursionError>(py);
        if is_about_the_object {
            let location = location.to_string();
            Self::Raised { location, cause }
        } else {
            Self::Python(cause)
        }
    }

    /// The error for an object of the wrong kind.
    pub fn wrong_type(location: String, object: &Bound<PyAny>, expected: &'static str) -> Self {
        let is_text = object.is_instance_of::<PyString>() || object.is_instance_of::<PyDict>();
        let column = location.rsplit(": ").next().unwrap_or_default();
        let is_whole = !column.contains('[');
        let is_row = column.matches('[').count() == 1;
        let has_columns = is_whole && object.hasattr("keys").unwrap_or(false);
        let is_of_tokens =
            ["prompt", "response", "sequence"].iter().any(|name| column.starts_with(name));
        match describe(object) {
            Ok(found) => Self::WrongType {
                location,
                found,
                expected: if has_columns && is_of_tokens {
                    "pass the column with token ids, such as its 'input_ids'"
                } else if is_text && is_whole && is_of_tokens {
                    "pass rows of token ids, such as the column of a table, not its name"
                } else if object.is_none() && is_row {
                    match is_of_tokens {
                        true => "fill or drop missing rows first",
                        false => {
                            "fill or drop missing rows first, or pass fc.Field(..., default=0)"
                        }
                    }
                } else if is_of_tokens && is_of_digits(object) {
                    "convert this text to integers first, as by json.loads(row) or int(id)"
                } else if is_text && is_of_tokens {
                    "tokenize it first, and pass the ids"
                } else if is_of_tokens && object.is_instance_of::<PyList>() {
                    "pass one list of integers per row: flatten groups of samples, as by [row for \
                     group in rows for row in group], and repeat their prompts; a builder takes one \
                     row per call"
                } else {
                    expected
                },
            },
            Err(interrupt) => Self::Python(interrupt),
        }
    }

    /// The error for an array of a wrong shape.
    pub fn shape(location: String, shape: &[usize], expected: &'static str) -> Self {
        let sizes: Vec<_> = few(shape.iter().map(usize::to_string));
        let comma = if sizes.len() == 1 { "," } else { "" };
        let found = format!("({}{comma})", sizes.join(", "));
        Self::Shape { location, found, expected }
    }
}

/// True for text that begins as an integer, or a list of some.
fn is_of_digits(object: &Bound<PyAny>) -> bool {
    let text = object.cast::<PyString>().ok().and_then(|text| text.to_str().ok());
    text.is_some_and(|text| {
        let is_of_list = |one: char| one.is_ascii_digit() || "[], -'\"".contains(one);
        text.chars().take(80).all(is_of_list)
    })
}

impl From<Core> for Error {
    fn from(error: Core) -> Self {
        match error {
            Core::External(error) => {
                error.downcast().unwrap_or_else(|error| Self::Core(Core::External(error)))
            }
            error => Self::Core(error),
        }
    }
}

/// The core passes these errors on; they are unwrapped when they leave it.
impl From<Error> for Core {
    fn from(error: Error) -> Self {
        match error {
            Error::Core(error) => error,
            error => Self::external(error),
        }
    }
}

/// The result of user code, or `None` if it raised an `Exception`. Anything else, such as
/// `KeyboardInterrupt`, is not about the object and is passed on.
pub fn caught<T>(py: Python, result: PyResult<T>) -> PyResult<Option<T>> {
    match result {
        Err(error) if !error.is_instance_of::<PyException>(py) => Err(error),
        result => Ok(result.ok()),
    }
}

/// The text of a user exception in messages: `ValueError: no number`.
pub fn cited(py: Python, cause: &PyErr) -> PyResult<String> {
    let kind = cause.get_type(py).qualname()?;
    let text = caught(py, cause.value(py).str())?;
    Ok(match text {
        Some(text) => format!("{kind}: {}", text.to_string_lossy()),
        None => format!("{kind}: <exception str() failed>"),
    })
}

/// The exception for `Error::Raised`.
fn raised_from(py: Python, location: &str, cause: PyErr) -> PyErr {
    let message = match cited(py, &cause) {
        Ok(text) if text.contains("inhomogeneous") => {
            format!("{location} has rows of different lengths; pass fc.Field(..., ragged=True)")
        }
        Ok(text) => format!("{location} could not be read: {text}"),
        Err(interrupt) => return interrupt,
    };
    let exception = if cause.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(message)
    } else {
        PyValueError::new_err(message)
    };
    exception.set_cause(py, Some(cause));
    exception
}

/// A `MemoryError`, with its text if there is memory for that.
///
/// `PyMemoryError::new_err` makes the text when it is raised, and aborts if it cannot.
pub fn no_memory(text: &str) -> PyErr {
    Python::attach(|py| {
        PyString::from_bytes(py, text.as_bytes())
            .and_then(|text| py.get_type::<PyMemoryError>().call1((text,)))
            .map_or_else(|error| error, PyErr::from_value)
    })
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = match error {
            Error::Python(exception) => return exception,
            Error::Raised { location, cause } => {
                return Python::attach(|py| raised_from(py, &location, cause));
            }
            _ => error.to_string(),
        };
        match error {
            Error::WrongType { .. } | Error::Core(Core::WrongType { .. }) => {
                PyTypeError::new_err(message)
            }
            Error::Core(Core::NoMemory(_)) => no_memory(&message),
            Error::Python(_)
            | Error::Raised { .. }
            | Error::Shape { .. }
            | Error::Overrun { .. }
            | Error::Null { .. }
            | Error::Arrow { .. }
            | Error::Changed { .. }
            | Error::Moved { .. }
            | Error::Core(_) => PyValueError::new_err(message),
        }
    }
}
