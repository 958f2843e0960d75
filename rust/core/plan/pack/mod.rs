//! Packing: items share bins, so that few bins are needed.
//!
//! An item lies in one bin as a whole: a sequence, a piece of a split one, or several that stay
//! together. Every packer is deterministic: it returns the bins, their order and the order inside
//! them of the framework named with it.

mod loads;
mod num_bins;
mod packers;
mod pieces;
mod spec;

pub use loads::Load;
pub(super) use loads::mixed;
pub use num_bins::{fit, halve, spread};
pub use packers::concat;
pub use spec::{Algorithm, Cost, CostFunction, Growth, Oversize, PackSpec};

use crate::error::Result;
use crate::polling::Ticks;
use crate::text::{counted, grouped, grouped_float, plain_float};
use loads::Least;

/// The items, one value each.
#[derive(Debug, Clone, Copy)]
pub struct Items<'a> {
    /// Number of tokens, as counted for the capacity.
    pub sizes: &'a [usize],
    /// Number of sequences in an item; one, if not given.
    pub counts: Option<&'a [usize]>,
    /// Cost of an item: finite and not negative; 0, if not given.
    pub costs: Option<&'a [f64]>,
}

/// The bin that an item goes to. An item that fits no bin opens another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packer {
    /// The first that it fits, in the order of items: axolotl's `pack_group`.
    FirstFit,
    /// The first that it fits, the largest item first and of equal ones the last: SkyRL's and
    /// NeMo-RL's FFD.
    FirstFitDecreasing,
    /// The same, of equal items the first: prime-rl's FFD.
    StableFirstFitDecreasing,
    /// The one with the least capacity left, of equal ones the first to have reached it; the
    /// largest item first and of equal ones the first: TRL's BFD.
    BestFitDecreasing,
    /// By phases for large, medium, small and tiny items: NeMo-RL's MFFD.
    ModifiedFirstFitDecreasing,
    /// The last one: NeMo-RL's concatenative packer, and torchtune's without splitting.
    NextFit,
    /// The one with the fewest tokens, of equal ones the first; the largest item first and of equal
    /// ones the first: SkyRL's balanced packer.
    Balanced,
}

/// Items by bin, in the order in which they were placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemBins {
    /// Offsets of bins in `items`, one more than bins.
    pub offsets: Vec<usize>,
    /// The items of all bins.
    pub items: Vec<usize>,
}

/// An item and the bin that it was placed in.
type PlacedItem = (usize, usize);

impl Packer {
    /// Pack items into bins of the given limit.
    ///
    /// With every packer, an item that exceeds the limit gets a bin of its own.
    ///
    /// # Errors
    /// Those of `ticks`.
    pub fn pack(self, items: Items, limit: Load, ticks: &mut Ticks) -> Result<ItemBins> {
        match self {
            Self::FirstFit => packers::first_fit(items, limit, 0..items.len(), ticks),
            Self::FirstFitDecreasing => {
                let order = items.largest_and_last(ticks)?;
                packers::first_fit(items, limit, order.into_iter(), ticks)
            }
            Self::StableFirstFitDecreasing => {
                let order = items.largest_and_first(ticks)?;
                packers::first_fit(items, limit, order.into_iter(), ticks)
            }
            Self::BestFitDecreasing => packers::best_fit(items, limit, ticks),
            Self::ModifiedFirstFitDecreasing => packers::modified_first_fit(items, limit, ticks),
            Self::NextFit => packers::next_fit(items, limit, ticks),
            Self::Balanced => packers::balanced(items, limit, ticks),
        }
    }
}

impl Items<'_> {
    fn len(&self) -> usize {
        self.sizes.len()
    }

    fn get(&self, item: usize) -> Load {
        Load {
            size: self.sizes[item],
            count: self.counts.map_or(1, |counts| counts[item]),
            cost: self.costs.map_or(0.0, |costs| costs[item]),
        }
    }

    /// The minimum load of the items. A bin without capacity for it is full.
    fn least(&self) -> Load {
        let loads = (0..self.len()).map(|item| self.get(item));
        loads.fold(Load::CLOSED, Load::least)
    }

    /// True if each item counts once and costs nothing.
    fn are_plain(&self) -> bool {
        self.counts.is_none() && self.costs.is_none()
    }

    /// The largest item first, of equal ones the last.
    fn largest_and_last(&self, ticks: &mut Ticks) -> Result<Vec<usize>> {
        sort_largest(self.sizes, true, ticks)
    }

    /// The largest item first, of equal ones the first.
    fn largest_and_first(&self, ticks: &mut Ticks) -> Result<Vec<usize>> {
        sort_largest(self.sizes, false, ticks)
    }
}

impl ItemBins {
    /// Bins of the placed items, in the order of placing.
    fn new(placed: &[PlacedItem], bins: usize, ticks: &mut Ticks) -> Result<Self> {
        let mut offsets = vec![0; bins + 1];
        for &(_, bin) in placed {
            offsets[bin + 1] += 1;
        }
        ticks.done(placed.len())?;
        for bin in 0..bins {
            offsets[bin + 1] += offsets[bin];
        }
        let mut ends = offsets.clone();
        let mut items = vec![0; placed.len()];
        for &(item, bin) in placed {
            ticks.done(1)?;
            items[ends[bin]] = item;
            ends[bin] += 1;
        }
        Ok(Self { offsets, items })
    }

    /// Number of bins.
    pub fn count(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The items of a bin.
    pub fn items(&self, bin: usize) -> &[usize] {
        &self.items[self.offsets[bin]..self.offsets[bin + 1]]
    }
}

/// Items by size, the largest first; of equal ones, the first or the last.
///
/// A radix sort: lengths are small enough for one or two passes. A comparison sort would take
/// longer than placing the items.
///
/// # Errors
/// Those of `ticks`.
fn sort_largest(sizes: &[usize], last_first: bool, ticks: &mut Ticks) -> Result<Vec<usize>> {
    let most = sizes.iter().copied().max().unwrap_or(0);
    let mut order = if last_first {
        ticks.gathered((0..sizes.len()).rev())?
    } else {
        ticks.gathered(0..sizes.len())?
    };
    // Not many more counters than items, and no more than fit the cache.
    let bits = usize::BITS - most.leading_zeros();
    let passes = bits.div_ceil(sizes.len().max(1).ilog2().clamp(8, 14));
    let width = bits.checked_div(passes).unwrap_or(0) + 1;
    let mut sorted = order.clone();
    for shift in (0..passes).map(|pass| pass * width) {
        let digit = |item: usize| ((most - sizes[item]) >> shift) & ((1 << width) - 1);
        let mut offsets = vec![0; 1 << width];
        for &item in &order {
            ticks.done(1)?;
            offsets[digit(item)] += 1;
        }
        let mut offset = 0;
        for count in &mut offsets {
            offset += *count;
            *count = offset - *count;
        }
        for &item in &order {
            ticks.done(1)?;
            let offset = &mut offsets[digit(item)];
            sorted[*offset] = item;
            *offset += 1;
        }
        std::mem::swap(&mut order, &mut sorted);
    }
    Ok(order)
}

/// The limit exceeded by a sequence, or by sequences that stay together.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Oversized {
    Sequences { limit: usize },
    Tokens { tokens: usize, limit: usize },
    Cost { cost: f64, limit: f64 },
}

impl Oversized {
    /// The name of the exceeded limit.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Sequences { .. } => "max_sequences",
            Self::Tokens { .. } => "capacity",
            Self::Cost { .. } => "max_cost",
        }
    }

    /// The exceeded limit with its value.
    #[allow(clippy::cast_precision_loss, reason = "limits are printed like costs")]
    fn describe_limit(self) -> String {
        let limit = match self {
            Self::Sequences { limit } | Self::Tokens { limit, .. } => limit as f64,
            Self::Cost { limit, .. } => limit,
        };
        format!("which exceeds {}={}", self.argument(), plain_float(limit))
    }

    /// The cost of a sequence, if it is not its number of tokens.
    fn counted_as(self, len: usize, number: impl Fn(usize) -> String) -> String {
        match self {
            Self::Tokens { tokens, .. } if tokens != len => {
                format!(", rounded up to {}", number(tokens))
            }
            Self::Cost { cost, .. } => format!(", with a cost of {}", grouped_float(cost)),
            _ => String::new(),
        }
    }

    /// Describe the sequence and the limit that it exceeds.
    pub(crate) fn describe(self, sequence: usize, len: usize, together: usize) -> String {
        let head = if together > 1 {
            let with = match self {
                Self::Tokens { tokens, .. } => format!(", with {} tokens", grouped(tokens)),
                _ => self.counted_as(len, grouped),
            };
            let together = grouped(together);
            format!(
                "keep_together puts {together} sequences, of which {sequence} is the first, in \
                 one bin{with}"
            )
        } else {
            let found = self.counted_as(len, |tokens| tokens.to_string());
            format!("lengths[{sequence}] is {len}{found}")
        };
        format!("{head}, {}", self.describe_limit())
    }

    /// Describe a row of a tree that exceeds the limit by itself.
    pub(crate) fn describe_row(self, row: usize, len: usize) -> String {
        let (tokens, found) = (counted(len, "token"), self.counted_as(len, grouped));
        let limit = self.describe_limit();
        format!("row {row} has {tokens}{found}, {limit}")
    }
}
