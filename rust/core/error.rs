//! The one error type of the core. Every message names field, row and position, what was found,
//! what was expected, and what to do about it.

use std::fmt;

/// Where a value stands in the input; prints as `field[row][position]` or `field[row]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The argument's name.
    pub field: String,
    /// The row in it.
    pub row: usize,
    /// The item in the row; none where a row is one value.
    pub position: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}[{}]", self.field, self.row)?;
        match self.position {
            Some(position) => write!(f, "[{position}]"),
            None => Ok(()),
        }
    }
}

/// Why a batch cannot be planned or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    #[error("the batch is empty: prompts has 0 rows; pass at least one")]
    EmptyBatch,

    #[error("{field} has {found} rows, but prompts has {expected}; pass one row per prompt")]
    RowCount {
        field: String,
        found: usize,
        expected: usize,
    },

    #[error(
        "{field}[{row}] has {found} items, but responses[{row}] has {expected}; \
         pass one value per response token"
    )]
    RowLength {
        field: String,
        row: usize,
        found: usize,
        expected: usize,
    },

    #[error(
        "{field}[{row}] has {found} items, but prompts[{row}] + responses[{row}] have {expected} \
         tokens; pass {advice}"
    )]
    StreamLength {
        field: String,
        row: usize,
        found: usize,
        expected: usize,
        advice: &'static str,
    },

    #[error(
        "{field}[{row}] has {found} items, but the longest response has {widest}; \
         pass at most that many"
    )]
    RowTooLong {
        field: String,
        row: usize,
        found: usize,
        widest: usize,
    },

    #[error(
        "{field}[{row}] is one number for the whole row, but responses[{row}] is empty: \
         there is no last response token to put it on"
    )]
    NoLastToken { field: String, row: usize },

    #[error(
        "{field}[{turn}] is {number}, but the turn is not the last of row {row}, which ends with turn \
         {last} and takes one number: pass merge_rewards='sum' to add up the numbers of a row's turns, \
         merge_rewards='last' to drop all but the last turn's, or one reward per response token"
    )]
    EarlierNumber {
        field: String,
        row: usize,
        turn: usize,
        last: usize,
        number: String,
    },

    #[error("{field}[{row}] has dtype {found}, but {field} holds {expected}; convert it first")]
    Kind {
        field: String,
        row: usize,
        found: &'static str,
        expected: &'static str,
    },

    #[error("{place} is {value}, which does not fit {dtype}")]
    DoesNotFit {
        place: Place,
        value: String,
        dtype: &'static str,
    },

    #[error("{place} holds {value}, which is no index from 0 to {}", .limit - 1)]
    NoIndex {
        place: Place,
        value: String,
        limit: i64,
    },

    #[error("{place} is NaN; a mask or weight has to be a number")]
    Nan { place: Place },

    #[error(
        "{field}[{row}] has values of shape {found:?} per token, but {field}[{first}] of \
         {expected:?}"
    )]
    Trailing {
        field: String,
        row: usize,
        found: Vec<usize>,
        first: usize,
        expected: Vec<usize>,
    },

    #[error("{tokens} tokens are more than cu_seqlens can count in int32; pass fewer rows")]
    TooManyTokens { tokens: usize },

    #[error("row {row} has {found} {unit}, but {argument} is {width}; nothing is ever truncated")]
    TooWide {
        row: usize,
        found: usize,
        unit: &'static str,
        argument: &'static str,
        width: usize,
    },

    #[error(
        "bin {bin} has {found} positions, but pad_to is {width}; nothing is ever truncated: \
         pass a smaller capacity, or a larger pad_to"
    )]
    BinTooWide {
        bin: usize,
        found: usize,
        width: usize,
    },

    #[error(
        "pack is a plan for {expected} sequences, but there are {found} rows; \
         pass one that was made for them"
    )]
    OtherSequenceCount { found: usize, expected: usize },

    #[error(
        "pack is a plan for {expected} tokens in row {row}, but it has {found}; \
         pass one that was made for these rows"
    )]
    OtherSequenceLength {
        row: usize,
        found: usize,
        expected: usize,
    },

    #[error(
        "row {row} has no prompt, so with {shift} no position holds {field} of its first response \
         token, which {why}; begin the row with a prompt token (such as BOS), or {remedy}"
    )]
    NoPlace {
        shift: &'static str,
        field: String,
        row: usize,
        why: &'static str,
        remedy: &'static str,
    },

    #[error("a batch of {rows} rows x {width} positions is larger than memory can be addressed")]
    TooLarge { rows: usize, width: usize },

    #[error(
        "row {row} has no prompt, so no position holds the value of its first response token; \
         pass missing= to say what stands there"
    )]
    NoPrompt { row: usize },

    #[error(
        "row {row} was split when it was packed, and no position holds the value of the first \
         response token of a part; pass missing= to say what stands there"
    )]
    SplitRow { row: usize },

    #[error(
        "{missing} of the {tokens} response tokens of turn {turn} are in no row of this batch: \
         merging masked or dropped them, or they are in another shard; pass missing= to say what \
         stands there, or gather from the batch of all rows"
    )]
    NotInBatch {
        turn: usize,
        tokens: usize,
        missing: usize,
    },

    #[error(
        "the plan was made for {kind}[{turn}] of {expected} tokens, but there it has {found}; \
         make it of the same data"
    )]
    OtherTurns {
        kind: &'static str,
        turn: usize,
        found: usize,
        expected: usize,
    },

    #[error("the plan was made for {expected} turns, but prompts has {found}")]
    OtherTurnCount { found: usize, expected: usize },

    #[error(
        "the shard is of a plan for {expected} rows, but there are {found}; \
         pass what the plan was made for"
    )]
    OtherRowCount { found: usize, expected: usize },

    #[error(
        "the shard is of a plan where row {row} has {expected} tokens, but here it has {found}; \
         pass what the plan was made for"
    )]
    OtherRowLength {
        row: usize,
        found: usize,
        expected: usize,
    },

    #[error(
        "the shard is of a plan whose longest prompt, response and row have {expected:?} tokens, \
         but here they have {found:?}; pass what the plan was made for"
    )]
    OtherLengths {
        found: (usize, usize, usize),
        expected: (usize, usize, usize),
    },

    #[error(
        "turn {turn} did not hold the same ids when it was compared again; \
         do not modify inputs during the call"
    )]
    Unstable { turn: usize },

    #[error("no trajectory has a token that trains, so drop_untrainable leaves no row")]
    NothingTrains,

    #[error("dtype of {key} is {found}; it can be {expected}")]
    NoDtype {
        key: String,
        found: String,
        expected: String,
    },

    #[error("num_experts is {count}, but {field} has {topk} different experts per token")]
    TooFewExperts {
        field: String,
        count: i64,
        topk: usize,
    },

    #[error(
        "{field} has values of shape {found:?} per token; pass rows of shape (tokens, layers, topk)"
    )]
    NoRoutes { field: String, found: Vec<usize> },

    #[error("{0}")]
    NoMemory(String),

    #[error("fields gives the output '{key}' twice")]
    RepeatedOutput { key: String },

    #[error("{key} has the fill {fill}, which does not fit {dtype}")]
    FillMisfit {
        key: String,
        fill: String,
        dtype: &'static str,
    },

    #[error("num_experts of {key} is {count}; {problem}")]
    ExpertCount {
        key: String,
        count: i64,
        problem: String,
    },

    #[error("this is not a valid plan: {0}")]
    InvalidPlan(String),
}

/// The core's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
