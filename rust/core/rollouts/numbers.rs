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

/// Relative error of a mantissa of 64 bits times a power, of the sum with another power, and of the
/// float64 nearest to the number: at most half an epsilon each, five in all. Rounded up.
const ERROR: f64 = 4.0 * f64::EPSILON;

/// Decimal digits of which any number fits 64 bits.
const MOST_DIGITS: usize = 19;

/// A number as written: the first digits without point and sign, and the power of ten of the last.
struct Decimal {
    mantissa: u64,
    power: i64,
    /// True if there are more digits.
    is_cut: bool,
    end: usize,
}

/// Powers of ten by which a number grows with up to eight digits.
const TENS: [u64; 9] = [
    1,
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

/// Eight bytes as the values of digits, and the number of digits that they begin with.
fn eight(data: &[u8], at: usize) -> Option<(u64, usize)> {
    let bytes = data.get(at..)?.first_chunk::<8>()?;
    let values = u64::from_le_bytes(*bytes) ^ 0x3030_3030_3030_3030;
    // A carry out of a byte that is not a digit reaches later ones alone.
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    Some((values, others.trailing_zeros() as usize / 8))
}

/// The number of digits, of which there are `count`, from 1 to 8.
#[inline(always)]
fn number_of(values: u64, count: usize) -> u64 {
    // Zeros come first; then digits become pairs, pairs fours, and fours the number.
    let word = values << (64 - 8 * count);
    let pairs = word.wrapping_mul(10).wrapping_add(word >> 8);
    let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

/// Add up to eight digits to a value; returns it, and their number.
#[inline(always)]
fn add_eight(data: &[u8], at: usize, value: u64) -> (u64, usize) {
    let (number, count) = match eight(data, at) {
        Some((_, 0)) => return (value, 0),
        Some((values, count)) => (number_of(values, count), count),
        None => {
            let digits = data.get(at..).unwrap_or(&[]).iter().take(8);
            let digits = digits.take_while(|byte| byte.is_ascii_digit());
            digits.fold((0, 0), |(number, count), byte| {
                (number * 10 + u64::from(byte - b'0'), count + 1)
            })
        }
    };
    (value.wrapping_mul(TENS[count]).wrapping_add(number), count)
}

/// Add up to sixteen digits to a value; returns it, and their number.
#[inline(always)]
fn add_sixteen(data: &[u8], at: usize, value: u64) -> (u64, usize) {
    match add_eight(data, at, value) {
        (value, 8) => {
            let (value, count) = add_eight(data, at + 8, value);
            (value, 8 + count)
        }
        found => found,
    }
}

/// The end of digits.
#[inline]
fn digits_end(data: &[u8], mut at: usize) -> usize {
    while let Some((_, count)) = eight(data, at) {
        at += count;
        if count < 8 {
            return at;
        }
    }
    while let Some(b'0'..=b'9') = data.get(at) {
        at += 1;
    }
    at
}

/// A number in JSON's grammar, without a sign; None if it has too many digits before the point.
#[inline(always)]
fn decimal(data: &[u8], start: usize) -> Option<Decimal> {
    let (whole, len) = match (data.get(start)?, data.get(start + 1)) {
        (digit @ b'0'..=b'9', Some(b'.')) => (u64::from(digit - b'0'), 1),
        _ => add_sixteen(data, start, 0),
    };
    let mut found = Decimal {
        mantissa: whole,
        power: 0,
        is_cut: false,
        end: start + len,
    };
    if len == 0 || len == 16 || len > 1 && data[start] == b'0' {
        return None;
    }
    if data.get(found.end) == Some(&b'.') {
        let from = found.end + 1;
        let (mantissa, count) = add_sixteen(data, from, whole);
        if count == 0 || len + count > MOST_DIGITS {
            return None;
        }
        (found.mantissa, found.end) = (mantissa, from + count);
        found.power = -i64::try_from(count).ok()?;
        if count == 16 {
            // Not `found.end`, which is known later.
            found.end = digits_end(data, from + 16);
            found.is_cut = found.end > from + 16;
        }
    }
    if let Some(b'e' | b'E') = data.get(found.end) {
        let sign = data.get(found.end + 1);
        let from = found.end + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
        let (value, count) = add_eight(data, from, 0);
        if count == 0 || count == 8 {
            return None;
        }
        let value = i64::try_from(value).ok()?;
        found.power += if sign == Some(&b'-') { -value } else { value };
        found.end = from + count;
    }
    Some(found)
}

/// The end of a number that [`float`] can read.
#[inline(always)]
pub fn number_end(data: &[u8], at: usize) -> Option<usize> {
    match eight(data, at) {
        // Few digits, by far the most frequent.
        Some((_, count @ 1..8))
            if (count == 1 || data[at] != b'0') && !b".eE".contains(&data[at + count]) =>
        {
            Some(at + count)
        }
        _ => any_number_end(data, at),
    }
}

fn any_number_end(data: &[u8], at: usize) -> Option<usize> {
    let is_negative = data.get(at) == Some(&b'-');
    decimal(data, at + usize::from(is_negative)).map(|number| number.end)
}

/// A token id, and its end.
#[inline(always)]
pub fn id(data: &[u8], at: usize) -> Option<(i32, usize)> {
    let (value, count) = add_sixteen(data, at, 0);
    let is_number = count == 1 || count > 1 && count <= 10 && data[at] != b'0';
    let end = at + count;
    let is_whole = !matches!(data.get(end), Some(b'.' | b'e' | b'E'));
    let value = i32::try_from(value).ok()?;
    (is_number && is_whole).then_some((value, end))
}

/// A number as the float32 nearest to the float64 nearest to it, and its end.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "rounded as float64, then as float32"
)]
#[inline(always)]
pub fn float(data: &[u8], at: usize) -> Option<(f32, usize)> {
    let is_negative = data.get(at) == Some(&b'-');
    let number = decimal(data, at + usize::from(is_negative))?;
    let power = POWERS.get(usize::try_from(number.power - LEAST).ok()?)?;
    let value = number.mantissa as f64 * power;
    let more = if number.is_cut { *power } else { 0.0 };
    // The nearest float64 lies between the two, so it is rounded as they are, if alike.
    let (least, most) = (value * (1.0 - ERROR), (value + more) * (1.0 + ERROR));
    let value = least as f32;
    let is_exact = value.to_bits() == (most as f32).to_bits();
    is_exact.then_some((if is_negative { -value } else { value }, number.end))
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
