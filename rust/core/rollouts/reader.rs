//! Reading bodies by a schema.

use std::mem;

use jiter::{NumberInt, Peek};

use super::alike::{Alike, Seen, bits_of_slots, lens};
use super::call::UNKNOWN;
use super::calls::{Calls, Place};
use super::frame::{Frame, MISSING, State, call_of};
use super::items::{SLOTS, Shapes, token_of};
use super::json::{Json, each_item, each_value};
use super::numbers;
use super::schema::{Column, Kept, Opens, Role, Schema};
use super::stream::{Events, Stream, is_stream};
use crate::error::Result;
use crate::memory::{add, gathered};

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
    /// Positions and columns of its values.
    uses: Vec<(usize, Column)>,
    /// The columns of its values.
    seen: Seen,
    /// True if it has a value that shapes cannot read.
    is_special: bool,
    /// True if it is of one token: it names the token.
    is_token: bool,
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
    /// Invalid JSON, values of other types, and those of [`Calls::add`].
    pub fn read(&mut self, json: &mut Json, body: usize, calls: &mut Calls) -> Result<()> {
        json.check_text()?;
        if is_stream(json.data) {
            return self.stream(json, body, calls);
        }
        let peek = json.peek()?;
        if peek == Peek::Array && self.schema.node(0).below_item(None).is_none() {
            let mut number = 0;
            each_value(json, |json, peek| {
                self.body(json, peek)?;
                number += self.add_calls(json, body, number, calls)?;
                Ok(())
            })?;
        } else {
            self.body(json, peek)?;
            self.add_calls(json, body, 0, calls)?;
        }
        json.finish()
    }

    /// Read the values of a body.
    fn body(&mut self, json: &mut Json, peek: Peek) -> Result<()> {
        self.used = 0;
        self.current = self.open(0, None, 0)?;
        self.value(json, 0, peek)?;
        let calls = self.frames[1..self.used].iter().filter(|frame| frame.is_call());
        let indices = calls.filter_map(|call| Some((call.around, call.number(Column::Index)?)));
        let mut indices = gathered(indices)?;
        indices.sort_unstable();
        match indices.array_windows().find(|[one, next]| one == next) {
            None => Ok(()),
            Some([(_, index), _]) => {
                Err(json.wrong(&format!("two choices have the index {index}")))
            }
        }
    }

    /// Begin a frame; returns its number.
    fn open(&mut self, around: usize, opens: Option<Opens>, position: usize) -> Result<usize> {
        let frame = self.used;
        self.used += 1;
        if self.frames.len() == frame {
            add(&mut self.frames, Frame::default())?;
        }
        let new = &mut self.frames[frame];
        new.clear(self.schema);
        (new.around, new.opens, new.position) = (around, opens, position);
        Ok(frame)
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
        let (mut array, mut count) = (None, 0);
        // The body is a call if nothing in it is one.
        for frame in (1..self.used).chain([0]) {
            let own = &self.frames[frame];
            if !own.is_call() && (frame > 0 || count > 0) {
                continue;
            }
            if array.replace(own.around) != Some(own.around) {
                self.trees += 1;
            }
            let is_optional = own.opens == Some(Opens::CallOrOther);
            if is_optional && !call_of(self.around(frame)).has_response() {
                continue;
            }
            let is_node = calls.are_nodes && frame > 0;
            let index = if is_node { own.position } else { number + count };
            let tree = self.trees;
            calls.add_read(json, self.around(frame), Place { body, tree, index })?;
            count += 1;
        }
        Ok(count)
    }

    /// Read the events of a stream, and add its calls.
    fn stream(&mut self, json: &mut Json, body: usize, calls: &mut Calls) -> Result<()> {
        let events = Events::of(json)?;
        let mut stream = Stream::new(self.schema);
        for span in &events.spans {
            let mut event = json.part(&events.text, span.clone());
            let peek = event.peek()?;
            self.body(&mut event, peek)?;
            event.finish()?;
            stream.add(json, &mut self.frames[..self.used])?;
        }
        let text = json.part(&events.text, 0..events.text.len());
        let (of_calls, shared) = stream.finish(events.is_cut)?;
        for (index, frame) in of_calls.iter().enumerate() {
            let tree = self.trees;
            let frames = [frame, &shared].into_iter();
            calls.add_read(&text, frames, Place { body, tree, index })?;
        }
        Ok(())
    }

    /// Read an item of an array.
    fn item(&mut self, json: &mut Json, node: usize, index: usize, peek: Peek) -> Result<()> {
        let Some(opens) = self.schema.node(node).opens else {
            return self.value(json, node, peek);
        };
        let around = self.current;
        let known = self.frames[around].calls.get(index).copied();
        self.current = match known.filter(|_| opens != Opens::Group) {
            Some(call) => call,
            None => self.open(around, Some(opens), index)?,
        };
        if known.is_none() && opens != Opens::Group {
            let call = self.current;
            add(&mut self.frames[around].calls, call)?;
        }
        self.value(json, node, peek)?;
        self.current = around;
        Ok(())
    }

    /// Read the value of a node.
    fn value(&mut self, json: &mut Json, node: usize, peek: Peek) -> Result<()> {
        let known = self.schema.node(node);
        match (known.role, peek) {
            (Some(Role::Column(column)), _) => self.column(json, node, column, peek),
            (Some(Role::Kept(column)), _) => self.kept(json, node, column, peek),
            (None, Peek::Object) if known.has_keys() => self.object(json, node),
            (None, Peek::Array) if known.has_items() => self.items(json, node),
            (None, _) => {
                let at = json.at();
                json.skip(peek)?;
                let expected = known.expected().filter(|_| peek != Peek::Null);
                expected.map_or(Ok(()), |expected| Err(json.wrong_at(at, expected)))
            }
        }
    }

    fn object(&mut self, json: &mut Json, node: usize) -> Result<()> {
        let known = self.schema.node(node);
        let mut seen = Vec::new();
        let mut key = json.with(|json| Ok(json.known_object()?.map(|key| known.below_key(key))))?;
        while let Some(found) = key {
            let peek = json.peek()?;
            match found {
                None => json.skip(peek)?,
                Some((step, _)) if seen.contains(&step) => {
                    return Err(json.wrong_at(json.at(), "this key occurs twice"));
                }
                Some((step, child)) => {
                    seen.push(step);
                    self.value(json, child, peek)?;
                }
            }
            key = json.with(|json| Ok(json.next_key()?.map(|key| known.below_key(key))))?;
        }
        Ok(())
    }

    fn items(&mut self, json: &mut Json, node: usize) -> Result<()> {
        let known = self.schema.node(node);
        if let Some(child) = known.below_item(None)
            && self.item.is_none()
            && self.schema.node(child).is_one_of_many
        {
            return self.items_alike(json, child);
        }
        let mut index = 0;
        each_value(json, |json, peek| {
            match known.below_item(Some(index)) {
                Some(child) => self.item(json, child, index, peek)?,
                None => json.skip(peek)?,
            }
            index += 1;
            Ok(())
        })
    }

    /// Read items that are alike: by the shape of earlier ones, or by the parser.
    fn items_alike(&mut self, json: &mut Json, child: usize) -> Result<()> {
        let (current, start, node) = (self.current, json.at(), self.schema.node(child));
        let mut items = Alike::new(&mut self.frames[current], node)?;
        if self.shapes.len() <= child {
            self.shapes.resize_with(child + 1, Shapes::default);
        }
        each_item(json, |json, at| {
            let (seen, has, end) = match self.shapes[child].read(json.data, at) {
                Some((found, end)) => {
                    let frame = &mut self.frames[current];
                    for (column, value) in SLOTS.iter().zip(&found) {
                        if let Some(value) = value {
                            frame.column(*column).push(*value)?;
                        }
                    }
                    (Seen::SLOTS, bits_of_slots(found.map(|value| value.is_some())), end)
                }
                None => {
                    let before = lens(&mut self.frames[current]);
                    let seen = self.item_of_any_shape(json, child, at)?;
                    let after = lens(&mut self.frames[current]);
                    let has = std::array::from_fn(|slot| after[slot] > before[slot]);
                    (seen, bits_of_slots(has), json.at())
                }
            };
            items.add(seen, has, &mut self.frames[current])?;
            Ok(end)
        })?;
        if !items.finish(&mut self.frames[current], node) {
            let reason = "items of this array have no value, or other ones, where others have";
            return Err(json.wrong_at(start, reason));
        }
        Ok(())
    }

    /// Read an item by the parser, and learn its shape; returns what it has.
    fn item_of_any_shape(&mut self, json: &mut Json, child: usize, at: usize) -> Result<Seen> {
        let peek = json.peek_at(at)?;
        let columns = &self.schema.node(child).columns;
        self.item = Some(Item {
            is_token: columns.iter().any(|(column, _)| SLOTS[1..].contains(column)),
            ..Item::default()
        });
        let value = self.value(json, child, peek);
        let item = mem::take(&mut self.item).unwrap_or_default();
        value?;
        if !item.is_special {
            self.shapes[child].learn(json.data, at..json.at(), &item.uses);
        }
        Ok(item.seen)
    }

    /// Prepare for the value of a column that a call has one of. False if it is null, or if there
    /// is one from an earlier path; it is skipped.
    fn claim(&mut self, json: &mut Json, node: usize, role: Role, peek: Peek) -> Result<bool> {
        let (known, frame) = (self.schema.node(node), &mut self.frames[self.current]);
        let is_read = frame.claim(role, known.rank, peek == Peek::Null) || known.is_one_of_many;
        if !is_read {
            json.skip(peek)?;
        }
        Ok(is_read)
    }

    /// Keep the span of a value.
    fn kept(&mut self, json: &mut Json, node: usize, column: usize, peek: Peek) -> Result<()> {
        if !self.claim(json, node, Role::Kept(column), peek)? {
            return Ok(());
        }
        let start = json.at();
        if self.schema.kept[column] == Kept::Parts && peek != Peek::Array {
            return Err(json.wrong_at(start, "expected an array"));
        }
        json.skip(peek)?;
        self.frames[self.current].kept[column].push(start..json.at())
    }

    /// Read the values of a column.
    fn column(&mut self, json: &mut Json, node: usize, column: Column, peek: Peek) -> Result<()> {
        let known = self.schema.node(node);
        if !self.claim(json, node, Role::Column(column), peek)? {
            return Ok(());
        }
        if column != Column::LogprobTokens {
            self.frames[self.current].column(column).state = State::Given;
        }
        let is_array = peek == Peek::Array;
        if let Some(item) = &mut self.item {
            item.seen.add(column, is_array);
        }
        if !known.is_one_of_many && is_array != column.is_per_token() {
            let expected = if is_array { "a number" } else { "an array" };
            return Err(json.wrong_at(json.at(), &format!("expected {expected}")));
        }
        if !is_array {
            return self.number(json, node, column, peek);
        }
        if let Some(item) = &mut self.item {
            if item.is_token {
                return Err(json.wrong_at(json.at(), "expected the value of one token"));
            }
            item.is_special = true;
        }
        each_item(json, |json, mut at| {
            let values = &mut self.frames[self.current].column(column).values;
            if column == Column::Logprobs {
                if let Some((value, end)) = numbers::float(json.data, at) {
                    add(values, value)?;
                    return Ok(end);
                }
            } else if column.is_ids() && column != Column::LogprobTokens {
                at = numbers::ids(json.data, at, values)?;
            }
            let peek = json.peek_at(at)?;
            self.number(json, node, column, peek)?;
            Ok(json.at())
        })
    }

    /// Read one value by the parser.
    fn number(&mut self, json: &mut Json, node: usize, column: Column, peek: Peek) -> Result<()> {
        let at = json.at();
        let value = match column {
            Column::LogprobTokens if peek == Peek::Null => json.skip(peek).map(|()| UNKNOWN)?,
            Column::LogprobTokens => json.with(|json| Ok(token_of(json.next_str()?.as_bytes())))?,
            Column::Logprobs if peek == Peek::Null => json.skip(peek).map(|()| MISSING)?,
            Column::Logprobs if peek == Peek::String => {
                let value = json.with(|json| Ok(none_of(json.known_str()?)))?;
                let reason = "expected a number, null, or the text NaN, Infinity or -Infinity";
                bits_of(value.ok_or_else(|| json.wrong_at(at, reason))?)
            }
            _ if column.is_ids() => {
                let int = json.with(|json| json.known_int(peek)).ok();
                let id = int.and_then(|NumberInt::Int(value)| i32::try_from(value).ok());
                let Some(value) = id.filter(|id| *id >= 0) else {
                    json.seek(at);
                    json.skip(peek)?;
                    let value = &json.data[at..json.at()];
                    let value = String::from_utf8_lossy(&value[..value.len().min(MOST_SHOWN)]);
                    let name = if column.is_per_token() { "token id" } else { "length or index" };
                    let reason = format!("{value} is not a {name}, which are from 0 to 2147483647");
                    return Err(json.wrong_at(at, &reason));
                };
                value
            }
            _ => {
                let value = match peek {
                    Peek::True if column != Column::Logprobs => json.skip(peek).map(|()| 1.0)?,
                    Peek::False if column != Column::Logprobs => json.skip(peek).map(|()| 0.0)?,
                    _ => json.with(|json| json.known_float(peek))?,
                };
                bits_of(match self.schema.node(node).bits {
                    Some(bits) => flag_of(value, bits),
                    None => value,
                })
            }
        };
        self.frames[self.current].column(column).push(value)?;
        if let Some(item) = &mut self.item {
            let is_digit = matches!(json.data[at], b'-' | b'0'..=b'9');
            match SLOTS.contains(&column) && (is_digit || column == Column::LogprobTokens) {
                true => item.uses.push((at, column)),
                false => item.is_special = true,
            }
        }
        Ok(())
    }
}

/// The bits of a number as float32.
#[allow(clippy::cast_possible_truncation, reason = "rounded, as NumPy does")]
fn bits_of(value: f64) -> i32 {
    (value as f32).to_bits().cast_signed()
}

/// A log-probability that JSON cannot write as a number.
pub fn none_of(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// 1 for flags with one of these bits, NaN for other numbers than flags.
#[allow(clippy::cast_possible_truncation, reason = "checked")]
pub fn flag_of(flags: f64, bits: u32) -> f64 {
    if flags.abs() < MOST_FLAGS && flags.fract() == 0.0 {
        f64::from(u8::from(flags as i64 & i64::from(bits) != 0))
    } else {
        f64::NAN
    }
}

/// Up to this, float64 has all integers.
const MOST_FLAGS: f64 = (1_u64 << 53) as f64;

/// Most bytes of a wrong value in an error.
const MOST_SHOWN: usize = 40;
