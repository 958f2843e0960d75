//! Checks of values in their own number types. Conversions are tested in Python.

use fastcollate::{Check, Dtype, Element, bf16, f16};

#[test]
fn indices_are_compared_in_their_own_type() {
    fn is_index<T: Element>(value: T, limit: i64) -> bool {
        T::first_wrong(&[value], Check::Index(limit)).is_none()
    }
    assert!(is_index(u8::MAX, 256) && is_index(u8::MAX, i64::MAX) && !is_index(u8::MAX, 255));
    assert!(is_index(i16::MAX, 1 << 15) && !is_index(i16::MAX, 1 << 14));
    assert!(is_index(0_i32, 1) && !is_index(0_i32, 0));
    assert!(is_index(-1_i32, i64::MAX) && !is_index(-2_i32, i64::MAX)); // -1: fewer were chosen
    assert!(is_index(true, 2) && !is_index(true, 1) && is_index(false, 1));
}

/// What fails a check of floats, one by one.
fn is_wrong(value: f64, check: Check) -> bool {
    match check {
        Check::Number => value.is_nan(),
        Check::Weight => value.is_nan() || value < 0.0 || value == f64::INFINITY,
        Check::Whole(dtype) => {
            let range = dtype.whole_weights();
            value.trunc() != value || value < 0.0 || value > *range.end() as f64
        }
        Check::None | Check::Index(_) => false,
    }
}

fn find_wrong<T: Element + Into<f64>>(values: &[T]) {
    let whole = [Dtype::Bool, Dtype::U8, Dtype::I32, Dtype::I64].map(Check::Whole);
    for check in [Check::None, Check::Number, Check::Weight].into_iter().chain(whole) {
        let expected = values.iter().position(|&value| is_wrong(value.into(), check));
        assert_eq!(T::first_wrong(values, check), expected, "{check:?} of {values:?}");
    }
}

#[test]
fn the_first_wrong_float_is_found_wherever_it_is() {
    let exact = (1_u64 << 53) as f64;
    let edges = [-0.0, 0.5, -1.0, f64::MIN_POSITIVE, -f64::MIN_POSITIVE, f64::MAX, f64::INFINITY];
    let edges = edges.into_iter().chain([f64::NEG_INFINITY, f64::NAN, -f64::NAN, 255.0, 256.0]);
    let whole = [exact / 2.0 - 0.5, exact / 2.0 + 1.0, exact - 1.0, exact, exact + 2.0, 1e18, 1e19];
    for edge in edges.chain(whole).chain([2_147_483_647.0, 2_147_483_648.0, 1.0]) {
        for len in [1, 2, 7, 64, 100] {
            for place in [0, len / 2, len - 1] {
                let mut values = vec![1.0; len];
                values[place] = edge;
                find_wrong(&values);
                find_wrong(&values.iter().map(|&value| value as f32).collect::<Vec<_>>());
                find_wrong(&values.iter().map(|&value| f16::from_f64(value)).collect::<Vec<_>>());
                find_wrong(&values.iter().map(|&value| bf16::from_f64(value)).collect::<Vec<_>>());
            }
        }
    }
}
