//! A search tree with the least load below every node.

use super::Load;
use super::load_tree::Least;
use super::open_bins::Key;

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
        let node = Node {
            key,
            load,
            least: load,
            children: [None; 2],
        };
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
        let (root, side) = if height(first) > height(second) {
            (first, 1)
        } else {
            (second, 0)
        };
        let child = self.nodes[root].children[side];
        let joined = if side == 1 {
            self.join(child, after)
        } else {
            self.join(before, child)
        };
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

/// Pseudo-random priority of a bin. The root has the highest.
fn height(bin: usize) -> u64 {
    // The last steps of SplitMix64, which are a bijection.
    let mut bits = (bin as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
