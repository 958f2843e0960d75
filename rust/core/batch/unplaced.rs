//! Values of tokens that nothing predicts, which have no place.

use super::arrays::{Content, Read, Source};
use super::places::Place;
use super::planned::{Array, Planned, Request};
use crate::error::{Error, Result};
use crate::plan::{Grid, Placement};

/// Check that they are numbers. Refuse rows whose first token trains if positions hold values of
/// the next token or of its predictor; if fields are shifted too, also rows whose first value
/// differs from the fill.
///
/// # Errors
/// The first of them.
pub(super) fn check_unplaced(
    planned: &Planned,
    request: &Request,
    placement: &Placement,
    source: &Source,
) -> Result<()> {
    let unpredicted: Vec<_> = placement.unpredicted(source.assembly).collect();
    if unpredicted.is_empty() {
        return Ok(());
    }
    let is_field = |array: &Array| matches!(array.content, Content::Read(Read::Field(_)));
    let fields: Vec<_> = { planned.arrays() }
        .filter(|(_, array)| is_field(array))
        .collect();
    // Arrays with places of their own, such as fields of whole sequences, have lost nothing.
    let has_lost = |array: &Array| match array.place.whole() {
        Place::Predicted(_) => true,
        Place::Response => placement.is_shifted(),
        Place::Sequence | Place::Trained(_) | Place::Own(_) | Place::Part(..) => false,
    };
    let lost = || fields.iter().filter(|(_, array)| has_lost(array));
    let all = Grid::of_tokens(unpredicted.iter().copied())?;
    for (_, array) in lost() {
        array.written_over(&all, source)?;
    }
    let heads = Grid::of_tokens(unpredicted.into_iter().filter(|token| token.begins_row))?;
    let shifts_labels = { request.outputs.labels }.is_some_and(|(shifted, _)| shifted);
    let (shift, trained) = match (placement.is_shifted(), shifts_labels) {
        _ if heads.rows() == 0 => return Ok(()),
        _ if placement.layout.is_tree() => ("layout=fc.Tree(...)", "the prediction"),
        (true, _) => ("shift='next_token'", "the loss mask"),
        (false, true) => ("labels='shifted'", "the label"),
        (false, false) => return Ok(()),
    };
    let no_place = |head: usize, field: &str, why, remedy| Error::NoPlace {
        shift,
        field: field.to_owned(),
        row: heads.segments()[head].row,
        why,
        remedy,
    };
    let loss_mask = request.loss_mask();
    if loss_mask.is_none() {
        let remedy = "pass a loss_mask that is 0 there";
        return Err(no_place(0, trained, "trains", remedy));
    }
    // The first row whose first token trains, or whose first value is not the fill.
    let nothing = Grid::new(heads.rows(), 1, Vec::new())?;
    for (output, array) in lost() {
        let found = array.written_over(&heads, source)?;
        let filled = array.written_over(&nothing, source)?;
        let size = found.len() / heads.rows();
        let differs = |head: &usize| {
            let bytes = head * size..(head + 1) * size;
            let dtype = array.content.dtype();
            !dtype.is_same(&found[bytes.clone()], &filled[bytes])
        };
        let (name, why, remedy) = if output.field() == loss_mask {
            (trained, "trains", "set loss_mask to 0 there")
        } else {
            let remedy = "make it the fill, or pass shift='none'";
            (&*output.key, "is not its fill", remedy)
        };
        if let Some(head) = (0..heads.rows()).find(differs) {
            return Err(no_place(head, name, why, remedy));
        }
    }
    Ok(())
}
