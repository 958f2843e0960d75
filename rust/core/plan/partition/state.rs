//! Sets of items, as many as there are parts.

use crate::error::Result;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A set of items, by the order in which sets are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Set<S> {
    pub sum: S,
    /// Number of items.
    pub count: u32,
    /// Its first item, which no other set has.
    pub first: u32,
}

/// As many sets as there are parts, in a decreasing order, of which only those are kept that are
/// not empty.
///
/// When two of them are merged, the largest sets of one meet the smallest of the other. As long as
/// those are empty nothing is to be done but to throw the sets together, the few to the many, and
/// else only the smallest sets are looked at: most merges put one item beside a large number of
/// sets, and do not touch them.
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

    /// Put another set in the place of the smallest one.
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

    /// Take so many sets, smallest first. The state may be left without any.
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
