//! Partitioning: which items go to which part, and micro-batches that a cap keeps short.

use fastcollate::plan::partition::{
    Capped, Counts, First, Item, Order, Parts, Short, balance, karmarkar_karp, micro_batches, swap,
};
use fastcollate::{Error as Core, Ticks};
use numpy::PyReadonlyArray1;
use numpy::prelude::*;
use pyo3::prelude::*;

use crate::error::Result;
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::tables::{Column, column_of, usizes};

/// How items are parted.
#[derive(Clone, Copy, PartialEq)]
enum Algorithm {
    KarmarkarKarp,
    /// The same, with the items of a part in the order in which it grew.
    Grown,
    LargestFirst,
    /// Largest first, and swaps then.
    Swapped,
}

const ALGORITHMS: Names<Algorithm> = Names::new(
    "algorithm",
    &[
        (Algorithm::KarmarkarKarp, "karmarkar_karp"),
        (Algorithm::Grown, "grown"),
        (Algorithm::LargestFirst, "lpt"),
        (Algorithm::Swapped, "lpt_swap"),
    ],
);

pub const ORDERS: Names<Order> = Names::new(
    "order",
    &[
        (Order::SmallEnds, "small_ends"),
        (Order::Descending, "descending"),
        (Order::Ascending, "ascending"),
    ],
);

/// Where parts begin among the indices, and the indices.
type Table<'py> = (Column<'py>, Column<'py>);

/// What items weigh: numbers that are neither negative nor infinite. Python has seen to that.
#[derive(FromPyObject)]
pub enum Weights<'py> {
    Integers(PyReadonlyArray1<'py, i64>),
    Singles(PyReadonlyArray1<'py, f32>),
    Doubles(PyReadonlyArray1<'py, f64>),
}

impl Weights<'_> {
    fn len(&self) -> usize {
        match self {
            Weights::Integers(array) => array.len(),
            Weights::Singles(array) => array.len(),
            Weights::Doubles(array) => array.len(),
        }
    }
}

/// Call a function with the weights as a vector of their own.
macro_rules! with_values {
    ($weights:expr, |$values:ident| $call:expr) => {
        match $weights {
            Weights::Integers(array) => {
                let $values = array.as_array().to_vec();
                match Short::all(&$values) {
                    Some($values) => $call,
                    None => $call,
                }
            }
            Weights::Singles(array) => {
                let $values = array.as_array().to_vec();
                $call
            }
            Weights::Doubles(array) => {
                let $values = array.as_array().to_vec();
                $call
            }
        }
    };
}

/// Part items so that all parts weigh about the same; there are as many items as parts, at least.
///
/// Parts of equal size need a number of items that is a multiple of theirs.
#[pyfunction]
pub fn partition<'py>(
    py: Python<'py>,
    weights: Weights,
    parts: usize,
    algorithm: &str,
    equal_size: bool,
) -> Result<Table<'py>> {
    check_count(weights.len())?;
    let algorithm = ALGORITHMS.value(algorithm)?;
    let found = match algorithm {
        Algorithm::LargestFirst | Algorithm::Swapped => {
            let costs = doubles(&weights);
            let is_swapped = algorithm == Algorithm::Swapped;
            stoppable(py, |ticks| {
                largest_first(&costs, parts, equal_size, is_swapped, ticks)
            })
        }
        Algorithm::KarmarkarKarp | Algorithm::Grown => {
            with_values!(&weights, |values| stoppable(py, |ticks| {
                let found = karmarkar_karp(&values, parts, equal_size, ticks)?;
                if algorithm == Algorithm::Grown {
                    Ok(found)
                } else {
                    found.sorted(ticks)
                }
            }))
        }
    };
    Ok(table(py, found?))
}

fn largest_first(
    costs: &[f64],
    parts: usize,
    equal_size: bool,
    is_swapped: bool,
    ticks: &mut Ticks,
) -> Result<Parts, Core> {
    let items: Vec<_> = costs.iter().map(|&cost| Item { rows: 1, cost }).collect();
    let capacity = if equal_size {
        costs.len().div_ceil(parts.max(1))
    } else {
        usize::MAX
    };
    // Without any part, there is no room.
    let taken = vec![Item::NOTHING; parts];
    let part_of = balance(&items, &taken, capacity, First::Costly, ticks)?.unwrap_or_default();
    let mut members = vec![Vec::new(); parts];
    for (item, part) in part_of.into_iter().enumerate() {
        members[part].push(item);
    }
    let found = Parts::of(members);
    if is_swapped {
        return swap(costs, &found, equal_size, 64 * parts + 256, ticks);
    }
    Ok(found)
}

fn doubles(weights: &Weights) -> Vec<f64> {
    match weights {
        Weights::Integers(array) => array.as_array().iter().map(|&value| value as f64).collect(),
        Weights::Singles(array) => array.as_array().iter().map(|&value| value.into()).collect(),
        Weights::Doubles(array) => array.as_array().to_vec(),
    }
}

/// Part items in as few parts, from `first` on in steps of `step`, as were found to keep each within
/// the capacity, and assign them to ranks; None if there are fewer items. With `all`, no number is
/// left out.
///
/// Without an order, they come as Karmarkar's and Karp's method leaves them, for one rank.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "called in two places")]
pub fn split_micro_batches<'py>(
    py: Python<'py>,
    costs: Weights,
    lengths: PyReadonlyArray1<i64>,
    capacity: usize,
    first: usize,
    step: usize,
    all: bool,
    ranks: usize,
    order: Option<&str>,
) -> Result<Option<Table<'py>>> {
    let lens = usizes("lengths", &lengths)?;
    if costs.len() != lens.len() {
        return Err(Core::InvalidPlan("there is not one cost for each length".to_owned()).into());
    }
    check_count(lens.len())?;
    let order = order.map(|order| ORDERS.value(order)).transpose()?;
    let counts = Counts { first, step, all };
    let found = with_values!(&costs, |values| stoppable(py, |ticks| {
        let items = Capped {
            costs: &values,
            lens: &lens,
            capacity,
        };
        let parts = items.fitting(counts, ticks)?;
        let Some((parts, order)) = parts.as_ref().zip(order) else {
            return Ok(parts);
        };
        micro_batches(&values, parts, ranks, order, ticks).map(Some)
    }));
    Ok(found?.map(|parts| table(py, parts)))
}

/// Items are counted in 32 bits.
fn check_count(items: usize) -> Result<()> {
    if u32::try_from(items).is_ok() {
        return Ok(());
    }
    let reason = format!("{items} items are more than can be counted");
    Err(Core::InvalidPlan(reason).into())
}

fn table(py: Python, parts: Parts) -> Table {
    (column_of(py, parts.offsets), column_of(py, parts.indices))
}
