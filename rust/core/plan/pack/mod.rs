//! Packing: which items share a bin, so that few bins are needed.
//!
//! An item is what lies in one bin as a whole: a sequence, a stretch of one that was split, or
//! several that stay together. Every packer is deterministic, and gives the bins and the order inside
//! them that the framework it is known from does.

mod first_fit;
mod spread;
mod tree;

pub use spread::spread;

/// What is packed, one value per item.
#[derive(Debug, Clone, Copy)]
pub struct Items<'a> {
    /// Tokens, as far as the capacity counts them.
    pub sizes: &'a [usize],
    /// How many sequences an item is; one, if not given.
    pub counts: Option<&'a [usize]>,
    /// What an item costs: finite and not negative; nothing, if not given.
    pub costs: Option<&'a [f64]>,
}

/// What a bin holds, or may hold at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Tokens.
    pub size: usize,
    /// Sequences.
    pub count: usize,
    /// What they cost.
    pub cost: f64,
}

/// How items are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packer {
    /// Into the first bin that has room, in order.
    FirstFit,
    /// The same, the largest first and of equal ones the last.
    FirstFitDecreasing,
}

/// Items by bin, in the order in which they were placed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packed {
    /// Where bins begin among the items, and where the last ends.
    pub offsets: Vec<usize>,
    /// The items of all bins.
    pub items: Vec<usize>,
}

impl Items<'_> {
    /// Number of items.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    fn get(&self, item: usize) -> Load {
        Load {
            size: self.sizes[item],
            count: self.counts.map_or(1, |counts| counts[item]),
            cost: self.costs.map_or(0.0, |costs| costs[item]),
        }
    }
}

impl Load {
    /// A bin with nothing in it.
    const EMPTY: Self = Self {
        size: 0,
        count: 0,
        cost: 0.0,
    };

    fn plus(self, other: Self) -> Self {
        Self {
            size: self.size.saturating_add(other.size),
            count: self.count.saturating_add(other.count),
            cost: self.cost + other.cost,
        }
    }

    fn is_within(self, limit: Self) -> bool {
        self.size <= limit.size && self.count <= limit.count && self.cost <= limit.cost
    }
}

impl Packer {
    /// Pack items into bins that hold so much at most. An item beyond that gets a bin of its own.
    pub fn pack(self, items: Items, limit: Load) -> Packed {
        match self {
            Self::FirstFit => first_fit::pack(items, limit, 0..items.len()),
            Self::FirstFitDecreasing => {
                let mut order: Vec<_> = (0..items.len()).collect();
                order.sort_unstable_by_key(|&item| std::cmp::Reverse((items.sizes[item], item)));
                first_fit::pack(items, limit, order)
            }
        }
    }
}

impl Packed {
    /// Bins of items that were placed one after the other, given the bin of each.
    fn of_placed(placed: &[(usize, usize)], bins: usize) -> Self {
        let mut offsets = vec![0; bins + 1];
        for &(bin, _) in placed {
            offsets[bin + 1] += 1;
        }
        for bin in 0..bins {
            offsets[bin + 1] += offsets[bin];
        }
        let mut next = offsets.clone();
        let mut items = vec![0; placed.len()];
        for &(bin, item) in placed {
            items[next[bin]] = item;
            next[bin] += 1;
        }
        Self { offsets, items }
    }

    /// Number of bins.
    pub fn count(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }
}
