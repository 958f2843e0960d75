//! Calls: the columns that bodies give.

use std::borrow::Cow;
use std::ops::Range;

use super::call::Call;
use super::frame::{Frame, State, call_of};
use super::json::Json;
use super::logprobs::{BadLogprobs, KINDS};
use super::schema::Column;
use crate::error::{Error, Result};
use crate::memory::{add, check_room_of, extend, few, filled, gathered, reserve, resize};

/// Rows of different lengths.
#[derive(Debug, Default)]
pub struct Rows<T> {
    /// The values of all rows.
    pub values: Vec<T>,
    /// The end of each row.
    pub ends: Vec<usize>,
}

impl<T: Copy> Rows<T> {
    /// Add a row.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn push(&mut self, row: &[T]) -> Result<()> {
        extend(&mut self.values, row)?;
        add(&mut self.ends, self.values.len())
    }

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
#[derive(Debug, Default)]
pub struct Calls {
    policy: BadLogprobs,
    /// True for nodes.
    pub are_nodes: bool,
    /// Token ids of prompts; empty where a body has none.
    pub prompts: Rows<i32>,
    /// True for calls whose body has a prompt.
    pub have_prompts: Vec<bool>,
    /// Token ids of responses.
    pub responses: Rows<i32>,
    /// Attention masks of responses with their padding; empty where a call has none.
    pub attention: Rows<f32>,
    /// Log-probabilities of response tokens; NaN where there is none.
    pub logprobs: Vec<f32>,
    /// The number of log-probabilities that each call has.
    given: Vec<Option<usize>>,
    /// The number of those that are none in each call, by kind.
    pub bad: Vec<[usize; KINDS]>,
    /// One per response token; 1 where a call has none. As long as the last call that has one.
    pub loss_mask: Vec<f32>,
    /// True if any call has a loss mask.
    pub have_masks: bool,
    /// True if a column of any call tells its prompt from its response.
    are_split: bool,
    /// The first sequence that trains, of which no column does.
    pub whole: Option<Place>,
    /// Number of bodies.
    pub num_bodies: usize,
    /// The place of each call.
    pub places: Vec<Place>,
    /// Columns of JSON; empty where a call has none.
    pub kept: Vec<Rows<u8>>,
}

impl Calls {
    /// No calls, with so many columns of JSON. The log-probabilities of nodes are checked when
    /// rows are made of them.
    pub fn new(policy: BadLogprobs, are_nodes: bool, kept: usize) -> Self {
        Self { policy, are_nodes, kept: few((0..kept).map(|_| Rows::default())), ..Self::default() }
    }

    /// True if any call has log-probabilities.
    pub fn have_logprobs(&self) -> bool {
        self.given.iter().any(Option::is_some)
    }

    /// Add the call of the frames that hold its values, the nearest first.
    ///
    /// # Errors
    /// As [`Calls::add`].
    pub(super) fn add_read<'f>(
        &mut self,
        json: &Json,
        frames: impl Iterator<Item = &'f Frame> + Clone,
        place: Place,
    ) -> Result<()> {
        let call = call_of(frames.clone());
        if !call.has_response() {
            let beginning = json.beginning();
            let has = |text: &str| beginning.contains(text);
            let is_refused = (has("\"error\"") || has("\"detail\"")) && !has("null");
            let advice = match is_refused {
                true => "the server refused the request: pass bodies of successful responses",
                false => {
                    "ask the server for them, such as by return_token_ids, or pass a schema with \
                     their path as responses"
                }
            };
            let found = format!("there are no token ids of a response in {beginning}; {advice}");
            return Err(json.wrong(&found));
        }
        self.add(&call, place, |place| json.name_of_call(place.index))?;
        for (column, rows) in self.kept.iter_mut().enumerate() {
            let states = frames.clone().map(|frame| &frame.kept[column]);
            let best =
                states.reduce(|best, next| if next.state > best.state { next } else { best });
            let text: Cow<[u8]> = match best.map(|values| (values.state, &values.values[..])) {
                Some((State::Null, _)) => b"null"[..].into(),
                None | Some((_, [])) => Cow::default(),
                Some((_, [span])) => json.data[span.clone()].into(),
                Some((_, spans)) => {
                    // Several spans are arrays, which are joined.
                    check_room_of::<u8>(3 * json.data.len())?;
                    let items = spans.iter().map(|span| &json.data[span.start + 1..span.end - 1]);
                    let items = items.filter(|items| !items.trim_ascii().is_empty());
                    let items = gathered(items)?;
                    [b"[", &items.join(&b',')[..], b"]"].concat().into()
                }
            };
            rows.push(&text)?;
        }
        Ok(())
    }

    /// Add a call; `name` is that of a call.
    ///
    /// # Errors
    /// A call without a response, columns of other lengths than the response, ids that differ, and
    /// masks that are not weights.
    pub fn add(&mut self, call: &Call, place: Place, name: impl Fn(Place) -> String) -> Result<()> {
        let wrong = |reason: String| Error::Body(format!("{} {reason}", name(place)));
        call.check().map_err(wrong)?;
        // Columns of these are copies.
        let copies = [Column::AttentionMask, Column::Targets, Column::LossMask];
        if copies.iter().any(|&column| call.columns[column as usize].is_some()) {
            let lens = call.columns.iter().flatten().map(|values| values.len());
            check_room_of::<f32>(2 * lens.sum::<usize>())?;
        }
        let tokens = call.tokens().map_err(wrong)?;
        let count = tokens.response.len();
        // A prompt counts once for each of its samples.
        let prompt = tokens.prompt.as_deref().unwrap_or(&[]);
        reserve(&mut self.prompts.values, prompt.len())?;
        reserve(&mut self.responses.values, count)?;
        let given = call.numbers(Column::Logprobs);
        // Messages that were not sampled have none, or an empty row.
        let given = given.filter(|values| !(self.are_nodes && values.is_empty()));
        let mask = call.numbers(Column::LossMask);
        let mask = mask.map(|mask| tokens.along(mask, None, "loss mask"));
        let mut mask = mask.transpose().map_err(wrong)?;
        if mask.is_none() && self.are_nodes && call.ids(Column::Prompts).is_none() {
            mask = Some(Cow::Owned(filled(count, |_| f32::from(given.is_some()))?));
        }
        if !call.trains() {
            mask = Some(Cow::Owned(filled(count, |_| 0.0)?));
        }
        let start = self.responses.values.len();
        reserve(&mut self.logprobs, count)?;
        let mut found = None;
        if let Some(given) = given {
            let along = match tokens.along(given, mask.as_deref(), "log-probabilities") {
                // Missing ones are those at the end.
                Err(_) if given.len() < count && !self.are_nodes => Cow::Borrowed(given),
                along => along.map_err(wrong)?,
            };
            self.logprobs.extend_from_slice(&along);
            found = Some(along.len());
        }
        resize(&mut self.logprobs, start + count, f32::NAN)?;
        if !call.is_whole() {
            self.are_split = true;
        } else if mask.is_none() && self.whole.is_none() {
            self.whole = Some(place);
        }
        if let Some(mask) = mask {
            self.have_masks = true;
            resize(&mut self.loss_mask, start, 1.0)?;
            extend(&mut self.loss_mask, &mask)?;
        }
        add(&mut self.given, found)?;
        add(&mut self.have_prompts, tokens.prompt.is_some())?;
        self.prompts.push(prompt)?;
        self.responses.push(&tokens.response)?;
        self.attention.push(tokens.attention())?;
        add(&mut self.places, place)
    }

    /// Treat the log-probabilities of all calls; `name` is that of a call.
    ///
    /// # Errors
    /// Those that are none, if these are errors; a sequence that would train its prompt.
    pub fn finish(&mut self, name: impl Fn(Place) -> String) -> Result<()> {
        if let (Some(place), true) = (self.whole, self.are_split) {
            return Err(Error::Body(format!(
                "{} has neither the length of its prompt nor a loss mask, but other calls have, so \
                 all of its tokens would train; write one of them",
                name(place)
            )));
        }
        let is_masked = self.policy == BadLogprobs::Mask && self.have_logprobs();
        self.have_masks |= self.are_nodes || is_masked; // data does not choose the columns
        if self.have_masks {
            resize(&mut self.loss_mask, self.responses.values.len(), 1.0)?;
        }
        resize(&mut self.bad, self.places.len(), [0; KINDS])?;
        if self.are_nodes || !self.have_logprobs() {
            return Ok(());
        }
        for (call, place) in self.places.iter().enumerate() {
            let span = self.responses.span(call);
            let values = &mut self.logprobs[span.clone()];
            let (count, given) = (values.len(), self.given[call]);
            let mask = self.loss_mask.get_mut(span);
            let bad = &mut self.bad[call];
            if let Err(at) = self.policy.settle(values, given.unwrap_or(0), mask, bad) {
                let reason = match given {
                    None => "no log-probabilities, but other calls have".to_owned(),
                    Some(found) if at == found => {
                        format!("only {at} log-probabilities for {count} response tokens")
                    }
                    Some(_) => {
                        let value = values[at];
                        format!("the invalid log-probability {value} at response token {at}")
                    }
                };
                return Err(Error::BadLogprob(format!("{} has {reason}", name(*place))));
            }
        }
        Ok(())
    }
}
