//! Shards: the rows of a step that one batch has.

use fastcollate::Error as Core;
use fastcollate::plan::{Assembly, Longest, Pick, Row};
use pyo3::prelude::*;

use crate::bins::ShardBins;
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
    lengths: Option<Vec<usize>>,
    /// How the rows are packed, if they are.
    pub bins: Option<ShardBins>,
}

impl<'py> FromPyObject<'_, 'py> for Shard {
    type Error = PyErr;

    fn extract(shard: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let bins = shard.getattr("bin_offsets")?.extract::<Option<Vec<_>>>()?;
        let bins = bins.map(|offsets| {
            Ok::<_, PyErr>(ShardBins {
                offsets,
                width: shard.getattr("bin_width")?.extract()?,
                multiple_of: shard.getattr("pad_to_multiple_of")?.extract()?,
            })
        });
        Ok(Self {
            rows: shard.getattr("rows")?.extract()?,
            is_padding: shard.getattr("is_padding")?.extract()?,
            num_rows: shard.getattr("num_rows")?.extract()?,
            widths: shard.getattr("widths")?.extract()?,
            lengths: shard.getattr("lengths")?.extract()?,
            bins: bins.transpose()?,
        })
    }
}

impl Shard {
    /// The rows of the shard, and what is longest among all of the step.
    ///
    /// # Errors
    /// A plan for other rows.
    pub fn pick(&self, step: &Assembly) -> Result<(Assembly, Longest)> {
        let found = step.rows().len();
        if found != self.num_rows {
            let expected = self.num_rows;
            return Err(Core::OtherRowCount { found, expected }.into());
        }
        let least = self.least(Longest::of_rows(step.rows()))?;
        for (&row, &expected) in self.rows.iter().zip(self.lengths.iter().flatten()) {
            let row = usize::try_from(row).unwrap_or(usize::MAX);
            let found = step.rows().get(row).map_or(expected, Row::len);
            if found != expected {
                return Err(Core::OtherRowLength {
                    row,
                    found,
                    expected,
                }
                .into());
            }
        }
        let pick = |(&row, &is_padding)| {
            let pick = Pick {
                row: usize::try_from(row).ok(),
                is_padding,
            };
            match pick.row {
                Some(row) if row >= found => {
                    let reason = format!("the shard has row {row}, but there are {found}");
                    Err(Core::InvalidPlan(reason))
                }
                _ => Ok(pick),
            }
        };
        let picks = self.rows.iter().zip(&self.is_padding).map(pick);
        let picks = picks.collect::<Result<Vec<_>, _>>()?;
        if picks.is_empty() || self.rows.len() != self.is_padding.len() {
            let reason = "the shard has no rows, or not as many flags".to_owned();
            return Err(Core::InvalidPlan(reason).into());
        }
        Ok((step.picked(&picks), least))
    }

    /// What is longest among all rows that are written of the step: those that there are and, in some
    /// shard maybe, synthetic ones.
    fn least(&self, longest: Longest) -> Result<Longest> {
        let with_synthetic = longest.max(Longest::SYNTHETIC);
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
