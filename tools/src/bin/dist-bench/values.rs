//! The values that verify results. The inputs are small whole numbers that depend on the rank and
//! the index. They are so small that every element type can represent their sums. `peers/rank.h`
//! and `peers/gloo.py` use the same values.

use crate::ops::{BenchOp, ROOT};
use crate::request::BenchRequest;
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;

/// The byte that fills buffers before a verified call. No element of a right result consists of
/// such bytes.
pub(crate) const POISON: u8 = 0xa5;

/// Returns the largest number of ranks whose input values a type can sum without rounding.
pub(crate) const fn max_exact_ranks(dtype: DataType) -> usize {
    match dtype {
        // The type with the smaller mantissa represents all whole numbers up to 8.
        DataType::F8E4M3 | DataType::F8E5M2 => 8,
        _ => 60,
    }
}

/// Returns the number of different input values of a type. The input values are the whole numbers
/// below it.
const fn value_count(dtype: DataType) -> u32 {
    match dtype {
        DataType::F8E4M3 | DataType::F8E5M2 | DataType::Bool => 2,
        _ => 3,
    }
}

/// Returns the input value of a rank at an index.
#[allow(clippy::cast_possible_truncation, reason = "only the lower bits matter")]
fn input_value(base: u32, rank: usize, index: usize) -> u32 {
    let index = (index as u32).wrapping_add(1).wrapping_mul(0x9e37_79b1);
    let rank = (rank as u32).wrapping_add(1).wrapping_mul(0x85eb_ca6b);
    ((index ^ rank) >> 16) % base
}

/// Returns the reduced value of all ranks at an index.
fn reduced_value(base: u32, redop: ReduceOp, ranks: usize, index: usize) -> u32 {
    let all = (0..ranks).map(|rank| input_value(base, rank, index));
    match redop {
        ReduceOp::Min => all.min().unwrap_or(0),
        ReduceOp::Max => all.max().unwrap_or(0),
        _ => all.sum(),
    }
}

/// Returns a small number as the bits of a float with `mantissa` bits of mantissa.
fn float_bits(number: u32, mantissa: u32, bias: u32) -> u64 {
    let Some(exponent) = number.checked_ilog2() else { return 0 };
    let (number, one) = (u64::from(number), 1u64 << mantissa);
    let scaled = (number << mantissa) >> exponent;
    (u64::from(exponent + bias) << mantissa) | (scaled & (one - 1))
}

/// Returns a small number as an element of a type. The element is at the beginning of the result.
fn element_bytes(dtype: DataType, number: u32) -> [u8; 16] {
    let (single, double) = (float_bits(number, 23, 127), float_bits(number, 52, 1023));
    let bits = match dtype {
        DataType::F8E4M3 => float_bits(number, 3, 7),
        DataType::F8E5M2 => float_bits(number, 2, 15),
        DataType::F16 => float_bits(number, 10, 15),
        DataType::Bf16 => float_bits(number, 7, 127),
        DataType::F32 => single,
        DataType::C64 => single << 32 | single,
        DataType::F64 | DataType::C128 => double,
        DataType::Bool => u64::from(number != 0),
        _ => u64::from(number),
    };
    let mut element = [0; 16];
    element[..8].copy_from_slice(&bits.to_le_bytes());
    // The widest type has two equal halves.
    element[8..].copy_from_slice(&bits.to_le_bytes());
    element
}

/// Returns a word of eight bytes that fills a buffer with elements of value 1.
pub(crate) fn ones_word(dtype: DataType) -> u64 {
    let (one, size) = (element_bytes(dtype, 1), dtype.size().min(8));
    let mut word = [0; 8];
    word.chunks_exact_mut(size).for_each(|element| element.copy_from_slice(&one[..size]));
    u64::from_le_bytes(word)
}

/// Fills memory with the input of a rank.
pub(crate) fn fill_input(dtype: DataType, rank: usize, input: &mut [u8]) {
    let base = value_count(dtype);
    let codes: Vec<[u8; 16]> = (0..base).map(|number| element_bytes(dtype, number)).collect();
    let size = dtype.size();
    for (index, element) in input.chunks_exact_mut(size).enumerate() {
        let code = &codes[input_value(base, rank, index) as usize];
        element.copy_from_slice(&code[..size]);
    }
}

/// Returns the number of wrong elements in a rank's result.
pub(crate) fn count_wrong(request: &BenchRequest, rank: usize, ranks: usize, result: &[u8]) -> u64 {
    let BenchRequest { op, dtype, redop, count, .. } = *request;
    let (base, block) = (value_count(dtype), (count / ranks).max(1));
    let own_offset = rank * block;
    let expected = |index: usize| match op {
        BenchOp::AllReduce | BenchOp::Reduce => reduced_value(base, redop, ranks, index),
        BenchOp::ReduceScatter => reduced_value(base, redop, ranks, own_offset + index),
        BenchOp::Broadcast => input_value(base, ROOT, index),
        BenchOp::Scatter => input_value(base, ROOT, own_offset + index),
        BenchOp::AllGather | BenchOp::Gather => input_value(base, index / block, index % block),
        BenchOp::AllToAll => input_value(base, index / block, own_offset + index % block),
        BenchOp::SendRecv => input_value(base, 1 - rank.min(1), index),
        BenchOp::Barrier => 0,
    };
    // A sum is the largest value that a result can have.
    let code_count = base * u32::try_from(ranks).unwrap_or(u32::MAX);
    let codes: Vec<[u8; 16]> = (0..code_count).map(|number| element_bytes(dtype, number)).collect();
    let (size, mut wrong) = (dtype.size(), 0);
    for (index, element) in result.chunks_exact(size).enumerate() {
        let code = codes.get(expected(index) as usize);
        wrong += u64::from(code.is_none_or(|code| element != &code[..size]));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: BenchOp, dtype: DataType, count: usize) -> BenchRequest {
        let line = format!("run {} {} sum {count} 0 1 0 0 1 0 0 1", op.name(), dtype.name());
        BenchRequest::parse(&line).unwrap()
    }

    fn input(dtype: DataType, rank: usize, count: usize) -> Vec<u8> {
        let mut input = vec![0; count * dtype.size()];
        fill_input(dtype, rank, &mut input);
        input
    }

    #[test]
    fn small_numbers_are_encoded_in_every_type() {
        for number in 0..120 {
            let single = element_bytes(DataType::F32, number);
            assert_eq!(
                single[..4],
                f64::from(number).to_string().parse::<f32>().unwrap().to_le_bytes()
            );
            assert_eq!(element_bytes(DataType::F64, number)[..8], f64::from(number).to_le_bytes());
            let half = half::f16::from_f64(number.into());
            assert_eq!(element_bytes(DataType::F16, number)[..2], half.to_le_bytes());
            let half = half::bf16::from_f64(number.into());
            assert_eq!(element_bytes(DataType::Bf16, number)[..2], half.to_le_bytes());
        }
        // The expected bits follow from the specifications of the two formats.
        assert_eq!(
            [1, 3, 7, 8].map(|n| element_bytes(DataType::F8E4M3, n)[0]),
            [0x38, 0x44, 0x4e, 0x50]
        );
        assert_eq!(
            [1, 3, 7, 8].map(|n| element_bytes(DataType::F8E5M2, n)[0]),
            [0x3c, 0x42, 0x47, 0x48]
        );
        assert_eq!(element_bytes(DataType::I64, 7)[..8], 7i64.to_le_bytes());
        assert_eq!(ones_word(DataType::F32), 0x3f80_0000_3f80_0000);
        assert_eq!(ones_word(DataType::I8), 0x0101_0101_0101_0101);
        assert_eq!(ones_word(DataType::C128), 1f64.to_bits());
    }

    #[test]
    fn correct_results_have_no_wrong_elements() {
        let (ranks, count) = (4, 48);
        for dtype in DataType::ALL {
            let inputs: Vec<Vec<u8>> = (0..ranks).map(|rank| input(dtype, rank, count)).collect();
            let block = count / ranks * dtype.size();
            for rank in 0..ranks {
                let gathered: Vec<u8> =
                    inputs.iter().flat_map(|input| input[..block].to_vec()).collect();
                let exchanged: Vec<u8> = inputs
                    .iter()
                    .flat_map(|input| input[rank * block..][..block].to_vec())
                    .collect();
                let scattered = &inputs[ROOT][rank * block..][..block];
                for (op, result) in [
                    (BenchOp::Broadcast, &inputs[ROOT][..]),
                    (BenchOp::AllGather, &gathered),
                    (BenchOp::AllToAll, &exchanged),
                    (BenchOp::Scatter, scattered),
                ] {
                    let request = request(op, dtype, count);
                    assert_eq!(count_wrong(&request, rank, ranks, result), 0, "{op:?} {dtype}");
                }
            }
        }
    }

    #[test]
    fn reduction_results_are_checked_by_rank() {
        let (ranks, count) = (4, 40);
        let mut sums = vec![0u8; count];
        for rank in 0..ranks {
            for (sum, value) in sums.iter_mut().zip(input(DataType::U8, rank, count)) {
                *sum += value;
            }
        }
        let all = request(BenchOp::AllReduce, DataType::U8, count);
        assert_eq!(count_wrong(&all, 0, ranks, &sums), 0);
        let part = request(BenchOp::ReduceScatter, DataType::U8, count);
        assert_eq!(count_wrong(&part, 2, ranks, &sums[20..30]), 0);
        // The result of another rank is wrong.
        assert!(count_wrong(&part, 1, ranks, &sums[20..30]) > 0);
    }

    #[test]
    fn wrong_elements_are_counted() {
        let request = request(BenchOp::Broadcast, DataType::F32, 100);
        let mut result = input(DataType::F32, ROOT, 100);
        result[40..48].fill(POISON);
        assert_eq!(count_wrong(&request, 1, 2, &result), 2);
        assert!(count_wrong(&request, 1, 2, &input(DataType::F32, 1, 100)) > 30);
    }
}
