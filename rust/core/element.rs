//! Number types: the outputs ([`Element`]) and the inputs they can be read from ([`Slice`]).

/// A contiguous input of any supported number type, viewed where it lies.
///
/// Booleans are seen as bytes, where any value but 0 is true: foreign memory may hold others than 1.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Slice<'a> {
    Bool(&'a [u8]),
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
    F32(&'a [f32]),
    F64(&'a [f64]),
}

/// Evaluate `$body` with `$values` bound to the typed slice inside `$slice`.
macro_rules! with_values {
    ($slice:expr, $values:ident => $body:expr) => {
        match $slice {
            Slice::Bool($values) => $body,
            Slice::I8($values) => $body,
            Slice::I16($values) => $body,
            Slice::I32($values) => $body,
            Slice::I64($values) => $body,
            Slice::U8($values) => $body,
            Slice::U16($values) => $body,
            Slice::U32($values) => $body,
            Slice::U64($values) => $body,
            Slice::F32($values) => $body,
            Slice::F64($values) => $body,
        }
    };
}

impl<'a> Slice<'a> {
    /// The values in a range.
    ///
    /// # Panics
    /// If the range leaves the slice.
    #[must_use]
    pub fn range(self, range: std::ops::Range<usize>) -> Slice<'a> {
        match self {
            Slice::Bool(values) => Slice::Bool(&values[range]),
            Slice::I8(values) => Slice::I8(&values[range]),
            Slice::I16(values) => Slice::I16(&values[range]),
            Slice::I32(values) => Slice::I32(&values[range]),
            Slice::I64(values) => Slice::I64(&values[range]),
            Slice::U8(values) => Slice::U8(&values[range]),
            Slice::U16(values) => Slice::U16(&values[range]),
            Slice::U32(values) => Slice::U32(&values[range]),
            Slice::U64(values) => Slice::U64(&values[range]),
            Slice::F32(values) => Slice::F32(&values[range]),
            Slice::F64(values) => Slice::F64(&values[range]),
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        with_values!(self, values => values.len())
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Name of the dtype, as NumPy calls it.
    pub fn dtype(&self) -> &'static str {
        match self {
            Slice::Bool(_) => "bool",
            Slice::I8(_) => "int8",
            Slice::I16(_) => "int16",
            Slice::I32(_) => "int32",
            Slice::I64(_) => "int64",
            Slice::U8(_) => "uint8",
            Slice::U16(_) => "uint16",
            Slice::U32(_) => "uint32",
            Slice::U64(_) => "uint64",
            Slice::F32(_) => "float32",
            Slice::F64(_) => "float64",
        }
    }
}

/// A value that an output dtype cannot hold: its position and how it prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Position counted from where the reading started.
    pub position: usize,
    /// The value in decimal.
    pub value: String,
}

/// A number type that outputs can have.
pub trait Element: Copy + PartialEq + Send + Sync + 'static {
    /// False, in a mask.
    const ZERO: Self;
    /// True, in a mask.
    const ONE: Self;
    /// Name of the dtype, as NumPy calls it.
    const DTYPE: &'static str;
    /// What a field of this type holds, for error messages.
    const HOLDS: &'static str;

    /// Whether a row of this kind may be read at all. An empty row of any kind may: it holds
    /// nothing wrong, and `np.array([])` is float64 whatever it stands for.
    fn accepts(values: &Slice) -> bool;

    /// Read `out.len()` values from position `from` on, converting each exactly or rounding once.
    ///
    /// # Errors
    /// The first value that does not fit. `out` may be partly written then.
    ///
    /// # Panics
    /// If `values` ends before `from + out.len()`.
    fn read(values: &Slice, from: usize, out: &mut [Self]) -> Result<(), Misfit>;

    /// Whether this is a floating-point NaN.
    fn is_nan(self) -> bool;

    /// Whether all bits are zero, which -0.0 is not.
    fn is_zero(self) -> bool;
}

fn convert<S: Copy, T>(values: &[S], out: &mut [T], cast: impl Fn(S) -> T) {
    for (to, &value) in out.iter_mut().zip(values) {
        *to = cast(value);
    }
}

impl Element for i64 {
    const ZERO: Self = 0;
    const ONE: Self = 1;
    const DTYPE: &'static str = "int64";
    const HOLDS: &'static str = "integers";

    fn accepts(values: &Slice) -> bool {
        values.is_empty() || !matches!(values, Slice::F32(_) | Slice::F64(_))
    }

    fn read(values: &Slice, from: usize, out: &mut [Self]) -> Result<(), Misfit> {
        let range = from..from + out.len();
        match values {
            Slice::Bool(values) => convert(&values[range], out, |v| i64::from(v != 0)),
            Slice::I8(values) => convert(&values[range], out, i64::from),
            Slice::I16(values) => convert(&values[range], out, i64::from),
            Slice::I32(values) => convert(&values[range], out, i64::from),
            Slice::I64(values) => out.copy_from_slice(&values[range]),
            Slice::U8(values) => convert(&values[range], out, i64::from),
            Slice::U16(values) => convert(&values[range], out, i64::from),
            Slice::U32(values) => convert(&values[range], out, i64::from),
            Slice::U64(values) => {
                // Convert all, then look for a sign bit: two plain loops vectorise, one with an
                // early exit does not.
                convert(&values[range.clone()], out, |v| v.cast_signed());
                if let Some(position) = out.iter().position(|&v| v < 0) {
                    let value = values[from + position].to_string();
                    return Err(Misfit { position, value });
                }
            }
            Slice::F32(_) | Slice::F64(_) => {
                assert!(range.is_empty(), "accepts() refuses floats for integers");
            }
        }
        Ok(())
    }

    fn is_nan(self) -> bool {
        false
    }

    fn is_zero(self) -> bool {
        self == 0
    }
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const DTYPE: &'static str = "float32";
    const HOLDS: &'static str = "numbers";

    fn accepts(_: &Slice) -> bool {
        true
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "floats round to nearest even and overflow to inf, as IEEE and NumPy do"
    )]
    fn read(values: &Slice, from: usize, out: &mut [Self]) -> Result<(), Misfit> {
        let range = from..from + out.len();
        match values {
            Slice::Bool(values) => {
                convert(&values[range], out, |v| f32::from(u8::from(v != 0)));
            }
            Slice::I8(values) => convert(&values[range], out, f32::from),
            Slice::I16(values) => convert(&values[range], out, f32::from),
            Slice::I32(values) => convert(&values[range], out, |v| v as f32),
            Slice::I64(values) => convert(&values[range], out, |v| v as f32),
            Slice::U8(values) => convert(&values[range], out, f32::from),
            Slice::U16(values) => convert(&values[range], out, f32::from),
            Slice::U32(values) => convert(&values[range], out, |v| v as f32),
            Slice::U64(values) => convert(&values[range], out, |v| v as f32),
            Slice::F32(values) => out.copy_from_slice(&values[range]),
            Slice::F64(values) => convert(&values[range], out, |v| v as f32),
        }
        Ok(())
    }

    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }

    fn is_zero(self) -> bool {
        self.to_bits() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_convert_exactly_or_say_which_does_not_fit() {
        let mut out = [0; 3];
        i64::read(&Slice::U64(&[9, 1, 2, i64::MAX as u64]), 1, &mut out).unwrap();
        assert_eq!(out, [1, 2, i64::MAX]);
        let misfit = i64::read(&Slice::U64(&[9, 1, u64::MAX, 3]), 1, &mut out).unwrap_err();
        assert_eq!(
            (misfit.position, misfit.value.as_str()),
            (1, "18446744073709551615")
        );
        i64::read(&Slice::Bool(&[0, 1, 255]), 0, &mut out).unwrap();
        assert_eq!(out, [0, 1, 1]);
        i64::read(&Slice::I8(&[i8::MIN, -1, 1]), 0, &mut out).unwrap();
        assert_eq!(out, [-128, -1, 1]);
    }

    #[test]
    fn floats_round_once_to_nearest_even() {
        let mut out = [0.0; 3];
        // 2^24 + 1 lies half-way between two floats, 2^24 + 3 too: both go to the even one.
        f32::read(
            &Slice::I64(&[(1 << 24) + 1, (1 << 24) + 3, i64::MIN]),
            0,
            &mut out,
        )
        .unwrap();
        assert_eq!(
            out,
            [16_777_216.0, 16_777_220.0, -9_223_372_036_854_775_808.0]
        );
        f32::read(&Slice::F64(&[1e300, f64::NEG_INFINITY, -0.0]), 0, &mut out).unwrap();
        assert_eq!(out, [f32::INFINITY, f32::NEG_INFINITY, 0.0]);
        assert!(out[2].is_sign_negative());
    }

    #[test]
    fn only_empty_float_rows_pass_as_integers() {
        assert!(!i64::accepts(&Slice::F32(&[1.0])));
        assert!(i64::accepts(&Slice::F64(&[])));
        i64::read(&Slice::F64(&[]), 0, &mut []).unwrap();
    }
}
