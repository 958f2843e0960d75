//! What trains, from the plan alone: the sampled tokens of real rows that a token before them predicts.
//!
//! Nothing predicts the first token of a sequence, or of a part of a split one: the position before
//! it, if there is one, holds padding or another sequence.

use std::borrow::Cow;

use super::placement::{Grid, Placement, Segment};
use crate::plan::{Assembly, Row, Shift};

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
        let is_unpredicted = |(index, segment): (usize, &Segment)| {
            // Each packed response lies in the part of the same number; other rows are in one part.
            let part_begin = self.packing.map_or(0, |_| parts[index].from);
            segment.len > 0 && part_begin >= assembly.rows()[segment.row].prompt_len
        };
        let segments = self.response.segments();
        // Shifted, such tokens have no place at all.
        if self.is_shifted() || !segments.iter().enumerate().any(is_unpredicted) {
            return Cow::Borrowed(&self.response);
        }
        let predicted = segments.iter().enumerate().map(|(index, segment)| {
            if is_unpredicted((index, segment)) {
                segment.without_first()
            } else {
                *segment
            }
        });
        Cow::Owned(self.response.with_segments(predicted.collect()))
    }

    /// The places of tokens that train: sampled ones of real rows that a token predicts.
    #[must_use]
    pub fn trained_responses(&self, assembly: &Assembly) -> Grid {
        let predicted = self.predicted_responses(assembly);
        let mut trained = Vec::with_capacity(predicted.segments().len());
        for segment in predicted.segments() {
            let end = segment.from + segment.len;
            let pieces = assembly.pieces(segment.row);
            let first = pieces.partition_point(|piece| piece.end() <= segment.from);
            let pieces = pieces[first..].iter().take_while(|piece| piece.start < end);
            trained.extend(pieces.filter(|piece| piece.trains).map(|piece| {
                let from = piece.start.max(segment.from);
                Segment {
                    from,
                    len: piece.end().min(end) - from,
                    dst_col: segment.dst_col + from - segment.from,
                    ..*segment
                }
            }));
        }
        self.response.with_segments(trained)
    }

    /// The places of labels, and whether each holds the label of the next token: as it is asked for,
    /// or as response-aligned fields are shifted. A token that nothing predicts has none.
    #[must_use]
    pub fn labels(&self, assembly: &Assembly, shifted: bool) -> (Cow<'_, Grid>, bool) {
        let is_shifted = shifted || self.is_shifted();
        let grid = &self.sequence;
        let places = match (is_shifted, self.packing) {
            (true, Some(_)) => Cow::Owned(grid.without_last()),
            (true, None) => Cow::Borrowed(grid),
            (false, Some(_)) => Cow::Owned(grid.map_segments(Segment::without_first)),
            (false, None) if assembly.rows().iter().all(|row| row.prompt_len > 0) => {
                Cow::Borrowed(grid)
            }
            (false, None) => Cow::Owned(grid.map_segments(|segment| match segment.from {
                0 => segment.without_first(),
                _ => *segment, // a response, behind its prompt's segment
            })),
        };
        (places, is_shifted)
    }

    /// The first tokens of responses in rows without a prompt, where they were sampled and the rows
    /// are real: one position each. None if there are none.
    #[must_use]
    pub fn heads(assembly: &Assembly) -> Option<Grid> {
        let is_head =
            |(index, row): &(usize, &Row)| row.prompt_len == 0 && assembly.trains(*index, 0);
        let heads = assembly.rows().iter().enumerate().filter(is_head);
        let segments: Vec<_> = { heads.enumerate() }
            .map(|(dst_row, (row, _))| Segment {
                row,
                from: 0,
                len: 1,
                dst_row,
                dst_col: 0,
            })
            .collect();
        if segments.is_empty() {
            return None;
        }
        Grid::of_segments(segments.len(), 1, segments).ok()
    }

    /// How many sampled tokens of real rows nothing predicts, so that they cannot train.
    #[must_use]
    pub fn num_unpredicted(&self, assembly: &Assembly) -> usize {
        let is_unpredicted = |segment: &&Segment| {
            let begins_part = segment.from == 0 || self.packing.is_some();
            let prompt_len = assembly.rows()[segment.row].prompt_len;
            begins_part
                && segment.len > 0
                && segment.from >= prompt_len
                && assembly.trains(segment.row, segment.from - prompt_len)
        };
        self.sequence
            .segments()
            .iter()
            .filter(is_unpredicted)
            .count()
    }

    /// Whether response-aligned fields hold at each position what belongs to the next token.
    #[must_use]
    pub fn is_shifted(&self) -> bool {
        { self.packing }.is_some_and(|packing| packing.shift == Shift::NextToken)
    }
}

impl Segment {
    /// The same stretch without its first token, if it has one.
    fn without_first(&self) -> Self {
        let cut = self.len.min(1);
        Self {
            from: self.from + cut,
            len: self.len - cut,
            dst_col: self.dst_col + cut,
            ..*self
        }
    }
}
