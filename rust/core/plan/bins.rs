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
    /// [`Error::InvalidPlan`] where the offsets part nothing, [`Error::OtherSequenceCount`]
    /// and [`Error::OtherSequenceLength`] for other sequences.
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
            return Err(Error::OtherSequenceCount {
                found,
                expected: expected.unwrap_or(0),
            });
        }
        let mut tokens = vec![None; lens.len()];
        let mut parts = Vec::new();
        for stretch in &self.stretches {
            let found = tokens[stretch.index].get_or_insert(0_usize);
            *found = found.saturating_add(stretch.len);
            if stretch.len != lens[stretch.index] || *found != stretch.len {
                parts.push(stretch);
            }
        }
        for (row, (&found, expected)) in lens.iter().zip(tokens).enumerate() {
            if expected != Some(found) {
                return Err(Error::OtherSequenceLength {
                    row,
                    found,
                    expected: expected.unwrap_or(0),
                });
            }
        }
        // There are as many tokens: they are all there if no two parts overlap.
        parts.sort_unstable_by_key(|part| (part.index, part.from));
        let overlap = |two: &[&Stretch]| {
            two[0].index == two[1].index && two[0].from + two[0].len > two[1].from
        };
        let overlapping = parts
            .windows(2)
            .find(|two| overlap(two))
            .map(|two| two[0].index);
        let beyond = self
            .stretches
            .iter()
            .find(|stretch| stretch.from.saturating_add(stretch.len) > lens[stretch.index]);
        if let Some(index) = overlapping.or(beyond.map(|stretch| stretch.index)) {
            let reason = format!("sequence {index} is not whole in its bins");
            return Err(Error::InvalidPlan(reason));
        }
        Ok(())
    }
}
