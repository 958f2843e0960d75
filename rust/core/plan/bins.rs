//! Bins: sequences that share an output row.

use super::BinTables;
use super::partition::sort_indices;
use crate::error::{Error, Result};
use crate::text::counted;

/// A span of a sequence in a bin: the whole sequence unless a packer split it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index of the sequence.
    pub index: usize,
    /// First token of the span, as an offset in the sequence.
    pub from: usize,
    /// Number of tokens.
    pub len: usize,
}

/// Spans of sequences by bin, in order. Every token is in exactly one span.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bins {
    /// Offsets of bins in `spans`, one more than bins.
    pub offsets: Vec<usize>,
    /// The spans of all bins.
    pub spans: Vec<Span>,
}

impl Bins {
    /// Whole sequences in one bin, in order.
    pub fn single(lens: impl IntoIterator<Item = usize>) -> Self {
        let whole = |(index, len)| Span { index, from: 0, len };
        let spans: Vec<_> = lens.into_iter().enumerate().map(whole).collect();
        Self { offsets: vec![0, spans.len()], spans }
    }

    /// Number of bins.
    pub fn count(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The spans of one bin.
    pub fn spans(&self, bin: usize) -> &[Span] {
        &self.spans[self.offsets[bin]..self.offsets[bin + 1]]
    }

    /// Check that these are bins of sequences of the given lengths: every token is in exactly one
    /// span.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] for offsets that do not partition the spans,
    /// [`Error::OtherSequenceCount`] and [`Error::OtherSequenceLength`] for other sequences.
    pub fn check(&self, lens: &[usize]) -> Result<()> {
        let parts = self.offsets.first() == Some(&0)
            && self.offsets.last() == Some(&self.spans.len())
            && self.offsets.is_sorted();
        if !parts {
            let reason = "the offsets of its bins do not part the spans".to_owned();
            return Err(Error::InvalidPlan(reason));
        }
        let found = lens.len();
        let expected = self.spans.iter().map(|span| span.index + 1).max();
        if expected.unwrap_or(0) != found {
            return Err(Error::OtherSequenceCount { found, expected: expected.unwrap_or(0) });
        }
        let mut tokens = vec![None; lens.len()];
        let mut parts = Vec::new();
        for (place, span) in self.spans.iter().enumerate() {
            let found = tokens[span.index].get_or_insert(0_usize);
            *found = found.saturating_add(span.len);
            if span.len != lens[span.index] || *found != span.len {
                parts.push(place);
            }
        }
        for (row, (&found, expected)) in lens.iter().zip(tokens).enumerate() {
            if expected != Some(found) {
                return Err(Error::OtherSequenceLength {
                    row,
                    found,
                    expected: expected.unwrap_or(0),
                });
            }
        }
        // The numbers of tokens are equal, so all tokens are there if no two parts overlap.
        let begin = |part: usize| (self.spans[part].index, self.spans[part].from);
        sort_indices(&mut parts, &|a, b| begin(a).cmp(&begin(b)));
        let mut pairs = parts.windows(2).map(|two| [self.spans[two[0]], self.spans[two[1]]]);
        let overlap = |[a, b]: &[Span; 2]| a.index == b.index && a.from + a.len > b.from;
        let overlapping = pairs.find(overlap).map(|[span, _]| span.index);
        let beyond =
            self.spans.iter().find(|span| span.from.saturating_add(span.len) > lens[span.index]);
        if let Some(index) = overlapping.or(beyond.map(|span| span.index)) {
            let reason = format!("sequence {index} is not whole in its bins");
            return Err(Error::InvalidPlan(reason));
        }
        Ok(())
    }
}

impl Bins {
    /// Bins of whole sequences of the given lengths, from lists of indices.
    ///
    /// # Errors
    /// [`Error::OtherBins`] unless every sequence is in exactly one bin.
    pub fn of_lists(lists: &[Vec<usize>], lens: &[usize]) -> Result<Self> {
        let all = || lists.iter().flatten().copied();
        if let Some(last) = all().max().filter(|&last| last >= lens.len()) {
            let rows = counted(lens.len(), "row");
            let reason = format!("it has row {last}, but there are {rows}");
            return Err(Error::OtherBins(reason));
        }
        let mut offsets = vec![0];
        for list in lists {
            offsets.push(offsets[offsets.len() - 1] + list.len());
        }
        let whole = |index: usize| Span { index, from: 0, len: lens[index] };
        let bins = Self { offsets, spans: all().map(whole).collect() };
        match bins.defect(lens.len()) {
            None => Ok(bins),
            Some(reason) => Err(Error::OtherBins(reason)),
        }
    }

    /// The reason if any token of a sequence does not lie in exactly one span.
    fn defect(&self, sequences: usize) -> Option<String> {
        let column = |value: fn(&Span) -> usize| {
            let values = self.spans.iter().map(value);
            values.map(to_i64).collect::<Vec<_>>()
        };
        let offsets: Vec<_> = self.offsets.iter().copied().map(to_i64).collect();
        let tables = BinTables {
            offsets: &offsets,
            indices: &column(|span| span.index),
            starts: &column(|span| span.from),
            lens: &column(|span| span.len),
            sequences,
        };
        tables.defect()
    }
}

fn to_i64(value: usize) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}
