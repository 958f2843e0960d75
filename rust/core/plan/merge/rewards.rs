//! Rewards of merged turns: the single number of a row, and values on masked tokens.

use super::Merge;
use crate::column::Column;
use crate::error::{Error, Result};
use crate::plan::{Align, Turns};

/// The rule for a row's number if every turn has one and several turns form a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeRewards {
    /// The number of the last turn; a nonzero number of an earlier turn is an error.
    Error,
    /// The sum.
    Sum,
    /// The number of the last turn; the others are dropped.
    Last,
}

impl Merge {
    /// Replace the number of each row's last turn, which is the one read, by the row's. There is
    /// one number for each of these turns, which are all turns of their rows.
    ///
    /// # Errors
    /// [`Error::EarlierNumber`], for the first turn with one.
    pub fn merge_numbers(&self, field: &str, turns: &Turns, numbers: &mut [f64]) -> Result<()> {
        let rows = self.assembly.rows();
        let mut sums = vec![None; numbers.len()];
        for (index, &number) in numbers.iter().enumerate() {
            let turn = turns.number(index);
            let last_of = |row: usize| Some((row, rows[row].source?));
            let Some((row, last)) = self.turn_rows[turn].and_then(last_of) else {
                continue;
            };
            if last != turn && self.rewards == MergeRewards::Error && number != 0.0 {
                return Err(Error::EarlierNumber {
                    field: field.to_owned(),
                    row,
                    turn,
                    last,
                    number: format!("{number:?}"),
                });
            }
            if let Some(last) = turns.index(last) {
                sums[last] = Some(sums[last].map_or(number, |sum: f64| sum + number));
            }
        }
        if self.rewards == MergeRewards::Sum {
            let sums = numbers.iter_mut().zip(sums);
            sums.for_each(|(number, sum)| *number = sum.unwrap_or(*number));
        }
        Ok(())
    }

    /// Number of nonzero values of these turns on tokens that realigning masked.
    ///
    /// # Errors
    /// Those of the column.
    pub fn count_masked(
        &self,
        turns: &Turns,
        values: &dyn Column<f32>,
        align: Align,
    ) -> Result<usize> {
        let mut count = 0;
        for (turn, masked) in self.masked(turns) {
            let mut span = vec![0.0; masked.len()];
            let from = turns.response_start(turn, align) + masked.start;
            values.read(turn, from, &mut span)?;
            count += span.iter().filter(|&&value| value != 0.0).count();
        }
        Ok(count)
    }

    /// Number of nonzero numbers added to a row although realigning masked the last token of their
    /// turn.
    pub fn count_masked_numbers(&self, turns: &Turns, numbers: &[f64]) -> usize {
        if self.rewards != MergeRewards::Sum {
            return 0;
        }
        let lens = turns.response_lens();
        let masked = self.masked(turns);
        let ends = masked.iter().filter(|(turn, at)| at.end == lens[*turn]);
        ends.filter(|(turn, _)| numbers[*turn] != 0.0).count()
    }
}
