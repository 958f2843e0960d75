//! The rule by which rows share tokens.

use std::collections::HashMap;

use super::sort::{Head, Texts};
use super::{Tree, TreeRow};
use crate::error::Result;
use crate::plan::Row;
use crate::plan::merge::Streams;

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
    /// Those of the columns, and [`Error::RowCount`](crate::Error::RowCount) for another number of
    /// ids.
    pub fn of_rows(streams: &Streams, rows: &[Row], share: Share, ids: ShareIds) -> Result<Self> {
        // No token of a synthetic row is compared, so its turn does not matter.
        let turns: Vec<_> = rows.iter().map(|row| row.source.unwrap_or(0)).collect();
        for (field, ids) in [("uids", ids.uids), ("same_inputs", ids.same_inputs)] {
            ids.map_or(Ok(()), |ids| streams.turns.check_count(field, ids.len()))?;
        }
        let groups = groups_of(&turns, share, ids);
        let compared = |row: &Row| match share {
            _ if row.is_padding => 0,
            Share::All | Share::Group => row.len(),
            Share::Prompts => row.prompt_len,
        };
        let texts = Texts {
            streams,
            turns,
            lens: rows.iter().map(compared).collect(),
        };
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
        let row = |head: &Head| TreeRow {
            row: head.row,
            len: rows[head.row].len(),
            shared: head.shared,
        };
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
        let key = [uids, ids.same_inputs].map(|ids| ids.map(|ids| ids[turn]));
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
    let mut prompts: Vec<_> = heads.chunk_by(are_equal).collect();
    prompts.sort_by_key(|heads| heads[0].row);
    let mut out: Vec<Head> = Vec::with_capacity(heads.len());
    for heads in prompts {
        let begin = out.len();
        out.extend(heads);
        out[begin].shared = 0;
    }
    out
}
