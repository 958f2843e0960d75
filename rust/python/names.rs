//! Option values by name: one table per set, for parsing, errors and Python.

use fastcollate::few;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::rows::describe;

/// The values of an option with their names. Tables store the index of a value.
pub struct Names<T: 'static> {
    /// The option's name, for errors.
    option: &'static str,
    all: &'static [(T, &'static str)],
}

impl<T: Copy + PartialEq> Names<T> {
    /// The values of an option.
    pub const fn new(option: &'static str, all: &'static [(T, &'static str)]) -> Self {
        Self { option, all }
    }

    /// The value with this name.
    ///
    /// # Errors
    /// `ValueError` that lists the names.
    pub fn value(&self, name: &str) -> PyResult<T> {
        let named = self.all.iter().find(|(_, other)| *other == name);
        named.map(|(value, _)| *value).ok_or_else(|| {
            let shown: String = few(name.chars().take(80));
            let initials: String = few(name.split('_').filter_map(|word| word.chars().next()));
            let found = format!("'{}'", shown.escape_debug());
            match self.all.iter().find(|(_, other)| *other == initials) {
                Some((_, meant)) => {
                    let option = self.option;
                    PyValueError::new_err(format!("{option} is {found}; did you mean '{meant}'?"))
                }
                None => self.refused(PyValueError::new_err, &found),
            }
        })
    }

    /// The value that an argument names.
    ///
    /// # Errors
    /// `TypeError` for anything but a string, and `ValueError` for another; both list the names.
    pub fn read(&self, argument: &Bound<PyAny>) -> PyResult<T> {
        match argument.cast::<PyString>() {
            Ok(text) => self.value(&text.to_string_lossy()),
            Err(_) => Err(self.refused(PyTypeError::new_err, &describe(argument)?)),
        }
    }

    /// The error for something that is no name of these.
    fn refused(&self, error: fn(String) -> PyErr, found: &str) -> PyErr {
        let names: Vec<_> = few(self.all.iter().map(|(_, name)| format!("'{name}'")));
        error(format!("{} is {found}; pass {}", self.option, names.join(", ")))
    }

    /// The name of a value.
    pub fn name(&self, value: T) -> &'static str {
        self.all[self.index_of(value)].1
    }

    /// The index of a value.
    ///
    /// # Panics
    /// If the value has no name.
    pub fn index_of(&self, value: T) -> usize {
        let index = self.all.iter().position(|(other, _)| *other == value);
        index.expect("every value has a name")
    }

    /// The value at an index, if present.
    pub fn at(&self, index: usize) -> Option<T> {
        self.all.get(index).map(|(value, _)| *value)
    }

    /// All names, as a Python tuple.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.all.iter().map(|(_, name)| name))
    }
}
