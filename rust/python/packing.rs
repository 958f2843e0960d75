//! Packing: which sequences share a bin.

use fastcollate::Error as Core;
use fastcollate::plan::pack::{Items, Load, Packed, Packer, concat, spread};
use fastcollate::plan::{BinTables, Stretch};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::error::Result;
use crate::interrupt::stoppable;
use crate::tables::{Column, column_of, to_i64, values};

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
    let packer = packer_of(algorithm)?;
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
    let packed = stoppable(py, |steps| {
        let items = Items {
            sizes: &sizes,
            counts: counts.as_deref(),
            costs: costs.as_deref(),
        };
        packer.pack(items, Load { size, count, cost }, steps)
    })?;
    Ok(columns(py, packed))
}

/// Pack whole sequences that only a capacity and their number limit, into a number of bins.
///
/// # Returns
/// Where bins begin and the last ends, the sequences of all bins, where they begin (at 0) and their
/// tokens, all int64. None where a sequence exceeds the capacity, unless it `may`, or there are too few
/// sequences: `pack_items` and `spread_bins` go step by step.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "called in one place")]
pub fn pack_whole<'py>(
    py: Python<'py>,
    lengths: PyReadonlyArray1<i64>,
    algorithm: &str,
    capacity: usize,
    max_sequences: usize,
    multiple: usize,
    may_exceed: bool,
    min_bins: usize,
    bins_multiple_of: usize,
) -> Result<Option<[Column<'py>; 4]>> {
    let packer = packer_of(algorithm)?;
    let lens = column(&lengths)?;
    let size = |len: &usize| len.checked_next_multiple_of(multiple);
    let sizes: Option<Vec<_>> = lens.iter().map(size).collect();
    let Some(sizes) =
        sizes.filter(|sizes| may_exceed || sizes.iter().all(|&size| size <= capacity))
    else {
        return Ok(None);
    };
    let packed = stoppable(py, |steps| {
        let items = Items {
            sizes: &sizes,
            counts: None,
            costs: None,
        };
        let limit = Load {
            size: capacity,
            count: max_sequences,
            cost: f64::INFINITY,
        };
        packer.pack(items, limit, steps)
    })?;
    let least = packed.count().max(min_bins);
    let packed = match least.checked_next_multiple_of(bins_multiple_of) {
        Some(bins) if bins == packed.count() => packed,
        Some(bins) if bins <= lens.len() => stoppable(py, |steps| spread(&packed, bins, steps))?,
        _ => return Ok(None),
    };
    let lens: Vec<_> = packed.items.iter().map(|&item| lens[item]).collect();
    Ok(Some([
        column_of(py, packed.offsets),
        column_of(py, packed.items),
        PyArray1::zeros(py, lens.len(), false),
        column_of(py, lens),
    ]))
}

fn packer_of(algorithm: &str) -> Result<Packer> {
    Ok(match algorithm {
        "ff" => Packer::FirstFit,
        "ffd" => Packer::FirstFitDecreasing,
        "bfd" => Packer::BestFitDecreasing,
        "mffd" => Packer::ModifiedFirstFitDecreasing,
        "next_fit" => Packer::NextFit,
        "balanced" => Packer::Balanced,
        _ => return Err(Core::InvalidPlan(format!("{algorithm} is no algorithm")).into()),
    })
}

/// Say which of some numbers of tokens is none, if one is.
#[pyfunction]
pub fn first_no_length(lengths: PyReadonlyArray1<i64>, most: i64) -> Option<usize> {
    let is_none = |length: &i64| !(0..=most).contains(length);
    values(&lengths).iter().position(is_none)
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
    let packed = Packed { offsets, items };
    Ok(columns(
        py,
        stoppable(py, |steps| spread(&packed, bins, steps))?,
    ))
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
    let bins = stoppable(py, |steps| {
        concat(&lengths, capacity, multiple, count, steps)
    })?;
    let of = |value: fn(&Stretch) -> usize| column_of(py, bins.stretches.iter().map(value));
    Ok([
        column_of(py, bins.offsets.iter().copied()),
        of(|stretch| stretch.index),
        of(|stretch| stretch.from),
        of(|stretch| stretch.len),
    ])
}

/// Say what is wrong with the tables of bins of so many sequences.
#[pyfunction]
pub fn bins_defect(
    offsets: PyReadonlyArray1<i64>,
    indices: PyReadonlyArray1<i64>,
    starts: PyReadonlyArray1<i64>,
    lengths: PyReadonlyArray1<i64>,
    sequences: usize,
) -> Option<String> {
    let tables = BinTables {
        offsets: &values(&offsets),
        indices: &values(&indices),
        starts: &values(&starts),
        lens: &values(&lengths),
        sequences,
    };
    tables.defect()
}

/// Deal bins out to ranks: the rows, int64, -1 for the one of a missing bin, and how many each bin
/// has, int64 (bins,).
#[pyfunction]
pub fn deal_bins<'py>(
    py: Python<'py>,
    offsets: PyReadonlyArray1<i64>,
    items: PyReadonlyArray1<i64>,
    missing: usize,
    ranks: usize,
) -> Result<Bins<'py>> {
    let (offsets, items) = (column(&offsets)?, column(&items)?);
    let parts = offsets.last() == Some(&items.len()) && offsets.is_sorted();
    if !parts || ranks == 0 {
        return Err(Core::InvalidPlan("its tables do not fit".to_owned()).into());
    }
    let (rows, counts) = fastcollate::plan::deal_bins(&offsets, &items, missing, ranks);
    let rows = rows.into_iter().map(|row| row.map_or(-1, to_i64));
    Ok((PyArray1::from_iter(py, rows), column_of(py, counts)))
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
