//! Tests of averages: values whose sum exceeds the type, sums of rounded values, and partial
//! averages.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the tests round to the type of an element on purpose"
)]

use super::*;

const FLOATS: [DataType; 8] = [
    DataType::F16,
    DataType::Bf16,
    DataType::F8E4M3,
    DataType::F8E5M2,
    DataType::F32,
    DataType::F64,
    DataType::C64,
    DataType::C128,
];

#[test]
#[cfg_attr(miri, ignore = "300 sources, in place at each, take too long under Miri")]
fn average_of_more_sources_than_the_type_can_count() {
    for dtype in [DataType::I8, DataType::U8] {
        for value in [1u8, 0x7f, 0x80, 0xff] {
            let inputs: Vec<Vec<u8>> =
                (0..300u16).map(|i| if i == 0 { vec![value; 40] } else { vec![0; 40] }).collect();
            check_fold(dtype, ReduceOp::Avg, &inputs[..128]);
            check_fold(dtype, ReduceOp::Avg, &inputs);
        }
    }
}

/// Returns the average of elements with these codes, on every instruction set and for vectors of
/// one and of several elements. All results must be equal.
fn average(dtype: DataType, codes: &[u64]) -> u64 {
    let size = dtype.size();
    let mut results = Vec::new();
    for count in [1, 67] {
        let inputs: Vec<Vec<u8>> =
            codes.iter().map(|&code| oracle::to_bytes(code, size).repeat(count)).collect();
        for isa in instruction_sets() {
            let kernel = table::fold_kernel(isa, dtype, ReduceOp::Avg).unwrap();
            let views: Vec<Src<'_>> = inputs.iter().map(|s| Src::from(&s[..])).collect();
            let mut target = UnalignedBuffer::new(&vec![0xa5; size * count], 1);
            let target_view = FoldTarget { dst: target.dst(), extra_dsts: &[] };
            // SAFETY: all views have the same length, of whole elements; this processor has `isa`.
            unsafe { kernel(target_view, &views, codes.len()) }
            results.extend(target.bytes().chunks(size).map(oracle::element_bits));
        }
    }
    results.dedup();
    assert_eq!(results.len(), 1, "{dtype} {codes:x?}");
    results[0]
}

#[test]
fn averages_of_large_floats_do_not_overflow() {
    // The largest finite numbers, of either sign. A power of two divides them without rounding.
    for (dtype, largest) in [
        (DataType::F16, 0x7bff),
        (DataType::Bf16, 0x7f7f),
        (DataType::F8E4M3, 0x7e),
        (DataType::F8E5M2, 0x7b),
        (DataType::F32, 0x7f7f_ffff),
        (DataType::F64, 0x7fef_ffff_ffff_ffff),
    ] {
        let negative = largest | 1 << (8 * dtype.size() - 1);
        for ranks in [1, 2, 4, 8, 64] {
            assert_eq!(average(dtype, &vec![largest; ranks]), largest, "{dtype} on {ranks}");
            assert_eq!(average(dtype, &vec![negative; ranks]), negative, "{dtype} on {ranks}");
        }
    }
    // Other divisors round, so these numbers are a little smaller.
    for ranks in [3, 5, 6, 7, 12, 100] {
        let result =
            f32::from_bits(average(DataType::F32, &vec![3e38f32.to_bits().into(); ranks]) as u32);
        assert!((result - 3e38).abs() <= 3e38 * f32::EPSILON * ranks as f32, "{result} on {ranks}");
        let result = f64::from_bits(average(DataType::F64, &vec![1.5e308f64.to_bits(); ranks]));
        assert!((result - 1.5e308).abs() <= 1.5e308 * f64::EPSILON * ranks as f64, "{result}");
        let code = u64::from(half::f16::from_f32(60_000.0).to_bits());
        assert_eq!(average(DataType::F16, &vec![code; ranks]), code, "f16 on {ranks}");
    }
}

#[test]
fn averages_of_integers_are_exact_and_truncated() {
    for (dtype, bits, signed) in [
        (DataType::I8, 8, true),
        (DataType::U8, 8, false),
        (DataType::I16, 16, true),
        (DataType::U16, 16, false),
        (DataType::I32, 32, true),
        (DataType::U32, 32, false),
        (DataType::I64, 64, true),
        (DataType::U64, 64, false),
    ] {
        let (min, max): (i128, i128) =
            if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        let mut cases: Vec<Vec<i128>> = Vec::new();
        for ranks in [1, 2, 3, 4, 7, 8, 100, 300] {
            cases.extend([vec![max; ranks], vec![min; ranks]]);
            // All at the limit except one.
            for (limit, next) in [(max, max - 1), (min, min + 1)] {
                let mut values = vec![limit; ranks];
                values[ranks / 2] = next;
                cases.push(values);
            }
            // Both limits in turn.
            cases.push((0..ranks).map(|rank| if rank % 2 == 0 { max } else { min }).collect());
        }
        if signed {
            cases.extend([vec![-1, 0], vec![-1, -2], vec![-7, 0, 0], vec![-5, 1, 1], vec![7, -9]]);
        }
        cases.extend([vec![1, 0], vec![1, 2], vec![5, 0, 0], vec![100; 4]]);
        for values in cases {
            let mask = u64::MAX >> (64 - bits);
            let code = |value: i128| (value as u64) & mask;
            let want = values.iter().sum::<i128>() / values.len() as i128;
            let codes: Vec<u64> = values.iter().map(|&value| code(value)).collect();
            assert_eq!(average(dtype, &codes), code(want), "{dtype} {values:?}");
        }
    }
}

/// Returns the type of the parts of an element.
fn part_of(dtype: DataType) -> DataType {
    match dtype {
        DataType::C64 => DataType::F32,
        DataType::C128 => DataType::F64,
        _ => dtype,
    }
}

/// Returns the parts of all elements as f64. The conversion is exact.
fn decode_parts(dtype: DataType, bytes: &[u8]) -> Vec<f64> {
    let part = part_of(dtype);
    let decode = |bytes: &[u8]| match part {
        DataType::F64 => f64::from_bits(oracle::element_bits(bytes)),
        _ => oracle::decode(part, oracle::element_bits(bytes)).into(),
    };
    bytes.chunks(part.size()).map(decode).collect()
}

/// Computes `partial + vector * factor` with the roundings of the type's accumulator. A missing
/// partial result is a vector that is only multiplied.
fn add_scaled(dtype: DataType, partial: Option<f64>, vector: f64, ranks: usize) -> f64 {
    let factor = 1.0 / ranks as f64;
    if part_of(dtype) == DataType::F64 {
        return partial.map_or(vector * factor, |partial| partial + vector * factor);
    }
    let product = vector as f32 * factor as f32;
    partial.map_or(product, |partial| partial as f32 + product).into()
}

/// Converts results of [`add_scaled`] to elements.
fn encode_parts(dtype: DataType, values: &[f64]) -> Vec<u8> {
    let part = part_of(dtype);
    let encode = |&value: &f64| match part {
        DataType::F64 if value.is_nan() => oracle::to_bytes(f64::NAN.to_bits(), 8),
        DataType::F64 => oracle::to_bytes(value.to_bits(), 8),
        _ => oracle::to_bytes(oracle::encode(part, value as f32), part.size()),
    };
    values.iter().flat_map(encode).collect()
}

#[test]
fn folds_partial_averages() {
    let mut random = XorShift(0x5eed_0fa1_1ad0_beef);
    for dtype in FLOATS {
        for (sources, ranks, count) in
            [(1, 2, 257), (2, 8, 1023), (3, 5, 17), (5, 64, 256), (2, 3, 1)]
        {
            let inputs: Vec<Vec<u8>> =
                (0..sources).map(|_| random.elements(dtype, count)).collect();
            let mut wanted = vec![None; inputs[0].len() / part_of(dtype).size()];
            for input in &inputs {
                for (sum, value) in wanted.iter_mut().zip(decode_parts(dtype, input)) {
                    *sum = Some(add_scaled(dtype, *sum, value, ranks));
                }
            }
            let wanted: Vec<f64> = wanted.into_iter().flatten().collect();
            let views: Vec<Src<'_>> = inputs.iter().map(|s| Src::from(&s[..])).collect();
            let mut result = vec![0xa5; inputs[0].len()];
            fold_average(dtype, Dst::from(&mut result[..]), &views, ranks);
            assert!(result == encode_parts(dtype, &wanted), "{sources} of {ranks} {dtype}");
        }
    }
}

#[test]
fn adds_vectors_to_partial_averages() {
    let mut random = XorShift(0x0add_5eed_0123_4567);
    for dtype in [DataType::F32, DataType::F64, DataType::C64, DataType::C128] {
        for (ranks, count) in [(2, 257), (3, 1023), (5, 17), (7, 1)] {
            let [partial, vector] = [(); 2].map(|()| random.elements(dtype, count));
            let pairs = decode_parts(dtype, &partial).into_iter().zip(decode_parts(dtype, &vector));
            let wanted: Vec<f64> =
                pairs.map(|(a, b)| add_scaled(dtype, Some(a), b, ranks)).collect();
            let wanted = encode_parts(dtype, &wanted);
            for isa in instruction_sets() {
                let kernel = table::add_to_average_kernel(isa, dtype).unwrap();
                // In place into the partial result, as the pairwise reduce-scatter uses it.
                let mut buffer = UnalignedBuffer::new(&partial, 1);
                let dst = buffer.dst();
                let views = [dst.as_src(), Src::from(&vector[..])];
                // SAFETY: all views have the same length, of whole elements; this processor has
                // `isa`.
                unsafe { kernel(FoldTarget { dst, extra_dsts: &[] }, &views, ranks) }
                assert!(buffer.bytes() == wanted, "{dtype} on {ranks} ranks, {isa:?}");
            }
            let mut result = vec![0xa5; partial.len()];
            let (dst, partial) = (Dst::from(&mut result[..]), Src::from(&partial[..]));
            add_to_average(dtype, dst, partial, Src::from(&vector[..]), ranks);
            assert!(result == wanted, "{dtype} on {ranks} ranks");
        }
    }
}
