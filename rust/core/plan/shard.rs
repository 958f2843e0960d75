//! Shards: the rows of a step that one batch has.

use crate::error::{Error, Result};
use crate::plan::share::{Tree, TreeRow};
use crate::plan::{Bins, Longest, Pick, Row};

/// Rows picked from all rows of a step.
#[derive(Debug, Clone)]
pub struct Shard {
    /// Which, in order; a synthetic one where there is no index.
    pub picks: Vec<Pick>,
    /// How many rows the step has.
    pub num_rows: usize,
    /// What is longest in the step; prompt and response are 0 where only rows are known.
    pub widths: Option<Longest>,
    /// Tokens of each row, if they are known.
    pub lens: Option<Vec<usize>>,
    /// How the rows are packed, if they are.
    pub bins: Option<ShardBins>,
    /// Which rows its widths come from.
    pub widths_of: WidthsOf,
}

/// Which rows the widths of a shard come from, where no option fixes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WidthsOf {
    /// Those of the whole step, so that all shards are as wide.
    Step,
    /// The shard's own.
    Shard,
}

/// The bins of a shard: its rows follow each other in them.
#[derive(Debug, Clone)]
pub struct ShardBins {
    /// Where bins begin in the shard's rows, and where the last ends.
    pub offsets: Vec<usize>,
    /// Positions of the step's widest bin.
    pub width: usize,
    /// How many tokens each row has in common with the one before it in its bin, if bins are trees.
    pub shared: Option<Vec<usize>>,
}

impl Shard {
    /// Check that the shard is one of a step of such rows, of which `longest` is longest, and return what its
    /// widths have to hold at least: what is longest among all that are written of the step, or nothing where
    /// widths are its own.
    ///
    /// # Errors
    /// A plan for other rows.
    pub fn check(&self, step: &[Row], longest: Longest) -> Result<Longest> {
        let found = step.len();
        if found != self.num_rows {
            let expected = self.num_rows;
            return Err(Error::OtherRowCount { found, expected });
        }
        let least = self.least(longest)?;
        for (pick, &expected) in self.picks.iter().zip(self.lens.iter().flatten()) {
            let row = pick.row.and_then(|row| Some((row, step.get(row)?.len())));
            if let Some((row, found)) = row.filter(|&(_, found)| found != expected) {
                return Err(Error::OtherRowLength {
                    row,
                    found,
                    expected,
                });
            }
        }
        let rows = self.picks.iter().filter_map(|pick| pick.row);
        if let Some(row) = { rows }.find(|&row| row >= found) {
            let reason = format!("has row {row}, but there are {found} rows");
            return Err(Error::OtherShard(reason));
        }
        if self.picks.is_empty() {
            return Err(Error::OtherShard("has no rows".to_owned()));
        }
        Ok(match self.widths_of {
            WidthsOf::Step => least,
            WidthsOf::Shard => Longest::default(),
        })
    }

    /// The trees that its bins are, if they are, of these rows.
    ///
    /// # Errors
    /// As [`ShardBins::trees`].
    pub fn trees(&self, rows: &[Row]) -> Result<Option<Vec<Tree>>> {
        let lens: Vec<_> = rows.iter().map(Row::len).collect();
        self.bins
            .as_ref()
            .map_or(Ok(None), |bins| bins.trees(&lens))
    }

    /// What the width of its bins is at least.
    pub(super) fn least_bin_width(&self) -> usize {
        match (&self.bins, self.widths_of) {
            (Some(bins), WidthsOf::Step) => bins.width,
            _ => 0,
        }
    }

    /// The first row, if all follow each other and none is padding.
    pub fn adjacent(&self) -> Option<usize> {
        let first = self.picks.first()?.row?;
        let mut expected = (first..).map(Pick::of_row);
        let are_adjacent = self.picks.iter().all(|pick| Some(*pick) == expected.next());
        are_adjacent.then_some(first)
    }

    /// What is longest in the step, as far as the shard knows.
    pub(super) fn least_known(&self) -> Longest {
        let planned = self.widths.unwrap_or_default();
        match self.picks.iter().any(|pick| pick.row.is_none()) {
            true => planned.max(Longest::of_rows(&[Row::SYNTHETIC])),
            false => planned,
        }
    }

    /// What is longest among all rows that are written of the step: those that there are and, in some
    /// shard maybe, synthetic ones.
    fn least(&self, longest: Longest) -> Result<Longest> {
        let with_synthetic = longest.max(Longest::of_rows(&[Row::SYNTHETIC]));
        let has_synthetic = self.picks.iter().any(|pick| pick.row.is_none());
        let of_rows = if has_synthetic {
            with_synthetic
        } else {
            longest
        };
        let Some(planned) = self.widths else {
            return Ok(of_rows);
        };
        if planned == longest || planned == with_synthetic {
            return Ok(planned);
        }
        // Of a plan that knows totals alone, and whether there are synthetic rows.
        match (planned.prompt, planned.response) {
            (0, 0) if planned.sequence == longest.sequence => Ok(of_rows),
            (1, 1) if planned.sequence == with_synthetic.sequence => Ok(with_synthetic),
            _ => Err(Error::OtherLengths {
                found: longest.into(),
                expected: planned.into(),
            }),
        }
    }
}

impl ShardBins {
    /// Check that the step's widest bin is no wider than a fixed width.
    ///
    /// # Errors
    /// [`Error::StepTooWide`].
    pub fn check_width(&self, fixed: Option<usize>) -> Result<()> {
        match fixed {
            Some(width) if width < self.width => Err(Error::StepTooWide {
                width,
                widest: self.width,
            }),
            _ => Ok(()),
        }
    }

    /// The bins of rows of such lengths.
    ///
    /// # Errors
    /// Those of [`Bins::check`].
    pub fn of_rows(&self, lens: &[usize]) -> Result<Bins> {
        let bins = Bins {
            offsets: self.offsets.clone(),
            ..Bins::single(lens.iter().copied())
        };
        bins.check(lens)?;
        Ok(bins)
    }

    /// The trees of rows of such lengths, if bins are trees.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] for other rows, or rows that share more than they have.
    pub fn trees(&self, lens: &[usize]) -> Result<Option<Vec<Tree>>> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let rows = lens.iter().zip(shared).enumerate();
        let rows: Vec<_> = rows
            .map(|(row, (&len, &shared))| TreeRow { row, len, shared })
            .collect();
        let tree = |bin: &[usize]| match rows.get(bin[0]..bin[1]) {
            Some(rows) => Tree::new(rows.to_vec()),
            None => Err(Error::InvalidPlan("its bins have other rows".to_owned())),
        };
        self.offsets
            .windows(2)
            .map(tree)
            .collect::<Result<_>>()
            .map(Some)
    }
}

impl From<Longest> for (usize, usize, usize) {
    fn from(longest: Longest) -> Self {
        (longest.prompt, longest.response, longest.sequence)
    }
}
