//! A prefix tree that grows row by row, in which each token has one successor.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::TreeRow;
use crate::element::common;
use crate::error::{Error, Result};
use crate::memory::{add, extend, gathered, with_room};

/// Rows in a prefix tree. They share a token if they agree on the next one, too, so forks are one
/// token early. The last token of a row has no next one: only identical rows share it.
#[derive(Debug, Clone, Default)]
pub struct GrowingTree {
    /// The rows in the order in which they were added.
    rows: Vec<Grown>,
    /// The row of each branch.
    branches: HashMap<Branch, usize>,
}

/// A row that was added.
#[derive(Debug, Clone)]
struct Grown {
    tokens: Vec<i64>,
    fork: Fork,
}

/// Where a row leaves the path of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Fork {
    /// The row whose own tokens are before the fork; None at the root.
    row: Option<usize>,
    /// Number of tokens before the fork.
    shared: usize,
}

/// A fork, and the token after it with its successor, on which no two branches of a fork agree.
type Branch = (Fork, i64, Option<i64>);

impl Fork {
    /// The branch that a row takes, unless the row ends here.
    fn branch(self, row: &[i64]) -> Option<Branch> {
        let next = *row.get(self.shared)?;
        Some((self, next, row.get(self.shared + 1).copied()))
    }
}

impl GrowingTree {
    /// The rows depth-first, of several branches the oldest first.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn rows(&self) -> Result<Vec<TreeRow>> {
        let mut youngest_first = gathered(0..self.rows.len())?;
        youngest_first.sort_unstable_by_key(|&row| (self.rows[row].fork, Reverse(row)));
        let fork_of = |row: usize| self.rows[row].fork.row;
        let mut found = with_room(self.rows.len())?;
        let mut open = with_room(self.rows.len())?;
        let mut parent = None;
        loop {
            // The branches of a row, those of deeper forks on top.
            let first = youngest_first.partition_point(|&row| fork_of(row) < parent);
            let branches =
                youngest_first[first..].iter().copied().take_while(|&row| fork_of(row) == parent);
            open.extend(branches);
            let Some(row) = open.pop() else {
                return Ok(found);
            };
            let Grown { tokens, fork } = &self.rows[row];
            found.push(TreeRow { row, len: tokens.len(), shared: fork.shared });
            parent = Some(row);
        }
    }

    /// Number of tokens that a row would share.
    pub fn shared(&self, row: &[i64]) -> usize {
        self.fork(row).shared
    }

    /// Add a row, which is not empty; return the number of tokens that it shares.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn add(&mut self, row: &[i64]) -> Result<usize> {
        let fork = self.fork(row);
        let mut tokens = Vec::new();
        extend(&mut tokens, row)?;
        let room = self.branches.try_reserve(1);
        room.map_err(|_| Error::NoMemory("no memory for a row of a tree".to_owned()))?;
        add(&mut self.rows, Grown { tokens, fork })?;
        if let Some(branch) = fork.branch(row) {
            self.branches.insert(branch, self.rows.len() - 1);
        }
        Ok(fork.shared)
    }

    /// Where a row leaves the tree. Only the branches that it takes are compared.
    fn fork(&self, row: &[i64]) -> Fork {
        let mut fork = Fork { row: None, shared: 0 };
        while let Some(branch) = fork.branch(row)
            && let Some(&other) = self.branches.get(&branch)
        {
            let tokens = &self.rows[other].tokens;
            let len = tokens.len().min(row.len());
            let agreed = fork.shared + common(&tokens[fork.shared..len], &row[fork.shared..len]);
            let are_same = agreed == row.len() && agreed == tokens.len();
            fork = Fork { row: Some(other), shared: agreed - usize::from(!are_same) };
        }
        fork
    }
}
