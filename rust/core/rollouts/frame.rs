//! What bodies, their parts and their calls give: values by column.

use std::mem;
use std::ops::Range;

use super::call::Call;
use super::calls::{Calls, Place};
use super::json::Json;
use super::schema::{COUNTS, Ids, Kept, Numbers, Opens, Role, Schema};
use crate::error::Result;
use crate::memory::{add, reserve};

/// What is known of a column.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// There is no such key.
    #[default]
    Absent,
    /// Its value is null.
    Null,
    /// It has a value.
    Given,
}

/// Values of one column.
#[derive(Debug)]
pub struct Values<T> {
    pub values: Vec<T>,
    pub state: State,
    /// The rank of the path that they are from.
    rank: usize,
}

/// The values of a body, of a part of it with calls, or of a call.
#[derive(Debug, Default)]
pub struct Frame {
    ids: [Values<i32>; COUNTS.0],
    numbers: [Values<f32>; COUNTS.1],
    /// Spans of the body: one, or several of a stream whose arrays are joined.
    pub kept: Vec<Values<Range<usize>>>,
    /// Bytes of routed experts.
    pub routes: Values<u8>,
    /// Responses of the body's calls, outside of these.
    pub of_calls: Vec<Values<i32>>,
    /// The call's index, and its tokens so far, in an event of a stream.
    pub index: Option<i32>,
    pub total: Option<i32>,
    /// The frame around this one.
    pub around: usize,
    /// The kind of item; None for the body.
    pub opens: Option<Opens>,
    /// The position of the item in its array.
    pub position: usize,
    /// The calls in it.
    pub calls: Vec<usize>,
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            state: State::Absent,
            rank: usize::MAX,
        }
    }
}

impl<T> Values<T> {
    /// Add a value.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    #[inline(always)]
    pub fn push(&mut self, value: T) -> Result<()> {
        self.state = State::Given;
        add(&mut self.values, value)
    }

    /// Prepare for values from the path of a rank. False if those of an earlier path are there.
    fn claim(&mut self, rank: usize) -> bool {
        if rank < self.rank {
            if self.rank < usize::MAX {
                self.clear();
            }
            self.rank = rank;
        }
        rank == self.rank
    }

    fn clear(&mut self) {
        self.values.clear();
        (self.state, self.rank) = (State::Absent, usize::MAX);
    }

    /// Move values to the end.
    pub fn append(&mut self, more: &mut Self) {
        if more.state < State::Given || self.claim(more.rank) {
            self.state = self.state.max(more.state);
            self.values.append(&mut more.values);
        }
    }

    /// Replace by later values.
    pub fn replace(&mut self, more: &mut Self) {
        if more.state == State::Given && self.claim(more.rank) {
            mem::swap(&mut self.values, &mut more.values);
        }
        self.state = self.state.max(more.state);
    }

    /// The values, if there are any.
    pub fn given(&self) -> Option<&[T]> {
        (self.state == State::Given).then_some(&self.values)
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
    /// A frame without values.
    pub fn new(schema: &Schema) -> Self {
        let mut frame = Self::default();
        frame.clear(schema);
        frame
    }

    /// Remove all values.
    pub fn clear(&mut self, schema: &Schema) {
        self.ids.iter_mut().for_each(Values::clear);
        self.numbers.iter_mut().for_each(Values::clear);
        self.calls.clear();
        self.kept.resize_with(schema.kept.len(), Values::default);
        self.kept.iter_mut().for_each(Values::clear);
        self.routes.clear();
        self.of_calls.clear();
        (self.index, self.total) = (None, None);
    }

    /// Take the values that a body has outside of its calls, but for this call alone.
    pub fn take_own(&mut self, shared: &mut Self, index: usize) {
        let responses = self.ids(Ids::Responses);
        if responses.state < State::Given
            && let Some(response) = shared.of_calls.get_mut(index)
        {
            *responses = mem::take(response);
        }
        if index == 0 {
            self.routes.replace(&mut shared.routes);
        }
    }

    /// Prepare for values of a column from the path of a rank. False if those of an earlier path
    /// are there.
    pub fn claim(&mut self, role: Role, rank: usize) -> bool {
        match role {
            Role::Ids(column) => self.ids(column).claim(rank),
            Role::Numbers(column) => self.numbers(column).claim(rank),
            Role::Kept(column) => self.kept[column].claim(rank),
            Role::Routes => self.routes.claim(rank),
            Role::ResponsesOfCalls | Role::Index | Role::Total => true,
        }
    }

    /// Number of values of a column of tokens.
    pub fn len(&mut self, role: Role) -> usize {
        match role {
            Role::Ids(column) => self.ids(column).values.len(),
            Role::Numbers(column) => self.numbers(column).values.len(),
            _ => 0,
        }
    }

    /// Remove the values of a column of tokens behind so many.
    pub fn truncate(&mut self, role: Role, len: usize) {
        match role {
            Role::Ids(column) => self.ids(column).values.truncate(len),
            Role::Numbers(column) => self.numbers(column).values.truncate(len),
            _ => {}
        }
    }

    /// Note that the value of a column is null.
    pub fn note_null(&mut self, role: Role) {
        let state = match role {
            Role::Kept(column) => &mut self.kept[column].state,
            Role::Routes => &mut self.routes.state,
            _ => return,
        };
        *state = State::Null.max(*state);
    }

    /// The values of a column of ids.
    #[inline]
    pub fn ids(&mut self, column: Ids) -> &mut Values<i32> {
        &mut self.ids[column as usize]
    }

    /// The values of a column of numbers.
    #[inline]
    pub fn numbers(&mut self, column: Numbers) -> &mut Values<f32> {
        &mut self.numbers[column as usize]
    }

    /// True for a call.
    pub fn is_call(&self) -> bool {
        matches!(self.opens, Some(Opens::Call | Opens::CallOrOther))
    }

    /// The reason of a stream that ended without its end: null.
    pub fn cut(&mut self, schema: &Schema, is_cut: bool) {
        for (values, kept) in self.kept.iter_mut().zip(&schema.kept) {
            if *kept == Kept::Reason && (is_cut || values.state == State::Absent) {
                values.clear();
                values.state = State::Null;
            }
        }
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
    routes: Values<u8>,
    place: Place,
    calls: &mut Calls,
) -> Result<()> {
    let call = call_of(frames.clone());
    if !call.has_response() {
        let beginning = json.beginning();
        return Err(json.wrong(&format!(
            "there are no token ids of a response in {beginning}"
        )));
    }
    calls.add(&call, place, || json.name_of_call(place.index))?;
    for (column, rows) in calls.kept.iter_mut().enumerate() {
        let states = frames.clone().map(|frame| &frame.kept[column]);
        let best = states.clone().map(|values| values.state).max();
        match best.and_then(|best| { states }.find(|values| values.state == best)) {
            Some(values) if values.state == State::Null => rows.push(b"null"),
            found => rows.push_joined(json.data, found.map_or(&[], |found| &found.values)),
        }?;
    }
    calls.have_routes |= routes.state > State::Absent;
    let is_given = routes.state == State::Given;
    add(&mut calls.routes, is_given.then_some(routes.values))
}
