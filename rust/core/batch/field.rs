//! Fields: what values belong to, and how they are read and written.

use super::outputs::{Alignment, Output, PadValue, ROUTER_PADDING_MASK, What};
use crate::check::Check;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::fill_number::Number;
use crate::plan::{Along, TokenForm};

/// What the rows of a field hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// One value per response token.
    Response,
    /// One value per token, of which those of the response are written.
    Cut,
    /// One value per token.
    Sequence,
    /// Routes of tokens through experts: the first tokens of a row have them.
    Experts {
        /// How many experts there are, if that is known.
        count: Option<i64>,
        /// Which layers are written, if not all.
        layers: Option<Layers>,
    },
    /// One value per row.
    Row,
    /// An array per row, which the caller keeps.
    Array {
        /// Whether the arrays are joined, and have offsets.
        is_joined: bool,
    },
    /// Any object per row, which the caller keeps.
    Object,
}

/// Layers of a model that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layers {
    /// The first.
    pub begin: usize,
    /// One past the last, which is not before the first.
    pub end: usize,
}

impl FieldKind {
    /// Routes through all layers, of which nothing is known.
    pub const EXPERTS: Self = Self::Experts {
        count: None,
        layers: None,
    };

    /// How many values a row of these lengths has, from the first token of its sequence or response on;
    /// none if the lengths do not say that.
    pub fn row_len(self, prompt: usize, response: usize) -> Option<usize> {
        match self {
            Self::Response => Some(response),
            Self::Cut | Self::Sequence => Some(prompt + response),
            Self::Experts { .. } | Self::Row | Self::Array { .. } | Self::Object => None,
        }
    }
}

/// Where one number per row lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// On all tokens of each turn's response, each turn's on its own.
    All,
    /// On those that train.
    Trained,
    /// On the last token of each turn's response that is in a row.
    Last,
    /// On the last token of the row that was sampled, which has one number of all of its turns'.
    LastOfRow,
}

impl Spread {
    /// The error of a number that no token of its row takes.
    pub fn no_token(self, field: &str, row: usize, form: TokenForm) -> Error {
        let field = field.to_owned();
        let tokens = match self {
            Self::All => "the tokens of its response",
            Self::Trained => "the tokens of its row that train",
            Self::Last => "the last response token of its row",
            Self::LastOfRow => return Error::NoLastToken { field, row, form },
        };
        Error::NoTokenFor { field, row, tokens }
    }
}

/// How a field is read and written.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldSpec {
    /// The output's key.
    pub key: String,
    /// The argument's name, for errors.
    pub name: String,
    /// What the rows hold.
    pub kind: FieldKind,
    /// Whether a token has one float value, as in the fields that every batch can have.
    pub is_plain: bool,
    /// Where one number per row lies, if there may be one instead of a value for every token.
    pub spread: Option<Spread>,
    /// What a row holds that is not given, if that may be.
    pub default: Option<Number>,
    /// Whether it is the loss mask: numbers that say what trains, and of whole numbers if the dtype is.
    pub weighs: bool,
    /// Whether a row may have any length up to the widest response, right-aligned there; in packed
    /// batches up to its own response, of which it has the last tokens.
    pub any_length: bool,
    /// What padding holds.
    pub fill: Number,
    /// What observations hold, between the pieces of a response.
    pub gap_fill: Number,
    /// The output's dtype; none where the largest index decides.
    pub dtype: Option<Dtype>,
}

impl FieldSpec {
    /// The field, if its parts go together.
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
        let FieldKind::Experts {
            count: Some(count), ..
        } = self.kind
        else {
            return Ok(self);
        };
        let problem = match self.dtype.unwrap_or(Dtype::I32) {
            _ if count < 1 => "pass 1 or more".to_owned(),
            dtype if Number::Int(count - 1).fits(dtype) => return Ok(self),
            dtype => format!("pass a wider dtype than {}", dtype.name()),
        };
        Err(Error::ExpertCount {
            key: self.key,
            count,
            problem,
        })
    }

    /// The dtypes that the output can have.
    pub fn dtypes(&self) -> &'static [Dtype] {
        match self.kind {
            FieldKind::Experts { .. } => Dtype::OF_INDICES,
            _ if self.weighs => Dtype::OF_WEIGHTS,
            _ if self.is_plain => Dtype::FLOATS,
            _ => Dtype::OF_FIELDS,
        }
    }

    /// What a field of responses lies along.
    pub fn along(&self) -> Along {
        match self.kind {
            FieldKind::Cut => Along::Sequence,
            _ => Along::Response,
        }
    }

    /// Whether values are read and written here, and not kept by the caller.
    pub fn is_written(&self) -> bool {
        !matches!(self.kind, FieldKind::Array { .. } | FieldKind::Object)
    }

    /// What is asked of the values.
    pub fn check(&self) -> Check {
        match self.dtype {
            Some(dtype) if self.weighs && !dtype.is_float() => Check::Whole(dtype),
            _ if self.weighs => Check::Number,
            _ => Check::None,
        }
    }

    /// Check that a row, the one of this index, has as many values as its lengths say.
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
            (FieldKind::Response, Some(expected)) if found != expected => Err(Error::RowLength {
                field,
                row,
                found,
                expected,
                stream: prompt + response,
                form,
            }),
            (_, Some(expected)) if found != expected => Err(Error::StreamLength {
                field,
                row,
                found,
                expected,
                response,
                form,
                may_end_early: false,
            }),
            _ => Ok(()),
        }
    }

    /// The outputs of the field, which has this index; in a tree, those of whole sequences lie row by row.
    pub(super) fn outputs(&self, index: usize, is_tree: bool) -> impl Iterator<Item = Output> {
        let align = match self.kind {
            FieldKind::Response | FieldKind::Cut => Alignment::Response,
            FieldKind::Sequence if is_tree => Alignment::Stream,
            FieldKind::Sequence | FieldKind::Experts { .. } => Alignment::Sequence,
            FieldKind::Row => Alignment::Row,
            FieldKind::Array { is_joined: false } | FieldKind::Object => Alignment::Object,
            FieldKind::Array { is_joined: true } => Alignment::Joined,
        };
        let fill = match self.kind {
            FieldKind::Response | FieldKind::Cut | FieldKind::Sequence => {
                Some(PadValue::Number(self.fill))
            }
            FieldKind::Experts { .. } => Some(PadValue::Indices),
            FieldKind::Row | FieldKind::Array { .. } | FieldKind::Object => None,
        };
        let dtype = match self.kind {
            FieldKind::Array { .. } | FieldKind::Object => None,
            _ => self.dtype,
        };
        let values = Output {
            fill,
            dtype,
            ..Output::new(What::Field(index), self.key.clone(), align)
        };
        let more = match self.kind {
            FieldKind::Experts { .. } => {
                let what = What::RouterPaddingMask(index);
                let mask = Output::new(what, ROUTER_PADDING_MASK, Alignment::Sequence);
                Some(mask.filled(1).of_dtype(Dtype::Bool))
            }
            FieldKind::Array { is_joined: true } => {
                let (what, key) = (What::JoinedOffsets(index), format!("{}_offsets", self.key));
                Some(Output::new(what, key, Alignment::JoinedOffsets))
            }
            _ => None,
        };
        [Some(values), more].into_iter().flatten()
    }
}
