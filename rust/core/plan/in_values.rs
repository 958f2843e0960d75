//! Plans counted in values, for fields whose tokens have any number of values each.

use std::ops::Range;

use super::assembly::{Assembly, Piece, Row};
use super::placement::{Grid, Segment};
use crate::error::Result;

/// Rows and their places, counted in values in place of tokens, with one segment for each segment
/// of the tokens' grid. Values are adjacent in the order of their tokens' positions; gaps and
/// padding have none.
///
/// `count` returns the number of values of a span of a turn's tokens.
///
/// # Errors
/// Those of `count`, and [`Error::TooLarge`](crate::error::Error::TooLarge).
pub fn in_values(
    assembly: &Assembly,
    grid: &Grid,
    count: impl Fn(usize, Range<usize>) -> Result<usize>,
) -> Result<(Assembly, Grid)> {
    let own = assembly.with_pieces_in_values(&count)?;
    let in_span = |row: usize, span: Range<usize>| {
        let pieces = assembly.pieces(row).iter().zip(own.pieces(row));
        let mut values = 0;
        for (piece, own) in pieces.filter(|(piece, _)| piece.trains) {
            let start = piece.start.clamp(span.start, span.end);
            let end = piece.end().clamp(span.start, span.end);
            values += match end - start {
                len if len == piece.len => own.len,
                0 => 0,
                _ => {
                    let offset = |token: usize| piece.from + token - piece.start;
                    count(piece.turn, offset(start)..offset(end))?
                }
            };
        }
        Ok::<_, crate::error::Error>(values)
    };
    // The last token counted of each row, and the values before it: segments of a row are mostly
    // in order, so that each token is counted once.
    let mut counted = vec![(0, 0); assembly.rows().len()];
    let mut width = 0;
    let mut segments = Vec::with_capacity(grid.segments().len());
    for segment in grid.segments() {
        let row = segment.row;
        let end = segment.from + segment.len;
        let (known, before) = counted[row];
        let from = match segment.from.checked_sub(known) {
            Some(_) => before + in_span(row, known..segment.from)?,
            None => in_span(row, 0..segment.from)?,
        };
        let len = in_span(row, segment.from..end)?;
        counted[row] = (end, from + len);
        segments.push(Segment { row, from, len, dst_row: 0, dst_col: width });
        width += len;
    }
    Ok((own, Grid::of_segments(1, width, segments)?))
}

impl Assembly {
    /// The same rows and pieces, counted in values. Pieces that do not train have none.
    fn with_pieces_in_values(
        &self,
        count: impl Fn(usize, Range<usize>) -> Result<usize>,
    ) -> Result<Self> {
        let (mut rows, mut pieces) = (Vec::new(), Vec::new());
        for (index, row) in self.rows().iter().enumerate() {
            let mut start = 0;
            for piece in self.pieces(index) {
                let [from, len] = match piece.trains {
                    true => [
                        count(piece.turn, 0..piece.from)?,
                        count(piece.turn, piece.from..piece.from + piece.len)?,
                    ],
                    false => [0, 0],
                };
                pieces.push(Piece { from, start, len, ..*piece });
                start += len;
            }
            rows.push(Row { prompt_len: 0, response_len: start, ..*row });
        }
        Ok(Self::of_tables(rows, pieces, self.piece_table().1.to_vec()))
    }
}
