//! Tables of plans from outside, and the first defect in them.

use super::partition::sort_indices;
use super::share::{Tree, TreeRow};
use super::{Bins, Span};
use crate::error::Error;

/// Exceeds the tokens of any row; sums over all rows fit in 64 bits.
const MAX_TOKENS: i64 = 1 << 31;

/// The tables of bins of sequences, or pieces of them.
#[derive(Debug, Clone, Copy)]
pub struct BinTables<'a> {
    /// Offsets of bins in the pieces, one more than bins.
    pub offsets: &'a [i64],
    /// The sequence of each piece.
    pub indices: &'a [i64],
    /// First token of each piece, as an offset in its sequence.
    pub starts: &'a [i64],
    /// Number of tokens of each piece; of the same length as `indices` and `starts`.
    pub lens: &'a [i64],
    /// Number of sequences.
    pub sequences: usize,
}

impl BinTables<'_> {
    /// The bins.
    ///
    /// # Errors
    /// The reason if any token of a sequence does not lie in exactly one piece.
    pub fn bins(&self) -> Result<Bins, String> {
        if let Some(defect) = self.defect() {
            return Err(defect);
        }
        let spans = (0..self.indices.len()).map(|piece| Span {
            index: index(self.indices[piece]),
            from: index(self.starts[piece]),
            len: index(self.lens[piece]),
        });
        Ok(Bins {
            offsets: self.offsets.iter().map(|&offset| index(offset)).collect(),
            spans: spans.collect(),
        })
    }

    /// The trees of bins whose rows share the tokens before their pieces with the rows before them.
    ///
    /// # Errors
    /// The reason if a row is not in exactly one bin, or shares more tokens than the row before it
    /// has.
    pub fn trees(&self) -> Result<Vec<Tree>, String> {
        let (sequences, pieces) = (self.sequences, self.indices.len());
        if pieces > sequences {
            return Err(format!("there are {pieces} pieces of {sequences} rows"));
        }
        let zeros = vec![0; self.starts.len()];
        let unshared = BinTables { starts: &zeros, ..*self };
        if let Some(defect) = unshared.defect() {
            return Err(defect);
        }
        if let Some(piece) = self.starts.iter().position(|start| !(0..=MAX_TOKENS).contains(start))
        {
            let start = self.starts[piece];
            return Err(format!("starts[{piece}] is {start}, but must be from 0 to {MAX_TOKENS}"));
        }
        let row = |piece: usize| TreeRow {
            row: index(self.indices[piece]),
            len: index(self.starts[piece] + self.lens[piece]),
            shared: index(self.starts[piece]),
        };
        let rows: Vec<_> = (0..pieces).map(row).collect();
        let offsets: Vec<_> = self.offsets.iter().map(|&offset| index(offset)).collect();
        Tree::of_bins(&offsets, &rows).map_err(|error| match error {
            Error::InvalidPlan(reason) => reason,
            other => other.to_string(),
        })
    }

    /// The reason if any token of a sequence does not lie in exactly one piece.
    pub fn defect(&self) -> Option<String> {
        let (sequences, pieces) = (self.sequences, self.indices.len());
        if let Some(defect) = offsets_defect("offsets", self.offsets, pieces, "pieces") {
            return Some(defect);
        }
        if pieces < sequences {
            return Some(format!("there are {sequences} sequences, but only {pieces} pieces"));
        }
        let mut is_there = vec![false; sequences];
        for (piece, &index) in self.indices.iter().enumerate() {
            let place = usize::try_from(index).ok();
            let Some(is_there) = place.and_then(|index| is_there.get_mut(index)) else {
                return Some(format!(
                    "indices[{piece}] is {index}, but there are {sequences} sequences"
                ));
            };
            *is_there = true;
        }
        for (name, values) in [("starts", self.starts), ("lengths", self.lens)] {
            let is_wrong = |value: &i64| !(0..=MAX_TOKENS).contains(value);
            if let Some(piece) = values.iter().position(is_wrong) {
                let value = values[piece];
                return Some(format!(
                    "{name}[{piece}] is {value}, but must be from 0 to {MAX_TOKENS}"
                ));
            }
        }
        if let Some(index) = is_there.iter().position(|&is_there| !is_there) {
            return Some(format!("sequence {index} is in no bin"));
        }
        self.not_whole()
            .map(|index| format!("the pieces of sequence {index} have gaps or overlaps"))
    }

    /// The first sequence with a token in no piece or in two, or with an empty part.
    fn not_whole(&self) -> Option<i64> {
        let indices = self.indices;
        if indices.len() == self.sequences {
            let piece = self.starts.iter().position(|&start| start != 0);
            return piece.map(|piece| indices[piece]);
        }
        let mut order: Vec<_> = (0..indices.len()).collect();
        let begin = |piece: usize| (indices[piece], self.starts[piece]);
        sort_indices(&mut order, &|a, b| begin(a).cmp(&begin(b)));
        let mut parts = order.chunk_by(|&one, &other| indices[one] == indices[other]);
        let is_wrong = |parts: &&[usize]| {
            let mut end = 0;
            parts.iter().any(|&piece| {
                let is_gap =
                    self.starts[piece] != end || (parts.len() > 1 && self.lens[piece] == 0);
                end += self.lens[piece];
                is_gap
            })
        };
        parts.find(is_wrong).map(|parts| indices[parts[0]])
    }
}

/// The tables of a step: the row of every slot.
#[derive(Debug, Clone, Copy)]
pub struct StepTables<'a> {
    /// The row in each slot; -1 for a synthetic one.
    pub rows: &'a [i64],
    /// True for slots of padding.
    pub is_padding: &'a [bool],
    /// Offsets of mini-batches, in slots.
    pub mini_batch_offsets: &'a [i64],
    /// Number of ranks.
    pub ranks: usize,
    /// Number of rows.
    pub num_rows: usize,
    /// Offsets of prompts, in rows.
    pub prompt_offsets: &'a [i64],
    /// The first prompt of each mini-batch.
    pub mini_batch_prompts: &'a [i64],
    /// Offsets of bins, in slots, if rows are packed.
    pub bin_offsets: Option<&'a [i64]>,
}

impl StepTables<'_> {
    /// The reason if they are no plan: a row is not in exactly one slot, or ranks have different
    /// numbers of rows or bins.
    pub fn defect(&self) -> Option<String> {
        let slots = self.rows.len();
        if self.is_padding.len() != slots {
            let flags = self.is_padding.len();
            return Some(format!("rows has {slots} items, but is_padding has {flags}"));
        }
        let num_prompts = self.prompt_offsets.len().saturating_sub(1);
        for (name, values, end, noun) in [
            ("mini_batch_offsets", self.mini_batch_offsets, slots, "slots"),
            ("prompt_offsets", self.prompt_offsets, self.num_rows, "rows"),
            ("mini_batch_prompts", self.mini_batch_prompts, num_prompts, "prompts"),
        ] {
            if values.len() < 2 {
                return Some(format!("{name} has {} items, but must have 2 or more", values.len()));
            }
            if let Some(defect) = offsets_defect(name, values, end, noun) {
                return Some(defect);
            }
        }
        let (prompts, ends) = (self.mini_batch_prompts.len(), self.mini_batch_offsets.len());
        if prompts != ends {
            return Some(format!(
                "mini_batch_prompts has {prompts} items, but mini_batch_offsets has {ends}"
            ));
        }
        self.uneven().or_else(|| self.misplaced())
    }

    /// The reason if ranks have different numbers of rows or bins.
    fn uneven(&self) -> Option<String> {
        let mut ends = self.mini_batch_offsets.to_vec();
        let mut units = "rows";
        if let Some(bins) = self.bin_offsets {
            if let Some(defect) = offsets_defect("bin_offsets", bins, self.rows.len(), "slots") {
                return Some(defect);
            }
            if let Some(bin) = bins.windows(2).position(|pair| pair[0] == pair[1]) {
                return Some(format!("bin {bin} has no rows"));
            }
            for (index, end) in ends.iter_mut().enumerate() {
                match bins.binary_search(end) {
                    Ok(bin) => *end = i64::try_from(bin).unwrap_or(i64::MAX),
                    Err(bin) => {
                        let bin = bin.saturating_sub(1);
                        return Some(format!(
                            "mini_batch_offsets[{index}] is {end}, which is inside bin {bin}"
                        ));
                    }
                }
            }
            units = "bins";
        }
        let is_odd = |pair: &[i64]| {
            let count = usize::try_from(pair[1] - pair[0]);
            !count.is_ok_and(|count| count.is_multiple_of(self.ranks))
        };
        let mini_batch = ends.windows(2).position(is_odd)?;
        let count = ends[mini_batch + 1] - ends[mini_batch];
        Some(format!(
            "mini-batch {mini_batch} has {count} {units}, which dp_size={} does not divide",
            self.ranks
        ))
    }

    /// The first row in no slot or in several.
    fn misplaced(&self) -> Option<String> {
        let num_rows = self.num_rows;
        let mut slots_of = vec![0_u8; num_rows];
        for (slot, (&row, &is_padding)) in self.rows.iter().zip(self.is_padding).enumerate() {
            match usize::try_from(row) {
                Ok(row) if row < num_rows => {
                    slots_of[row] = slots_of[row].saturating_add(u8::from(!is_padding));
                }
                Err(_) if row == -1 && is_padding => {}
                Err(_) if row == -1 => {
                    return Some(format!("rows[{slot}] is -1, but is_padding[{slot}] is False"));
                }
                _ => {
                    return Some(format!("rows[{slot}] is {row}, but there are {num_rows} rows"));
                }
            }
        }
        let row = slots_of.iter().position(|&count| count != 1)?;
        let found = if slots_of[row] == 0 { "in no slot" } else { "in several slots" };
        Some(format!("row {row} is {found}"))
    }
}

/// The reason if the rows of bins cannot share these numbers of tokens with the rows before them.
pub fn shared_defect(
    shared: &[i64],
    lens: &[i64],
    is_padding: &[bool],
    bin_offsets: &[i64],
) -> Option<String> {
    let (count, slots) = (shared.len(), lens.len());
    if count != slots {
        return Some(format!(
            "shared has {count} items, but must have one for each of {slots} slots"
        ));
    }
    let mut begins_bin = vec![false; slots + 1];
    for &begin in bin_offsets {
        begins_bin[index(begin)] = true;
    }
    (0..slots).find_map(|slot| {
        let is_alone = begins_bin[slot] || is_padding[slot] || is_padding[slot - 1];
        let before = if is_alone { 0 } else { lens[slot - 1] };
        let (found, len) = (shared[slot], lens[slot]);
        if (0..=len.min(before)).contains(&found) {
            return None;
        }
        Some(match is_alone {
            true => format!(
                "shared[{slot}] is {found}, but must be 0 for the first row of a bin, and for padding"
            ),
            false => format!(
                "shared[{slot}] is {found}, but the row has {len} tokens and the one before it {before}"
            ),
        })
    })
}

/// The reason if offsets do not rise from 0 to `end`.
fn offsets_defect(name: &str, offsets: &[i64], end: usize, noun: &str) -> Option<String> {
    if !goes_to(offsets, end) {
        let found = match (offsets.first(), offsets.last()) {
            (Some(first), Some(last)) => format!("but go from {first} to {last}"),
            _ => "but are empty".to_owned(),
        };
        return Some(format!(
            "{name} must start at 0 and end at {end} (the number of {noun}), {found}"
        ));
    }
    let index = offsets.windows(2).position(|pair| pair[0] > pair[1])?;
    let (before, after) = (offsets[index], offsets[index + 1]);
    Some(format!("{name} fall from {before} to {after} at index {}", index + 1))
}

fn goes_to(offsets: &[i64], end: usize) -> bool {
    let end = i64::try_from(end).ok();
    offsets.first() == Some(&0) && offsets.last().copied() == end
}

/// An index, known not to be negative.
fn index(value: i64) -> usize {
    usize::try_from(value).unwrap_or(0)
}
