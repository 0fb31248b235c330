//! The expected results of the kernels, computed one element at a time and without the kernels'
//! code. Integers are computed in i128, f16 and bf16 by the `half` crate, f8 by a search for the
//! nearest number.

use crate::base::dtype::DataType;
use crate::base::op::ReduceOp;
use std::sync::LazyLock;

/// Returns the fold of the elements of several ranks.
pub(super) fn fold_element(dtype: DataType, op: ReduceOp, elements: &[&[u8]]) -> Vec<u8> {
    match dtype {
        DataType::C64 | DataType::C128 => {
            let part = if dtype == DataType::C64 { DataType::F32 } else { DataType::F64 };
            let halves = |range: std::ops::Range<usize>| -> Vec<u8> {
                let parts: Vec<&[u8]> = elements.iter().map(|e| &e[range.clone()]).collect();
                fold_element(part, op, &parts)
            };
            let middle = part.size();
            [halves(0..middle), halves(middle..2 * middle)].concat()
        }
        DataType::F64 => {
            let values: Vec<f64> =
                elements.iter().map(|e| f64::from_bits(element_bits(e))).collect();
            to_bytes(f64_bits(fold_f64(op, &values)), 8)
        }
        _ if dtype.is_float() => {
            let values: Vec<f32> =
                elements.iter().map(|e| decode(dtype, element_bits(e))).collect();
            to_bytes(encode(dtype, fold_f32(op, &values)), dtype.size())
        }
        DataType::Bool => vec![u8::from(fold_bool(op, elements))],
        _ => fold_integer(dtype, op, elements),
    }
}

/// Returns the element times a factor.
pub(super) fn scale_element(dtype: DataType, factor: f64, element: &[u8]) -> Vec<u8> {
    match dtype {
        DataType::C64 => {
            element.chunks(4).flat_map(|part| scale_element(DataType::F32, factor, part)).collect()
        }
        DataType::C128 => {
            element.chunks(8).flat_map(|part| scale_element(DataType::F64, factor, part)).collect()
        }
        DataType::F64 => to_bytes(f64_bits(f64::from_bits(element_bits(element)) * factor), 8),
        _ => {
            #[allow(clippy::cast_possible_truncation, reason = "as documented")]
            let product = decode(dtype, element_bits(element)) * factor as f32;
            to_bytes(encode(dtype, product), dtype.size())
        }
    }
}

macro_rules! fold_real {
    ($name:ident, $float:ty) => {
        fn $name(op: ReduceOp, values: &[$float]) -> $float {
            let sum = || values[1..].iter().fold(values[0], |a, b| a + b);
            let any_nan = values.iter().any(|v| v.is_nan());
            let ascending = || {
                let mut sorted = values.to_vec();
                sorted.sort_by(<$float>::total_cmp);
                sorted
            };
            match op {
                ReduceOp::Sum | ReduceOp::PremulSum => sum(),
                ReduceOp::Product => values[1..].iter().fold(values[0], |a, b| a * b),
                ReduceOp::Min | ReduceOp::Max if any_nan => <$float>::NAN,
                ReduceOp::Min => ascending()[0],
                ReduceOp::Max => ascending()[values.len() - 1],
                // Each value is multiplied by 1/N first.
                ReduceOp::Avg => {
                    #[allow(
                        clippy::cast_possible_truncation,
                        trivial_numeric_casts,
                        reason = "the factor is rounded to the type"
                    )]
                    let factor = (1.0 / values.len() as f64) as $float;
                    values[1..].iter().fold(values[0] * factor, |a, b| a + b * factor)
                }
                _ => panic!("{op} on floating point"),
            }
        }
    };
}

fold_real!(fold_f32, f32);
fold_real!(fold_f64, f64);

fn fold_bool(op: ReduceOp, elements: &[&[u8]]) -> bool {
    let trues = elements.iter().filter(|e| e[0] != 0).count();
    match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => trues > 0,
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => trues == elements.len(),
        ReduceOp::BitXor => trues % 2 == 1,
        _ => panic!("{op} on bool"),
    }
}

fn fold_integer(dtype: DataType, op: ReduceOp, elements: &[&[u8]]) -> Vec<u8> {
    let signed = matches!(dtype, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64);
    let modulus = 1i128 << (8 * dtype.size());
    let wrap = |value: i128| {
        let value = value & (modulus - 1);
        if signed && value >= modulus / 2 { value - modulus } else { value }
    };
    let values: Vec<i128> = elements.iter().map(|e| wrap(i128::from(element_bits(e)))).collect();
    let fold = |f: fn(i128, i128) -> i128| values.iter().copied().reduce(|a, b| wrap(f(a, b)));
    let result = match op {
        ReduceOp::Sum => fold(|a, b| a + b),
        ReduceOp::Product => fold(i128::wrapping_mul),
        ReduceOp::Min => values.iter().copied().min(),
        ReduceOp::Max => values.iter().copied().max(),
        ReduceOp::Avg => Some(values.iter().sum::<i128>() / i128::try_from(values.len()).unwrap()),
        ReduceOp::BitAnd => fold(|a, b| a & b),
        ReduceOp::BitOr => fold(|a, b| a | b),
        ReduceOp::BitXor => fold(|a, b| a ^ b),
        ReduceOp::PremulSum => None,
    };
    let code = result.unwrap() & (modulus - 1);
    to_bytes(u64::try_from(code).unwrap(), dtype.size())
}

/// Returns the value of a code of a type that is folded in f32.
pub(super) fn decode(dtype: DataType, code: u64) -> f32 {
    match dtype {
        DataType::F32 => f32::from_bits(u32::try_from(code).unwrap()),
        DataType::F16 => half::f16::from_bits(u16::try_from(code).unwrap()).to_f32(),
        DataType::Bf16 => half::bf16::from_bits(u16::try_from(code).unwrap()).to_f32(),
        DataType::F8E4M3 => E4M3.values[usize::try_from(code).unwrap()],
        DataType::F8E5M2 => E5M2.values[usize::try_from(code).unwrap()],
        _ => panic!("{dtype} is not reduced in f32"),
    }
}

/// Returns the code of the nearest number.
pub(super) fn encode(dtype: DataType, value: f32) -> u64 {
    match dtype {
        DataType::F32 if value.is_nan() => 0x7fc0_0000,
        DataType::F32 => value.to_bits().into(),
        DataType::F16 if value.is_nan() => 0x7e00,
        DataType::F16 => half::f16::from_f32(value).to_bits().into(),
        DataType::Bf16 if value.is_nan() => 0x7fc0,
        DataType::Bf16 => half::bf16::from_f32(value).to_bits().into(),
        DataType::F8E4M3 => E4M3.nearest_code(value),
        DataType::F8E5M2 => E5M2.nearest_code(value),
        _ => panic!("{dtype} is not reduced in f32"),
    }
}

static E4M3: LazyLock<Float8Format> = LazyLock::new(|| Float8Format::new(3, 7, 0x7e, 0x7e, 0x7f));
static E5M2: LazyLock<Float8Format> = LazyLock::new(|| Float8Format::new(2, 15, 0x7b, 0x7c, 0x7e));

/// An eight-bit format, defined by the values of its codes.
struct Float8Format {
    values: Vec<f32>,
    /// The midpoints between the numbers of adjacent codes, from 0 on.
    midpoints: Vec<f64>,
    largest: u8,
    infinity: u8,
    nan: u8,
}

impl Float8Format {
    fn new(mantissa: i32, bias: i32, largest: u8, infinity: u8, nan: u8) -> Self {
        let magnitude = |code: u8| -> f64 {
            let (exponent, fraction) = (i32::from(code >> mantissa), code % (1 << mantissa));
            let fraction = f64::from(fraction) / 2f64.powi(mantissa);
            match exponent {
                0 => fraction * 2f64.powi(1 - bias),
                _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
            }
        };
        let value = |code: u8| -> f32 {
            let sign = if code < 128 { 1.0 } else { -1.0 };
            #[allow(clippy::cast_possible_truncation, reason = "the numbers have few bits")]
            match code % 128 {
                abs if abs <= largest => sign * magnitude(abs) as f32,
                abs if abs == infinity => sign * f32::INFINITY,
                _ => f32::NAN,
            }
        };
        let half_ways = (0..largest).map(|c| f64::midpoint(magnitude(c), magnitude(c + 1)));
        Self {
            values: (0..=255).map(value).collect(),
            midpoints: half_ways.collect(),
            largest,
            infinity,
            nan,
        }
    }

    fn nearest_code(&self, value: f32) -> u64 {
        let abs = f64::from(value.abs());
        let below = self.midpoints.partition_point(|half_way| *half_way < abs);
        let tie = self.midpoints.get(below).is_some_and(|half_way| *half_way == abs);
        let nearest = u8::try_from(below).unwrap();
        let code = match () {
            () if value.is_nan() => return self.nan.into(),
            () if value.is_infinite() => self.infinity,
            () if abs > f64::from(self.values[usize::from(self.largest)]) => self.largest,
            () if tie => nearest + nearest % 2,
            () => nearest,
        };
        u64::from(code) + if value.is_sign_negative() { 128 } else { 0 }
    }
}

fn f64_bits(value: f64) -> u64 {
    if value.is_nan() { 0x7ff8_0000_0000_0000 } else { value.to_bits() }
}

/// Returns the bits of an element in the byte order of this machine.
pub(super) fn element_bits(element: &[u8]) -> u64 {
    let most_significant_first = |code: u64, byte: &u8| code << 8 | u64::from(*byte);
    if cfg!(target_endian = "little") {
        element.iter().rev().fold(0, most_significant_first)
    } else {
        element.iter().fold(0, most_significant_first)
    }
}

/// Returns the bytes of an element: the inverse of `element_bits`.
pub(super) fn to_bytes(code: u64, size: usize) -> Vec<u8> {
    let little = code.to_le_bytes()[..size].to_vec();
    if cfg!(target_endian = "little") { little } else { little.into_iter().rev().collect() }
}
