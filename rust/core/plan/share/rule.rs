//! The rule by which rows share tokens, and the sorting of rows by their tokens.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::{Tree, TreeRow};
use crate::error::{Error, Result};
use crate::memory::check_room;
use crate::plan::Row;
use crate::plan::merge::Streams;
use crate::plan::partition::sort_indices;

/// The rule by which rows share tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// The common prefix of any rows.
    All,
    /// The common prefix of rows with the same uid.
    Group,
    /// Prompts whose tokens are all equal.
    Prompts,
}

/// Numbered ids of turns: rows have the ids of their source turns.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShareIds<'a> {
    /// The uids of [`Share::Group`].
    pub uids: Option<&'a [usize]>,
    /// Ids of other inputs: rows with different ids share nothing.
    pub same_inputs: Option<&'a [usize]>,
}

impl Tree {
    /// The tree of rows read from turns.
    ///
    /// Rows of different groups share nothing. Groups are in the order of their first rows, and so
    /// are the prompts of [`Share::Prompts`], whose rows keep their order. Otherwise rows of a
    /// group are sorted by tokens, ties by index. Padding rows share nothing.
    ///
    /// # Errors
    /// Those of the columns.
    pub fn of_rows(streams: &Streams, rows: &[Row], share: Share, ids: ShareIds) -> Result<Self> {
        check_room(rows.len())?;
        // No token of a synthetic row is compared, so its turn does not matter.
        let turns: Vec<_> = rows.iter().map(|row| row.source.unwrap_or(0)).collect();
        let groups = groups_of(&turns, share, ids);
        let compared = |row: &Row| match share {
            _ if row.is_padding => 0,
            Share::All | Share::Group => row.len(),
            Share::Prompts => row.prompt_len,
        };
        let texts = Texts { streams, turns, lens: rows.iter().map(compared).collect() };
        let heads = (0..rows.len()).map(|row| texts.head(row));
        let mut heads = heads.collect::<Result<Vec<_>, _>>()?;
        let group = |head: &Head| groups[head.row];
        heads.sort_by_key(group);
        for heads in heads.chunk_by_mut(|a, b| group(a) == group(b)) {
            texts.sort(heads)?;
        }
        if share == Share::Prompts {
            heads = prompts_in_order(&heads, &texts.lens, group);
        }
        let row =
            |head: &Head| TreeRow { row: head.row, len: rows[head.row].len(), shared: head.shared };
        Self::new(heads.iter().map(row).collect())
    }
}

/// The group of each row, numbered in the order of first rows.
fn groups_of(turns: &[usize], share: Share, ids: ShareIds) -> Vec<usize> {
    let uids = ids.uids.filter(|_| share == Share::Group);
    if uids.is_none() && ids.same_inputs.is_none() {
        return vec![0; turns.len()];
    }
    let mut known = HashMap::new();
    let mut group = |&turn: &usize| {
        let next = known.len();
        let key = [uids, ids.same_inputs].map(|ids| ids.map(|ids| ids.get(turn)));
        *known.entry(key).or_insert(next)
    };
    turns.iter().map(&mut group).collect()
}

/// Rows of equal prompts next to each other, sharing the prompt only. Prompts are in the order of
/// their first rows.
fn prompts_in_order(heads: &[Head], lens: &[usize], group: impl Fn(&Head) -> usize) -> Vec<Head> {
    let are_equal = |a: &Head, b: &Head| {
        group(a) == group(b) && lens[a.row] == lens[b.row] && b.shared == lens[b.row]
    };
    let prompts: Vec<_> = heads.chunk_by(are_equal).collect();
    let mut order: Vec<_> = (0..prompts.len()).collect();
    let first = |prompt: usize| prompts[prompt][0].row;
    sort_indices(&mut order, &|a, b| first(a).cmp(&first(b)));
    let mut out: Vec<Head> = Vec::with_capacity(heads.len());
    for prompt in order {
        let begin = out.len();
        out.extend(prompts[prompt]);
        out[begin].shared = 0;
    }
    out
}

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
        Ok(Head { row, shared: 0, next: self.token(row, 0)? })
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
