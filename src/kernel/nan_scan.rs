//! The scan of a vector for elements that a check rejects: either NaN, or all values that are not
//! finite.
//!
//! The scan compares bits. Without the sign bit, the bits of a NaN or an infinity, read as an
//! integer, are larger than the bits of every finite number.

use crate::base::buffer::Src;
use crate::base::dtype::DataType;
use crate::base::nan_check::NanCheck;

/// The number of elements that are checked together. Only if a block contains a rejected element,
/// the scan searches for its index.
const BLOCK_ELEMENTS: usize = 256;

/// Returns the index of the first element that the check rejects, or `None`. A complex number is
/// rejected if its real or its imaginary part is rejected. The function returns `None` for types
/// that are not floating-point types.
///
/// # Panics
/// If the length is not a multiple of the element size.
pub fn find_rejected_element(dtype: DataType, check: NanCheck, src: Src<'_>) -> Option<usize> {
    assert!(src.len().is_multiple_of(dtype.size()), "{} bytes of {dtype}", src.len());
    let finite = match check {
        NanCheck::Off => return None,
        NanCheck::RejectNan => false,
        NanCheck::RejectNonFinite => true,
    };
    // The limit is the smallest rejected bit pattern without the sign. It is infinity if infinities
    // are rejected, otherwise the pattern after infinity.
    let part = match dtype {
        DataType::F16 => find_at_or_above::<u16>(src, 0x7c01 - u16::from(finite)),
        DataType::Bf16 => find_at_or_above::<u16>(src, 0x7f81 - u16::from(finite)),
        DataType::F32 | DataType::C64 => {
            find_at_or_above::<u32>(src, 0x7f80_0001 - u32::from(finite))
        }
        DataType::F64 | DataType::C128 => {
            find_at_or_above::<u64>(src, 0x7ff0_0000_0000_0001 - u64::from(finite))
        }
        // This type has no infinity.
        DataType::F8E4M3 => find_at_or_above::<u8>(src, 0x7f),
        DataType::F8E5M2 => find_at_or_above::<u8>(src, 0x7d - u8::from(finite)),
        DataType::I8
        | DataType::U8
        | DataType::I16
        | DataType::U16
        | DataType::I32
        | DataType::U32
        | DataType::I64
        | DataType::U64
        | DataType::Bool => None,
    };
    part.map(|part| if dtype.is_complex() { part / 2 } else { part })
}

/// The bits of a floating-point number.
trait FloatBits: Copy + Ord {
    fn without_sign(self) -> Self;
}

macro_rules! bits {
    ($($word:ty)*) => {$(
        impl FloatBits for $word {
            #[inline(always)]
            fn without_sign(self) -> Self {
                self & (Self::MAX >> 1)
            }
        }
    )*};
}

bits! { u8 u16 u32 u64 }

/// Returns the index of the first word whose bits without the sign are at least `lowest`.
fn find_at_or_above<W: FloatBits>(src: Src<'_>, lowest: W) -> Option<usize> {
    let count = src.len() / size_of::<W>();
    let is_rejected = |index: usize| {
        let address = src.as_ptr().cast::<W>().wrapping_add(index);
        // SAFETY: the index is below the number of whole words in the view, which is readable by
        // the obligation of its constructor; no alignment is needed.
        let word = unsafe { address.read_unaligned() };
        word.without_sign() >= lowest
    };
    let mut start = 0;
    while start < count {
        let end = (start + BLOCK_ELEMENTS).min(count);
        // The loop checks all elements of the block, so that it vectorises.
        if (start..end).fold(false, |found, index| found | is_rejected(index)) {
            return (start..end).find(|&index| is_rejected(index));
        }
        start = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dtype: DataType, wanted: NanCheck, bytes: &[u8]) -> Option<usize> {
        find_rejected_element(dtype, wanted, Src::from(bytes))
    }

    /// Returns 1000 elements: `code` at one position, `one` at all others. The elements start at an
    /// odd offset.
    fn place_among_ones(one: &[u8], code: &[u8], at: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        for index in 0..1000 {
            bytes.extend(if index == at { code } else { one });
        }
        bytes
    }

    #[test]
    fn first_nan_of_every_type_is_found() {
        let half = |bits: u16| bits.to_le_bytes().to_vec();
        // Each case contains one, NaN with either sign, infinity, and the largest finite number.
        let cases = [
            (
                DataType::F16,
                half(0x3c00),
                vec![half(0x7e00), half(0xfc01)],
                half(0x7c00),
                half(0x7bff),
            ),
            (
                DataType::Bf16,
                half(0x3f80),
                vec![half(0x7fc0), half(0xff81)],
                half(0xff80),
                half(0x7f7f),
            ),
            (
                DataType::F32,
                1_f32.to_le_bytes().to_vec(),
                vec![f32::NAN.to_le_bytes().to_vec(), (-f32::NAN).to_le_bytes().to_vec()],
                f32::NEG_INFINITY.to_le_bytes().to_vec(),
                f32::MAX.to_le_bytes().to_vec(),
            ),
            (
                DataType::F64,
                1_f64.to_le_bytes().to_vec(),
                vec![f64::NAN.to_le_bytes().to_vec(), (-f64::NAN).to_le_bytes().to_vec()],
                f64::INFINITY.to_le_bytes().to_vec(),
                f64::MIN.to_le_bytes().to_vec(),
            ),
            (DataType::F8E5M2, vec![0x3c], vec![vec![0x7d], vec![0xff]], vec![0xfc], vec![0x7b]),
        ];
        for (dtype, one, nans, infinity, largest) in cases {
            for at in [0, 1, 255, 256, 700, 999] {
                for nan in &nans {
                    let bytes = place_among_ones(&one, nan, at);
                    for wanted in [NanCheck::RejectNan, NanCheck::RejectNonFinite] {
                        assert_eq!(found(dtype, wanted, &bytes[1..]), Some(at), "{dtype}");
                    }
                    assert_eq!(found(dtype, NanCheck::Off, &bytes[1..]), None);
                }
                let bytes = place_among_ones(&one, &infinity, at);
                assert_eq!(found(dtype, NanCheck::RejectNan, &bytes[1..]), None, "{dtype}");
                assert_eq!(
                    found(dtype, NanCheck::RejectNonFinite, &bytes[1..]),
                    Some(at),
                    "{dtype}"
                );
                let bytes = place_among_ones(&one, &largest, at);
                assert_eq!(found(dtype, NanCheck::RejectNonFinite, &bytes[1..]), None, "{dtype}");
            }
        }
        for code in 0..=u8::MAX {
            let is_nan = code & 0x7f == 0x7f;
            let place = found(DataType::F8E4M3, NanCheck::RejectNonFinite, &[0, code]);
            assert_eq!(place, is_nan.then_some(1), "{code:#x}");
        }
    }

    #[test]
    fn complex_number_counts_once_and_integers_never() {
        let mut bytes = vec![0; 64];
        bytes[36..40].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(found(DataType::C64, NanCheck::RejectNan, &bytes), Some(4));
        assert_eq!(found(DataType::F32, NanCheck::RejectNan, &bytes), Some(9));
        assert_eq!(found(DataType::I32, NanCheck::RejectNonFinite, &[0xff; 64]), None);
        assert_eq!(found(DataType::C128, NanCheck::RejectNonFinite, &[0xff; 64]), Some(0));
        assert_eq!(found(DataType::F64, NanCheck::RejectNonFinite, &[]), None);
    }
}
