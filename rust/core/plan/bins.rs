//! Bins: which sequences share a row of the output.

use crate::error::{Error, Result};

/// A stretch of a sequence that lies in a bin: all of it, unless a packer split it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Which sequence.
    pub index: usize,
    /// Where the stretch begins in it.
    pub from: usize,
    /// Its number of tokens.
    pub len: usize,
}

/// Stretches of sequences by bin, in order. Every token is in one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bins {
    /// Where bins begin among the stretches, and where the last ends.
    pub offsets: Vec<usize>,
    /// The stretches of all bins.
    pub stretches: Vec<Stretch>,
}

impl Bins {
    /// Whole sequences in one bin, in order.
    pub fn single(lens: impl IntoIterator<Item = usize>) -> Self {
        let whole = |(index, len)| Stretch {
            index,
            from: 0,
            len,
        };
        let stretches: Vec<_> = lens.into_iter().enumerate().map(whole).collect();
        Self {
            offsets: vec![0, stretches.len()],
            stretches,
        }
    }

    /// Number of bins.
    pub fn count(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The stretches of one bin.
    pub fn stretches(&self, bin: usize) -> &[Stretch] {
        &self.stretches[self.offsets[bin]..self.offsets[bin + 1]]
    }

    /// Check that these are bins of sequences of such lengths: every token is in one stretch.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] where the offsets part nothing, [`Error::OtherRowCount`] and
    /// [`Error::OtherRowLength`] for other sequences.
    pub fn check(&self, lens: &[usize]) -> Result<()> {
        let parts = self.offsets.first() == Some(&0)
            && self.offsets.last() == Some(&self.stretches.len())
            && self.offsets.is_sorted();
        if !parts {
            let reason = "the offsets of its bins do not part the stretches".to_owned();
            return Err(Error::InvalidPlan(reason));
        }
        let found = lens.len();
        let expected = self.stretches.iter().map(|stretch| stretch.index + 1).max();
        if expected.unwrap_or(0) != found {
            return Err(Error::OtherRowCount {
                found,
                expected: expected.unwrap_or(0),
            });
        }
        // Stretches of a sequence follow each other, as packers that split make them.
        let mut ends = vec![None; lens.len()];
        for stretch in &self.stretches {
            let end = &mut ends[stretch.index];
            if end.unwrap_or(0) != stretch.from || (end.is_some() && stretch.len == 0) {
                let reason = format!("sequence {} is not in its bins in order", stretch.index);
                return Err(Error::InvalidPlan(reason));
            }
            *end = Some(stretch.from.saturating_add(stretch.len));
        }
        for (row, (&found, end)) in lens.iter().zip(ends).enumerate() {
            if end != Some(found) {
                return Err(Error::OtherRowLength {
                    row,
                    found,
                    expected: end.unwrap_or(0),
                });
            }
        }
        Ok(())
    }
}
