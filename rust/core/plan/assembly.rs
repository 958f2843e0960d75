//! The assembly: what rows are made of.

use crate::error::{Error, Result};

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

    /// The row as `len` positions of a response, of which the first `given` are its source's.
    fn whole(&self, len: usize, given: usize) -> (Self, Piece) {
        let row = Self {
            source: self.source,
            prompt_len: 0,
            response_len: len,
        };
        let piece = Piece {
            turn: self.source,
            from: 0,
            start: 0,
            len: given,
            trains: true,
        };
        (row, piece)
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

    /// One row per turn: its prompt, and its response as the only piece.
    ///
    /// # Errors
    /// [`Error::EmptyBatch`] and [`Error::RowCount`].
    pub fn row_per_turn(prompt_lens: &[usize], response_lens: &[usize]) -> Result<Self> {
        if prompt_lens.is_empty() && response_lens.is_empty() {
            return Err(Error::EmptyBatch);
        }
        if prompt_lens.len() != response_lens.len() {
            return Err(Error::RowCount {
                field: "responses".to_owned(),
                found: response_lens.len(),
                expected: prompt_lens.len(),
            });
        }
        let lens = prompt_lens.iter().zip(response_lens).enumerate();
        let (rows, pieces) = lens
            .map(|(turn, (&prompt_len, &response_len))| {
                let row = Row {
                    source: turn,
                    prompt_len,
                    response_len,
                };
                let piece = Piece {
                    turn,
                    from: 0,
                    start: 0,
                    len: response_len,
                    trains: true,
                };
                (row, piece)
            })
            .unzip();
        Ok(Self {
            rows,
            pieces,
            piece_offsets: (0..=prompt_lens.len()).collect(),
        })
    }

    /// Check that a field has one row per turn.
    ///
    /// # Errors
    /// [`Error::RowCount`].
    pub fn check_row_count(&self, field: &str, found: usize) -> Result<()> {
        if found == self.rows.len() {
            return Ok(());
        }
        Err(Error::RowCount {
            field: field.to_owned(),
            found,
            expected: self.rows.len(),
        })
    }

    /// Check that a field has one value per response token, in an assembly of one row per turn.
    ///
    /// # Errors
    /// [`Error::RowCount`] and [`Error::RowLength`].
    pub fn check_response_lens(&self, field: &str, lens: &[usize]) -> Result<()> {
        self.check_row_count(field, lens.len())?;
        let expected = self.rows.iter().map(|row| row.response_len);
        match expected
            .clone()
            .zip(lens)
            .position(|(expected, &found)| found != expected)
        {
            None => Ok(()),
            Some(row) => Err(Error::RowLength {
                field: field.to_owned(),
                row,
                found: lens[row],
                expected: self.rows[row].response_len,
            }),
        }
    }

    /// The same rows for a field of other lengths than the responses: its values are the only piece
    /// of a response of their number.
    ///
    /// # Errors
    /// [`Error::RowCount`], and [`Error::RowTooLong`] for a row wider than the widest response.
    pub fn with_response_lens(&self, field: &str, lens: &[usize]) -> Result<Self> {
        self.check_row_count(field, lens.len())?;
        let widest = self.widest_response();
        if let Some(row) = lens.iter().position(|&len| len > widest) {
            return Err(Error::RowTooLong {
                field: field.to_owned(),
                row,
                found: lens[row],
                widest,
            });
        }
        let prompt_lens: Vec<_> = self.rows.iter().map(|row| row.prompt_len).collect();
        Self::row_per_turn(&prompt_lens, lens)
    }

    /// The same rows for a field with one value per turn, which lies on the row's last response
    /// token: the value of the turn that the last piece comes from.
    ///
    /// # Errors
    /// [`Error::NoLastToken`] when no response token of a turn is in a row.
    pub fn on_last_token(&self, field: &str) -> Result<Self> {
        let pieces = (0..self.rows.len())
            .map(|row| match self.pieces(row).iter().rfind(|p| p.len > 0) {
                Some(last) => Ok(Piece {
                    from: 0,
                    start: last.start + last.len - 1,
                    len: 1,
                    ..*last
                }),
                None => Err(Error::NoLastToken {
                    field: field.to_owned(),
                    row,
                }),
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            rows: self.rows.clone(),
            pieces,
            piece_offsets: (0..=self.rows.len()).collect(),
        })
    }

    /// The same rows for a sequence-aligned field with `lens` values of each turn: a row's whole
    /// stream is its response, which begins with all values of its source.
    ///
    /// # Errors
    /// [`Error::RowCount`], and [`Error::StreamLength`] when a turn has not one value per token of
    /// the stream or, where `may_end_early`, more than that.
    pub fn with_stream_lens(
        &self,
        field: &str,
        lens: &[usize],
        may_end_early: bool,
    ) -> Result<Self> {
        self.check_row_count(field, lens.len())?;
        let streams = self.rows.iter().enumerate().map(|(index, row)| {
            let (found, expected) = (lens[row.source], row.len());
            if found > expected || (found < expected && !may_end_early) {
                return Err(Error::StreamLength {
                    field: field.to_owned(),
                    row: index,
                    found,
                    expected,
                    advice: if may_end_early {
                        "at most one value per token"
                    } else {
                        "one value per prompt and response token"
                    },
                });
            }
            Ok(row.whole(expected, found))
        });
        self.of_rows(streams)
    }

    /// The same rows for a field with one value per turn: a row has the value of the last turn that
    /// is in it.
    ///
    /// # Errors
    /// [`Error::RowCount`].
    pub fn with_one_each(&self, field: &str, found: usize) -> Result<Self> {
        self.check_row_count(field, found)?;
        self.of_rows(self.rows.iter().map(|row| Ok(row.whole(1, 1))))
    }

    /// An assembly of as many rows, with one piece each.
    fn of_rows(&self, rows: impl Iterator<Item = Result<(Row, Piece)>>) -> Result<Self> {
        let both = rows.collect::<Result<Vec<_>>>()?;
        let (rows, pieces) = both.into_iter().unzip();
        Ok(Self {
            rows,
            pieces,
            piece_offsets: (0..=self.rows.len()).collect(),
        })
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
