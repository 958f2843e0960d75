//! Bins: which sequences share an output row, as Python has planned it.

use fastcollate::Error as Core;
use fastcollate::plan::{Assembly, Bins, Row, Stretch};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::Result;
use crate::tables::{Column, rows_of};

/// The attributes of `fastcollate.planning.BinPlan` that say what goes where.
pub struct BinPlan<'py> {
    offsets: PyReadonlyArray1<'py, i64>,
    indices: PyReadonlyArray1<'py, i64>,
    starts: PyReadonlyArray1<'py, i64>,
    lengths: PyReadonlyArray1<'py, i64>,
    multiple_of: usize,
}

/// Bins to be laid out.
pub struct Packed {
    pub bins: Bins,
    /// What the place of every sequence is rounded up to a multiple of, unless another one is asked
    /// for.
    pub multiple_of: usize,
    /// The width that other batches have.
    pub least_width: usize,
}

impl<'py> FromPyObject<'_, 'py> for BinPlan<'py> {
    type Error = PyErr;

    fn extract(plan: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            offsets: plan.getattr("offsets")?.extract()?,
            indices: plan.getattr("indices")?.extract()?,
            starts: plan.getattr("starts")?.extract()?,
            lengths: plan.getattr("lengths")?.extract()?,
            multiple_of: plan.getattr("multiple_of")?.extract()?,
        })
    }
}

impl BinPlan<'_> {
    /// The bins.
    ///
    /// # Errors
    /// Negative numbers, and columns of different lengths.
    pub fn bins(&self) -> Result<Packed> {
        let (indices, starts) = (unsigned(&self.indices)?, unsigned(&self.starts)?);
        let lens = unsigned(&self.lengths)?;
        if [starts.len(), lens.len()] != [indices.len(); 2] || self.multiple_of == 0 {
            return Err(invalid().into());
        }
        let stretches = indices.into_iter().zip(starts).zip(lens);
        let stretches = stretches.map(|((index, from), len)| Stretch { index, from, len });
        Ok(Packed {
            bins: Bins {
                offsets: unsigned(&self.offsets)?,
                stretches: stretches.collect(),
            },
            multiple_of: self.multiple_of,
            least_width: 0,
        })
    }
}

impl Packed {
    /// All rows in one bin.
    pub fn single(assembly: &Assembly) -> Self {
        Self {
            bins: Bins::single(assembly.rows().iter().map(Row::len)),
            multiple_of: 1,
            least_width: 0,
        }
    }
}

/// The bins of a shard: its rows follow each other in them.
pub struct ShardBins {
    /// Where bins begin in the shard's rows, and where the last ends.
    pub offsets: Vec<usize>,
    /// Positions of the step's widest bin.
    pub width: usize,
}

impl ShardBins {
    /// Check that the step's widest bin is no wider than a fixed width.
    ///
    /// # Errors
    /// `ValueError`.
    pub fn check_width(&self, fixed: Option<usize>) -> Result<()> {
        match fixed {
            Some(width) if width < self.width => Err(PyValueError::new_err(format!(
                "pad_to is {width}, but the widest bin of the step has {} positions; \
                 pass at least that, or plan the step with a smaller capacity",
                self.width
            ))
            .into()),
            _ => Ok(()),
        }
    }

    /// The bins, of rows of such lengths, whose places are rounded up to multiples.
    pub fn of_rows(&self, assembly: &Assembly, multiple_of: usize) -> Packed {
        let Bins { stretches, .. } = Bins::single(assembly.rows().iter().map(Row::len));
        Packed {
            bins: Bins {
                offsets: self.offsets.clone(),
                stretches,
            },
            multiple_of,
            least_width: self.width,
        }
    }
}

/// Tokens of every row, int64 (rows,).
pub fn row_lens<'py>(py: Python<'py>, assembly: &Assembly) -> Column<'py> {
    rows_of(py, assembly, Row::len)
}

pub fn unsigned(column: &PyReadonlyArray1<i64>) -> Result<Vec<usize>> {
    let values = column.as_array();
    let values: Option<Vec<_>> = values.iter().map(|&value| value.try_into().ok()).collect();
    Ok(values.ok_or_else(invalid)?)
}

fn invalid() -> Core {
    Core::InvalidPlan("its bins hold negative numbers, or do not fit each other".to_owned())
}
