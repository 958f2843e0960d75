//! A tree for finding the first value that fits.

use super::Load;

/// Values of a tree.
pub trait Least: Copy + PartialEq {
    /// The value that never fits, and the identity of `least`.
    const CLOSED: Self;

    /// True if the least of several values fits only if one of them does.
    const IS_EXACT: bool;

    /// The largest value that exceeds neither: it fits if one of the two does.
    fn least(self, other: Self) -> Self;
}

impl Least for usize {
    const CLOSED: Self = Self::MAX;

    const IS_EXACT: bool = true;

    fn least(self, other: Self) -> Self {
        self.min(other)
    }
}

impl Least for Load {
    const CLOSED: Self = Self {
        size: usize::MAX,
        count: usize::MAX,
        cost: f64::INFINITY,
    };

    const IS_EXACT: bool = false;

    fn least(self, other: Self) -> Self {
        Self {
            size: self.size.min(other.size),
            count: self.count.min(other.count),
            cost: self.cost.min(other.cost),
        }
    }
}

/// A growing array of values, with a binary tree of minima above it.
pub struct Tree<T> {
    /// The root is at 1, the children of `node` at `2 * node` and `2 * node + 1`.
    nodes: Vec<T>,
    /// Number of leaves: a power of two.
    width: usize,
    /// Number of leaves in use.
    len: usize,
}

impl<T: Least> Tree<T> {
    pub fn new(values: &[T]) -> Self {
        let len = values.len();
        let width = len.next_power_of_two();
        let mut nodes = vec![T::CLOSED; 2 * width];
        nodes[width..width + len].copy_from_slice(values);
        for node in (1..width).rev() {
            nodes[node] = nodes[2 * node].least(nodes[2 * node + 1]);
        }
        Self { nodes, width, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, value: T) {
        if self.len == self.width {
            *self = Self::with_room(&self.nodes[self.width..]);
        }
        self.len += 1;
        self.set(self.len - 1, value);
    }

    pub fn get(&self, place: usize) -> T {
        self.nodes[self.width + place]
    }

    pub fn set(&mut self, place: usize, value: T) {
        let mut node = self.width + place;
        self.nodes[node] = value;
        while node > 1 {
            let least = self.nodes[node].least(self.nodes[node ^ 1]);
            node /= 2;
            if self.nodes[node] == least {
                break;
            }
            self.nodes[node] = least;
        }
    }

    /// The first place from `from` on whose value fits.
    ///
    /// This takes a logarithmic number of steps if the least is exact; otherwise it may search more
    /// branches.
    pub fn first(&self, from: usize, fits: impl Fn(T) -> bool) -> Option<usize> {
        let mut node = if from == 0 { 1 } else { self.width + from };
        loop {
            if !fits(self.nodes[node]) {
                // The subtree is searched: continue to the right of the first ancestor that is a
                // left child.
                node >>= node.trailing_ones();
                if node == 0 {
                    return None;
                }
                node += 1;
                continue;
            }
            // If a fit is certain, the descent has no unpredictable branch.
            while T::IS_EXACT && node < self.width {
                node = 2 * node + usize::from(!fits(self.nodes[2 * node]));
            }
            if node >= self.width {
                return Some(node - self.width);
            }
            node *= 2;
        }
    }

    /// The same values, with twice the capacity.
    fn with_room(values: &[T]) -> Self {
        let mut wide = values.to_vec();
        wide.resize(2 * values.len(), T::CLOSED);
        let len = values.len();
        Self {
            len,
            ..Self::new(&wide)
        }
    }
}
