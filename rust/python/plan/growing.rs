//! A prefix tree that grows row by row.

use fastcollate::plan::share::GrowingTree as Core;
use numpy::prelude::*;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::error::Result;
use crate::plan::tables::{Column, column_of, values};

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

    /// Number of tokens.
    fn __len__(&self) -> usize {
        self.0.tokens().len()
    }

    /// The tokens in the order in which rows added them, int64.
    fn tokens<'py>(&self, py: Python<'py>) -> Column<'py> {
        PyArray1::from_slice(py, self.0.tokens())
    }

    /// Number of tokens that a row would share.
    fn shared(&self, row: PyReadonlyArray1<i64>) -> usize {
        self.0.shared(&values(&row))
    }

    /// Add a row, which is not empty; return the number of tokens that it shares.
    fn add(&mut self, row: PyReadonlyArray1<i64>) -> Result<usize> {
        Ok(self.0.add(&values(&row))?)
    }

    /// The tokens in depth-first order, of several branches the oldest first; the offsets of
    /// segments in them; the positions of each segment's path, end to end; the offsets of paths;
    /// the first key of each row: all int64.
    fn laid_out<'py>(&self, py: Python<'py>) -> Result<[Column<'py>; 5]> {
        let out = self.0.laid_out()?;
        Ok([
            out.tokens.into_pyarray(py),
            column_of(py, out.offsets)?,
            column_of(py, out.keys)?,
            column_of(py, out.key_offsets)?,
            column_of(py, out.rows)?,
        ])
    }
}
