//! Packing by options: the units of packing, the limits of bins, and their number.

use std::borrow::Cow;

use super::pieces::{Members, Packables, Pieces, counts_of, groups_of_parts};
use super::{ItemBins, Items, Load, Oversized, Packer, concat, fit, halve, spread};
use crate::error::{Error, Result};
use crate::memory::check_room;
use crate::plan::{Bins, Costs, Span};
use crate::polling::Ticks;

/// Maximum number of pieces that all sequences together are split into.
const MAX_PIECES: usize = 1 << 26;

/// Cost of a token besides attention, in units of a pair of tokens in attention.
const FLOPS_PER_TOKEN: u128 = 24_576;

/// The packing algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Sequences are placed whole, or in pieces if they exceed a bin.
    Pack(Packer),
    /// Sequences are laid end to end, cut where a bin is full.
    Concat,
}

/// Treatment of a sequence that exceeds a bin by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oversize {
    /// It is an error.
    Error,
    /// It gets a bin of its own, which exceeds the limit.
    OwnBin,
    /// It is split into pieces of the maximum length, and a rest.
    Split,
}

/// The way of adding bins, if there are fewer than required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// New bins take the last sequences of the bins with the most sequences.
    Move,
    /// The costliest bin is split in two, repeatedly.
    Split,
}

/// Packing options.
#[derive(Debug, Clone, PartialEq)]
pub struct PackSpec {
    /// The packing algorithm.
    pub algorithm: Algorithm,
    /// Treatment of a sequence that exceeds a bin.
    pub oversize: Oversize,
    /// Maximum number of tokens in a bin, counted in places. Not 0.
    pub capacity: usize,
    /// Maximum number of sequences, or pieces of them, in a bin. Not 0.
    pub max_sequences: usize,
    /// The place of a sequence is rounded up to a multiple of this. Not 0.
    pub multiple_of: usize,
    /// Maximum cost of a bin; infinite if costs do not count.
    pub max_cost: f64,
    /// Cost of a bin besides its sequences.
    pub bin_cost: f64,
    /// Number of bins, of the smallest capacity that suffices; None for as many as needed.
    pub num_bins: Option<usize>,
    /// Minimum number of bins.
    pub min_bins: usize,
    /// The number of bins is a multiple of this. Not 0.
    pub bins_multiple_of: usize,
    /// True if there may be fewer bins, each with one item, than the two numbers require.
    pub allow_fewer_bins: bool,
    /// The way of adding bins.
    pub growth: Growth,
}

/// A function from the lengths of sequences to their costs, in order: finite, not negative.
pub type CostFunction<'a> = &'a (dyn Fn(&[usize]) -> Result<Vec<f64>> + Sync);

/// Costs of sequences.
pub enum Cost<'a> {
    /// Their numbers of tokens.
    Tokens,
    /// Linear in tokens, and quadratic for attention: the workload of verl.
    Flops,
    /// Costs per token, pair of tokens and sequence.
    Linear(&'a Costs),
    /// The cost of each sequence.
    Given(&'a [f64]),
    /// The result of a function.
    Function(CostFunction<'a>),
}

impl Cost<'_> {
    #[allow(clippy::cast_precision_loss, reason = "costs are floats")]
    fn of(&self, lens: &[usize]) -> Result<Vec<f64>> {
        Ok(match self {
            Self::Tokens => lens.iter().map(|&len| len as f64).collect(),
            Self::Flops => {
                let flops = |&len: &usize| (len as u128 * (len as u128 + FLOPS_PER_TOKEN)) as f64;
                lens.iter().map(flops).collect()
            }
            Self::Linear(costs) => lens.iter().map(|&len| costs.of(len)).collect(),
            Self::Given(costs) => costs.to_vec(),
            Self::Function(function) => function(lens)?,
        })
    }
}

impl PackSpec {
    /// Pack sequences of these lengths, or groups of them: `groups` has the index of each
    /// sequence's group, in the order of first sequences.
    ///
    /// # Errors
    /// [`Error::Oversized`], [`Error::NoPiece`], [`Error::CostOfPieces`], [`Error::TooManyPieces`]
    /// and [`Error::TooFewItems`]; errors of a cost function, and errors of `ticks`.
    pub fn pack(
        &self,
        lens: &[usize],
        groups: Option<&[usize]>,
        cost: &Cost,
        ticks: &mut Ticks,
    ) -> Result<Bins> {
        check_room(lens.len())?;
        match self.algorithm {
            Algorithm::Concat => self.concat(lens, cost, ticks),
            Algorithm::Pack(packer) => {
                let mut pieces = Pieces::whole(lens, groups);
                if self.oversize == Oversize::Split {
                    self.split(&mut pieces, cost, ticks)?;
                }
                let items = self.items(&pieces, cost, ticks)?;
                self.check(&items, &pieces)?;
                ticks.done(pieces.lens.len())?;
                let (as_items, noun) = (items.as_items(self.limit()), items.noun(&pieces));
                let packed = match self.num_bins {
                    None => packer.pack(as_items, self.limit(), ticks)?,
                    Some(bins) => self.fit(packer, as_items, bins, noun, ticks)?,
                };
                let packed = self.grow(packed, items.costs.as_deref(), noun, ticks)?;
                items.expand(packed, &pieces, ticks)
            }
        }
    }

    /// The limit of a bin.
    pub(in crate::plan) fn limit(&self) -> Load {
        Load { size: self.capacity, count: self.max_sequences, cost: self.max_cost - self.bin_cost }
    }

    /// The limit of a whole tree, whose place is rounded up.
    pub(in crate::plan) fn whole_limit(&self) -> Load {
        Load { size: self.capacity - self.capacity % self.multiple_of, ..self.limit() }
    }

    /// The capacity that a piece takes.
    pub(in crate::plan) fn round_up(&self, len: usize) -> usize {
        len.checked_next_multiple_of(self.multiple_of).unwrap_or(usize::MAX)
    }

    /// Costs of pieces of these lengths, if costs count.
    pub(in crate::plan) fn costs(&self, lens: &[usize], cost: &Cost) -> Result<Option<Vec<f64>>> {
        if !self.counts_costs() {
            return Ok(None);
        }
        cost.of(lens).map(Some)
    }

    /// True if costs limit bins, or select the bin to split.
    pub(in crate::plan) fn counts_costs(&self) -> bool {
        self.max_cost < f64::INFINITY || self.growth == Growth::Split
    }

    /// Lay sequences end to end, and cut them into bins.
    fn concat(&self, lens: &[usize], cost: &Cost, ticks: &mut Ticks) -> Result<Bins> {
        let first_longest = (0..lens.len()).max_by_key(|&index| (lens[index], usize::MAX - index));
        if let Some(index) = first_longest.filter(|&index| lens[index] > 0) {
            let longest = self.longest_piece(lens, index, cost)?;
            check_pieces(lens.iter().map(|len| len / longest).sum())?;
            ticks.done(lens.len())?;
        }
        let multiple = self.multiple_of.min(self.capacity);
        let bins = concat(lens, self.capacity, multiple, self.max_sequences, ticks)?;
        let pieces = ticks.gathered(bins.spans.iter().map(|span| span.len))?;
        let costs = self.costs(&pieces, cost)?;
        let packed = ItemBins { offsets: bins.offsets, items: ticks.gathered(0..pieces.len())? };
        let packed = self.grow(packed, costs.as_deref(), "piece", ticks)?;
        let piece = |&item: &usize| bins.spans[item];
        Ok(Bins { spans: ticks.gathered(packed.items.iter().map(piece))?, offsets: packed.offsets })
    }

    /// Split sequences that exceed a bin and are alone in their group.
    fn split(&self, pieces: &mut Pieces, cost: &Cost, ticks: &mut Ticks) -> Result<()> {
        let lens = &pieces.lens;
        let costs = self.costs(lens, cost)?;
        let counts = pieces.groups.as_ref().map(|groups| counts_of(groups));
        let exceeds = |index: usize| {
            let is_large = self.round_up(lens[index]) > self.capacity
                || costs.as_ref().is_some_and(|costs| costs[index] > self.limit().cost);
            let group = pieces.groups.as_ref().map(|groups| groups[index]);
            let is_alone =
                counts.as_ref().zip(group).is_none_or(|(counts, group)| counts[group] == 1);
            is_large && is_alone
        };
        let exceeds = ticks.gathered((0..lens.len()).map(exceeds))?;
        let Some(first) = exceeds.iter().position(|&exceeds| exceeds) else {
            return Ok(());
        };
        let longest = self.longest_piece(lens, first, cost)?;
        let count = |index: usize| match exceeds[index] {
            true => lens[index].div_ceil(longest),
            false => 1,
        };
        let total = (0..lens.len()).map(count).fold(0, usize::saturating_add);
        check_pieces(total)?;
        ticks.done(lens.len())?;
        let mut parts = Vec::with_capacity(total);
        for (index, &len) in lens.iter().enumerate() {
            let most = if exceeds[index] { longest } else { len };
            for number in 0..count(index) {
                ticks.done(1)?;
                let from = number * most;
                parts.push(Span { index, from, len: most.min(len - from) });
            }
        }
        if let Some(groups) = &mut pieces.groups {
            *groups = groups_of_parts(groups, &parts).into();
            ticks.done(parts.len())?;
        }
        pieces.lens = ticks.gathered(parts.iter().map(|part| part.len))?.into();
        pieces.parts = Some(parts);
        Ok(())
    }

    /// The units of packing.
    fn items<'a>(
        &self,
        pieces: &'a Pieces,
        cost: &Cost,
        ticks: &mut Ticks,
    ) -> Result<Packables<'a>> {
        let costs = self.costs(&pieces.lens, cost)?;
        let sizes: Cow<[_]> = match self.multiple_of {
            1 => (&*pieces.lens).into(),
            _ => ticks.gathered(pieces.lens.iter().map(|&len| self.round_up(len)))?.into(),
        };
        let Some(groups) = &pieces.groups else {
            return Ok(Packables { sizes, costs, members: None });
        };
        let members = Members::of(groups, ticks)?;
        let count = members.counts.len();
        let mut sums = vec![0; count];
        for (&group, &size) in groups.iter().zip(&*sizes) {
            sums[group] = size.saturating_add(sums[group]);
        }
        ticks.done(groups.len())?;
        let costs = costs.map(|costs| {
            let mut sums = vec![0.0; count];
            for (&group, cost) in groups.iter().zip(costs) {
                sums[group] += cost;
            }
            sums
        });
        Ok(Packables { sizes: sums.into(), costs, members: Some(members) })
    }

    /// Check that every item fits a bin, or that bins may exceed the limit; errors name the largest.
    fn check(&self, items: &Packables, pieces: &Pieces) -> Result<()> {
        let found = |item: usize, oversized: Oversized| {
            let members = items.members_of(item);
            let piece = pieces.get(members[0]);
            Error::Oversized {
                sequence: piece.index,
                len: piece.len,
                together: members.len(),
                oversized,
                may_split: items.noun(pieces) == "sequence",
            }
        };
        if let Some(members) = &items.members
            && let Some(item) = members.counts.iter().position(|&count| count > self.max_sequences)
        {
            let limit = self.max_sequences;
            return Err(found(item, Oversized::Sequences { limit }));
        }
        if self.oversize == Oversize::OwnBin {
            return Ok(());
        }
        let sizes = items.sizes.iter().enumerate().rev();
        if let Some((item, &tokens)) = sizes.max_by_key(|(_, size)| **size)
            && tokens > self.capacity
        {
            let limit = self.capacity;
            return Err(found(item, Oversized::Tokens { tokens, limit }));
        }
        let costs = items.costs.iter().flatten().enumerate();
        if let Some((item, &cost)) = costs.max_by(|(_, a), (_, b)| a.total_cmp(b))
            && cost > self.limit().cost
        {
            let (cost, limit) = (cost + self.bin_cost, self.max_cost);
            return Err(found(item, Oversized::Cost { cost, limit }));
        }
        Ok(())
    }

    /// Length of the pieces of split sequences; errors name the sequence `index`.
    fn longest_piece(&self, lens: &[usize], index: usize, cost: &Cost) -> Result<usize> {
        let (len, multiple) = (lens[index], self.multiple_of);
        let most = self.capacity / multiple;
        if most == 0 {
            let capacity = self.capacity;
            return Err(Error::NoRoom { multiple, capacity });
        }
        if let (Cost::Given(_), true) = (cost, self.counts_costs()) {
            return Err(Error::CostOfPieces { index, len });
        }
        if self.max_cost == f64::INFINITY {
            return Ok(most * multiple);
        }
        let cost_of =
            |multiples: usize| Ok::<_, Error>(cost.of(&[multiples * multiple])?[0] + self.bin_cost);
        // The maximum length within the cost limit, by bisection.
        let (mut fits, mut exceeds) = (0, most + 1);
        while exceeds - fits > 1 {
            let middle = usize::midpoint(fits, exceeds);
            if cost_of(middle)? <= self.max_cost {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
        if fits == 0 {
            return Err(Error::NoPiece {
                index,
                len,
                tokens: multiple,
                cost: cost_of(1)?,
                limit: self.max_cost,
            });
        }
        Ok(fits * multiple)
    }

    /// Pack items into the given number of bins, of the smallest capacity that suffices.
    fn fit(
        &self,
        packer: Packer,
        items: Items,
        bins: usize,
        noun: &'static str,
        ticks: &mut Ticks,
    ) -> Result<ItemBins> {
        let count = items.sizes.len();
        if bins > count && count > 0 {
            return Err(Error::TooManyBins { bins, items: count, noun });
        }
        match fit(packer, items, bins, self.limit(), ticks)? {
            Some(packed) => spread(&packed, bins, ticks),
            None => Err(Error::NoFit { bins }),
        }
    }

    /// Add bins, if there are fewer than required; costs are those of items.
    ///
    /// # Errors
    /// [`Error::TooFewItems`], and errors of `ticks`.
    pub fn grow(
        &self,
        packed: ItemBins,
        costs: Option<&[f64]>,
        noun: &'static str,
        ticks: &mut Ticks,
    ) -> Result<ItemBins> {
        let needed = self.needed(packed.count(), packed.items.len(), noun)?;
        self.grow_to(needed, packed, costs, ticks)
    }

    /// Add bins up to the given number, for which there are enough items; costs are given if they
    /// count.
    pub(in crate::plan) fn grow_to(
        &self,
        needed: usize,
        packed: ItemBins,
        costs: Option<&[f64]>,
        ticks: &mut Ticks,
    ) -> Result<ItemBins> {
        match (self.growth, costs) {
            _ if needed <= packed.count() => Ok(packed),
            (Growth::Split, Some(costs)) => halve(&packed, costs, needed, ticks),
            _ => spread(&packed, needed, ticks),
        }
    }

    /// Number of bins required if the given number suffices; each needs an item.
    pub(in crate::plan) fn needed(
        &self,
        found: usize,
        items: usize,
        noun: &'static str,
    ) -> Result<usize> {
        let multiple = self.bins_multiple_of;
        let needed = found.max(self.min_bins).div_ceil(multiple).saturating_mul(multiple);
        if self.allow_fewer_bins {
            return Ok(needed.min(found.max(items)));
        }
        if needed <= found.max(items) {
            return Ok(needed);
        }
        Err(Error::TooFewItems {
            needed,
            min_bins: (self.min_bins > found).then_some(self.min_bins),
            multiple_of: (multiple > 1).then_some(multiple),
            items,
            noun,
        })
    }
}

fn check_pieces(count: usize) -> Result<()> {
    if count > MAX_PIECES {
        return Err(Error::TooManyPieces { most: MAX_PIECES });
    }
    check_room(count)
}
