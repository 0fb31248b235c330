//! The conversions of the small floats against the oracle: every code, and for every upper half of
//! an f32 the lower halves that decide a rounding.

use super::super::element::Element;
use super::super::minifloat::{Bf16, F8E4M3, F8E5M2, F16};
use super::oracle;
use crate::base::dtype::DataType;

/// Lower halves of an f32: for 8-bit formats and bf16 they only say whether something follows; f16
/// drops the lowest 13 bits.
const LOWER: [u32; 10] = [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0xffff];

/// One of how many values is tried: all, but not by an interpreter.
const STEP: usize = if cfg!(miri) { 509 } else { 1 };

fn check<E>(dtype: DataType)
where
    E: Element<Acc = f32>,
    E::Stored: TryFrom<u64> + Into<u64>,
{
    let stored = |code: u64| E::Stored::try_from(code).ok().unwrap();
    for code in (0..1u64 << (8 * dtype.size())).step_by(STEP) {
        let value = E::load(stored(code));
        let want = oracle::decode(dtype, code);
        assert_eq!(value.is_nan(), want.is_nan(), "{dtype} {code:#x}");
        if !value.is_nan() {
            assert_eq!(value.to_bits(), want.to_bits(), "{dtype} {code:#x}");
            assert_eq!(E::store(value).into(), code, "{dtype} {code:#x} comes back");
        }
    }
    for upper in (0..=0xffffu32).step_by(STEP) {
        for lower in LOWER {
            let value = f32::from_bits(upper << 16 | lower);
            let (code, want) = (E::store(value).into(), oracle::encode(dtype, value));
            assert!(code == want, "{dtype} of {value:e}: {code:#x}, not {want:#x}");
        }
    }
}

#[test]
fn f16_is_exact() {
    check::<F16>(DataType::F16);
}

#[test]
fn bf16_is_exact() {
    check::<Bf16>(DataType::Bf16);
}

#[test]
fn f8e4m3_is_exact() {
    check::<F8E4M3>(DataType::F8E4M3);
}

#[test]
fn f8e5m2_is_exact() {
    check::<F8E5M2>(DataType::F8E5M2);
}

#[test]
fn float8_beyond_the_largest_number() {
    let e4m3 = [448.0, 463.9, 464.0, 1e30, f32::INFINITY].map(F8E4M3::store);
    assert_eq!(e4m3, [0x7e; 5]);
    let e5m2 = [57344.0, 61440.0, 1e30].map(F8E5M2::store);
    assert_eq!(e5m2, [0x7b; 3]);
    assert_eq!(F8E5M2::store(f32::NEG_INFINITY), 0xfc);
    assert_eq!(F8E4M3::store(f32::NEG_INFINITY), 0xfe);
    assert_eq!(F8E4M3::store(-f32::NAN), 0x7f);
}
