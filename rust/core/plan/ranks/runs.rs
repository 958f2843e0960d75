//! Runs of a tree's rows: the units that are assigned to bins and ranks.

use std::ops::Range;

use crate::error::Result;
use crate::plan::share::{Units, Weight};
use crate::polling::Ticks;

/// Runs of rows, and what any two of them share.
pub struct Runs {
    /// The runs as units.
    pub units: Units,
    /// The rows of each.
    pub rows: Vec<Range<usize>>,
    /// The first run of each one's tree.
    trees: Vec<usize>,
    /// Two for each run: what it shares with the one before it, and what all of its rows share.
    links: Vec<Weight>,
    /// For each power of two, up to the links of a tree, the place of the least among as many links.
    least: Vec<Vec<u32>>,
}

impl Runs {
    /// The given runs of all rows.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn new(units: &Units, rows: Vec<Range<usize>>, ticks: &mut Ticks) -> Result<Self> {
        let mut links = Vec::with_capacity(2 * rows.len());
        let mut trees = Vec::with_capacity(rows.len());
        let (mut begin, mut longest) = (0, 0);
        for (number, run) in rows.iter().enumerate() {
            ticks.done(run.len())?;
            let shared = units.shared[run.start];
            if shared.load.size == 0 {
                begin = number;
            }
            longest = longest.max(number + 1 - begin);
            trees.push(begin);
            let inner = units.shared[run.start + 1..run.end].iter();
            let least = inner.min_by_key(|shared| shared.load.size);
            links.push(shared);
            links.push(*least.unwrap_or(&units.alone[run.start]));
        }
        for link in &mut links {
            link.load.count = 0;
        }
        let size = |place: u32| links[place as usize].load.size;
        #[allow(clippy::cast_possible_truncation, reason = "there are at most 2^31 runs")]
        let mut least = vec![(0..links.len() as u32).collect::<Vec<_>>()];
        let mut width = 1;
        while width < longest {
            let last = &least[least.len() - 1];
            ticks.done(last.len())?;
            let pairs = last.iter().zip(&last[width..]);
            let next = pairs.map(|(&a, &b)| if size(b) < size(a) { b } else { a });
            least.push(next.collect());
            width *= 2;
        }
        Ok(Self { units: units.joined(&rows), rows, trees, links, least })
    }

    /// The runs of each chunk of rows, which begins and ends with them; chunks of all rows, in order.
    pub fn of_chunks(&self, chunks: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut end = 0;
        let of = |chunk: &Range<usize>| {
            let begin = end;
            while self.rows.get(end).is_some_and(|run| run.start < chunk.end) {
                end += 1;
            }
            begin..end
        };
        chunks.iter().map(of).collect()
    }

    /// A run as a tree of its own.
    pub fn alone(&self, run: usize) -> Weight {
        self.units.alone[run]
    }

    /// What the last row of a run shares with the first of a later one.
    pub fn shared(&self, run: usize, later: usize) -> Weight {
        if self.trees[run] != self.trees[later] {
            return Weight::default();
        }
        let (begin, end) = (2 * run + 2, 2 * later + 1);
        let level = (end - begin).ilog2() as usize;
        let [a, b] =
            [begin, end - (1 << level)].map(|place| self.links[self.least[level][place] as usize]);
        if b.load.size < a.load.size { b } else { a }
    }

    /// What several runs, which weigh `alone`, add between two others.
    pub fn joined(
        &self,
        before: Option<usize>,
        first: usize,
        alone: Weight,
        last: usize,
        after: Option<usize>,
    ) -> Weight {
        let mut added = alone;
        if let (Some(before), Some(after)) = (before, after) {
            added = added.plus(self.shared(before, after));
        }
        if let Some(before) = before {
            added = added.minus(self.shared(before, first));
        }
        if let Some(after) = after {
            added = added.minus(self.shared(last, after));
        }
        added
    }
}
