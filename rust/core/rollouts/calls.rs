//! Calls: the columns that bodies give.

use std::borrow::Cow;
use std::ops::Range;

use super::call::{Call, Wrong};
use super::logprobs::{BadLogprobs, Logprobs};
use super::schema::Numbers;
use crate::error::{Error, Result};
use crate::memory::{add, extend, filled, reserve};

/// Rows of different lengths.
#[derive(Debug)]
pub struct Rows<T> {
    /// The values of all rows.
    pub values: Vec<T>,
    /// The end of each row.
    pub ends: Vec<usize>,
}

impl<T: Copy> Rows<T> {
    fn new() -> Self {
        Self {
            values: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Add a row.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn push(&mut self, row: &[T]) -> Result<()> {
        extend(&mut self.values, row)?;
        add(&mut self.ends, self.values.len())
    }
}

impl Rows<u8> {
    /// Add spans of JSON as one text: several are arrays, which are joined.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn push_joined(&mut self, data: &[u8], spans: &[Range<usize>]) -> Result<()> {
        match spans {
            [] => self.push(&[]),
            [span] => self.push(&data[span.clone()]),
            spans => {
                let inner = spans.iter().map(|span| &data[span.start + 1..span.end - 1]);
                let inner: Vec<_> = inner.filter(|json| !json.trim_ascii().is_empty()).collect();
                self.push(&[b"[", &inner.join(&b',')[..], b"]"].concat())
            }
        }
    }
}

impl<T> Rows<T> {
    /// A row.
    pub fn row(&self, row: usize) -> &[T] {
        &self.values[self.span(row)]
    }

    /// The span of a row's values.
    pub fn span(&self, row: usize) -> Range<usize> {
        row.checked_sub(1).map_or(0, |last| self.ends[last])..self.ends[row]
    }
}

/// The place of a call.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The number of its body.
    pub body: usize,
    /// The number of its array, among all bodies: nodes of one array are a tree.
    pub tree: usize,
    /// Its number in the body; of a node, its position in the array.
    pub index: usize,
}

/// Columns over calls, or over the nodes of trees of calls.
#[derive(Debug)]
pub struct Calls {
    /// True for nodes.
    pub are_nodes: bool,
    /// Token ids of prompts; empty where a body has none.
    pub prompts: Rows<i32>,
    /// True for calls whose body has a prompt.
    pub have_prompts: Vec<bool>,
    /// Token ids of responses.
    pub responses: Rows<i32>,
    /// Log-probabilities of response tokens.
    pub logprobs: Logprobs,
    /// One per response token; 1 where a call has none. As long as the last call that has one.
    pub loss_mask: Vec<f32>,
    /// True if any call has a loss mask.
    pub have_masks: bool,
    /// Number of bodies.
    pub num_bodies: usize,
    /// The place of each call.
    pub places: Vec<Place>,
    /// Columns of JSON; empty where a call has none.
    pub kept: Vec<Rows<u8>>,
    /// Bytes of routed experts.
    pub routes: Vec<Option<Vec<u8>>>,
    /// True if any call has the key of routed experts.
    pub have_routes: bool,
}

impl Calls {
    /// No calls, with so many columns of JSON. The log-probabilities of nodes are checked when
    /// rows are made of them.
    pub fn new(policy: BadLogprobs, are_nodes: bool, kept: usize) -> Self {
        let policy = if are_nodes { BadLogprobs::Keep } else { policy };
        Self {
            are_nodes,
            prompts: Rows::new(),
            have_prompts: Vec::new(),
            responses: Rows::new(),
            logprobs: Logprobs::new(policy),
            loss_mask: Vec::new(),
            have_masks: false,
            num_bodies: 0,
            places: Vec::new(),
            kept: (0..kept).map(|_| Rows::new()).collect(),
            routes: Vec::new(),
            have_routes: false,
        }
    }

    /// Add a call; `name` is the call's.
    ///
    /// # Errors
    /// A call without a response, columns of other lengths than the response, ids that differ,
    /// masks that are not weights, and log-probabilities that are none, if they are errors.
    pub fn add(&mut self, call: &Call, place: Place, name: impl Fn() -> String) -> Result<()> {
        let wrong = |error: Wrong| Error::Body(format!("{} {}", name(), error.reason));
        call.check().map_err(wrong)?;
        let tokens = call.tokens().map_err(wrong)?;
        let count = tokens.response.len();
        // A prompt counts once for each of its samples.
        let prompt = tokens.prompt.as_deref().unwrap_or(&[]);
        reserve(&mut self.prompts.values, prompt.len())?;
        reserve(&mut self.responses.values, count)?;
        let given = call.numbers(Numbers::Logprobs);
        // Messages that were not sampled have none, or an empty row.
        let given = given.filter(|values| !(self.are_nodes && values.is_empty()));
        let mask = call.numbers(Numbers::LossMask);
        let mask = mask.map(|mask| tokens.along(mask, None, "loss mask"));
        let mut mask = mask.transpose().map_err(wrong)?;
        if mask.is_none() && self.are_nodes && !call.has_prompt() {
            mask = Some(Cow::Owned(filled(count, |_| f32::from(given.is_some()))?));
        }
        if !call.trains() {
            mask = Some(Cow::Owned(filled(count, |_| 0.0)?));
        }
        let along = given.map(|all| tokens.along(all, mask.as_deref(), "log-probabilities"));
        let given = match along {
            // Missing ones are those at the end.
            Some(Err(error)) if error.is_short && !self.are_nodes => given.map(Cow::Borrowed),
            along => along.transpose().map_err(wrong)?,
        };
        self.logprobs
            .add(given.as_deref(), count, mask.as_deref(), &name)?;
        if let Some(mask) = mask {
            let more = self.responses.values.len() + count - self.loss_mask.len();
            reserve(&mut self.loss_mask, more)?;
            self.fill_mask();
            self.have_masks = true;
            self.loss_mask.extend_from_slice(&mask);
        }
        add(&mut self.have_prompts, tokens.prompt.is_some())?;
        self.prompts.push(prompt)?;
        self.responses.push(&tokens.response)?;
        add(&mut self.places, place)
    }

    /// Write 1 for the tokens of calls without a loss mask.
    fn fill_mask(&mut self) {
        self.loss_mask.resize(self.responses.values.len(), 1.0);
    }

    /// Check calls without log-probabilities, if others have them; `name` names a body.
    ///
    /// # Errors
    /// Such a call, if these are errors.
    pub fn finish(&mut self, name: impl Fn(usize) -> String) -> Result<()> {
        if self.have_masks || self.are_nodes {
            self.fill_mask();
        }
        if self.are_nodes {
            return Ok(());
        }
        let places = &self.places;
        let name =
            |call: usize| format!("{}: call {}", name(places[call].body), places[call].index);
        self.logprobs
            .finish(self.have_masks.then_some(&self.loss_mask[..]), name)
    }
}
