//! Shards: the rows of a step that one batch has.

use fastcollate::Error as Core;
use fastcollate::plan::{Assembly, Longest, Pick, Row};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::bins::{ShardBins, unsigned};
use crate::error::Result;

/// Rows picked from all rows of a step.
pub struct Shard {
    /// Which, in order; negative for synthetic ones.
    rows: Vec<i64>,
    /// Which of them are padding.
    is_padding: Vec<bool>,
    /// How many rows the step has.
    num_rows: usize,
    /// The step's longest prompt, response and row; the first two 0 where only the last is known.
    widths: Option<(usize, usize, usize)>,
    /// Tokens of each row, if they are known.
    lengths: Option<Vec<i64>>,
    /// How the rows are packed, if they are.
    pub bins: Option<ShardBins>,
}

impl<'py> FromPyObject<'_, 'py> for Shard {
    type Error = PyErr;

    fn extract(shard: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let rows: PyReadonlyArray1<i64> = shard.getattr("rows")?.extract()?;
        let is_padding: PyReadonlyArray1<bool> = shard.getattr("is_padding")?.extract()?;
        let lengths: Option<PyReadonlyArray1<i64>> = shard.getattr("lengths")?.extract()?;
        let offsets: Option<PyReadonlyArray1<i64>> = shard.getattr("bin_offsets")?.extract()?;
        let bins = offsets.map(|offsets| {
            PyResult::Ok(ShardBins {
                offsets: unsigned(&offsets)?,
                width: shard.getattr("bin_width")?.extract()?,
            })
        });
        Ok(Self {
            rows: rows.as_array().to_vec(),
            is_padding: is_padding.as_array().to_vec(),
            num_rows: shard.getattr("num_rows")?.extract()?,
            widths: shard.getattr("widths")?.extract()?,
            lengths: lengths.map(|lengths| lengths.as_array().to_vec()),
            bins: bins.transpose()?,
        })
    }
}

impl Shard {
    /// The rows of the shard, and what is longest among all that are written of the step, of whose
    /// rows these are the longest.
    ///
    /// # Errors
    /// A plan for other rows.
    pub fn pick(&self, step: &Assembly, longest: Longest) -> Result<(Assembly, Longest)> {
        let least = self.check(step.rows(), longest)?;
        Ok((step.picked(&self.picks()), least))
    }

    /// Check that the shard is one of a step of such rows, of which these are the longest, and say
    /// what is longest among all that are written.
    ///
    /// # Errors
    /// A plan for other rows.
    pub fn check(&self, step: &[Row], longest: Longest) -> Result<Longest> {
        let found = step.len();
        if found != self.num_rows {
            let expected = self.num_rows;
            return Err(Core::OtherRowCount { found, expected }.into());
        }
        let least = self.least(longest)?;
        for (&row, &expected) in self.rows.iter().zip(self.lengths.iter().flatten()) {
            let row = usize::try_from(row).unwrap_or(usize::MAX);
            let expected = usize::try_from(expected).unwrap_or(usize::MAX);
            let found = step.get(row).map_or(expected, Row::len);
            if found != expected {
                return Err(Core::OtherRowLength {
                    row,
                    found,
                    expected,
                }
                .into());
            }
        }
        let is_beyond = |&&row: &&i64| usize::try_from(row).is_ok_and(|row| row >= found);
        if let Some(row) = self.rows.iter().find(is_beyond) {
            let reason = format!("the shard has row {row}, but there are {found}");
            return Err(Core::InvalidPlan(reason).into());
        }
        if self.rows.is_empty() || self.rows.len() != self.is_padding.len() {
            let reason = "the shard has no rows, or not as many flags".to_owned();
            return Err(Core::InvalidPlan(reason).into());
        }
        Ok(least)
    }

    /// The first row, if all follow each other and none is padding.
    pub fn adjacent(&self) -> Option<i64> {
        let follow = |pair: &[i64]| pair[1] == pair[0] + 1;
        let are_adjacent = !self.is_padding.contains(&true) && self.rows.windows(2).all(follow);
        { self.rows.first() }.copied().filter(|_| are_adjacent)
    }

    fn picks(&self) -> Vec<Pick> {
        let pick = |(&row, &is_padding): (&i64, &bool)| Pick {
            row: usize::try_from(row).ok(),
            is_padding,
        };
        self.rows.iter().zip(&self.is_padding).map(pick).collect()
    }

    /// What is longest among all rows that are written of the step: those that there are and, in some
    /// shard maybe, synthetic ones.
    fn least(&self, longest: Longest) -> Result<Longest> {
        let with_synthetic = longest.max(Longest::of_rows(&[Row::SYNTHETIC]));
        let (prompt, response, sequence) = self.widths.unwrap_or_default();
        let planned = Longest {
            prompt,
            response,
            sequence,
        };
        if planned == longest || planned == with_synthetic {
            return Ok(planned);
        }
        // Of a plan that knows totals alone, and whether there are synthetic rows.
        if self.widths.is_none() || ((prompt, response) == (0, 0) && sequence == longest.sequence) {
            let has_synthetic = self.rows.iter().any(|&row| row < 0);
            return Ok(if has_synthetic {
                with_synthetic
            } else {
                longest
            });
        }
        if (prompt, response) == (1, 1) && sequence == with_synthetic.sequence {
            return Ok(with_synthetic);
        }
        Err(Core::OtherLengths {
            found: (longest.prompt, longest.response, longest.sequence),
            expected: (prompt, response, sequence),
        }
        .into())
    }
}
