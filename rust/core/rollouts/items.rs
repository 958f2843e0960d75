//! Items of an array that are written alike, read by the shape of an earlier one.
//!
//! Engines write the log-probabilities of thousands of tokens as objects that differ in their
//! numbers and texts alone. An item of a known shape is compared with it, and only what differs is
//! read; any other item is left to the parser, whose reading gives the next shape.

use super::numbers::{float, id, number_end};
use super::schema::Column;

/// Shapes that are kept: those of items with and without an optional part, for instance.
const MOST_SHAPES: usize = 4;

/// Bytes of a shape, at most: longer items gain little.
const MOST_BYTES: usize = 1 << 12;

/// The text that begins a token id written as a token.
pub const TOKEN_ID: &str = "token_id:";

/// The columns that a shape can read, one value of each.
pub const SLOTS: [Column; 3] = [Column::Logprobs, Column::LogprobIds, Column::LogprobTokens];

/// The values of an item.
#[derive(Debug, Default, Clone, Copy)]
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
    /// The same bytes in every item, at most eight: their number, their bits, and a mask of these.
    Same(usize, u64, u64),
    /// A number, read if it has a use.
    Number(Option<Column>),
    /// A number that usually repeats the log-probability.
    Again,
    /// A text, read if it has a use.
    Text(Option<Column>),
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

    /// Learn the shape of a valid item at the end of the data, with the places of its values.
    pub fn learn(&mut self, data: &[u8], at: usize, uses: &[(usize, Column)]) {
        let count = |slot| uses.iter().filter(|(_, one)| *one == slot).count();
        let are_single = SLOTS.into_iter().all(|slot| count(slot) < 2);
        if data.len() - at <= MOST_BYTES
            && are_single
            && let Some(shape) = shape_of(data, at, uses)
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
            Part::Same(len, bits, mask) => {
                let next = u64::from_le_bytes(*data.get(at..)?.first_chunk()?);
                (next & mask == *bits).then_some(at + len)?
            }
            Part::Number(None) => number_end(data, at)?,
            Part::Number(Some(Column::Logprobs)) => {
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
fn shape_of(item: &[u8], mut at: usize, uses: &[(usize, Column)]) -> Option<Vec<Part>> {
    let use_at = |at| { uses.iter() }.find_map(|&(start, slot)| (start == at).then_some(slot));
    let mut shape = Vec::new();
    let mut same = Vec::new();
    let mut logprob: &[u8] = &[];
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
                if slot == Some(Column::Logprobs) {
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
                shape.extend(same_parts(&std::mem::take(&mut same)));
                shape.push(part);
            }
        }
        at = end;
    }
    shape.extend(same_parts(&same));
    Some(shape)
}

/// The parts of bytes that are the same in every item.
fn same_parts(bytes: &[u8]) -> impl Iterator<Item = Part> {
    bytes.chunks(8).map(|part| {
        let mut eight = [0; 8];
        eight[..part.len()].copy_from_slice(part);
        let mask = u64::MAX >> (64 - 8 * part.len());
        Part::Same(part.len(), u64::from_le_bytes(eight), mask)
    })
}
