//! Packing trees into bins: rows that share tokens stay together unless they exceed a bin.

use std::cmp::Reverse;
use std::ops::Range;

use super::cut::{Units, Weight};
use super::{Tree, TreeRow};
use crate::error::{Error, Result};
use crate::memory::{check_room, reserve};
use crate::plan::pack::{Algorithm, Cost, ItemBins, Items, Load, Oversize, Oversized, PackSpec};
use crate::polling::Ticks;

/// Chunks of a tree that fit a bin, and their bins.
pub struct Chunks {
    /// The rows.
    pub rows: Units,
    /// The rows of each chunk.
    pub chunks: Vec<Range<usize>>,
    /// The chunks of each bin.
    pub bins: ItemBins,
}

impl Chunks {
    /// The cost by which ranks are balanced.
    pub fn cost(&self) -> f64 {
        let chunks = self.chunks.iter();
        chunks.map(|chunk| self.rows.of(chunk).cost).sum()
    }

    /// The same with as many more bins as required.
    ///
    /// # Errors
    /// [`Error::TooFewItems`], and errors of `ticks`.
    pub fn grown(mut self, spec: &PackSpec, ticks: &mut Ticks) -> Result<Self> {
        let rows = &self.rows;
        let needed = spec.needed(self.bins.count(), rows.alone.len(), "row")?;
        if needed > self.chunks.len() {
            self.chunks = rows.cut_further(self.chunks, needed, ticks)?;
            self.bins.offsets = (0..=needed).collect();
            self.bins.items = (0..needed).collect();
        } else {
            let costs = self.chunks.iter().map(|run| rows.of(run).load.cost);
            let costs: Option<Vec<_>> = spec.counts_costs().then(|| costs.collect());
            self.bins = spec.grow_to(needed, self.bins, costs.as_deref(), ticks)?;
        }
        Ok(self)
    }
}

impl Tree {
    /// Pack the rows into bins, each of which is a tree again.
    ///
    /// Trees that exceed a bin are cut where cuts duplicate the fewest tokens. The cost of a row is
    /// that of its length, less that of the tokens shared with the row before it; a longer row does
    /// not cost less. If there are fewer bins than required, trees are cut further.
    ///
    /// # Errors
    /// [`Error::OversizedRow`] and [`Error::TooFewItems`], errors of a cost function, and errors of
    /// `ticks`; [`Error::InvalidPlan`] for options that split rows.
    pub fn pack(&self, spec: &PackSpec, cost: &Cost, ticks: &mut Ticks) -> Result<Vec<Self>> {
        let chunks = self.chunks(spec, cost, |_| [0.0; 2], ticks)?;
        self.bins_of(&chunks.grown(spec, ticks)?, ticks)
    }

    /// The same without bins that are added: the chunks. Ranks are balanced by the costs of rows,
    /// and of the tokens that they share.
    pub(in crate::plan) fn chunks(
        &self,
        spec: &PackSpec,
        cost: &Cost,
        balanced: impl Fn(&TreeRow) -> [f64; 2],
        ticks: &mut Ticks,
    ) -> Result<Chunks> {
        let (Algorithm::Pack(packer), false) = (spec.algorithm, spec.oversize == Oversize::Split)
        else {
            return Err(Error::InvalidPlan("rows of a tree cannot be split".to_owned()));
        };
        check_room(self.rows.len())?;
        let limited = self.costs(spec, cost)?;
        let (mut alone, mut shared) = (Vec::new(), Vec::new());
        for columns in [&mut alone, &mut shared] {
            reserve(columns, self.rows.len())?;
        }
        for (index, row) in self.rows.iter().enumerate() {
            let costs = balanced(row);
            let limited =
                limited.as_ref().map_or([0.0; 2], |[alone, shared]| [alone[index], shared[index]]);
            let weight = |of: usize, size, count| Weight {
                load: Load { size, count, cost: limited[of] },
                cost: costs[of],
            };
            alone.push(weight(0, row.len, 1));
            shared.push(weight(1, row.shared, 0));
        }
        let rows = Units::new(alone, shared, ticks)?;
        if spec.oversize == Oversize::Error {
            self.check_rows(spec, &rows)?;
        }
        let fits = |run: &Range<usize>| rows.of(run).load.is_within(spec.whole_limit());
        let chunks = rows.cut(&rows.trees(), fits, ticks)?;
        let loads: Vec<_> = chunks.iter().map(|run| rows.of(run).load).collect();
        let sizes: Vec<_> = loads.iter().map(|load| spec.round_up(load.size)).collect();
        let counts: Vec<_> = loads.iter().map(|load| load.count).collect();
        let costs: Vec<_> = loads.iter().map(|load| load.cost).collect();
        let limit = spec.limit();
        let items = Items {
            sizes: &sizes,
            counts: (spec.max_sequences < self.rows.len()).then_some(&*counts),
            costs: (limit.cost < f64::INFINITY).then_some(&*costs),
        };
        let bins = packer.pack(items, limit, ticks)?;
        Ok(Chunks { rows, chunks, bins })
    }

    /// The trees of the bins of chunks.
    pub(in crate::plan) fn bins_of(&self, chunks: &Chunks, ticks: &mut Ticks) -> Result<Vec<Self>> {
        let mut bin_of = vec![0; self.rows.len()];
        for bin in 0..chunks.bins.count() {
            for &item in chunks.bins.items(bin) {
                bin_of[chunks.chunks[item].clone()].fill(bin);
            }
        }
        self.parted(|index| Some(bin_of[index]), chunks.bins.count(), ticks)
    }

    /// Costs of rows, and of the tokens shared with the row before, if costs count.
    fn costs(&self, spec: &PackSpec, cost: &Cost) -> Result<Option<[Vec<f64>; 2]>> {
        let [lens, shared] = [|row: &TreeRow| row.len, |row: &TreeRow| row.shared]
            .map(|of| self.rows.iter().map(of));
        let lens: Vec<_> = lens.chain(shared.clone()).collect();
        let costs = spec.costs(&lens, cost)?;
        Ok(costs.map(|mut alone| {
            let own = alone.split_off(self.rows.len());
            match cost {
                // The cost per sequence is not shared.
                Cost::Linear(costs) => [alone, shared.map(|len| costs.of_tokens(len)).collect()],
                _ => [alone, own],
            }
        }))
    }

    /// Check that every row fits a bin; errors name the longest.
    fn check_rows(&self, spec: &PackSpec, rows: &Units) -> Result<()> {
        let exceeding = |(index, row): (usize, &TreeRow)| {
            let cost = rows.alone[index].load.cost + spec.bin_cost;
            let tokens = spec.round_up(row.len);
            let (capacity, max_cost) = (spec.capacity, spec.max_cost);
            let oversized = if tokens > capacity {
                Oversized::Tokens { tokens, limit: capacity }
            } else if cost > max_cost {
                Oversized::Cost { cost, limit: max_cost }
            } else {
                return None;
            };
            Some((*row, oversized))
        };
        let exceeding = self.rows.iter().enumerate().filter_map(exceeding);
        match exceeding.max_by_key(|(row, _)| (row.len, Reverse(row.row))) {
            None => Ok(()),
            Some((TreeRow { row, len, .. }, oversized)) => {
                Err(Error::OversizedRow { row, len, oversized, in_tree: true, may_split: false })
            }
        }
    }
}
