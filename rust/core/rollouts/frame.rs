//! What bodies, their parts and their calls give: values by column.

use std::mem;
use std::ops::Range;

use super::call::Call;
use super::schema::{COUNT, Column, Kept, Opens, Role, Schema};
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
    /// Integers, or the bits of float32.
    columns: [Values<i32>; COUNT],
    /// Spans of the body: one, or several of a stream whose arrays are joined.
    pub kept: Vec<Values<Range<usize>>>,
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
        Self { values: Vec::new(), state: State::Absent, rank: usize::MAX }
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
    pub fn claim(&mut self, rank: usize) -> bool {
        if rank < self.rank {
            if self.rank < usize::MAX {
                self.clear();
            }
            self.rank = rank;
        }
        rank == self.rank
    }

    fn claim_value(&mut self, rank: usize, is_null: bool) -> bool {
        if is_null {
            self.state = State::Null.max(self.state);
        }
        !is_null && self.claim(rank)
    }

    fn clear(&mut self) {
        self.values.clear();
        (self.state, self.rank) = (State::Absent, usize::MAX);
    }

    /// Move values to the end.
    pub fn append(&mut self, more: &mut Self) -> Result<()> {
        if more.state < State::Given || self.claim(more.rank) {
            self.state = self.state.max(more.state);
            reserve(&mut self.values, more.values.len())?;
            self.values.append(&mut more.values);
        }
        Ok(())
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

impl Frame {
    /// A frame without values.
    pub fn new(schema: &Schema) -> Self {
        let mut frame = Self::default();
        frame.clear(schema);
        frame
    }

    /// Remove all values.
    pub fn clear(&mut self, schema: &Schema) {
        self.columns.iter_mut().for_each(Values::clear);
        self.calls.clear();
        self.kept.resize_with(schema.kept.len(), Values::default);
        self.kept.iter_mut().for_each(Values::clear);
    }

    /// The values of a column.
    #[inline(always)]
    pub fn column(&mut self, column: Column) -> &mut Values<i32> {
        &mut self.columns[column as usize]
    }

    /// Prepare for a value of a column from the path of a rank. False if it is null, or if one of an
    /// earlier path is there.
    pub fn claim(&mut self, role: Role, rank: usize, is_null: bool) -> bool {
        match role {
            Role::Column(column) => self.column(column).claim_value(rank, is_null),
            Role::Kept(column) => self.kept[column].claim_value(rank, is_null),
        }
    }

    /// The one number of a column.
    pub fn number(&self, column: Column) -> Option<i32> {
        self.columns[column as usize].given()?.first().copied()
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

/// The bits of a log-probability that is missing.
pub const MISSING: i32 = f32::NAN.to_bits().cast_signed();

/// The call of the frames that hold its values, the nearest first.
pub fn call_of<'f>(frames: impl Iterator<Item = &'f Frame>) -> Call<'f> {
    let mut call = Call::default();
    for frame in frames {
        for (found, own) in call.columns.iter_mut().zip(&frame.columns) {
            *found = found.or_else(|| own.given());
        }
    }
    call
}
