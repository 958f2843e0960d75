//! Items of an array that are written alike, read by the shape of an earlier one.
//!
//! Engines write the log-probabilities of thousands of tokens as objects that differ in their
//! numbers and texts alone. An item of a known shape is compared with it, and only what differs is
//! read; any other item is left to the parser, whose reading gives the next shape.

use std::mem;
use std::ops::Range;

use super::call::UNKNOWN;
use super::numbers::{float, id, number_end};
use super::schema::Column;

/// Shapes that are kept: those of items with and without an optional part, for instance.
const MOST_SHAPES: usize = 4;

/// Bytes of a shape, at most: longer items gain little.
const MOST_BYTES: usize = 1 << 12;

/// The text that begins a token id written as a token.
pub const TOKEN_ID: &str = "token_id:";

/// The columns that a shape can read, one value of each: log-probabilities, ids, and ids of texts.
pub const SLOTS: [Column; 3] = [Column::Logprobs, Column::LogprobIds, Column::LogprobTokens];

/// The values of an item, by slot: integers, or the bits of float32.
pub type Found = [Option<i32>; SLOTS.len()];

/// A part of a shape: a value, and up to eight bytes behind it that are the same in every item.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    value: Value,
    /// The number of these bytes, their bits, and a mask of these.
    len: usize,
    bits: u64,
    mask: u64,
}

/// A value of an item.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    /// None, where more bytes are the same.
    Nothing,
    /// A number, read if it has a slot.
    Number(Option<usize>),
    /// A number that usually repeats the log-probability.
    Again,
    /// A text, read if it has a slot.
    Text(Option<usize>),
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
            mem::swap(first, shape);
            Some(found)
        })
    }

    /// Learn the shape of a valid item at a span of the data, with the places of its values.
    pub fn learn(&mut self, data: &[u8], item: Range<usize>, uses: &[(usize, Column)]) {
        let count = |slot| uses.iter().filter(|(_, one)| *one == slot).count();
        let are_single = SLOTS.into_iter().all(|slot| count(slot) < 2);
        if item.len() <= MOST_BYTES
            && are_single
            && let Some(shape) = shape_of(data, item, uses)
            && !self.0.contains(&shape)
        {
            self.0.truncate(MOST_SHAPES - 1);
            self.0.insert(0, shape);
        }
    }
}

/// Read an item of a shape.
fn read(shape: &[Part], data: &[u8], mut at: usize) -> Option<(Found, usize)> {
    let (mut found, mut logprob) = (Found::default(), 0..0);
    for part in shape {
        at = match part.value {
            Value::Nothing => at,
            Value::Number(None) => number_end(data, at)?,
            Value::Number(Some(0)) => {
                let (value, end) = float(data, at)?;
                (found[0], logprob) = (Some(value), at..end);
                end
            }
            Value::Number(Some(_)) => {
                let (value, end) = id(data, at)?;
                found[1] = Some(value);
                end
            }
            // Longer numbers that begin so differ in the next bytes.
            Value::Again => match data[at..].starts_with(&data[logprob.clone()]) {
                true => at + logprob.len(),
                false => number_end(data, at)?,
            },
            Value::Text(slot) => {
                let end = text_end(data, at)?;
                if slot.is_some() {
                    found[2] = Some(token_of(&data[at + 1..end - 1]));
                }
                end
            }
            Value::Numbers => numbers_end(data, at)?,
        };
        let next = u64::from_le_bytes(*data.get(at..)?.first_chunk()?);
        if next & part.mask != part.bits {
            return None;
        }
        at += part.len;
    }
    Some((found, at))
}

/// The id in a text `token_id:17`; [`UNKNOWN`] in others.
pub fn token_of(text: &[u8]) -> i32 {
    match text.strip_prefix(TOKEN_ID.as_bytes()) {
        Some(digits @ (b"0" | [b'1'..=b'9', ..])) => {
            let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            number.unwrap_or(UNKNOWN)
        }
        _ => UNKNOWN,
    }
}

/// The end of a text without escapes but the short ones.
#[inline]
fn text_end(data: &[u8], at: usize) -> Option<usize> {
    if data.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        if let Some(eight) = data.get(at..)?.first_chunk() {
            let len = plain(u64::from_le_bytes(*eight));
            at += len;
            if len == 8 {
                continue;
            }
        }
        match data.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => match data.get(at + 1)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                _ => return None,
            },
            0..0x20 => return None,
            _ => at += 1,
        }
    }
}

/// The number of bytes at the beginning of eight that are no quote, backslash or control character.
#[inline(always)]
fn plain(eight: u64) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // The high bit of bytes below a limit. A borrow reaches later bytes alone.
    let below = |bytes: u64, limit: u64| bytes.wrapping_sub(ONES * limit) & !bytes & (ONES << 7);
    let quotes = below(eight ^ (ONES * u64::from(b'"')), 1);
    let escapes = below(eight ^ (ONES * u64::from(b'\\')), 1);
    (quotes | escapes | below(eight, 0x20)).trailing_zeros() as usize / 8
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
fn shape_of(data: &[u8], item: Range<usize>, uses: &[(usize, Column)]) -> Option<Vec<Part>> {
    let use_at = |at| {
        let (_, column) = uses.iter().find(|(start, _)| *start == at)?;
        SLOTS.iter().position(|slot| slot == column)
    };
    let (mut shape, mut value, mut same) = (Vec::new(), Value::Nothing, Vec::new());
    let (mut logprob, mut at) = (&data[..0], item.start);
    while at < item.end {
        let (next, end) = match data[at] {
            b'"' => {
                let end = text_end(data, at)?;
                let is_key = data[end..].iter().find(|byte| !byte.is_ascii_whitespace());
                match is_key {
                    Some(b':') => (None, end),
                    _ => (Some(Value::Text(use_at(at))), end),
                }
            }
            b'-' | b'0'..=b'9' => {
                let end = number_end(data, at)?;
                let (slot, text) = (use_at(at), &data[at..end]);
                if slot == Some(0) {
                    logprob = text;
                }
                let is_again = slot.is_none() && text.len() > 3 && text == logprob;
                let number = Value::Number(slot);
                (Some(if is_again { Value::Again } else { number }), end)
            }
            b'[' => match numbers_end(data, at) {
                Some(end) if !uses.iter().any(|(start, _)| (at..end).contains(start)) => {
                    (Some(Value::Numbers), end)
                }
                _ => (None, at + 1),
            },
            _ => (None, at + 1),
        };
        match next {
            None => same.extend_from_slice(&data[at..end]),
            Some(next) => {
                add_parts(&mut shape, mem::replace(&mut value, next), &same);
                same.clear();
            }
        }
        at = end;
    }
    add_parts(&mut shape, value, &same);
    Some(shape)
}

/// Add the parts of a value and the bytes behind it that are the same in every item.
fn add_parts(shape: &mut Vec<Part>, mut value: Value, same: &[u8]) {
    let (first, others) = same.split_at(same.len().min(8));
    for bytes in std::iter::once(first).chain(others.chunks(8)) {
        let (len, mut eight) = (bytes.len(), [0; 8]);
        eight[..len].copy_from_slice(bytes);
        shape.push(Part {
            value: mem::replace(&mut value, Value::Nothing),
            len,
            bits: u64::from_le_bytes(eight),
            mask: u64::MAX.checked_shr(64 - 8 * len as u32).unwrap_or(0),
        });
    }
}
