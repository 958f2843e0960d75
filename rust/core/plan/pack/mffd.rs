//! Modified first fit decreasing, of Johnson and Garey (1985), in the phases of NeMo-RL.

use super::load_tree::{Least, Tree};
use super::open_bins::OpenBins;
use super::{ItemBins, Items, Load, PlacedItem};
use crate::error::Result;
use crate::ticks::Ticks;

/// Pack items: those above half of the capacity get bins of their own, which the others fill up.
///
/// # Errors
/// Those of `ticks`.
pub fn pack(items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
    let order = items.largest_and_first(ticks)?;
    let above = |parts: usize| {
        order.partition_point(|&item| items.sizes[item].saturating_mul(parts) > limit.size)
    };
    let (large, medium, small) = (above(2), above(3), above(6));

    let mut bins = Bins {
        items,
        limit,
        loads: Vec::with_capacity(large),
        placed: Vec::with_capacity(items.len()),
        is_placed: vec![false; items.len()],
    };
    for (bin, &item) in order[..large].iter().enumerate() {
        bins.loads.push(items.get(item));
        bins.note(item, bin);
    }
    let has_medium = bins.add_medium(&order[large..medium], ticks)?;
    bins.add_pairs(&order[medium..small], &has_medium, ticks)?;
    let rest = bins.without_place(&order[large..]);
    bins.fill(&rest, ticks)?;
    let rest = bins.without_place(&rest);
    bins.open_more(&rest, ticks)
}

/// Bins of large items while being filled.
struct Bins<'a> {
    items: Items<'a>,
    limit: Load,
    loads: Vec<Load>,
    placed: Vec<PlacedItem>,
    is_placed: Vec<bool>,
}

impl Bins<'_> {
    /// Give each bin the largest medium item that fits it. Returns true for the bins that got one.
    fn add_medium(&mut self, medium: &[usize], ticks: &mut Ticks) -> Result<Vec<bool>> {
        let mut tree = self.tree(medium);
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
        let mut small: Vec<_> = small.iter().map(|&item| (sizes[item], item)).collect();
        small.sort_unstable();
        // The largest first, of equal ones the last, so that the smallest is at the end.
        let small: Vec<_> = small.into_iter().rev().map(|(_, item)| item).collect();
        let mut tree = self.tree(&small);
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
            if self.loads[bin]
                .plus(smallest)
                .has_room_for(next, self.limit)
            {
                tree.set(first, Load::CLOSED);
                self.add(bin, small[first]);
                self.add_largest(bin, &small, &mut tree);
            }
        }
        Ok(())
    }

    /// Give each bin, from the first on, the largest items that fit it.
    fn fill(&mut self, rest: &[usize], ticks: &mut Ticks) -> Result<()> {
        let mut tree = self.tree(rest);
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
        order.sort_unstable();
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
        if let Some(place) = found {
            tree.set(place, Load::CLOSED);
            self.add(bin, items[place]);
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

    fn tree(&self, items: &[usize]) -> Tree<Load> {
        let loads: Vec<_> = items.iter().map(|&item| self.items.get(item)).collect();
        Tree::new(&loads)
    }

    fn without_place(&self, items: &[usize]) -> Vec<usize> {
        let items = items.iter().copied();
        items.filter(|&item| !self.is_placed[item]).collect()
    }
}
