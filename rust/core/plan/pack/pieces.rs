//! Units of packing: sequences, pieces of split ones, or groups of either.

use std::borrow::Cow;

use super::{ItemBins, Items, Load};
use crate::error::Result;
use crate::plan::{Bins, Span};
use crate::polling::Ticks;

/// Sequences, or pieces of them, and their groups.
pub(super) struct Pieces<'a> {
    pub(super) lens: Cow<'a, [usize]>,
    /// The sequence of each piece; None if each piece is a whole sequence.
    pub(super) parts: Option<Vec<Span>>,
    pub(super) groups: Option<Cow<'a, [usize]>>,
}

impl<'a> Pieces<'a> {
    pub(super) fn whole(lens: &'a [usize], groups: Option<&'a [usize]>) -> Self {
        Self { lens: lens.into(), parts: None, groups: groups.map(Cow::from) }
    }

    pub(super) fn get(&self, index: usize) -> Span {
        match &self.parts {
            Some(parts) => parts[index],
            None => Span { index, from: 0, len: self.lens[index] },
        }
    }
}

/// Units that lie in one bin: sequences, pieces or groups of them.
pub(super) struct Packables<'a> {
    pub(super) sizes: Cow<'a, [usize]>,
    pub(super) costs: Option<Vec<f64>>,
    /// The pieces of each group; None if each unit is one piece.
    pub(super) members: Option<Members>,
}

impl Packables<'_> {
    pub(super) fn as_items(&self, limit: Load) -> Items<'_> {
        Items {
            sizes: &self.sizes,
            counts: self.members.as_ref().map(|members| &*members.counts),
            // Packers take longer with costs.
            costs: self.costs.as_deref().filter(|_| limit.cost < f64::INFINITY),
        }
    }

    pub(super) fn noun(&self, pieces: &Pieces) -> &'static str {
        match (&self.members, &pieces.parts) {
            (Some(_), _) => "group",
            (None, Some(_)) => "piece",
            (None, None) => "sequence",
        }
    }

    /// The pieces of an item.
    pub(super) fn members_of(&self, item: usize) -> Vec<usize> {
        match &self.members {
            Some(members) => members.of_item(item).to_vec(),
            None => vec![item],
        }
    }

    /// Bins of items as bins of pieces.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub(super) fn expand(
        &self,
        packed: ItemBins,
        pieces: &Pieces,
        ticks: &mut Ticks,
    ) -> Result<Bins> {
        let Some(members) = &self.members else {
            let spans = packed.items.iter().map(|&item| pieces.get(item));
            return Ok(Bins { spans: ticks.gathered(spans)?, offsets: packed.offsets });
        };
        let mut bins = Bins { offsets: vec![0], spans: Vec::with_capacity(pieces.lens.len()) };
        for bin in 0..packed.count() {
            for &item in packed.items(bin) {
                ticks.done(1)?;
                let of_item = members.of_item(item).iter();
                bins.spans.extend(of_item.map(|&piece| pieces.get(piece)));
            }
            bins.offsets.push(bins.spans.len());
        }
        Ok(bins)
    }
}

/// The pieces of every group, in order.
pub(super) struct Members {
    offsets: Vec<usize>,
    pieces: Vec<usize>,
    pub(super) counts: Vec<usize>,
}

impl Members {
    /// # Errors
    /// Those of `ticks`.
    pub(super) fn of(groups: &[usize], ticks: &mut Ticks) -> Result<Self> {
        let counts = counts_of(groups);
        ticks.done(groups.len())?;
        let mut offsets = vec![0];
        for count in &counts {
            offsets.push(offsets[offsets.len() - 1] + count);
        }
        let mut ends = offsets.clone();
        let mut pieces = vec![0; groups.len()];
        for (piece, &group) in groups.iter().enumerate() {
            ticks.done(1)?;
            pieces[ends[group]] = piece;
            ends[group] += 1;
        }
        Ok(Self { offsets, pieces, counts })
    }

    pub(super) fn of_item(&self, item: usize) -> &[usize] {
        &self.pieces[self.offsets[item]..self.offsets[item + 1]]
    }
}

/// Number of pieces in each group.
pub(super) fn counts_of(groups: &[usize]) -> Vec<usize> {
    let mut counts = vec![0; groups.iter().max().map_or(0, |last| last + 1)];
    for &group in groups {
        counts[group] += 1;
    }
    counts
}

/// The groups of parts, numbered in the order of their first parts: a split sequence was alone in
/// its group, and every part of it is a group of its own.
pub(super) fn groups_of_parts(groups: &[usize], parts: &[Span]) -> Vec<usize> {
    let mut again = vec![None; groups.len()];
    let mut next = 0;
    let mut of_parts = Vec::with_capacity(parts.len());
    for part in parts {
        let known = match part.from {
            0 => again[groups[part.index]],
            _ => None,
        };
        let group = known.unwrap_or(next);
        next = next.max(group + 1);
        if part.from == 0 {
            again[groups[part.index]] = Some(group);
        }
        of_parts.push(group);
    }
    of_parts
}
