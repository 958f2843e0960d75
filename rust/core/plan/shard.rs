//! Shards: the rows of a step in one batch.

use crate::error::{Error, Result};
use crate::plan::assembly::Len;
use crate::plan::share::{Tree, TreeRow};
use crate::plan::{Bins, Chosen, Layout, Pick, Row, Widths};

/// Rows picked from all rows of a step.
#[derive(Debug, Clone)]
pub struct Shard {
    /// The picked rows, in order; a pick without an index is a synthetic row.
    pub picks: Vec<Pick>,
    /// Number of rows in the step.
    pub num_rows: usize,
    /// The longest lengths in the step; prompt and response are 0 if only row totals are known.
    pub widths: Option<Widths>,
    /// Tokens of each row, if they are known.
    pub lens: Option<Vec<usize>>,
    /// Prompt tokens of each row, if they are known.
    pub prompt_lens: Option<Vec<usize>>,
    /// The bins of the rows, if packed.
    pub bins: Option<ShardBins>,
    /// True if it is as wide as its own rows where no option fixes its widths; else it is as wide
    /// as the step, so that all shards have the same width.
    pub is_narrow: bool,
}

/// The bins of a shard, over consecutive rows.
#[derive(Debug, Clone)]
pub struct ShardBins {
    /// Offsets of bins in the shard's rows, one more than bins.
    pub offsets: Vec<usize>,
    /// Width of the step's widest bin.
    pub width: usize,
    /// Number of tokens that each row shares with the row before it in its bin, if bins are trees.
    pub shared: Option<Vec<usize>>,
}

impl Shard {
    /// Check that the shard belongs to a step of `count` rows, with the lengths `longest`, or with
    /// those planned; `row` has its own rows. Returns the minimum lengths that its widths hold: the
    /// longest of all rows written for the step, or 0 if the widths are the shard's own.
    ///
    /// # Errors
    /// If the plan is for other rows.
    pub fn check<'a>(
        &self,
        count: usize,
        row: impl Fn(usize) -> &'a Row,
        longest: Option<Widths>,
    ) -> Result<Widths> {
        if count != self.num_rows {
            let (found, expected) = (count, self.num_rows);
            return Err(Error::OtherRowCount { found, expected });
        }
        let least = longest.map_or(Ok(self.widths.unwrap_or_default()), |it| self.least(it))?;
        let lens: [(_, Len, _); 2] = [
            (&self.lens, Row::len, "tokens"),
            (&self.prompt_lens, |row| row.prompt_len, "prompt tokens"),
        ];
        for (lens, len, unit) in lens {
            for (pick, &expected) in self.picks.iter().zip(lens.iter().flatten()) {
                let number = pick.row.filter(|&number| number < count);
                let found = number.map_or(expected, |number| len(row(number)));
                if let Some(row) = number.filter(|_| found != expected) {
                    return Err(Error::OtherRowLength { row, unit, found, expected });
                }
            }
        }
        let mut rows = self.picks.iter().filter_map(|pick| pick.row);
        if let Some(row) = rows.find(|&row| row >= count) {
            let reason = format!("has row {row}, but there are {count} rows");
            return Err(Error::OtherShard(reason));
        }
        if self.picks.is_empty() {
            return Err(Error::OtherShard("has no rows".to_owned()));
        }
        Ok(match self.is_narrow {
            false => least,
            true => Widths::default(),
        })
    }

    /// The rows that it has, of one row per turn, if its plan knows all else of the step that a
    /// layout depends on. None also for all rows.
    pub fn chosen(&self, layout: Layout) -> Option<Chosen> {
        let has_widths = self.widths.is_some() && self.prompt_lens.is_some();
        self.lens.as_ref().filter(|_| has_widths || !layout.is_padded())?;
        Some(Chosen::new(self.numbers(), self.num_rows)).filter(Chosen::is_part)
    }

    /// The numbers of its rows that are not synthetic.
    pub fn numbers(&self) -> Vec<usize> {
        self.picks.iter().filter_map(|pick| pick.row).collect()
    }

    /// The trees in its bins, for these rows; None if bins are not trees.
    ///
    /// # Errors
    /// As [`ShardBins::trees`].
    pub fn trees(&self, rows: &[Row]) -> Result<Option<Vec<Tree>>> {
        let lens: Vec<_> = rows.iter().map(Row::len).collect();
        self.bins.as_ref().map_or(Ok(None), |bins| bins.trees(&lens))
    }

    /// The minimum width of its bins.
    pub(super) fn least_bin_width(&self) -> usize {
        match (&self.bins, self.is_narrow) {
            (Some(bins), false) => bins.width,
            _ => 0,
        }
    }

    /// The first row, if rows are consecutive and none is padding.
    pub fn adjacent(&self) -> Option<usize> {
        let first = self.picks.first()?.row?;
        let mut expected = (first..).map(Pick::of_row);
        let are_adjacent = self.picks.iter().all(|pick| Some(*pick) == expected.next());
        are_adjacent.then_some(first)
    }

    /// The longest lengths in the step known to the shard.
    pub(super) fn least_known(&self) -> Widths {
        let planned = self.widths.unwrap_or_default();
        match self.picks.iter().any(|pick| pick.row.is_none()) {
            true => planned.max(Widths::of_rows(&[Row::SYNTHETIC])),
            false => planned,
        }
    }

    /// The longest lengths among all rows written for the step: its own rows and, if any shard has
    /// them, synthetic ones.
    fn least(&self, longest: Widths) -> Result<Widths> {
        let with_synthetic = longest.max(Widths::of_rows(&[Row::SYNTHETIC]));
        let has_synthetic = self.picks.iter().any(|pick| pick.row.is_none());
        let of_rows = if has_synthetic { with_synthetic } else { longest };
        let Some(planned) = self.widths else {
            return Ok(of_rows);
        };
        if planned == longest || planned == with_synthetic {
            return Ok(planned);
        }
        // A plan of totals alone, without or with synthetic rows.
        match (planned.prompt, planned.response) {
            (0, 0) if planned.sequence == longest.sequence => Ok(of_rows),
            (1, 1) if planned.sequence == with_synthetic.sequence => Ok(with_synthetic),
            _ => Err(Error::OtherLengths { found: longest.into(), expected: planned.into() }),
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
            Some(width) if width < self.width => {
                Err(Error::StepTooWide { width, widest: self.width })
            }
            _ => Ok(()),
        }
    }

    /// The bins of rows of the given lengths.
    ///
    /// # Errors
    /// Those of [`Bins::check`].
    pub fn of_rows(&self, lens: &[usize]) -> Result<Bins> {
        let bins = Bins { offsets: self.offsets.clone(), ..Bins::single(lens.iter().copied()) };
        bins.check(lens)?;
        Ok(bins)
    }

    /// The trees of rows of the given lengths, if bins are trees.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] for other rows, or rows that share more tokens than they have.
    pub fn trees(&self, lens: &[usize]) -> Result<Option<Vec<Tree>>> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let rows = lens.iter().zip(shared).enumerate();
        let rows: Vec<_> =
            rows.map(|(row, (&len, &shared))| TreeRow { row, len, shared }).collect();
        Tree::of_bins(&self.offsets, &rows).map(Some)
    }
}

impl From<Widths> for (usize, usize, usize) {
    fn from(longest: Widths) -> Self {
        (longest.prompt, longest.response, longest.sequence)
    }
}
