//! Tests of the small floats' conversions against the oracle. Widening is tested for every code.
//! Narrowing is tested for every upper half of an f32, combined with the lower halves that decide
//! the rounding.

use super::super::element::{Element, Numeric};
use super::super::minifloat::{Bf16, F8E4M3, F8E5M2, F16};
use super::super::ordered_codes::{OrderedForMax, OrderedForMin};
use super::oracle;
use crate::base::dtype::DataType;

/// The tested lower halves of an f32. For 8-bit formats and bf16, the only relevant question is
/// whether the lower half is zero. For f16, which drops the lowest 13 bits, its other bits are
/// relevant too.
const LOWER: [u32; 10] = [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0xffff];

fn check<E>(dtype: DataType)
where
    E: Element<Acc = f32>,
    E::Stored: TryFrom<u64> + Into<u64>,
{
    let stored = |code: u64| E::Stored::try_from(code).ok().unwrap();
    for code in 0..1u64 << (8 * dtype.size()) {
        let value = E::load(stored(code));
        let want = oracle::decode(dtype, code);
        assert_eq!(value.is_nan(), want.is_nan(), "{dtype} {code:#x}");
        if !value.is_nan() {
            assert_eq!(value.to_bits(), want.to_bits(), "{dtype} {code:#x}");
            assert_eq!(E::store(value).into(), code, "{dtype} {code:#x} does not round-trip");
        }
    }
    for upper in 0..=0xffffu32 {
        for lower in LOWER {
            let value = f32::from_bits(upper << 16 | lower);
            let (code, want) = (E::store(value).into(), oracle::encode(dtype, value));
            assert!(code == want, "{dtype} of {value:e}: {code:#x}, not {want:#x}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "a test of every value takes too long under Miri")]
fn f16_is_exact() {
    check::<F16>(DataType::F16);
}

#[test]
#[cfg_attr(miri, ignore = "a test of every value takes too long under Miri")]
fn bf16_is_exact() {
    check::<Bf16>(DataType::Bf16);
}

#[test]
#[cfg_attr(miri, ignore = "a test of every value takes too long under Miri")]
fn f8e4m3_is_exact() {
    check::<F8E4M3>(DataType::F8E4M3);
}

#[test]
#[cfg_attr(miri, ignore = "a test of every value takes too long under Miri")]
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

/// Checks MIN and MAX for all pairs of a code and an element of `codes`: the result on the ordered
/// integers must be equal to the result on the numbers.
fn check_order<E, K: Numeric>(codes: &[u64], last: u64)
where
    E: Element<Acc = f32>,
    E::Stored: TryFrom<u64> + Into<u64>,
    OrderedForMin<E>: Element<Stored = E::Stored, Acc = K>,
    OrderedForMax<E>: Element<Stored = E::Stored, Acc = K>,
{
    let stored = |code: u64| E::Stored::try_from(code).ok().unwrap();
    for one in 0..=last {
        for &other in codes {
            let (a, b) = (E::load(stored(one)), E::load(stored(other)));
            let low = |code| OrderedForMin::<E>::load(stored(code));
            let high = |code| OrderedForMax::<E>::load(stored(code));
            let least = OrderedForMin::<E>::store(low(one).lesser(low(other)));
            let greatest = OrderedForMax::<E>::store(high(one).greater(high(other)));
            let found = (least.into(), greatest.into());
            let want = (E::store(a.lesser(b)).into(), E::store(a.greater(b)).into());
            assert_eq!(found, want, "{one:#x} and {other:#x}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "a test of every value takes too long under Miri")]
fn min_and_max_of_codes_match_those_of_numbers() {
    let all: Vec<u64> = (0..=0xff).collect();
    check_order::<F8E4M3, i8>(&all, 0xff);
    check_order::<F8E5M2, i8>(&all, 0xff);
    // The codes are the zeros, the smallest and largest numbers, infinities, the first and the last
    // NaN, with both signs.
    let both = |codes: [u64; 8]| codes.map(|code| [code, code | 0x8000]).concat();
    let f16 = both([0, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0x7c01, 0x7fff]);
    check_order::<F16, i16>(&f16, 0xffff);
    let bf16 = both([0, 1, 0x7f, 0x80, 0x7f7f, 0x7f80, 0x7f81, 0x7fff]);
    check_order::<Bf16, i16>(&bf16, 0xffff);
}

/// Tests of the vector conversions. For every code, and for every f32 that decides a rounding, the
/// result must be equal to the result of the scalar conversion.
#[cfg(target_arch = "x86_64")]
mod vector_conversions {
    use super::super::super::f32x8::{F32x8, LANES, SmallFloatX8};
    use super::super::super::table::Isa;
    use super::*;

    fn check<E, S>()
    where
        E: Element<Acc = f32, Stored = S>,
        S: Copy + TryFrom<u64> + PartialEq + std::fmt::Debug,
        SmallFloatX8<E>: Element<Stored = [S; LANES], Acc = F32x8>,
    {
        if Isa::best() != Isa::Avx2 {
            return;
        }
        let last = (1u64 << (8 * size_of::<S>())) - 1;
        for first in (0..=last).step_by(LANES) {
            let codes: [S; LANES] =
                std::array::from_fn(|i| S::try_from(first + i as u64).ok().unwrap());
            let values: [f32; LANES] = SmallFloatX8::<E>::load(codes).into();
            let one_by_one = codes.map(E::load);
            assert_eq!(values.map(f32::is_nan), one_by_one.map(f32::is_nan), "{codes:?}");
            let bits = |v: f32| if v.is_nan() { 0 } else { v.to_bits() };
            assert_eq!(values.map(bits), one_by_one.map(bits), "{codes:?}");
        }
        for upper in (0..=0xffffu32).step_by(LANES) {
            for lower in LOWER {
                let value =
                    |i: usize| f32::from_bits((upper + u32::try_from(i).unwrap()) << 16 | lower);
                let values: [f32; LANES] = std::array::from_fn(value);
                assert_eq!(
                    SmallFloatX8::<E>::store(values.into()),
                    values.map(E::store),
                    "{values:?}"
                );
            }
        }
    }

    #[test]
    fn vector_conversion_matches_scalar_conversion() {
        check::<F16, u16>();
        check::<Bf16, u16>();
        check::<F8E4M3, u8>();
        check::<F8E5M2, u8>();
    }
}
