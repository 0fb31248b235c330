//! The error bound of a sum whose vectors are reduced in arrival order: H units in the last place
//! of the sum of absolute values, where H is the number of roundings, one per host.

use crate::expected_results::{PeriodicBlock, elements};
use crate::input_values::{decode, part_of};
use crate::matrix::{AlgorithmChoice, CallScene, CallVariant};
use dist::algo::{AlgorithmBody, algorithms};
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;

/// The results of a block in f64, with the magnitude of their operands.
#[derive(Debug)]
pub(crate) struct ReferenceValues {
    part: DataType,
    /// For each number (a complex element has two): the result, and its unit in the last place.
    numbers: Vec<(f64, f64)>,
}

impl ReferenceValues {
    /// Computes the reference of the first `count` elements of these blocks.
    pub(crate) fn new(scene: &CallScene, count: usize, blocks: &[(usize, &PeriodicBlock)]) -> Self {
        let part = part_of(scene.dtype);
        let number = |bytes: &[Vec<u8>], at: usize| {
            let values = bytes.iter().map(|bytes| decode(part, &bytes[at..at + part.size()]));
            let values: Vec<f64> = values.collect();
            let absolute: f64 = values.iter().map(|value| value.abs()).sum();
            let (result, size) = match scene.op {
                Some(ReduceOp::Product) => {
                    let product: f64 = values.iter().product();
                    (product, product.abs())
                }
                Some(ReduceOp::Avg) => {
                    let ranks = values.len() as f64;
                    (values.iter().sum::<f64>() / ranks, absolute / ranks)
                }
                _ => (values.iter().sum(), absolute),
            };
            (result, unit_in_last_place(part, size))
        };
        let of_element = |index| {
            let elements = elements(scene, blocks, index);
            let offsets = (0..scene.dtype.size()).step_by(part.size());
            offsets.map(|at| number(&elements, at)).collect::<Vec<_>>()
        };
        Self { part, numbers: (0..count).flat_map(of_element).collect() }
    }

    /// Returns the first number that differs by more than `units`: its index, its value and the
    /// expected value.
    pub(crate) fn first_violation(&self, bytes: &[u8], units: f64) -> Option<(usize, f64, f64)> {
        let numbers = bytes.chunks_exact(self.part.size()).enumerate();
        let mut numbers = numbers.zip(self.numbers.iter().cycle());
        numbers.find_map(|((at, bytes), &(wanted, unit))| {
            let got = decode(self.part, bytes);
            // A NaN fails this comparison.
            let near = (got - wanted).abs() <= units * unit;
            (!near).then_some((at, got, wanted))
        })
    }
}

/// Returns the unit in the last place of numbers of this magnitude.
fn unit_in_last_place(part: DataType, size: f64) -> f64 {
    let (mantissa, least) = match part {
        DataType::F16 => (10, -14),
        DataType::Bf16 => (7, -126),
        DataType::F32 => (23, -126),
        DataType::F8E4M3 => (3, -6),
        DataType::F8E5M2 => (2, -14),
        _ => (52, -1022),
    };
    #[allow(clippy::cast_possible_truncation, reason = "exponents are small")]
    let exponent = size.log2().floor() as i32;
    2f64.powi(exponent.max(least) - mantissa)
}

/// Returns the allowed number of units.
pub(crate) fn allowed_units(scene: &CallScene, variant: &CallVariant) -> f64 {
    let nodes = variant.layout.nodes(scene.ranks).node_count();
    let is_narrow = part_of(scene.dtype).size() < 4;
    let by_messages = |name| {
        let row = algorithms(scene.kind).find(|row| row.name == name);
        row.is_some_and(|row| matches!(row.body, AlgorithmBody::Message(_)))
    };
    let rounded = match variant.choice {
        // A message algorithm that is selected by name treats each rank as a host.
        AlgorithmChoice::Named(name) if by_messages(name) => scene.ranks,
        // Numbers of 4 bytes and more are rounded at each addition.
        _ if !is_narrow => scene.ranks,
        _ => nodes,
    };
    // If the reference is no wider than the type, it has the same number of roundings.
    let reference = if part_of(scene.dtype) == DataType::F64 { scene.ranks } else { 0 };
    match scene.op {
        Some(ReduceOp::Product) => rounded_factor_units(part_of(scene.dtype), rounded + reference),
        // The multiplication by 1/N is one more rounding of each part.
        Some(ReduceOp::Avg) => (rounded + 1 + reference) as f64,
        _ => (rounded + reference) as f64,
    }
}

/// Returns the error bound of a product in units: each factor is rounded by half of its own unit,
/// and the product itself is rounded. Relative errors multiply, and the relative error of a number
/// just above a power of two is the largest.
fn rounded_factor_units(part: DataType, rounded: usize) -> f64 {
    let half_a_unit = unit_in_last_place(part, 1.0) / 2.0;
    let times = (rounded + 1) as f64;
    (times * half_a_unit.ln_1p()).exp_m1() / half_a_unit
}
