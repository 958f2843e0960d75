//! Items of an array that are written alike, read by the shape of an earlier one.
//!
//! Engines write the log-probabilities of thousands of tokens as objects that differ in their
//! numbers and texts alone. An item of a known shape is compared with it, and only what differs is
//! read; any other item is left to the parser, whose reading gives the next shape.

use super::numbers::{float, id, number_end};

/// Shapes that are kept: those of items with and without an optional part, for instance.
const MOST_SHAPES: usize = 4;

/// Bytes of a shape, at most: longer items gain little.
const MOST_BYTES: usize = 1 << 12;

/// The text that begins a token id written as a token.
pub const TOKEN_ID: &str = "token_id:";

/// The use of a value inside an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// A log-probability.
    Logprob,
    /// A token id.
    Id,
    /// A text that may be a token id.
    Token,
}

/// The values of an item.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Found {
    /// The log-probability.
    pub logprob: Option<f32>,
    /// The token id.
    pub id: Option<i32>,
    /// The token id of a text.
    pub token: Option<i32>,
}

/// A part of a shape.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// The same byte in every item.
    Byte(u8),
    /// The same bytes in every item.
    Same(Vec<u8>),
    /// A number, read if it has a use.
    Number(Option<Slot>),
    /// A number that usually repeats the log-probability.
    Again,
    /// A text, read if it has a use.
    Text(Option<Slot>),
    /// An array of numbers, of any length.
    Numbers,
}

/// The shapes of an array's items, the last used first.
#[derive(Debug, Default)]
pub struct Shapes(Vec<Vec<Part>>);

impl Shapes {
    /// The values of an item of a known shape, and its end.
    pub fn read(&mut self, data: &[u8], at: usize) -> Option<(Found, usize)> {
        let (first, others) = self.0.split_first_mut()?;
        if let Some(found) = read(first, data, at) {
            return Some(found);
        }
        others.iter_mut().find_map(|shape| {
            let found = read(shape, data, at)?;
            std::mem::swap(first, shape);
            Some(found)
        })
    }

    /// Learn the shape of a valid item, with the uses of its values and their beginnings.
    pub fn learn(&mut self, item: &[u8], uses: &[(usize, Slot)]) {
        let count = |slot| uses.iter().filter(|(_, one)| *one == slot).count();
        let are_single = [Slot::Logprob, Slot::Id, Slot::Token]
            .into_iter()
            .all(|slot| count(slot) < 2);
        if item.len() > MOST_BYTES || !are_single {
            return;
        }
        if let Some(shape) = shape_of(item, uses)
            && !self.0.contains(&shape)
        {
            self.0.truncate(MOST_SHAPES - 1);
            self.0.insert(0, shape);
        }
    }
}

/// Read an item of a shape.
fn read(shape: &[Part], data: &[u8], mut at: usize) -> Option<(Found, usize)> {
    let mut found = Found::default();
    let mut logprob = 0..0;
    for part in shape {
        at = match part {
            Part::Byte(byte) => (data.get(at) == Some(byte)).then_some(at + 1)?,
            Part::Same(bytes) => {
                let end = at + bytes.len();
                (data.get(at..end)? == bytes).then_some(end)?
            }
            Part::Number(None) => number_end(data, at)?,
            Part::Number(Some(Slot::Logprob)) => {
                let (value, end) = float(data, at)?;
                (found.logprob, logprob) = (Some(value), at..end);
                end
            }
            Part::Number(Some(_)) => {
                let (value, end) = id(data, at)?;
                found.id = Some(value);
                end
            }
            Part::Again => {
                let end = at + logprob.len();
                let is_same = data.get(at..end)? == &data[logprob.clone()];
                let ends = data.get(end).is_some_and(|byte| !is_of_number(*byte));
                match is_same && ends {
                    true => end,
                    false => number_end(data, at)?,
                }
            }
            Part::Text(slot) => {
                let end = text_end(data, at)?;
                if slot.is_some() {
                    found.token = token_of(&data[at + 1..end - 1]);
                }
                end
            }
            Part::Numbers => numbers_end(data, at)?,
        };
    }
    Some((found, at))
}

/// The id in a text `token_id:17`.
pub fn token_of(text: &[u8]) -> Option<i32> {
    let digits = text.strip_prefix(TOKEN_ID.as_bytes())?;
    id(digits, 0).and_then(|(id, end)| (end == digits.len()).then_some(id))
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')
}

/// The end of a text in ASCII without escapes but the short ones.
fn text_end(data: &[u8], at: usize) -> Option<usize> {
    if data.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        match data.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => match data.get(at + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                _ => return None,
            },
            0x20..=0x7f => at += 1,
            _ => return None,
        }
    }
}

/// The end of an array of numbers.
fn numbers_end(data: &[u8], at: usize) -> Option<usize> {
    if data.get(at) != Some(&b'[') {
        return None;
    }
    let mut at = at + 1;
    if data.get(at) == Some(&b']') {
        return Some(at + 1);
    }
    loop {
        at = number_end(data, at)?;
        match data.get(at)? {
            b',' => at += 1 + usize::from(data.get(at + 1) == Some(&b' ')),
            b']' => return Some(at + 1),
            _ => return None,
        }
    }
}

/// The shape of a valid item; None if it has parts that shapes cannot describe.
fn shape_of(item: &[u8], uses: &[(usize, Slot)]) -> Option<Vec<Part>> {
    let use_at = |at| { uses.iter() }.find_map(|&(start, slot)| (start == at).then_some(slot));
    let mut shape = Vec::new();
    let mut same = Vec::new();
    let mut logprob: &[u8] = &[];
    let mut at = 0;
    while let Some(&byte) = item.get(at) {
        let (part, end) = match byte {
            b'"' => {
                let end = text_end(item, at)?;
                let is_key = { item[end..].iter() }.find(|byte| !byte.is_ascii_whitespace());
                match is_key {
                    Some(b':') => (None, end),
                    _ => (Some(Part::Text(use_at(at))), end),
                }
            }
            b'-' | b'0'..=b'9' => {
                let end = number_end(item, at)?;
                let text = &item[at..end];
                let slot = use_at(at);
                if slot == Some(Slot::Logprob) {
                    logprob = text;
                }
                let is_again = slot.is_none() && text.len() > 3 && text == logprob;
                let part = if is_again {
                    Part::Again
                } else {
                    Part::Number(slot)
                };
                (Some(part), end)
            }
            b'[' => match numbers_end(item, at) {
                Some(end) if !uses.iter().any(|(start, _)| (at..end).contains(start)) => {
                    (Some(Part::Numbers), end)
                }
                _ => (None, at + 1),
            },
            _ => (None, at + 1),
        };
        match part {
            None => same.extend_from_slice(&item[at..end]),
            Some(part) => {
                shape.extend(same_part(std::mem::take(&mut same)));
                shape.push(part);
            }
        }
        at = end;
    }
    shape.extend(same_part(same));
    Some(shape)
}

/// The part of bytes that are the same in every item; None if there are none.
fn same_part(bytes: Vec<u8>) -> Option<Part> {
    match bytes[..] {
        [] => None,
        [byte] => Some(Part::Byte(byte)),
        _ => Some(Part::Same(bytes)),
    }
}
