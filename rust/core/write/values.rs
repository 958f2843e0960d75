//! Writers that copy values: token streams and response-aligned fields.

use super::walk::{Destination, fill, walk};
use crate::column::{Column, Lookahead};
use crate::element::Element;
use crate::error::Result;
use crate::plan::{Assembly, GridSlice, Segment};

/// Values of positions without data. Both patterns have a field's trailing shape; their length is
/// its number of values per token.
#[derive(Debug, Clone, Copy)]
pub struct Fill<'a, T> {
    /// Pattern outside rows.
    pub pad: &'a [T],
    /// Pattern inside a row's response, between the pieces that train.
    pub gap: &'a [T],
}

/// Write the token stream of each row's source turn. A synthetic row holds `pad`.
///
/// # Errors
/// Those of the columns; the destination is then partly written.
///
/// # Panics
/// If the size of the destination differs from the slice's.
pub fn write_tokens<T: Element>(
    tokens: &dyn Column<T>,
    assembly: &Assembly,
    slice: &GridSlice,
    pad: T,
    destination: Destination<T>,
) -> Result<()> {
    let mut upcoming = Upcoming(slice.segments);
    walk(slice, &[pad], destination, |segment, inside| {
        upcoming.announce(|segment, lookahead| {
            if let Some(turn) = assembly.rows()[segment.row].source {
                tokens.announce(turn, segment.from, lookahead);
            }
        });
        match assembly.rows()[segment.row].source {
            Some(turn) => tokens.read(turn, segment.from, inside),
            None => {
                inside.fill(pad);
                Ok(())
            }
        }
    })
}

/// The segments of a slice from the current one on.
struct Upcoming<'a>(&'a [Segment]);

impl Upcoming<'_> {
    /// Advance by one segment, and announce the next two unless they are the next rows, which the
    /// processor prefetches by itself.
    fn announce(&mut self, tell: impl Fn(&Segment, Lookahead)) {
        let coming = self.0.windows(2).zip([Lookahead::Next, Lookahead::Later]);
        for (pair, lookahead) in coming {
            if pair[1].row != pair[0].row + 1 {
                tell(&pair[1], lookahead);
            }
        }
        self.0 = self.0.get(1..).unwrap_or_default();
    }
}

/// Write a field: the pieces of each row's response that train, with gaps between them. For a
/// sequence-aligned field, the assembly has the whole stream as the response.
///
/// # Errors
/// Those of the column; the destination is then partly written.
///
/// # Panics
/// If the size of the destination differs from the slice's, or the two patterns differ in length.
pub fn write_field<T: Element>(
    column: &dyn Column<T>,
    assembly: &Assembly,
    slice: &GridSlice,
    fill_with: Fill<T>,
    destination: Destination<T>,
) -> Result<()> {
    let Fill { pad, gap } = fill_with;
    let inner = gap.len();
    assert_eq!(pad.len(), inner);
    let mut upcoming = Upcoming(slice.segments);
    walk(slice, pad, destination, |segment, inside| {
        upcoming.announce(|segment, lookahead| {
            if let Some(piece) = assembly.pieces(segment.row).first() {
                let from = segment.from.saturating_sub(piece.start);
                column.announce(piece.turn, piece.from + from.min(piece.len), lookahead);
            }
        });
        let segment_end = segment.from + segment.len;
        let mut rest = inside;
        let mut at = segment.from;
        for piece in assembly.pieces(segment.row) {
            let start = piece.start.max(segment.from);
            let end = (piece.start + piece.len).min(segment_end);
            if start >= end || !piece.trains {
                continue;
            }
            let (before, tail) = rest.split_at_mut((start - at) * inner);
            let (values, tail) = tail.split_at_mut((end - start) * inner);
            fill(before, gap);
            column.read(piece.turn, piece.from + start - piece.start, values)?;
            rest = tail;
            at = end;
        }
        fill(rest, gap);
        Ok(())
    })
}
