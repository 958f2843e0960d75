//! Reading bodies by a schema.

use std::collections::BTreeSet;
use std::mem;

use jiter::{NumberInt, Peek};

use super::base64::decode;
use super::calls::{Calls, Place};
use super::frame::{Frame, State, add_call, call_of};
use super::items::{Found, Shapes, Slot, token_of};
use super::json::{Json, each_item};
use super::numbers;
use super::schema::{Ids, Kept, Numbers, Opens, Role, Schema};
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
    /// Number of arrays of calls so far.
    trees: usize,
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
            trees: 0,
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
                number += self.add_calls(json, body, number, calls)?;
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
        self.current = self.open(0, None, 0);
        self.value(json, 0, peek, ticks)?;
        let mut seen = BTreeSet::new();
        let calls = self.frames[1..self.used]
            .iter()
            .filter(|frame| frame.is_call());
        let repeated = calls.filter_map(|frame| Some((frame.around, frame.index?)));
        match { repeated }.find(|one| !seen.insert(*one)) {
            None => Ok(()),
            Some((_, index)) => Err(json.wrong(&format!("two choices have the index {index}"))),
        }
    }

    /// Begin a frame; returns its number.
    fn open(&mut self, around: usize, opens: Option<Opens>, position: usize) -> usize {
        let frame = self.used;
        self.used += 1;
        if self.frames.len() == frame {
            self.frames.push(Frame::default());
        }
        let new = &mut self.frames[frame];
        new.clear(self.schema);
        (new.around, new.opens, new.position) = (around, opens, position);
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
        let mut count = 0;
        let mut array = None;
        for frame in 1..self.used {
            let (before, from) = self.frames.split_at_mut(frame);
            if !from[0].is_call() {
                continue;
            }
            if array.replace(from[0].around) != Some(from[0].around) {
                self.trees += 1;
            }
            from[0].take_own(&mut before[0], count);
            let is_optional = from[0].opens == Some(Opens::CallOrOther);
            let routes = mem::take(&mut from[0].routes);
            let index = match calls.are_nodes {
                true => from[0].position,
                false => number + count,
            };
            if is_optional && !call_of(self.around(frame)).has_response() {
                continue;
            }
            let place = self.place(body, index);
            add_call(json, self.around(frame), routes, place, calls)?;
            count += 1;
        }
        if count == 0 {
            self.trees += 1;
            let routes = mem::take(&mut self.frames[0].routes);
            let place = self.place(body, number);
            add_call(json, self.around(0), routes, place, calls)?;
        }
        Ok(count.max(1))
    }

    /// The place of a call in the current array.
    fn place(&self, body: usize, index: usize) -> Place {
        Place {
            body,
            tree: self.trees,
            index,
        }
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
            let of_calls = of_calls[..self.used - 1].iter_mut();
            let of_calls = of_calls.filter(|frame| frame.is_call()).collect();
            stream.add(json, self.schema, &mut of_event[0], of_calls)?;
        }
        let mut shared = stream.shared;
        if stream.calls.is_empty() {
            stream.calls.insert(0, Frame::new(self.schema));
        }
        for (index, frame) in stream.calls.values_mut().enumerate() {
            frame.take_own(&mut shared, index);
            frame.cut(self.schema, events.is_cut);
            let routes = mem::take(&mut frame.routes);
            let frames = [&*frame, &shared].into_iter();
            add_call(json, frames, routes, self.place(body, index), calls)?;
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
            None => self.open(around, Some(opens), index),
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
        let current = self.current;
        let frame = &mut self.frames[current];
        // Values of columns that an earlier path has are removed again.
        let mut others = Vec::new();
        for &(role, rank) in &self.schema.node(child).columns {
            if !frame.claim(role, rank) {
                others.push((role, frame.len(role)));
            }
        }
        let is_logprob = |role| role == Role::Numbers(Numbers::Logprobs);
        let mut columns = self.schema.node(child).columns.iter();
        let has_logprobs = columns.any(|&(role, _)| is_logprob(role))
            && !others.iter().any(|&(role, _)| is_logprob(role));
        if has_logprobs && json.data.get(json.after_space(json.at() + 1)) == Some(&b']') {
            frame.numbers(Numbers::Logprobs).state = State::Given;
        }
        if self.shapes.len() <= child {
            self.shapes.resize_with(child + 1, Shapes::default);
        }
        // Log-probabilities of items, and those before each item without one.
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
        for (role, len) in others {
            self.frames[current].truncate(role, len);
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
    #[inline(always)]
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
        let known = self.schema.node(node);
        let frame = &mut self.frames[self.current];
        if peek == Peek::Null && !known.is_one_of_many {
            frame.note_null(role);
            return json.skip(peek);
        }
        if !known.is_one_of_many && !frame.claim(role, known.rank) {
            return json.skip(peek);
        }
        match role {
            Role::Kept(column) => {
                let start = json.at();
                if self.schema.kept[column] == Kept::Parts && peek != Peek::Array {
                    return Err(json.wrong_at(start, "expected an array"));
                }
                json.skip(peek)?;
                return frame.kept[column].push(start..json.at());
            }
            Role::Routes => {
                let at = json.at();
                let decoded = json.with(|json| Ok(decode(json.next_str()?.as_bytes())))?;
                let Some(bytes) = decoded? else {
                    return Err(json.wrong_at(at, "this text is not base64"));
                };
                (frame.routes.values, frame.routes.state) = (bytes, State::Given);
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
            Role::Numbers(column) => frame.numbers(column).state = State::Given,
            Role::Ids(column) if column != Ids::LogprobTokens => {
                frame.ids(column).state = State::Given;
            }
            _ => {}
        }
        let is_array = peek == Peek::Array;
        if !known.is_one_of_many && is_array != role.is_per_token() {
            let expected = if is_array { "a number" } else { "an array" };
            return Err(json.wrong_at(json.at(), &format!("expected {expected}")));
        }
        if !is_array {
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
            Role::Kept(_) | Role::Routes | Role::ResponsesOfCalls => None,
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
