//! The largest differencing method: the two partitions with the largest differences are merged,
//! repeatedly.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::iter::successors;
use std::{mem, slice};

use super::Parts;
use super::sort;
use super::weight::Weight;
use crate::error::Result;
use crate::polling::Ticks;

/// Items chained to sets, each in the order of joining.
struct Chains<'a, W> {
    weights: &'a [W],
    /// The next item after each.
    next: Vec<u32>,
    /// The last item of the set beginning with each item.
    last: Vec<u32>,
}

impl<W: Weight> Chains<'_, W> {
    fn items(&self, set: Set<W::Sum>) -> impl Iterator<Item = usize> {
        let next = |&item: &u32| self.next.get(item as usize).copied();
        let items = successors(Some(set.first), next).take(set.count as usize);
        items.map(|item| item as usize)
    }

    /// Append a set's items to another's.
    fn join(
        &mut self,
        left: Set<W::Sum>,
        right: Set<W::Sum>,
        ticks: &mut Ticks,
    ) -> Result<Set<W::Sum>> {
        let sum = match W::joined(left.sum, right.sum) {
            Some(sum) => sum,
            None => {
                let mut sum = left.sum;
                for item in self.items(right) {
                    ticks.done(1)?;
                    sum = self.weights[item].added_to(sum);
                }
                sum
            }
        };
        let ends = self.last[left.first as usize];
        self.next[ends as usize] = right.first;
        self.last[left.first as usize] = self.last[right.first as usize];
        Ok(Set { sum, count: left.count + right.count, first: left.first })
    }

    /// Merge the sets of two states, the large ones with the small.
    fn merge(
        &mut self,
        mut state: State<W::Sum>,
        other: State<W::Sum>,
        parts: usize,
        ticks: &mut Ticks,
    ) -> Result<State<W::Sum>> {
        ticks.done(1)?;
        let meeting = (state.len() + other.len()).saturating_sub(parts);
        if meeting == 0 {
            return Ok(state.union(other));
        }
        if meeting == 1 && other.others.is_empty() {
            state.replace_smallest(|set| self.join(set, other.largest, ticks))?;
            return Ok(state);
        }
        let (mut left, state) = state.take_smallest(meeting);
        let (right, other) = other.take_smallest(meeting);
        for (left, right) in left.iter_mut().zip(right.into_iter().rev()) {
            ticks.done(1)?;
            *left = self.join(*left, right, ticks)?;
        }
        let rest = [state, other, State::of(left)].into_iter().flatten();
        Ok(rest.reduce(State::union).expect("states have a set at least"))
    }
}

/// A state, ordered for merging: by the largest difference, then the heaviest set.
struct Ranked<S> {
    /// Difference between the largest set and the smallest.
    spread: S,
    state: State<S>,
}

impl<S: Ord> Ranked<S> {
    fn key(&self) -> (&S, &Set<S>) {
        (&self.spread, &self.state.largest)
    }
}

impl<S: Ord> Ord for Ranked<S> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<S: Ord> PartialOrd for Ranked<S> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<S: Ord> PartialEq for Ranked<S> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<S: Ord> Eq for Ranked<S> {}

/// States to be merged. States of one item, the majority, are presorted.
struct Queue<'a, W: Weight> {
    parts: usize,
    states: BinaryHeap<Ranked<W::Sum>>,
    singles: slice::Iter<'a, Set<W::Sum>>,
}

impl<W: Weight> Queue<'_, W> {
    fn ranked(&self, state: State<W::Sum>) -> Ranked<W::Sum> {
        let smallest = match state.others.peek() {
            // The smallest set is empty.
            _ if state.len() < self.parts => W::ZERO,
            Some(Reverse(set)) => set.sum,
            None => state.largest.sum,
        };
        let spread = W::difference(state.largest.sum, smallest);
        Ranked { spread, state }
    }

    fn next_single(&self) -> Option<Ranked<W::Sum>> {
        let set = self.singles.as_slice().first()?;
        Some(self.ranked(State::single(*set)))
    }

    fn pop(&mut self) -> Option<Ranked<W::Sum>> {
        match self.next_single() {
            Some(single) if self.states.peek().is_none_or(|state| *state < single) => {
                self.singles.next();
                Some(single)
            }
            _ => self.states.pop(),
        }
    }

    /// Add a state, and take the first one: usually the same.
    fn push_pop(&mut self, state: State<W::Sum>) -> Option<Ranked<W::Sum>> {
        let mut ranked = self.ranked(state);
        let is_first = self.next_single().is_none_or(|single| single < ranked);
        match self.states.peek_mut() {
            Some(mut first) if is_first => {
                if *first > ranked {
                    mem::swap(&mut *first, &mut ranked);
                }
                Some(ranked)
            }
            None if is_first => Some(ranked),
            first => {
                drop(first);
                self.states.push(ranked);
                self.pop()
            }
        }
    }
}

/// Items in the order of the Karmarkar-Karp method, for one or several partitions.
pub struct Differencing<'a, W: Weight> {
    weights: &'a [W],
    /// The heaviest first; of equal ones, the last.
    singles: Vec<Set<W::Sum>>,
}

impl<'a, W: Weight> Differencing<'a, W> {
    /// Sort items, fewer than 2^32.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn new(weights: &'a [W], ticks: &mut Ticks) -> Result<Self> {
        let single =
            |(first, weight): (u32, &W)| Set { sum: weight.added_to(W::ZERO), count: 1, first };
        let mut singles = ticks.gathered((0..).zip(weights).map(single))?;
        sort(&mut singles, ticks)?;
        singles.reverse();
        Ok(Self { weights, singles })
    }

    /// Partition the items into parts of about the same weight.
    ///
    /// Parts are in order of weight, the heaviest first (ties: the one with more items, then the
    /// one whose first item has the highest index), and items in the order of joining. For parts of
    /// equal size, items of similar weight are spread over all parts at a time; the number of items
    /// is a multiple of the number of parts. With fewer items than parts, the last parts are empty.
    ///
    /// Ties, and the order of adding floats, are those of verl's `karmarkar_karp`.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn parts(&self, parts: usize, equal_size: bool, ticks: &mut Ticks) -> Result<Parts> {
        let count = self.weights.len();
        let mut chains = Chains {
            weights: self.weights,
            next: vec![u32::MAX; count],
            last: (0..).take(count).collect(),
        };
        let (singles, rounds) =
            if equal_size { self.singles.split_at(0) } else { self.singles.split_at(count) };
        let mut queue = Queue::<W> { parts, states: BinaryHeap::new(), singles: singles.iter() };
        for sets in rounds.rchunks(parts.max(1)) {
            ticks.done(sets.len())?;
            let state = State::of(sets.iter().rev().copied());
            queue.states.extend(state.map(|state| queue.ranked(state)));
        }
        let mut first = queue.pop();
        while let Some(second) = queue.pop() {
            let merge = |first: Ranked<_>| chains.merge(first.state, second.state, parts, ticks);
            let merged = first.map(merge).transpose()?;
            first = merged.and_then(|state| queue.push_pop(state));
        }

        let mut sets: Vec<_> = first.map_or_else(Vec::new, |last| last.state.into_sets());
        sort(&mut sets, ticks)?;
        let mut out = Parts::with_capacity(parts, count);
        for &set in sets.iter().rev() {
            for item in chains.items(set) {
                ticks.done(1)?;
                out.indices.push(item);
            }
            out.offsets.push(out.indices.len());
        }
        out.offsets.resize(parts.max(sets.len()) + 1, count);
        Ok(out)
    }
}

/// Partition items once; see [`Differencing`].
///
/// # Errors
/// Those of `ticks`.
pub fn karmarkar_karp<W: Weight>(
    weights: &[W],
    parts: usize,
    equal_size: bool,
    ticks: &mut Ticks,
) -> Result<Parts> {
    Differencing::new(weights, ticks)?.parts(parts, equal_size, ticks)
}

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
        Self { largest: set, others: BinaryHeap::new() }
    }

    pub fn of(sets: impl IntoIterator<Item = Set<S>>) -> Option<Self> {
        let mut others: Vec<_> = sets.into_iter().map(Reverse).collect();
        let largest = (0..others.len()).min_by_key(|&index| others[index])?;
        let Reverse(largest) = others.swap_remove(largest);
        Some(Self { largest, others: others.into() })
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
