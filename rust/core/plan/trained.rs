//! Trained tokens, from the plan alone: sampled tokens of real rows that a token before them
//! predicts.
//!
//! Padding rows do not train: [`Piece::in_row`] turns their pieces into gaps wherever rows are
//! picked. Nothing predicts the first token of a sequence, or of a part of a split one: the
//! position before it, if there is one, holds padding or another sequence.

use std::borrow::Cow;

use super::placement::{Grid, Placement, Segment};
use crate::error::Result;
use crate::plan::{Assembly, Piece, Row, Shift};

impl Piece {
    /// The same piece in a row that may be padding; padding does not train.
    pub(super) fn in_row(self, is_padding: bool) -> Self {
        Self { trains: self.trains && !is_padding, ..self }
    }
}

impl Placement {
    /// The places of responses without those of padding rows.
    #[must_use]
    pub fn real_responses(&self, assembly: &Assembly) -> Cow<'_, Grid> {
        let is_padding = |segment: &Segment| assembly.rows()[segment.row].is_padding;
        let segments = self.response.segments();
        if !segments.iter().any(is_padding) {
            return Cow::Borrowed(&self.response);
        }
        let real = segments.iter().filter(|segment| !is_padding(segment));
        Cow::Owned(self.response.with_segments(real.copied().collect()))
    }

    /// The places of responses without tokens that nothing predicts.
    #[must_use]
    pub fn predicted_responses(&self, assembly: &Assembly) -> Cow<'_, Grid> {
        let parts = self.sequence.segments();
        let begins_part = |(index, segment): (usize, &Segment)| {
            // A packed response lies in the part of the same index; other rows have one part.
            let part_begin = self.bin_layout.map_or(0, |_| parts[index].from);
            segment.len > 0 && part_begin >= assembly.rows()[segment.row].prompt_len
        };
        let mut segments = self.response.segments().iter().enumerate();
        // With a shift, such tokens have no place.
        if self.is_shifted() || !segments.any(begins_part) {
            return Cow::Borrowed(&self.response);
        }
        let segments = self.response.segments().iter().enumerate();
        let predicted = segments.map(|(index, segment)| match begins_part((index, segment)) {
            true => segment.without_first(),
            false => *segment,
        });
        Cow::Owned(self.response.with_segments(predicted.collect()))
    }

    /// The places of trained tokens: sampled tokens of real rows that a token predicts.
    ///
    /// # Errors
    /// [`Error::NoMemory`](crate::Error::NoMemory).
    pub fn trained_responses(&self, assembly: &Assembly) -> Result<Grid> {
        self.predicted_responses(assembly).of_pieces(assembly)
    }

    /// The places of labels; if `shifted`, each holds the label of the next token. A token that
    /// nothing predicts has no label.
    #[must_use]
    pub fn labels(&self, assembly: &Assembly, shifted: bool) -> Cow<'_, Grid> {
        let grid = &self.sequence;
        let is_packed = self.bin_layout.is_some();
        if shifted && is_packed {
            Cow::Owned(grid.without_last())
        } else if shifted || (!is_packed && assembly.rows().iter().all(|row| row.prompt_len > 0)) {
            Cow::Borrowed(grid)
        } else {
            Cow::Owned(grid.map_segments(|segment| match self.begins_part(segment) {
                true => segment.without_first(),
                false => *segment,
            }))
        }
    }

    /// The sampled tokens of real rows that nothing predicts, each as a row and an offset in its
    /// response.
    pub fn unpredicted<'a>(&'a self, assembly: &'a Assembly) -> impl Iterator<Item = Unpredicted> {
        let of_part = |segment: &Segment| {
            let token = segment.from.checked_sub(assembly.rows()[segment.row].prompt_len)?;
            (segment.len > 0).then_some((segment.row, token))
        };
        let of_row = |(index, row): (usize, &Row)| {
            (row.prompt_len == 0 && row.response_len > 0).then_some((index, 0))
        };
        let is_split = self.bin_layout.is_some();
        let parts = is_split.then(|| self.sequence.segments().iter().filter_map(of_part));
        let rows = (!is_split).then(|| assembly.rows().iter().enumerate().filter_map(of_row));
        let tokens = parts.into_iter().flatten().chain(rows.into_iter().flatten());
        tokens
            .filter(|&(row, token)| assembly.trains(row, token))
            .map(|(row, token)| Unpredicted { row, token })
    }

    /// True if a segment of the token streams begins a sequence, or a part of a split one. In the
    /// two-segment layout, a response continues its prompt.
    fn begins_part(&self, segment: &Segment) -> bool {
        segment.from == 0 || self.bin_layout.is_some()
    }

    /// True if response-aligned fields hold at each position the value of the next token.
    #[must_use]
    pub fn is_shifted(&self) -> bool {
        self.bin_layout.is_some_and(|layout| layout.shift == Shift::NextToken)
    }
}

/// A sampled token that nothing predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpredicted {
    /// Its row.
    pub row: usize,
    /// Its offset in the row's response.
    pub token: usize,
}

impl Grid {
    /// One position for each of the given response tokens.
    ///
    /// # Errors
    /// [`Error::TooLarge`](crate::Error::TooLarge).
    pub fn of_tokens(tokens: impl Iterator<Item = Unpredicted>) -> Result<Self> {
        let segment = |(dst_row, token): (usize, Unpredicted)| Segment {
            row: token.row,
            from: token.token,
            len: 1,
            dst_row,
            dst_col: 0,
        };
        let segments: Vec<_> = tokens.enumerate().map(segment).collect();
        Self::of_segments(segments.len(), 1, segments)
    }
}

impl Segment {
    /// The same span without its first token, if it has one.
    fn without_first(&self) -> Self {
        let cut = self.len.min(1);
        Self { from: self.from + cut, len: self.len - cut, dst_col: self.dst_col + cut, ..*self }
    }
}
