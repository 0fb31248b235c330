//! Norms: sums of powers of absolute values, in f64.
//!
//! The order of the additions is fixed. There are [`LANES`] partial sums (lanes): lane i adds the
//! elements i, i + LANES, i + 2 LANES, and so on. At the end, the lanes are added in order. A
//! result thus depends only on the elements.

use super::element::Element;
use super::float_mode::with_default_float_mode;
use super::minifloat::{Bf16, F8E4M3, F8E5M2, F16};
use crate::base::buffer::Src;
use crate::base::dtype::DataType;

/// The number of partial sums. They are independent, so the compiler can vectorise the loop.
const LANES: usize = 8;

/// The power of the absolute values that [`sum_of_powers`] sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormPower {
    /// The absolute values.
    One,
    /// The squares.
    Two,
    /// The absolute values to the power of this exponent.
    Any(f64),
    /// The largest absolute value instead of a sum, or NaN if an element is NaN.
    Largest,
}

/// Returns the sum of powers of the absolute values of all elements, or 0 if there are no elements.
/// The absolute value of a complex number is its distance from zero.
///
/// # Panics
/// If the length is not a multiple of the element size, or `dtype` is not a floating-point type.
pub fn sum_of_powers(dtype: DataType, power: NormPower, src: Src<'_>) -> f64 {
    assert!(src.len().is_multiple_of(dtype.size()), "{} bytes of {dtype}", src.len());
    with_default_float_mode(|| match dtype {
        DataType::F16 => sum_real::<F16, _>(power, src, f64::from),
        DataType::Bf16 => sum_real::<Bf16, _>(power, src, f64::from),
        DataType::F8E4M3 => sum_real::<F8E4M3, _>(power, src, f64::from),
        DataType::F8E5M2 => sum_real::<F8E5M2, _>(power, src, f64::from),
        DataType::F32 => sum_real::<f32, _>(power, src, f64::from),
        DataType::F64 => sum_real::<f64, _>(power, src, |value| value),
        // The square of the absolute value of a complex number is the sum of the squares of its two
        // parts.
        DataType::C64 if power == NormPower::Two => sum_real::<f32, _>(power, src, f64::from),
        DataType::C128 if power == NormPower::Two => sum_real::<f64, _>(power, src, |value| value),
        DataType::C64 => sum_complex::<f32, _>(power, src, f64::from),
        DataType::C128 => sum_complex::<f64, _>(power, src, |value| value),
        _ => panic_not_float(dtype),
    })
}

#[cold]
#[allow(clippy::panic, reason = "callers check the type first")]
fn panic_not_float(dtype: DataType) -> ! {
    panic!("a norm of {dtype} elements, and the caller did not check")
}

/// Returns the element with this index.
#[inline(always)]
fn load<E: Element>(src: Src<'_>, index: usize) -> E::Acc {
    let address = src.as_ptr().cast::<E::Stored>().wrapping_add(index);
    // SAFETY: callers pass an index below the number of whole elements in the view. The view is
    // readable by the obligation of its constructor. Every bit pattern is a value, and no alignment
    // is needed.
    E::load(unsafe { address.read_unaligned() })
}

fn sum_real<E: Element, W: Fn(E::Acc) -> f64>(power: NormPower, src: Src<'_>, widen: W) -> f64 {
    let count = src.len() / size_of::<E::Stored>();
    sum_absolute_powers(power, count, |index| widen(load::<E>(src, index)).abs())
}

fn sum_complex<E: Element, W: Fn(E::Acc) -> f64>(power: NormPower, src: Src<'_>, widen: W) -> f64 {
    let count = src.len() / size_of::<E::Stored>() / 2;
    let part = |index: usize| widen(load::<E>(src, index));
    sum_absolute_powers(power, count, |index| part(2 * index).hypot(part(2 * index + 1)))
}

#[inline(always)]
fn sum_absolute_powers(power: NormPower, count: usize, absolute: impl Fn(usize) -> f64) -> f64 {
    let sum = |a: f64, b: f64| a + b;
    match power {
        NormPower::One => accumulate_in_lanes(count, absolute, sum),
        NormPower::Two => {
            accumulate_in_lanes(count, |index| absolute(index) * absolute(index), sum)
        }
        NormPower::Any(exponent) => {
            accumulate_in_lanes(count, |index| absolute(index).powf(exponent), sum)
        }
        NormPower::Largest => accumulate_in_lanes(count, absolute, larger),
    }
}

/// Returns the larger of two values, or NaN if either value is NaN.
#[inline(always)]
fn larger(largest: f64, value: f64) -> f64 {
    if largest.is_nan() || value <= largest { largest } else { value }
}

#[inline(always)]
fn accumulate_in_lanes(
    count: usize,
    element: impl Fn(usize) -> f64,
    add: impl Fn(f64, f64) -> f64,
) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let whole = count - count % LANES;
    for begin in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum = add(*sum, element(begin + lane));
        }
    }
    for index in whole..count {
        lanes[index % LANES] = add(lanes[index % LANES], element(index));
    }
    lanes.into_iter().fold(0.0, add)
}

#[cfg(test)]
#[allow(clippy::host_endian_bytes, reason = "elements have the byte order of the host")]
mod tests {
    use super::*;

    fn sum<T: Copy, const N: usize>(
        dtype: DataType,
        power: NormPower,
        values: &[T],
        bytes: impl Fn(T) -> [u8; N],
    ) -> f64 {
        let bytes: Vec<u8> = values.iter().flat_map(|&value| bytes(value)).collect();
        sum_of_powers(dtype, power, Src::from(&bytes[..]))
    }

    #[test]
    fn norms_of_every_float_type_are_correct() {
        let values = [3.0_f32, -4.0, 0.5, -0.25, 12.0, 0.0, -1.0, 2.0, 1.5, -8.0];
        let expected = |power: NormPower| -> f64 {
            let absolute = values.iter().map(|value| f64::from(value.abs()));
            match power {
                NormPower::One => absolute.sum(),
                NormPower::Two => absolute.map(|value| value * value).sum(),
                NormPower::Any(exponent) => absolute.map(|value| value.powf(exponent)).sum(),
                NormPower::Largest => absolute.fold(0.0, f64::max),
            }
        };
        for power in [NormPower::One, NormPower::Two, NormPower::Any(3.0), NormPower::Largest] {
            let close = |found: f64| (found - expected(power)).abs() <= 1e-9 * expected(power);
            assert!(close(sum(DataType::F32, power, &values, f32::to_ne_bytes)));
            assert!(close(sum(DataType::F64, power, &values, |v| f64::from(v).to_ne_bytes())));
            let half = |v: f32| half::f16::from_f32(v).to_ne_bytes();
            assert!(close(sum(DataType::F16, power, &values, half)));
            let brain = |v: f32| half::bf16::from_f32(v).to_ne_bytes();
            assert!(close(sum(DataType::Bf16, power, &values, brain)));
        }
    }

    #[test]
    fn complex_norms_use_absolute_values() {
        let values = [3.0_f32, 4.0, -6.0, 8.0];
        let of = |power| sum(DataType::C64, power, &values, f32::to_ne_bytes);
        assert_eq!(
            (of(NormPower::One), of(NormPower::Two), of(NormPower::Largest)),
            (15.0, 125.0, 10.0)
        );
    }

    #[test]
    fn empty_norm_is_zero_and_nan_propagates() {
        for power in [NormPower::One, NormPower::Two, NormPower::Any(0.5), NormPower::Largest] {
            assert_eq!(sum_of_powers(DataType::F32, power, Src::empty()), 0.0);
            for nan_index in [0, 7, 8, 20] {
                let mut values = [1.0_f64; 21];
                values[nan_index] = f64::NAN;
                assert!(sum(DataType::F64, power, &values, f64::to_ne_bytes).is_nan(), "{power:?}");
                values[nan_index] = f64::NEG_INFINITY;
                assert_eq!(sum(DataType::F64, power, &values, f64::to_ne_bytes), f64::INFINITY);
            }
        }
    }
}
