//! Packing trees into bins: rows that share tokens stay together unless they exceed a bin.

use super::cut::Weights;
use super::{Tree, TreeRow};
use crate::error::{Error, Result};
use crate::memory::check_room;
use crate::plan::pack::{Algorithm, Cost, Items, Load, Oversize, Oversized, PackSpec};
use crate::polling::Ticks;

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
        let (Algorithm::Pack(packer), false) = (spec.algorithm, spec.oversize == Oversize::Split)
        else {
            return Err(Error::InvalidPlan(
                "rows of a tree cannot be split".to_owned(),
            ));
        };
        check_room(self.rows.len())?;
        let costs = self.costs(spec, cost)?;
        let weights = Weights::new(self, costs.as_ref());
        if spec.oversize == Oversize::Error {
            self.check_rows(spec, &weights)?;
        }
        let limit = spec.limit();
        let rounded = Load {
            size: spec.capacity - spec.capacity % spec.multiple_of,
            ..limit
        };
        let mut chunks = weights.cut(rounded, ticks)?;
        let loads: Vec<_> = chunks.iter().map(|rows| weights.of(rows)).collect();
        let sizes: Vec<_> = loads.iter().map(|load| spec.round_up(load.size)).collect();
        let counts: Vec<_> = loads.iter().map(|load| load.count).collect();
        let tree_costs: Vec<_> = loads.iter().map(|load| load.cost).collect();
        let items = Items {
            sizes: &sizes,
            counts: (spec.max_sequences < self.rows.len()).then_some(&*counts),
            costs: (limit.cost < f64::INFINITY).then_some(&*tree_costs),
        };
        let mut packed = packer.pack(items, limit, ticks)?;
        let needed = spec.needed(packed.count(), self.rows.len(), "row")?;
        let mut bin_of = vec![0; self.rows.len()];
        if needed > chunks.len() {
            chunks = weights.cut_further(chunks, needed, ticks)?;
            packed.offsets = (0..=needed).collect();
            packed.items = (0..needed).collect();
        } else {
            let costs = costs.is_some().then_some(&*tree_costs);
            packed = spec.grow_to(needed, packed, costs, ticks)?;
        }
        for bin in 0..packed.count() {
            for &item in packed.items(bin) {
                bin_of[chunks[item].clone()].fill(bin);
            }
        }
        self.parted(|index| Some(bin_of[index]), packed.count(), ticks)
    }

    /// Costs of rows, and of the tokens shared with the row before, if costs count.
    #[allow(clippy::type_complexity, reason = "two columns")]
    fn costs(&self, spec: &PackSpec, cost: &Cost) -> Result<Option<(Vec<f64>, Vec<f64>)>> {
        let lens = self.rows.iter().map(|row| row.len);
        let shared = self.rows.iter().map(|row| row.shared);
        let lens: Vec<_> = lens.chain(shared).collect();
        let costs = spec.costs(&lens, cost)?;
        Ok(costs.map(|mut costs| {
            let mut shared = costs.split_off(self.rows.len());
            if let Cost::Linear(costs) = cost {
                // The cost per sequence is not shared.
                shared = self
                    .rows
                    .iter()
                    .map(|row| costs.of_tokens(row.shared))
                    .collect();
            }
            (costs, shared)
        }))
    }

    /// Check that every row fits a bin.
    fn check_rows(&self, spec: &PackSpec, weights: &Weights) -> Result<()> {
        let exceeding = |(index, row): (usize, &TreeRow)| {
            let cost = weights.of(&(index..index + 1)).cost + spec.bin_cost;
            let tokens = spec.round_up(row.len);
            let (capacity, max_cost) = (spec.capacity, spec.max_cost);
            let oversized = if tokens > capacity {
                Oversized::Tokens {
                    tokens,
                    limit: capacity,
                }
            } else if cost > max_cost {
                Oversized::Cost {
                    cost,
                    limit: max_cost,
                }
            } else {
                return None;
            };
            Some((*row, oversized))
        };
        let exceeding = self.rows.iter().enumerate().filter_map(exceeding);
        match exceeding.min_by_key(|(row, _)| row.row) {
            None => Ok(()),
            Some((TreeRow { row, len, .. }, oversized)) => Err(Error::OversizedRow {
                row,
                len,
                oversized,
            }),
        }
    }
}
