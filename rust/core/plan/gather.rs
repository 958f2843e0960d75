//! Gathering: the positions of a row's response values in per-token outputs of a model.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::memory::{check_room, filled, with_room};
use crate::plan::{Align, Assembly, Piece, Placement, Row, Turns};

/// The token whose value stands at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// Its own.
    None,
    /// The next one's, as in log-probabilities from a model.
    NextToken,
}

/// A per-token output of a model.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    /// The tokens that it has a position for.
    pub align: Align,
    /// The token whose value stands at a position.
    pub shift: Shift,
    /// Number of positions per row.
    pub width: usize,
}

/// The unit by which values are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// Rows, with or without the observations between their pieces.
    Row {
        /// True if observations are included.
        gaps: bool,
        /// True if padding rows are included.
        padding: bool,
    },
    /// Turns, in the order of the input.
    Turn,
}

/// Positions of values, counted over the whole output; `None` for tokens without a value.
pub type Positions = Vec<Option<usize>>;

/// The positions of response tokens' values in a model output, and the number of values of each row
/// or turn. Without `may_miss`, each has a position.
///
/// # Errors
/// [`Error::NoPrompt`] for the first token of a row without a prompt, [`Error::SplitRow`] for the
/// first token of a later part of a row, and [`Error::NotInBatch`].
pub fn gather_positions(
    turns: &Turns,
    assembly: &Assembly,
    placement: &Placement,
    values: Values,
    per: Per,
    may_miss: bool,
) -> Result<(Positions, Vec<usize>)> {
    check_room(assembly.rows().len())?;
    let rows = positions_of_rows(assembly, placement, values)?;
    let check = |row: usize, positions: &[Option<usize>]| {
        if may_miss || positions.iter().all(Option::is_some) {
            Ok(())
        } else if assembly.rows()[row].prompt_len > 0 {
            Err(Error::SplitRow { row })
        } else {
            Err(Error::NoPrompt { row })
        }
    };
    let is_given = |row: &Row| !row.is_padding || matches!(per, Per::Row { padding: true, .. });
    match per {
        Per::Row { gaps: true, .. } => {
            let mut positions = with_room(rows.len())?;
            let mut lens = Vec::with_capacity(assembly.rows().len());
            let mut start = 0;
            for (index, row) in assembly.rows().iter().enumerate() {
                let of_row = &rows[start..start + row.response_len];
                start += row.response_len;
                if is_given(row) {
                    check(index, of_row)?;
                    positions.extend_from_slice(of_row);
                    lens.push(row.response_len);
                }
            }
            Ok((positions, lens))
        }
        Per::Row { gaps: false, .. } => {
            let mut positions = with_room(rows.len())?;
            let mut lens = Vec::with_capacity(assembly.rows().len());
            for_each_piece(assembly, &rows, |row, _, of_piece| {
                check(row, of_piece)?;
                positions.extend_from_slice(of_piece);
                lens.resize(row + 1, 0);
                lens[row] += of_piece.len();
                Ok(())
            })?;
            lens.resize(assembly.rows().len(), 0);
            let mut rows = assembly.rows().iter();
            lens.retain(|_| rows.next().is_some_and(is_given));
            Ok((positions, lens))
        }
        Per::Turn => {
            // Turns in other shards are of unknown length, and have no values here.
            let mut lens = filled(turns.total(), |_| None)?;
            for (index, &len) in turns.response_lens().iter().enumerate() {
                lens[turns.number(index)] = Some(len);
            }
            let (mut end, of_turn) = (0, |len: &Option<usize>| len.unwrap_or(0));
            let starts: Vec<_> = lens.iter().map(|len| step(&mut end, of_turn(len))).collect();
            let mut positions = filled(end, |_| None)?;
            let mut given = filled(lens.len(), |_| 0)?;
            for_each_piece(assembly, &rows, |row, piece, of_piece| {
                check(row, of_piece)?;
                let start = starts[piece.turn] + piece.from;
                positions[start..start + piece.len].copy_from_slice(of_piece);
                given[piece.turn] += piece.len;
                Ok(())
            })?;
            let mut pairs = given.iter().zip(&lens);
            match pairs.position(|(&given, &len)| len.is_none_or(|len| given < len)) {
                Some(turn) if !may_miss => Err(Error::NotInBatch {
                    turn,
                    missing: lens[turn].map_or("the".to_owned(), |len| {
                        format!("{} of the {len}", len - given[turn])
                    }),
                }),
                _ => Ok((positions, lens.iter().map(of_turn).collect())),
            }
        }
    }
}

/// Call `take` with every trained piece: its row, the piece, and the positions of its tokens.
fn for_each_piece(
    assembly: &Assembly,
    positions: &[Option<usize>],
    mut take: impl FnMut(usize, &Piece, &[Option<usize>]) -> Result<()>,
) -> Result<()> {
    let mut start = 0;
    for (index, row) in assembly.rows().iter().enumerate() {
        for piece in assembly.pieces(index).iter().filter(|piece| piece.trains) {
            let begin = start + piece.start;
            take(index, piece, &positions[begin..begin + piece.len])?;
        }
        start += row.response_len;
    }
    Ok(())
}

/// The positions of all response tokens, row by row; None for the first token of a row without a
/// prompt, or of a part of a row, if shifted.
fn positions_of_rows(
    assembly: &Assembly,
    placement: &Placement,
    values: Values,
) -> Result<Positions> {
    let Values { align, shift, width } = values;
    let rows = assembly.rows();
    let mut end = 0_usize;
    let starts: Vec<_> = rows.iter().map(|row| step(&mut end, row.response_len)).collect();
    let mut positions = filled(end, |_| None)?;
    let is_shifted = shift == Shift::NextToken;
    let before = usize::from(is_shifted);
    let segments = match align {
        Align::Response => Cow::Borrowed(placement.response.segments()),
        Align::Sequence => placement.response_segments(assembly, before)?,
    };
    for segment in segments.iter() {
        let row = rows[segment.row];
        // Tokens of the stream before the first response token.
        let skipped = match align {
            Align::Response => 0,
            Align::Sequence => row.prompt_len,
        };
        let position = segment.dst_row * width + segment.dst_col;
        // After the last token of a part, no token of its row follows, not even of another part.
        let len = if is_shifted && placement.bin_layout.is_some() {
            segment.len.saturating_sub(1)
        } else {
            segment.len
        };
        let token = segment.from + before;
        let begin = skipped.saturating_sub(token).min(len);
        let end = (skipped + row.response_len).saturating_sub(token).min(len);
        for offset in begin..end {
            positions[starts[segment.row] + token + offset - skipped] = Some(position + offset);
        }
    }
    Ok(positions)
}

/// Advance `end` by `len`, and return the previous value.
fn step(end: &mut usize, len: usize) -> usize {
    let start = *end;
    *end = end.saturating_add(len);
    start
}
