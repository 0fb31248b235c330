//! The input elements: random words, and numbers whose result or error bound is known.

use crate::oracle;
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;

/// The kind of input numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InputKind {
    /// Arbitrary numbers, for results that are reduced in rank order or not at all.
    Any,
    /// Numbers whose result is the same in every reduction order and with any number of
    /// intermediate roundings.
    Exact,
    /// Numbers whose sums and products depend on the order; only an error bound is known.
    OrderDependent,
}

/// The position of an element: its rank, block and index, and the number of ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementPosition {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) block: usize,
    pub(crate) index: usize,
}

/// Returns a rank's factor for `PREMUL_SUM`.
pub(crate) fn factor(rank: usize) -> f64 {
    0.5 + [1.0, 0.25, 2.0][rank % 3]
}

/// Returns true if the bits of the result depend on the reduction order.
pub(crate) fn depends_on_order(dtype: DataType, op: Option<ReduceOp>) -> bool {
    let adds = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Avg, ReduceOp::PremulSum];
    dtype.is_float() && op.is_some_and(|op| adds.contains(&op))
}

/// Returns the bytes of an element.
pub(crate) fn element(
    inputs: InputKind,
    dtype: DataType,
    op: Option<ReduceOp>,
    at: ElementPosition,
) -> Vec<u8> {
    let ElementPosition { rank, ranks, block, index } = at;
    let seed = (rank as u64 + 1) << 48 | (block as u64) << 40 | dtype as u64;
    let word = mix_bits(seed ^ (index as u64) << 8);
    match (inputs, op) {
        (InputKind::Exact, Some(op)) => {
            // Only two neighbouring ranks contribute nonzero elements, so that only one sum is
            // rounded.
            let counts = [index % ranks, (index + 1) % ranks].contains(&rank);
            exact_number(dtype, op, word, counts)
        }
        (InputKind::OrderDependent, Some(_)) => each_part(dtype, word, order_dependent_number),
        _ => random_number(dtype, word),
    }
}

/// Returns arbitrary bits for integers. For floats it returns mostly ordinary numbers and sometimes
/// arbitrary bits, including NaN and infinities.
fn random_number(dtype: DataType, word: u64) -> Vec<u8> {
    if !dtype.is_float() {
        return word.to_le_bytes()[..dtype.size()].to_vec();
    }
    each_part(dtype, word, |part, word| {
        let value = f64::from(high_bits(word) >> 8) / 1024.0 - 8000.0;
        match part {
            _ if word.is_multiple_of(16) => word.to_le_bytes()[..part.size()].to_vec(),
            DataType::F64 => encode(part, value),
            _ => encode(part, value / 1000.0),
        }
    })
}

/// Returns a number for [`InputKind::Exact`]. `counts` is set if the rank is one of the two ranks
/// whose scaled or divided elements are not zero.
fn exact_number(dtype: DataType, op: ReduceOp, word: u64, counts: bool) -> Vec<u8> {
    if !dtype.is_float() || matches!(op, ReduceOp::Min | ReduceOp::Max) {
        return random_number(dtype, word);
    }
    each_part(dtype, word, |part, word| {
        let pick = |values: &[f64]| values[high_bits(word) as usize % values.len()];
        let value = match op {
            ReduceOp::Sum => pick(&[-1.0, 0.0, 1.0]),
            // In an average each part is multiplied by 1/N.
            ReduceOp::Avg if counts => pick(&[-1.0, 0.0, 1.0]),
            ReduceOp::Product => pick(&[1.0, -1.0, 2.0, 0.5]),
            ReduceOp::PremulSum if counts => pick(&[-1.0, 1.0, 2.0]),
            _ => 0.0,
        };
        encode(part, value)
    })
}

/// Returns numbers of either sign with a magnitude from 3/4 to 3/2. Their sums and products over
/// the ranks of a test fit every type.
fn order_dependent_number(part: DataType, word: u64) -> Vec<u8> {
    let size = 0.75 + f64::from(high_bits(word)) / f64::from(u32::MAX) * 0.75;
    encode(part, if word & 1 == 0 { size } else { -size })
}

/// Returns a number, or the two numbers of a complex element.
fn each_part(dtype: DataType, word: u64, part: impl Fn(DataType, u64) -> Vec<u8>) -> Vec<u8> {
    match dtype {
        DataType::C64 => [part(DataType::F32, word), part(DataType::F32, mix_bits(word))].concat(),
        DataType::C128 => [part(DataType::F64, word), part(DataType::F64, mix_bits(word))].concat(),
        _ => part(dtype, word),
    }
}

fn encode(part: DataType, value: f64) -> Vec<u8> {
    match part {
        DataType::F64 => oracle::to_bytes(value.to_bits(), 8),
        #[allow(clippy::cast_possible_truncation, reason = "any nearby number will do")]
        _ => oracle::to_bytes(oracle::encode(part, value as f32), part.size()),
    }
}

/// Returns the number in a part of an element.
pub(crate) fn decode(part: DataType, bytes: &[u8]) -> f64 {
    let code = oracle::element_bits(bytes);
    if part == DataType::F64 { f64::from_bits(code) } else { oracle::decode(part, code).into() }
}

/// Returns the type of the parts of an element; a complex element has two parts.
pub(crate) fn part_of(dtype: DataType) -> DataType {
    match dtype {
        DataType::C64 => DataType::F32,
        DataType::C128 => DataType::F64,
        _ => dtype,
    }
}

fn high_bits(word: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "the upper half")]
    let high = (word >> 32) as u32;
    high
}

/// SplitMix64's finaliser (Steele, Lea, Flood, 2014); it spreads the bits of a counter.
pub(crate) fn mix_bits(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
