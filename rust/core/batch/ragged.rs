//! Fields with any number of values per token: values are placed by the counts of their tokens, which
//! are written as offsets.

use std::ops::Range;

use super::array_grids::{ArrayGrid, Placed};
use super::{BatchRows, FieldSpec};
use crate::check::TOKEN_IDS;
use crate::column::{Column, FieldColumn, Lookahead};
use crate::error::{Error, Location, Result};
use crate::memory::{filled, gathered, with_room};
use crate::plan::{Align, Grid, Turns, in_values};

/// Counts added up at a time: few enough that short rows do not pay for clearing them.
const COUNTS: usize = 1 << 9;

/// The numbers of values of turns' tokens.
struct Counts<'a> {
    field: &'a str,
    column: &'a dyn FieldColumn,
    turns: &'a Turns,
    /// The values of each turn.
    totals: Vec<usize>,
}

impl<'a> Counts<'a> {
    /// The counts of a field, checked against the numbers of values of the turns.
    fn new(
        field: &'a str,
        column: &'a dyn FieldColumn,
        values: &[usize],
        turns: &'a Turns,
    ) -> Result<Self> {
        let (lens, totals) = (column.lens()?, with_room(values.len())?);
        let mut counts = Self { field, column, turns, totals };
        for (turn, (&len, &found)) in lens.iter().zip(values).enumerate() {
            let expected = counts.sum(turn, 0..len)?;
            if found != expected {
                return Err(Error::ValueCount {
                    field: field.to_owned(),
                    row: turns.number(turn),
                    found,
                    expected,
                });
            }
            counts.totals.push(found);
        }
        Ok(counts)
    }

    /// The values of a span of a turn's tokens.
    fn of(&self, turn: usize, span: Range<usize>) -> Result<usize> {
        let len = Column::<i64>::row_len(self.column, turn);
        match span {
            Range { start: 0, end } if end == len => Ok(self.totals[turn]),
            span => self.sum(turn, span),
        }
    }

    fn sum(&self, turn: usize, span: Range<usize>) -> Result<usize> {
        let (mut counts, mut sum) = ([0_i64; COUNTS], 0_usize);
        for from in span.clone().step_by(COUNTS) {
            let counts = &mut counts[..COUNTS.min(span.end - from)];
            self.column.read(turn, from, counts)?;
            // All bits of a chunk at once: signs and huge counts are rare.
            let bits = counts.iter().fold(0, |bits, count| bits | count);
            if bits < 0 {
                let is_negative = |(_, count): &(usize, &i64)| **count < 0;
                let found = counts.iter().enumerate().find(is_negative);
                let (at, &count) = found.unwrap_or((0, &-1));
                let location = Location {
                    field: self.field.to_owned(),
                    row: self.turns.number(turn),
                    position: Some(from + at),
                };
                return Err(Error::NegativeCount { location, count });
            }
            let of_chunk = match bits < i64::MAX / COUNTS as i64 {
                true => counts.iter().sum(),
                false => counts.iter().fold(0, |sum: i64, count| sum.saturating_add(*count)),
            };
            sum = sum.saturating_add(of_chunk.unsigned_abs() as usize);
        }
        Ok(sum)
    }
}

impl Placed {
    /// Place the values of a field by their counts, which are placed over a `grid` of tokens, and
    /// the counts over its positions.
    ///
    /// # Errors
    /// Counts that are negative, or do not add up to the values of their turn; values of more
    /// dimensions.
    pub fn place_values(
        &mut self,
        spec: &FieldSpec,
        lens: &[usize],
        counts: &mut Self,
        column: &dyn FieldColumn,
        rows: &BatchRows,
        grid: &Grid,
    ) -> Result<()> {
        if !self.trailing.is_empty() {
            return Err(Error::ShapedValues {
                field: spec.name.clone(),
                found: self.trailing.clone(),
            });
        }
        let assembly = counts.field.assembly.as_ref().unwrap_or(rows.read());
        let counted = Counts::new(&spec.name, column, lens, rows.turns)?;
        let (own, values) = in_values(assembly, grid, |turn, span| counted.of(turn, span))?;
        let flat = grid.flattened()?;
        let places = flat.segments().iter().zip(values.segments());
        let starts = places.map(|(tokens, values)| (tokens.dst_col, values.dst_col));
        counts.starts = gathered(starts.chain([(flat.width(), values.width())]))?;
        counts.array_grid = ArrayGrid::Own(flat);
        self.field.assembly = Some(own);
        self.field.counts = Some(counts.field.column);
        self.array_grid = ArrayGrid::Own(values);
        Ok(())
    }
}

/// The values before a position where a segment, or the grid, begins, among pairs of both.
pub(super) fn offset_at(position: usize, starts: &[(usize, usize)]) -> usize {
    let next = starts.partition_point(|(start, _)| *start < position);
    starts.get(next).map_or(0, |(_, values)| *values)
}

/// Replace counts by offsets, from the values before the first on.
pub(super) fn add_up(counts: &mut [i64], before: usize) {
    let mut end = i64::try_from(before).unwrap_or(i64::MAX); // values are in memory
    for count in counts {
        end += std::mem::replace(count, end);
    }
}

/// Values whose errors name their token.
pub(super) struct ValuesOfTokens<'a, T> {
    pub values: &'a dyn Column<T>,
    pub counts: &'a dyn Column<i64>,
}

impl<T> ValuesOfTokens<'_, T> {
    /// The token that has a turn's value, by the counts that planned it.
    fn token_of(&self, turn: usize, value: usize) -> Result<usize> {
        let (mut count, mut end) = ([0], 0);
        for token in 0..self.counts.row_len(turn) {
            self.counts.read(turn, token, &mut count)?;
            end += usize::try_from(count[0]).unwrap_or(0);
            if value < end {
                return Ok(token);
            }
        }
        Ok(value)
    }
}

impl<T> Column<T> for ValuesOfTokens<'_, T> {
    fn row_len(&self, turn: usize) -> usize {
        self.values.row_len(turn)
    }

    fn read(&self, turn: usize, from: usize, out: &mut [T]) -> Result<()> {
        let mut result = self.values.read(turn, from, out);
        if let Err(Error::DoesNotFit { location, .. }) = &mut result
            && let Some(position) = &mut location.position
        {
            *position = self.token_of(turn, *position)?;
        }
        result
    }

    fn announce(&self, turn: usize, from: usize, lookahead: Lookahead) {
        self.values.announce(turn, from, lookahead);
    }
}

/// A turn whose tokens were added to their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithOwnTokens {
    /// The turn.
    pub turn: usize,
    /// All values of its tokens.
    pub values: Vec<i64>,
    /// The number of each token.
    pub counts: Vec<i64>,
    /// Tokens that were added.
    pub added: usize,
}

/// Look for tokens that are not among their own values: the turns that have some, with these tokens
/// after their values. Tokens without values are left out.
///
/// # Errors
/// [`Error::NotAmongValues`] for the first of them if `refuses`, [`Error::NoIndex`] for values that
/// are no ids, such as padding, and errors of the columns.
pub fn add_own_tokens<C: FieldColumn>(
    field: &str,
    refuses: bool,
    align: Align,
    (tokens, turns): (&dyn Column<i64>, &Turns),
    (values, counts): (&C, &C),
) -> Result<Vec<WithOwnTokens>> {
    let mut changed = Vec::new();
    let totals = values.lens()?;
    for (turn, count) in counts.lens()?.into_iter().enumerate() {
        let (from, len) = match align {
            Align::Response => (turns.prompt_lens()[turn], turns.response_lens()[turn]),
            Align::Sequence => (0, turns.stream_len(turn)),
        };
        let (mut of_tokens, mut found) = (filled(count, |_| 0_i64)?, filled(totals[turn], |_| 0)?);
        counts.read(turn, 0, &mut of_tokens)?;
        let is_count = |&count: &i64| usize::try_from(count).ok();
        let sum: Option<usize> = of_tokens.iter().map(is_count).sum();
        if len != count || sum != Some(found.len()) {
            continue; // refused when they are planned
        }
        values.read(turn, 0, &mut found)?;
        let mut own = filled(len, |_| 0_i64)?;
        tokens.read(turn, from, &mut own)?;
        let at = |token| Location {
            field: field.to_owned(),
            row: turns.number(turn),
            position: Some(token),
        };
        let mut rest = found.as_slice();
        let mut missing = Vec::new();
        for (token, (&id, &count)) in own.iter().zip(&of_tokens).enumerate() {
            let (of_token, later) = rest.split_at(count.unsigned_abs() as usize);
            rest = later;
            if let Some(id) = of_token.iter().find(|one| **one < 0 && **one != id) {
                let (location, value) = (at(token), id.to_string());
                let limit = TOKEN_IDS;
                return Err(Error::NoIndex { location, value, limit });
            }
            if !of_token.is_empty() && !of_token.contains(&id) {
                missing.push(token);
            }
        }
        let Some(&position) = missing.first() else {
            continue;
        };
        if refuses {
            let (location, id) = (at(position), own[position]);
            return Err(Error::NotAmongValues { location, id });
        }
        changed.push(WithOwnTokens::new(turn, &found, of_tokens, &own, &missing)?);
    }
    Ok(changed)
}

impl WithOwnTokens {
    /// A turn's values and counts, with the `missing` ones of its own tokens.
    fn new(
        turn: usize,
        values: &[i64],
        mut counts: Vec<i64>,
        own: &[i64],
        missing: &[usize],
    ) -> Result<Self> {
        let added = missing.len();
        let mut all = filled(values.len() + added, |_| 0_i64)?;
        let (mut to, mut rest, mut missing) = (0, values, missing.iter().copied().peekable());
        for (token, count) in counts.iter_mut().enumerate() {
            let (of_token, later) = rest.split_at(count.unsigned_abs() as usize);
            all[to..to + of_token.len()].copy_from_slice(of_token);
            (to, rest) = (to + of_token.len(), later);
            if missing.next_if_eq(&token).is_some() {
                all[to] = own[token];
                (to, *count) = (to + 1, *count + 1);
            }
        }
        Ok(Self { turn, values: all, counts, added })
    }
}
