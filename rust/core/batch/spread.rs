//! Numbers per row that apply to the tokens that train.

use super::arrays::LossMask;
use super::{FieldSpec, Spread};
use crate::column::{Column, FieldColumn};
use crate::error::{Error, InputPlace, Result};
use crate::plan::{Assembly, Placement, Segment};

/// Loss mask values read at a time.
const CHUNK: usize = 1 << 12;

/// Refuse a turn's number if it is NaN and a token of the turn trains; elsewhere it is not written.
///
/// # Errors
/// [`Error::Nan`], and errors of the loss mask.
pub(super) fn check_trained(
    fields: &[&FieldSpec],
    columns: &[&mut dyn FieldColumn],
    assembly: &Assembly,
    placement: &Placement,
    mask: Option<&LossMask>,
) -> Result<()> {
    let written = fields.iter().filter(|field| field.is_written());
    let mut trains: Option<Vec<bool>> = None;
    for (field, column) in written.zip(columns) {
        let numbers = match field.spread {
            Some(Spread::Trained) => column.numbers().unwrap_or_default(),
            _ => continue,
        };
        let is_nan = |turn: &usize| numbers[*turn].is_nan();
        let mut nans = (0..numbers.len()).filter(is_nan).peekable();
        if nans.peek().is_none() {
            continue;
        }
        let trains = match &trains {
            Some(trains) => trains,
            None => trains.insert(turns_that_train(
                numbers.len(),
                columns,
                assembly,
                placement,
                mask,
            )?),
        };
        if let Some(row) = nans.find(|&turn| trains[turn]) {
            let field = field.name.clone();
            let position = None;
            let place = InputPlace {
                field,
                row,
                position,
            };
            return Err(Error::Nan { place });
        }
    }
    Ok(())
}

/// Flags of the turns with a token that trains.
fn turns_that_train(
    count: usize,
    columns: &[&mut dyn FieldColumn],
    assembly: &Assembly,
    placement: &Placement,
    mask: Option<&LossMask>,
) -> Result<Vec<bool>> {
    let mut trains = vec![false; count];
    for segment in placement.trained_responses(assembly).segments() {
        let pieces = assembly.pieces(segment.row);
        let index = pieces.partition_point(|piece| piece.end() <= segment.from);
        let Some(piece) = pieces.get(index).filter(|_| segment.len > 0) else {
            continue;
        };
        if !trains[piece.turn] {
            trains[piece.turn] = match mask {
                None => true,
                Some(mask) => {
                    let own = mask.assembly.as_ref().unwrap_or(assembly);
                    weighs(mask, columns[mask.column], own, segment)?
                }
            };
        }
    }
    Ok(trains)
}

/// True if a token in a range of a row has a non-zero weight.
fn weighs(
    mask: &LossMask,
    column: &dyn Column<f64>,
    assembly: &Assembly,
    segment: &Segment,
) -> Result<bool> {
    let (round, mut weights) = (mask.rounding(), [0.0; CHUNK]);
    for piece in assembly
        .pieces(segment.row)
        .iter()
        .filter(|piece| piece.trains)
    {
        let start = piece.start.max(segment.from);
        let end = piece.end().min(segment.from + segment.len);
        for from in (start..end).step_by(CHUNK) {
            let weights = &mut weights[..CHUNK.min(end - from)];
            column.read(piece.turn, piece.from + from - piece.start, weights)?;
            round(weights);
            if weights.iter().any(|&weight| weight != 0.0) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
