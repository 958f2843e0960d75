//! Conversion of values between number types.

use fastcollate::{Binary, Check, Element, Slice, bf16, f16};

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
    assert!(is_index(0_i32, 1) && !is_index(0_i32, 0) && !is_index(-1_i32, i64::MAX));
    assert!(is_index(true, 2) && !is_index(true, 1) && is_index(false, 1));
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
