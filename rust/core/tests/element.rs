//! Conversion of values between number types.

use fastcollate::{Binary, Check, Dtype, Element, Slice, bf16, f16};

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
fn narrow_integers_refuse_what_they_cut_off() {
    let mut out = [0; 2];
    let limit = i64::from(i32::MAX);
    i32::read(&Slice::I64(&[limit, -limit - 1]), 0, &mut out).unwrap();
    assert_eq!(out, [i32::MAX, i32::MIN]);
    for slice in [
        Slice::I64(&[1, limit + 1]),
        Slice::I64(&[1, -limit - 2]),
        Slice::U32(&[1, u32::MAX]),
        Slice::U64(&[1, 1 << 31]),
    ] {
        assert_eq!(i32::read(&slice, 0, &mut out).unwrap_err().position, 1);
    }
}

#[test]
fn half_precision_rounds_float32_to_nearest_even() {
    let mut out = [bf16::ZERO; 4];
    // bfloat16 has 8 bits: 257 is halfway between 256 and 258, 259 between 258 and 260.
    bf16::read(&Slice::F64(&[257.0, 259.0, 1e300, -0.0]), 0, &mut out).unwrap();
    assert_eq!(out.map(f32::from), [256.0, 260.0, f32::INFINITY, 0.0]);
    assert!(!out[3].is_zero());
    let mut out = [f16::ZERO; 3];
    f16::read(&Slice::I32(&[2_049, 2_051, 1 << 20]), 0, &mut out).unwrap();
    assert_eq!(out.map(f32::from), [2_048.0, 2_052.0, f32::INFINITY]);
}

#[test]
fn doubles_keep_all_bits() {
    let mut out = [0.0; 2];
    f64::read(&Slice::F64(&[1.0 + f64::EPSILON, 1e300]), 0, &mut out).unwrap();
    assert_eq!(out, [1.0 + f64::EPSILON, 1e300]);
    f64::read(&Slice::I64(&[(1 << 53) - 1, i64::MIN]), 0, &mut out).unwrap();
    assert_eq!(out, [9_007_199_254_740_991.0, -9_223_372_036_854_775_808.0]);
    f64::read(&Slice::U64(&[u64::MAX, 1 << 63]), 0, &mut out).unwrap();
    assert_eq!(
        out,
        [18_446_744_073_709_551_616.0, 9_223_372_036_854_775_808.0]
    );
    f64::read(&Slice::F32(&[0.1, -0.0]), 0, &mut out).unwrap();
    assert_eq!(
        out.map(f64::to_bits),
        [f64::from(0.1_f32), -0.0].map(f64::to_bits)
    );
}

#[test]
fn floats_round_once_to_nearest_even() {
    let mut out = [0.0; 3];
    // 2^24 + 1 and 2^24 + 3 are each halfway between two floats; both round to the even one.
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
    for check in [Check::None, Check::Number, Check::Weight]
        .into_iter()
        .chain(whole)
    {
        let expected = values
            .iter()
            .position(|&value| is_wrong(value.into(), check));
        assert_eq!(
            T::first_wrong(values, check),
            expected,
            "{check:?} of {values:?}"
        );
    }
}

#[test]
fn the_first_wrong_float_is_found_wherever_it_is() {
    let exact = (1_u64 << 53) as f64;
    let edges = [
        -0.0,
        0.5,
        -1.0,
        f64::MIN_POSITIVE,
        -f64::MIN_POSITIVE,
        f64::MAX,
        f64::INFINITY,
    ];
    let edges = edges
        .into_iter()
        .chain([f64::NEG_INFINITY, f64::NAN, -f64::NAN, 255.0, 256.0]);
    let whole = [
        exact / 2.0 - 0.5,
        exact / 2.0 + 1.0,
        exact - 1.0,
        exact,
        exact + 2.0,
        1e18,
        1e19,
    ];
    for edge in edges
        .chain(whole)
        .chain([2_147_483_647.0, 2_147_483_648.0, 1.0])
    {
        for len in [1, 2, 7, 64, 100] {
            for place in [0, len / 2, len - 1] {
                let mut values = vec![1.0; len];
                values[place] = edge;
                find_wrong(&values);
                find_wrong(&values.iter().map(|&value| value as f32).collect::<Vec<_>>());
                find_wrong(
                    &values
                        .iter()
                        .map(|&value| f16::from_f64(value))
                        .collect::<Vec<_>>(),
                );
                find_wrong(
                    &values
                        .iter()
                        .map(|&value| bf16::from_f64(value))
                        .collect::<Vec<_>>(),
                );
            }
        }
    }
}

#[test]
fn upper_bounds_have_the_bits_of_the_largest_value() {
    assert_eq!(Slice::I32(&[5, 2, 0]).upper_bound(), Some(7));
    assert_eq!(Slice::U16(&[256, 3]).upper_bound(), Some(259));
    assert_eq!(Slice::I64(&[5, -1]).upper_bound(), Some(i128::MAX));
    assert_eq!(Slice::I64(&[]).upper_bound(), None);
}

#[test]
fn only_empty_float_rows_pass_as_integers() {
    assert!(!i64::accepts(&Slice::F32(&[1.0])));
    assert!(i64::accepts(&Slice::F64(&[])));
    i64::read(&Slice::F64(&[]), 0, &mut []).unwrap();
}
