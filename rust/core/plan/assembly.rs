//! The assembly: what rows are made of.

use crate::error::{Error, Result};
use crate::plan::Turns;

/// One training sequence of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The turn whose prompt + response is the row's token stream.
    pub source: usize,
    /// Tokens of the stream that are prompt.
    pub prompt_len: usize,
    /// Tokens of the stream that are response, observations included.
    pub response_len: usize,
}

impl Row {
    /// Tokens of the stream.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.prompt_len + self.response_len
    }
}

/// A stretch of one turn's response at a place inside a row's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The turn it comes from.
    pub turn: usize,
    /// Where it begins in that turn's response.
    pub from: usize,
    /// Where it lies in the row's response.
    pub start: usize,
    /// Its number of tokens.
    pub len: usize,
    /// Whether its tokens are trained. If not, the loss mask treats it as a gap.
    pub trains: bool,
}

impl Piece {
    /// One past the last position that it lies at in the row's response.
    pub fn end(&self) -> usize {
        self.start + self.len
    }

    /// The first `len` tokens of a turn's response, as all that a row's response begins with.
    fn whole(turn: usize, len: usize) -> Self {
        Self {
            turn,
            from: 0,
            start: 0,
            len,
            trains: true,
        }
    }
}

/// What rows are made of: a token stream each, and pieces of response-aligned fields.
///
/// Pieces of a row are ordered, do not overlap and lie inside its response; what lies between them
/// are gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembly {
    rows: Vec<Row>,
    pieces: Vec<Piece>,
    /// Row `i` has the pieces `piece_offsets[i]..piece_offsets[i + 1]`.
    piece_offsets: Vec<usize>,
}

impl Assembly {
    /// An assembly from its tables, checked.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] when the offsets do not partition the pieces, or a row's pieces
    /// overlap, fall back or leave its response.
    pub fn new(rows: Vec<Row>, pieces: Vec<Piece>, piece_offsets: Vec<usize>) -> Result<Self> {
        if rows.is_empty() {
            return Err(Error::InvalidPlan("it has no row".to_owned()));
        }
        let partitions = piece_offsets.len() == rows.len() + 1
            && piece_offsets.first() == Some(&0)
            && piece_offsets.last() == Some(&pieces.len())
            && piece_offsets.is_sorted();
        if !partitions {
            return Err(Error::InvalidPlan(
                "piece_offsets does not partition the pieces into rows".to_owned(),
            ));
        }
        let assembly = Self {
            rows,
            pieces,
            piece_offsets,
        };
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
                return Err(Error::InvalidPlan(format!("row {index} is too long")));
            }
        }
        Ok(assembly)
    }

    /// Check that the rows can be read from such turns: their streams are those of their sources,
    /// and their pieces lie inside responses.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`].
    pub fn check_turns(&self, turns: &Turns) -> Result<()> {
        let is_source =
            |row: &Row| row.source < turns.count() && row.len() == turns.stream_len(row.source);
        if let Some(row) = self.rows.iter().position(|row| !is_source(row)) {
            let reason = format!("row {row} is not as long as its source");
            return Err(Error::InvalidPlan(reason));
        }
        let fits = |piece: &Piece| {
            let end = piece.from.checked_add(piece.len);
            let len = turns.response_lens().get(piece.turn);
            len.zip(end).is_some_and(|(&len, end)| end <= len)
        };
        match self.pieces.iter().position(|piece| !fits(piece)) {
            None => Ok(()),
            Some(piece) => Err(Error::InvalidPlan(format!(
                "piece {piece} reads beyond its turn's response"
            ))),
        }
    }

    /// One row per turn: its prompt, and its response as the only piece.
    pub fn row_per_turn(turns: &Turns) -> Self {
        let lens = turns.prompt_lens().iter().zip(turns.response_lens());
        let rows = lens
            .enumerate()
            .map(|(turn, (&prompt_len, &response_len))| Row {
                source: turn,
                prompt_len,
                response_len,
            });
        Self::of_rows(rows.map(|row| (row, Piece::whole(row.source, row.response_len))))
    }

    /// The same rows for a field of other lengths than the responses: its values are the only piece
    /// of a response of their number.
    ///
    /// # Errors
    /// [`Error::RowTooLong`] for a row wider than the widest response.
    pub fn with_response_lens(&self, field: &str, lens: &[usize]) -> Result<Self> {
        let widest = self.widest_response();
        if let Some(row) = lens.iter().position(|&len| len > widest) {
            return Err(Error::RowTooLong {
                field: field.to_owned(),
                row,
                found: lens[row],
                widest,
            });
        }
        Ok(Self::of_rows(self.rows.iter().map(|row| {
            let response_len = lens[row.source];
            let row = Row {
                response_len,
                ..*row
            };
            (row, Piece::whole(row.source, response_len))
        })))
    }

    /// The same rows for a field with one value per turn, which lies on the row's last token that
    /// was sampled: the value of the last turn that is in the row.
    ///
    /// # Errors
    /// [`Error::NoLastToken`] when no response token of a turn is in a row.
    pub fn on_last_token(&self, field: &str) -> Result<Self> {
        let last_tokens = self.rows.iter().enumerate().map(|(index, row)| {
            match self.pieces(index).iter().rfind(|piece| piece.len > 0) {
                Some(last) => Ok(Piece {
                    turn: row.source,
                    from: 0,
                    start: last.start + last.len - 1,
                    len: 1,
                    ..*last
                }),
                None => Err(Error::NoLastToken {
                    field: field.to_owned(),
                    row: row.source,
                }),
            }
        });
        let pieces = last_tokens.collect::<Result<Vec<_>>>()?;
        Ok(Self::of_rows(self.rows.iter().copied().zip(pieces)))
    }

    /// The same rows for a sequence-aligned field with `lens` values of each turn: a row's whole
    /// stream is its response, which begins with all values of its source.
    #[must_use]
    pub fn with_streams(&self, lens: &[usize]) -> Self {
        self.with_whole_rows(|row| (row.len(), lens[row.source]))
    }

    /// The same rows for a field with one value per turn: a row has the value of the last turn that
    /// is in it.
    #[must_use]
    pub fn with_one_each(&self) -> Self {
        self.with_whole_rows(|_| (1, 1))
    }

    /// Only these rows.
    #[must_use]
    pub fn with_rows(&self, rows: &[usize]) -> Self {
        let ends = rows.iter().scan(0, |end, &row| {
            *end += self.pieces(row).len();
            Some(*end)
        });
        Self {
            rows: rows.iter().map(|&row| self.rows[row]).collect(),
            pieces: { rows.iter() }
                .flat_map(|&row| self.pieces(row))
                .copied()
                .collect(),
            piece_offsets: [0].into_iter().chain(ends).collect(),
        }
    }

    /// The same rows where each turn is what a row was made of, as in a batch that is read again.
    #[must_use]
    pub fn of_own_rows(&self) -> Self {
        let mut own = self.clone();
        for (index, row) in own.rows.iter_mut().enumerate() {
            row.source = index;
            let pieces = self.piece_offsets[index]..self.piece_offsets[index + 1];
            for piece in &mut own.pieces[pieces] {
                (piece.turn, piece.from) = (index, piece.start);
            }
        }
        own
    }

    /// As many rows, each with positions of a response only, of which the first so many are its
    /// source's.
    fn with_whole_rows(&self, lens: impl Fn(&Row) -> (usize, usize)) -> Self {
        Self::of_rows(self.rows.iter().map(|row| {
            let (response_len, given) = lens(row);
            let whole = Row {
                source: row.source,
                prompt_len: 0,
                response_len,
            };
            (whole, Piece::whole(row.source, given))
        }))
    }

    /// An assembly of rows with one piece each.
    fn of_rows(rows: impl Iterator<Item = (Row, Piece)>) -> Self {
        let (rows, pieces): (Vec<_>, Vec<_>) = rows.unzip();
        Self {
            piece_offsets: (0..=rows.len()).collect(),
            rows,
            pieces,
        }
    }

    /// The rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The pieces of one row.
    pub fn pieces(&self, row: usize) -> &[Piece] {
        &self.pieces[self.piece_offsets[row]..self.piece_offsets[row + 1]]
    }

    /// The pieces of all rows, and the offsets that part them.
    pub fn piece_table(&self) -> (&[Piece], &[usize]) {
        (&self.pieces, &self.piece_offsets)
    }

    /// Length of the longest response.
    pub fn widest_response(&self) -> usize {
        self.rows
            .iter()
            .map(|row| row.response_len)
            .max()
            .unwrap_or(0)
    }
}
