//! Streams of server-sent events: a response in parts, one JSON text per event.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;
use std::ops::Range;

use jiter::Jiter;

use super::frame::{Frame, MISSING, State};
use super::json::{Json, text_start};
use super::schema::{Column, Kept, Schema};
use crate::error::Result;
use crate::memory::{add, check_room, check_room_of, extend, gathered, resize};

/// The calls of a stream so far, by index, and what its events give for all of them.
pub struct Stream<'s> {
    schema: &'s Schema,
    calls: BTreeMap<i32, Frame>,
    shared: Frame,
}

/// The events of a stream.
pub struct Events<'a> {
    /// The stream; where an event has several lines, spaces in place of what is between their data.
    pub text: Cow<'a, [u8]>,
    /// Spans of their JSON.
    pub spans: Vec<Range<usize>>,
    /// True if the stream ends before its end was announced.
    pub is_cut: bool,
}

/// Columns with a value per response token.
const PER_TOKEN: [Column; 5] = [
    Column::Responses,
    Column::LogprobIds,
    Column::LogprobTokens,
    Column::Logprobs,
    Column::LossMask,
];

/// The fields that a line of a stream may begin with.
const FIELDS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];

/// The data of the event that ends a stream.
const DONE: &[u8] = b"[DONE]";

/// True for the bytes of a stream, which are not JSON.
pub fn is_stream(body: &[u8]) -> bool {
    let body = body[text_start(body)..].trim_ascii_start();
    FIELDS.iter().any(|field| body.starts_with(field))
}

impl<'a> Events<'a> {
    /// The events of a stream. Lines end with LF, CR or both; a last line without an end is not
    /// complete, and left out. Lines of data that follow each other are one event, if the first
    /// are not JSON by themselves.
    ///
    /// # Errors
    /// Events after the end.
    pub fn of(json: &Json<'a, '_>) -> Result<Self> {
        let mut text = Cow::Borrowed(json.data);
        let mut spans: Vec<Range<usize>> = Vec::new();
        let (mut is_cut, mut is_open, mut at) = (true, false, text_start(json.data));
        for line in json.data[at..].split_inclusive(|byte| b"\n\r".contains(byte)) {
            let start = at;
            at += line.len();
            let Some(data) = line.strip_prefix(b"data:") else {
                // The LF of a line that ends with CR and LF is not a line.
                let is_end = line == b"\n" && start > 0 && json.data[start - 1] == b'\r';
                is_open &= is_end || !line.trim_ascii().is_empty();
                continue;
            };
            if data.trim_ascii() == DONE {
                is_cut = false;
            } else if !is_cut {
                let reason = "the stream goes on after its end; pass each by itself";
                return Err(json.wrong_at(start, reason));
            } else if line.ends_with(b"\n") || line.ends_with(b"\r") {
                let data = at - data.len()..at;
                match spans.last_mut() {
                    Some(last) if is_open && !is_json(&text[last.clone()]) => {
                        if let Cow::Borrowed(text) = text {
                            check_room_of::<u8>(text.len())?;
                        }
                        text.to_mut()[last.end..data.start].fill(b' ');
                        last.end = data.end;
                    }
                    _ => add(&mut spans, data)?,
                }
                is_open = true;
            }
        }
        Ok(Self { text, spans, is_cut })
    }
}

fn is_json(text: &[u8]) -> bool {
    let mut parser = Jiter::new(text).with_allow_inf_nan();
    parser.next_skip().and_then(|()| parser.finish()).is_ok()
}

impl<'s> Stream<'s> {
    /// A stream without events.
    pub fn new(schema: &'s Schema) -> Self {
        Self { schema, calls: BTreeMap::new(), shared: Frame::new(schema) }
    }

    /// Add the values of an event, to those of its calls, or of all: `frames` are the event's and
    /// those in it.
    ///
    /// # Errors
    /// Tokens that do not continue those before, and other prompts.
    pub fn add(&mut self, json: &Json, frames: &mut [Frame]) -> Result<()> {
        let mut has_calls = false;
        let calls = frames.iter_mut().filter(|frame| frame.is_call());
        for (number, call) in (0..).zip(calls) {
            has_calls = true;
            self.add_call(json, call, number)?;
        }
        let event = &mut frames[0];
        if !has_calls && event.column(Column::Responses).state == State::Given {
            return self.add_call(json, event, 0);
        }
        append(&mut self.shared, json, event, self.schema)
    }

    fn add_call(&mut self, json: &Json, part: &mut Frame, number: i32) -> Result<()> {
        let index = part.number(Column::Index).unwrap_or(number);
        let call = match self.calls.entry(index) {
            Entry::Occupied(call) => call.into_mut(),
            Entry::Vacant(place) => {
                check_room(1)?;
                place.insert(Frame::new(self.schema))
            }
        };
        let responses = part.column(Column::Responses);
        let (found, is_given) = (responses.values.len(), responses.state == State::Given);
        if let (Some(total), true) = (part.number(Column::Total), is_given) {
            let before = call.column(Column::Responses).values.len();
            if !continue_to(call, usize::try_from(total).unwrap_or(0), part, self.schema) {
                return Err(json.wrong(&format!(
                    "call {index} has {before} tokens, and {found} more in the next event, but \
                     {total} then"
                )));
            }
        }
        append(call, json, part, self.schema)
    }

    /// The calls, by index, and what they share. A stream that ended without its end has no reason of the end.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn finish(mut self, is_cut: bool) -> Result<(Vec<Frame>, Frame)> {
        if self.calls.is_empty() {
            self.calls.insert(0, Frame::new(self.schema));
        }
        for call in self.calls.values_mut() {
            call.cut(self.schema, is_cut);
        }
        Ok((gathered(self.calls.into_values())?, self.shared))
    }
}

/// Prepare a call for a part after which there are `total` tokens: all of them again, or the next
/// ones, which an abort repeats the last of. False if it is neither.
fn continue_to(call: &mut Frame, total: usize, part: &mut Frame, schema: &Schema) -> bool {
    let found = part.column(Column::Responses).values.len();
    if found == total {
        for column in PER_TOKEN {
            call.column(column).values.clear();
        }
        for (values, kept) in call.kept.iter_mut().zip(&schema.kept) {
            if *kept == Kept::Parts {
                values.values.clear();
            }
        }
        return true;
    }
    let known = &call.column(Column::Responses).values;
    let Some(new) = total.checked_sub(known.len()).filter(|&new| new <= found) else {
        return false;
    };
    let (new_ids, again) = part.column(Column::Responses).values.split_at(new);
    // The last ones of those before and the new ones; no call is copied for an event.
    let end = known.iter().chain(new_ids).rev();
    let is_repeated = again.len() <= total && again.iter().rev().zip(end).all(|(a, b)| a == b);
    for column in PER_TOKEN {
        part.column(column).values.truncate(new);
    }
    is_repeated
}

/// Move the values of a part to the end of a call's.
fn append(call: &mut Frame, json: &Json, part: &mut Frame, schema: &Schema) -> Result<()> {
    if !part.column(Column::Logprobs).values.is_empty() {
        pad_logprobs(call)?;
    }
    let prompts = part.column(Column::Prompts);
    let known = call.column(Column::Prompts);
    if let (Some(known), Some(new)) = (known.given(), prompts.given())
        && known != new
    {
        return Err(json.wrong("events of one call have different prompts"));
    }
    known.replace(prompts);
    for column in PER_TOKEN {
        call.column(column).append(part.column(column))?;
    }
    for ((own, more), kept) in call.kept.iter_mut().zip(&mut part.kept).zip(&schema.kept) {
        match kept {
            Kept::Parts => own.append(more)?,
            Kept::Value | Kept::Reason => own.replace(more),
        }
    }
    Ok(())
}

/// Log-probabilities begin at the tokens of their event, if events before have none.
fn pad_logprobs(call: &mut Frame) -> Result<()> {
    let count = call.column(Column::Responses).values.len();
    let logprobs = &mut call.column(Column::Logprobs).values;
    if logprobs.len() >= count {
        return Ok(());
    }
    resize(logprobs, count, MISSING)?;
    let ids = mem::take(&mut call.column(Column::Responses).values);
    for column in [Column::LogprobIds, Column::LogprobTokens] {
        let known = &mut call.column(column).values;
        extend(known, ids.get(known.len()..).unwrap_or(&[]))?;
    }
    call.column(Column::Responses).values = ids;
    Ok(())
}
