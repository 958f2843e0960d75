//! A prefix tree that grows row by row, in which each token has one successor.

use super::TreeRow;
use crate::element::common;
use crate::error::Result;
use crate::memory::{add, extend, reserve};

/// Rows in a prefix tree. They share a token if they agree on the next one, too, so forks are one
/// token early. The last token of a row has no next one: only identical rows share it.
#[derive(Debug, Clone, Default)]
pub struct GrowingTree {
    /// The rows depth-first, of several branches the oldest first.
    rows: Vec<TreeRow>,
    /// The tokens of each row, in the order in which they were added.
    tokens: Vec<Vec<i64>>,
    /// Number of tokens, shared ones counted once.
    len: usize,
}

impl GrowingTree {
    /// The rows depth-first, of several branches the oldest first.
    pub fn rows(&self) -> &[TreeRow] {
        &self.rows
    }

    /// Number of tokens, shared ones counted once.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tokens in the order in which rows added them.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn tokens(&self) -> Result<Vec<i64>> {
        let mut shared = vec![0; self.rows.len()];
        for row in &self.rows {
            shared[row.row] = row.shared;
        }
        let mut tokens = Vec::new();
        for (row, shared) in self.tokens.iter().zip(shared) {
            extend(&mut tokens, &row[shared..])?;
        }
        Ok(tokens)
    }

    /// Number of tokens that a row would share.
    pub fn shared(&self, row: &[i64]) -> usize {
        self.place(row).1
    }

    /// Add a row, which is not empty; return the number of tokens that it shares.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn add(&mut self, row: &[i64]) -> Result<usize> {
        let (place, shared) = self.place(row);
        let mut tokens = Vec::new();
        extend(&mut tokens, row)?;
        reserve(&mut self.rows, 1)?;
        add(&mut self.tokens, tokens)?;
        let added = TreeRow {
            row: self.tokens.len() - 1,
            len: row.len(),
            shared,
        };
        self.rows.insert(place, added);
        self.len += added.added();
        Ok(shared)
    }

    /// The place of a row, as the youngest branch of its fork, and the number of tokens it shares.
    ///
    /// Other rows that leave the path to the fork before the fork, or after it, are not compared.
    fn place(&self, row: &[i64]) -> (usize, usize) {
        let mut shared = 0;
        for (place, other) in self.rows.iter().enumerate() {
            if other.shared < shared {
                return (place, shared);
            }
            if other.shared == shared {
                let tokens = &self.tokens[other.row];
                let len = tokens.len().min(row.len());
                let agreed = shared + common(&tokens[shared..len], &row[shared..len]);
                let are_same = agreed == row.len() && agreed == tokens.len();
                shared = shared.max(agreed.saturating_sub(usize::from(!are_same)));
            }
        }
        (self.rows.len(), shared)
    }
}
