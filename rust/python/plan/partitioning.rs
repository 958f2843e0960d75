//! Partitioning of items into parts, and micro-batches within a capacity.

use fastcollate::Error as Core;
use fastcollate::plan::partition::{Algorithm, Counts, Order, Parts, Weights as CoreWeights};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::error::Result;
use crate::interrupt::stoppable;
use crate::names::Names;
use crate::plan::tables::{Column, column_of, copied, usizes};

const ALGORITHMS: Names<Algorithm> = Names::new(
    "algorithm",
    &[
        (Algorithm::KarmarkarKarp, "karmarkar_karp"),
        (Algorithm::Grown, "grown"),
        (Algorithm::LargestFirst, "lpt"),
        (Algorithm::Swapped, "lpt_swap"),
    ],
);

const ORDERS: Names<Order> = Names::new(
    "order",
    &[
        (Order::SmallEnds, "small_ends"),
        (Order::Descending, "descending"),
        (Order::Ascending, "ascending"),
    ],
);

/// Part offsets among the indices, and the indices.
type Table<'py> = (Column<'py>, Column<'py>);

/// Weights of items, finite and non-negative, as checked in Python.
#[derive(FromPyObject)]
pub enum Weights<'py> {
    Integers(PyReadonlyArray1<'py, i64>),
    Singles(PyReadonlyArray1<'py, f32>),
    Doubles(PyReadonlyArray1<'py, f64>),
}

impl Weights<'_> {
    /// The weights as owned vectors.
    ///
    /// # Errors
    /// More items than 32 bits can count.
    fn read(&self) -> Result<CoreWeights> {
        let weights = match self {
            Self::Integers(array) => CoreWeights::Integers(copied(array)?),
            Self::Singles(array) => CoreWeights::Singles(copied(array)?),
            Self::Doubles(array) => CoreWeights::Doubles(copied(array)?),
        };
        let items = weights.count();
        if u32::try_from(items).is_err() {
            let reason = format!("{items} items are more than can be counted");
            return Err(Core::InvalidPlan(reason).into());
        }
        Ok(weights)
    }
}

/// Partition items into parts of balanced weight; there are at least as many items as parts.
///
/// Parts of equal size require a number of items that is a multiple of theirs.
#[pyfunction]
pub fn partition<'py>(
    py: Python<'py>,
    weights: Weights,
    parts: usize,
    algorithm: &str,
    equal_size: bool,
) -> Result<Table<'py>> {
    let algorithm = ALGORITHMS.value(algorithm)?;
    let weights = weights.read()?;
    let found = stoppable(py, |ticks| weights.partition(parts, algorithm, equal_size, ticks));
    table(py, found?)
}

/// Partition items into micro-batches within the capacity and assign them to ranks. The smallest
/// number found is used, from `first` on in steps of `step`; None if there are fewer items. With
/// `all`, no number is skipped.
///
/// `ranks` is their number, and the order of micro-batches on each. Without, they are in the order of the Karmarkar-Karp method, for one rank.
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
    ranks: Option<(usize, Bound<PyAny>)>,
) -> Result<Option<Table<'py>>> {
    let lens = usizes("lengths", &lengths)?;
    let costs = costs.read()?;
    if costs.count() != lens.len() {
        return Err(Core::InvalidPlan("there must be one cost per length".to_owned()).into());
    }
    let ordered =
        |(ranks, order): (usize, Bound<PyAny>)| Ok::<_, PyErr>((ranks, ORDERS.read(&order)?));
    let ranks = ranks.map(ordered).transpose()?;
    let counts = Counts { first, step, all };
    let found = stoppable(py, |ticks| costs.micro_batches(&lens, capacity, counts, ranks, ticks));
    found?.map(|parts| table(py, parts)).transpose()
}

fn table(py: Python, parts: Parts) -> Result<Table> {
    Ok((column_of(py, parts.offsets)?, column_of(py, parts.indices)?))
}
