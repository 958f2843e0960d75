//! Calls: the columns that bodies give.

use super::json::Json;
use super::logprobs::{BadLogprobs, Logprobs};
use super::reader::{Frame, Values};
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
        call: &Frame,
        shared: &Frame,
    ) -> Result<()> {
        let wrong = |reason: String| Error::Body(format!("{} {reason}", json.name_of_call(index)));
        let prompts = given(&call.prompts, &shared.prompts);
        let ids = [&call.responses, &call.logprob_ids, &call.logprob_tokens];
        let Some(response) = ids.into_iter().find(|ids| ids.are_given) else {
            return Err(json.wrong("there are no token ids of a response"));
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
        match call.loss_mask.are_given {
            true => self.loss_mask.extend_from_slice(&call.loss_mask.values),
            false => self.loss_mask.resize(self.loss_mask.len() + count, 1),
        }
        self.have_masks |= call.loss_mask.are_given;
        self.have_prompts.push(prompts.is_some());
        self.prompts.push(prompts.unwrap_or(&[]));
        self.responses.push(response);
        self.bodies.push(body);
        self.indices.push(index);
        for (column, rows) in self.kept.iter_mut().enumerate() {
            let span = call.kept[column].clone().or(shared.kept[column].clone());
            rows.push(&json.data[span.unwrap_or(0..0)]);
        }
        Ok(())
    }
}

fn given<'a>(call: &'a Values<i32>, shared: &'a Values<i32>) -> Option<&'a [i32]> {
    let found = [call, shared].into_iter().find(|ids| ids.are_given)?;
    Some(&found.values)
}
