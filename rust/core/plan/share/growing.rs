//! A prefix tree that grows row by row, in which each token has one successor.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;

use crate::element::common;
use crate::error::{Error, Result};
use crate::memory::{check_room, reserve, with_room};
use crate::plan::partition::sort_indices;

/// Rows in a prefix tree. They share a token if they agree on the next one, too, so forks are one
/// token early. The last token of a row has no next one: only identical rows share it.
#[derive(Debug, Clone)]
pub struct GrowingTree {
    /// The tokens that each row added, one row after the other.
    tokens: Vec<i64>,
    /// Runs of tokens without a fork inside. The first is the empty root.
    segments: Vec<Segment>,
    /// The segment after another, by its first token and the one after that.
    children: HashMap<(usize, i64, Option<i64>), usize>,
    /// The last segment of each row.
    leaves: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Segment {
    /// Offset of its first token. Of the segments after one, the oldest has the smallest.
    start: usize,
    len: usize,
    parent: usize,
    /// The token after its last one; None at the end of a row.
    next: Option<i64>,
}

/// The end of the path that a row shares with the tree.
#[derive(Debug, Clone, Copy)]
struct Fork {
    /// Number of shared tokens.
    shared: usize,
    /// The last segment with shared tokens, and how many of its tokens these are.
    segment: usize,
    within: usize,
}

/// A tree in depth-first order, as segments without a fork inside.
#[derive(Debug, Clone)]
pub struct LaidOut {
    /// The tokens.
    pub tokens: Vec<i64>,
    /// Offsets of segments in the tokens, with the end.
    pub offsets: Vec<usize>,
    /// The positions from the root to the end of each segment, end to end.
    pub keys: Vec<usize>,
    /// Offsets of these paths in the keys, with the end.
    pub key_offsets: Vec<usize>,
    /// For each row the first of its keys: those of its last segment are its positions.
    pub rows: Vec<usize>,
}

impl Default for GrowingTree {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            segments: vec![Segment::default()],
            children: HashMap::new(),
            leaves: Vec::new(),
        }
    }
}

impl GrowingTree {
    /// The tokens in the order in which rows added them.
    pub fn tokens(&self) -> &[i64] {
        &self.tokens
    }

    /// Number of tokens that a row would share.
    pub fn shared(&self, row: &[i64]) -> usize {
        self.fork(row).shared
    }

    /// Add a row, which is not empty; return the number of tokens that it shares.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn add(&mut self, row: &[i64]) -> Result<usize> {
        let no_memory = |error| Error::NoMemory(format!("no memory for a row: {error}"));
        self.children.try_reserve(2).map_err(no_memory)?;
        reserve(&mut self.segments, 2)?;
        reserve(&mut self.leaves, 1)?;
        let fork = self.fork(row);
        let added = &row[fork.shared..];
        if added.is_empty() {
            self.leaves.push(fork.segment);
            return Ok(fork.shared);
        }
        let start = self.tokens.len();
        reserve(&mut self.tokens, added.len())?;
        self.tokens.extend(added);
        let parent = self.split(fork);
        let leaf = Segment {
            start,
            len: added.len(),
            parent,
            next: None,
        };
        self.segments.push(leaf);
        self.leaves.push(self.segments.len() - 1);
        self.link(self.segments.len() - 1);
        Ok(fork.shared)
    }

    fn fork(&self, row: &[i64]) -> Fork {
        let mut fork = Fork {
            shared: 0,
            segment: 0,
            within: 0,
        };
        while let Some((&first, rest)) = row[fork.shared..].split_first()
            && fork.within == self.segments[fork.segment].len
            && let Some(&child) = self
                .children
                .get(&(fork.segment, first, rest.first().copied()))
        {
            let segment = &self.segments[child];
            let tokens = self.tokens_of(segment);
            let row = &row[fork.shared..];
            let common = common(tokens, &row[..row.len().min(tokens.len())]);
            let is_whole = common == tokens.len() && row.get(common).copied() == segment.next;
            fork.within = if is_whole { common } else { common - 1 };
            fork.shared += fork.within;
            fork.segment = child;
        }
        fork
    }

    /// Split the segment of a fork; return the part above the fork, which may be all of it.
    fn split(
        &mut self,
        Fork {
            segment, within, ..
        }: Fork,
    ) -> usize {
        let below = self.segments[segment];
        if within == below.len {
            return segment;
        }
        let above = self.segments.len();
        let split = below.start + within;
        self.segments.push(Segment {
            len: within,
            next: Some(self.tokens[split]),
            ..below
        });
        self.link(above);
        self.segments[segment] = Segment {
            start: split,
            len: below.len - within,
            parent: above,
            ..below
        };
        self.link(segment);
        above
    }

    /// Enter a segment as a child of its parent.
    fn link(&mut self, index: usize) {
        let segment = self.segments[index];
        let tokens = self.tokens_of(&segment);
        let second = tokens.get(1).copied().or(segment.next);
        self.children
            .insert((segment.parent, tokens[0], second), index);
    }

    fn tokens_of(&self, segment: &Segment) -> &[i64] {
        &self.tokens[segment.start..][..segment.len]
    }

    /// Lay the tree out in depth-first order, of the segments after one the oldest first.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn laid_out(&self) -> Result<LaidOut> {
        check_room(self.segments.len())?;
        let mut youngest_first: Vec<_> = (1..self.segments.len()).collect();
        let start = |index: usize| self.segments[index].start;
        sort_indices(&mut youngest_first, &|a, b| start(b).cmp(&start(a)));
        // The oldest child of each segment, and its next younger sibling; 0, the root, for none.
        let mut child = vec![0; self.segments.len()];
        let mut sibling = child.clone();
        for index in youngest_first {
            let parent = self.segments[index].parent;
            sibling[index] = mem::replace(&mut child[parent], index);
        }
        let mut out = LaidOut {
            tokens: with_room(self.tokens.len())?,
            offsets: vec![0],
            keys: Vec::new(),
            key_offsets: vec![0],
            rows: Vec::with_capacity(self.leaves.len()),
        };
        // The keys of each segment's path.
        let mut paths = vec![0..0; self.segments.len()];
        let mut stack = vec![child[0]];
        while let Some(index) = stack.pop() {
            if index == 0 {
                continue;
            }
            stack.extend([sibling[index], child[index]]);
            let segment = &self.segments[index];
            let (first, begin) = (out.keys.len(), out.tokens.len());
            let above: Range<usize> = paths[segment.parent].clone();
            reserve(&mut out.keys, above.len() + segment.len)?;
            out.keys.extend_from_within(above);
            out.keys.extend(begin..begin + segment.len);
            out.tokens.extend(self.tokens_of(segment));
            paths[index] = first..out.keys.len();
            out.offsets.push(out.tokens.len());
            out.key_offsets.push(out.keys.len());
        }
        out.rows
            .extend(self.leaves.iter().map(|&leaf| paths[leaf].start));
        Ok(out)
    }
}
