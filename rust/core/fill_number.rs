//! Fill values of outputs.

use std::fmt;

use half::{bf16, f16};

use crate::dtype::Dtype;
use crate::element::{Element, Slice};

/// A number independent of the output's dtype.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Number {
    Int(i64),
    Float(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Int(int) => int.fmt(f),
            Self::Float(float) => float.fmt(f),
        }
    }
}

impl Number {
    /// The number as the nearest float.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }

    /// True if an output of this dtype can hold the number.
    pub fn fits(self, dtype: Dtype) -> bool {
        match dtype {
            Dtype::Bool => self.cast::<bool>().is_some(),
            Dtype::U8 => self.cast::<u8>().is_some(),
            Dtype::I16 => self.cast::<i16>().is_some(),
            Dtype::I32 => self.cast::<i32>().is_some(),
            Dtype::I64 => self.cast::<i64>().is_some(),
            Dtype::F16 => self.is_finite_as::<f16>(),
            Dtype::Bf16 => self.is_finite_as::<bf16>(),
            Dtype::F32 => self.is_finite_as::<f32>(),
            Dtype::F64 => self.is_finite_as::<f64>(),
        }
    }

    /// True if the float type keeps a finite number finite.
    fn is_finite_as<T: Element + Into<f64>>(self) -> bool {
        let is_finite = |value: T| value.into().is_finite();
        let is_finite = self.cast().is_some_and(is_finite);
        is_finite || matches!(self, Self::Float(float) if !float.is_finite())
    }

    /// The number as an int, if it is a float without a fraction that fits in 64 bits.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "only whole numbers from -2^63 to below 2^63, which convert exactly"
    )]
    fn whole(self) -> Self {
        const END: f64 = 9_223_372_036_854_775_808.0;
        match self {
            Self::Float(float) if float.fract() == 0.0 && (-END..END).contains(&float) => {
                Self::Int(float as i64)
            }
            number => number,
        }
    }

    /// The number as the output's type, if it fits. An integer may be given as a float without a
    /// fraction.
    pub fn cast<T: Element>(self) -> Option<T> {
        let mut value = [T::ZERO];
        let (ints, floats);
        let holds_floats = T::accepts(&Slice::F64(&[0.0]));
        let slice = match if holds_floats { self } else { self.whole() } {
            Self::Int(int) => {
                ints = [int];
                Slice::I64(&ints)
            }
            Self::Float(float) => {
                floats = [float];
                Slice::F64(&floats)
            }
        };
        (T::accepts(&slice) && T::read(&slice, 0, &mut value).is_ok()).then_some(value[0])
    }
}
