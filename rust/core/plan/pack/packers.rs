//! The packers: each has its order of items, and its choice of a bin for the next item.

use super::loads::{Least, OpenBins, Tree};
use super::{ItemBins, Items, Load, PlacedItem};
use crate::error::{Error, Result};
use crate::plan::partition::sort;
use crate::plan::{Bins, Span};
use crate::polling::Ticks;

/// First fit: each item goes to the first bin that it fits, in the given order of items.
///
/// # Errors
/// Those of `ticks`.
pub(super) fn first_fit(
    items: Items,
    limit: Load,
    order: impl ExactSizeIterator<Item = usize>,
    ticks: &mut Ticks,
) -> Result<ItemBins> {
    if items.are_plain() {
        return first_fit_by_size(items.sizes, limit, order, ticks);
    }
    let least = items.least();
    let mut loads = Tree::new(&[], ticks)?;
    let mut placed = Vec::with_capacity(order.len());
    for item in order {
        ticks.done(1)?;
        let load = items.get(item);
        let found = loads.first(0, |bin: Load| bin.has_room_for(load, limit));
        let bin = found.unwrap_or(loads.len());
        let load = found.map_or(load, |bin| loads.get(bin).plus(load));
        if found.is_none() {
            loads.push(load, ticks)?;
        }
        let is_open = load.has_room_for(least, limit);
        loads.set(bin, if is_open { load } else { Load::CLOSED });
        placed.push((item, bin));
    }
    ItemBins::new(&placed, loads.len(), ticks)
}

/// The same for items that count once and cost nothing: a tree of one number per bin.
fn first_fit_by_size(
    sizes: &[usize],
    limit: Load,
    order: impl ExactSizeIterator<Item = usize>,
    ticks: &mut Ticks,
) -> Result<ItemBins> {
    // The last bin is not in the tree: most items go there, and each would update the tree up to
    // the root.
    let mut loads = Tree::new(&[], ticks)?;
    let mut last = usize::CLOSED;
    let mut counts = vec![0_usize];
    let mut placed = Vec::with_capacity(order.len());
    let (mut size, mut bin) = (0, 0);
    for item in order {
        ticks.done(1)?;
        // Bins only fill up: a bin too full for the previous item is too full for an equal one.
        let from = if sizes[item] == size { bin } else { 0 };
        size = sizes[item];
        let fits = |load: usize| load.saturating_add(size) <= limit.size;
        let found = if from < loads.len() { loads.first(from, fits) } else { None };
        bin = found.unwrap_or(loads.len());
        if found.is_none() && !fits(last) {
            if !placed.is_empty() {
                loads.push(last, ticks)?;
                counts.push(0);
                bin += 1;
            }
            last = 0;
        }
        counts[bin] += 1;
        let load = found.map_or(last, |bin| loads.get(bin)).saturating_add(size);
        let is_full = counts[bin] >= limit.count;
        let load = if is_full { usize::CLOSED } else { load };
        match found {
            Some(bin) => loads.set(bin, load),
            None => last = load,
        }
        placed.push((item, bin));
    }
    let bins = if placed.is_empty() { 0 } else { counts.len() };
    ItemBins::new(&placed, bins, ticks)
}

/// Best fit: each item goes to the bin with the least capacity left, the largest item first. Of bins
/// with equal capacity left, the first to have reached it is taken.
///
/// # Errors
/// Those of `ticks`.
pub(super) fn best_fit(items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
    let mut bins = OpenBins::new(items, limit);
    let mut placed = Vec::with_capacity(items.len());
    for (time, item) in items.largest_and_first(ticks)?.into_iter().enumerate() {
        ticks.done(1)?;
        let load = items.get(item);
        let bin = bins.add(load, (load.size, 0));
        let room = limit.size.saturating_sub(bins.loads()[bin].size);
        bins.set_key(bin, (room, time));
        placed.push((item, bin));
    }
    ItemBins::new(&placed, bins.loads().len(), ticks)
}

/// Emptiest fit: each item goes to the bin with the fewest tokens that it fits, the largest item
/// first. Of bins with equally many tokens, the first is taken.
///
/// # Errors
/// Those of `ticks`.
pub(super) fn balanced(items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
    let mut bins = OpenBins::new(items, limit);
    let mut placed = Vec::with_capacity(items.len());
    for item in items.largest_and_first(ticks)? {
        ticks.done(1)?;
        let bin = bins.add(items.get(item), (0, 0));
        bins.set_key(bin, (bins.loads()[bin].size, bin));
        placed.push((item, bin));
    }
    ItemBins::new(&placed, bins.loads().len(), ticks)
}

/// Next fit: each item goes to the last bin, or opens the next, in the order of items.
///
/// # Errors
/// Those of `ticks`.
pub(super) fn next_fit(items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
    let mut packed = ItemBins { offsets: vec![0], items: ticks.gathered(0..items.len())? };
    let mut bin: Option<Load> = None;
    for item in 0..items.len() {
        ticks.done(1)?;
        let load = items.get(item);
        bin = Some(match bin {
            Some(bin) if bin.has_room_for(load, limit) => bin.plus(load),
            Some(_) => {
                packed.offsets.push(item);
                load
            }
            None => load,
        });
    }
    if bin.is_some() {
        packed.offsets.push(items.len());
    }
    Ok(packed)
}

/// Lay sequences end to end, and cut them into bins of limited tokens and spans.
///
/// The tokens of each span are rounded up to a multiple. These are torchtune's bins with splitting,
/// and TRL's wrapped ones.
///
/// # Errors
/// Those of `ticks`; [`Error::NoRoom`] if a span of one token does not fit a bin.
pub fn concat(
    lens: &[usize],
    capacity: usize,
    multiple: usize,
    count: usize,
    ticks: &mut Ticks,
) -> Result<Bins> {
    if multiple == 0 || multiple > capacity || count == 0 {
        return Err(Error::NoRoom { multiple, capacity });
    }
    let mut bins = Bins { offsets: vec![0], spans: Vec::with_capacity(lens.len()) };
    let mut room = capacity;
    for (index, &len) in lens.iter().enumerate() {
        let mut from = 0;
        loop {
            ticks.done(1)?;
            let fits = room / multiple * multiple;
            let start = bins.offsets[bins.offsets.len() - 1];
            if bins.spans.len() - start == count || (from < len && fits == 0) {
                bins.offsets.push(bins.spans.len());
                room = capacity;
                continue;
            }
            let len = fits.min(len - from);
            bins.spans.push(Span { index, from, len });
            room -= len.next_multiple_of(multiple);
            from += len;
            if from == lens[index] {
                break;
            }
        }
    }
    if !bins.spans.is_empty() {
        bins.offsets.push(bins.spans.len());
    }
    Ok(bins)
}

/// Modified first fit decreasing, of Johnson and Garey (1985), in the phases of NeMo-RL: items above
/// half of the capacity get bins of their own, which the others fill up.
///
/// # Errors
/// Those of `ticks`.
pub(super) fn modified_first_fit(items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
    let order = items.largest_and_first(ticks)?;
    let above = |parts: usize| {
        order.partition_point(|&item| items.sizes[item].saturating_mul(parts) > limit.size)
    };
    let (large, medium, small) = (above(2), above(3), above(6));

    let mut bins = LargeBins {
        items,
        limit,
        loads: Vec::with_capacity(large),
        placed: Vec::with_capacity(items.len()),
        is_placed: vec![false; items.len()],
    };
    for (bin, &item) in order[..large].iter().enumerate() {
        ticks.done(1)?;
        bins.loads.push(items.get(item));
        bins.note(item, bin);
    }
    let has_medium = bins.add_medium(&order[large..medium], ticks)?;
    bins.add_pairs(&order[medium..small], &has_medium, ticks)?;
    let rest = bins.without_place(&order[large..], ticks)?;
    bins.fill(&rest, ticks)?;
    let rest = bins.without_place(&rest, ticks)?;
    bins.open_more(&rest, ticks)
}

/// Bins of large items while being filled.
struct LargeBins<'a> {
    items: Items<'a>,
    limit: Load,
    loads: Vec<Load>,
    placed: Vec<PlacedItem>,
    is_placed: Vec<bool>,
}

impl LargeBins<'_> {
    /// Give each bin the largest medium item that fits it. Returns true for the bins that got one.
    fn add_medium(&mut self, medium: &[usize], ticks: &mut Ticks) -> Result<Vec<bool>> {
        let mut tree = self.tree(medium, ticks)?;
        let mut has_medium = Vec::with_capacity(self.loads.len());
        for bin in 0..self.loads.len() {
            ticks.done(1)?;
            has_medium.push(self.add_largest(bin, medium, &mut tree));
        }
        Ok(has_medium)
    }

    /// Give each bin without a medium item, from the last on, the smallest item and the largest
    /// that fits with it, if there are two.
    fn add_pairs(&mut self, small: &[usize], has_medium: &[bool], ticks: &mut Ticks) -> Result<()> {
        let sizes = self.items.sizes;
        let mut small = ticks.gathered(small.iter().map(|&item| (sizes[item], item)))?;
        sort(&mut small, ticks)?;
        // The largest first, of equal ones the last, so that the smallest is at the end.
        let small = ticks.gathered(small.into_iter().rev().map(|(_, item)| item))?;
        let mut tree = self.tree(&small, ticks)?;
        // One past the smallest item without a place, and one past the next.
        let mut ends = [small.len(); 2];
        for bin in (0..self.loads.len()).rev() {
            ticks.done(1)?;
            if has_medium[bin] {
                continue;
            }
            let free_before = |end: usize| {
                let mut small = small[..end].iter();
                small.rposition(|&item| !self.is_placed[item])
            };
            let Some(first) = free_before(ends[0]) else {
                return Ok(());
            };
            let Some(second) = free_before(ends[1].min(first)) else {
                return Ok(());
            };
            ends = [first + 1, second + 1];
            let smallest = self.items.get(small[first]);
            let next = self.items.get(small[second]);
            if self.loads[bin].plus(smallest).has_room_for(next, self.limit) {
                tree.set(first, Load::CLOSED);
                self.add(bin, small[first]);
                self.add_largest(bin, &small, &mut tree);
            }
        }
        Ok(())
    }

    /// Give each bin, from the first on, the largest items that fit it.
    fn fill(&mut self, rest: &[usize], ticks: &mut Ticks) -> Result<()> {
        let mut tree = self.tree(rest, ticks)?;
        for bin in 0..self.loads.len() {
            ticks.done(1)?;
            while self.add_largest(bin, rest, &mut tree) {
                ticks.done(1)?;
            }
        }
        Ok(())
    }

    /// Place items into additional bins, the emptiest first. The fullest of these bins comes last.
    fn open_more(mut self, rest: &[usize], ticks: &mut Ticks) -> Result<ItemBins> {
        let mut more = OpenBins::new(self.items, self.limit);
        let first = self.placed.len();
        // The time of each bin's last item: of equal bins, the first to have reached the load is
        // before.
        let mut times = Vec::new();
        for (time, &item) in rest.iter().enumerate() {
            ticks.done(1)?;
            let bin = more.add(self.items.get(item), (0, 0));
            more.set_key(bin, (more.loads()[bin].size, time));
            times.resize(times.len().max(bin + 1), 0);
            times[bin] = time;
            self.placed.push((item, bin));
        }
        let sizes = more.loads().iter().map(|load| load.size);
        let mut order: Vec<_> = sizes.zip(times).collect();
        sort(&mut order, ticks)?;
        let mut numbers = vec![0; order.len()];
        for (number, (_, time)) in (self.loads.len()..).zip(order) {
            let (_, bin) = self.placed[first + time];
            numbers[bin] = number;
        }
        for (_, bin) in &mut self.placed[first..] {
            *bin = numbers[*bin];
        }
        ItemBins::new(&self.placed, self.loads.len() + numbers.len(), ticks)
    }

    /// Give a bin the first of these items that fits it; true if there was one.
    fn add_largest(&mut self, bin: usize, items: &[usize], tree: &mut Tree<Load>) -> bool {
        let load = self.loads[bin];
        let found = tree.first(0, |item| load.has_room_for(item, self.limit));
        if let Some(index) = found {
            tree.set(index, Load::CLOSED);
            self.add(bin, items[index]);
        }
        found.is_some()
    }

    fn add(&mut self, bin: usize, item: usize) {
        self.loads[bin] = self.loads[bin].plus(self.items.get(item));
        self.note(item, bin);
    }

    fn note(&mut self, item: usize, bin: usize) {
        self.placed.push((item, bin));
        self.is_placed[item] = true;
    }

    fn tree(&self, items: &[usize], ticks: &mut Ticks) -> Result<Tree<Load>> {
        let loads = ticks.gathered(items.iter().map(|&item| self.items.get(item)))?;
        Tree::new(&loads, ticks)
    }

    fn without_place(&self, items: &[usize], ticks: &mut Ticks) -> Result<Vec<usize>> {
        let items = items.iter().copied();
        ticks.gathered(items.filter(|&item| !self.is_placed[item]))
    }
}
