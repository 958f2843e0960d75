//! What bodies, their parts and their calls give: values by column.

use std::mem;
use std::ops::Range;

use super::call::Call;
use super::calls::Calls;
use super::json::Json;
use super::schema::{COUNTS, Ids, Numbers, Opens};
use crate::error::Result;
use crate::memory::{add, reserve};

/// Values of one column.
#[derive(Debug, Default)]
pub struct Values<T> {
    pub values: Vec<T>,
    pub are_given: bool,
}

/// The values of a body, of a part of it with calls, or of a call.
#[derive(Debug, Default)]
pub struct Frame {
    ids: [Values<i32>; COUNTS.0],
    numbers: [Values<f32>; COUNTS.1],
    /// Spans of the body: none or one; several of a stream whose arrays are joined.
    pub kept: Vec<Vec<Range<usize>>>,
    /// Bytes of routed experts.
    pub routes: Option<Vec<u8>>,
    /// Responses of the body's calls, outside of these.
    pub of_calls: Vec<Values<i32>>,
    /// The call's index, and its tokens so far, in an event of a stream.
    pub index: Option<i32>,
    pub total: Option<i32>,
    /// The frame around this one.
    pub around: usize,
    /// The kind of item; None for the body.
    pub opens: Option<Opens>,
    /// The calls in it.
    pub calls: Vec<usize>,
}

impl<T> Values<T> {
    /// Add a value.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    #[inline]
    pub fn push(&mut self, value: T) -> Result<()> {
        self.are_given = true;
        add(&mut self.values, value)
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

    fn given(&self) -> Option<&[T]> {
        self.are_given.then_some(&self.values)
    }
}

impl Values<f32> {
    /// Insert NaN at places among the values, which ascend.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn insert_missing(&mut self, places: &[usize]) -> Result<()> {
        reserve(&mut self.values, places.len())?;
        let mut end = self.values.len();
        self.values.resize(end + places.len(), f32::NAN);
        for (earlier, &place) in places.iter().enumerate().rev() {
            self.values.copy_within(place..end, place + earlier + 1);
            self.values[place + earlier] = f32::NAN;
            end = place;
        }
        Ok(())
    }
}

impl Frame {
    pub fn clear(&mut self, kept: usize) {
        self.ids.iter_mut().for_each(Values::clear);
        self.numbers.iter_mut().for_each(Values::clear);
        self.calls.clear();
        self.kept.resize_with(kept, Vec::new);
        self.kept.iter_mut().for_each(Vec::clear);
        self.of_calls.clear();
        (self.routes, self.index, self.total) = (None, None, None);
    }

    /// Take the values that a body has outside of its calls, but for this call alone.
    pub fn take_own(&mut self, shared: &mut Self, index: usize) {
        let responses = self.ids(Ids::Responses);
        if !responses.are_given
            && let Some(response) = shared.of_calls.get_mut(index)
        {
            *responses = mem::take(response);
        }
        if index == 0 && self.routes.is_none() {
            self.routes = shared.routes.take();
        }
    }

    /// The values of a column of ids.
    pub fn ids(&mut self, column: Ids) -> &mut Values<i32> {
        &mut self.ids[column as usize]
    }

    /// The values of a column of numbers.
    pub fn numbers(&mut self, column: Numbers) -> &mut Values<f32> {
        &mut self.numbers[column as usize]
    }

    /// True for a call.
    pub fn is_call(&self) -> bool {
        matches!(self.opens, Some(Opens::Call | Opens::CallOrOther))
    }
}

/// The call of the frames that hold its values, the nearest first.
pub fn call_of<'f>(frames: impl Iterator<Item = &'f Frame>) -> Call<'f> {
    let mut call = Call::default();
    for frame in frames {
        for (found, own) in call.ids.iter_mut().zip(&frame.ids) {
            *found = found.or_else(|| own.given());
        }
        for (found, own) in call.numbers.iter_mut().zip(&frame.numbers) {
            *found = found.or_else(|| own.given());
        }
    }
    call
}

/// Add a call, and the columns that no rule reads.
pub fn add_call<'f>(
    json: &Json,
    frames: impl Iterator<Item = &'f Frame> + Clone,
    routes: Option<Vec<u8>>,
    body: usize,
    index: usize,
    calls: &mut Calls,
) -> Result<()> {
    let call = call_of(frames.clone());
    if !call.has_response() {
        let beginning = json.beginning();
        return Err(json.wrong(&format!(
            "there are no token ids of a response in {beginning}"
        )));
    }
    calls.add(&call, body, index, || json.name_of_call(index))?;
    for (column, rows) in calls.kept.iter_mut().enumerate() {
        let mut spans = frames.clone().map(|frame| &frame.kept[column]);
        rows.push_joined(
            json.data,
            spans
                .find(|spans| !spans.is_empty())
                .map_or(&[], |spans| spans),
        )?;
    }
    add(&mut calls.routes, routes)
}
