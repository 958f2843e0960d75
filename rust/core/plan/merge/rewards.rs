//! Rewards of merged turns: what a row's one number is, and what lies on tokens that are masked.

use super::Merge;
use crate::column::Column;
use crate::error::{Error, Result};
use crate::plan::Along;

/// What becomes of the turns' numbers where each turn has one and several turns are a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeRewards {
    /// The last turn's is the row's; one of an earlier turn that is not 0 is an error.
    Error,
    /// The row's is their sum.
    Sum,
    /// The last turn's is the row's, and the others are dropped.
    Last,
}

impl Merge {
    /// Put each row's number in the place of its last turn's, where it is read.
    ///
    /// # Errors
    /// [`Error::EarlierNumber`], for the first turn that has one.
    pub fn merge_numbers(&self, field: &str, numbers: &mut [f64]) -> Result<()> {
        let rows = self.assembly.rows();
        let mut sums = vec![None; rows.len()];
        for (turn, &number) in numbers.iter().enumerate() {
            let Some(row) = self.turn_rows[turn] else {
                continue;
            };
            sums[row] = Some(sums[row].map_or(number, |sum: f64| sum + number));
            let last = rows[row].source.filter(|&last| last != turn);
            if let Some(last) = last
                && self.rewards == MergeRewards::Error
                && number != 0.0
            {
                return Err(Error::EarlierNumber {
                    field: field.to_owned(),
                    row,
                    turn,
                    last,
                    number: format!("{number:?}"),
                });
            }
        }
        if self.rewards == MergeRewards::Sum {
            for (row, sum) in rows.iter().zip(sums) {
                if let (Some(last), Some(sum)) = (row.source, sum) {
                    numbers[last] = sum;
                }
            }
        }
        Ok(())
    }

    /// How many values that are not 0 lie on tokens that realigning masked.
    ///
    /// # Errors
    /// What the column raises.
    pub fn count_masked(&self, values: &dyn Column<f32>, along: Along) -> Result<usize> {
        let mut count = 0;
        for (turn, masked) in self.masked() {
            let mut span = vec![0.0; masked.len()];
            let from = self.turns.response_start(turn, along) + masked.start;
            values.read(turn, from, &mut span)?;
            count += span.iter().filter(|&&value| value != 0.0).count();
        }
        Ok(count)
    }

    /// How many numbers that are not 0 were added to a row although realigning masked the last
    /// token of their turn.
    pub fn count_masked_numbers(&self, numbers: &[f64]) -> usize {
        if self.rewards != MergeRewards::Sum {
            return 0;
        }
        let lens = self.turns.response_lens();
        let masked = self.masked();
        let ends = masked.iter().filter(|(turn, at)| at.end == lens[*turn]);
        ends.filter(|(turn, _)| numbers[*turn] != 0.0).count()
    }
}
