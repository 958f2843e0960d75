//! Reading bodies by a schema.

use std::mem;

use jiter::{NumberInt, Peek};

use super::base64::decode;
use super::calls::Calls;
use super::frame::{Frame, add_call, call_of};
use super::items::{Found, Shapes, Slot, token_of};
use super::json::{Json, each_item};
use super::numbers;
use super::schema::{Ids, Numbers, Opens, Role, Schema};
use super::stream::{Stream, events, is_stream};
use crate::error::Result;
use crate::memory::add;
use crate::polling::Ticks;

/// Reads one body after the other.
pub struct Reader<'s> {
    schema: &'s Schema,
    /// The shapes of items, by the node of the items.
    shapes: Vec<Shapes>,
    /// The values of the body, then those of its parts and calls; kept for their memory.
    frames: Vec<Frame>,
    /// Number of frames of the current body.
    used: usize,
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

impl<'s> Reader<'s> {
    /// A reader of bodies of this schema.
    pub fn new(schema: &'s Schema) -> Self {
        Self {
            schema,
            shapes: Vec::new(),
            frames: vec![Frame::default()],
            used: 0,
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
        json.check_text()?;
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
                let added = self.add_calls(json, body, number, calls)?;
                // The nodes of each body of an array are a tree of their own.
                number += if calls.are_nodes { 0 } else { added };
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
        self.used = 0;
        self.current = self.open(0, None);
        self.value(json, 0, peek, ticks)
    }

    /// Begin a frame; returns its number.
    fn open(&mut self, around: usize, opens: Option<Opens>) -> usize {
        let frame = self.used;
        self.used += 1;
        if self.frames.len() == frame {
            self.frames.push(Frame::default());
        }
        self.frames[frame].clear(self.schema.num_kept);
        (self.frames[frame].around, self.frames[frame].opens) = (around, opens);
        frame
    }

    /// The frames that hold values of a frame's call, the nearest first.
    fn around(&self, frame: usize) -> impl Iterator<Item = &Frame> + Clone {
        let next = |&frame: &usize| (frame > 0).then(|| self.frames[frame].around);
        std::iter::successors(Some(frame), next).map(|frame| &self.frames[frame])
    }

    /// Add the calls of a body, numbered from `number` on; returns how many.
    fn add_calls(
        &mut self,
        json: &Json,
        body: usize,
        number: usize,
        calls: &mut Calls,
    ) -> Result<usize> {
        let mut index = 0;
        for frame in 1..self.used {
            let (before, from) = self.frames.split_at_mut(frame);
            if !from[0].is_call() {
                continue;
            }
            from[0].take_own(&mut before[0], index);
            let is_optional = from[0].opens == Some(Opens::CallOrOther);
            let routes = from[0].routes.take();
            if is_optional && !call_of(self.around(frame)).has_response() {
                continue;
            }
            add_call(
                json,
                self.around(frame),
                routes,
                body,
                number + index,
                calls,
            )?;
            index += 1;
        }
        if index == 0 {
            let routes = self.frames[0].routes.take();
            add_call(json, self.around(0), routes, body, number, calls)?;
        }
        Ok(index.max(1))
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
        calls.has_streams = true;
        let mut stream = Stream::new(self.schema);
        for span in events.spans {
            let mut event = json.part(span);
            let peek = event.peek()?;
            self.body(&mut event, peek, ticks)?;
            event.finish()?;
            let (of_event, of_calls) = self.frames.split_at_mut(1);
            let of_calls = of_calls[..self.used - 1].iter_mut();
            let of_calls = of_calls.filter(|frame| frame.is_call()).collect();
            stream.add(json, self.schema, &mut of_event[0], of_calls)?;
        }
        let mut shared = stream.shared;
        if stream.calls.is_empty() {
            let routes = shared.routes.take();
            return add_call(json, [&shared].into_iter(), routes, body, 0, calls);
        }
        for (index, frame) in stream.calls.values_mut().enumerate() {
            frame.take_own(&mut shared, index);
            let routes = frame.routes.take();
            add_call(
                json,
                [&*frame, &shared].into_iter(),
                routes,
                body,
                index,
                calls,
            )?;
            if events.is_cut {
                add(&mut calls.cut, calls.bodies.len() - 1)?;
            }
        }
        Ok(())
    }

    /// Read an item of an array.
    fn item(
        &mut self,
        json: &mut Json,
        node: usize,
        index: usize,
        peek: Peek,
        ticks: &mut Ticks,
    ) -> Result<()> {
        let Some(opens) = self.schema.node(node).opens else {
            return self.value(json, node, peek, ticks);
        };
        let around = self.current;
        let known = self.frames[around].calls.get(index).copied();
        self.current = match known.filter(|_| opens != Opens::Group) {
            Some(call) => call,
            None => self.open(around, Some(opens)),
        };
        if known.is_none() && opens != Opens::Group {
            let call = self.current;
            add(&mut self.frames[around].calls, call)?;
        }
        self.value(json, node, peek, ticks)?;
        self.current = around;
        Ok(())
    }

    /// Read the value of a node.
    fn value(&mut self, json: &mut Json, node: usize, peek: Peek, ticks: &mut Ticks) -> Result<()> {
        let known = self.schema.node(node);
        if let Some(role) = known.role {
            return self.leaf(json, node, role, peek, ticks);
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
            let mut index = 0;
            return each_item(json, ticks, |json, at, ticks| {
                json.seek(at);
                let peek = json.peek()?;
                self.item(json, child, index, peek, ticks)?;
                index += 1;
                Ok(json.at())
            });
        }
        if json.data.get(json.after_space(json.at() + 1)) == Some(&b']') {
            let logprobs = self.frames[self.current].numbers(Numbers::Logprobs);
            logprobs.are_given |= self.schema.has_logprobs(child);
        }
        if self.shapes.len() <= child {
            self.shapes.resize_with(child + 1, Shapes::default);
        }
        // Log-probabilities of items, and those before each item without one.
        let has_logprobs = self.schema.has_logprobs(child);
        let (mut of_items, mut missing) = (0_usize, Vec::new());
        each_item(json, ticks, |json, at, ticks| {
            if let Some((found, end)) = self.shapes[child].read(json.data, at) {
                self.add(found)?;
                match found.logprob {
                    Some(_) => of_items += 1,
                    None if has_logprobs => add(&mut missing, self.num_logprobs())?,
                    None => {}
                }
                return Ok(end);
            }
            json.seek(at);
            let peek = json.peek()?;
            let before = self.num_logprobs();
            self.item = Some(Item::default());
            let read = self.value(json, child, peek, ticks);
            let item = mem::take(&mut self.item).unwrap_or_default();
            read?;
            match self.num_logprobs() - before {
                0 if has_logprobs => add(&mut missing, before)?,
                _ if item.is_special => {}
                found => of_items += found,
            }
            let end = json.at();
            if !item.is_special {
                let uses = item.uses.iter().map(|&(start, slot)| (start - at, slot));
                let uses: Vec<_> = uses.collect();
                self.shapes[child].learn(&json.data[at..end], &uses);
            }
            Ok(end)
        })?;
        if of_items > 0 {
            let logprobs = self.frames[self.current].numbers(Numbers::Logprobs);
            logprobs.insert_missing(&missing)?;
        }
        Ok(())
    }

    /// Number of log-probabilities of the current frame so far.
    fn num_logprobs(&mut self) -> usize {
        let logprobs = self.frames[self.current].numbers(Numbers::Logprobs);
        logprobs.values.len()
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
    fn add(&mut self, found: Found) -> Result<()> {
        let frame = &mut self.frames[self.current];
        if let Some(logprob) = found.logprob {
            frame.numbers(Numbers::Logprobs).push(logprob)?;
        }
        if let Some(id) = found.id {
            frame.ids(Ids::LogprobIds).push(id)?;
        }
        if let Some(id) = found.token {
            frame.ids(Ids::LogprobTokens).push(id)?;
        }
        Ok(())
    }

    /// Read the values of a column.
    fn leaf(
        &mut self,
        json: &mut Json,
        node: usize,
        role: Role,
        peek: Peek,
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
        if peek == Peek::Null && !self.schema.node(node).is_one_of_many {
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
                    self.leaf(json, node, Role::Ids(Ids::Responses), peek, ticks)?;
                    let frame = &mut self.frames[self.current];
                    let response = mem::take(frame.ids(Ids::Responses));
                    add(&mut frame.of_calls, response)?;
                    Ok(json.at())
                });
            }
            _ => {}
        }
        let frame = &mut self.frames[self.current];
        match role {
            Role::Numbers(column) => frame.numbers(column).are_given = true,
            Role::Ids(column) if column != Ids::LogprobTokens => frame.ids(column).are_given = true,
            _ => {}
        }
        if peek != Peek::Array {
            if role.is_per_token() && !self.schema.node(node).is_one_of_many {
                return Err(json.wrong_at(json.at(), "expected an array"));
            }
            return self.number(json, node, role, peek);
        }
        if let Some(item) = &mut self.item {
            item.is_special = true;
        }
        each_item(json, ticks, |json, mut at, _| {
            let frame = &mut self.frames[self.current];
            match role {
                Role::Numbers(column @ Numbers::Logprobs) => {
                    if let Some((value, end)) = numbers::float(json.data, at) {
                        add(&mut frame.numbers(column).values, value)?;
                        return Ok(end);
                    }
                }
                Role::Ids(column) if column != Ids::LogprobTokens => {
                    at = numbers::ids(json.data, at, &mut frame.ids(column).values)?;
                }
                _ => {}
            }
            json.seek(at);
            let peek = json.peek()?;
            self.number(json, node, role, peek)?;
            Ok(json.at())
        })
    }

    /// Read one value by the parser.
    #[allow(clippy::cast_possible_truncation, reason = "rounded, as NumPy does")]
    fn number(&mut self, json: &mut Json, node: usize, role: Role, peek: Peek) -> Result<()> {
        let at = json.at();
        let frame = &mut self.frames[self.current];
        let slot = match role {
            Role::Numbers(column @ Numbers::Logprobs) => {
                let value = match peek {
                    Peek::Null => json.skip(peek).map(|()| f64::NAN)?,
                    Peek::String => json.with(|json| Ok(none_of(json.known_str()?)))?,
                    _ => json.with(|json| json.known_float(peek))?,
                };
                add(&mut frame.numbers(column).values, value as f32)?;
                matches!(json.data[at], b'-' | b'0'..=b'9').then_some(Slot::Logprob)
            }
            Role::Ids(Ids::LogprobTokens) => {
                let token = json.with(|json| Ok(token_of(json.next_str()?.as_bytes())))?;
                self.add(Found {
                    token,
                    ..Found::default()
                })?;
                Some(Slot::Token)
            }
            Role::Numbers(column) => {
                let value = match (peek, self.schema.node(node).bits) {
                    (Peek::True, _) => json.skip(peek).map(|()| 1.0)?,
                    (Peek::False, _) => json.skip(peek).map(|()| 0.0)?,
                    (_, None) => json.with(|json| json.known_float(peek))?,
                    (_, Some(bits)) => {
                        let flags = json.with(|json| json.known_int(peek))?;
                        let NumberInt::Int(flags) = flags;
                        f64::from(u8::from(flags & i64::from(bits) != 0))
                    }
                };
                if !value.is_finite() {
                    return Err(json.wrong_at(at, "a mask has finite numbers"));
                }
                frame.numbers(column).push(value as f32)?;
                None
            }
            Role::Ids(_) | Role::Index | Role::Total => {
                let NumberInt::Int(value) = json.with(|json| json.known_int(peek))?;
                let Some(value) = i32::try_from(value).ok().filter(|id| *id >= 0) else {
                    let name = match role {
                        Role::Ids(Ids::PromptLens | Ids::ResponseLens) => "length",
                        _ => "token id",
                    };
                    let reason = format!("{value} is not a {name}, which are from 0 to 2147483647");
                    return Err(json.wrong_at(at, &reason));
                };
                match role {
                    Role::Ids(column) => add(&mut frame.ids(column).values, value)?,
                    Role::Index => frame.index = Some(value),
                    _ => frame.total = Some(value),
                }
                (role == Role::Ids(Ids::LogprobIds)).then_some(Slot::Id)
            }
            Role::Kept(_) | Role::Joined(_) | Role::Routes | Role::ResponsesOfCalls => None,
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

/// A log-probability that JSON cannot write as a number; NaN for other texts, too.
fn none_of(text: &str) -> f64 {
    match text {
        "Infinity" => f64::INFINITY,
        "-Infinity" => f64::NEG_INFINITY,
        _ => f64::NAN,
    }
}
