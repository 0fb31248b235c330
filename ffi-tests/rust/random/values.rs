//! The inputs and expected results: small whole numbers, whose sums are exact in every order.

use dist::ffi::types::{
    DIST_AVG, DIST_BF16, DIST_BXOR, DIST_F32, DIST_F64, DIST_I32, DIST_I64, DIST_MAX, DIST_MIN,
    DIST_PRODUCT, DIST_SUM, DIST_U8, dist_dtype_t, dist_op_t,
};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementType {
    U8,
    I32,
    I64,
    Bf16,
    F32,
    F64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReductionOperator {
    Sum,
    Product,
    Min,
    Max,
    Avg,
    Bxor,
}

impl ElementType {
    pub(crate) const ALL: &[Self] =
        &[Self::U8, Self::I32, Self::I64, Self::Bf16, Self::F32, Self::F64];

    /// Returns the operators whose results are exact for small whole numbers on `ranks` ranks. An
    /// average of floats multiplies by 1/N, which is exact for powers of two.
    pub(crate) fn ops(self, ranks: usize) -> &'static [ReductionOperator] {
        let all = self.operators();
        let is_rounded = matches!(self, Self::F32 | Self::F64) && !ranks.is_power_of_two();
        if is_rounded { all.strip_suffix(&[ReductionOperator::Avg]).unwrap_or(all) } else { all }
    }

    fn operators(self) -> &'static [ReductionOperator] {
        match self {
            Self::U8 => &[
                ReductionOperator::Sum,
                ReductionOperator::Min,
                ReductionOperator::Max,
                ReductionOperator::Bxor,
            ],
            Self::I32 | Self::I64 => &[
                ReductionOperator::Sum,
                ReductionOperator::Product,
                ReductionOperator::Min,
                ReductionOperator::Max,
                ReductionOperator::Bxor,
                ReductionOperator::Avg,
            ],
            Self::Bf16 => &[ReductionOperator::Sum, ReductionOperator::Min, ReductionOperator::Max],
            Self::F32 | Self::F64 => &[
                ReductionOperator::Sum,
                ReductionOperator::Product,
                ReductionOperator::Min,
                ReductionOperator::Max,
                ReductionOperator::Avg,
            ],
        }
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    pub(crate) fn number(self) -> dist_dtype_t {
        match self {
            Self::U8 => DIST_U8,
            Self::I32 => DIST_I32,
            Self::I64 => DIST_I64,
            Self::Bf16 => DIST_BF16,
            Self::F32 => DIST_F32,
            Self::F64 => DIST_F64,
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the numbers are small and whole, or fit the type's own rounding"
    )]
    fn append_value(self, value: f64, bytes: &mut Vec<u8>) {
        match self {
            Self::U8 => bytes.push(value as u8),
            Self::I32 => bytes.extend((value as i32).to_le_bytes()),
            Self::I64 => bytes.extend((value as i64).to_le_bytes()),
            Self::Bf16 => bytes.extend(half::bf16::from_f64(value).to_le_bytes()),
            Self::F32 => bytes.extend((value as f32).to_le_bytes()),
            Self::F64 => bytes.extend(value.to_le_bytes()),
        }
    }
}

impl ReductionOperator {
    pub(crate) fn number(self) -> dist_op_t {
        match self {
            Self::Sum => DIST_SUM,
            Self::Product => DIST_PRODUCT,
            Self::Min => DIST_MIN,
            Self::Max => DIST_MAX,
            Self::Avg => DIST_AVG,
            Self::Bxor => DIST_BXOR,
        }
    }

    fn fold(self, values: impl Iterator<Item = u8>, size: usize, whole: bool) -> f64 {
        let values = values.map(f64::from);
        match self {
            Self::Sum => values.sum(),
            Self::Product => values.product(),
            Self::Min => values.fold(f64::INFINITY, f64::min),
            Self::Max => values.fold(0.0, f64::max),
            Self::Avg => {
                let average = values.sum::<f64>() / size as f64;
                if whole { average.trunc() } else { average }
            }
            Self::Bxor => {
                let bits = values.fold(0_i64, |bits, value| {
                    #[allow(clippy::cast_possible_truncation, reason = "small and whole")]
                    let value = value as i64;
                    bits ^ value
                });
                f64::from(i32::try_from(bits).unwrap())
            }
        }
    }
}

/// Returns the number that a rank contributes to an operation at an index, from 0 to 7.
fn element(id: u64, rank: usize, index: usize) -> u8 {
    let mut word = id ^ (rank as u64) << 40 ^ (index as u64) << 8;
    word = (word ^ (word >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    word = (word ^ (word >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d);
    u8::try_from((word ^ (word >> 33)) % 8).unwrap()
}

/// Returns `count` elements of a rank from index `from` on.
pub(crate) fn contribution(
    id: u64,
    rank: usize,
    dtype: ElementType,
    from: usize,
    count: usize,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * dtype.size());
    (from..from + count)
        .for_each(|i| dtype.append_value(f64::from(element(id, rank, i)), &mut bytes));
    bytes
}

/// Returns `count` elements of the reduction of all ranks from index `from` on.
pub(crate) fn reduction(
    id: u64,
    size: usize,
    (dtype, op): (ElementType, ReductionOperator),
    from: usize,
    count: usize,
) -> Vec<u8> {
    let whole = !matches!(dtype, ElementType::Bf16 | ElementType::F32 | ElementType::F64);
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for index in from..from + count {
        let values = (0..size).map(|rank| element(id, rank, index));
        dtype.append_value(op.fold(values, size, whole), &mut bytes);
    }
    bytes
}
