//! Packed steps: rows go to ranks by cost, then to the bins of their rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Deal, RankBins, costly_first, rounds, sum};
use crate::error::Result;
use crate::memory::{check_room, with_room};
use crate::plan::pack::{Cost, Growth, Load, PackSpec};
use crate::plan::partition::{largest_first, sort, swap};
use crate::polling::Ticks;

/// Share by which the slowest rank may exceed the mean before rows are exchanged.
const UNEVEN: f64 = 1e-5;

/// Share of the capacity up to which bins are filled by cost.
const FULL: f64 = 0.98;

/// The rows of a mini-batch.
#[derive(Debug, Clone, Copy)]
pub struct PackedRows<'a> {
    /// Number of tokens of each row.
    pub lens: &'a [usize],
    /// The index of each row's group, in the order of first rows, if groups share a bin.
    pub groups: Option<&'a [usize]>,
    /// Costs of rows, if they limit bins or select the bin to split.
    pub limited: Option<&'a [f64]>,
    /// The number of the first row, by which errors name rows.
    pub first_row: usize,
}

/// Units of packing, as rows.
struct Items {
    offsets: Vec<usize>,
    rows: Vec<usize>,
}

impl Items {
    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    fn get(&self, item: usize) -> &[usize] {
        &self.rows[self.offsets[item]..self.offsets[item + 1]]
    }
}

impl PackedRows<'_> {
    /// The units of packing: rows, or groups of them.
    ///
    /// # Errors
    /// Those of `ticks`.
    fn items(&self, ticks: &mut Ticks) -> Result<Items> {
        let rows = 0..self.lens.len();
        let Some(groups) = self.groups else {
            return Ok(Items {
                offsets: ticks.gathered(0..=rows.end)?,
                rows: ticks.gathered(rows)?,
            });
        };
        let mut rows = ticks.gathered(rows.map(|row| (groups[row], row)))?;
        sort(&mut rows, ticks)?;
        let rows = ticks.gathered(rows.into_iter().map(|(_, row)| row))?;
        let ends = rows.windows(2).enumerate();
        let ends =
            ends.filter(|(_, pair)| groups[pair[0]] != groups[pair[1]]).map(|(end, _)| end + 1);
        let offsets = ticks.gathered([0].into_iter().chain(ends).chain([rows.len()]))?;
        Ok(Items { offsets, rows })
    }

    /// Pack all rows.
    fn pack(&self, spec: &PackSpec, ticks: &mut Ticks) -> Result<Vec<Vec<usize>>> {
        let cost = self.limited.map_or(Cost::Flops, Cost::Given);
        let bins = spec.pack(self.lens, self.groups, &cost, ticks);
        let bins = bins.map_err(|error| error.of_rows(self.first_row, false))?;
        let rows = |ends: &[usize]| bins.spans[ends[0]..ends[1]].iter().map(|span| span.index);
        let mut lists = with_room(bins.count())?;
        for ends in bins.offsets.windows(2) {
            ticks.done(ends[1] - ends[0])?;
            lists.push(rows(ends).collect());
        }
        Ok(lists)
    }

    /// Pack some items.
    fn pack_some(
        &self,
        items: &[&[usize]],
        spec: &PackSpec,
        ticks: &mut Ticks,
    ) -> Result<Vec<Vec<usize>>> {
        let rows = ticks.gathered(items.iter().copied().flatten().copied())?;
        let lens = ticks.gathered(rows.iter().map(|&row| self.lens[row]))?;
        let numbers = items.iter().enumerate();
        let groups = numbers.flat_map(|(item, rows)| rows.iter().map(move |_| item));
        let groups = ticks.gathered(groups)?;
        let limited = self
            .limited
            .map(|costs| ticks.gathered(rows.iter().map(|&row| costs[row])))
            .transpose()?;
        let part = PackedRows {
            lens: &lens,
            groups: self.groups.map(|_| &*groups),
            limited: limited.as_deref(),
            first_row: 0,
        };
        let mut bins = part.pack(spec, ticks)?;
        for row in bins.iter_mut().flatten() {
            ticks.done(1)?;
            *row = rows[*row];
        }
        Ok(bins)
    }
}

impl Deal<'_> {
    /// Pack the rows of a mini-batch into the bins that they fill, rounded up to the multiple in
    /// `spec`, and give each rank the same number.
    ///
    /// If balanced, rows go to ranks by cost, and those of each rank to its bins: by cost again,
    /// else as `spec` packs them. If a rank would need more bins than it has, or bins have to be
    /// split for their number, bins of all rows go to ranks by cost.
    ///
    /// # Errors
    /// As [`PackSpec::pack`].
    pub fn pack(
        self,
        rows: PackedRows,
        spec: &PackSpec,
        ranks: usize,
        ticks: &mut Ticks,
    ) -> Result<RankBins> {
        check_room(rows.lens.len())?;
        let items = rows.items(ticks)?;
        let freely = PackSpec { min_bins: 0, bins_multiple_of: 1, num_bins: None, ..spec.clone() };
        let of_bins = |bins: usize, capacity| PackSpec {
            num_bins: Some(bins.min(items.len())),
            capacity,
            ..freely.clone()
        };
        let (mut bins, wanted, capacity) = match spec.num_bins {
            None => {
                let bins = rows.pack(&freely, ticks)?;
                let most = bins.len().max(spec.min_bins);
                (bins, most.next_multiple_of(spec.bins_multiple_of), spec.capacity)
            }
            Some(wanted) => {
                let bins = rows.pack(&of_bins(wanted, spec.capacity), ticks)?;
                let load =
                    |bin: &Vec<usize>| bin.iter().map(|&row| spec.round_up(rows.lens[row])).sum();
                let capacity = bins.iter().map(load).max().unwrap_or(1);
                (bins, wanted, capacity)
            }
        };
        let is_free = spec.growth == Growth::Move;
        if let Self::Balanced { costs, .. } = self
            && is_free
            && items.len() >= wanted
        {
            let spec = PackSpec { capacity, ..freely.clone() };
            let part = Parting { rows, items: &items, costs, spec };
            if let Some(bins) = part.bins(ranks, wanted / ranks, ticks)? {
                return Ok(RankBins { filled: bins.len(), bins });
            }
        }
        if wanted > bins.len() {
            let is_fitted = is_free && matches!(self, Self::Balanced { .. });
            let grown = match is_fitted {
                true => of_bins(wanted, capacity),
                false => PackSpec { min_bins: wanted.min(items.len()), ..freely },
            };
            bins = rows.pack(&grown, ticks)?;
        }
        check_room(wanted)?;
        let filled = bins.len();
        bins.resize(wanted.max(filled), Vec::new());
        let cost = |rows: &Vec<usize>, costs: &[f64]| (!rows.is_empty()).then(|| sum(rows, costs));
        let bins = self.deal(bins, cost, ranks, ticks)?;
        Ok(RankBins { bins, filled })
    }
}

/// Rows assigned to ranks before packing.
struct Parting<'a> {
    rows: PackedRows<'a>,
    items: &'a Items,
    /// Costs of rows.
    costs: &'a [f64],
    /// Packing options for the rows of a rank.
    spec: PackSpec,
}

impl Parting<'_> {
    /// The bins of all ranks, `each` per rank; None if a rank needs more.
    fn bins(
        &self,
        ranks: usize,
        each: usize,
        ticks: &mut Ticks,
    ) -> Result<Option<Vec<Vec<usize>>>> {
        let items = 0..self.items.len();
        let costs = ticks.gathered(items.map(|item| sum(self.items.get(item), self.costs)))?;
        let mut parts = largest_first(&costs, ranks, usize::MAX, ticks)?;
        let slowest = parts.iter().map(|part| sum(part, &costs)).fold(0.0, f64::max);
        if slowest * ranks as f64 > costs.iter().sum::<f64>() * (1.0 + UNEVEN) {
            parts = swap(&costs, &parts, false, rounds(ranks, costs.len()), ticks)?;
        }
        let mut parts: Vec<_> = parts.iter().map(<[_]>::to_vec).collect();
        ticks.done(costs.len())?;
        give_enough(&mut parts, &costs, each);
        let mut all = Vec::with_capacity(ranks * each);
        for part in parts {
            let Some(bins) = self.bins_of(&part, &costs, each, ticks)? else {
                return Ok(None);
            };
            let costs = ticks.gathered(bins.iter().map(|rows| sum(rows, self.costs)))?;
            let indices: Vec<_> = (0..bins.len()).collect();
            let order = costly_first(&indices, &costs, ticks)?.into_iter();
            all.extend(ticks.gathered(order.map(|bin| bins[bin].clone()))?);
        }
        Ok(Some(all))
    }

    /// The bins of a rank.
    fn bins_of(
        &self,
        part: &[usize],
        costs: &[f64],
        each: usize,
        ticks: &mut Ticks,
    ) -> Result<Option<Vec<Vec<usize>>>> {
        let items = ticks.gathered(part.iter().map(|&item| self.items.get(item)))?;
        let costs = ticks.gathered(part.iter().map(|&item| costs[item]))?;
        if let Some(bins) = self.level(&items, &costs, each, ticks)? {
            return Ok(Some(bins));
        }
        let bins = self.rows.pack_some(&items, &self.spec, ticks)?;
        if bins.len() >= each {
            return Ok((bins.len() == each).then_some(bins));
        }
        let fitted = PackSpec { num_bins: Some(each), ..self.spec.clone() };
        self.rows.pack_some(&items, &fitted, ticks).map(Some)
    }

    /// Give each item, the costliest first, to the cheapest bin with capacity for it; None if an
    /// item does not fit, or a bin stays empty.
    fn level(
        &self,
        items: &[&[usize]],
        costs: &[f64],
        bins: usize,
        ticks: &mut Ticks,
    ) -> Result<Option<Vec<Vec<usize>>>> {
        let limit = self.spec.limit();
        let load = |rows: &[usize]| Load {
            size: rows.iter().map(|&row| self.spec.round_up(self.rows.lens[row])).sum(),
            count: rows.len(),
            cost: self.rows.limited.map_or(0.0, |costs| sum(rows, costs)),
        };
        let empty = Load { size: 0, count: 0, cost: 0.0 };
        let loads_of_items = ticks.gathered(items.iter().map(|rows| load(rows)))?;
        let total = loads_of_items.iter().map(|load| load.size).fold(0, usize::saturating_add);
        if total as f64 > limit.size as f64 * bins as f64 * FULL {
            return Ok(None);
        }
        let mut loads = vec![empty; bins];
        let mut members = vec![Vec::new(); bins];
        // Costs are not negative, so their bits are ordered like them.
        let mut least: BinaryHeap<_> =
            (0..bins).map(|bin| Reverse((0_u64, 0_usize, bin))).collect();
        let mut full = Vec::new();
        // If most bins are full, finding one that is not takes too long.
        let mut misses = items.len();
        let indices: Vec<_> = (0..items.len()).collect();
        for item in costly_first(&indices, costs, ticks)? {
            ticks.done(1)?;
            let load = loads_of_items[item];
            loop {
                let Some(Reverse((cost, count, bin))) = least.pop() else {
                    return Ok(None);
                };
                if !loads[bin].has_room_for(load, limit) {
                    if misses == 0 {
                        return Ok(None);
                    }
                    misses -= 1;
                    full.push(Reverse((cost, count, bin)));
                    continue;
                }
                loads[bin] = loads[bin].plus(load);
                members[bin].extend_from_slice(items[item]);
                let cost = f64::from_bits(cost) + costs[item];
                least.push(Reverse((cost.to_bits(), count + 1, bin)));
                break;
            }
            least.extend(full.drain(..));
        }
        for rows in &mut members {
            if rows.is_empty() {
                return Ok(None);
            }
            sort(rows, ticks)?;
        }
        Ok(Some(members))
    }
}

/// Give ranks with fewer than `each` items the cheapest items of the ranks with most, while those
/// have more than `each`.
fn give_enough(parts: &mut [Vec<usize>], costs: &[f64], each: usize) {
    let mut counts: BinaryHeap<_> =
        parts.iter().enumerate().map(|(rank, part)| (part.len(), Reverse(rank))).collect();
    for rank in 0..parts.len() {
        while parts[rank].len() < each {
            let Some((_, Reverse(donor))) = counts.pop() else {
                return;
            };
            if parts[donor].len() <= each {
                continue;
            }
            let cheapest = (0..parts[donor].len())
                .min_by(|&a, &b| costs[parts[donor][a]].total_cmp(&costs[parts[donor][b]]));
            let item = parts[donor].remove(cheapest.unwrap_or(0));
            counts.push((parts[donor].len(), Reverse(donor)));
            parts[rank].push(item);
        }
        parts[rank].sort_unstable();
    }
}
