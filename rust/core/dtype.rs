//! The number types of outputs.

use std::ops::RangeInclusive;

use half::{bf16, f16};

use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::few;

/// The number type of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    U8,
    I16,
    I32,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Dtype {
    /// Dtypes of fields.
    pub const OF_FIELDS: &[Self] = &[
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F16,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::U8,
        Self::Bool,
    ];

    /// Dtypes of expert indices.
    pub const OF_INDICES: &[Self] = &[Self::U8, Self::I16, Self::I32];

    /// Dtypes of indices that may be -1.
    pub const OF_CHOICES: &[Self] = &[Self::I16, Self::I32];

    /// Dtypes of masks.
    pub const OF_MASKS: &[Self] = &[Self::I64, Self::I32, Self::Bool];

    /// Dtypes of loss masks.
    pub const OF_WEIGHTS: &[Self] =
        &[Self::F32, Self::F64, Self::Bf16, Self::F16, Self::I64, Self::I32, Self::Bool];

    /// Dtypes of the other built-in fields.
    pub const FLOATS: &[Self] = &[Self::F32, Self::F64, Self::Bf16, Self::F16];

    /// The dtype of this name, if the output `key` may have it.
    ///
    /// # Errors
    /// [`Error::NoDtype`], which lists the valid dtypes.
    pub fn of_name(key: &str, name: &str, dtypes: &[Self]) -> Result<Self> {
        let dtype = dtypes.iter().find(|dtype| dtype.name() == name);
        dtype.copied().ok_or_else(|| {
            let names: Vec<_> = few(dtypes.iter().map(|dtype| dtype.name()));
            Error::NoDtype {
                key: key.to_owned(),
                found: name.to_owned(),
                expected: names.join(", "),
            }
        })
    }

    /// True for float dtypes.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    /// The whole numbers from 0 on that an integer dtype can hold and that are exact in float64.
    pub fn whole_weights(self) -> RangeInclusive<i64> {
        const EXACT: i64 = (1 << f64::MANTISSA_DIGITS) - 1;
        0..=match self {
            Self::Bool => 1,
            Self::U8 => u8::MAX.into(),
            Self::I16 => i16::MAX.into(),
            Self::I32 => i32::MAX.into(),
            Self::I64 | Self::F16 | Self::Bf16 | Self::F32 | Self::F64 => EXACT,
        }
    }

    /// Name in NumPy and torch.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => bool::DTYPE,
            Self::U8 => u8::DTYPE,
            Self::I16 => i16::DTYPE,
            Self::I32 => i32::DTYPE,
            Self::I64 => i64::DTYPE,
            Self::F16 => f16::DTYPE,
            Self::Bf16 => bf16::DTYPE,
            Self::F32 => f32::DTYPE,
            Self::F64 => f64::DTYPE,
        }
    }

    /// Bytes per value.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }
}

/// The number type of ids, positions and tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum IntDtype {
    I32,
    I64,
}

impl IntDtype {
    /// The dtype of this name for the output `key`.
    ///
    /// # Errors
    /// [`Error::NoDtype`].
    pub fn of_name(key: &str, name: &str) -> Result<Self> {
        match Dtype::of_name(key, name, &[Dtype::I64, Dtype::I32])? {
            Dtype::I32 => Ok(Self::I32),
            _ => Ok(Self::I64),
        }
    }

    /// Name in NumPy and torch.
    pub fn name(self) -> &'static str {
        Dtype::from(self).name()
    }
}

impl From<IntDtype> for Dtype {
    fn from(dtype: IntDtype) -> Self {
        match dtype {
            IntDtype::I32 => Self::I32,
            IntDtype::I64 => Self::I64,
        }
    }
}
