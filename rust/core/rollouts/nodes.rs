//! Rows of trees of messages or calls: one of each leaf.

use super::call::{Call, Wrong};
use super::calls::Calls;
use super::logprobs::BadLogprobs;
use super::schema::{Ids, Numbers};
use crate::error::{Error, Result};
use crate::polling::Ticks;

/// Rows in one slice.
#[derive(Debug, Clone, Copy)]
pub struct Spans<'a, T> {
    /// The values of all rows.
    pub values: &'a [T],
    /// The beginning of each row, and the end of the last; as long as the values allow.
    pub offsets: &'a [usize],
}

impl<'a, T> Spans<'a, T> {
    /// A row.
    pub fn row(&self, row: usize) -> &'a [T] {
        &self.values[self.offsets[row]..self.offsets[row + 1]]
    }
}

/// Columns over nodes. A node with a prompt holds the whole sequence before its response; the
/// response of another is what it adds to its parent's sequence.
#[derive(Debug, Clone, Copy)]
pub struct Nodes<'a> {
    /// Token ids of prompts.
    pub prompts: Spans<'a, i32>,
    /// True for nodes with a prompt.
    pub have_prompts: &'a [bool],
    /// Token ids of responses.
    pub responses: Spans<'a, i32>,
    /// One per response token.
    pub loss_mask: &'a [f32],
    /// One per response token.
    pub logprobs: &'a [f32],
    /// True for nodes with log-probabilities.
    pub have_logprobs: &'a [bool],
    /// The node before each, if any.
    pub parents: &'a [Option<usize>],
    /// True for leaves that get no row.
    pub are_dropped: &'a [bool],
    /// The body of each node.
    pub bodies: &'a [usize],
    /// The number of each node in its body.
    pub indices: &'a [usize],
}

/// Make a row of each leaf: the tokens of its path. A sampled node that several leaves share
/// trains in the first of their rows. Rows that train nothing are left out.
///
/// Returns the rows, and the leaf of each.
///
/// # Errors
/// Cycles, prompts that do not continue their parents' tokens, and log-probabilities that are
/// none, if they are errors. `name` names a body.
pub fn join_nodes(
    nodes: &Nodes,
    policy: BadLogprobs,
    name: impl Fn(usize) -> String,
    ticks: &mut Ticks,
) -> Result<(Calls, Vec<usize>)> {
    let name = &name;
    let wrong = |node: usize, reason: &str| {
        let (body, index) = (nodes.bodies[node], nodes.indices[node]);
        Error::Body(format!("{}: node {index} {reason}", name(body)))
    };
    let count = nodes.parents.len();
    let mut is_inner = vec![false; count];
    for parent in nodes.parents.iter().flatten() {
        is_inner[*parent] = true;
    }
    if let Some(node) = on_cycle(nodes.parents) {
        return Err(wrong(node, "has no root: its parents form a cycle"));
    }
    let have_logprobs = nodes.have_logprobs.contains(&true);
    let mut rows = Calls::new(policy, false, 0);
    let mut leaves = Vec::new();
    let mut is_checked = vec![false; count];
    let mut is_trained = vec![false; count];
    let mut row = Row::default();
    for leaf in (0..count).filter(|&node| !is_inner[node] && !nodes.are_dropped[node]) {
        let mut path = vec![leaf];
        path.extend(std::iter::successors(nodes.parents[leaf], |&node| {
            nodes.parents[node]
        }));
        row.clear();
        for &node in path.iter().rev() {
            let added = row.add(nodes, node, !is_checked[node], !is_trained[node]);
            let trains = added.map_err(|error| wrong(node, &error.reason))?;
            is_checked[node] = true;
            is_trained[node] |= trains;
            ticks.done(1 + nodes.responses.row(node).len())?;
        }
        if !row.trains {
            continue;
        }
        let split = row.first.unwrap_or(row.tokens.len());
        let mut call = Call::default();
        call.ids[Ids::Prompts as usize] = Some(&row.tokens[..split]);
        call.ids[Ids::Responses as usize] = Some(&row.tokens[split..]);
        call.numbers[Numbers::LossMask as usize] = Some(&row.mask[split..]);
        let logprobs = have_logprobs.then_some(&row.logprobs[split..]);
        call.numbers[Numbers::Logprobs as usize] = logprobs;
        let (body, index) = (nodes.bodies[leaf], nodes.indices[leaf]);
        rows.add(&call, body, index, || {
            format!("{}: the row of node {index}", name(body))
        })?;
        leaves.push(leaf);
    }
    rows.num_bodies = nodes.bodies.last().map_or(0, |last| last + 1);
    rows.finish(name)?;
    Ok((rows, leaves))
}

/// A node whose parents form a cycle.
fn on_cycle(parents: &[Option<usize>]) -> Option<usize> {
    let mut seen = vec![usize::MAX; parents.len()];
    (0..parents.len()).find(|&start| {
        let mut node = Some(start);
        while let Some(at) = node.filter(|&at| seen[at] == usize::MAX) {
            seen[at] = start;
            node = parents[at];
        }
        node.is_some_and(|at| seen[at] == start)
    })
}

/// The tokens of a path.
#[derive(Debug, Default)]
struct Row {
    tokens: Vec<i32>,
    mask: Vec<f32>,
    logprobs: Vec<f32>,
    /// The first sampled token.
    first: Option<usize>,
    trains: bool,
}

impl Row {
    fn clear(&mut self) {
        self.tokens.clear();
        self.mask.clear();
        self.logprobs.clear();
        (self.first, self.trains) = (None, false);
    }

    /// Add the tokens of a node; returns true if it has sampled tokens that train.
    fn add(
        &mut self,
        nodes: &Nodes,
        node: usize,
        checks: bool,
        trains: bool,
    ) -> Result<bool, Wrong> {
        let len = self.tokens.len();
        if nodes.have_prompts[node] {
            let prompt = nodes.prompts.row(node);
            let common = prompt.len().min(len);
            if checks && prompt[..common] != self.tokens[..common] || common < len {
                return Err(Wrong::new(
                    "has a prompt that does not begin with its parent's tokens".to_owned(),
                ));
            }
            self.tokens.extend_from_slice(&prompt[len..]);
            self.mask.resize(self.tokens.len(), 0.0);
            self.logprobs.resize(self.tokens.len(), 0.0);
        }
        let span = nodes.responses.offsets[node]..nodes.responses.offsets[node + 1];
        self.tokens.extend_from_slice(nodes.responses.row(node));
        let mut is_sampled = false;
        for at in span {
            let weight = nodes.loss_mask[at];
            if weight != 0.0 && !is_sampled {
                is_sampled = true;
                self.first.get_or_insert(self.mask.len());
            }
            let trains = trains && weight != 0.0;
            self.mask.push(if trains { weight } else { 0.0 });
            self.logprobs
                .push(if trains { nodes.logprobs[at] } else { 0.0 });
        }
        self.trains |= is_sampled && trains;
        Ok(is_sampled)
    }
}
