//! Streams of server-sent events: a response in parts, one JSON text per event.

use std::collections::BTreeMap;
use std::ops::Range;

use super::frame::{Frame, State};
use super::json::{Json, text_start};
use super::schema::{Ids, Kept, Numbers, Schema};
use crate::error::Result;

/// The calls of a stream so far, by index, and what its events give for all of them.
#[derive(Debug)]
pub struct Stream {
    pub calls: BTreeMap<i32, Frame>,
    pub shared: Frame,
}

/// The events of a stream.
#[derive(Debug)]
pub struct Events {
    /// Spans of their JSON.
    pub spans: Vec<Range<usize>>,
    /// True if the stream ends before its end was announced.
    pub is_cut: bool,
}

/// Columns with a value per response token.
const IDS: [Ids; 3] = [Ids::Responses, Ids::LogprobIds, Ids::LogprobTokens];
const NUMBERS: [Numbers; 2] = [Numbers::Logprobs, Numbers::LossMask];

/// The fields that a line of a stream may begin with.
const FIELDS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];

/// The bytes that end lines.
const ENDS: &[u8; 2] = b"\n\r";

/// The data of the event that ends a stream.
const DONE: &[u8] = b"[DONE]";

/// True for the bytes of a stream, which are not JSON.
pub fn is_stream(body: &[u8]) -> bool {
    let body = body[text_start(body)..].trim_ascii_start();
    FIELDS.iter().any(|field| body.starts_with(field))
}

/// Find the events of a stream. Lines end with LF, CR or both; a last line without an end is not
/// complete, and left out.
///
/// # Errors
/// Events after the end.
pub fn events(json: &Json) -> Result<Events> {
    let mut spans = Vec::new();
    let (mut is_cut, mut at) = (true, text_start(json.data));
    for line in json.data[at..].split_inclusive(|byte| ENDS.contains(byte)) {
        let start = at;
        at += line.len();
        let Some(data) = line.strip_prefix(b"data:") else {
            continue;
        };
        if data.trim_ascii() == DONE {
            is_cut = false;
        } else if !is_cut {
            return Err(json.wrong_at(
                start,
                "the stream goes on after its end; pass each by itself",
            ));
        } else if line.ends_with(&ENDS[..1]) || line.ends_with(&ENDS[1..]) {
            spans.push(at - data.len()..at);
        }
    }
    Ok(Events { spans, is_cut })
}

impl Stream {
    /// A stream without events.
    pub fn new(schema: &Schema) -> Self {
        Self {
            calls: BTreeMap::new(),
            shared: Frame::new(schema),
        }
    }

    /// Add an event's values, to those of its calls, or of all.
    ///
    /// # Errors
    /// Tokens that do not continue those before, and other prompts.
    pub fn add(
        &mut self,
        json: &Json,
        schema: &Schema,
        event: &mut Frame,
        calls: Vec<&mut Frame>,
    ) -> Result<()> {
        let has_calls = !calls.is_empty();
        for (number, call) in (0..).zip(calls) {
            self.add_call(json, schema, call, number)?;
        }
        if !has_calls && event.ids(Ids::Responses).state == State::Given {
            self.add_call(json, schema, event, 0)
        } else {
            self.shared.append(json, event, schema)
        }
    }

    fn add_call(
        &mut self,
        json: &Json,
        schema: &Schema,
        part: &mut Frame,
        number: i32,
    ) -> Result<()> {
        let index = part.index.unwrap_or(number);
        let call = self.calls.entry(index);
        let call = call.or_insert_with(|| Frame::new(schema));
        let responses = part.ids(Ids::Responses);
        let (found, is_given) = (responses.values.len(), responses.state == State::Given);
        if let (Some(total), true) = (part.total, is_given) {
            let before = call.ids(Ids::Responses).values.len();
            if !call.continue_to(usize::try_from(total).unwrap_or(0), part, schema) {
                return Err(json.wrong(&format!(
                    "call {index} has {before} tokens, and {found} more in the next event, but \
                     {total} then"
                )));
            }
        }
        call.append(json, part, schema)
    }
}

impl Frame {
    /// Prepare for a part after which there are `total` tokens: all of them again, or the next
    /// ones, which an abort repeats the last of. False if it is neither.
    fn continue_to(&mut self, total: usize, part: &mut Frame, schema: &Schema) -> bool {
        let found = part.ids(Ids::Responses).values.len();
        if found == total {
            for column in IDS {
                self.ids(column).values.clear();
            }
            for column in NUMBERS {
                self.numbers(column).values.clear();
            }
            for (values, kept) in self.kept.iter_mut().zip(&schema.kept) {
                if *kept == Kept::Parts {
                    values.values.clear();
                }
            }
            return true;
        }
        let known = &self.ids(Ids::Responses).values;
        let Some(new) = total.checked_sub(known.len()).filter(|&new| new <= found) else {
            return false;
        };
        let (new_ids, again) = part.ids(Ids::Responses).values.split_at(new);
        // The last ones of those before and the new ones; no call is copied for an event.
        let end = known.iter().chain(new_ids).rev();
        let is_repeated = again.len() <= total && again.iter().rev().zip(end).all(|(a, b)| a == b);
        for column in IDS {
            part.ids(column).values.truncate(new);
        }
        for column in NUMBERS {
            part.numbers(column).values.truncate(new);
        }
        is_repeated
    }

    /// Log-probabilities begin at the tokens of their event, if events before have none.
    fn pad_logprobs(&mut self) {
        let count = self.ids(Ids::Responses).values.len();
        let logprobs = &mut self.numbers(Numbers::Logprobs).values;
        if logprobs.len() >= count {
            return;
        }
        logprobs.resize(count, f32::NAN);
        for column in [Ids::LogprobIds, Ids::LogprobTokens] {
            let known = self.ids(column).values.len();
            let ids = self.ids(Ids::Responses).values.get(known..);
            let missing = ids.unwrap_or(&[]).to_vec();
            self.ids(column).values.extend(missing);
        }
    }

    /// Move the values of a part to the end.
    fn append(&mut self, json: &Json, part: &mut Frame, schema: &Schema) -> Result<()> {
        if !part.numbers(Numbers::Logprobs).values.is_empty() {
            self.pad_logprobs();
        }
        let (known, new) = (
            self.ids(Ids::Prompts).given(),
            part.ids(Ids::Prompts).given(),
        );
        if known.is_some() && new.is_some() && known != new {
            return Err(json.wrong("events of one call have different prompts"));
        }
        self.ids(Ids::Prompts).replace(part.ids(Ids::Prompts));
        for column in IDS {
            self.ids(column).append(part.ids(column));
        }
        for column in NUMBERS {
            self.numbers(column).append(part.numbers(column));
        }
        for ((own, more), kept) in self.kept.iter_mut().zip(&mut part.kept).zip(&schema.kept) {
            match kept {
                Kept::Parts => own.append(more),
                Kept::Value | Kept::Reason => own.replace(more),
            }
        }
        if !part.of_calls.is_empty() {
            self.of_calls = std::mem::take(&mut part.of_calls);
        }
        self.routes.replace(&mut part.routes);
        Ok(())
    }
}
