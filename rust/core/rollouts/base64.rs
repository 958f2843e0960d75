//! Base64, as bytes in JSON are written.

use crate::error::{Error, Result};

/// Marks bytes that are no digit.
const NONE: u8 = 0xff;

/// The values of digits, by byte.
const VALUES: [u8; 256] = {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut values = [NONE; 256];
    let mut digit = 0;
    while digit < 64 {
        values[digits[digit] as usize] = digit as u8;
        digit += 1;
    }
    values
};

/// Decode a text; None if it is not padded base64 of the standard alphabet.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn decode(text: &[u8]) -> Result<Option<Vec<u8>>> {
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return Ok(None);
    }
    let digits = &text[..text.len() - padding];
    let mut bytes = Vec::new();
    let most = text.len() / 4 * 3;
    bytes
        .try_reserve_exact(most)
        .map_err(|_| Error::NoMemory(format!("no memory for {most} bytes of base64")))?;
    let mut seen = 0;
    let (groups, rest) = digits.as_chunks::<4>();
    for group in groups {
        let [a, b, c, d] = group.map(|byte| VALUES[usize::from(byte)]);
        seen |= a | b | c | d;
        bytes.extend_from_slice(&[a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]);
    }
    if let [a, b, others @ ..] = rest {
        let [a, b] = [*a, *b].map(|byte| VALUES[usize::from(byte)]);
        let c = others.first().map_or(0, |&byte| VALUES[usize::from(byte)]);
        seen |= a | b | c;
        bytes.push(a << 2 | b >> 4);
        if !others.is_empty() {
            bytes.push(b << 4 | c >> 2);
        }
    }
    Ok((seen < 64).then_some(bytes))
}
