//! Conversions between floating-point types. Every conversion goes through f32.
//!
//! Narrowing from f32 rounds once, to nearest, ties to even. A conversion from f64 loses the digits
//! that an f32 does not have.

use super::element::Element;
use super::float_mode::with_default_float_mode;
use super::minifloat::{Bf16, F16};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;

/// The number of elements that are converted at a time. The f32 values of these elements stay in
/// the cache.
const CHUNK_ELEMENTS: usize = 1024;

/// Returns whether the functions of this file support a type.
pub fn is_convertible(dtype: DataType) -> bool {
    matches!(dtype, DataType::F16 | DataType::Bf16 | DataType::F32 | DataType::F64)
}

/// Multiplies each element by a factor and converts the product to f32. The products are equal to
/// the products of [`scale_copy`](super::scale_copy) before they are rounded to `dtype`.
///
/// # Panics
/// If the lengths do not fit, or if the type is not convertible.
pub fn widen(dtype: DataType, factor: f64, src: Src<'_>, into: &mut [f32]) {
    assert!(src.len() == into.len() * dtype.size(), "{} bytes of {dtype}", src.len());
    with_default_float_mode(|| widen_in_default_mode(dtype, factor, src, into));
}

fn widen_in_default_mode(dtype: DataType, factor: f64, src: Src<'_>, into: &mut [f32]) {
    #[allow(clippy::cast_possible_truncation, reason = "factors of f32 are rounded, as documented")]
    let narrow = factor as f32;
    match dtype {
        DataType::F16 => load_all::<F16>(src, into, |value| value * narrow),
        DataType::Bf16 => load_all::<Bf16>(src, into, |value| value * narrow),
        DataType::F32 => load_all::<f32>(src, into, |value| value * narrow),
        #[allow(clippy::cast_possible_truncation, reason = "the narrowing conversion is intended")]
        DataType::F64 => load_all::<f64>(src, into, |value| (value * factor) as f32),
        _ => panic_unconvertible(dtype),
    }
}

/// Converts each f32 in `from` to the type `dtype`.
///
/// # Panics
/// If the lengths do not fit, or if the type is not convertible.
pub fn narrow(dtype: DataType, from: &[f32], dst: Dst<'_>) {
    assert!(dst.len() == from.len() * dtype.size(), "{} bytes of {dtype}", dst.len());
    with_default_float_mode(|| match dtype {
        DataType::F16 => store_all::<F16>(from, dst, |value| value),
        DataType::Bf16 => store_all::<Bf16>(from, dst, |value| value),
        DataType::F32 => store_all::<f32>(from, dst, |value| value),
        DataType::F64 => store_all::<f64>(from, dst, f64::from),
        _ => panic_unconvertible(dtype),
    });
}

/// Multiplies each element of `src`, which has the type `from`, by a factor, and converts the
/// product to the type `to`.
///
/// # Panics
/// As [`widen`] and [`narrow`].
pub fn convert(from: DataType, src: Src<'_>, factor: f64, to: DataType, dst: Dst<'_>) {
    let count = src.len() / from.size();
    let mut chunk = [0.0_f32; CHUNK_ELEMENTS];
    for begin in (0..count).step_by(CHUNK_ELEMENTS) {
        let len = CHUNK_ELEMENTS.min(count - begin);
        let piece = &mut chunk[..len];
        widen(from, factor, src.slice(begin * from.size(), len * from.size()), piece);
        narrow(to, piece, dst.slice(begin * to.size(), len * to.size()));
    }
}

#[cold]
#[allow(clippy::panic, reason = "callers check the type first")]
fn panic_unconvertible(dtype: DataType) -> ! {
    panic!("a conversion of {dtype} elements, and the caller did not check")
}

fn load_all<E: Element>(src: Src<'_>, into: &mut [f32], convert: impl Fn(E::Acc) -> f32) {
    for (index, value) in into.iter_mut().enumerate() {
        let address = src.as_ptr().cast::<E::Stored>().wrapping_add(index);
        // SAFETY: `index` is below the number of elements in the view, which is readable by the
        // obligation of its constructor. Every bit pattern is a value, and no alignment is needed.
        *value = convert(E::load(unsafe { address.read_unaligned() }));
    }
}

fn store_all<E: Element>(from: &[f32], dst: Dst<'_>, convert: impl Fn(f32) -> E::Acc) {
    for (index, &value) in from.iter().enumerate() {
        let address = dst.as_mut_ptr().cast::<E::Stored>().wrapping_add(index);
        // SAFETY: `index` is below the number of elements in the view, which is writable by the
        // obligation of its constructor. No alignment is needed.
        unsafe { address.write_unaligned(E::store(convert(value))) };
    }
}

#[cfg(test)]
#[allow(clippy::host_endian_bytes, reason = "elements have the byte order of the host")]
mod tests {
    use super::*;

    const VALUES: [f32; 6] = [0.0, 1.0, -2.5, 65504.0, 1.0e-7, 0.333_333_34];

    fn bytes_of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    #[test]
    fn convertible_values_round_trip() {
        for (dtype, tolerance) in [
            (DataType::F16, 5e-4),
            (DataType::Bf16, 4e-3),
            (DataType::F32, 0.0),
            (DataType::F64, 0.0),
        ] {
            let mut stored = vec![0; VALUES.len() * dtype.size()];
            let view = Dst::from(stored.as_mut_slice());
            narrow(dtype, &VALUES, view);
            let mut back = [0.0; VALUES.len()];
            widen(dtype, 2.0, view.as_src(), &mut back);
            for (value, back) in VALUES.iter().zip(back) {
                let error = (2.0 * value - back).abs();
                assert!(error <= tolerance * value.abs() + 1e-7, "{dtype}: {value} became {back}");
            }
        }
    }

    #[test]
    fn vector_of_several_chunks_round_trips() {
        let many: Vec<f32> = (0_u16..3000).map(f32::from).collect();
        let source = bytes_of(&many);
        let mut half = vec![0; many.len() * 2];
        let mut back = vec![0; many.len() * 4];
        let view = Dst::from(half.as_mut_slice());
        convert(DataType::F32, Src::from(&source[..]), 0.5, DataType::F16, view);
        convert(DataType::F16, view.as_src(), 2.0, DataType::F32, Dst::from(&mut back[..]));
        // The halves of these numbers have 12 digits; an f16 has 11 bits.
        let (words, _) = back.as_chunks::<4>();
        for (value, back) in many.iter().zip(words) {
            assert!((value - f32::from_ne_bytes(*back)).abs() <= value / 2048.0, "{value}");
        }
    }

    #[test]
    fn infinities_and_nan_stay() {
        let mut half = [0; 6];
        let view = Dst::from(&mut half[..]);
        narrow(DataType::F16, &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN], view);
        let mut back = [0.0; 3];
        widen(DataType::F16, 1.0, view.as_src(), &mut back);
        assert_eq!(back[..2], [f32::INFINITY, f32::NEG_INFINITY]);
        assert!(back[2].is_nan());
    }
}
