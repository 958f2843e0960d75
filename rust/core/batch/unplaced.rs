//! Values of tokens that nothing predicts, which have no place.

use super::arrays::{Content, Read, Source};
use super::places::Place;
use super::planned::{Array, Planned};
use crate::error::Result;
use crate::plan::{Grid, Placement};

/// Check that they are numbers, although no output has them.
///
/// # Errors
/// Those of the columns.
pub(super) fn check_unplaced(
    planned: &Planned,
    placement: &Placement,
    source: &Source,
) -> Result<()> {
    let mut unpredicted = placement.unpredicted(source.assembly).peekable();
    if unpredicted.peek().is_none() {
        return Ok(());
    }
    let all = Grid::of_tokens(unpredicted)?;
    // Arrays with places of their own, such as fields of whole sequences, have lost nothing.
    let has_lost = |array: &Array| match array.place.whole() {
        Place::Predicted(_) => true,
        Place::Response => placement.is_shifted(),
        Place::Sequence | Place::Trained(_) | Place::Own(_) | Place::Part(..) => false,
    };
    for (_, array) in planned.arrays() {
        if matches!(array.content, Content::Read(Read::Field(_))) && has_lost(array) {
            array.written_over(&all, source)?;
        }
    }
    Ok(())
}
