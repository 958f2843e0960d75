//! Loads of bins, and the structures that find a bin with room for an item.

use std::collections::BTreeMap;
use std::iter::repeat_n;

use super::Items;
use crate::error::Result;
use crate::polling::Ticks;

/// The load of an item or a bin, or the limit of a bin.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Tokens.
    pub size: usize,
    /// Sequences.
    pub count: usize,
    /// Cost of the sequences.
    pub cost: f64,
}

impl Load {
    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            size: self.size.saturating_add(other.size),
            count: self.count.saturating_add(other.count),
            cost: self.cost + other.cost,
        }
    }

    /// True if no part of it exceeds the limit.
    pub fn is_within(self, limit: Self) -> bool {
        self.size <= limit.size && self.count <= limit.count && self.cost <= limit.cost
    }

    /// True if a bin of this load has capacity for the item.
    pub fn has_room_for(self, item: Self, limit: Self) -> bool {
        self.plus(item).is_within(limit)
    }
}

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
    const CLOSED: Self = Self { size: usize::MAX, count: usize::MAX, cost: f64::INFINITY };

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
    /// A tree of these values.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn new(values: &[T], ticks: &mut Ticks) -> Result<Self> {
        let len = values.len();
        let width = len.next_power_of_two();
        let mut nodes = ticks.gathered(repeat_n(T::CLOSED, 2 * width))?;
        nodes[width..width + len].copy_from_slice(values);
        for node in (1..width).rev() {
            ticks.done(1)?;
            nodes[node] = nodes[2 * node].least(nodes[2 * node + 1]);
        }
        Ok(Self { nodes, width, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Add a value.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn push(&mut self, value: T, ticks: &mut Ticks) -> Result<()> {
        if self.len == self.width {
            *self = self.with_room(ticks)?;
        }
        self.len += 1;
        self.set(self.len - 1, value);
        Ok(())
    }

    pub fn get(&self, index: usize) -> T {
        self.nodes[self.width + index]
    }

    pub fn set(&mut self, index: usize, value: T) {
        let mut node = self.width + index;
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
    fn with_room(&self, ticks: &mut Ticks) -> Result<Self> {
        let values = self.nodes[self.width..].iter().copied();
        let wide = ticks.gathered(values.chain(repeat_n(T::CLOSED, self.width)))?;
        Ok(Self { len: self.len, ..Self::new(&wide, ticks)? })
    }
}

/// The sort key of bins, with a tie-breaker. Keys are unique.
pub type Key = (usize, usize);

/// Bins; those that are not full have a key.
pub struct OpenBins {
    limit: Load,
    /// A bin without capacity for this load is full.
    least: Load,
    loads: Vec<Load>,
    order: Order,
}

enum Order {
    /// If the first bin by key fits, or none does.
    Plain(BTreeMap<Key, usize>),
    /// If a bin that fits has to be searched.
    Searched(Treap),
}

impl OpenBins {
    /// Without bins, for these items.
    pub fn new(items: Items, limit: Load) -> Self {
        Self {
            limit,
            least: items.least(),
            loads: Vec::new(),
            order: if items.are_plain() {
                Order::Plain(BTreeMap::new())
            } else {
                Order::Searched(Treap::default())
            },
        }
    }

    /// Add an item to the first bin from a key on that it fits, or to a new one.
    ///
    /// That bin is left without a key.
    pub fn add(&mut self, item: Load, from: Key) -> usize {
        let Self { limit, loads, .. } = self;
        let found = match &mut self.order {
            Order::Plain(bins) => {
                let first = bins.range(from..).next();
                let first = first.filter(|&(_, &bin)| loads[bin].has_room_for(item, *limit));
                let first = first.map(|(&key, &bin)| (key, bin));
                first.map(|(key, bin)| {
                    bins.remove(&key);
                    bin
                })
            }
            Order::Searched(bins) => {
                let found = bins.first(from, |load| load.has_room_for(item, *limit));
                found.inspect(|&bin| bins.remove(bin))
            }
        };
        let Some(bin) = found else {
            loads.push(item);
            return loads.len() - 1;
        };
        loads[bin] = loads[bin].plus(item);
        bin
    }

    /// Set the key of a bin without one, unless the bin is full.
    pub fn set_key(&mut self, bin: usize, key: Key) {
        let load = self.loads[bin];
        if load.has_room_for(self.least, self.limit) {
            match &mut self.order {
                Order::Plain(bins) => {
                    bins.insert(key, bin);
                }
                Order::Searched(bins) => bins.insert(bin, key, load),
            }
        }
    }

    /// The load of each bin.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }
}

/// Bins by key, for finding the first that fits.
///
/// Pseudo-random priorities decide which nodes are above others, so the tree is about as deep as a
/// balanced one, whatever the keys.
#[derive(Default)]
pub struct Treap {
    /// Nodes by bin. Those not in the tree are unreachable.
    nodes: Vec<Node>,
    root: Option<usize>,
}

#[derive(Clone, Copy)]
struct Node {
    key: Key,
    load: Load,
    /// Lower bound of the loads of the node and all below it.
    least: Load,
    children: [Option<usize>; 2],
}

impl Treap {
    /// Add a bin that is not in the tree.
    pub fn insert(&mut self, bin: usize, key: Key, load: Load) {
        let node = Node { key, load, least: load, children: [None; 2] };
        self.nodes.resize(self.nodes.len().max(bin + 1), node);
        self.nodes[bin] = node;
        let [before, after] = self.split(self.root, key);
        let before = self.join(before, Some(bin));
        self.root = self.join(before, after);
    }

    /// Remove a bin that is in the tree.
    pub fn remove(&mut self, bin: usize) {
        let (first, second) = self.nodes[bin].key;
        let [before, rest] = self.split(self.root, (first, second));
        let [_, after] = self.split(rest, (first, second + 1));
        self.root = self.join(before, after);
    }

    /// The first bin from a key on whose load fits.
    ///
    /// `fits` has to hold for the least of several loads if it holds for one.
    pub fn first(&self, from: Key, fits: impl Fn(Load) -> bool) -> Option<usize> {
        self.first_below(self.root, from, &fits)
    }

    fn first_below(
        &self,
        node: Option<usize>,
        from: Key,
        fits: &impl Fn(Load) -> bool,
    ) -> Option<usize> {
        let bin = node?;
        let node = &self.nodes[bin];
        if !fits(node.least) {
            return None;
        }
        if node.key >= from {
            let found = self.first_below(node.children[0], from, fits);
            if found.is_some() {
                return found;
            }
            if fits(node.load) {
                return Some(bin);
            }
        }
        self.first_below(node.children[1], from, fits)
    }

    /// Split a tree into the bins before a key and the others.
    fn split(&mut self, node: Option<usize>, key: Key) -> [Option<usize>; 2] {
        let Some(bin) = node else { return [None; 2] };
        let side = usize::from(self.nodes[bin].key < key);
        let mut parts = self.split(self.nodes[bin].children[side], key);
        self.nodes[bin].children[side] = parts[1 - side];
        self.update(bin);
        parts[1 - side] = Some(bin);
        parts
    }

    /// Join two trees; all keys of the first come before those of the second.
    fn join(&mut self, before: Option<usize>, after: Option<usize>) -> Option<usize> {
        let (Some(first), Some(second)) = (before, after) else {
            return before.or(after);
        };
        let (root, side) = if mixed(first) > mixed(second) { (first, 1) } else { (second, 0) };
        let child = self.nodes[root].children[side];
        let joined = if side == 1 { self.join(child, after) } else { self.join(before, child) };
        self.nodes[root].children[side] = joined;
        self.update(root);
        Some(root)
    }

    fn update(&mut self, bin: usize) {
        let children = self.nodes[bin].children.into_iter().flatten();
        let least = children.map(|child| self.nodes[child].least);
        self.nodes[bin].least = least.fold(self.nodes[bin].load, Load::least);
    }
}

/// A pseudo-random number for each of the numbers: the last steps of SplitMix64, a bijection.
pub fn mixed(number: usize) -> u64 {
    let mut bits = (number as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
