//! The turns: what every plan starts from.

use crate::error::{Error, Result};

/// How long the prompts and responses of all turns are, in the order of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turns {
    prompt_lens: Vec<usize>,
    response_lens: Vec<usize>,
}

impl Turns {
    /// Turns of these lengths.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`], [`Error::RowCount`], and [`Error::InvalidPlan`] for more tokens than
    /// can be counted.
    pub fn new(prompt_lens: Vec<usize>, response_lens: Vec<usize>) -> Result<Self> {
        if prompt_lens.is_empty() && response_lens.is_empty() {
            return Err(Error::EmptyBatch);
        }
        if prompt_lens.len() != response_lens.len() {
            return Err(Error::RowCount {
                field: "responses".to_owned(),
                found: response_lens.len(),
                expected: prompt_lens.len(),
            });
        }
        let lens = prompt_lens.iter().zip(&response_lens);
        if let Some(turn) = { lens }.position(|(&p, &r)| p.checked_add(r).is_none()) {
            return Err(Error::InvalidPlan(format!("turn {turn} is too long")));
        }
        Ok(Self {
            prompt_lens,
            response_lens,
        })
    }

    /// Rows of a field by themselves, as prompts of these lengths; there may be none.
    pub fn of_rows(lens: Vec<usize>) -> Self {
        Self {
            response_lens: vec![0; lens.len()],
            prompt_lens: lens,
        }
    }

    /// Number of turns.
    pub fn count(&self) -> usize {
        self.prompt_lens.len()
    }

    /// Tokens of every prompt.
    pub fn prompt_lens(&self) -> &[usize] {
        &self.prompt_lens
    }

    /// Tokens of every response.
    pub fn response_lens(&self) -> &[usize] {
        &self.response_lens
    }

    /// Tokens of a turn's prompt and response.
    pub fn stream_len(&self, turn: usize) -> usize {
        self.prompt_lens[turn] + self.response_lens[turn]
    }

    /// Check that a field has one row per turn.
    ///
    /// # Errors
    /// [`Error::RowCount`].
    pub fn check_count(&self, field: &str, found: usize) -> Result<()> {
        if found == self.count() {
            return Ok(());
        }
        Err(Error::RowCount {
            field: field.to_owned(),
            found,
            expected: self.count(),
        })
    }

    /// Check that a field has one value per response token.
    ///
    /// # Errors
    /// [`Error::RowLength`] naming the first turn where it has not.
    pub fn check_response_lens(&self, field: &str, lens: &[usize]) -> Result<()> {
        let mut expected = self.response_lens.iter().zip(lens);
        match expected.position(|(expected, found)| found != expected) {
            None => Ok(()),
            Some(row) => Err(Error::RowLength {
                field: field.to_owned(),
                row,
                found: lens[row],
                expected: self.response_lens[row],
            }),
        }
    }

    /// Check that a sequence-aligned field has one value per prompt and response token or, where it
    /// `may_end_early`, no more than that.
    ///
    /// # Errors
    /// [`Error::StreamLength`] naming the first turn where it has not.
    pub fn check_stream_lens(
        &self,
        field: &str,
        lens: &[usize],
        may_end_early: bool,
    ) -> Result<()> {
        for (row, &found) in lens.iter().enumerate() {
            let expected = self.stream_len(row);
            if found > expected || (found < expected && !may_end_early) {
                return Err(Error::StreamLength {
                    field: field.to_owned(),
                    row,
                    found,
                    expected,
                    advice: if may_end_early {
                        "at most one value per token"
                    } else {
                        "one value per prompt and response token"
                    },
                });
            }
        }
        Ok(())
    }
}
