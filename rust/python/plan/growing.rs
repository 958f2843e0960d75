//! A prefix tree that grows row by row.

use fastcollate::plan::share::GrowingTree as Core;
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::error::Result;
use crate::plan::sharing::columns;
use crate::plan::tables::{Column, values};

/// Rows in a prefix tree, in which each token has one successor.
#[pyclass(module = "fastcollate._fastcollate")]
#[derive(Default)]
pub struct GrowingTree(Core);

#[pymethods]
impl GrowingTree {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Number of tokens that a row would share.
    fn shared(&self, row: PyReadonlyArray1<i64>) -> Result<usize> {
        Ok(self.0.shared(&values(&row)?))
    }

    /// Add a row, which is not empty; return the number of tokens that it shares.
    fn add(&mut self, row: PyReadonlyArray1<i64>) -> Result<usize> {
        Ok(self.0.add(&values(&row)?)?)
    }

    /// The rows depth-first, of several branches the oldest first, and the length that each shares
    /// with the previous one: int64.
    fn rows<'py>(&self, py: Python<'py>) -> Result<(Column<'py>, Column<'py>)> {
        columns(py, &self.0.rows()?)
    }
}
