//! Where sequences begin in outputs that several of them share: `cu_seqlens` and what goes with it.

use fastcollate::Error as Core;
use fastcollate::plan::{Grid, Layout, Packing, Placement};
use numpy::PyArray1;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::error::Result;
use crate::output::{Dtype, NamedArray};

/// The keys of a packed batch: where segments begin, how long the longest is, and where they begin in
/// every output row.
const KEYS: [&str; 3] = ["cu_seqlens", "max_seqlen", "row_cu_seqlens"];

/// The same of places, where these are rounded up.
const PADDED_KEYS: [&str; 3] = [
    "cu_seqlens_padded",
    "max_seqlen_padded",
    "row_cu_seqlens_padded",
];

/// A small table of the plan that is an output.
pub struct Table {
    pub key: &'static str,
    pub values: Vec<usize>,
    pub dtype: Dtype,
    /// Its shape.
    pub grid: Grid,
}

/// What is known of sequences that share an output row; empty for layouts where none do.
#[derive(Default)]
pub struct Seqlens {
    /// Outputs, behind the ids.
    pub tables: Vec<Table>,
    /// How many tokens the longest segment has, and the key of the output that it stands behind.
    longest: Vec<(&'static str, &'static str, usize)>,
    /// Cumulative lengths by output row, and the key of the output that they stand behind.
    by_row: Vec<(&'static str, &'static str, Vec<Vec<i32>>)>,
    /// Where position ids count, if not in whole sequences.
    pub positions: Option<Grid>,
    /// Where sequences count their tokens anew in every part.
    pub parts: Option<Grid>,
}

impl Seqlens {
    /// Of a batch's placement, in which the longest row has so many tokens.
    ///
    /// # Errors
    /// More tokens than int32 can count.
    pub fn of_placement(placement: &Placement, longest: usize) -> Result<Self> {
        match (placement.layout, placement.packing) {
            (Layout::Jagged, _) => Self::of_jagged(placement, longest),
            (_, Some(packing)) => Self::of_packed(placement, packing),
            _ => Ok(Self::default()),
        }
    }

    fn of_jagged(placement: &Placement, longest: usize) -> Result<Self> {
        let offsets = |grid: &Grid| {
            let starts = grid.segments().iter().map(|segment| segment.dst_col);
            starts.chain([grid.width()]).collect::<Vec<_>>()
        };
        let sequence = offsets(&placement.sequence);
        let response = offsets(&placement.response);
        check_count(placement.sequence.width())?;
        Ok(Self {
            tables: vec![
                table("cu_seqlens", sequence.clone(), Dtype::I32)?,
                table("offsets", sequence, Dtype::I64)?,
                table("response_offsets", response, Dtype::I64)?,
            ],
            longest: vec![("offsets", "max_seqlen", longest)],
            ..Self::default()
        })
    }

    fn of_packed(placement: &Placement, packing: Packing) -> Result<Self> {
        let sequence = &placement.sequence;
        check_count(sequence.positions())?;
        let extents = packing.extents(sequence);
        let mut seqlens = Self {
            positions: Some(Packing::positions(sequence, &extents)?),
            parts: Some(sequence.restarting()),
            ..Self::default()
        };
        seqlens.add(KEYS, &packing.segment_lens(sequence, &extents, false))?;
        if packing.multiple_of > 1 {
            seqlens.add(PADDED_KEYS, &packing.segment_lens(sequence, &extents, true))?;
        }
        Ok(seqlens)
    }

    /// Add what the lengths of the segments of every output row say, under these keys.
    fn add(&mut self, keys: [&'static str; 3], lens: &[Vec<usize>]) -> Result<()> {
        let [cu_seqlens, max_seqlen, row_cu_seqlens] = keys;
        let all = cumulative(lens.iter().flatten().copied());
        let longest = lens.iter().flatten().copied().max().unwrap_or(0);
        let as_i32 = |count: usize| i32::try_from(count).unwrap_or(i32::MAX); // they were counted
        let of_row = |lens: &Vec<usize>| {
            let ends = cumulative(lens.iter().copied());
            ends.into_iter().map(as_i32).collect()
        };
        let rows = lens.iter().map(of_row).collect();
        self.tables.push(table(cu_seqlens, all, Dtype::I32)?);
        self.longest.push((cu_seqlens, max_seqlen, longest));
        self.by_row.push((max_seqlen, row_cu_seqlens, rows));
        Ok(())
    }

    /// Add what is no array of the batch's memory to its outputs.
    ///
    /// # Errors
    /// What Python raises.
    pub fn add_to<'py>(&self, py: Python<'py>, arrays: &mut Vec<NamedArray<'py>>) -> Result<()> {
        let mut insert = |behind: &str, key, value| {
            let place = arrays.iter().position(|(other, _)| *other == behind);
            let place = place.map_or(arrays.len(), |place| place + 1);
            arrays.insert(place, (PyString::new(py, key), value));
        };
        for (behind, key, longest) in &self.longest {
            insert(behind, key, longest.into_bound_py_any(py)?);
        }
        for (behind, key, rows) in &self.by_row {
            let rows = rows.iter().map(|row| PyArray1::from_slice(py, row));
            insert(
                behind,
                key,
                PyList::new(py, rows.collect::<Vec<_>>())?.into_any(),
            );
        }
        Ok(())
    }
}

fn table(key: &'static str, values: Vec<usize>, dtype: Dtype) -> Result<Table> {
    Ok(Table {
        key,
        dtype,
        grid: Grid::new(1, values.len(), Vec::new())?,
        values,
    })
}

fn cumulative(lens: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut end = 0;
    let ends = lens.map(|len| {
        end += len;
        end
    });
    std::iter::once(0).chain(ends).collect()
}

fn check_count(tokens: usize) -> Result<()> {
    match i32::try_from(tokens) {
        Ok(_) => Ok(()),
        Err(_) => Err(Core::TooManyTokens { tokens }.into()),
    }
}
