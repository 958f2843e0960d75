//! The one error type of the core. Every message names field, row and position, what was found,
//! what was expected, and what to do about it.

use std::fmt;

use crate::dtype::Dtype;
use crate::plan::TokenForm;
use crate::text::{counted, grouped, grouped_float, plain_float};

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

/// Which limit a sequence exceeds by itself, or sequences that stay together.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Oversized {
    Sequences { limit: usize },
    Tokens { tokens: usize, limit: usize },
    Cost { cost: f64, limit: f64 },
}

impl Oversized {
    /// What exceeds what.
    fn describe(self, sequence: usize, len: usize, together: usize, advice: &str) -> String {
        let (found, argument, limit) = match self {
            Self::Sequences { limit } => (String::new(), "max_sequences", limit as f64),
            Self::Tokens { tokens, limit } => (
                format!("{} tokens", grouped(tokens)),
                "capacity",
                limit as f64,
            ),
            Self::Cost { cost, limit } => (
                format!("a cost of {}", grouped_float(cost)),
                "max_cost",
                limit,
            ),
        };
        let head = match self {
            _ if together > 1 => {
                let with = if found.is_empty() { "" } else { ", with " };
                let together = grouped(together);
                format!(
                    "keep_together puts {together} sequences, of which {sequence} is the first, in \
                     one bin{with}{found}"
                )
            }
            Self::Cost { .. } => format!("lengths[{sequence}] is {len}, with {found}"),
            Self::Tokens { tokens, .. } if tokens != len => {
                format!("lengths[{sequence}] is {len}, rounded up to {tokens}")
            }
            _ => format!("lengths[{sequence}] is {len}"),
        };
        let limit = plain_float(limit);
        format!("{head}, which exceeds {argument}={limit}; pass {advice}a larger {argument}")
    }

    /// What a row of a tree exceeds by itself.
    fn describe_row(self, row: usize, len: usize) -> String {
        let (found, argument, limit) = match self {
            Self::Tokens { tokens, limit } if tokens != len => (
                format!(", rounded up to {}", grouped(tokens)),
                "capacity",
                limit as f64,
            ),
            Self::Cost { cost, limit } => (
                format!(", with a cost of {}", grouped_float(cost)),
                "max_cost",
                limit,
            ),
            Self::Tokens { limit, .. } => (String::new(), "capacity", limit as f64),
            Self::Sequences { limit } => (String::new(), "max_sequences", limit as f64),
        };
        let (tokens, limit) = (counted(len, "token"), plain_float(limit));
        format!(
            "row {row} has {tokens}{found}, which exceeds {argument}={limit}; pass a larger {argument}, \
             or oversize='own_bin'"
        )
    }
}

/// Why a batch cannot be planned or written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    #[error("the batch is empty: {} has 0 rows; pass at least one", .0.argument())]
    EmptyBatch(TokenForm),

    #[error(
        "{field} has {found} rows, but {0} has {expected}; pass one row per {1}",
        .form.argument(),
        .form.argument().trim_end_matches('s')
    )]
    RowCount {
        field: String,
        found: usize,
        expected: usize,
        form: TokenForm,
    },

    #[error(
        "prompt_lens[{row}] is {found}, but sequences[{row}] has {len} tokens; a prompt is the \
         beginning of its sequence"
    )]
    PromptTooLong {
        row: usize,
        found: usize,
        len: usize,
    },

    #[error(
        "{field}[{row}] has {found} items, but {} has {expected}; {}",
        if expected == stream { .form.sequence(*.row) } else { .form.response(*.row) },
        if found == stream {
            format!("its sequence has {stream}: pass fc.Field(..., align='sequence')")
        } else {
            "pass one value per response token".to_owned()
        }
    )]
    RowLength {
        field: String,
        row: usize,
        found: usize,
        expected: usize,
        stream: usize,
        form: TokenForm,
    },

    #[error(
        "{field}[{row}] has {found} items, but {} {expected} tokens; {}",
        .form.stream(*.row),
        if *may_end_early {
            "pass at most one value per token".to_owned()
        } else if found == response {
            format!("its response has {response}: pass fc.Field(..., align='response')")
        } else {
            "pass one value per prompt and response token".to_owned()
        }
    )]
    StreamLength {
        field: String,
        row: usize,
        found: usize,
        expected: usize,
        response: usize,
        form: TokenForm,
        may_end_early: bool,
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
        "{field}[{row}] is one number for the whole row, but {} is empty: \
         there is no last response token to put it on",
        .form.response(*.row)
    )]
    NoLastToken {
        field: String,
        row: usize,
        form: TokenForm,
    },

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
    WrongType {
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
        "{place} is {value}, which dtype {} of {} cannot hold; pass {}, or a dtype of floats",
        .dtype.name(), .place.field,
        if *.dtype == Dtype::Bool { "0 or 1" } else { "whole numbers" }
    )]
    NotWhole {
        place: Place,
        value: String,
        dtype: Dtype,
    },

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
        "pad_to is {width}, but the widest bin of the step has {widest} positions; pass at least that, or \
         plan the step with a smaller capacity"
    )]
    StepTooWide { width: usize, widest: usize },

    #[error("the layout's plan does not fit the rows: {0}; pass bins of all rows")]
    OtherBins(String),

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
        "the plan was made for {place} of {expected} tokens, but there it has {found}; \
         make it of the same data"
    )]
    OtherTurns {
        place: String,
        found: usize,
        expected: usize,
    },

    #[error("the plan was made for {expected} turns, but {} has {found}", .form.argument())]
    OtherTurnCount {
        found: usize,
        expected: usize,
        form: TokenForm,
    },

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

    #[error("{}", .oversized.describe(*.sequence, *.len, *.together, .advice))]
    Oversized {
        sequence: usize,
        len: usize,
        together: usize,
        oversized: Oversized,
        advice: &'static str,
    },

    #[error("{}", .oversized.describe_row(*.row, *.len))]
    OversizedRow {
        row: usize,
        len: usize,
        oversized: Oversized,
    },

    #[error("lengths[{index}] is {len}, but no piece of it fits into a bin: {why}")]
    NoPiece {
        index: usize,
        len: usize,
        why: String,
    },

    #[error(
        "lengths[{index}] is {len}, and what pieces of it cost is not known: cost has one number per \
         sequence; pass a name or a function"
    )]
    CostOfPieces { index: usize, len: usize },

    #[error(
        "sequences would be split into more than {} pieces; pass a larger capacity or max_cost",
        grouped(*.most)
    )]
    TooManyPieces { most: usize },

    #[error("{}", too_few(*.bins, *.needed, *.min_bins, *.multiple_of, &counted(*.items, .noun)))]
    TooFewItems {
        bins: usize,
        needed: usize,
        min_bins: Option<usize>,
        multiple_of: Option<usize>,
        items: usize,
        noun: &'static str,
    },

    #[error("two outputs would be '{key}': {first} and {second}; give the field another key")]
    RepeatedOutput {
        key: String,
        first: String,
        second: String,
    },

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

/// What asks for more bins than there are items.
fn too_few(
    bins: usize,
    needed: usize,
    min_bins: Option<usize>,
    multiple_of: Option<usize>,
    items: &str,
) -> String {
    let min_bins = min_bins.map(|bins| format!("min_bins={bins}"));
    let multiple_of = multiple_of.map(|multiple| format!("bins_multiple_of={multiple}"));
    let given: Vec<_> = [min_bins, multiple_of].into_iter().flatten().collect();
    let verb = if given.len() > 1 { "ask" } else { "asks" };
    format!(
        "{} would do, but {} {verb} for {}, which {items} cannot fill: no bin may be empty",
        counted(bins, "bin"),
        given.join(" and "),
        grouped(needed)
    )
}

/// The core's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
