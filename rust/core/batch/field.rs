//! Fields: alignment, reading and writing.

use super::arrays::LossMask;
use super::captured::{Indices, Layers};
use super::outputs::{Output, OutputAlign, PadValue, What};
use super::rows::BatchRows;
use crate::check::Check;
use crate::column::{Column, FieldColumn};
use crate::dtype::Dtype;
use crate::error::{Error, Location, Result};
use crate::fill_number::Number;
use crate::memory::filled;
use crate::plan::{Align, Assembly, Placement, Segment, TokenForm};

/// Loss mask values read at a time.
const CHUNK: usize = 1 << 12;

/// The contents of a field's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// One value per response token.
    Response,
    /// One value per token; those of the response are written.
    Cut,
    /// One value per token.
    Sequence,
    /// The number of values of each token, for the values of the field before it; written as
    /// offsets.
    Counts(Align),
    /// Any number of values per token, one token after the other. The next field has the numbers.
    Ragged(OwnToken),
    /// Indices that an engine chose for each token in each layer: the first tokens of a row have
    /// them.
    Captured {
        /// Their meaning.
        indices: Indices,
        /// The layers to write; none for all.
        layers: Option<Layers>,
    },
    /// One value per row.
    Row,
    /// An array per row, kept by the caller.
    Array {
        /// True if the arrays are concatenated, with offsets.
        is_joined: bool,
    },
    /// Any object per row, kept by the caller.
    Object,
}

/// What to do about a token that is not among its own values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnToken {
    /// Nothing.
    Keep,
    /// Add it.
    Add,
    /// Refuse it.
    Error,
}

impl FieldKind {
    /// Routes through all layers, with an unknown number of experts.
    pub const EXPERTS: Self = Indices::Experts { count: None }.in_layers(None);

    /// Other indices in all layers.
    pub const CAPTURED: Self = Indices::Any.in_layers(None);

    /// Number of values of a row with these lengths, from the first token of its sequence or
    /// response on; none if it does not follow from the lengths.
    pub fn row_len(self, prompt: usize, response: usize) -> Option<usize> {
        match self {
            Self::Response | Self::Counts(Align::Response) => Some(response),
            Self::Cut | Self::Sequence | Self::Counts(Align::Sequence) => Some(prompt + response),
            Self::Ragged(_)
            | Self::Captured { .. }
            | Self::Row
            | Self::Array { .. }
            | Self::Object => None,
        }
    }
}

/// The tokens that take a row's one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// All response tokens of each turn, with the turn's own number.
    All,
    /// The tokens that train.
    Trained,
    /// The tokens that train, each with its own value: the output of a field of `Trained`.
    OfOutput,
    /// The last response token of each turn that is in a row.
    Last,
    /// The last sampled token of the row, which has one number for all of its turns.
    LastOfRow,
}

impl Spread {
    /// True if a number, none for a default, is lost in a row without a token to hold it.
    pub fn loses(self, number: Option<f64>) -> bool {
        match self {
            // Numbers for all tokens of an empty set.
            Self::All | Self::Trained | Self::OfOutput => false,
            Self::Last => number.is_some(),
            // The sum over the row is 0 with or without a token.
            Self::LastOfRow => number != Some(0.0),
        }
    }

    /// The error for a number that is lost.
    pub fn no_token(self, field: &str, row: usize, form: TokenForm) -> Error {
        let field = field.to_owned();
        match self {
            Self::LastOfRow => Error::NoLastToken { field, row, form },
            Self::All | Self::Trained | Self::OfOutput | Self::Last => {
                Error::NoTokenFor { field, row }
            }
        }
    }
}

/// Reading and writing options of a field.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldSpec {
    /// The output's key.
    pub key: String,
    /// The argument's name, for errors.
    pub name: String,
    /// The contents of the rows.
    pub kind: FieldKind,
    /// True for one float per token, as in the built-in fields.
    pub is_plain: bool,
    /// The tokens that take a row's one number, if rows may be single numbers.
    pub spread: Option<Spread>,
    /// The value of rows that are not given, if they may be missing.
    pub default: Option<Number>,
    /// True for the loss mask: numbers that select what trains, whole if the dtype is integer.
    pub weighs: bool,
    /// True if a row may have any length up to the widest response, right-aligned there; in packed
    /// batches, which are shifted, up to its own response, whose last tokens it covers, without the
    /// last position of output rows.
    pub any_length: bool,
    /// The value of padding.
    pub fill: Number,
    /// The value of observations, between the pieces of a response.
    pub gap_fill: Number,
    /// The output's dtype; none if it follows from the largest index.
    pub dtype: Option<Dtype>,
}

impl FieldSpec {
    /// The field, if its options are compatible.
    ///
    /// # Errors
    /// [`Error::FillMisfit`] and [`Error::ExpertCount`].
    pub fn checked(self) -> Result<Self> {
        if let Some(dtype) = self.dtype
            && let Some((option, number)) = [
                ("fill", Some(self.fill)),
                ("fill", Some(self.gap_fill)),
                ("default", self.default),
            ]
            .into_iter()
            .find_map(|(option, number)| Some((option, number.filter(|it| !it.fits(dtype))?)))
        {
            return Err(Error::FillMisfit {
                key: self.key,
                option,
                number: number.to_string(),
                dtype: dtype.name(),
            });
        }
        let FieldKind::Captured { indices: Indices::Experts { count: Some(count) }, .. } =
            self.kind
        else {
            return Ok(self);
        };
        let dtype = self.dtype.unwrap_or(Dtype::I32);
        if count >= 1 && Number::Int(count - 1).fits(dtype) {
            return Ok(self);
        }
        Err(Error::ExpertCount { key: self.key, count, dtype })
    }

    /// The dtypes that the output may have.
    pub fn dtypes(&self) -> &'static [Dtype] {
        match self.kind {
            FieldKind::Captured { indices, .. } => indices.dtypes(),
            FieldKind::Counts(_) => &[Dtype::I64],
            _ if self.weighs => Dtype::OF_WEIGHTS,
            _ if self.is_plain => Dtype::FLOATS,
            _ => Dtype::OF_FIELDS,
        }
    }

    /// The grid of a response field.
    pub fn align(&self) -> Align {
        match self.kind {
            FieldKind::Cut => Align::Sequence,
            _ => Align::Response,
        }
    }

    /// True if values are read and written here, and not kept by the caller.
    pub fn is_written(&self) -> bool {
        !matches!(self.kind, FieldKind::Array { .. } | FieldKind::Object)
    }

    /// The field as it is read from its own output of this dtype, which has no other layers and
    /// one value per token, if that differs; `has_numbers` is true if rows were one number each.
    #[must_use]
    pub fn of_output(&self, dtype: Option<Dtype>, has_numbers: bool) -> Option<Self> {
        let kind = match self.kind {
            FieldKind::Cut => FieldKind::Response,
            FieldKind::Ragged(_) => FieldKind::Ragged(OwnToken::Keep),
            FieldKind::Captured { indices, .. } => indices.in_layers(None),
            kind => kind,
        };
        let spread = match self.spread {
            Some(Spread::Trained) if has_numbers => Some(Spread::OfOutput),
            Some(Spread::Trained) => None,
            spread => spread,
        };
        let dtype = self.dtype.or(dtype);
        let is_same = (kind, spread, dtype) == (self.kind, self.spread, self.dtype);
        (!is_same).then(|| Self { kind, spread, dtype, ..self.clone() })
    }

    /// The check of the values.
    pub fn check(&self) -> Check {
        match self.dtype {
            Some(dtype) if self.weighs && !dtype.is_float() => Check::Whole(dtype),
            // Masks of any length are those of frameworks, which multiply by them.
            _ if self.weighs && self.any_length => Check::Number,
            _ if self.weighs => Check::Weight,
            _ => Check::None,
        }
    }

    /// Refuse a loss mask that is negative on a turn's prompt, as labels are. The values there are
    /// not written, so others may be anything, such as NaN.
    ///
    /// # Errors
    /// [`Error::Negative`], and errors of the column's rows.
    pub fn check_prompt(&self, column: &dyn Column<f64>, turn: usize, len: usize) -> Result<()> {
        if self.kind != FieldKind::Cut || !self.weighs {
            return Ok(());
        }
        let mut values = [0.0; 1 << 10];
        for from in (0..len).step_by(values.len()) {
            let count = values.len().min(len - from);
            match column.read(turn, from, &mut values[..count]) {
                Ok(()) | Err(Error::NotFinite { .. } | Error::NotWhole { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Check the number of values of the row at this index against its lengths.
    ///
    /// # Errors
    /// [`Error::RowLength`] and [`Error::StreamLength`].
    pub fn check_row(
        &self,
        row: usize,
        [prompt, response]: [usize; 2],
        found: usize,
        form: TokenForm,
    ) -> Result<()> {
        let field = self.name.clone();
        match (self.kind, self.kind.row_len(prompt, response)) {
            (FieldKind::Response | FieldKind::Counts(Align::Response), Some(expected))
                if found != expected =>
            {
                Err(Error::RowLength {
                    field,
                    row,
                    found,
                    expected,
                    stream: prompt + response,
                    form,
                })
            }
            (_, Some(expected)) if found != expected => Err(Error::StreamLength {
                field,
                row,
                found,
                expected,
                response,
                form,
                may_lack_last: false,
            }),
            _ => Ok(()),
        }
    }

    /// The outputs of the field at this index; in a tree, those of whole sequences are stored row
    /// by row.
    pub(super) fn outputs(&self, index: usize, is_tree: bool) -> impl Iterator<Item = Output> {
        let align = match self.kind {
            FieldKind::Response | FieldKind::Cut => OutputAlign::Response,
            FieldKind::Sequence if is_tree => OutputAlign::Stream,
            FieldKind::Sequence | FieldKind::Captured { .. } => OutputAlign::Sequence,
            FieldKind::Counts(Align::Response) => OutputAlign::ResponseValues,
            FieldKind::Counts(Align::Sequence) if is_tree => OutputAlign::StreamValues,
            FieldKind::Counts(Align::Sequence) => OutputAlign::SequenceValues,
            FieldKind::Ragged(_) => OutputAlign::Values,
            FieldKind::Row => OutputAlign::Row,
            FieldKind::Array { is_joined: false } | FieldKind::Object => OutputAlign::Object,
            FieldKind::Array { is_joined: true } => OutputAlign::Joined,
        };
        let fill = match self.kind {
            FieldKind::Response | FieldKind::Cut | FieldKind::Sequence => {
                Some(PadValue::Number(self.fill))
            }
            FieldKind::Captured { indices, .. } => Some(indices.padding()),
            FieldKind::Counts(_)
            | FieldKind::Ragged(_)
            | FieldKind::Row
            | FieldKind::Array { .. }
            | FieldKind::Object => None,
        };
        let dtype = match self.kind {
            FieldKind::Array { .. } | FieldKind::Object => None,
            _ => self.dtype,
        };
        let values =
            Output { fill, dtype, ..Output::new(What::Field(index), self.key.clone(), align) };
        let more = match self.kind {
            FieldKind::Captured { indices, .. } => {
                let what = What::UncapturedMask(index);
                let mask = Output::new(what, indices.mask_key(&self.key), OutputAlign::Sequence);
                Some(mask.filled(1).of_dtype(Dtype::Bool))
            }
            FieldKind::Array { is_joined: true } => {
                let (what, key) = (What::JoinedOffsets(index), format!("{}_offsets", self.key));
                Some(Output::new(what, key, OutputAlign::JoinedOffsets))
            }
            _ => None,
        };
        [Some(values), more].into_iter().flatten()
    }
}

/// Refuse a turn's number if it is NaN: the reward, and a number for tokens that train if one of the
/// turn's does, since elsewhere it is not written.
///
/// # Errors
/// [`Error::NotFinite`], and errors of the loss mask.
pub(super) fn check_numbers(
    fields: &[&FieldSpec],
    columns: &[&mut dyn FieldColumn],
    rows: &BatchRows,
    placement: &Placement,
    mask: Option<&LossMask>,
) -> Result<()> {
    let written = fields.iter().filter(|field| field.is_written());
    let mut trains: Option<Vec<bool>> = None;
    for (field, column) in written.zip(columns) {
        let is_of_trained = field.spread == Some(Spread::Trained);
        if !is_of_trained && field.spread != Some(Spread::LastOfRow) {
            continue;
        }
        let numbers = column.numbers()?.unwrap_or_default();
        let is_nan = |turn: &usize| numbers[*turn].is_nan();
        let mut nans = (0..numbers.len()).filter(is_nan).peekable();
        if nans.peek().is_none() {
            continue;
        }
        if is_of_trained && trains.is_none() {
            let count = numbers.len();
            trains = Some(turns_that_train(count, columns, rows.read(), placement, mask)?);
        }
        let is_written = |turn: &usize| match &trains {
            Some(trains) if is_of_trained => trains[*turn],
            _ => true,
        };
        if let Some(turn) = nans.find(is_written) {
            let (field, row) = (field.name.clone(), rows.turns.number(turn));
            let position = None;
            let location = Location { field, row, position };
            let value = "NaN".to_owned();
            return Err(Error::NotFinite { location, value });
        }
    }
    Ok(())
}

/// Flags of the turns with a token that trains.
fn turns_that_train(
    count: usize,
    columns: &[&mut dyn FieldColumn],
    assembly: &Assembly,
    placement: &Placement,
    mask: Option<&LossMask>,
) -> Result<Vec<bool>> {
    let mut trains = filled(count, |_| false)?;
    for segment in placement.trained_responses(assembly)?.segments() {
        let pieces = assembly.pieces(segment.row);
        let index = pieces.partition_point(|piece| piece.end() <= segment.from);
        let Some(piece) = pieces.get(index).filter(|_| segment.len > 0) else {
            continue;
        };
        if !trains[piece.turn] {
            trains[piece.turn] = match mask {
                None => true,
                Some(mask) => {
                    let own = mask.assembly.as_ref().unwrap_or(assembly);
                    weighs(mask, columns[mask.column], own, segment)?
                }
            };
        }
    }
    Ok(trains)
}

/// True if a token in a range of a row has a non-zero weight.
fn weighs(
    mask: &LossMask,
    column: &dyn Column<f64>,
    assembly: &Assembly,
    segment: &Segment,
) -> Result<bool> {
    let (round, mut weights) = (mask.rounding(), [0.0; CHUNK]);
    for piece in assembly.pieces(segment.row).iter().filter(|piece| piece.trains) {
        let start = piece.start.max(segment.from);
        let end = piece.end().min(segment.from + segment.len);
        for from in (start..end).step_by(CHUNK) {
            let weights = &mut weights[..CHUNK.min(end - from)];
            column.read(piece.turn, piece.from + from - piece.start, weights)?;
            round(weights);
            if weights.iter().any(|&weight| weight != 0.0) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
