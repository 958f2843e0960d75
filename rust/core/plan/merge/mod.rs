//! Merging: turns of a trajectory become one row.
//!
//! One pass goes over the turns of a trajectory. For each, a [`Policy`] decides between joining an
//! open [`Group`] and opening a new one; a group becomes a row with the token stream of its last
//! turn. No tokens are copied: a plan holds only the few ids around each [`Break`].

mod branch;
mod breaks;
mod prefixes;
mod realign;
mod rewards;

pub use crate::streams::Streams;
pub use branch::Branch;
pub use breaks::{Break, BreakKind};
pub use prefixes::{Prefix, Prefixes};
pub use realign::{Masked, Realign};
pub use rewards::MergeRewards;

use std::ops::Range;

use crate::column::Column;
use crate::error::{Error, Result};
use crate::memory::check_room;
use crate::plan::{Align, Assembly, Chosen, Pick, Piece, Row, Shard, Turns};

/// Turns that form a row.
#[derive(Debug, Clone)]
pub struct Group {
    /// The last turn that joined: its prompt + response are the group's tokens.
    pub last: usize,
    /// Length of the first turn's prompt, which is the row's.
    pub prompt_len: usize,
    /// The pieces of sampled tokens after it.
    pub pieces: Vec<Piece>,
}

impl Group {
    /// A group of one turn.
    fn of_turn(turn: usize, turns: &Turns) -> Self {
        let mut group =
            Self { last: turn, prompt_len: turns.prompt_lens()[turn], pieces: Vec::new() };
        group.join(turn, turns);
        group
    }

    /// Add the next turn, whose prompt continues the group.
    fn join(&mut self, turn: usize, turns: &Turns) {
        self.last = turn;
        let len = turns.response_lens()[turn];
        if len > 0 {
            self.pieces.push(Piece {
                turn,
                from: 0,
                start: turns.prompt_lens()[turn] - self.prompt_len,
                len,
                trains: true,
            });
        }
    }
}

/// The decision on a turn.
#[derive(Debug)]
pub enum Decision {
    /// It joins the group of this index.
    Join(usize),
    /// It opens a group; with the difference from another group, unless it is the first of its
    /// trajectory.
    Open(Option<Difference>),
    /// It joins the group of this index although it differs; only these pieces of sampled tokens
    /// remain.
    Realign(usize, Difference, Vec<Piece>),
}

/// The first difference of a prompt from the tokens before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// The last turn of the compared group.
    pub from: usize,
    /// The position, the same in both.
    pub position: usize,
}

/// A rule for merging turns.
pub trait Policy {
    /// Begin a trajectory.
    fn begin(&mut self) {}

    /// Decide on the next turn of a trajectory, given the groups of its earlier turns in the order
    /// of opening.
    ///
    /// # Errors
    /// Those of the columns.
    fn decide(&mut self, turn: usize, groups: &[Group], streams: &Streams) -> Result<Decision>;
}

/// The policies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergePolicy {
    /// [`Exact`].
    Exact,
    /// [`Branch`].
    Branch,
    /// [`Realign`].
    Realign(Realign),
}

/// Merge options: the policy, and the treatment of rewards.
#[derive(Debug, Clone, Copy)]
pub struct MergeSpec {
    /// The merge policy.
    pub policy: MergePolicy,
    /// The rule for a row's single reward.
    pub rewards: MergeRewards,
}

impl MergeSpec {
    /// Merge turns; `ends` are the ends of their trajectories.
    ///
    /// # Errors
    /// As [`Merge::of_turns`].
    pub fn merge(&self, streams: &Streams, ends: Vec<usize>) -> Result<Merge> {
        let policy: &mut dyn Policy = match self.policy {
            MergePolicy::Exact => &mut Exact,
            MergePolicy::Branch => &mut Branch::default(),
            MergePolicy::Realign(realign) => &mut { realign },
        };
        Merge::of_turns(streams, ends, policy, self.rewards)
    }
}

/// The result of a merge: the rows and the turns in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The merged turns.
    pub turns: Turns,
    /// The rows by trajectory, within one ordered by last turn.
    pub assembly: Assembly,
    /// The ends of trajectories: one past their last turns.
    pub ends: Vec<usize>,
    /// The trajectory of every row.
    pub trajectories: Vec<usize>,
    /// The row of every turn; None if its trajectory was left out.
    pub turn_rows: Vec<Option<usize>>,
    /// The breaks, in the order of turns.
    pub breaks: Vec<Break>,
    /// The rule for a row's single reward.
    pub rewards: MergeRewards,
}

impl Merge {
    /// Check tables from elsewhere; the caller has checked that breaks fit the turns.
    ///
    /// # Errors
    /// [`Error::InvalidPlan`].
    pub fn checked(self) -> Result<Self> {
        self.assembly.check_turns(&self.turns)?;
        check_ends(&self.ends, &self.turns)?;
        let trajectories = &self.trajectories;
        let is_ordered = trajectories.is_sorted() && trajectories.last() < Some(&self.ends.len());
        if trajectories.len() != self.assembly.rows().len() || !is_ordered {
            let reason = "trajectories must have one number per row, in order".to_owned();
            return Err(Error::InvalidPlan(reason));
        }
        self.check_rows()?;
        self.check_turn_rows()?;
        Ok(self)
    }

    /// Merge turns by a policy; `ends` are the ends of their trajectories.
    ///
    /// # Errors
    /// Those of the columns, and [`Error::InvalidPlan`] for ends that do not partition the turns.
    pub fn of_turns(
        streams: &Streams,
        ends: Vec<usize>,
        policy: &mut dyn Policy,
        rewards: MergeRewards,
    ) -> Result<Self> {
        let turns = streams.turns;
        check_ends(&ends, turns)?;
        check_room(turns.count())?;
        let (mut rows, mut pieces, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
        let (mut trajectories, mut breaks) = (Vec::new(), Vec::new());
        let mut turn_rows = Vec::with_capacity(turns.count());
        let mut begin = 0;
        for (trajectory, &end) in ends.iter().enumerate() {
            let mut groups: Vec<Group> = Vec::new();
            let mut group_of_turn = Vec::with_capacity(end - begin);
            policy.begin();
            for turn in begin..end {
                streams.tokens.pause()?;
                let (group, difference) = match policy.decide(turn, &groups, streams)? {
                    Decision::Join(group) => (Some(group), None),
                    Decision::Open(difference) => (None, difference),
                    Decision::Realign(group, difference, survivors) => {
                        groups[group].pieces = survivors;
                        (Some(group), Some(difference))
                    }
                };
                group_of_turn.push(group.unwrap_or(groups.len()));
                match group {
                    Some(group) => groups[group].join(turn, turns),
                    None => groups.push(Group::of_turn(turn, turns)),
                }
                if let Some(difference) = difference {
                    if !difference.fits(turn, turns) {
                        return Err(Error::Unstable { turn });
                    }
                    breaks.push(Break::read(streams, turn, difference, group.is_some())?);
                }
            }
            let mut row_of_group = vec![0; groups.len()];
            for (turn, &group) in (begin..end).zip(&group_of_turn) {
                if groups[group].last != turn {
                    continue;
                }
                row_of_group[group] = rows.len();
                let group = &mut groups[group];
                rows.push(Row {
                    source: Some(group.last),
                    prompt_len: group.prompt_len,
                    response_len: turns.stream_len(group.last) - group.prompt_len,
                    is_padding: false,
                });
                pieces.append(&mut group.pieces);
                offsets.push(pieces.len());
                trajectories.push(trajectory);
            }
            turn_rows.extend(group_of_turn.iter().map(|&group| Some(row_of_group[group])));
            begin = end;
        }
        Ok(Self {
            turns: turns.clone(),
            assembly: Assembly::new(rows, pieces, offsets)?,
            ends,
            trajectories,
            turn_rows,
            breaks,
            rewards,
        })
    }

    /// Leave out trajectories without a trained token: a sampled token in one of their rows whose
    /// loss mask, if given, is not 0.
    ///
    /// # Errors
    /// Those of the column, and [`Error::NothingTrains`].
    pub fn without_untrainable(self, mask: Option<(&dyn Column<f32>, Align)>) -> Result<Self> {
        let mut trains = vec![false; self.ends.len()];
        for (row, &trajectory) in self.trajectories.iter().enumerate() {
            for piece in self.assembly.pieces(row) {
                trains[trajectory] = trains[trajectory] || any_trains(piece, mask, &self.turns)?;
            }
        }
        let kept = |row: &usize| trains[self.trajectories[*row]];
        let kept: Vec<_> = (0..self.trajectories.len()).filter(kept).collect();
        let picks: Vec<_> = kept.iter().map(|&row| Pick::of_row(row)).collect();
        if kept.is_empty() {
            return Err(Error::NothingTrains);
        }
        let mut again = vec![None; self.trajectories.len()];
        for (index, &row) in kept.iter().enumerate() {
            again[row] = Some(index);
        }
        let turn_rows = self.turn_rows.iter().map(|row| again[(*row)?]);
        Ok(Self {
            assembly: self.assembly.picked(&picks),
            trajectories: kept.iter().map(|&row| self.trajectories[row]).collect(),
            turn_rows: turn_rows.collect(),
            ..self
        })
    }

    /// The turns that the rows of a shard are made of; None if it has all rows, or others.
    pub fn chosen(&self, shard: &Shard) -> Option<Chosen> {
        let rows = Chosen::new(shard.numbers(), self.assembly.rows().len());
        let mut turns = Vec::new();
        for &row in Some(&rows.numbers).filter(|_| rows.is_part())? {
            let last = self.assembly.rows()[row].source?;
            let others = self.begin_of(self.trajectories[row])..last;
            turns.extend(others.filter(|&turn| self.turn_rows[turn] == Some(row)));
            turns.push(last);
        }
        Some(Chosen::new(turns, self.turns.count()))
    }

    /// The spans of these turns' responses that realigning masked, by index and position: in no row
    /// although their turn is.
    pub fn masked(&self, turns: &Turns) -> Vec<(usize, Range<usize>)> {
        let mut masked = Vec::new();
        for (index, &len) in turns.response_lens().iter().enumerate() {
            let turn = turns.number(index);
            let Some(row) = self.turn_rows[turn] else {
                continue;
            };
            // Pieces are in the order of turns, and of positions.
            let pieces = self.assembly.pieces(row);
            let first = pieces.partition_point(|piece| piece.turn < turn);
            let mut end = 0;
            for piece in pieces[first..].iter().take_while(|piece| piece.turn == turn) {
                if end < piece.from {
                    masked.push((index, end..piece.from));
                }
                end = piece.from + piece.len;
            }
            if end < len {
                masked.push((index, end..len));
            }
        }
        masked
    }

    /// Check that rows have the tokens of the turns that were merged into them, as far as they train.
    ///
    /// # Errors
    /// [`Error::OtherTurnTokens`], and errors of the columns.
    pub fn check_tokens(&self, streams: &Streams) -> Result<()> {
        for (number, row) in self.assembly.rows().iter().enumerate() {
            let Some(last) = row.source else {
                continue;
            };
            streams.tokens.pause()?;
            for piece in self.assembly.pieces(number) {
                let from = self.turns.prompt_lens()[piece.turn] + piece.from;
                // Tokens that were realigned lie elsewhere in their row.
                if piece.turn == last || from != row.prompt_len + piece.start {
                    continue;
                }
                let common = streams.common(piece.turn, last, from, piece.len)?;
                if common < piece.len {
                    let token = from + common;
                    return Err(Error::OtherTurnTokens { turn: piece.turn, last, token });
                }
            }
        }
        Ok(())
    }

    /// Check that the data have the merged turns.
    ///
    /// # Errors
    /// [`Error::OtherTurnCount`] and [`Error::OtherTurns`].
    pub fn check_turns(&self, found: &Turns) -> Result<()> {
        let (turns, expected) = (found, &self.turns);
        if found.total() != expected.count() {
            return Err(Error::OtherTurnCount {
                found: found.total(),
                expected: expected.count(),
                form: found.form(),
            });
        }
        let form = found.form();
        let check = |location: &dyn Fn(usize) -> String, found: &[usize], expected: &[usize]| {
            let mut pairs =
                found.iter().enumerate().map(|(index, &found)| (turns.number(index), found));
            match pairs.find(|&(turn, found)| found != expected[turn]) {
                None => Ok(()),
                Some((turn, found)) => Err(Error::OtherTurns {
                    location: location(turn),
                    found,
                    expected: expected[turn],
                }),
            }
        };
        let prompt = |turn| form.prompt(turn);
        check(&prompt, found.prompt_lens(), expected.prompt_lens())?;
        let response = |turn| form.response(turn);
        check(&response, found.response_lens(), expected.response_lens())
    }

    /// Check that rows consist of turns of their trajectories: each ends with a later turn than the
    /// row before it, and its pieces are in order, of turns in this row.
    fn check_rows(&self) -> Result<()> {
        let invalid = |reason: String| Err(Error::InvalidPlan(reason));
        let turns = &self.turns;
        let mut tokens = (0..turns.count()).map(|turn| turns.stream_len(turn));
        let total = tokens.try_fold(0_usize, usize::checked_add);
        if total.is_none_or(|total| i64::try_from(total).is_err()) {
            return invalid("its turns have more tokens than can be counted".to_owned());
        }
        if self.turn_rows.len() != turns.count() || turns.chosen().is_some() {
            return invalid("turn_rows must have one number per turn".to_owned());
        }
        let mut last = None;
        for (row, &trajectory) in self.trajectories.iter().enumerate() {
            let Some(source) = self.assembly.rows()[row].source else {
                return invalid(format!("row {row} has no turn"));
            };
            let begin = self.begin_of(trajectory);
            let is_in_place = (begin..self.ends[trajectory]).contains(&source);
            if Some(source) <= last || !is_in_place || self.turn_rows[source] != Some(row) {
                return invalid(format!("row {row} ends with turn {source}, out of its place"));
            }
            last = Some(source);
            let mut at = (begin, 0);
            for piece in self.assembly.pieces(row) {
                let is_in_order = (piece.turn, piece.from) >= at && piece.turn <= source;
                if !is_in_order || self.turn_rows[piece.turn] != Some(row) {
                    let turn = piece.turn;
                    return invalid(format!(
                        "row {row} has a piece of turn {turn}, out of its place"
                    ));
                }
                at = (piece.turn, piece.from + piece.len);
            }
        }
        Ok(())
    }

    /// Check that every turn is in a row of its trajectory that does not end before it; in none
    /// only if the trajectory has no rows.
    fn check_turn_rows(&self) -> Result<()> {
        for (trajectory, &end) in self.ends.iter().enumerate() {
            let first = self.trajectories.partition_point(|&known| known < trajectory);
            let beyond = self.trajectories.partition_point(|&known| known <= trajectory);
            for turn in self.begin_of(trajectory)..end {
                let fits = match self.turn_rows[turn] {
                    None => first == beyond,
                    Some(row) => {
                        (first..beyond).contains(&row)
                            && self.assembly.rows()[row].source >= Some(turn)
                    }
                };
                if !fits {
                    let reason = format!("turn {turn} is in a row of other turns");
                    return Err(Error::InvalidPlan(reason));
                }
            }
        }
        Ok(())
    }

    /// The first turn of a trajectory.
    fn begin_of(&self, trajectory: usize) -> usize {
        trajectory.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

/// Check that trajectories are consecutive and hold all turns.
fn check_ends(ends: &[usize], turns: &Turns) -> Result<()> {
    let is_increasing = ends.is_sorted_by(|a, b| a < b) && ends.first() != Some(&0);
    if is_increasing && ends.last() == Some(&turns.count()) {
        return Ok(());
    }
    let reason = "trajectory_ends must rise to the number of turns".to_owned();
    Err(Error::InvalidPlan(reason))
}

/// True if any token of a piece trains.
fn any_trains(
    piece: &Piece,
    mask: Option<(&dyn Column<f32>, Align)>,
    turns: &Turns,
) -> Result<bool> {
    /// Number of loss mask values read at a time.
    const CHUNK: usize = 512;
    let Some((mask, align)) = mask else {
        return Ok(piece.len > 0);
    };
    let from = turns.response_start(piece.turn, align) + piece.from;
    let mut weights = [0.0; CHUNK];
    for done in (0..piece.len).step_by(CHUNK) {
        let weights = &mut weights[..CHUNK.min(piece.len - done)];
        mask.read(piece.turn, from + done, weights)?;
        if weights.iter().any(|&weight| weight != 0.0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// One group is open at a time; a turn that does not continue it opens the next. `SkyRL` merges
/// step-wise outputs in this way.
#[derive(Debug, Clone, Copy)]
pub struct Exact;

impl Policy for Exact {
    fn decide(&mut self, turn: usize, groups: &[Group], streams: &Streams) -> Result<Decision> {
        let Some(open) = groups.last() else {
            return Ok(Decision::Open(None));
        };
        let position = streams.common_prefix(open.last, turn)?;
        if position == streams.turns.stream_len(open.last) {
            return Ok(Decision::Join(groups.len() - 1));
        }
        let from = open.last;
        Ok(Decision::Open(Some(Difference { from, position })))
    }
}
