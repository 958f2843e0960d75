//! Numbers of JSON, read from bytes. What these functions cannot read is left to the parser.

/// Powers of ten that are exact as float64.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// Decimal digits of which any number fits 64 bits.
const MOST_DIGITS: usize = 19;

/// Relative error of a mantissa of 64 bits times or divided by an exact power of ten, rounded up.
const ERROR: f64 = 4.0 * f64::EPSILON;

/// A number as written: digits without point and sign, and the power of ten.
struct Decimal {
    is_negative: bool,
    mantissa: u64,
    power: i64,
    /// Number of digits of the mantissa.
    digits: usize,
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

/// Add digits to a value, up to eight at a time; returns it, wrapped, and the end.
#[inline(always)]
fn digits(data: &[u8], mut at: usize, mut value: u64) -> (u64, usize) {
    while let Some((values, count)) = eight(data, at) {
        if count > 0 {
            // Zeros come first; then digits become pairs, pairs fours, and fours the number.
            let word = values << (64 - 8 * count);
            let pairs = word.wrapping_mul(10).wrapping_add(word >> 8);
            let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
            let high = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
            let number = low.wrapping_add(high) >> 32;
            value = value.wrapping_mul(TENS[count]).wrapping_add(number);
            at += count;
        }
        if count < 8 {
            return (value, at);
        }
    }
    while let Some(digit @ b'0'..=b'9') = data.get(at) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        at += 1;
    }
    (value, at)
}

/// The end of digits.
#[inline]
fn digits_end(data: &[u8], mut at: usize) -> usize {
    while let Some(b'0'..=b'9') = data.get(at) {
        at += 1;
    }
    at
}

/// A number in JSON's grammar.
#[inline]
fn decimal(data: &[u8], at: usize) -> Option<Decimal> {
    let is_negative = data.get(at) == Some(&b'-');
    let start = at + usize::from(is_negative);
    let (mut mantissa, mut end) = match (data.get(start)?, data.get(start + 1)) {
        (digit @ b'0'..=b'9', Some(b'.')) => (u64::from(digit - b'0'), start + 1),
        _ => digits(data, start, 0),
    };
    let whole = end - start;
    if whole == 0 || whole > 1 && data[start] == b'0' {
        return None;
    }
    let mut fraction = 0;
    if data.get(end) == Some(&b'.') {
        let from = end + 1;
        (mantissa, end) = digits(data, from, mantissa);
        fraction = end - from;
        if fraction == 0 {
            return None;
        }
    }
    let mut power = 0;
    if let Some(b'e' | b'E') = data.get(end) {
        let sign = data.get(end + 1);
        let from = end + 1 + usize::from(matches!(sign, Some(b'+' | b'-')));
        let (value, after) = digits(data, from, 0);
        if after == from || after - from > 9 {
            return None;
        }
        power = i64::try_from(value).ok()?;
        if sign == Some(&b'-') {
            power = -power;
        }
        end = after;
    }
    Some(Decimal {
        is_negative,
        mantissa,
        power: power - i64::try_from(fraction).ok()?,
        digits: whole + fraction,
        end,
    })
}

/// The end of a number.
pub fn number_end(data: &[u8], at: usize) -> Option<usize> {
    let start = at + usize::from(data.get(at) == Some(&b'-'));
    let mut end = digits_end(data, start);
    if end == start || end > start + 1 && data[start] == b'0' {
        return None;
    }
    if data.get(end) == Some(&b'.') {
        let from = end + 1;
        end = digits_end(data, from);
        if end == from {
            return None;
        }
    }
    if let Some(b'e' | b'E') = data.get(end) {
        let from = end + 1 + usize::from(matches!(data.get(end + 1), Some(b'+' | b'-')));
        end = digits_end(data, from);
        if end == from {
            return None;
        }
    }
    Some(end)
}

/// A token id, and its end.
#[inline]
pub fn id(data: &[u8], at: usize) -> Option<(i32, usize)> {
    let (value, end) = digits(data, at, 0);
    let is_number = match end - at {
        0 => false,
        1 => true,
        len => len <= 10 && data[at] != b'0',
    };
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
pub fn float(data: &[u8], at: usize) -> Option<(f32, usize)> {
    let number = decimal(data, at)?;
    let exact = usize::try_from(number.power.unsigned_abs()).ok();
    let power = exact.and_then(|power| POWERS.get(power));
    if let Some(power) = power.filter(|_| number.digits <= MOST_DIGITS) {
        let value = match number.power < 0 {
            true => number.mantissa as f64 / power,
            false => number.mantissa as f64 * power,
        };
        // The nearest float64 lies between the two, so it is rounded as they are, if alike.
        let (least, most) = (value * (1.0 - ERROR), value * (1.0 + ERROR));
        if (least as f32).to_bits() == (most as f32).to_bits() {
            let value = least as f32;
            return Some((if number.is_negative { -value } else { value }, number.end));
        }
    }
    let text = std::str::from_utf8(&data[at..number.end]).ok()?;
    Some((text.parse::<f64>().ok()? as f32, number.end))
}

/// Add the token ids of an array that are written without spaces, or with one behind each comma;
/// returns the position of the first item that was not read, or of the array's end.
pub fn ids(data: &[u8], mut at: usize, out: &mut Vec<i32>) -> usize {
    while let Some((id, end)) = id(data, at) {
        match data.get(end) {
            Some(b',') => at = end + 1 + usize::from(data.get(end + 1) == Some(&b' ')),
            _ => return at,
        }
        out.push(id);
    }
    at
}
