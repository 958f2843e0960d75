//! Labels: the ids of the tokens that train.

use super::walk::{Destination, walk};
use crate::column::Column;
use crate::element::Element;
use crate::error::Result;
use crate::over_columns::Rounding;
use crate::plan::{Assembly, GridSlice, Piece};

/// Loss mask values read at a time.
const CHUNK: usize = 1 << 12;

/// Options of labels.
#[derive(Clone, Copy)]
pub struct Labels<'a, T> {
    /// The loss mask, if present, and the assembly of its rows: no label where it is 0. Without a
    /// mask, all sampled tokens have labels.
    pub mask: Option<(&'a dyn Column<f64>, &'a Assembly)>,
    /// Rounding of the mask.
    pub round: Rounding,
    /// True if a position holds the next token's label instead of its own.
    pub shifted: bool,
    /// The value without a label.
    pub ignored: T,
}

/// Write labels: the ids of the response tokens that train.
///
/// # Errors
/// Those of the columns; the destination is then partly written.
///
/// # Panics
/// If the size of the destination differs from the slice's.
pub fn write_labels<T: Element>(
    tokens: &dyn Column<T>,
    labels: Labels<T>,
    assembly: &Assembly,
    slice: &GridSlice,
    to: Destination<T>,
) -> Result<()> {
    let Labels { mask, round, shifted, ignored } = labels;
    walk(slice, &[ignored], to, |segment, inside| {
        let row = assembly.rows()[segment.row];
        // Index in the row's stream.
        let first = segment.from + usize::from(shifted);
        let begin = row.prompt_len.clamp(first, first + segment.len);
        let end = row.len().clamp(begin, first + segment.len);
        let (before, rest) = inside.split_at_mut(begin - first);
        let (inside, after) = rest.split_at_mut(end - begin);
        before.fill(ignored);
        after.fill(ignored);
        let Some(turn) = row.source.filter(|_| !inside.is_empty()) else {
            inside.fill(ignored);
            return Ok(());
        };
        tokens.read(turn, begin, inside)?;
        let begin = begin - row.prompt_len;
        let (mask, pieces) = match mask {
            Some((mask, own)) => (Some(mask), own.pieces(segment.row)),
            None => (None, assembly.pieces(segment.row)),
        };
        ignore_untrained(mask, round, pieces, begin, inside, ignored)
    })
}

/// Overwrite the labels of a row's response from its token `begin` on: between its pieces, and
/// where the loss mask does not train.
fn ignore_untrained<T: Element>(
    mask: Option<&dyn Column<f64>>,
    round: Rounding,
    pieces: &[Piece],
    begin: usize,
    labels: &mut [T],
    ignored: T,
) -> Result<()> {
    let mut weights = [0.0; CHUNK];
    let end = begin + labels.len();
    let mut at = begin;
    for piece in pieces.iter().filter(|piece| piece.trains) {
        let start = piece.start.clamp(at, end);
        let stop = (piece.start + piece.len).clamp(start, end);
        labels[at - begin..start - begin].fill(ignored);
        at = stop;
        let Some(mask) = mask else { continue };
        for from in (start..stop).step_by(CHUNK) {
            let weights = &mut weights[..CHUNK.min(stop - from)];
            mask.read(piece.turn, piece.from + from - piece.start, weights)?;
            round(weights);
            for (label, weight) in labels[from - begin..].iter_mut().zip(weights) {
                // No branch: zero weights are hard to predict.
                *label = if *weight == 0.0 { ignored } else { *label };
            }
        }
    }
    labels[at - begin..].fill(ignored);
    Ok(())
}
