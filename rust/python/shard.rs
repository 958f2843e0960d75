//! Shards: the rows of a step that one batch has.

use fastcollate::Error as Core;
use fastcollate::plan::{Assembly, Longest, Pick};
use pyo3::prelude::*;

use crate::error::Result;

/// Rows picked from all rows of a step.
#[derive(FromPyObject)]
pub struct Shard {
    /// Which, in order; negative for synthetic ones.
    rows: Vec<i64>,
    /// Which of them are padding.
    is_padding: Vec<bool>,
    /// How many rows the step has.
    num_rows: usize,
    /// The step's longest prompt, response and row; 0 where that is not known.
    widths: (usize, usize, usize),
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
        let longest = Longest::of_rows(step.rows());
        let lens = (longest.prompt, longest.response, longest.sequence);
        let differs = |found, expected| expected != 0 && found != expected;
        if differs(lens.0, self.widths.0)
            || differs(lens.1, self.widths.1)
            || differs(lens.2, self.widths.2)
        {
            return Err(Core::OtherLengths {
                found: lens,
                expected: self.widths,
            }
            .into());
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
        Ok((step.picked(&picks), longest))
    }
}
