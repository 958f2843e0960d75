//! The step: mini-batches are padded and split among data-parallel ranks.

use std::mem;
use std::ops::Range;

use super::partition::{First, Item, balance};
use super::ranks::Deal;
use crate::error::Result;
use crate::memory::check_room;
use crate::polling::Ticks;

/// Padding of ranks with fewer rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Copies of the mini-batch's first row.
    CopyFirst,
    /// Copies of the mini-batch's rows in order, from the first.
    CopyCycle,
    /// Synthetic rows.
    Synthetic,
    /// No padding: a rank with fewer rows is an error.
    Refused,
}

/// The place of one row in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The row written there; None for a synthetic one.
    pub row: Option<usize>,
    /// True for padding.
    pub is_padding: bool,
}

/// Options for splitting a step.
#[derive(Debug, Clone, Copy)]
pub struct Split<'a> {
    /// Number of ranks, at least one.
    pub ranks: usize,
    /// Assignment of rows to ranks.
    pub deal: Deal<'a>,
    /// Padding of ranks.
    pub padding: Padding,
    /// Offsets of the groups whose rows stay together, one more than groups. Mini-batches begin at
    /// groups.
    pub groups: Option<&'a [usize]>,
}

/// A mini-batch cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indivisible {
    /// The mini-batch.
    pub mini_batch: usize,
    /// The cause.
    pub cause: Cause,
}

/// The cause of an indivisible mini-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Padding is refused, but the number of rows is not a multiple of the ranks.
    Rows,
    /// Padding is refused, but this group would have to be split.
    Group(usize),
    /// Padded to the largest rank, there would be more than [`MAX_SLOTS`].
    Slots,
}

/// Slots filled between two looks for signals.
const AT_ONCE: usize = 1 << 16;

/// Maximum number of slots in a step.
pub const MAX_SLOTS: usize = 1 << 26;

/// All slots of a step, by mini-batch, rank and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    /// The slots; the ranks of a mini-batch have the same number.
    pub slots: Vec<Slot>,
    /// Offsets of mini-batches in the slots, one more than mini-batches.
    pub offsets: Vec<usize>,
}

impl Split<'_> {
    /// Split mini-batches, given by their offsets in rows.
    ///
    /// Rows of a rank keep their order, followed by padding. Padding is distributed evenly, as far
    /// as rows stay in order or together: no rank has only padding if there are at least as many
    /// rows or groups as ranks.
    ///
    /// # Errors
    /// Those of `ticks`; the inner error is [`Indivisible`], if padding is refused or would be too
    /// much.
    pub fn slots(
        &self,
        mini_batches: &[usize],
        ticks: &mut Ticks,
    ) -> Result<Result<Slots, Indivisible>> {
        let rows = mini_batches.last().copied().unwrap_or(0);
        check_room(rows)?;
        let mut slots = Slots { slots: Vec::with_capacity(rows), offsets: vec![0] };
        let mut next_group = 0;
        for (mini_batch, bounds) in mini_batches.windows(2).enumerate() {
            let rows = bounds[0]..bounds[1];
            let indivisible = |cause| Indivisible { mini_batch, cause };
            if self.padding == Padding::Refused && rows.len() % self.ranks != 0 {
                return Ok(Err(indivisible(Cause::Rows)));
            }
            match self.groups {
                None => self.assign_rows(&rows, &mut slots.slots, ticks)?,
                Some(groups) => {
                    let first = next_group;
                    while groups[next_group] < rows.end {
                        next_group += 1;
                    }
                    let groups = &groups[first..=next_group];
                    if let Err(cause) = self.assign_groups(rows, groups, &mut slots.slots, ticks)? {
                        return Ok(Err(indivisible(match cause {
                            Cause::Group(group) => Cause::Group(first + group),
                            other => other,
                        })));
                    }
                }
            }
            slots.offsets.push(slots.slots.len());
        }
        Ok(Ok(slots))
    }

    /// Split a mini-batch row by row.
    fn assign_rows(
        &self,
        rows: &Range<usize>,
        slots: &mut Vec<Slot>,
        ticks: &mut Ticks,
    ) -> Result<()> {
        ticks.done(rows.len())?;
        match self.deal {
            Deal::Contiguous => self.fill_up(rows, rows.clone(), slots, ticks)?,
            Deal::Strided => {
                let of_rank = |rank| (rows.start + rank..rows.end).step_by(self.ranks);
                self.fill_up(rows, (0..self.ranks).flat_map(of_rank), slots, ticks)?;
            }
            Deal::Balanced { costs, synthetic } => {
                let count = rows.len().div_ceil(self.ranks);
                let padding = |index| {
                    let row = self.padding_row(rows, index).row;
                    let cost = row.map_or(synthetic, |row| costs[row]);
                    Item { rows: 1, cost }
                };
                let num_padding = self.ranks * count - rows.len();
                let mut taken = vec![Item::NOTHING; self.ranks - num_padding];
                taken.extend((0..num_padding).map(padding));
                let item = |&cost| Item { rows: 1, cost };
                let items = ticks.gathered(costs[rows.clone()].iter().map(item))?;
                let ranks = balance(&items, &taken, count, First::Costly, ticks)?
                    .expect("there is room for every row");
                let by_rank = by_rank(&ranks, self.ranks, ticks)?.into_iter();
                self.fill_up(rows, by_rank.map(|index| rows.start + index), slots, ticks)?;
            }
        }
        Ok(())
    }

    /// Assign rows in this order, the same number to every rank; the last ranks have a padding row
    /// each.
    fn fill_up(
        &self,
        rows: &Range<usize>,
        mut by_rank: impl Iterator<Item = usize>,
        slots: &mut Vec<Slot>,
        ticks: &mut Ticks,
    ) -> Result<()> {
        let count = rows.len().div_ceil(self.ranks);
        let num_full = self.ranks - (self.ranks * count - rows.len());
        for rank in 0..self.ranks {
            let padding = rank.checked_sub(num_full);
            let num_real = count - usize::from(padding.is_some());
            for begin in (0..num_real).step_by(AT_ONCE) {
                let count = AT_ONCE.min(num_real - begin);
                slots.extend(
                    by_rank
                        .by_ref()
                        .take(count)
                        .map(|row| Slot { row: Some(row), is_padding: false }),
                );
                ticks.done(count)?;
            }
            slots.extend(padding.map(|index| self.padding_row(rows, index)));
        }
        Ok(())
    }

    /// Split a mini-batch by groups, given by their offsets in rows.
    ///
    /// # Errors
    /// Those of `ticks`; the inner error is the cause of an indivisible mini-batch.
    fn assign_groups(
        &self,
        rows: Range<usize>,
        groups: &[usize],
        slots: &mut Vec<Slot>,
        ticks: &mut Ticks,
    ) -> Result<Result<(), Cause>> {
        let lens = ticks.gathered(groups.windows(2).map(|ends| ends[1] - ends[0]))?;
        let ranks = match self.deal {
            Deal::Contiguous => in_order(&lens, self.ranks, ticks)?,
            Deal::Strided => ticks.gathered((0..lens.len()).map(|group| group % self.ranks))?,
            Deal::Balanced { costs, .. } => {
                let item = |ends: &[usize]| Item {
                    rows: ends[1] - ends[0],
                    cost: costs[ends[0]..ends[1]].iter().sum(),
                };
                let items = ticks.gathered(groups.windows(2).map(item))?;
                balance_groups(&items, self.ranks, ticks)?
            }
        };
        let mut counts = vec![0; self.ranks];
        for (&rank, len) in ranks.iter().zip(&lens) {
            counts[rank] += len;
        }
        let count = counts.iter().copied().max().unwrap_or(0);
        if self.padding == Padding::Refused && count * self.ranks > rows.len() {
            return Ok(Err(Cause::Group(self.torn_group(&lens, &ranks))));
        }
        if count.saturating_mul(self.ranks) > MAX_SLOTS - slots.len().min(MAX_SLOTS) {
            return Ok(Err(Cause::Slots));
        }
        let mut groups_by_rank = by_rank(&ranks, self.ranks, ticks)?.into_iter().peekable();
        let mut paddings = 0..;
        for (rank, rows_of_rank) in counts.into_iter().enumerate() {
            ticks.done(count)?;
            while let Some(group) = groups_by_rank.next_if(|&group| ranks[group] == rank) {
                slots.extend(
                    (groups[group]..groups[group + 1])
                        .map(|row| Slot { row: Some(row), is_padding: false }),
                );
            }
            let missing = paddings.by_ref().take(count - rows_of_rank);
            slots.extend(missing.map(|index| self.padding_row(&rows, index)));
        }
        Ok(Ok(()))
    }

    /// The first group that makes ranks have different numbers of rows.
    fn torn_group(&self, lens: &[usize], ranks: &[usize]) -> usize {
        let count = lens.iter().sum::<usize>() / self.ranks;
        let mut filled = vec![0; self.ranks];
        let mut end = 0;
        let is_too_much = |(&len, &rank): (&usize, &usize)| {
            if self.deal == Deal::Contiguous {
                let start = end;
                end += len;
                return start % count + len > count;
            }
            filled[rank] += len;
            filled[rank] > count
        };
        let split = lens.iter().zip(ranks).position(is_too_much);
        split.expect("a rank has more rows than the others")
    }

    /// The padding row of the given index in the mini-batch of `rows`.
    fn padding_row(&self, rows: &Range<usize>, index: usize) -> Slot {
        let row = match self.padding {
            Padding::CopyFirst => Some(rows.start),
            Padding::CopyCycle => Some(rows.start + index % rows.len()),
            Padding::Synthetic | Padding::Refused => None,
        };
        Slot { row, is_padding: true }
    }
}

/// Indices by rank, in order within a rank.
///
/// # Errors
/// Those of `ticks`.
fn by_rank(rank_of: &[usize], ranks: usize, ticks: &mut Ticks) -> Result<Vec<usize>> {
    let mut next = vec![0; ranks];
    for &rank in rank_of {
        next[rank] += 1;
    }
    let mut start = 0;
    for next in &mut next {
        let count = mem::replace(next, start);
        start += count;
    }
    let mut sorted = vec![0; rank_of.len()];
    for (index, &rank) in rank_of.iter().enumerate() {
        ticks.done(1)?;
        sorted[next[rank]] = index;
        next[rank] += 1;
    }
    Ok(sorted)
}

/// Ranks of groups that stay in order: the rank with most rows has the fewest possible, and the
/// others about as many. No rank is empty if there are at least as many groups.
fn in_order(lens: &[usize], ranks: usize, ticks: &mut Ticks) -> Result<Vec<usize>> {
    let (least, most) = bounds(lens.iter().copied(), ranks);
    let capacity =
        first_that(least..most, |capacity| Ok(ranks_from(lens, capacity, ticks)?[0] <= ranks))?;
    let needed = ranks_from(lens, capacity, ticks)?;
    let mut rank_of = Vec::with_capacity(lens.len());
    let mut left: usize = lens.iter().sum();
    for others in (0..ranks).rev() {
        let part = left.div_ceil(others + 1);
        let (mut rows, start) = (0, rank_of.len());
        while let Some(&len) = lens.get(rank_of.len()) {
            ticks.done(1)?;
            let end = rank_of.len() + 1;
            // The other ranks need the remaining groups, at least one each if there are enough.
            let must = rank_of.len() == start || needed[rank_of.len()] > others;
            let may = rows + len <= capacity && lens.len() - end >= others;
            let is_nearer = (rows + len).abs_diff(part) <= rows.abs_diff(part);
            if must || (may && is_nearer) {
                rows += len;
                rank_of.push(ranks - 1 - others);
            } else {
                break;
            }
        }
        left -= rows;
    }
    Ok(rank_of)
}

/// For each group, the number of ranks within the capacity that it and all later groups need; 0 at
/// the end.
fn ranks_from(lens: &[usize], capacity: usize, ticks: &mut Ticks) -> Result<Vec<usize>> {
    let mut needed = vec![0; lens.len() + 1];
    let (mut end, mut rows) = (lens.len(), 0);
    for start in (0..lens.len()).rev() {
        ticks.done(1)?;
        rows += lens[start];
        while rows > capacity {
            end -= 1;
            rows -= lens[end];
        }
        needed[start] = 1 + needed[end];
    }
    Ok(needed)
}

/// Ranks of groups, by cost. The capacity of a rank in rows is the smallest that was found to
/// suffice, so that padding is small.
fn balance_groups(items: &[Item], ranks: usize, ticks: &mut Ticks) -> Result<Vec<usize>> {
    let (least, most) = bounds(items.iter().map(|item| item.rows), ranks);
    let taken = vec![Item::NOTHING; ranks];
    let mut by = |first, capacity| balance(items, &taken, capacity, first, ticks);
    if let Some(rank_of) = by(First::Costly, least)? {
        return Ok(rank_of);
    }
    let will_do = |capacity| Ok(by(First::Large, capacity)?.is_some());
    let capacity = first_that(least..most, will_do)?;
    let rank_of = match by(First::Costly, capacity)? {
        None => by(First::Large, capacity)?,
        found => found,
    };
    Ok(rank_of.expect("there is room for every group"))
}

/// Bounds of the fullest rank's rows: the minimum, and a number that always suffices.
fn bounds(lens: impl Iterator<Item = usize> + Clone, ranks: usize) -> (usize, usize) {
    let rows: usize = lens.clone().sum();
    let longest = lens.max().unwrap_or(0);
    (rows.div_ceil(ranks).max(longest), rows)
}

/// The first number of a range for which `will_do` holds, as it does for all after it; else its
/// end.
fn first_that(
    range: Range<usize>,
    mut will_do: impl FnMut(usize) -> Result<bool>,
) -> Result<usize> {
    let Range { mut start, mut end } = range;
    while start < end {
        let middle = start.midpoint(end);
        if will_do(middle)? {
            end = middle;
        } else {
            start = middle + 1;
        }
    }
    Ok(start)
}
