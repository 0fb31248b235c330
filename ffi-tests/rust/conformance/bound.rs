//! How far a sum may be from the true one where vectors are folded by and by: within H units in the
//! last place of the sum of absolute values, where H says how often something is rounded, which is
//! once for each host.

use crate::matrix::{Choice, Scene, Variant};
use crate::model::{Block, elements};
use crate::values::{decode, part_of};
use dist::algo::{AlgorithmBody, algorithms};
use dist::base::dtype::DataType;
use dist::base::op::ReduceOp;

/// The results of a block in f64, with the size of what they are made of.
#[derive(Debug)]
pub(crate) struct Reference {
    part: DataType,
    /// Number by number (a complex element is two): the result, and the unit in the last place that
    /// counts.
    numbers: Vec<(f64, f64)>,
}

impl Reference {
    /// Of the first `node_count` elements of these blocks.
    pub(crate) fn new(scene: &Scene, count: usize, blocks: &[(usize, &Block)]) -> Self {
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
            (result, unit(part, size))
        };
        let of_element = |index| {
            let elements = elements(scene, blocks, index);
            let offsets = (0..scene.dtype.size()).step_by(part.size());
            offsets.map(|at| number(&elements, at)).collect::<Vec<_>>()
        };
        Self { part, numbers: (0..count).flat_map(of_element).collect() }
    }

    /// The first number that is more than so many units away: its place, what it is, and what it
    /// should be.
    pub(crate) fn violated(&self, bytes: &[u8], units: f64) -> Option<(usize, f64, f64)> {
        let numbers = bytes.chunks_exact(self.part.size()).enumerate();
        let mut numbers = numbers.zip(self.numbers.iter().cycle());
        numbers.find_map(|((at, bytes), &(wanted, unit))| {
            let got = decode(self.part, bytes);
            // A NaN is not near anything.
            let near = (got - wanted).abs() <= units * unit;
            (!near).then_some((at, got, wanted))
        })
    }
}

/// The unit in the last place of numbers as large as this one.
fn unit(part: DataType, size: f64) -> f64 {
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

/// How many units are allowed.
pub(crate) fn units(scene: &Scene, variant: &Variant) -> f64 {
    let nodes = variant.layout.nodes(scene.ranks).node_count();
    let is_narrow = part_of(scene.dtype).size() < 4;
    let by_messages = |name| {
        let row = algorithms(scene.kind).find(|row| row.name == name);
        row.is_some_and(|row| matches!(row.body, AlgorithmBody::Message(_)))
    };
    let rounded = match variant.choice {
        // Such an algorithm, asked for by name, takes each rank for a host.
        Choice::Named(name) if by_messages(name) => scene.ranks,
        // Wide numbers are rounded whenever two are added.
        _ if !is_narrow => scene.ranks,
        _ => nodes,
    };
    // The reference is rounded as often where it is no wider.
    let reference = if part_of(scene.dtype) == DataType::F64 { scene.ranks } else { 0 };
    match scene.op {
        Some(ReduceOp::Product) => factors(part_of(scene.dtype), rounded + reference),
        // Each part is divided, or the whole is.
        Some(ReduceOp::Avg) => (rounded + 1 + reference) as f64,
        _ => (rounded + reference) as f64,
    }
}

/// How many units a product may be away whose factors were rounded, each by half of its own unit,
/// and which is rounded itself: relative errors multiply, and that of a number just above a power
/// of two is the largest.
fn factors(part: DataType, rounded: usize) -> f64 {
    let half_a_unit = unit(part, 1.0) / 2.0;
    let times = (rounded + 1) as f64;
    (times * half_a_unit.ln_1p()).exp_m1() / half_a_unit
}
