//! Where sequences begin in outputs that several of them share: `cu_seqlens` and what goes with it.

use fastcollate::Error as Core;
use fastcollate::batch::What;
use fastcollate::plan::{Grid, Layout, Of, Packing, Placement};

use crate::error::Result;

/// A small table of the plan that is an output.
pub struct Table {
    what: What,
    pub values: Vec<usize>,
    /// Its shape.
    pub grid: Grid,
}

/// What is known of sequences that share an output row; empty for layouts where none do.
#[derive(Default)]
pub struct Seqlens {
    tables: Vec<Table>,
    /// How many tokens the longest segment has.
    longest: Vec<(What, usize)>,
    /// Cumulative lengths by output row.
    by_row: Vec<(What, Vec<Vec<i32>>)>,
    /// Where position ids count, if not in whole sequences.
    pub positions: Option<Grid>,
    /// Where sequences count their tokens anew in every part.
    pub parts: Option<Grid>,
}

impl Seqlens {
    /// Of a batch's placement, in which the longest row has this many tokens.
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
        check_count(placement.sequence.width())?;
        Ok(Self {
            tables: vec![
                table(What::Offsets(Of::Sequence), offsets(&placement.sequence))?,
                table(What::Offsets(Of::Response), offsets(&placement.response))?,
            ],
            longest: vec![(What::Longest, longest)],
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
        for padded in [false, true]
            .into_iter()
            .take(1 + usize::from(packing.multiple_of > 1))
        {
            seqlens.add(padded, &packing.segment_lens(sequence, &extents, padded))?;
        }
        Ok(seqlens)
    }

    /// Add what the lengths of the segments of every output row say.
    fn add(&mut self, padded: bool, lens: &[Vec<usize>]) -> Result<()> {
        let all = cumulative(lens.iter().flatten().copied());
        let longest = lens.iter().flatten().copied().max().unwrap_or(0);
        let as_i32 = |count: usize| i32::try_from(count).unwrap_or(i32::MAX); // they were counted
        let of_row = |lens: &Vec<usize>| {
            let ends = cumulative(lens.iter().copied());
            ends.into_iter().map(as_i32).collect()
        };
        let rows = lens.iter().map(of_row).collect();
        self.tables.push(table(What::Segments { padded }, all)?);
        self.longest
            .push((What::LongestSegment { padded }, longest));
        self.by_row.push((What::RowSegments { padded }, rows));
        Ok(())
    }

    /// The table of an output.
    pub fn table(&self, what: What) -> Option<&Table> {
        self.tables.iter().find(|table| table.what == what)
    }

    /// The length that an output is.
    pub fn longest(&self, what: What) -> Option<usize> {
        { self.longest.iter() }.find_map(|(own, longest)| (*own == what).then_some(*longest))
    }

    /// The tables by row that an output is.
    pub fn by_row(&self, what: What) -> Option<&[Vec<i32>]> {
        { self.by_row.iter() }.find_map(|(own, rows)| (*own == what).then_some(&**rows))
    }
}

fn table(what: What, values: Vec<usize>) -> Result<Table> {
    Ok(Table {
        what,
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
