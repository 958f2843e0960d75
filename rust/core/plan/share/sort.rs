//! Sorting rows by their tokens.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::plan::merge::Streams;

/// The sorted texts: the first tokens of turns' streams.
pub struct Texts<'a> {
    pub streams: &'a Streams<'a>,
    /// The turn of each row.
    pub turns: Vec<usize>,
    /// Number of tokens compared, of each row.
    pub lens: Vec<usize>,
}

/// A row, and its first difference from the row before it.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    pub row: usize,
    /// Number of tokens shared with the row before it.
    pub shared: usize,
    /// The first token after these; None at the end.
    next: Option<i64>,
}

impl Texts<'_> {
    /// A row with no row before it.
    pub fn head(&self, row: usize) -> Result<Head> {
        self.streams.tokens.pause()?;
        Ok(Head {
            row,
            shared: 0,
            next: self.token(row, 0)?,
        })
    }

    /// Sort rows by their tokens; the sort is stable.
    ///
    /// A merge sort in which rows keep the length of their common prefix with the row before them.
    /// Of two rows, the one with the longer common prefix with the last output row is next; tokens
    /// are compared only if the prefixes are equally long, from their end on. So every token that a
    /// row finally shares with the row before it is compared once.
    pub fn sort(&self, heads: &mut [Head]) -> Result<()> {
        let mut scratch = heads.to_vec();
        self.sort_with(heads, &mut scratch)
    }

    fn sort_with(&self, heads: &mut [Head], scratch: &mut [Head]) -> Result<()> {
        if heads.len() < 2 {
            return Ok(());
        }
        self.streams.tokens.pause()?;
        let middle = heads.len() / 2;
        let (first, second) = heads.split_at_mut(middle);
        self.sort_with(first, &mut scratch[..middle])?;
        self.sort_with(second, &mut scratch[middle..])?;
        scratch.copy_from_slice(heads);
        let (first, second) = scratch.split_at_mut(middle);
        let (mut a, mut b) = (0, 0);
        for out in heads {
            let takes_first = match (first.get_mut(a), second.get_mut(b)) {
                (Some(a), Some(b)) => self.compare(a, b)?.is_le(),
                (a, _) => a.is_some(),
            };
            let (from, at) = match takes_first {
                true => (&first, &mut a),
                false => (&second, &mut b),
            };
            *out = from[*at];
            *at += 1;
        }
        Ok(())
    }

    /// Compare two rows with known common prefixes with one row before both. Sets the common prefix
    /// of the later one with the earlier.
    fn compare(&self, a: &mut Head, b: &mut Head) -> Result<Ordering> {
        if a.shared != b.shared {
            return Ok(b.shared.cmp(&a.shared));
        }
        if a.next.is_none() || a.next != b.next {
            return Ok(a.next.cmp(&b.next));
        }
        let from = a.shared + 1;
        let len = self.lens[a.row].min(self.lens[b.row]) - from;
        let turns = [a.row, b.row].map(|row| self.turns[row]);
        let shared = from + self.streams.common(turns[0], turns[1], from, len)?;
        let (next_a, next_b) = (self.token(a.row, shared)?, self.token(b.row, shared)?);
        let order = next_a.cmp(&next_b);
        if order.is_eq() && next_a.is_some() {
            return Err(Error::Unstable { turn: turns[1] });
        }
        let (later, next) = match order {
            Ordering::Greater => (a, next_a),
            _ => (b, next_b),
        };
        (later.shared, later.next) = (shared, next);
        Ok(order)
    }

    /// A token of a row; None at its end.
    fn token(&self, row: usize, at: usize) -> Result<Option<i64>> {
        if at == self.lens[row] {
            return Ok(None);
        }
        let mut token = [0];
        self.streams.read(self.turns[row], at, &mut token)?;
        Ok(Some(token[0]))
    }
}
