//! Numbers of JSON, read from bytes. What these functions cannot read is left to the parser.

use crate::error::Result;
use crate::memory::add;

/// The float64 nearest to powers of ten, from the least exponent on.
const POWERS: [f64; 65] = [
    1e-42, 1e-41, 1e-40, 1e-39, 1e-38, 1e-37, 1e-36, 1e-35, 1e-34, 1e-33, 1e-32, 1e-31, 1e-30,
    1e-29, 1e-28, 1e-27, 1e-26, 1e-25, 1e-24, 1e-23, 1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17,
    1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3,
    1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14,
    1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// The exponent of the first.
const LEAST: i64 = -42;

/// Relative error of a mantissa as float64, of a power, of the power times a bound, of their product,
/// and of the float64 nearest to the number: at most half an epsilon each. Rounded up.
const ERROR: f64 = 4.0 * f64::EPSILON;

/// A number as written: its first digits without point and sign, and the power of ten of the last.
struct Decimal {
    mantissa: i64,
    power: i64,
    /// True if there are more digits.
    is_cut: bool,
    end: usize,
}

/// Powers of ten by which a number grows with up to eight digits.
const TENS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Eight bytes as the values of digits, and the number of digits that they begin with.
#[inline(always)]
fn digits_of(bytes: [u8; 8]) -> (u64, usize) {
    let values = u64::from_le_bytes(bytes) ^ 0x3030_3030_3030_3030;
    // A carry out of a byte that is not a digit reaches later ones alone.
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    (values, others.trailing_zeros() as usize / 8)
}

/// The number of the first digits of eight, of which there are `count`.
#[inline(always)]
fn number_of(values: u64, count: usize) -> u64 {
    // Zeros come first; then digits become pairs, pairs fours, and fours the number.
    let word = values.unbounded_shl(64 - 8 * count as u32);
    let pairs = word.wrapping_mul(10).wrapping_add(word >> 8);
    let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

/// The next bytes, if there are so many.
#[inline(always)]
fn next<const N: usize>(data: &[u8], at: usize) -> Option<&[u8; N]> {
    data.get(at..)?.first_chunk()
}

/// The number of up to eight digits, and how many there are.
#[inline(always)]
fn digits(data: &[u8], at: usize) -> Option<(u64, usize)> {
    let (values, count) = digits_of(*next(data, at)?);
    Some((number_of(values, count), count))
}

/// A number in JSON's grammar, without a sign; None if it has too many digits.
fn decimal(data: &[u8], start: usize) -> Option<Decimal> {
    let number = usual_decimal(data, start).or_else(|| other_decimal(data, start))?;
    match data.get(number.end)? {
        b'e' | b'E' => with_exponent(data, number),
        _ => Some(number),
    }
}

/// A decimal as most are written: a digit, a point, and 9 to 23 digits.
#[inline(always)]
fn usual_decimal(data: &[u8], start: usize) -> Option<Decimal> {
    let [first, b'.', digits @ ..] = next::<26>(data, start)? else {
        return None;
    };
    let part = |from| digits_of(*digits[from..].first_chunk().expect("there are 24"));
    let ((one, 8), (two, count @ 1..), (_, more)) = (part(0), part(8), part(16)) else {
        return None;
    };
    let more = if count == 8 { more } else { 0 };
    let (whole, len) = (u64::from(first ^ b'0'), 8 + count + more);
    if whole > 9 || more == 8 {
        return None;
    }
    let high = whole * TENS[8] + number_of(one, 8);
    Some(Decimal {
        mantissa: (high * TENS[count] + number_of(two, count)).cast_signed(),
        power: -8 - count.cast_signed() as i64,
        is_cut: more > 0,
        end: start + 2 + len,
    })
}

/// Any other decimal, with up to seven digits before its point.
fn other_decimal(data: &[u8], start: usize) -> Option<Decimal> {
    let (whole, len @ 1..8) = digits(data, start)? else {
        return None;
    };
    if len > 1 && data[start] == b'0' {
        return None;
    }
    let end = start + len;
    if data[end] != b'.' {
        return Some(Decimal { mantissa: whole.cast_signed(), power: 0, is_cut: false, end });
    }
    let (fraction, count @ 1..) = digits(data, end + 1)? else {
        return None;
    };
    let end = end + 1 + count;
    let more = data[end..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some(Decimal {
        mantissa: (whole * TENS[count] + fraction).cast_signed(),
        power: -count.cast_signed() as i64,
        is_cut: more > 0,
        end: end + more,
    })
}

fn with_exponent(data: &[u8], number: Decimal) -> Option<Decimal> {
    let sign = data.get(number.end + 1);
    let from = number.end + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
    let (exponent, count @ 1..8) = digits(data, from)? else {
        return None;
    };
    let exponent = exponent.cast_signed();
    let power = number.power + if sign == Some(&b'-') { -exponent } else { exponent };
    Some(Decimal { power, end: from + count, ..number })
}

/// The end of a number that [`float`] can read.
#[inline(always)]
pub fn number_end(data: &[u8], at: usize) -> Option<usize> {
    if let Some((_, end)) = id(data, at) {
        return Some(end); // few digits, by far the most frequent
    }
    let is_negative = data.get(at) == Some(&b'-');
    decimal(data, at + usize::from(is_negative)).map(|number| number.end)
}

/// A token id of up to seven digits, and its end.
#[inline(always)]
pub fn id(data: &[u8], at: usize) -> Option<(i32, usize)> {
    let (value, count @ 1..8) = digits(data, at)? else {
        return None;
    };
    let is_number = count == 1 || data[at] != b'0';
    let is_whole = !matches!(data[at + count], b'.' | b'e' | b'E');
    (is_number && is_whole).then_some((value as i32, at + count))
}

/// The bits of the float32 nearest to the float64 nearest to a number, and its end.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "rounded as float64, then as float32"
)]
#[inline(always)]
pub fn float(data: &[u8], at: usize) -> Option<(i32, usize)> {
    let is_negative = data.get(at) == Some(&b'-');
    let start = at + usize::from(is_negative);
    let number = match usual_decimal(data, start) {
        Some(number) if !matches!(data[number.end], b'e' | b'E') => number,
        _ => decimal(data, start)?,
    };
    let power = POWERS.get(usize::try_from(number.power - LEAST).ok()?)?;
    // The nearest float64 lies between the two, so it is rounded as they are, if alike.
    let next = number.mantissa + i64::from(number.is_cut);
    let least = (number.mantissa as f64 * (power * (1.0 - ERROR))) as f32;
    let most = (next as f64 * (power * (1.0 + ERROR))) as f32;
    let bits = least.to_bits() | u32::from(is_negative) << 31;
    (least.to_bits() == most.to_bits()).then_some((bits.cast_signed(), number.end))
}

/// Add the token ids of an array that are written without spaces, or with one behind each comma;
/// returns the position of the first item that was not read, or of the array's end.
///
/// # Errors
/// [`Error::NoMemory`](crate::Error::NoMemory).
pub fn ids(data: &[u8], mut at: usize, out: &mut Vec<i32>) -> Result<usize> {
    // As behind the first comma: `at` then waits for no byte behind the others.
    let mut space = None;
    while let Some((id, end)) = id(data, at) {
        if data.get(end) != Some(&b',') {
            break;
        }
        add(out, id)?;
        let is_space = data.get(end + 1) == Some(&b' ');
        let known = *space.get_or_insert(is_space);
        if is_space != known {
            return Ok(end + 1);
        }
        at = end + 1 + usize::from(known);
    }
    Ok(at)
}
