//! Labels: the ids of the tokens that train.

use super::walk::{Destination, walk};
use crate::column::{Column, Rounding};
use crate::element::Element;
use crate::error::Result;
use crate::plan::{Assembly, Band, Piece};

/// Loss mask values that are looked at at a time.
const CHUNK: usize = 1 << 12;

/// How labels are made.
#[derive(Clone, Copy)]
pub struct Labels<'a, T> {
    /// The loss mask, if there is one, and what its rows are made of: where it is 0 there is no label.
    /// Else all that was sampled has.
    pub mask: Option<(&'a dyn Column<f64>, &'a Assembly)>,
    /// What rounds the mask.
    pub round: Rounding,
    /// Whether a position holds the next token's label instead of its own.
    pub shifted: bool,
    /// What stands where there is no label.
    pub ignored: T,
}

/// Write labels: the ids of the response tokens that train.
///
/// # Errors
/// What the columns raise; the destination is partly written then.
///
/// # Panics
/// If the destination has another size than the band.
pub fn write_labels<T: Element>(
    tokens: &dyn Column<T>,
    labels: Labels<T>,
    assembly: &Assembly,
    band: &Band,
    to: Destination<T>,
) -> Result<()> {
    let Labels {
        mask,
        round,
        shifted,
        ignored,
    } = labels;
    walk(band, &[ignored], to, |segment, inside| {
        let row = assembly.rows()[segment.row];
        // From here on in tokens of the row's stream.
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

/// Overwrite labels of a row's response, from token `begin` of it on, between its pieces and where
/// the loss mask does not train.
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
                // No branch: which weights are 0 is hard to predict.
                *label = if *weight == 0.0 { ignored } else { *label };
            }
        }
    }
    labels[at - begin..].fill(ignored);
    Ok(())
}
