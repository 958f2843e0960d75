//! Rows of trees of messages or calls: one of each leaf.

use std::iter::repeat_n;
use std::mem;

use bytemuck::cast_slice;

use super::call::Call;
use super::calls::{Calls, Place};
use super::logprobs::BadLogprobs;
use super::schema::Column;
use crate::error::{Error, Result};
use crate::memory::{check_room, filled, with_room};
use crate::polling::Ticks;

/// Make a row of each leaf: the tokens of its path. A sampled node that several leaves share
/// trains in the first of their rows. Rows that train nothing are left out.
///
/// A node with a prompt holds the whole sequence before its response; the response of another is
/// what it adds to its parent's sequence. `parents` are the nodes before each, and leaves that
/// `are_dropped` get no row.
///
/// Returns the rows, and the leaf of each.
///
/// # Errors
/// Cycles, prompts that do not continue their parents' tokens, and log-probabilities that are
/// none, if they are errors. `name` names a body.
pub fn join_nodes(
    nodes: &Calls,
    parents: &[Option<usize>],
    are_dropped: &[bool],
    policy: BadLogprobs,
    name: impl Fn(usize) -> String,
    ticks: &mut Ticks,
) -> Result<(Calls, Vec<usize>)> {
    let name = &name;
    let wrong = |node: usize, reason: &str| {
        let Place { body, index, .. } = nodes.places[node];
        Error::Body(format!("{}: node {index} {reason}", name(body)))
    };
    let name_of = |Place { body, index, .. }| format!("{}: the row of node {index}", name(body));
    let count = nodes.places.len();
    check_room(count)?;
    let mut is_inner = filled(count, |_| false)?;
    for parent in parents.iter().flatten() {
        is_inner[*parent] = true;
    }
    if let Some(node) = on_cycle(parents)? {
        return Err(wrong(node, "has no root: its parents form a cycle"));
    }
    let have_logprobs = nodes.have_logprobs();
    let mut rows = Calls::new(policy, false, 0);
    let mut leaves = Vec::new();
    let mut is_known = filled(count, |_| false)?;
    // No path has more tokens.
    let most = nodes.prompts.values.len() + nodes.responses.values.len();
    let mut row = Row {
        tokens: with_room(most)?,
        mask: with_room(most)?,
        logprobs: with_room(most)?,
        ..Row::default()
    };
    for leaf in (0..count).filter(|&node| !is_inner[node] && !are_dropped[node]) {
        let mut path = vec![leaf];
        path.extend(std::iter::successors(parents[leaf], |&node| parents[node]));
        row.clear();
        for &node in path.iter().rev() {
            let is_new = !mem::replace(&mut is_known[node], true);
            if !row.add(nodes, node, is_new) {
                let reason = "has a prompt that does not begin with its parent's tokens";
                return Err(wrong(node, reason));
            }
            ticks.done(1 + nodes.responses.row(node).len())?;
        }
        if !row.trains {
            continue;
        }
        let split = row.first.unwrap_or(row.tokens.len());
        let mut call = Call::default();
        let (prompt, response) = row.tokens.split_at(split);
        let logprobs = have_logprobs.then(|| cast_slice(&row.logprobs[split..]));
        call.columns[Column::Prompts as usize] = Some(prompt);
        call.columns[Column::Responses as usize] = Some(response);
        call.columns[Column::LossMask as usize] = Some(cast_slice(&row.mask[split..]));
        call.columns[Column::Logprobs as usize] = logprobs;
        let place = nodes.places[leaf];
        rows.add(&call, place, name_of)?;
        leaves.push(leaf);
    }
    rows.num_bodies = nodes.num_bodies;
    rows.finish(name_of)?;
    Ok((rows, leaves))
}

/// A node whose parents form a cycle.
fn on_cycle(parents: &[Option<usize>]) -> Result<Option<usize>> {
    let mut seen = filled(parents.len(), |_| usize::MAX)?;
    let node = (0..parents.len()).find(|&start| {
        let mut node = Some(start);
        while let Some(at) = node.filter(|&at| seen[at] == usize::MAX) {
            seen[at] = start;
            node = parents[at];
        }
        node.is_some_and(|at| seen[at] == start)
    });
    Ok(node)
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

    /// Add the tokens of a node, which train in the first row that it is in. False if its prompt
    /// does not continue those before.
    fn add(&mut self, nodes: &Calls, node: usize, is_new: bool) -> bool {
        let len = self.tokens.len();
        if nodes.have_prompts[node] {
            let prompt = nodes.prompts.row(node);
            let common = prompt.len().min(len);
            if is_new && prompt[..common] != self.tokens[..common] || common < len {
                return false;
            }
            self.tokens.extend_from_slice(&prompt[len..]);
            self.mask.extend(repeat_n(0.0, prompt.len() - len));
            self.logprobs.extend(repeat_n(0.0, prompt.len() - len));
        }
        self.tokens.extend_from_slice(nodes.responses.row(node));
        for at in nodes.responses.span(node) {
            let is_sampled = nodes.loss_mask[at] != 0.0;
            if is_sampled && self.first.is_none() {
                self.first = Some(self.mask.len());
            }
            let trains = is_sampled && is_new;
            self.trains |= trains;
            let or_zero = |value| if trains { value } else { 0.0 };
            self.mask.push(or_zero(nodes.loss_mask[at]));
            self.logprobs.push(or_zero(nodes.logprobs[at]));
        }
        true
    }
}
