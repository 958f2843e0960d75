//! Packing: which sequences share a bin.

use fastcollate::Error as Core;
use fastcollate::plan::Stretch;
use fastcollate::plan::pack::{Items, Load, Packed, Packer, concat, spread};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::error::Result;
use crate::tables::{Column, column_of};

/// Offsets of bins, and the items of all bins.
type Bins<'py> = (Column<'py>, Column<'py>);

/// Pack items: where bins begin and the last ends, int64 (bins + 1,), and their items, int64 (items,).
#[pyfunction]
pub fn pack_items<'py>(
    py: Python<'py>,
    sizes: PyReadonlyArray1<i64>,
    counts: Option<PyReadonlyArray1<i64>>,
    costs: Option<PyReadonlyArray1<f64>>,
    algorithm: &str,
    limit: (usize, usize, f64),
) -> Result<Bins<'py>> {
    let packer = match algorithm {
        "ff" => Packer::FirstFit,
        "ffd" => Packer::FirstFitDecreasing,
        "bfd" => Packer::BestFitDecreasing,
        "mffd" => Packer::ModifiedFirstFitDecreasing,
        "next_fit" => Packer::NextFit,
        "balanced" => Packer::Balanced,
        _ => return Err(Core::InvalidPlan(format!("{algorithm} is no algorithm")).into()),
    };
    let sizes = column(&sizes)?;
    let counts = counts.as_ref().map(column).transpose()?;
    let costs = costs.as_ref().map(|costs| costs.as_array().to_vec());
    let lens = [
        counts.as_ref().map_or(sizes.len(), Vec::len),
        costs.as_ref().map_or(sizes.len(), Vec::len),
    ];
    if lens != [sizes.len(); 2] {
        return Err(Core::InvalidPlan("its tables do not fit".to_owned()).into());
    }
    let (size, count, cost) = limit;
    let packed = py.detach(|| {
        let items = Items {
            sizes: &sizes,
            counts: counts.as_deref(),
            costs: costs.as_deref(),
        };
        packer.pack(items, Load { size, count, cost })
    });
    Ok(columns(py, packed))
}

/// Spread the items of bins over more bins.
#[pyfunction]
pub fn spread_bins<'py>(
    py: Python<'py>,
    offsets: PyReadonlyArray1<i64>,
    items: PyReadonlyArray1<i64>,
    bins: usize,
) -> Result<Bins<'py>> {
    let offsets = column(&offsets)?;
    let items = column(&items)?;
    let parts = offsets.first() == Some(&0) && offsets.last() == Some(&items.len());
    if !parts || !offsets.is_sorted() || bins > items.len() {
        return Err(Core::InvalidPlan("its tables do not fit".to_owned()).into());
    }
    Ok(columns(py, spread(&Packed { offsets, items }, bins)))
}

/// Lay sequences end to end and cut them into bins.
///
/// # Returns
/// Offsets of bins among stretches; the sequence of each stretch, where it begins, and its tokens.
#[pyfunction]
pub fn concat_bins<'py>(
    py: Python<'py>,
    lengths: PyReadonlyArray1<i64>,
    capacity: usize,
    multiple: usize,
    count: usize,
) -> Result<[Column<'py>; 4]> {
    let lengths = column(&lengths)?;
    let bins = py.detach(|| concat(&lengths, capacity, multiple, count))?;
    let of = |value: fn(&Stretch) -> usize| column_of(py, bins.stretches.iter().map(value));
    Ok([
        column_of(py, bins.offsets.iter().copied()),
        of(|stretch| stretch.index),
        of(|stretch| stretch.from),
        of(|stretch| stretch.len),
    ])
}

fn columns(py: Python<'_>, packed: Packed) -> Bins<'_> {
    (column_of(py, packed.offsets), column_of(py, packed.items))
}

fn column(array: &PyReadonlyArray1<i64>) -> Result<Vec<usize>> {
    let negative = |_| Core::InvalidPlan("its tables hold a negative number".to_owned());
    let values = array.as_array();
    let values: std::result::Result<_, _> = values.iter().map(|&value| value.try_into()).collect();
    Ok(values.map_err(negative)?)
}
