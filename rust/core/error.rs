//! The one error type of the core. Every message names the field, row and position, the value
//! found, and the value expected; remedies are the caller's, who knows the options by name.

use std::error::Error as StdError;
use std::{fmt, ptr};

use crate::dtype::Dtype;
use crate::memory::few;
use crate::plan::TokenForm;
use crate::plan::pack::Oversized;
use crate::text::{counted, grouped, grouped_float, plain_float};

/// The location of a value in the input; prints as `field[row][position]` or `field[row]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The argument's name.
    pub field: String,
    /// The row in it.
    pub row: usize,
    /// The item in the row; none if the row is one value.
    pub position: Option<usize>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}[{}]", self.field, self.row)?;
        match self.position {
            Some(position) => write!(f, "[{position}]"),
            None => Ok(()),
        }
    }
}

/// The reason why a batch cannot be planned or written.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    #[error("the batch is empty: {} has 0 rows", .0.argument())]
    EmptyBatch(TokenForm),

    #[error(
        "{field} has {}, but {} has {expected}", counted(*.found, "row"), .form.argument()
    )]
    RowCount { field: String, found: usize, expected: usize, form: TokenForm },

    #[error("prompt_lens[{row}] is {found}, but sequences[{row}] has {len} tokens")]
    PromptTooLong { row: usize, found: usize, len: usize },

    #[error(
        "{field}[{row}] has {}, but {} has {expected}", counted(*.found, "item"),
        if expected == stream { .form.sequence(*.row) } else { .form.response(*.row) }
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
        "{field}[{row}] has {}, but {} {}", counted(*.found, "item"), .form.stream(*.row),
        counted(*.expected, "token")
    )]
    StreamLength {
        field: String,
        row: usize,
        found: usize,
        expected: usize,
        response: usize,
        form: TokenForm,
        may_lack_last: bool,
    },

    #[error(
        "{field}[{row}] has {} from token {start} on, but {} {tokens}", counted(*.found, "item"),
        .form.stream(*.row)
    )]
    RunTooLong {
        field: String,
        row: usize,
        start: usize,
        found: usize,
        tokens: usize,
        form: TokenForm,
    },

    #[error("{field}[{row}] has {found} values, but the counts of its tokens add up to {expected}")]
    ValueCount { field: String, row: usize, found: usize, expected: usize },

    #[error("{location} has a count of {count}, but a token has 0 values or more")]
    NegativeCount { location: Location, count: i64 },

    #[error("{location} does not have the id of its own token, {id}")]
    NotAmongValues { location: Location, id: i64 },

    #[error("{field} has values of shape {found:?}, but a ragged field takes numbers")]
    ShapedValues { field: String, found: Vec<usize> },

    #[error("{field}[{row}] has {found} items, but the longest response has {widest}")]
    RowTooLong { field: String, row: usize, found: usize, widest: usize },

    #[error(
        "{field}[{row}] is one number for the whole row, but {} has no last token to hold it",
        .form.response(*.row)
    )]
    NoLastToken { field: String, row: usize, form: TokenForm },

    #[error(
        "{field}[{row}] is one number for the last response token of its row, but there is none"
    )]
    NoTokenFor { field: String, row: usize },

    #[error("{field}[{row}] is None")]
    MissingRow { field: String, row: usize },

    #[error(
        "{field}[{turn}] is {number}, but the turn is not the last of row {row}, which ends with \
         turn {last} and takes one number"
    )]
    EarlierNumber { field: String, row: usize, turn: usize, last: usize, number: String },

    #[error("{field}[{row}] has dtype {found}, but {field} holds {expected}")]
    WrongType { field: String, row: usize, found: &'static str, expected: &'static str },

    #[error("{location} is {value}, which does not fit {dtype}")]
    DoesNotFit { location: Location, value: String, dtype: &'static str },

    #[error("{location} is {value}, but indices are below {limit}")]
    NoIndex { location: Location, value: String, limit: i64 },

    #[error("{location} is {value}")]
    NotFinite { location: Location, value: String },

    #[error("{location} is {value}, but a token cannot train with a negative weight")]
    Negative { location: Location, value: String },

    #[error(
        "{location} is {value}, which dtype {} of {} cannot hold", .dtype.name(), .location.field
    )]
    NotWhole { location: Location, value: String, dtype: Dtype },

    #[error(
        "{field}[{row}] has values of shape {found:?} per token, but {field}[{first}] of \
         {expected:?}"
    )]
    Trailing { field: String, row: usize, found: Vec<usize>, first: usize, expected: Vec<usize> },

    #[error("{tokens} tokens are more than cu_seqlens can count in int32")]
    TooManyTokens { tokens: usize },

    #[error("output rows have {width} positions, more than attention can count in int32")]
    WideAttention { width: usize },

    #[error("{count} positions are more than ranges can count in int32")]
    TooManyPositions { count: usize },

    #[error("{count} keys of attention paths are more than offsets can count in int32")]
    TooManyKeys { count: usize },

    #[error("{row} has {found} {unit}, but {argument} is {width} and rows are not truncated")]
    TooWide { row: String, found: usize, unit: &'static str, argument: &'static str, width: usize },

    #[error("bin {bin} has {found} positions, but pad_to is {width} and rows are not truncated")]
    BinTooWide { bin: usize, found: usize, width: usize },

    #[error("pad_to is {width}, but the widest bin of the step has {widest} positions")]
    StepTooWide { width: usize, widest: usize },

    #[error("plan of the layout does not fit the rows: {0}")]
    OtherBins(String),

    #[error("plan of the layout has {expected} sequences, but there are {found} rows")]
    OtherSequenceCount { found: usize, expected: usize },

    #[error("plan of the layout has {expected} tokens in row {row}, but the row has {found}")]
    OtherSequenceLength { row: usize, found: usize, expected: usize },

    #[error(
        "plan of the layout has {} in common for row {row} and row {before}, but they differ at \
         token {token}",
        counted(*.shared, "token")
    )]
    OtherTokens { row: usize, before: usize, shared: usize, token: usize },

    #[error(
        "plan of the layout has {} in common for row {row} and row {before}, but {}",
        counted(*.shared, "token"),
        if *.are_given {
            "their same_inputs differ"
        } else {
            "each row has inputs of its own"
        }
    )]
    OtherInputs { row: usize, before: usize, shared: usize, are_given: bool },

    #[error("a batch of {rows} rows x {width} positions exceeds any memory")]
    TooLarge { rows: usize, width: usize },

    #[error(
        "{argument} is {value}, so a batch of {} exceeds any memory",
        counted(*.count, "row")
    )]
    WidthTooLarge { argument: &'static str, value: usize, count: usize },

    #[error("row {row} has no prompt, so no position holds the value of its first response token")]
    NoPrompt { row: usize },

    #[error(
        "row {row} was split when it was packed, and no position holds the value of the first \
         response token of a part"
    )]
    SplitRow { row: usize },

    #[error(
        "{missing} response tokens of turn {turn} are in no row of this batch: merging masked or \
         dropped them, or they are in another shard"
    )]
    NotInBatch { turn: usize, missing: String },

    #[error("merge is a plan for {expected} tokens in {location}, which has {found}")]
    OtherTurns { location: String, found: usize, expected: usize },

    #[error(
        "merge is a plan for {expected} turns, but {} has {found} rows",
        .form.argument()
    )]
    OtherTurnCount { found: usize, expected: usize, form: TokenForm },

    #[error(
        "merge is a plan for other tokens: token {token} of turn {turn} is another one in turn {last}, \
         into which it was merged"
    )]
    OtherTurnTokens { turn: usize, last: usize, token: usize },

    #[error("shard is of a plan for {expected} rows, but there are {found}")]
    OtherRowCount { found: usize, expected: usize },

    #[error("shard is of a plan for {expected} {unit} in row {row}, which has {found}")]
    OtherRowLength { row: usize, unit: &'static str, found: usize, expected: usize },

    #[error(
        "shard is of a plan whose longest prompt, response and row have {expected:?} tokens, but \
         here these have {found:?}"
    )]
    OtherLengths { found: (usize, usize, usize), expected: (usize, usize, usize) },

    #[error("turn {turn} did not hold the same ids when it was compared again")]
    Unstable { turn: usize },

    #[error("no trajectory has a token that trains, so drop_untrainable leaves no row")]
    NothingTrains,

    #[error("dtype of {key} is {found}")]
    NoDtype { key: String, found: String, expected: String },

    #[error("num_experts is {count}, but {field} has {topk} different experts per token")]
    TooFewExperts { field: String, count: i64, topk: usize },

    #[error("{field} has values of shape {found:?} per token")]
    NoRoutes { field: String, found: Vec<usize> },

    #[error(
        "cp_size is {size}, so each sequence is cut into {} equal chunks, but the one in bin {bin}, \
         column {column} has {len} positions",
        2 * *.size as u128
    )]
    NoChunks { size: usize, bin: usize, column: usize, len: usize },

    #[error(
        "layers of {field} is range({begin}, {end}), but its tokens have {}",
        counted(*.num_layers, "layer")
    )]
    NoLayers { field: String, begin: usize, end: usize, num_layers: usize },

    #[error("{0}")]
    NoMemory(String),

    #[error("{}", .oversized.describe(*.sequence, *.len, *.together))]
    Oversized {
        sequence: usize,
        len: usize,
        together: usize,
        oversized: Oversized,
        may_split: bool,
    },

    #[error("{}", .oversized.describe_row(*.row, *.len))]
    OversizedRow { row: usize, len: usize, oversized: Oversized, in_tree: bool, may_split: bool },

    #[error("multiple_of is {multiple}, but capacity is {capacity}, so no token fits into a bin")]
    NoRoom { multiple: usize, capacity: usize },

    #[error(
        "lengths[{index}] is {len}, but already {} cost {}, which exceeds max_cost={}",
        counted(*.tokens, "token"), grouped_float(*.cost), plain_float(*.limit)
    )]
    NoPiece { index: usize, len: usize, tokens: usize, cost: f64, limit: f64 },

    #[error(
        "lengths[{index}] is {len} and has to be split, but cost has one number per sequence and \
         none for pieces"
    )]
    CostOfPieces { index: usize, len: usize },

    #[error("sequences would be split into more than {} pieces", grouped(*.most))]
    TooManyPieces { most: usize },

    #[error("{}", too_few(*.needed, *.min_bins, *.multiple_of, *.items, .noun))]
    TooFewItems {
        needed: usize,
        min_bins: Option<usize>,
        multiple_of: Option<usize>,
        items: usize,
        noun: &'static str,
    },

    #[error(
        "num_bins is {bins}, but there are only {} and no bin may be empty",
        counted(*.items, .noun)
    )]
    TooManyBins { bins: usize, items: usize, noun: &'static str },

    #[error("num_bins is {bins}, but so few bins do not keep to max_sequences or max_cost")]
    NoFit { bins: usize },

    #[error("two outputs would be '{key}': {first} and {second}")]
    RepeatedOutput { key: String, first: String, second: String },

    #[error("{key} has the {option} {number}, which does not fit {dtype}")]
    FillMisfit { key: String, option: &'static str, number: String, dtype: &'static str },

    #[error("num_experts of {key} is {count}")]
    ExpertCount { key: String, count: i64, dtype: Dtype },

    #[error("shard {0}")]
    OtherShard(String),

    #[error("this is not a valid plan: {0}")]
    InvalidPlan(String),

    #[error("{0}")]
    Body(String),

    #[error("{0}")]
    BadLogprob(String),

    #[error(transparent)]
    External(External),
}

impl Error {
    /// An error of another crate, passed on unchanged.
    pub fn external(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::External(External(Box::new(error)))
    }

    /// Name the row that does not fit a bin: sequence 0 is row `first`.
    pub(crate) fn of_rows(self, first: usize, rows_may_split: bool) -> Self {
        let Self::Oversized { sequence, len, together, oversized, may_split } = self else {
            return self;
        };
        let row = first + sequence;
        if together > 1 {
            return Self::Oversized { sequence: row, len, together, oversized, may_split };
        }
        let may_split = may_split && rows_may_split;
        Self::OversizedRow { row, len, oversized, in_tree: false, may_split }
    }
}

/// An error of another crate's column, hook or cost function, passed on unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct External(Box<dyn StdError + Send + Sync>);

impl External {
    /// The error, if it is of this type.
    ///
    /// # Errors
    /// The error itself, if it is of another type.
    pub fn downcast<E: StdError + 'static>(self) -> Result<E, Self> {
        self.0.downcast().map(|error| *error).map_err(Self)
    }
}

impl PartialEq for External {
    fn eq(&self, other: &Self) -> bool {
        ptr::addr_eq(&raw const *self.0, &raw const *other.0)
    }
}

/// The options that require more bins than there are items.
fn too_few(
    needed: usize,
    min_bins: Option<usize>,
    multiple_of: Option<usize>,
    items: usize,
    noun: &str,
) -> String {
    let asked = [("min_bins", min_bins), ("bins_multiple_of", multiple_of)];
    let given = asked.map(|(name, value)| value.map(|value| format!("{name} is {value}")));
    let given: Vec<_> = few(given.into_iter().flatten());
    format!(
        "{}, so there must be at least {}, but there are only {} and no bin may be empty",
        given.join(" and "),
        counted(needed, "bin"),
        counted(items, noun),
    )
}

/// The core's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
