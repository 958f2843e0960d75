//! Log-probabilities of calls: one rule for those that are none.

use crate::error::{Error, Result};
use crate::memory::{add, reserve};

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

/// Kinds of log-probabilities that are none, as they are counted: NaN or null, infinite, -9999 or
/// less, and missing.
pub const KINDS: usize = 4;

/// The number that vLLM writes for a missing log-probability.
const MISSING: f32 = -9999.0;

/// Log-probabilities of all calls, one per response token.
#[derive(Debug)]
pub struct Logprobs {
    policy: BadLogprobs,
    /// The values; NaN where a call has none.
    pub values: Vec<f32>,
    /// True for calls with log-probabilities.
    pub are_given: Vec<bool>,
    /// Positions in `values` of those that are none.
    pub bad: Vec<usize>,
    /// Their number in each call, by kind.
    pub counts: Vec<[usize; KINDS]>,
    /// The end of each call.
    ends: Vec<usize>,
}

impl Logprobs {
    /// No calls yet.
    pub fn new(policy: BadLogprobs) -> Self {
        Self {
            policy,
            values: Vec::new(),
            are_given: Vec::new(),
            bad: Vec::new(),
            counts: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Add the log-probabilities of a call of `count` response tokens, if it has any. Tokens at 0
    /// of the mask may have none, which are written as 0.
    ///
    /// # Errors
    /// More than there are tokens; those that are none, if they are errors. `name` is the call's.
    pub fn add(
        &mut self,
        given: Option<&[f32]>,
        count: usize,
        mask: Option<&[f32]>,
        name: impl Fn() -> String,
    ) -> Result<()> {
        let start = self.values.len();
        let found = given.unwrap_or(&[]);
        if found.len() > count {
            let len = found.len();
            return Err(Error::Body(format!(
                "{} has {len} log-probabilities, but its response has {count} tokens",
                name()
            )));
        }
        reserve(&mut self.values, count)?;
        self.values.extend_from_slice(found);
        self.values.resize(start + count, f32::NAN);
        add(&mut self.ends, start + count)?;
        add(&mut self.are_given, given.is_some())?;
        add(&mut self.counts, [0; KINDS])?;
        if given.is_some() {
            let call = self.ends.len() - 1;
            if let Some(at) = self.settle(call, start, found.len(), mask)? {
                let reason = match found.get(at) {
                    None => format!("has only {at} log-probabilities for {count} response tokens"),
                    Some(value) => format!(
                        "has the log-probability {value} at response token {at}, which is none"
                    ),
                };
                return Err(Error::BadLogprob(format!("{} {reason}", name())));
            }
        }
        Ok(())
    }

    /// Treat those of a call, of which `found` were given; returns the first that is an error.
    fn settle(
        &mut self,
        call: usize,
        start: usize,
        found: usize,
        mask: Option<&[f32]>,
    ) -> Result<Option<usize>> {
        let end = self.ends[call];
        for (at, value) in self.values[start..end].iter_mut().enumerate() {
            if value.is_finite() && *value > MISSING {
                continue;
            }
            if mask.is_some_and(|mask| mask[at] == 0.0) {
                *value = 0.0;
                continue;
            }
            if self.policy == BadLogprobs::Error {
                return Ok(Some(at));
            }
            let kind = match () {
                () if at >= found => 3,
                () if value.is_nan() => 0,
                () if value.is_infinite() => 1,
                () => 2,
            };
            self.counts[call][kind] += 1;
            if self.policy == BadLogprobs::Mask {
                *value = 0.0;
            }
            add(&mut self.bad, start + at)?;
        }
        Ok(None)
    }

    /// Treat calls without log-probabilities, if others have them. `mask` is that of all calls, if
    /// any has one, and `name` a call's.
    ///
    /// # Errors
    /// Such a call, if these are errors.
    pub fn finish(&mut self, mask: Option<&[f32]>, name: impl Fn(usize) -> String) -> Result<()> {
        if !self.are_given.contains(&true) {
            return Ok(());
        }
        for call in 0..self.ends.len() {
            let start = call.checked_sub(1).map_or(0, |last| self.ends[last]);
            let mask = mask.map(|mask| &mask[start..self.ends[call]]);
            if !self.are_given[call] && self.settle(call, start, 0, mask)?.is_some() {
                let reason = "has no log-probabilities, but other calls have";
                return Err(Error::BadLogprob(format!("{} {reason}", name(call))));
            }
        }
        self.bad.sort_unstable();
        Ok(())
    }
}
