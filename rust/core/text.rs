//! Numbers in messages.

/// An integer with commas: `1,500`.
pub fn grouped(number: usize) -> String {
    with_commas(&number.to_string())
}

/// A count with its noun: `1 row`, `1,500 rows`.
pub fn counted(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(number))
}

/// A float with at most 15 digits, and commas: `196,672`, `0.5`, `1e+20`.
pub fn grouped_float(number: f64) -> String {
    with_commas(&plain_float(number))
}

/// A float with at most 15 digits: `196672`, `0.5`, `1e+20`.
pub fn plain_float(number: f64) -> String {
    const DIGITS: i32 = 15;
    if !number.is_finite() || number == 0.0 {
        return number.to_string();
    }
    let rounded = format!("{number:.14e}");
    let (mantissa, exponent) = rounded.split_once('e').unwrap_or((&rounded, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..DIGITS).contains(&exponent) {
        let mantissa = trimmed(mantissa);
        return format!("{mantissa}e{exponent:+03}");
    }
    let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{number:.decimals$}")).to_owned()
}

/// Without trailing zeros of the decimals.
fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

fn with_commas(number: &str) -> String {
    let end = number.find(['.', 'e']).unwrap_or(number.len());
    let (integer, rest) = number.split_at(end);
    let mut grouped = String::new();
    for (index, digit) in integer.chars().enumerate() {
        if index > 0 && (integer.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        assert_eq!(counted(1, "row"), "1 row");
        assert_eq!(counted(0, "row"), "0 rows");
        assert_eq!(counted(1_500_000, "token"), "1,500,000 tokens");
        assert_eq!(grouped(999), "999");
        for (number, plain, grouped) in [
            (196_672.0, "196672", "196,672"),
            (1e14, "100000000000000", "100,000,000,000,000"),
            (1e15, "1e+15", "1e+15"),
            (1.25e20, "1.25e+20", "1.25e+20"),
            (0.1, "0.1", "0.1"),
            (0.1 + 0.2, "0.3", "0.3"),
            (1_234.5, "1234.5", "1,234.5"),
            (0.000_1, "0.0001", "0.0001"),
            (0.000_012_5, "1.25e-05", "1.25e-05"),
            (999_999_999_999_999.9, "1e+15", "1e+15"),
            (2.0_f64.powi(63), "9.22337203685478e+18", "9.22337203685478e+18"),
        ] {
            assert_eq!(plain_float(number), plain);
            assert_eq!(grouped_float(number), grouped);
        }
    }
}
