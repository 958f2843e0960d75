//! The largest differencing method: what differs most is set against what differs next most.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter;

use super::Parts;
use super::weight::Weight;

/// A set of items, by the order in which sets are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Set<S> {
    sum: S,
    count: usize,
    /// Its first item, which no other set has.
    first: usize,
}

/// As many sets as there are parts, in a decreasing order, of which only those are kept that are
/// not empty.
///
/// When two of them are merged, the largest sets of one meet the smallest of the other. As long as
/// those are empty nothing is to be done but to throw the sets together, the few to the many, and
/// else only the smallest sets are looked at: most merges put one item beside a large number of
/// sets, and do not touch them.
#[derive(Debug)]
struct State<S> {
    largest: Set<S>,
    others: BinaryHeap<Reverse<Set<S>>>,
}

impl<S: Copy + Ord> State<S> {
    fn new(set: Set<S>) -> Self {
        Self {
            largest: set,
            others: BinaryHeap::new(),
        }
    }

    fn len(&self) -> usize {
        1 + self.others.len()
    }

    fn push(&mut self, set: Set<S>) {
        let smaller = set.min(self.largest);
        self.largest = set.max(self.largest);
        self.others.push(Reverse(smaller));
    }

    /// Take so many sets, smallest first. The state may be left without any.
    fn take_smallest(mut self, count: usize) -> (Vec<Set<S>>, Option<Self>) {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            match self.others.pop() {
                Some(Reverse(set)) => taken.push(set),
                None => {
                    taken.push(self.largest);
                    return (taken, None);
                }
            }
        }
        (taken, Some(self))
    }

    /// All sets of two states.
    fn union(mut self, mut other: Self) -> Self {
        self.others.append(&mut other.others);
        self.push(other.largest);
        self
    }
}

/// Items that are chained to sets, each in the order in which it grew.
struct Chains<'a, W> {
    weights: &'a [W],
    /// The item behind each.
    next: Vec<usize>,
    /// The last item of the set that begins with each.
    last: Vec<usize>,
}

impl<W: Weight> Chains<'_, W> {
    fn items(&self, set: &Set<W::Sum>) -> impl Iterator<Item = usize> {
        let next = |&item: &usize| self.next.get(item).copied();
        iter::successors(Some(set.first), next).take(set.count)
    }

    /// Append a set's items to another's.
    fn join(&mut self, left: Set<W::Sum>, right: Set<W::Sum>) -> Set<W::Sum> {
        let items = self.items(&right).map(|item| self.weights[item]);
        let sum = W::joined(left.sum, right.sum, items);
        self.next[self.last[left.first]] = right.first;
        self.last[left.first] = self.last[right.first];
        Set {
            sum,
            count: left.count + right.count,
            first: left.first,
        }
    }

    /// Set the sets of a state against those of another, the large ones against the small.
    fn merge(&mut self, state: State<W::Sum>, other: State<W::Sum>, parts: usize) -> State<W::Sum> {
        let meeting = (state.len() + other.len()).saturating_sub(parts);
        let (left, state) = state.take_smallest(meeting);
        let (right, other) = other.take_smallest(meeting);
        let rest = match (state, other) {
            (Some(state), Some(other)) => Some(state.union(other)),
            (state, other) => state.or(other),
        };
        let pairs = left.into_iter().zip(right.into_iter().rev());
        let joined = pairs.map(|(left, right)| self.join(left, right));
        with_sets(rest, joined).expect("states have a set at least")
    }
}

/// A state with more sets.
fn with_sets<S: Copy + Ord>(
    state: Option<State<S>>,
    sets: impl Iterator<Item = Set<S>>,
) -> Option<State<S>> {
    sets.fold(state, |state, set| match state {
        Some(mut state) => {
            state.push(set);
            Some(state)
        }
        None => Some(State::new(set)),
    })
}

/// Part items so that all parts weigh about the same, by Karmarkar's and Karp's method.
///
/// The parts come heaviest first (of equal ones that of more items, then that whose first item has
/// the highest index), and items in the order in which their part grew. Where parts are to be of
/// equal size, so many items of similar weight are spread over all of them at a time; then the
/// number of items is a multiple of theirs. With fewer items than parts, the last parts are empty.
///
/// Ties, and the order in which floats are added, are those of verl's `karmarkar_karp`.
pub fn karmarkar_karp<W: Weight>(weights: &[W], parts: usize, equal_size: bool) -> Parts {
    let mut chains = Chains {
        weights,
        next: vec![usize::MAX; weights.len()],
        last: (0..weights.len()).collect(),
    };
    let single = |item: usize| Set {
        sum: weights[item].added_to(W::ZERO),
        count: 1,
        first: item,
    };
    let mut states: Vec<_> = if equal_size {
        let mut sets: Vec<_> = (0..weights.len()).map(single).collect();
        sets.sort_unstable();
        let chunks = sets.chunks(parts.max(1)).map(|sets| sets.iter().copied());
        chunks.map(|sets| with_sets(None, sets)).collect()
    } else {
        (0..weights.len())
            .map(|item| Some(State::new(single(item))))
            .collect()
    };

    let rank = |state: &State<W::Sum>| {
        let smallest = match state.others.peek() {
            // The smallest set is an empty one.
            _ if state.len() < parts => W::ZERO,
            Some(Reverse(set)) => set.sum,
            None => state.largest.sum,
        };
        (W::difference(state.largest.sum, smallest), state.largest)
    };
    let ranked = |(index, state): (usize, &Option<State<_>>)| {
        let (spread, largest) = rank(state.as_ref()?);
        Some((spread, largest, index))
    };
    let mut by_spread: BinaryHeap<_> = states.iter().enumerate().filter_map(ranked).collect();
    while by_spread.len() > 1 {
        let mut pop = || {
            by_spread
                .pop()
                .and_then(|(.., index)| Some((states[index].take()?, index)))
        };
        let (Some((state, index)), Some((other, _))) = (pop(), pop()) else {
            unreachable!("a state is in the heap once");
        };
        let merged = chains.merge(state, other, parts);
        let (spread, largest) = rank(&merged);
        by_spread.push((spread, largest, index));
        states[index] = Some(merged);
    }

    let last = by_spread.pop().and_then(|(.., index)| states[index].take());
    let mut sets: Vec<_> = last.map_or_else(Vec::new, |state| {
        let others = state.others.into_iter().map(|Reverse(set)| set);
        others.chain([state.largest]).collect()
    });
    sets.sort_unstable_by_key(|&set| Reverse(set));
    let mut out = Parts::of(sets.iter().map(|set| chains.items(set)));
    out.offsets.resize(parts.max(sets.len()) + 1, weights.len());
    out
}
