//! Checks that a tree belongs to given rows.

use super::Tree;
use crate::error::{Error, Result};
use crate::plan::Row;
use crate::plan::merge::Streams;

impl Tree {
    /// Check that trees hold rows of these lengths, each row once.
    ///
    /// # Errors
    /// [`Error::OtherSequenceCount`] and [`Error::OtherSequenceLength`].
    pub fn check_lens(trees: &[Self], rows: &[Row]) -> Result<()> {
        let planned = || trees.iter().flat_map(|tree| &tree.rows);
        let (found, expected) = (rows.len(), planned().count());
        if found != expected {
            return Err(Error::OtherSequenceCount { found, expected });
        }
        let mut lens = vec![None; found];
        for row in planned() {
            match lens.get_mut(row.row) {
                Some(len @ None) => *len = Some(row.len),
                _ => {
                    let reason = format!("row {} is not in one bin", row.row);
                    return Err(Error::InvalidPlan(reason));
                }
            }
        }
        let lens = lens.into_iter().flatten().zip(rows);
        let other = { lens.enumerate() }.find(|(_, (expected, row))| *expected != row.len());
        match other {
            None => Ok(()),
            Some((row, (expected, found))) => Err(Error::OtherSequenceLength {
                row,
                found: found.len(),
                expected,
            }),
        }
    }

    /// Check that rows, read from turns, share the tokens that the tree says, and have equal other
    /// inputs: `same_inputs` numbers the inputs of each turn, if turns `have_inputs`.
    ///
    /// # Errors
    /// [`Error::OtherTokens`] and [`Error::OtherInputs`], and errors of the columns.
    pub fn check_tokens(
        &self,
        streams: &Streams,
        rows: &[Row],
        same_inputs: Option<&[usize]>,
        have_inputs: bool,
    ) -> Result<()> {
        for pair in self.rows.windows(2) {
            streams.tokens.pause()?;
            let (before, row, shared) = (pair[0].row, pair[1].row, pair[1].shared);
            if shared == 0 {
                continue;
            }
            let (Some(a), Some(b)) = (rows[before].source, rows[row].source) else {
                let reason = format!("row {row} shares tokens with row {before}, which has none");
                return Err(Error::InvalidPlan(reason));
            };
            let are_given = same_inputs.is_some();
            let are_same = same_inputs.map_or(!have_inputs, |ids| ids[a] == ids[b]);
            if !are_same {
                return Err(Error::OtherInputs {
                    row,
                    before,
                    shared,
                    are_given,
                });
            }
            let token = streams.common(a, b, 0, shared)?;
            if token < shared {
                return Err(Error::OtherTokens {
                    row,
                    before,
                    shared,
                    token,
                });
            }
        }
        Ok(())
    }
}
