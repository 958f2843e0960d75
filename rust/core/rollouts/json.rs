//! A JSON parser that can continue at another position.

use std::ops::Range;
use std::{mem, str};

use jiter::{Jiter, JiterError, Peek};

use crate::error::{Error, Result};
use crate::polling::Ticks;

/// A pull parser of one body.
pub struct Json<'a, 't> {
    /// The body.
    pub data: &'a [u8],
    /// The position at which the parser began.
    start: usize,
    parser: Jiter<'a>,
    /// The name of the body in errors.
    name: &'a str,
    /// One for each item of an array.
    ticks: &'a mut Ticks<'t>,
}

impl<'a, 't> Json<'a, 't> {
    /// A parser at the beginning of a body.
    pub fn new(data: &'a [u8], name: &'a str, ticks: &'a mut Ticks<'t>) -> Self {
        let start = text_start(data);
        Self { data, start, parser: Jiter::new(&data[start..]).with_allow_inf_nan(), name, ticks }
    }

    /// A parser of a part of the body, or of a changed one.
    pub fn part<'b>(&'b mut self, data: &'b [u8], span: Range<usize>) -> Json<'b, 't> {
        let mut part = Json::new(&data[..span.end], self.name, self.ticks);
        part.seek(span.start);
        part
    }

    /// The position of the next byte.
    pub fn at(&self) -> usize {
        self.start + self.parser.current_index()
    }

    /// Continue at another position.
    pub fn seek(&mut self, at: usize) {
        let parser = mem::replace(&mut self.parser, Jiter::new(&[]));
        self.parser = Jiter::with_tape(&self.data[at..], parser.into_tape()).with_allow_inf_nan();
        self.start = at;
    }

    /// The kind of the value at a position.
    pub fn peek_at(&mut self, at: usize) -> Result<Peek> {
        self.seek(at);
        self.peek()
    }

    /// The kind of the next value.
    pub fn peek(&mut self) -> Result<Peek> {
        let peek = self.parser.peek();
        self.checked(peek)
    }

    /// Call the parser; errors get the body's name and their position.
    pub fn with<T>(
        &mut self,
        call: impl FnOnce(&mut Jiter<'a>) -> Result<T, JiterError>,
    ) -> Result<T> {
        let called = call(&mut self.parser);
        self.checked(called)
    }

    /// Skip a value of this kind.
    pub fn skip(&mut self, peek: Peek) -> Result<()> {
        self.with(|parser| parser.known_skip(peek))
    }

    /// Check that the body is UTF-8: the parser does not check what it skips.
    pub fn check_text(&self) -> Result<()> {
        if self.data.is_ascii() {
            return Ok(()); // takes a third of the time
        }
        str::from_utf8(self.data).map(|_| ()).map_err(|error| {
            self.wrong_at(error.valid_up_to(), "this is not UTF-8 text; pass JSON, decompressed")
        })
    }

    /// The next position that is not white space.
    #[inline]
    pub fn after_space(&self, mut at: usize) -> usize {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.data.get(at) {
            at += 1;
        }
        at
    }

    /// Check that nothing follows.
    pub fn finish(&mut self) -> Result<()> {
        self.with(Jiter::finish)
    }

    fn checked<T>(&self, result: Result<T, JiterError>) -> Result<T> {
        result.map_err(|error| {
            let at = self.start + error.index;
            let before = &self.data[..self.data.len().min(at + 1)];
            let first = self.data.get(self.after_space(text_start(self.data)));
            let is_text = first.is_some_and(|byte| *byte >= b' ');
            if is_text && !before.iter().any(|byte| b"{[".contains(byte)) {
                let body = self.beginning();
                return self
                    .wrong(&format!("{body} is not JSON; pass the body of a successful response"));
            }
            self.wrong_at(at, &error.error_type.to_string())
        })
    }

    /// The beginning of the body, on one line, for errors.
    pub fn beginning(&self) -> String {
        let start = &self.data[..self.data.len().min(60)];
        let text = String::from_utf8_lossy(start).replace(char::is_control, " ");
        let more = if start.len() < self.data.len() { "..." } else { "" };
        format!("'{text}{more}'")
    }

    /// The error for a value at a position.
    pub fn wrong_at(&self, at: usize, reason: &str) -> Error {
        let is_cut = reason.starts_with("EOF") || reason.starts_with("the body ends");
        let advice = if is_cut { "; it is cut off: pass the whole body" } else { "" };
        Error::Body(format!("{}, byte {at}: {reason}{advice}", self.name))
    }

    /// The name of one of the body's calls in errors.
    pub fn name_of_call(&self, index: usize) -> String {
        format!("{}: call {index}", self.name)
    }

    /// The error for a body.
    pub fn wrong(&self, reason: &str) -> Error {
        Error::Body(format!("{}: {reason}", self.name))
    }
}

/// The position behind a byte order mark, which some programs write.
pub fn text_start(body: &[u8]) -> usize {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    if body.starts_with(MARK) { MARK.len() } else { 0 }
}

/// Read an array: `read` reads an item of a kind, by the parser.
pub fn each_value(
    json: &mut Json,
    mut read: impl FnMut(&mut Json, Peek) -> Result<()>,
) -> Result<()> {
    each_item(json, |json, at| {
        let peek = json.peek_at(at)?;
        read(json, peek)?;
        Ok(json.at())
    })
}

/// Read an array: `read` reads the item at a position, and returns its end.
pub fn each_item(
    json: &mut Json,
    mut read: impl FnMut(&mut Json, usize) -> Result<usize>,
) -> Result<()> {
    let mut at = json.after_space(json.at() + 1);
    if json.data.get(at) != Some(&b']') {
        loop {
            json.ticks.done(1)?;
            at = read(json, at)?;
            at = json.after_space(at);
            match json.data.get(at) {
                Some(b',') => at = json.after_space(at + 1),
                Some(b']') => break,
                None => return Err(json.wrong_at(at, "the body ends inside an array")),
                Some(_) => return Err(json.wrong_at(at, "expected ',' or ']' in an array")),
            }
        }
    }
    json.seek(at + 1);
    Ok(())
}
