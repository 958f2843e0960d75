//! Limits of sharing: tokens that rows could share, but each get for themselves.

use std::borrow::Cow;

use super::Tree;
use crate::error::Result;
use crate::memory::{check_room, filled};
use crate::plan::Costs;
use crate::plan::partition::sort_indices;

/// The condition for sharing tokens that rows have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ShareLimits {
    /// True if rows share a token only if they agree on the next one, too.
    pub fork_early: bool,
    /// Least number of tokens of a shared run.
    pub min_shared: usize,
    /// Costs that a shared run must save more of than its segment adds.
    pub costs: Option<Costs>,
}

impl ShareLimits {
    /// True if a run of tokens is shared, from the depth `base` on up to `depth`, which saves them
    /// `times`.
    #[allow(clippy::cast_precision_loss, reason = "costs are floats")]
    fn allow(&self, base: usize, depth: usize, times: usize) -> bool {
        let pays = |costs: &Costs| {
            let saved = costs.of_tokens(depth) - costs.of_tokens(base);
            saved * times as f64 > costs.per_segment + costs.per_key * depth as f64
        };
        depth - base >= self.min_shared && self.costs.as_ref().is_none_or(pays)
    }
}

impl Tree {
    /// The same rows, sharing within the limits.
    ///
    /// Rows that agree on their next tokens, too, share one token less than all that they have in
    /// common, unless they are equal. Then runs between forks are tested from the roots on; the
    /// tokens of a run that is not shared count for the runs after it. So sharing what the costs
    /// allow never costs more than to share all, or nothing, if each run adds a segment: where a
    /// row continues a whole other one, it would add none.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn within(&self, limits: &ShareLimits) -> Result<Cow<'_, Self>> {
        let are_runs_limited = limits.min_shared > 1 || limits.costs.is_some();
        if !limits.fork_early && !are_runs_limited {
            return Ok(Cow::Borrowed(self));
        }
        let mut limited = self.clone();
        if limits.fork_early {
            let mut before = 0;
            for row in &mut limited.rows {
                let is_same = row.shared == row.len && row.len == before;
                before = row.len;
                row.shared -= usize::from(!is_same && row.shared > 0);
            }
        }
        if are_runs_limited {
            limited.limit_runs(limits)?;
        }
        Ok(Cow::Owned(limited))
    }

    /// Share runs that the limits allow.
    ///
    /// Each row forks from the one before it. The forks are a Cartesian tree: the parent of one is
    /// the deeper of the forks next to it, on either side, that are not deeper than itself.
    fn limit_runs(&mut self, limits: &ShareLimits) -> Result<()> {
        check_room(self.rows.len())?;
        let shared: Vec<_> = self.rows.iter().map(|row| row.shared).collect();
        let mut parents = filled(shared.len(), |_| 0)?;
        let mut path: Vec<usize> = Vec::new();
        for (index, &depth) in shared.iter().enumerate() {
            while let Some(fork) = path.pop_if(|fork| shared[*fork] > depth) {
                if depth > shared[parents[fork]] {
                    parents[fork] = index;
                }
            }
            parents[index] = path.last().copied().unwrap_or(index);
            path.push(index);
        }
        // Parents come before their children.
        let mut order = filled(shared.len(), |index| index)?;
        sort_indices(&mut order, &|a, b| shared[a].cmp(&shared[b]));
        // Number of rows that a run saves its tokens: that fork at its end, or after it.
        let mut times = filled(shared.len(), |_| 1)?;
        for &fork in order.iter().rev() {
            if parents[fork] != fork {
                times[parents[fork]] += times[fork];
            }
        }
        for fork in order {
            let (parent, depth) = (parents[fork], shared[fork]);
            let base = self.rows[parent].shared;
            let is_shared = depth > shared[parent] && limits.allow(base, depth, times[fork]);
            self.rows[fork].shared = if is_shared { depth } else { base };
        }
        Ok(())
    }
}
