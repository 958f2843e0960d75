//! A tree over what bins hold, to find the first with room.

use super::Load;

/// What the tree keeps: of two, the least is no more than either.
pub trait Least: Copy {
    /// More than anything fits into.
    const CLOSED: Self;

    /// The most that is not above either.
    fn least(self, other: Self) -> Self;
}

impl Least for usize {
    const CLOSED: Self = Self::MAX;

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

    fn least(self, other: Self) -> Self {
        Self {
            size: self.size.min(other.size),
            count: self.count.min(other.count),
            cost: self.cost.min(other.cost),
        }
    }
}

/// Values in a row, which grows; of every two neighbours the least, and so on.
pub struct Tree<T> {
    /// The root is at 1, the children of `node` at `2 * node` and `2 * node + 1`.
    nodes: Vec<T>,
    /// How many leaves there are, a power of two.
    width: usize,
    /// How many of them are in use.
    len: usize,
}

impl<T: Least> Tree<T> {
    /// A tree without values.
    pub fn new() -> Self {
        let width = 1;
        let nodes = vec![T::CLOSED; 2 * width];
        let len = 0;
        Self { nodes, width, len }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Add a value in the end.
    pub fn push(&mut self, value: T) {
        if self.len == self.width {
            self.grow();
        }
        self.len += 1;
        self.set(self.len - 1, value);
    }

    /// The value at this place.
    pub fn get(&self, place: usize) -> T {
        self.nodes[self.width + place]
    }

    /// Replace the value at this place.
    pub fn set(&mut self, place: usize, value: T) {
        let mut node = self.width + place;
        self.nodes[node] = value;
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node].least(self.nodes[2 * node + 1]);
        }
    }

    /// The first place whose value `fits`, which has to hold of the least of several if of one.
    pub fn first(&self, fits: impl Fn(T) -> bool) -> Option<usize> {
        let mut node = 1;
        loop {
            if !fits(self.nodes[node]) {
                // All below are behind us: on to the right, up where that was a right child.
                while node % 2 == 1 {
                    node /= 2;
                }
                if node == 0 {
                    return None;
                }
                node += 1;
            } else if node < self.width {
                node *= 2;
            } else {
                return Some(node - self.width);
            }
        }
    }

    fn grow(&mut self) {
        let mut nodes = vec![T::CLOSED; 4 * self.width];
        // Level by level: each is the left half of a level that is twice as wide.
        let mut first = 1;
        while first <= self.width {
            nodes[2 * first..3 * first].copy_from_slice(&self.nodes[first..2 * first]);
            first *= 2;
        }
        nodes[1] = nodes[2];
        self.nodes = nodes;
        self.width *= 2;
    }
}
