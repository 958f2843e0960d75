//! Runs: the tokens of turns that a column has values for.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::memory::{add, check_room, gathered, with_room};
use crate::plan::merge::Prefix;
use crate::plan::{Assembly, Chosen, Grid, Piece, Segment, Turns};

/// Consecutive tokens of a turn that a column has values for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first token.
    pub start: usize,
    /// The first value in the column's row.
    pub from: usize,
    /// Number of tokens.
    pub len: usize,
}

impl Run {
    /// One past its last token.
    fn end(&self) -> usize {
        self.start + self.len
    }
}

/// The runs of all turns: in the order of tokens, and disjoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    runs: Vec<Run>,
    /// Turn `i` has the runs `offsets[i]..offsets[i + 1]`.
    offsets: Vec<usize>,
}

impl Runs {
    /// A run for each turn, of all values of its row.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn from_starts(starts: impl Iterator<Item = usize>, lens: &[usize]) -> Result<Self> {
        let run = |(start, &len)| Run { start, from: 0, len };
        Ok(Self { runs: gathered(starts.zip(lens).map(run))?, offsets: gathered(0..=lens.len())? })
    }

    /// Runs from their turns, starts and lengths, of rows with a value for every token.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`] if they are not in order or not of these turns; [`Error::NoMemory`].
    pub fn of_table(
        table: impl Iterator<Item = (usize, Range<usize>)>,
        lens: &[usize],
    ) -> Result<Self> {
        let (mut runs, mut end) = (Vec::new(), 0);
        let mut offsets = with_room(lens.len() + 1)?;
        offsets.push(0);
        for (turn, tokens) in table {
            if turn < lens.len() && turn + 1 > offsets.len() {
                offsets.resize(turn + 1, runs.len());
                end = 0;
            }
            let fits = turn < lens.len()
                && turn + 1 == offsets.len()
                && (end..=tokens.end).contains(&tokens.start)
                && tokens.end <= lens[turn];
            if !fits {
                let reason = format!("its run {} is out of order or of its row", runs.len());
                return Err(Error::InvalidPlan(reason));
            }
            end = tokens.end;
            let run = Run { start: tokens.start, from: tokens.start, len: tokens.len() };
            add(&mut runs, run)?;
        }
        // Of planning over them: a row may have any number.
        check_room(runs.len())?;
        offsets.resize(lens.len() + 1, runs.len());
        Ok(Self { runs, offsets })
    }

    /// The runs of chosen turns.
    #[must_use]
    pub fn of(&self, chosen: &Chosen) -> Self {
        let (mut runs, mut offsets) = (Vec::new(), vec![0]);
        for &turn in &chosen.numbers {
            runs.extend(self.turn(turn));
            offsets.push(runs.len());
        }
        Self { runs, offsets }
    }

    /// The runs of a turn.
    fn turn(&self, turn: usize) -> &[Run] {
        &self.runs[self.offsets[turn]..self.offsets[turn + 1]]
    }

    /// Check that a field's runs lie in their turns.
    ///
    /// # Errors
    /// [`Error::RunTooLong`].
    pub fn check(&self, field: &str, turns: &Turns) -> Result<()> {
        for index in 0..turns.count() {
            let tokens = turns.stream_len(index);
            for run in self.turn(index) {
                if run.start.saturating_add(run.len) > tokens {
                    return Err(Error::RunTooLong {
                        field: field.to_owned(),
                        row: turns.number(index),
                        start: run.start,
                        found: run.len,
                        tokens,
                        form: turns.form(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The pieces of a row that begins with tokens of these turns, in their order.
    ///
    /// A token has the values of the first turn that read it. A turn reads all of its tokens but
    /// the last, so its value for that one is used only if no other turn has one.
    pub fn pieces(&self, prefixes: &[Prefix], turns: &Turns) -> Vec<Piece> {
        let piece = |turn, run: &Run, tokens: Range<usize>| Piece {
            turn,
            from: run.from + tokens.start - run.start,
            start: tokens.start,
            len: tokens.len(),
            trains: true,
        };
        if let [prefix] = prefixes {
            let runs = self.turn(prefix.turn).iter().filter(|run| run.len > 0);
            return runs.map(|run| piece(prefix.turn, run, run.start..run.end())).collect();
        }
        let mut joined = Joined::default();
        let read = |prefix: &Prefix| turns.stream_len(prefix.turn).saturating_sub(1);
        let mut add = |prefix: &Prefix, tokens: Range<usize>| {
            for run in self.turn(prefix.turn) {
                let tokens = run.start.max(tokens.start)..run.end().min(tokens.end);
                joined.add(tokens, |gap| piece(prefix.turn, run, gap));
            }
        };
        for prefix in prefixes {
            add(prefix, 0..prefix.len.min(read(prefix)));
        }
        for prefix in prefixes {
            add(prefix, read(prefix)..prefix.len);
        }
        joined.pieces.into_values().collect()
    }
}

/// The pieces of a row, joined from those of its turns.
#[derive(Default)]
struct Joined {
    /// By start.
    pieces: BTreeMap<usize, Piece>,
    /// The ends of what they cover, by start; neighbours are one.
    covered: BTreeMap<usize, usize>,
}

impl Joined {
    /// Add pieces of the tokens that are not covered yet.
    fn add(&mut self, tokens: Range<usize>, piece: impl Fn(Range<usize>) -> Piece) {
        if tokens.is_empty() {
            return;
        }
        let mut whole = tokens.clone();
        let mut at = tokens.start;
        if let Some((&start, &end)) = self.covered.range(..=at).next_back()
            && end >= at
        {
            self.covered.remove(&start);
            (whole.start, at) = (start, end);
        }
        while at < tokens.end {
            let next = self.covered.range(at..=tokens.end).next();
            let next = next.map_or(tokens.end..tokens.end, |(&start, &end)| start..end);
            if at < next.start {
                self.pieces.insert(at, piece(at..next.start));
            }
            self.covered.remove(&next.start);
            at = next.end;
        }
        whole.end = whole.end.max(at);
        self.covered.insert(whole.start, whole.end);
    }
}

impl Grid {
    /// The same grid with the tokens of pieces that train alone.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn of_pieces(&self, assembly: &Assembly) -> Result<Self> {
        let mut segments = with_room(self.segments().len())?;
        for segment in self.segments() {
            let end = segment.from + segment.len;
            let pieces = assembly.pieces(segment.row);
            let first = pieces.partition_point(|piece| piece.end() <= segment.from);
            let pieces = pieces[first..].iter().take_while(|piece| piece.start < end);
            for piece in pieces.filter(|piece| piece.trains) {
                let from = piece.start.max(segment.from);
                let part = Segment {
                    from,
                    len: piece.end().min(end) - from,
                    dst_col: segment.dst_col + from - segment.from,
                    ..*segment
                };
                add(&mut segments, part)?;
            }
        }
        Ok(self.with_segments(segments))
    }

    /// The tokens of the segments that `parts` leaves out: parts of these, in their order.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn without(&self, parts: &[Segment]) -> Result<Vec<Segment>> {
        let (mut left, mut parts) = (Vec::<Segment>::new(), parts.iter().peekable());
        let mut keep = |segment: &Segment, tokens: Range<usize>| {
            let rest = Segment {
                from: tokens.start,
                len: tokens.len(),
                dst_col: segment.dst_col + tokens.start - segment.from,
                ..*segment
            };
            match left.last_mut() {
                Some(last) if last.ends_at(&rest) => last.len += rest.len,
                _ if rest.len > 0 => add(&mut left, rest)?,
                _ => {}
            }
            Ok(())
        };
        for segment in self.segments() {
            let (mut at, end) = (segment.from, segment.from + segment.len);
            while let Some(part) = parts.next_if(|part| part.from < end) {
                keep(segment, at..part.from)?;
                at = part.from + part.len;
            }
            keep(segment, at..end)?;
        }
        Ok(left)
    }
}
