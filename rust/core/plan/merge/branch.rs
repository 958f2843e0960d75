//! Turns go on with whichever group of their trajectory they can: sub-agents, retries, folding.

use std::collections::{BTreeMap, BTreeSet};

use super::{Difference, Group, Policy, Step, Streams};
use crate::column::Tokens;
use crate::error::Error;

/// All groups of a trajectory stay open. A turn joins the one whose tokens are the longest prefix of
/// its prompt, of equal ones the one that was opened first, as prime-rl's interleaved rollouts do.
///
/// The groups' tokens are kept as a tree in which common beginnings are one path, so that a turn is
/// compared once, token by token, however many groups there are. Rolling hashes of the groups, the
/// first attempt, took 5 ns a token: comparing takes 0.2.
#[derive(Debug, Clone, Default)]
pub struct Branch {
    /// The first one is the root, where no token has been seen.
    nodes: Vec<Node>,
    /// The node at which each group's tokens end.
    ends: Vec<usize>,
}

/// A beginning of streams: where some of them part, or a group ends.
#[derive(Debug, Clone, Default)]
struct Node {
    /// A turn whose stream begins so.
    turn: usize,
    /// The number of tokens.
    len: usize,
    parent: usize,
    /// The token behind the parent's.
    first: i64,
    /// By the token that follows.
    children: BTreeMap<i64, usize>,
    /// The groups that end here.
    groups: BTreeSet<usize>,
}

const ROOT: usize = 0;

impl<C: Tokens<Error: From<Error>>> Policy<C> for Branch {
    fn begin(&mut self) {
        self.nodes = vec![Node::default()];
        self.ends.clear();
    }

    fn step(
        &mut self,
        turn: usize,
        groups: &[Group],
        streams: &Streams<C>,
    ) -> Result<Step, C::Error> {
        let (joined, end) = self.walk(turn, streams)?;
        if let Some(group) = joined {
            let before = std::mem::replace(&mut self.ends[group], end);
            self.nodes[before].groups.remove(&group);
            self.nodes[end].groups.insert(group);
            self.shorten(before);
            return Ok(Step::Join(group));
        }
        self.ends.push(end);
        self.nodes[end].groups.insert(groups.len());
        if groups.is_empty() {
            return Ok(Step::Open(None));
        }
        let from = turn - 1;
        let position = streams.common_prefix(from, turn)?;
        Ok(Step::Open(Some(Difference { from, position })))
    }
}

impl Branch {
    /// Follow a turn's stream through the tree, and add what is not there. Returns the last group
    /// that ends within its prompt, and the node at which the stream ends.
    fn walk<C: Tokens<Error: From<Error>>>(
        &mut self,
        turn: usize,
        streams: &Streams<C>,
    ) -> Result<(Option<usize>, usize), C::Error> {
        let prompt_len = streams.turns.prompt_lens()[turn];
        let end = streams.turns.stream_len(turn);
        let (mut at, mut len, mut last) = (ROOT, 0, None);
        loop {
            if len <= prompt_len {
                last = self.nodes[at].groups.first().copied().or(last);
            }
            if len == end {
                return Ok((last, at));
            }
            let mut next = [0];
            streams.read(turn, len, &mut next)?;
            let Some(&child) = self.nodes[at].children.get(&next[0]) else {
                return Ok((last, self.add(at, next[0], turn, end)));
            };
            let limit = self.nodes[child].len.min(end);
            let common = streams.common(self.nodes[child].turn, turn, len, limit - len)?;
            if common == 0 {
                // Without a step forward this would not end.
                return Err(Error::Unstable { turn }.into());
            }
            len += common;
            at = if len == self.nodes[child].len {
                child
            } else {
                self.split(child, len, streams)?
            };
        }
    }

    /// Add a node behind another one.
    fn add(&mut self, parent: usize, next: i64, turn: usize, len: usize) -> usize {
        let index = self.nodes.len();
        self.nodes.push(Node {
            turn,
            len,
            parent,
            first: next,
            ..Node::default()
        });
        self.nodes[parent].children.insert(next, index);
        index
    }

    /// Put a node of so many tokens in front of another one.
    fn split<C: Tokens>(
        &mut self,
        child: usize,
        len: usize,
        streams: &Streams<C>,
    ) -> Result<usize, C::Error> {
        let Node {
            turn,
            parent,
            first,
            ..
        } = self.nodes[child];
        let mut next = [0];
        streams.read(turn, len, &mut next)?;
        let index = self.add(parent, first, turn, len);
        self.nodes[index].children.insert(next[0], child);
        self.nodes[child].parent = index;
        self.nodes[child].first = next[0];
        Ok(index)
    }

    /// Leave a node out if no group ends there any more and nothing parts.
    fn shorten(&mut self, node: usize) {
        let Node {
            parent,
            first,
            children,
            groups,
            ..
        } = &self.nodes[node];
        if node == ROOT || !groups.is_empty() || children.len() > 1 {
            return;
        }
        let Some(&child) = children.values().next() else {
            return;
        };
        let (parent, first) = (*parent, *first);
        self.nodes[child].parent = parent;
        self.nodes[child].first = first;
        self.nodes[parent].children.insert(first, child);
    }
}
