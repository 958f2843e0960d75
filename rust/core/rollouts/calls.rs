//! Calls: the columns that bodies give.

use super::json::Json;
use super::reader::{Frame, Values};
use crate::error::{Error, Result};

/// What happens to log-probabilities that are none: not finite, missing, or -9999, which vLLM
/// writes for a missing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadLogprobs {
    /// They are errors.
    Error,
    /// They become 0, and their tokens do not train.
    Mask,
    /// They stay as they are; missing ones are NaN.
    Keep,
}

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
    policy: BadLogprobs,
    /// Token ids of prompts; empty where a body has none.
    pub prompts: Rows<i32>,
    /// True for calls whose body has a prompt.
    pub have_prompts: Vec<bool>,
    /// Token ids of responses.
    pub responses: Rows<i32>,
    /// One per response token; NaN where a call has none.
    pub logprobs: Vec<f32>,
    /// True for calls with log-probabilities.
    pub have_logprobs: Vec<bool>,
    /// One per response token; 1 where a call has none.
    pub loss_mask: Vec<i32>,
    /// True if any call has a loss mask.
    pub have_masks: bool,
    /// Positions among all response tokens of log-probabilities that are none.
    pub bad: Vec<usize>,
    /// The body of each call.
    pub bodies: Vec<usize>,
    /// The number of each call in its body.
    pub indices: Vec<usize>,
    /// Columns of JSON; empty where a call has none.
    pub kept: Vec<Rows<u8>>,
}

/// The number that vLLM writes for a missing log-probability.
const MISSING: f32 = -9999.0;

impl Calls {
    /// No calls, with so many columns of JSON.
    pub fn new(policy: BadLogprobs, kept: usize) -> Self {
        Self {
            policy,
            prompts: Rows::new(),
            have_prompts: Vec::new(),
            responses: Rows::new(),
            logprobs: Vec::new(),
            have_logprobs: Vec::new(),
            loss_mask: Vec::new(),
            have_masks: false,
            bad: Vec::new(),
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
        let wrong = |reason: String| json.wrong(&format!("call {index} {reason}"));
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
        if call.logprobs.values.len() > count {
            let found = call.logprobs.values.len();
            return Err(wrong(format!(
                "has {found} log-probabilities, but its response has {count} tokens"
            )));
        }
        if call.loss_mask.are_given && call.loss_mask.values.len() != count {
            let found = call.loss_mask.values.len();
            return Err(wrong(format!(
                "has a loss mask of {found} items, but its response has {count} tokens"
            )));
        }
        if call.logprobs.are_given {
            self.add_logprobs(&call.logprobs.values, count)
                .map_err(|(at, found)| {
                    wrong(match found {
                        None => {
                            format!("has only {at} log-probabilities for {count} response tokens")
                        }
                        Some(value) => format!(
                            "has the log-probability {value} at response token {at}, which is none"
                        ),
                    })
                })?;
        } else {
            self.logprobs.resize(self.logprobs.len() + count, f32::NAN);
        }
        self.have_logprobs.push(call.logprobs.are_given);
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

    /// Add a call's log-probabilities; an error gives the position and value of the first that is
    /// none.
    fn add_logprobs(&mut self, values: &[f32], count: usize) -> Result<(), (usize, Option<f32>)> {
        let start = self.logprobs.len();
        self.logprobs.extend_from_slice(values);
        self.logprobs.resize(start + count, f32::NAN);
        for (at, value) in self.logprobs[start..].iter_mut().enumerate() {
            if value.is_finite() && *value > MISSING {
                continue;
            }
            match self.policy {
                BadLogprobs::Error => return Err((at, values.get(at).copied())),
                BadLogprobs::Mask => *value = 0.0,
                BadLogprobs::Keep => {}
            }
            self.bad.push(start + at);
        }
        Ok(())
    }

    /// Check calls without log-probabilities, if others have them.
    ///
    /// # Errors
    /// Such a call, if these are errors.
    pub fn finish(&mut self) -> Result<()> {
        let Some(with) = self.have_logprobs.iter().position(|&have| have) else {
            return Ok(());
        };
        for call in 0..self.have_logprobs.len() {
            let start = call
                .checked_sub(1)
                .map_or(0, |last| self.responses.ends[last]);
            let span = start..self.responses.ends[call];
            if self.have_logprobs[call] || span.is_empty() {
                continue;
            }
            match self.policy {
                BadLogprobs::Error => {
                    return Err(Error::Body(format!(
                        "call {call} has no log-probabilities, but call {with} has"
                    )));
                }
                BadLogprobs::Mask => self.logprobs[span.clone()].fill(0.0),
                BadLogprobs::Keep => {}
            }
            self.bad.extend(span);
        }
        self.bad.sort_unstable();
        Ok(())
    }
}

fn given<'a>(call: &'a Values<i32>, shared: &'a Values<i32>) -> Option<&'a [i32]> {
    let found = [call, shared].into_iter().find(|ids| ids.are_given)?;
    Some(&found.values)
}
