//! Number types: the outputs ([`Element`]) and the inputs they can be read from ([`Slice`]).

use std::fmt::{Debug, Display};
use std::ops::{BitOr, RangeInclusive};

use half::{bf16, f16};

use crate::check::Check;

/// A contiguous input of any supported number type, read in place.
///
/// Booleans are read as bytes, and any non-zero byte is true: foreign memory may hold bytes above
/// 1.
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

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Upper bound with the bit width of the largest value; `None` for floats or empty input. For
    /// bytes it is a constant, and negative values have all bits.
    pub fn upper_bound(&self) -> Option<i128> {
        match self {
            _ if self.is_empty() => None,
            Slice::Bool(_) => Some(1),
            Slice::U8(_) => Some(u8::MAX.into()),
            Slice::I8(values) => Some(all_bits(values)),
            Slice::I16(values) => Some(all_bits(values)),
            Slice::I32(values) => Some(all_bits(values)),
            Slice::I64(values) => Some(all_bits(values)),
            Slice::U16(values) => Some(all_bits(values)),
            Slice::U32(values) => Some(all_bits(values)),
            Slice::U64(values) => Some(all_bits(values)),
            Slice::F32(_) | Slice::F64(_) => None,
        }
    }

    /// Name of the dtype in NumPy.
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

/// Length of the common prefix of two slices of one type and length; `None` for other types.
pub fn common_values(a: &Slice, b: &Slice) -> Option<usize> {
    Some(match (a, b) {
        (Slice::I32(a), Slice::I32(b)) => common(a, b),
        (Slice::I64(a), Slice::I64(b)) => common(a, b),
        (Slice::U32(a), Slice::U32(b)) => common(a, b),
        (Slice::U16(a), Slice::U16(b)) => common(a, b),
        _ => return None,
    })
}

/// Length of the common prefix of two slices of one length.
pub fn common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    /// Values compared at once, as memory.
    const CHUNK: usize = 1 << 10;
    let chunks = a.chunks(CHUNK).zip(b.chunks(CHUNK));
    let equal = chunks.take_while(|(a, b)| a == b).count() * CHUNK;
    let rest = a.iter().zip(b).skip(equal);
    equal.min(a.len()) + rest.take_while(|(a, b)| a == b).count()
}

/// Bitwise OR of all values: one pass at the speed of reading, unlike the maximum.
fn all_bits<T: Copy + Default + BitOr<Output = T> + Into<i128>>(values: &[T]) -> i128 {
    let bits = values.iter().fold(T::default(), |bits, &value| bits | value);
    match bits.into() {
        ..0 => i128::MAX,
        bits => bits,
    }
}

/// A value that does not fit the output dtype: its position and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Position from the start of the read.
    pub position: usize,
    /// The value in decimal.
    pub value: String,
}

/// An element of a mask: any output type, with booleans also as bytes 0 and 1.
pub trait Binary: Copy + Send + Sync + 'static {
    /// False.
    const ZERO: Self;
    /// True.
    const ONE: Self;

    /// True if all bits are zero; -0.0 has a set bit.
    fn is_zero(self) -> bool;
}

/// A number type of outputs.
///
/// Loops over values are in functions that are neither generic nor inlined, so that this crate
/// compiles them for speed even if the calling crate is compiled for size.
pub trait Element: Binary + Debug + Display {
    /// Name of the dtype in NumPy.
    const DTYPE: &'static str;
    /// The values of a field of this type, for error messages.
    const HOLDS: &'static str;

    /// True if a row of this kind may be read. An empty row of any kind may: `np.array([])` is
    /// float64 by default.
    fn accepts(values: &Slice) -> bool;

    /// Read `out.len()` values from position `from` on, converting each exactly or rounding it.
    ///
    /// # Errors
    /// The first value that does not fit. `out` may then be partly written.
    ///
    /// # Panics
    /// If `values` ends before `from + out.len()`.
    fn read(values: &Slice, from: usize, out: &mut [Self]) -> Result<(), Misfit>;

    /// Position of the first value that fails a check.
    fn first_wrong(values: &[Self], check: Check) -> Option<usize>;

    /// Set every value.
    fn fill(values: &mut [Self], value: Self);
}

/// Types whose zero is the number 0 and whose one is the number 1.
macro_rules! binary {
    ($($type:ty: $zero:expr, $one:expr, $bits:expr;)*) => {$(
        impl Binary for $type {
            const ZERO: Self = $zero;
            const ONE: Self = $one;

            fn is_zero(self) -> bool {
                $bits(self) == 0
            }
        }
    )*};
}

binary! {
    bool: false, true, u8::from;
    u8: 0, 1, u8::from;
    i16: 0, 1, i16::from;
    i32: 0, 1, i32::from;
    i64: 0, 1, i64::from;
    f32: 0.0, 1.0, f32::to_bits;
    f64: 0.0, 1.0, f64::to_bits;
    f16: f16::ZERO, f16::ONE, f16::to_bits;
    bf16: bf16::ZERO, bf16::ONE, bf16::to_bits;
}

// Converting into a small buffer first, so that the copy may bypass the cache, takes 17 ms; writing
// directly takes 14.
fn convert<S: Copy, T>(values: &[S], out: &mut [T], cast: impl Fn(S) -> T) {
    for (to, &value) in out.iter_mut().zip(values) {
        *to = cast(value);
    }
}

/// Convert values of which some may not fit: `cast` returns the value and a misfit flag.
fn convert_checked<S: Copy + ToString, T>(
    values: &[S],
    out: &mut [T],
    cast: impl Fn(S) -> (T, bool),
) -> Result<(), Misfit> {
    // Checked after the loop, which vectorises because it has no early exit.
    let mut any_misfit = false;
    for (to, &value) in out.iter_mut().zip(values) {
        let (value, is_misfit) = cast(value);
        *to = value;
        any_misfit |= is_misfit;
    }
    if !any_misfit {
        return Ok(());
    }
    let position = values.iter().position(|&value| cast(value).1);
    let position = position.unwrap_or_default();
    let value = values[position].to_string();
    Err(Misfit { position, value })
}

/// Integer types: they accept booleans and integers that fit, and no floats.
macro_rules! integer_element {
    ($($type:ty: $name:literal, $cast:ident, $saturated:ident;)*) => {$(
        impl Element for $type {
            const DTYPE: &'static str = $name;
            const HOLDS: &'static str = "integers";

            fn accepts(values: &Slice) -> bool {
                values.is_empty() || !matches!(values, Slice::F32(_) | Slice::F64(_))
            }

            #[allow(
                clippy::unnecessary_fallible_conversions,
                reason = "a check that always passes costs nothing"
            )]
            #[inline(never)]
            fn read(values: &Slice, from: usize, out: &mut [Self]) -> Result<(), Misfit> {
                let range = from..from + out.len();
                match values {
                    Slice::Bool(values) => {
                        convert(&values[range], out, |value| <$type>::from(value != 0));
                        Ok(())
                    }
                    Slice::I8(values) => convert_checked(&values[range], out, $cast!($type)),
                    Slice::I16(values) => convert_checked(&values[range], out, $cast!($type)),
                    Slice::I32(values) => convert_checked(&values[range], out, $cast!($type)),
                    Slice::I64(values) => convert_checked(&values[range], out, $cast!($type)),
                    Slice::U8(values) => convert_checked(&values[range], out, $cast!($type)),
                    Slice::U16(values) => convert_checked(&values[range], out, $cast!($type)),
                    Slice::U32(values) => convert_checked(&values[range], out, $cast!($type)),
                    Slice::U64(values) => convert_checked(&values[range], out, $cast!($type)),
                    Slice::F32(_) | Slice::F64(_) => {
                        assert!(range.is_empty(), "accepts() refuses floats for integers");
                        Ok(())
                    }
                }
            }

            #[inline(never)]
            fn first_wrong(values: &[Self], check: Check) -> Option<usize> {
                match check {
                    Check::None | Check::Number => None,
                    Check::Weight => first(values, |value| value < <$type>::ZERO),
                    Check::Whole(dtype) => {
                        let range = dtype.whole_weights();
                        first(values, |value| !range.contains(&value.into()))
                    }
                    // Every byte is a valid index.
                    Check::Index(limit) if limit > 0xFF && size_of::<Self>() == 1 => None,
                    Check::Index(..=0) => (!values.is_empty()).then_some(0),
                    // Compared in its own type: 16 bytes at a time instead of 2.
                    Check::Index(limit) => {
                        let last = $saturated!($type, limit - 1);
                        let none = <$type>::try_from(-1).unwrap_or(<$type>::ZERO);
                        first(values, |value| (value < none) | (value > last))
                    }
                }
            }

            #[inline(never)]
            fn fill(values: &mut [Self], value: Self) {
                values.fill(value);
            }
        }
    )*};
}

/// Truncate an integer; the flag is true if that changed it.
macro_rules! cut {
    ($type:ty) => {
        |value| (value as $type, <$type>::try_from(value).is_err())
    };
}

/// Read any non-zero integer as true; the flag is true if it is neither 0 nor 1.
macro_rules! truth {
    ($type:ty) => {
        |value| (value != 0, value != 0 && value != 1)
    };
}

/// A non-negative number, saturated to the type's maximum.
macro_rules! saturated {
    ($type:ty, $value:expr) => {
        <$type>::try_from($value).unwrap_or(<$type>::MAX)
    };
}

/// As a boolean: true for any non-zero number.
macro_rules! nonzero {
    ($type:ty, $value:expr) => {
        $value != 0
    };
}

integer_element! {
    bool: "bool", truth, nonzero;
    u8: "uint8", cut, saturated;
    i16: "int16", cut, saturated;
    i32: "int32", cut, saturated;
    i64: "int64", cut, saturated;
}

/// Position of the first value that is wrong.
fn first<T: Copy>(values: &[T], is_wrong: impl Fn(T) -> bool) -> Option<usize> {
    // Fold over all of them first: the loop vectorises because it has no early exit.
    if !values.iter().fold(false, |any, &value| any | is_wrong(value)) {
        return None;
    }
    values.iter().position(|&value| is_wrong(value))
}

/// Position of the first value that is not a whole number in a range.
fn first_broken<T: Copy + Into<f64>>(values: &[T], range: RangeInclusive<i64>) -> Option<usize> {
    /// Numbers of this size have no fraction: adding it rounds to a whole number.
    const WHOLE: f64 = (1_u64 << (f64::MANTISSA_DIGITS - 1)) as f64;
    let most = *range.end() as f64;
    // In vectors, unlike conversions. It also finds some of the largest whole numbers.
    first(values, |value| {
        let value: f64 = value.into();
        ((value + WHOLE) - WHOLE != value) | !(0.0..=most).contains(&value)
    })?;
    values.iter().position(|&value| {
        let value: f64 = value.into();
        let whole = value as i64;
        whole as f64 != value || !range.contains(&whole)
    })
}

/// Read as a float type, then convert.
macro_rules! read_floats {
    ($($name:ident: $float:ty;)*) => {$(
        #[allow(
            clippy::cast_lossless,
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            trivial_numeric_casts,
            reason = "floats round to nearest even and overflow to inf, as IEEE and NumPy do"
        )]
        fn $name<T>(values: &Slice, from: usize, out: &mut [T], cast: impl Fn($float) -> T) {
            let range = from..from + out.len();
            match values {
                Slice::Bool(values) => {
                    convert(&values[range], out, |v| cast(u8::from(v != 0).into()));
                }
                Slice::I8(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::I16(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::I32(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::I64(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::U8(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::U16(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::U32(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::U64(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::F32(values) => convert(&values[range], out, |v| cast(v as $float)),
                Slice::F64(values) => convert(&values[range], out, |v| cast(v as $float)),
            }
        }
    )*};
}

read_floats! {
    read_singles: f32;
    read_doubles: f64;
}

/// Float types. Half-precision outputs are rounded from float32 as in torch.
macro_rules! float_element {
    ($($type:ty: $name:literal, $read:ident, $cast:expr;)*) => {$(
        impl Element for $type {
            const DTYPE: &'static str = $name;
            const HOLDS: &'static str = "numbers";

            fn accepts(_: &Slice) -> bool {
                true
            }

            #[inline(never)]
            fn read(values: &Slice, from: usize, out: &mut [Self]) -> Result<(), Misfit> {
                $read(values, from, out, $cast);
                Ok(())
            }

            #[inline(never)]
            fn first_wrong(values: &[Self], check: Check) -> Option<usize> {
                match check {
                    Check::None => None,
                    Check::Number => first(values, |value| value.is_nan()),
                    Check::Weight => {
                        // Up to the largest number: comparisons with infinity become a test of
                        // classes, which is not vectorised and takes 10 times as long.
                        first(values, |value| !(<$type>::ZERO..=<$type>::MAX).contains(&value))
                    }
                    Check::Whole(dtype) => first_broken(values, dtype.whole_weights()),
                    Check::Index(_) => (!values.is_empty()).then_some(0),
                }
            }

            #[inline(never)]
            fn fill(values: &mut [Self], value: Self) {
                values.fill(value);
            }
        }
    )*};
}

float_element! {
    f64: "float64", read_doubles, |value| value;
    f32: "float32", read_singles, |value| value;
    f16: "float16", read_singles, f16::from_f32;
    bf16: "bfloat16", read_singles, bf16::from_f32;
}
