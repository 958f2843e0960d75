//! Reading bodies by a schema.

use std::mem;
use std::ops::Range;

use jiter::{NumberInt, Peek};

use super::base64::decode;
use super::calls::Calls;
use super::items::{Found, Shapes, Slot, token_of};
use super::json::Json;
use super::numbers;
use super::schema::{Role, Schema};
use super::stream::{Stream, events, is_stream};
use crate::error::Result;
use crate::polling::Ticks;

/// Values of one column.
#[derive(Debug, Default)]
pub struct Values<T> {
    pub values: Vec<T>,
    pub are_given: bool,
}

/// The values of a call, or those that a body gives for all of its calls.
#[derive(Debug, Default)]
pub struct Frame {
    pub prompts: Values<i32>,
    pub responses: Values<i32>,
    pub logprobs: Values<f32>,
    pub logprob_ids: Values<i32>,
    pub logprob_tokens: Values<i32>,
    pub loss_mask: Values<i32>,
    /// Spans of the body: none or one; several of a stream whose arrays are joined.
    pub kept: Vec<Vec<Range<usize>>>,
    /// Bytes of routed experts.
    pub routes: Option<Vec<u8>>,
    /// Responses of the body's calls, outside of these.
    pub of_calls: Vec<Values<i32>>,
    /// The call's index, and its tokens so far, in an event of a stream.
    pub index: Option<i32>,
    pub total: Option<i32>,
}

/// Reads one body after the other.
pub struct Reader<'s> {
    schema: &'s Schema,
    /// The shapes of items, by the node of the items.
    shapes: Vec<Shapes>,
    /// The values of the body, then those of its calls; kept for their memory.
    frames: Vec<Frame>,
    /// Number of calls in the body so far.
    calls: usize,
    /// The current frame.
    current: usize,
    /// The item that is read by the parser, if its shape is to be learned.
    item: Option<Item>,
}

/// What is known of an item while the parser reads it.
#[derive(Debug, Default)]
struct Item {
    /// Positions and uses of its values.
    uses: Vec<(usize, Slot)>,
    /// True if it has a value that shapes cannot read.
    is_special: bool,
}

impl<T> Values<T> {
    fn push(&mut self, value: T) {
        self.are_given = true;
        self.values.push(value);
    }

    fn clear(&mut self) {
        self.values.clear();
        self.are_given = false;
    }

    /// Move values to the end.
    pub fn append(&mut self, more: &mut Self) {
        self.are_given |= more.are_given;
        self.values.append(&mut more.values);
    }
}

impl Frame {
    pub fn clear(&mut self, kept: usize) {
        for ids in [
            &mut self.prompts,
            &mut self.responses,
            &mut self.logprob_ids,
            &mut self.logprob_tokens,
            &mut self.loss_mask,
        ] {
            ids.clear();
        }
        self.logprobs.clear();
        self.kept.resize_with(kept, Vec::new);
        self.kept.iter_mut().for_each(Vec::clear);
        self.of_calls.clear();
        (self.routes, self.index, self.total) = (None, None, None);
    }

    /// Take the values that a body has outside of its calls, but for this call alone.
    fn take_own(&mut self, shared: &mut Self, index: usize) {
        if !self.responses.are_given
            && let Some(response) = shared.of_calls.get_mut(index)
        {
            self.responses = mem::take(response);
        }
        if index == 0 && self.routes.is_none() {
            self.routes = shared.routes.take();
        }
    }

    fn ids(&mut self, role: Role) -> &mut Values<i32> {
        match role {
            Role::Prompts => &mut self.prompts,
            Role::Responses => &mut self.responses,
            Role::LogprobIds => &mut self.logprob_ids,
            Role::LogprobTokens => &mut self.logprob_tokens,
            _ => &mut self.loss_mask,
        }
    }
}

impl<'s> Reader<'s> {
    /// A reader of bodies of this schema.
    pub fn new(schema: &'s Schema) -> Self {
        Self {
            schema,
            shapes: Vec::new(),
            frames: vec![Frame::default()],
            calls: 0,
            current: 0,
            item: None,
        }
    }

    /// Read a body, and add its calls.
    ///
    /// # Errors
    /// Invalid JSON, values of other types, and those of [`Calls::add`] and `ticks`.
    pub fn read(
        &mut self,
        json: &mut Json,
        body: usize,
        calls: &mut Calls,
        ticks: &mut Ticks,
    ) -> Result<()> {
        if is_stream(json.data) {
            return self.stream(json, body, calls, ticks);
        }
        let peek = json.peek()?;
        let is_list = peek == Peek::Array && self.schema.node(0).below_items().is_none();
        if is_list {
            let mut number = 0;
            each_item(json, ticks, |json, at, ticks| {
                json.seek(at);
                let peek = json.peek()?;
                self.body(json, peek, ticks)?;
                self.add_calls(json, body, number, calls)?;
                number += self.calls.max(1);
                Ok(json.at())
            })?;
        } else {
            self.body(json, peek, ticks)?;
            self.add_calls(json, body, 0, calls)?;
        }
        json.finish()
    }

    /// Read the values of a body.
    fn body(&mut self, json: &mut Json, peek: Peek, ticks: &mut Ticks) -> Result<()> {
        (self.calls, self.current) = (0, 0);
        self.frames[0].clear(self.schema.num_kept);
        self.value(json, 0, peek, ticks)
    }

    /// Add the calls of a body, numbered from `number` on.
    fn add_calls(
        &mut self,
        json: &Json,
        body: usize,
        number: usize,
        calls: &mut Calls,
    ) -> Result<()> {
        let (of_body, of_calls) = self.frames.split_at_mut(1);
        let shared = &mut of_body[0];
        if self.calls == 0 {
            return calls.add(json, body, number, shared, None);
        }
        for (index, frame) in of_calls[..self.calls].iter_mut().enumerate() {
            frame.take_own(shared, index);
            calls.add(json, body, number + index, frame, Some(shared))?;
        }
        Ok(())
    }

    /// Read the events of a stream, and add its calls.
    fn stream(
        &mut self,
        json: &mut Json,
        body: usize,
        calls: &mut Calls,
        ticks: &mut Ticks,
    ) -> Result<()> {
        let events = events(json)?;
        let mut stream = Stream::new(self.schema);
        for span in events.spans {
            let mut event = json.part(span);
            let peek = event.peek()?;
            self.body(&mut event, peek, ticks)?;
            event.finish()?;
            let (of_event, of_calls) = self.frames.split_at_mut(1);
            let of_calls = &mut of_calls[..self.calls];
            stream.add(json, self.schema, &mut of_event[0], of_calls)?;
        }
        let mut shared = stream.shared;
        if stream.calls.is_empty() {
            return calls.add(json, body, 0, &mut shared, None);
        }
        for (index, frame) in stream.calls.values_mut().enumerate() {
            frame.take_own(&mut shared, index);
            calls.add(json, body, index, frame, Some(&shared))?;
            if events.is_cut {
                calls.cut.push(calls.bodies.len() - 1);
            }
        }
        Ok(())
    }

    /// Read the value of a node.
    fn value(&mut self, json: &mut Json, node: usize, peek: Peek, ticks: &mut Ticks) -> Result<()> {
        let known = self.schema.node(node);
        if known.is_calls && self.current == 0 {
            self.calls += 1;
            self.current = self.calls;
            if self.frames.len() == self.current {
                self.frames.push(Frame::default());
            }
            self.frames[self.current].clear(self.schema.num_kept);
            self.value(json, node, peek, ticks)?;
            self.current = 0;
            return Ok(());
        }
        if let Some(role) = known.role {
            return self.leaf(json, role, peek, known.is_one_of_many, ticks);
        }
        match peek {
            Peek::Object => self.object(json, node, ticks),
            Peek::Array if known.below_items().is_some() => self.items(json, node, ticks),
            Peek::Array if known.has_items_by_index() => self.items_by_index(json, node, ticks),
            _ => json.skip(peek),
        }
    }

    fn object(&mut self, json: &mut Json, node: usize, ticks: &mut Ticks) -> Result<()> {
        let known = self.schema.node(node);
        let mut seen = Vec::new();
        let mut key = json.with(|json| Ok(json.known_object()?.map(|key| known.below_key(key))))?;
        while let Some(found) = key {
            let peek = json.peek()?;
            match found {
                None => json.skip(peek)?,
                Some((step, _)) if seen.contains(&step) => {
                    return Err(json.wrong_at(json.at(), "this key stands a second time"));
                }
                Some((step, child)) => {
                    seen.push(step);
                    self.value(json, child, peek, ticks)?;
                }
            }
            key = json.with(|json| Ok(json.next_key()?.map(|key| known.below_key(key))))?;
        }
        Ok(())
    }

    /// Read an array whose items are alike: by the shape of earlier ones, or by the parser.
    fn items(&mut self, json: &mut Json, node: usize, ticks: &mut Ticks) -> Result<()> {
        let Some(child) = self.schema.node(node).below_items() else {
            return Ok(());
        };
        let is_outermost = self.item.is_none() && self.schema.node(child).is_one_of_many;
        if !is_outermost {
            return each_item(json, ticks, |json, at, ticks| {
                json.seek(at);
                let peek = json.peek()?;
                self.value(json, child, peek, ticks)?;
                Ok(json.at())
            });
        }
        if json.data.get(json.after_space(json.at() + 1)) == Some(&b']') {
            let logprobs = &mut self.frames[self.current].logprobs;
            logprobs.are_given |= self.schema.has_logprobs(child);
        }
        if self.shapes.len() <= child {
            self.shapes.resize_with(child + 1, Shapes::default);
        }
        each_item(json, ticks, |json, at, ticks| {
            if let Some((found, end)) = self.shapes[child].read(json.data, at) {
                self.add(found);
                return Ok(end);
            }
            json.seek(at);
            let peek = json.peek()?;
            self.item = Some(Item::default());
            let read = self.value(json, child, peek, ticks);
            let item = mem::take(&mut self.item).unwrap_or_default();
            read?;
            let end = json.at();
            if !item.is_special {
                let uses = item.uses.iter().map(|&(start, slot)| (start - at, slot));
                let uses: Vec<_> = uses.collect();
                self.shapes[child].learn(&json.data[at..end], &uses);
            }
            Ok(end)
        })
    }

    fn items_by_index(&mut self, json: &mut Json, node: usize, ticks: &mut Ticks) -> Result<()> {
        let known = self.schema.node(node);
        let mut index = 0;
        each_item(json, ticks, |json, at, ticks| {
            json.seek(at);
            let peek = json.peek()?;
            match known.below_item(index) {
                Some(child) => self.value(json, child, peek, ticks)?,
                None => json.skip(peek)?,
            }
            index += 1;
            Ok(json.at())
        })
    }

    /// Add the values of an item.
    #[inline]
    fn add(&mut self, found: Found) {
        let frame = &mut self.frames[self.current];
        if let Some(logprob) = found.logprob {
            frame.logprobs.push(logprob);
        }
        if let Some(id) = found.id {
            frame.logprob_ids.push(id);
        }
        if let Some(id) = found.token {
            frame.logprob_tokens.push(id);
        }
    }

    /// Read the values of a column.
    fn leaf(
        &mut self,
        json: &mut Json,
        role: Role,
        peek: Peek,
        is_one_of_many: bool,
        ticks: &mut Ticks,
    ) -> Result<()> {
        if let Role::Kept(column) | Role::Joined(column) = role {
            let start = json.at();
            if matches!(role, Role::Joined(_)) && !matches!(peek, Peek::Array | Peek::Null) {
                return Err(json.wrong_at(start, "expected an array"));
            }
            json.skip(peek)?;
            if peek != Peek::Null {
                let spans = &mut self.frames[self.current].kept[column];
                spans.clear();
                spans.push(start..json.at());
            }
            return Ok(());
        }
        if peek == Peek::Null && !is_one_of_many {
            return json.skip(peek);
        }
        match role {
            Role::Routes => {
                let at = json.at();
                let decoded = json.with(|json| Ok(decode(json.next_str()?.as_bytes())))?;
                let Some(bytes) = decoded? else {
                    return Err(json.wrong_at(at, "this text is not base64"));
                };
                self.frames[self.current].routes = Some(bytes);
                return Ok(());
            }
            Role::ResponsesOfCalls if peek == Peek::Array => {
                return each_item(json, ticks, |json, at, ticks| {
                    json.seek(at);
                    let peek = json.peek()?;
                    self.leaf(json, Role::Responses, peek, false, ticks)?;
                    let frame = &mut self.frames[self.current];
                    frame.of_calls.push(mem::take(&mut frame.responses));
                    Ok(json.at())
                });
            }
            _ => {}
        }
        match role {
            Role::Logprobs => self.frames[self.current].logprobs.are_given = true,
            Role::LogprobTokens | Role::Index | Role::Total => {}
            _ => self.frames[self.current].ids(role).are_given = true,
        }
        if peek != Peek::Array {
            return self.number(json, role, peek);
        }
        if let Some(item) = &mut self.item {
            item.is_special = true;
        }
        each_item(json, ticks, |json, mut at, _| {
            match role {
                Role::Logprobs => {
                    if let Some((value, end)) = numbers::float(json.data, at) {
                        self.frames[self.current].logprobs.values.push(value);
                        return Ok(end);
                    }
                }
                Role::Prompts | Role::Responses => {
                    let values = &mut self.frames[self.current].ids(role).values;
                    at = numbers::ids(json.data, at, values);
                }
                _ => {}
            }
            json.seek(at);
            let peek = json.peek()?;
            self.number(json, role, peek)?;
            Ok(json.at())
        })
    }

    /// Read one value by the parser.
    #[allow(clippy::cast_possible_truncation, reason = "rounded, as NumPy does")]
    fn number(&mut self, json: &mut Json, role: Role, peek: Peek) -> Result<()> {
        let at = json.at();
        let slot = match role {
            Role::Logprobs => {
                let is_null = peek == Peek::Null;
                let value = match is_null {
                    true => json.skip(peek).map(|()| f64::NAN)?,
                    false => json.with(|json| json.known_float(peek))?,
                };
                self.frames[self.current].logprobs.values.push(value as f32);
                let is_plain = matches!(json.data[at], b'-' | b'0'..=b'9') && !is_null;
                is_plain.then_some(Slot::Logprob)
            }
            Role::LogprobTokens => {
                let token = json.with(|json| Ok(token_of(json.next_str()?.as_bytes())))?;
                self.add(Found {
                    token,
                    ..Found::default()
                });
                Some(Slot::Token)
            }
            Role::LossMask => {
                let value = match peek {
                    Peek::True | Peek::False => json.with(|json| json.known_bool(peek))?,
                    _ => match json.with(|json| json.known_float(peek))? {
                        0.0 => false,
                        1.0 => true,
                        _ => return Err(json.wrong_at(at, "a loss mask has 0 and 1 alone")),
                    },
                };
                let ids = self.frames[self.current].ids(role);
                ids.values.push(i32::from(value));
                None
            }
            _ => {
                let NumberInt::Int(value) = json.with(|json| json.known_int(peek))?;
                let Some(value) = i32::try_from(value).ok().filter(|id| *id >= 0) else {
                    let reason =
                        format!("{value} is not a token id, which are from 0 to 2147483647");
                    return Err(json.wrong_at(at, &reason));
                };
                let frame = &mut self.frames[self.current];
                match role {
                    Role::Index => frame.index = Some(value),
                    Role::Total => frame.total = Some(value),
                    _ => frame.ids(role).values.push(value),
                }
                (role == Role::LogprobIds).then_some(Slot::Id)
            }
        };
        if let Some(item) = &mut self.item {
            match slot {
                Some(slot) => item.uses.push((at, slot)),
                None => item.is_special = true,
            }
        }
        Ok(())
    }
}

/// Read an array: `read` reads the item at a position, and returns its end.
fn each_item(
    json: &mut Json,
    ticks: &mut Ticks,
    mut read: impl FnMut(&mut Json, usize, &mut Ticks) -> Result<usize>,
) -> Result<()> {
    let mut at = json.after_space(json.at() + 1);
    if json.data.get(at) == Some(&b']') {
        json.seek(at + 1);
        return Ok(());
    }
    loop {
        ticks.done(1)?;
        at = read(json, at, ticks)?;
        at = json.after_space(at);
        match json.data.get(at) {
            Some(b',') => at = json.after_space(at + 1),
            Some(b']') => {
                json.seek(at + 1);
                return Ok(());
            }
            found => {
                let reason = match found {
                    None => "the body ends inside an array",
                    Some(_) => "expected ',' or ']' in an array",
                };
                return Err(json.wrong_at(at, reason));
            }
        }
    }
}
