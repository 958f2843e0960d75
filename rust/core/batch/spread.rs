//! Numbers per row that apply to the tokens that train.

use super::arrays::LossMask;
use super::{FieldSpec, Spread};
use crate::column::{Column, FieldColumn};
use crate::error::Result;
use crate::plan::{Assembly, Placement, Segment, TokenForm};

/// Loss mask values read at a time.
const CHUNK: usize = 1 << 12;

/// Refuse a row's number if no token of the row trains.
///
/// # Errors
/// [`NoTokenFor`](crate::Error::NoTokenFor), and errors of the loss mask.
pub(super) fn check_trained(
    fields: &[&FieldSpec],
    columns: &[&mut dyn FieldColumn],
    assembly: &Assembly,
    placement: &Placement,
    mask: Option<&LossMask>,
    form: TokenForm,
) -> Result<()> {
    let written = fields.iter().filter(|field| field.is_written());
    let mut spread = written.zip(columns).filter(|(field, column)| {
        field.spread == Some(Spread::Trained) && column.is_one_number_each()
    });
    let mut trains: Option<Vec<bool>> = None;
    spread.try_for_each(|(field, column)| {
        let trains = match &trains {
            Some(trains) => trains,
            None => trains.insert(rows_that_train(columns, assembly, placement, mask)?),
        };
        let lost = { assembly.rows().iter().zip(trains) }
            .filter(|(row, trains)| !row.is_padding && !**trains)
            .filter_map(|(row, _)| row.source);
        match { lost }.find(|&turn| column.is_given(turn)) {
            None => Ok(()),
            Some(row) => Err(Spread::Trained.no_token(&field.name, row, form)),
        }
    })
}

/// Flags of the rows with a token that trains.
fn rows_that_train(
    columns: &[&mut dyn FieldColumn],
    assembly: &Assembly,
    placement: &Placement,
    mask: Option<&LossMask>,
) -> Result<Vec<bool>> {
    let mut trains = vec![false; assembly.rows().len()];
    for segment in placement.trained_responses(assembly).segments() {
        if !trains[segment.row] {
            trains[segment.row] = match mask {
                None => segment.len > 0,
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
