//! What rows may share.

use super::sort::{Head, Texts};
use super::{Tree, TreeRow};
use crate::column::Tokens;
use crate::error::Error;
use crate::plan::Row;
use crate::plan::merge::Streams;

/// What rows of a group may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// All tokens that they begin with in common.
    Tokens,
    /// Prompts, if all of their tokens are equal.
    Prompts,
}

impl Tree {
    /// The tree of rows that are read from turns.
    ///
    /// Rows of different groups share nothing; `groups` has the number of each row's group, counted in
    /// the order of their first rows. Groups lie in that order, and so do the prompts of
    /// [`Share::Prompts`], whose rows keep theirs. Otherwise rows of a group are sorted by their
    /// tokens, and equal ones by their numbers.
    ///
    /// # Errors
    /// What the columns raise, and [`Error::InvalidPlan`] for rows that have no turn.
    pub fn of_rows<C: Tokens<Error: From<Error>>>(
        streams: &Streams<C>,
        rows: &[Row],
        share: Share,
        groups: Option<&[usize]>,
    ) -> Result<Self, C::Error> {
        let turns = rows.iter().map(|row| row.source).collect::<Option<_>>();
        let invalid = || Error::InvalidPlan("a row has no turn".to_owned());
        let compared = |row: &Row| match share {
            Share::Tokens => row.len(),
            Share::Prompts => row.prompt_len,
        };
        let texts = Texts {
            streams,
            turns: turns.ok_or_else(invalid)?,
            lens: rows.iter().map(compared).collect(),
        };
        let heads = (0..rows.len()).map(|row| texts.head(row));
        let mut heads = heads.collect::<Result<Vec<_>, _>>()?;
        let group = |head: &Head| groups.map_or(0, |groups| groups[head.row]);
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
        Ok(Self::new(heads.iter().map(row).collect())?)
    }
}

/// Rows of equal prompts one after the other, which share these and nothing else. Prompts are in the
/// order of their first rows.
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
