//! The way back: where a row's response values stand in per-token outputs of a model.

use crate::error::{Error, Result};
use crate::plan::{Assembly, Placement};

/// What an output of a model has the shape of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Response-aligned fields.
    Response,
    /// Token streams.
    Sequence,
}

/// Which token's value stands at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// Its own.
    None,
    /// The next one's: so do log-probabilities come out of a model.
    NextToken,
}

/// Where the values of all response tokens stand, row by row, counted over an output of `width`
/// positions a row; `None` for the first token of a row without a prompt, if `may_miss`.
///
/// # Errors
/// [`Error::NoPrompt`].
pub fn gather_places(
    assembly: &Assembly,
    placement: &Placement,
    of: Of,
    shift: Shift,
    width: usize,
    may_miss: bool,
) -> Result<Vec<Option<usize>>> {
    let rows = assembly.rows();
    let mut starts = Vec::with_capacity(rows.len());
    let mut end = 0_usize;
    for row in rows {
        starts.push(end);
        end = end.saturating_add(row.response_len);
    }
    // A plan from elsewhere may say anything of lengths.
    let mut places = Vec::new();
    if places.try_reserve_exact(end).is_err() {
        let reason = format!("no memory holds its {end} response tokens");
        return Err(Error::InvalidPlan(reason));
    }
    places.resize(end, None);
    let grid = match of {
        Of::Response => &placement.response,
        Of::Sequence => &placement.sequence,
    };
    for segment in grid.segments() {
        let row = rows[segment.row];
        // Tokens of the stream that come before the first of which a value is wanted.
        let skipped = match of {
            Of::Response => 0,
            Of::Sequence => row.prompt_len,
        };
        let place = segment.dst_row * width + segment.dst_col;
        for offset in 0..segment.len {
            let token = segment.from + offset + usize::from(shift == Shift::NextToken);
            if (skipped..skipped + row.response_len).contains(&token) {
                places[starts[segment.row] + token - skipped] = Some(place + offset);
            }
        }
    }
    if !may_miss && let Some(missing) = places.iter().position(Option::is_none) {
        let row = starts.partition_point(|&start| start <= missing) - 1;
        return Err(Error::NoPrompt { row });
    }
    Ok(places)
}
