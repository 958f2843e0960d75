//! Calls: the columns that bodies give.

use std::ops::Range;

use super::json::Json;
use super::logprobs::{BadLogprobs, Logprobs};
use super::reader::Frame;
use crate::error::{Error, Result};

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

    fn push(&mut self, row: &[T]) {
        self.values.extend_from_slice(row);
        self.ends.push(self.values.len());
    }
}

impl Rows<u8> {
    /// Add spans of JSON as one text: several are arrays, which are joined.
    fn push_joined(&mut self, data: &[u8], spans: &[Range<usize>]) {
        match spans {
            [] => self.push(&[]),
            [span] => self.push(&data[span.clone()]),
            spans => {
                let inner = spans.iter().map(|span| &data[span.start + 1..span.end - 1]);
                let inner: Vec<_> = inner.filter(|json| !json.trim_ascii().is_empty()).collect();
                self.push(&[b"[", &inner.join(&b',')[..], b"]"].concat());
            }
        }
    }
}

/// Columns over calls.
#[derive(Debug)]
pub struct Calls {
    /// Token ids of prompts; empty where a body has none.
    pub prompts: Rows<i32>,
    /// True for calls whose body has a prompt.
    pub have_prompts: Vec<bool>,
    /// Token ids of responses.
    pub responses: Rows<i32>,
    /// Log-probabilities of response tokens.
    pub logprobs: Logprobs,
    /// One per response token; 1 where a call has none.
    pub loss_mask: Vec<i32>,
    /// True if any call has a loss mask.
    pub have_masks: bool,
    /// Number of bodies.
    pub num_bodies: usize,
    /// The body of each call.
    pub bodies: Vec<usize>,
    /// The number of each call in its body.
    pub indices: Vec<usize>,
    /// Columns of JSON; empty where a call has none.
    pub kept: Vec<Rows<u8>>,
    /// Bytes of routed experts.
    pub routes: Vec<Option<Vec<u8>>>,
    /// Calls of streams that end before their end is announced.
    pub cut: Vec<usize>,
}

impl Calls {
    /// No calls, with so many columns of JSON.
    pub fn new(policy: BadLogprobs, kept: usize) -> Self {
        Self {
            prompts: Rows::new(),
            have_prompts: Vec::new(),
            responses: Rows::new(),
            logprobs: Logprobs::new(policy),
            loss_mask: Vec::new(),
            have_masks: false,
            num_bodies: 0,
            bodies: Vec::new(),
            indices: Vec::new(),
            kept: (0..kept).map(|_| Rows::new()).collect(),
            routes: Vec::new(),
            cut: Vec::new(),
        }
    }

    /// Add a call; values that it lacks are its body's.
    ///
    /// # Errors
    /// A call without a response, columns of other lengths than the response, ids that differ, and
    /// log-probabilities that are none, if they are errors.
    pub fn add(
        &mut self,
        json: &Json,
        body: usize,
        index: usize,
        call: &mut Frame,
        shared: Option<&Frame>,
    ) -> Result<()> {
        let wrong = |reason: String| Error::Body(format!("{} {reason}", json.name_of_call(index)));
        let shared_prompts = shared.map(|shared| &shared.prompts);
        let mut prompts = [Some(&call.prompts), shared_prompts].into_iter().flatten();
        let prompts = prompts.find(|ids| ids.are_given);
        let ids = [&call.responses, &call.logprob_ids, &call.logprob_tokens];
        let Some(response) = ids.into_iter().find(|ids| ids.are_given) else {
            return Err(json.wrong(&format!(
                "there are no token ids of a response in {}",
                json.beginning()
            )));
        };
        let response = &response.values;
        for ids in [&call.logprob_ids, &call.logprob_tokens] {
            if !ids.are_given || std::ptr::eq(&raw const ids.values, response) {
                continue;
            }
            let mut pairs = ids.values.iter().zip(response).enumerate();
            if let Some((at, (found, expected))) = pairs.find(|(_, (found, id))| found != id) {
                return Err(wrong(format!(
                    "has log-probabilities of other tokens than its response: token {at} is \
                     {found}, but {expected} in the response"
                )));
            }
        }
        let count = response.len();
        if call.loss_mask.are_given && call.loss_mask.values.len() != count {
            let found = call.loss_mask.values.len();
            return Err(wrong(format!(
                "has a loss mask of {found} items, but its response has {count} tokens"
            )));
        }
        let logprobs = call.logprobs.are_given.then_some(&call.logprobs.values[..]);
        self.logprobs
            .add(logprobs, count, || json.name_of_call(index))?;
        self.have_masks |= call.loss_mask.are_given;
        if self.have_masks {
            self.loss_mask.resize(self.responses.values.len(), 1);
            self.loss_mask.extend_from_slice(&call.loss_mask.values);
        }
        self.have_prompts.push(prompts.is_some());
        self.prompts
            .push(prompts.map_or(&[], |ids| &ids.values[..]));
        self.responses.push(response);
        self.bodies.push(body);
        self.indices.push(index);
        for (column, rows) in self.kept.iter_mut().enumerate() {
            let shared = shared.map_or(&[][..], |shared| &shared.kept[column]);
            let spans = match call.kept[column].is_empty() {
                true => shared,
                false => &call.kept[column],
            };
            rows.push_joined(json.data, spans);
        }
        self.routes.push(call.routes.take());
        Ok(())
    }
}
