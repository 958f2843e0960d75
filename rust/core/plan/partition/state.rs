//! Sets of items, one per part.

use crate::error::Result;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A set of items; fields are in the order of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Set<S> {
    pub sum: S,
    /// Number of items.
    pub count: u32,
    /// Its first item, unique to the set.
    pub first: u32,
}

/// One set per part, in descending order; only non-empty sets are stored.
///
/// When two states are merged, the largest sets of one join the smallest of the other. If those are
/// empty, the sets are only collected, the few added to the many; otherwise only the smallest sets
/// are examined: most merges add one item to a large number of sets, and do not touch them.
#[derive(Debug)]
pub struct State<S> {
    pub largest: Set<S>,
    pub others: BinaryHeap<Reverse<Set<S>>>,
}

impl<S: Copy + Ord> State<S> {
    pub fn single(set: Set<S>) -> Self {
        Self {
            largest: set,
            others: BinaryHeap::new(),
        }
    }

    pub fn of(sets: impl IntoIterator<Item = Set<S>>) -> Option<Self> {
        let mut others: Vec<_> = sets.into_iter().map(Reverse).collect();
        let largest = (0..others.len()).min_by_key(|&index| others[index])?;
        let Reverse(largest) = others.swap_remove(largest);
        Some(Self {
            largest,
            others: others.into(),
        })
    }

    pub fn len(&self) -> usize {
        1 + self.others.len()
    }

    fn push(&mut self, set: Set<S>) {
        let smaller = set.min(self.largest);
        self.largest = set.max(self.largest);
        self.others.push(Reverse(smaller));
    }

    /// Replace the smallest set.
    pub fn replace_smallest(&mut self, other: impl FnOnce(Set<S>) -> Result<Set<S>>) -> Result<()> {
        match self.others.peek_mut() {
            Some(mut smallest) => {
                let set = other(smallest.0)?;
                smallest.0 = set.min(self.largest);
                self.largest = set.max(self.largest);
            }
            None => self.largest = other(self.largest)?,
        }
        Ok(())
    }

    /// All sets, the largest last.
    pub fn into_sets(self) -> Vec<Set<S>> {
        let mut sets: Vec<_> = self.others.into_iter().map(|Reverse(set)| set).collect();
        sets.push(self.largest);
        sets
    }

    /// Take `count` sets, smallest first. Returns None for the rest if no sets remain.
    pub fn take_smallest(mut self, count: usize) -> (Vec<Set<S>>, Option<Self>) {
        if count < self.len() / 8 {
            let smallest = (0..count).filter_map(|_| self.others.pop());
            return (smallest.map(|Reverse(set)| set).collect(), Some(self));
        }
        let mut sets = self.into_sets();
        sets.sort_unstable();
        let rest = sets.split_off(count);
        (sets, Self::of(rest))
    }

    /// All sets of two states.
    pub fn union(mut self, mut other: Self) -> Self {
        self.others.append(&mut other.others);
        self.push(other.largest);
        self
    }
}
