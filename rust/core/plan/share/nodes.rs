//! Nodes: runs of tokens that the same rows share.

use super::Tree;
use crate::error::Result;
use crate::memory::check_room;

/// A run of tokens that the same rows share, up to where rows diverge or a row ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Offset of its first token in the tree.
    pub start: usize,
    /// Number of tokens; not 0.
    pub len: usize,
    /// The node before it in its rows.
    pub parent: Option<usize>,
    /// Number of tokens before it in its rows.
    pub depth: usize,
    /// One past the last token of its subtree.
    pub subtree_end: usize,
}

impl Node {
    /// Length of a row that ends with it.
    fn end(&self) -> usize {
        self.depth + self.len
    }
}

/// The nodes of a tree, whose tokens are in the order in which rows add them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// The nodes in the order of their starts: parents come before their children.
    pub nodes: Vec<Node>,
    /// The last node of each row, in the order of the tree; None for empty rows.
    pub leaves: Vec<Option<usize>>,
}

impl Tree {
    /// The nodes, in linear time except for sorting the splits.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn nodes(&self) -> Result<Nodes> {
        check_room(self.rows.len())?;
        let mut splits = self.splits().into_iter().peekable();
        let mut nodes: Vec<Node> = Vec::with_capacity(2 * self.rows.len());
        let mut leaves = Vec::with_capacity(self.rows.len());
        let mut path: Vec<usize> = Vec::new();
        let mut start = 0;
        for (index, row) in self.rows.iter().enumerate() {
            while path.pop_if(|node| nodes[*node].end() > row.shared).is_some() {}
            let mut depth = row.shared;
            while depth < row.len {
                let split = splits.next_if(|&(of, _)| of == index);
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
        Ok(Nodes { nodes, leaves })
    }

    /// The splits: where rows diverge within the tokens that another row added, as its place in the
    /// tree and the depth.
    fn splits(&self) -> Vec<(usize, usize)> {
        let mut splits = Vec::new();
        // The indices that added the tokens of the last row, each with the depth at which the next
        // begins.
        let mut path: Vec<(usize, usize)> = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            while path.pop_if(|(of, _)| self.rows[*of].shared >= row.shared).is_some() {}
            if let Some((of, end)) = path.last_mut()
                && *end > row.shared
            {
                *end = row.shared;
                splits.push((*of, row.shared));
            }
            if row.added() > 0 {
                path.push((index, row.len));
            }
        }
        splits.sort_unstable();
        splits
    }
}
