//! Nodes: runs of tokens that the same rows share.

use super::Tree;

/// Tokens that the same rows share, from where other rows leave to where the next do or a row ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its first token's place among those of the tree.
    pub start: usize,
    /// Its number of tokens; not 0.
    pub len: usize,
    /// The node whose tokens stand before it in its rows.
    pub parent: Option<usize>,
    /// How many tokens stand before it in its rows.
    pub depth: usize,
    /// One past the last token of the tree that follows on it in a row.
    pub subtree_end: usize,
}

impl Node {
    /// How many tokens a row has that ends with it.
    fn end(&self) -> usize {
        self.depth + self.len
    }
}

/// The nodes of a tree, which lies as its rows add their tokens one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// In the order of their starts: parents come before their children.
    pub nodes: Vec<Node>,
    /// The node that each row of the tree ends with, in the order of the tree; none of empty rows.
    pub leaves: Vec<Option<usize>>,
}

impl Tree {
    /// The nodes, in linear time but for the sorting of the places where rows leave each other.
    pub fn nodes(&self) -> Nodes {
        let mut splits = self.splits().into_iter().peekable();
        let mut nodes: Vec<Node> = Vec::with_capacity(2 * self.rows.len());
        let mut leaves = Vec::with_capacity(self.rows.len());
        let mut path: Vec<usize> = Vec::new();
        let mut start = 0;
        for (place, row) in self.rows.iter().enumerate() {
            while path
                .pop_if(|node| nodes[*node].end() > row.shared)
                .is_some()
            {}
            let mut depth = row.shared;
            while depth < row.len {
                let split = splits.next_if(|&(of, _)| of == place);
                let end = split.map_or(row.len, |(_, depth)| depth);
                let node = Node {
                    start,
                    len: end - depth,
                    parent: path.last().copied(),
                    depth,
                    subtree_end: start + end - depth,
                };
                path.push(nodes.len());
                nodes.push(node);
                (start, depth) = (start + node.len, end);
            }
            leaves.push(path.last().copied());
        }
        for node in (0..nodes.len()).rev() {
            if let Some(parent) = nodes[node].parent {
                let end = nodes[node].subtree_end;
                nodes[parent].subtree_end = nodes[parent].subtree_end.max(end);
            }
        }
        Nodes { nodes, leaves }
    }

    /// Where rows leave the midst of what another added: its place in the tree, and the depth.
    fn splits(&self) -> Vec<(usize, usize)> {
        let mut splits = Vec::new();
        // The places that added the tokens of the last row, and how many tokens stand before the next.
        let mut path: Vec<(usize, usize)> = Vec::new();
        for (place, row) in self.rows.iter().enumerate() {
            while path
                .pop_if(|(of, _)| self.rows[*of].shared >= row.shared)
                .is_some()
            {}
            if let Some((of, end)) = path.last_mut()
                && *end > row.shared
            {
                *end = row.shared;
                splits.push((*of, row.shared));
            }
            if row.added() > 0 {
                path.push((place, row.len));
            }
        }
        splits.sort_unstable();
        splits
    }
}
