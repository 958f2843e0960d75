//! The assembly: the composition of rows.

use crate::error::{Error, Result};
use crate::plan::widths::Longest;
use crate::plan::{Chosen, Shard, TokenForm, Turns, Widths};
use crate::polling::Ticks;

/// A length of a row.
pub(super) type Len = fn(&Row) -> usize;

/// One training sequence of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The turn whose prompt + response is the row's token stream; None for a synthetic row, which
    /// holds padding tokens.
    pub source: Option<usize>,
    /// Number of prompt tokens in the stream.
    pub prompt_len: usize,
    /// Number of response tokens in the stream, observations included.
    pub response_len: usize,
    /// True if the row only fills up the number of rows, and does not train.
    pub is_padding: bool,
}

impl Row {
    /// The shortest row that is valid everywhere: a prompt and a response of one token each.
    pub const SYNTHETIC: Self =
        Self { source: None, prompt_len: 1, response_len: 1, is_padding: true };

    /// Number of tokens in the stream.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.prompt_len + self.response_len
    }

    /// The same row with a response of this length only.
    fn whole(&self, response_len: usize) -> Self {
        Self { prompt_len: 0, response_len, ..*self }
    }
}

/// A span of one turn's response, placed in a row's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The source turn.
    pub turn: usize,
    /// Offset in that turn's response.
    pub from: usize,
    /// Offset in the row's response.
    pub start: usize,
    /// Number of tokens.
    pub len: usize,
    /// True if its tokens are trained. If not, response-aligned fields treat it as a gap.
    pub trains: bool,
}

impl Piece {
    /// One past its last position in the row's response.
    pub fn end(&self) -> usize {
        self.start + self.len
    }

    /// The first `len` tokens of a turn's response, at the beginning of a row's response.
    fn whole(turn: usize, len: usize) -> Self {
        Self { turn, from: 0, start: 0, len, trains: true }
    }
}

/// A row picked from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Its index; None for a synthetic row.
    pub row: Option<usize>,
    /// True if it only fills up the number of rows.
    pub is_padding: bool,
}

impl Pick {
    /// The pick of a row by index.
    pub fn of_row(row: usize) -> Self {
        Self { row: Some(row), is_padding: false }
    }
}

/// The composition of rows: a token stream each, and pieces of response-aligned fields.
///
/// Pieces of a row are ordered, do not overlap and lie inside its response; between them are gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembly {
    rows: Vec<Row>,
    pieces: Vec<Piece>,
    /// Row `i` has the pieces `piece_offsets[i]..piece_offsets[i + 1]`.
    piece_offsets: Vec<usize>,
    longest: Longest,
}

impl Assembly {
    /// An assembly from its tables, checked.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] when the offsets do not partition the pieces, or a row's pieces
    /// overlap, fall back or leave its response.
    pub fn new(rows: Vec<Row>, pieces: Vec<Piece>, piece_offsets: Vec<usize>) -> Result<Self> {
        if rows.is_empty() {
            return Err(Error::InvalidPlan("it has no rows".to_owned()));
        }
        let partitions = piece_offsets.len() == rows.len() + 1
            && piece_offsets.first() == Some(&0)
            && piece_offsets.last() == Some(&pieces.len())
            && piece_offsets.is_sorted();
        if !partitions {
            return Err(Error::InvalidPlan(
                "piece_offsets must rise from 0 to the number of pieces, with one more than rows"
                    .to_owned(),
            ));
        }
        let assembly = Self::of_tables(rows, pieces, piece_offsets);
        for (index, row) in assembly.rows.iter().enumerate() {
            let mut end = 0;
            for piece in assembly.pieces(index) {
                let next = piece.start.checked_add(piece.len);
                match next {
                    Some(next) if piece.start >= end && next <= row.response_len => end = next,
                    _ => {
                        return Err(Error::InvalidPlan(format!(
                            "row {index} has a piece at {}..{}, but a response of {} tokens \
                             whose pieces before it end at {end}",
                            piece.start,
                            next.unwrap_or(usize::MAX),
                            row.response_len
                        )));
                    }
                }
            }
            if row.prompt_len.checked_add(row.response_len).is_none() {
                return Err(Error::InvalidPlan(format!(
                    "row {index} has more tokens than can be counted"
                )));
            }
        }
        Ok(assembly)
    }

    /// Check that the rows can be read from the turns: their streams have the lengths of their
    /// sources, and their pieces lie inside responses.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`].
    pub fn check_turns(&self, turns: &Turns) -> Result<()> {
        let fits = |(index, row): (usize, &Row)| match row.source {
            Some(turn) => {
                let index = turns.index(turn);
                index.is_some_and(|index| row.len() == turns.stream_len(index))
            }
            None => *row == Row::SYNTHETIC && self.pieces(index).is_empty(),
        };
        if let Some(row) = self.rows.iter().enumerate().position(|row| !fits(row)) {
            let reason = format!("row {row} has other lengths than its source");
            return Err(Error::InvalidPlan(reason));
        }
        let fits = |piece: &Piece| {
            let end = piece.from.checked_add(piece.len);
            let len = turns.index(piece.turn).map(|index| turns.response_lens()[index]);
            len.zip(end).is_some_and(|(len, end)| end <= len)
        };
        match self.pieces.iter().position(|piece| !fits(piece)) {
            None => Ok(()),
            Some(piece) => {
                Err(Error::InvalidPlan(format!("piece {piece} reads beyond its turn's response")))
            }
        }
    }

    pub(super) fn of_tables(rows: Vec<Row>, pieces: Vec<Piece>, piece_offsets: Vec<usize>) -> Self {
        Self { rows, pieces, piece_offsets, longest: Longest::default() }
    }

    /// One row per turn: its prompt, and its response as the only piece.
    ///
    /// # Errors
    /// Those of the hook, and [`Error::NoMemory`].
    pub fn row_per_turn(turns: &Turns, ticks: &mut Ticks) -> Result<Self> {
        let lens = turns.prompt_lens().iter().zip(turns.response_lens());
        let lens = lens.enumerate();
        let row = |(index, (&prompt_len, &response_len))| Row {
            source: Some(turns.number(index)),
            prompt_len,
            response_len,
            is_padding: false,
        };
        let piece = |(index, (_, &len))| Piece::whole(turns.number(index), len);
        let rows = ticks.gathered(lens.clone().map(row))?;
        let pieces = ticks.gathered(lens.map(piece))?;
        let piece_offsets = ticks.gathered(0..=pieces.len())?;
        Ok(Self::of_tables(rows, pieces, piece_offsets))
    }

    /// The same rows for a field with a value for every token of a turn, of which only response
    /// values are read.
    #[must_use]
    pub fn after_prompts(&self, turns: &Turns) -> Self {
        let mut own = self.clone();
        for piece in &mut own.pieces {
            piece.from += turns.prompt_lens()[piece.turn];
        }
        own
    }

    /// The same rows for a field of other lengths than the responses: each row's response has the
    /// field's length and one piece.
    ///
    /// # Errors
    /// [`Error::RowTooLong`] for a row wider than the widest response.
    pub fn with_response_lens(&self, field: &str, lens: &[usize], turns: &Turns) -> Result<Self> {
        let widest = self.longest().response;
        if let Some(row) = lens.iter().position(|&len| len > widest) {
            return Err(Error::RowTooLong {
                field: field.to_owned(),
                row: turns.number(row),
                found: lens[row],
                widest,
            });
        }
        Ok(Self::of_rows(self.rows.iter().map(|row| {
            let response_len = row.source.map_or(0, |turn| lens[turn]);
            let piece = row.source.map(|turn| Piece::whole(turn, response_len));
            let piece = piece.map(|piece| piece.in_row(row.is_padding));
            let row = Row { response_len, ..*row };
            (row, piece)
        })))
    }

    /// The same rows for a field with values for the last `lens` tokens of each turn's response;
    /// earlier tokens are gaps. Rows are one turn each.
    ///
    /// # Errors
    /// [`Error::RowLength`] for a row with more values than response tokens.
    pub fn with_last_tokens(&self, field: &str, lens: &[usize], turns: &Turns) -> Result<Self> {
        let rows = self.rows.iter().map(|row| {
            let Some(turn) = row.source else {
                return Ok((*row, None));
            };
            let len = lens[turn];
            let Some(start) = row.response_len.checked_sub(len) else {
                return Err(Error::RowLength {
                    field: field.to_owned(),
                    row: turns.number(turn),
                    found: len,
                    expected: row.response_len,
                    stream: row.len(),
                    form: TokenForm::Parts,
                });
            };
            let piece = Piece { start, ..Piece::whole(turn, len) };
            Ok((*row, Some(piece)))
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        Ok(Self::of_rows(rows.into_iter()))
    }

    /// The same rows for a field with one value per turn, placed on the row's last sampled token:
    /// the value of the last turn in the row.
    ///
    /// # Errors
    /// The last turn of the first row without a response token of any turn, if that turn's value
    /// `is_lost` then.
    pub fn on_last_token(&self, is_lost: impl Fn(usize) -> bool) -> Result<Self, usize> {
        let last_tokens = self.rows.iter().enumerate().map(|(index, row)| {
            let Some(turn) = row.source else {
                return Ok(None);
            };
            match self.pieces(index).iter().rfind(|piece| piece.len > 0) {
                Some(last) => Ok(Some(Piece {
                    turn,
                    from: 0,
                    start: last.start + last.len - 1,
                    len: 1,
                    ..*last
                })),
                None if is_lost(turn) => Err(turn),
                None => Ok(None),
            }
        });
        let pieces = last_tokens.collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of_rows(self.rows.iter().copied().zip(pieces)))
    }

    /// The same rows for a field with one value per turn, placed on the turn's last token in a row;
    /// values of turns without a token there are left out.
    ///
    /// # Errors
    /// The last turn of the first row without any value, if that turn's value `is_lost` then.
    pub fn on_last_tokens(&self, is_lost: impl Fn(usize) -> bool) -> Result<Self, usize> {
        let (mut pieces, mut piece_offsets) = (Vec::new(), vec![0]);
        for (index, row) in self.rows.iter().enumerate() {
            let first = pieces.len();
            let held: Vec<_> = self.pieces(index).iter().filter(|piece| piece.len > 0).collect();
            for of_turn in held.chunk_by(|a, b| a.turn == b.turn) {
                let last = of_turn[of_turn.len() - 1];
                pieces.push(Piece { from: 0, start: last.end() - 1, len: 1, ..*last });
            }
            if pieces.len() == first
                && !row.is_padding
                && let Some(turn) = row.source.filter(|&turn| is_lost(turn))
            {
                return Err(turn);
            }
            piece_offsets.push(pieces.len());
        }
        Ok(Self::of_tables(self.rows.clone(), pieces, piece_offsets))
    }

    /// The same rows for a sequence-aligned field with `lens` values of each turn: a row's whole
    /// stream is its response, and all values of its source.
    #[must_use]
    pub fn with_streams(&self, lens: &[usize]) -> Self {
        self.with_whole_rows(Row::len, |turn| lens[turn])
    }

    /// The same rows for a field with values for some tokens of sequences: a row's whole stream is
    /// its response, with the given pieces by row. Padding rows have none.
    #[must_use]
    pub fn with_stream_pieces(&self, mut of_row: impl FnMut(usize) -> Vec<Piece>) -> Self {
        Self::of_rows(self.rows.iter().enumerate().map(|(index, row)| {
            let pieces = if row.is_padding { Vec::new() } else { of_row(index) };
            (row.whole(row.len()), pieces)
        }))
    }

    /// The same rows for a field with one value per turn: a row has the value of its last turn.
    #[must_use]
    pub fn with_one_each(&self) -> Self {
        self.with_whole_rows(|_| 1, |_| 1)
    }

    /// Rows picked from these: copies by index, which do not train if they are padding, and
    /// synthetic rows for picks without an index.
    ///
    /// # Panics
    /// If an index is out of range.
    #[must_use]
    pub fn picked(&self, picks: &[Pick]) -> Self {
        Self::of_rows(picks.iter().map(|pick| {
            let row = pick.row.map_or(Row::SYNTHETIC, |index| self.rows[index]);
            let is_padding = pick.is_padding || row.is_padding;
            let pieces = pick.row.map_or(&[][..], |index| self.pieces(index));
            let pieces = pieces.iter().map(move |piece| piece.in_row(is_padding));
            (Row { is_padding, ..row }, pieces)
        }))
    }

    /// The turns that the rows of a step's shard consist of; None for all rows, and for rows that
    /// are no shard of a plan.
    #[must_use]
    pub fn turns_of(&self, shard: &Shard, turns: &Turns) -> Option<Turns> {
        let rows = shard.lens.as_ref().map(|_| shard.numbers())?;
        let rows = Chosen::new(rows, self.rows.len());
        let of_row = |&row: &usize| {
            let pieces = self.pieces(row).iter().map(|piece| piece.turn);
            pieces.chain(self.rows[row].source)
        };
        rows.is_part().then(|| turns.only(rows.numbers.iter().flat_map(of_row).collect()))
    }

    /// The rows of these numbers, as a part that knows the longest lengths of all.
    #[must_use]
    pub fn part(&self, numbers: &[usize]) -> Self {
        let picks: Vec<_> = numbers.iter().map(|&row| Pick::of_row(row)).collect();
        Self { longest: Longest::known(self.longest()), ..self.picked(&picks) }
    }

    /// The same rows, with other numbers of turns.
    #[must_use]
    pub fn renumbered(&self, number: impl Fn(usize) -> usize) -> Self {
        let mut own = self.clone();
        for row in &mut own.rows {
            row.source = row.source.map(&number);
        }
        for piece in &mut own.pieces {
            piece.turn = number(piece.turn);
        }
        own
    }

    /// The same rows, picked from a batch, read from its outputs: the source of a row is its row of
    /// the batch.
    #[must_use]
    pub fn reread(&self, picks: impl Iterator<Item = Pick>) -> Self {
        let mut own = self.clone();
        for (index, (row, pick)) in own.rows.iter_mut().zip(picks).enumerate() {
            row.source = pick.row;
            let pieces = self.piece_offsets[index]..self.piece_offsets[index + 1];
            for piece in &mut own.pieces[pieces] {
                (piece.turn, piece.from) = (pick.row.unwrap_or(piece.turn), piece.start);
            }
        }
        own
    }

    /// The same number of rows, each with a response of `len` positions only, of which the first
    /// `given` come from its source.
    fn with_whole_rows(&self, len: impl Fn(&Row) -> usize, given: impl Fn(usize) -> usize) -> Self {
        Self::of_rows(self.rows.iter().map(|row| {
            let piece = |turn| Piece::whole(turn, given(turn));
            (row.whole(len(row)), row.source.map(piece))
        }))
    }

    /// An assembly of rows with their pieces.
    fn of_rows<P: IntoIterator<Item = Piece>>(rows: impl Iterator<Item = (Row, P)>) -> Self {
        let (mut pieces, mut piece_offsets) = (Vec::with_capacity(rows.size_hint().0), vec![0]);
        let rows = rows.map(|(row, of_row)| {
            pieces.extend(of_row);
            piece_offsets.push(pieces.len());
            row
        });
        Self::of_tables(rows.collect(), pieces, piece_offsets)
    }

    /// The rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The pieces of one row.
    pub fn pieces(&self, row: usize) -> &[Piece] {
        &self.pieces[self.piece_offsets[row]..self.piece_offsets[row + 1]]
    }

    /// True if a response token of a row was sampled and trains.
    pub fn trains(&self, row: usize, token: usize) -> bool {
        let pieces = self.pieces(row);
        let next = pieces.partition_point(|piece| piece.end() <= token);
        pieces.get(next).is_some_and(|piece| piece.trains && piece.start <= token)
    }

    /// The pieces of all rows, and their offsets by row.
    pub fn piece_table(&self) -> (&[Piece], &[usize]) {
        (&self.pieces, &self.piece_offsets)
    }

    /// The longest lengths among the rows.
    pub fn longest(&self) -> Widths {
        self.longest.of(&self.rows)
    }
}
