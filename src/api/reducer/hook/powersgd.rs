//! PowerSGD hook: it sends gradients as matrices of low rank.
//!
//! The method is one step of power iteration, from Vogels, Karimireddy and Jaggi, "PowerSGD:
//! Practical Low-Rank Gradient Compression for Distributed Optimization" (2019):
//!
//! 1. The gradient is a matrix M of n x m, and Q is a factor of m x r with a small rank r. P = M Q
//!    is summed over the ranks, and its columns are made orthonormal.
//! 2. Q = M^T P is computed and summed over the ranks.
//! 3. The result is P Q^T.
//! 4. The difference to this rank's M is added to the gradient of the next step (error feedback).
//! 5. The next step begins with this Q (warm start).
//!
//! The rows of the matrix are the first dimension of the parameter. Gradients with one dimension,
//! and gradients that compression would not make much smaller, are reduced without compression. The
//! errors and Q are stored only if the ranks agree on the step.

use super::super::operation::OperationTurn;
use super::super::param::Param;
use super::bucket::{HookBucket, HookOutcome, PowerUpdate, add_up, sum};
use super::choice::PowerSettings;
use crate::base::error::Result;
use std::collections::HashMap;

/// The number of operations: one for the uncompressed gradients, and one for each of the two
/// factors.
pub(super) const OPERATIONS: u64 = 3;

/// A column with a smaller norm counts as zero.
const SHORTEST: f32 = 1e-20;

/// A gradient that is sent as two factors.
#[derive(Debug)]
struct CompressedMatrix {
    param: usize,
    /// The index of the gradient's first element in the values of the bucket.
    begin: usize,
    shape: MatrixShape,
    /// The factor with as many rows as the matrix; orthonormal after the sum over all ranks.
    p: Vec<f32>,
    /// The factor with as many rows as the matrix has columns.
    q: Vec<f32>,
}

/// The dimensions of a matrix, and the rank of its factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MatrixShape {
    rows: usize,
    columns: usize,
    rank: usize,
}

/// The hook and its state between steps.
#[derive(Debug)]
pub(super) struct PowerSgd {
    settings: PowerSettings,
    /// The matrix shape of each parameter's gradient; `None` for gradients without compression.
    shapes: Vec<Option<MatrixShape>>,
    /// The error of the last step for each parameter (error feedback).
    errors: HashMap<usize, Vec<f32>>,
    /// The factor Q of the last step for each parameter (warm start).
    factors: HashMap<usize, Vec<f32>>,
    /// The number of steps when the reducer began to use its group. The initial factors depend on
    /// this number.
    since: u64,
}

impl MatrixShape {
    /// Returns the matrix of a parameter, if compression makes it small enough.
    fn of(param: &Param, settings: PowerSettings) -> Option<Self> {
        let rows = usize::try_from(*param.shape.first()?).ok().filter(|&rows| rows > 0)?;
        let columns = param.count / rows;
        let rank = settings.rank.min(rows).min(columns);
        let factors = (rows + columns).checked_mul(rank)?.checked_mul(settings.min_ratio)?;
        (param.is_trained() && !param.is_sparse && param.shape.len() > 1 && factors < param.count)
            .then_some(Self { rows, columns, rank })
    }

    fn count(self) -> usize {
        self.rows * self.columns
    }
}

impl PowerSgd {
    pub(super) fn new(settings: PowerSettings, params: &[Param], since: u64) -> Self {
        let shapes = params.iter().map(|param| MatrixShape::of(param, settings)).collect();
        Self { settings, shapes, errors: HashMap::new(), factors: HashMap::new(), since }
    }

    /// Restarts with initial factors that are equal on all ranks of another group, including ranks
    /// that join.
    pub(super) fn regroup(&mut self, steps: u64) {
        self.factors.clear();
        self.since = steps;
    }

    pub(super) fn commit(&mut self, updates: Vec<PowerUpdate>) {
        for PowerUpdate { param, error, q } in updates {
            if self.settings.has_feedback {
                self.errors.insert(param, error);
            }
            if self.settings.has_warm_start {
                self.factors.insert(param, q);
            }
        }
    }

    pub(super) fn reduce(
        &self,
        bucket: &HookBucket<'_>,
        turn: &mut OperationTurn<'_>,
    ) -> Result<HookOutcome> {
        if bucket.step < self.settings.start {
            bucket.scale_own();
            turn.run(&sum(bucket.recv.as_src(), bucket.recv, bucket.dtype()))?;
            return Ok(HookOutcome { bytes_sent: bucket.recv.len() as u64, updates: Vec::new() });
        }
        let mut values = Vec::new();
        bucket.widen_into(&mut values);
        let mut matrices = self.matrices(bucket, &mut values);
        let rest = self.add_rest(bucket, &mut values, turn)?;

        add_all(&mut matrices, |matrix| &mut matrix.p, turn)?;
        for matrix in &mut matrices {
            orthonormalise(&mut matrix.p, matrix.shape.rank);
            matrix.multiply_transposed(&values);
        }
        let own: Vec<Vec<f32>> = matrices.iter().map(|matrix| matrix.q.clone()).collect();
        add_all(&mut matrices, |matrix| &mut matrix.q, turn)?;
        let mut updates = Vec::with_capacity(matrices.len());
        for (matrix, own) in matrices.into_iter().zip(own) {
            updates.push(self.finish(matrix, &own, &mut values, bucket.step));
        }
        bucket.narrow_from(&values);
        let factors: usize = updates.iter().map(|update| self.factor_count(update.param)).sum();
        let bytes_sent = (factors + rest) * size_of::<f32>();
        Ok(HookOutcome { bytes_sent: bytes_sent as u64, updates })
    }

    fn factor_count(&self, param: usize) -> usize {
        self.shapes[param].map_or(0, |shape| (shape.rows + shape.columns) * shape.rank)
    }

    /// Adds the errors of the last step to the values of a bucket's matrices. Returns the matrices
    /// with the factors that the step begins with: Q of the last step or a random Q, and P = M Q.
    fn matrices(&self, bucket: &HookBucket<'_>, values: &mut [f32]) -> Vec<CompressedMatrix> {
        let mut matrices = Vec::new();
        for ((_, _, begin), &param) in bucket.pieces().zip(&bucket.spec.params) {
            let Some(shape) = self.shapes[param] else { continue };
            let matrix = &mut values[begin..begin + shape.count()];
            if let Some(error) = self.errors.get(&param) {
                matrix.iter_mut().zip(error).for_each(|(value, error)| *value += error);
            }
            let q = match self.factors.get(&param) {
                Some(q) => q.clone(),
                None if self.settings.has_warm_start => random(param, self.since, shape),
                None => random(param, bucket.step, shape),
            };
            let p = multiply(matrix, &q, shape);
            matrices.push(CompressedMatrix { param, begin, shape, p, q });
        }
        matrices
    }

    /// Sums the uncompressed gradients over the ranks, and returns their number of elements.
    fn add_rest(
        &self,
        bucket: &HookBucket<'_>,
        values: &mut [f32],
        turn: &mut OperationTurn<'_>,
    ) -> Result<usize> {
        let size = bucket.dtype().size();
        let ranges: Vec<std::ops::Range<usize>> = bucket
            .pieces()
            .zip(&bucket.spec.params)
            .filter(|&(_, &param)| self.shapes[param].is_none())
            .map(|((_, len, begin), _)| begin..begin + len / size)
            .collect();
        let mut rest: Vec<f32> =
            ranges.iter().flat_map(|range| values[range.clone()].iter().copied()).collect();
        add_up(turn, &mut rest)?;
        let mut left = rest.as_slice();
        for range in ranges {
            let (part, after) = left.split_at(range.len());
            values[range].copy_from_slice(part);
            left = after;
        }
        Ok(rest.len())
    }

    /// Replaces the values of a matrix by the product of its factors. Returns the error for the
    /// next step. `own` is this rank's Q before the sum over the ranks.
    fn finish(
        &self,
        matrix: CompressedMatrix,
        own: &[f32],
        values: &mut [f32],
        step: u64,
    ) -> PowerUpdate {
        let CompressedMatrix { param, begin, shape, p, mut q } = matrix;
        let values = &mut values[begin..begin + shape.count()];
        let mut error = Vec::new();
        if self.settings.has_feedback {
            error = product(&p, own, shape);
            for (error, value) in error.iter_mut().zip(&*values) {
                // An error that is not finite would make all later gradients not finite.
                *error = Some(value - *error).filter(|error| error.is_finite()).unwrap_or(0.0);
            }
        }
        values.copy_from_slice(&product(&p, &q, shape));
        // Factors that are zero or not finite would never recover.
        if !is_of_full_rank(&q, shape.rank) {
            q = random(param, step + 1, shape);
        }
        PowerUpdate { param, error, q }
    }
}

impl CompressedMatrix {
    /// Computes Q = M^T P.
    fn multiply_transposed(&mut self, values: &[f32]) {
        let MatrixShape { columns, rank, .. } = self.shape;
        self.q.fill(0.0);
        let matrix = &values[self.begin..self.begin + self.shape.count()];
        for (row, p) in matrix.chunks_exact(columns).zip(self.p.chunks_exact(rank)) {
            for (value, q) in row.iter().zip(self.q.chunks_exact_mut(rank)) {
                q.iter_mut().zip(p).for_each(|(q, p)| *q += value * p);
            }
        }
    }
}

/// Sums one factor of all matrices over the ranks, in one operation.
fn add_all(
    matrices: &mut [CompressedMatrix],
    factor: impl Fn(&mut CompressedMatrix) -> &mut Vec<f32>,
    turn: &mut OperationTurn<'_>,
) -> Result<()> {
    let mut all: Vec<f32> = Vec::new();
    matrices.iter_mut().for_each(|matrix| all.extend_from_slice(factor(matrix)));
    add_up(turn, &mut all)?;
    let mut left = all.as_slice();
    for matrix in matrices {
        let factor = factor(matrix);
        let (part, after) = left.split_at(factor.len());
        factor.copy_from_slice(part);
        left = after;
    }
    Ok(())
}

/// Computes P = M Q.
fn multiply(matrix: &[f32], q: &[f32], shape: MatrixShape) -> Vec<f32> {
    let MatrixShape { rows, columns, rank } = shape;
    let mut p = vec![0.0; rows * rank];
    for (row, p) in matrix.chunks_exact(columns).zip(p.chunks_exact_mut(rank)) {
        for (value, q) in row.iter().zip(q.chunks_exact(rank)) {
            p.iter_mut().zip(q).for_each(|(p, q)| *p += value * q);
        }
    }
    p
}

/// Computes P Q^T.
fn product(p: &[f32], q: &[f32], shape: MatrixShape) -> Vec<f32> {
    let MatrixShape { columns, rank, .. } = shape;
    let mut matrix = vec![0.0; shape.count()];
    for (row, p) in matrix.chunks_exact_mut(columns).zip(p.chunks_exact(rank)) {
        for (value, q) in row.iter_mut().zip(q.chunks_exact(rank)) {
            *value = p.iter().zip(q).map(|(p, q)| p * q).sum();
        }
    }
    matrix
}

/// Makes the columns of a matrix orthonormal (modified Gram-Schmidt). Columns that depend on
/// earlier columns become zeros.
fn orthonormalise(matrix: &mut [f32], columns: usize) {
    for column in 0..columns {
        let before = norm(matrix, column, columns);
        for earlier in 0..column {
            let dot: f32 = matrix.chunks_exact(columns).map(|row| row[earlier] * row[column]).sum();
            matrix.chunks_exact_mut(columns).for_each(|row| row[column] -= dot * row[earlier]);
        }
        let length = norm(matrix, column, columns);
        let is_zero = length < SHORTEST || length < before * f32::EPSILON * 4.0;
        let factor = if is_zero { 0.0 } else { 1.0 / length };
        matrix.chunks_exact_mut(columns).for_each(|row| row[column] *= factor);
    }
}

fn norm(matrix: &[f32], column: usize, columns: usize) -> f32 {
    matrix.chunks_exact(columns).map(|row| row[column] * row[column]).sum::<f32>().sqrt()
}

/// Returns whether no column is zero and all numbers are finite.
fn is_of_full_rank(matrix: &[f32], columns: usize) -> bool {
    (0..columns).all(|column| {
        let length = norm(matrix, column, columns);
        length.is_finite() && length >= SHORTEST
    })
}

/// Returns an initial factor with numbers from -1 to 1, equal on all ranks.
fn random(param: usize, step: u64, shape: MatrixShape) -> Vec<f32> {
    let mut state = (param as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step.rotate_left(32);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        split_mix(state)
    };
    let unit = |bits: u64| {
        #[allow(clippy::cast_possible_truncation, reason = "24 bits fit")]
        let bits = (bits >> 40) as u32;
        #[allow(clippy::cast_precision_loss, reason = "24 bits fit")]
        let unit = bits as f32 / (1 << 23) as f32;
        unit - 1.0
    };
    (0..shape.columns * shape.rank).map(|_| unit(next())).collect()
}

/// Computes the output function of Steele, Lea and Flood's SplitMix64 (2014).
fn split_mix(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::reducer::param::tests::param;

    const SHAPE: MatrixShape = MatrixShape { rows: 5, columns: 4, rank: 2 };

    fn settings(text: &str) -> PowerSettings {
        let super::super::HookChoice::PowerSgd(settings) =
            super::super::HookChoice::parse("powersgd", text).unwrap()
        else {
            unreachable!("the name is that of PowerSGD")
        };
        settings
    }

    #[test]
    fn only_matrices_that_become_smaller_are_compressed() {
        let mut matrix = param("w", 64 * 32 * 9);
        matrix.shape = vec![64, 32, 3, 3];
        let shape = MatrixShape::of(&matrix, settings("rank=4"));
        assert_eq!(shape, Some(MatrixShape { rows: 64, columns: 288, rank: 4 }));
        assert_eq!(MatrixShape::of(&matrix, settings("rank=64")), None);
        assert_eq!(MatrixShape::of(&param("bias", 1000), settings("")), None);
        let mut narrow = param("narrow", 20);
        narrow.shape = vec![10, 2];
        assert_eq!(MatrixShape::of(&narrow, settings("")), None);
    }

    #[test]
    fn one_iteration_finds_a_matrix_of_low_rank() {
        let left = random(1, 0, MatrixShape { rows: 0, columns: 5, rank: 2 });
        let right = random(2, 0, SHAPE);
        let matrix = product(&left, &right, SHAPE);
        let mut p = multiply(&matrix, &random(3, 0, SHAPE), SHAPE);
        orthonormalise(&mut p, 2);
        let dot: f32 = p.chunks_exact(2).map(|row| row[0] * row[1]).sum();
        assert!(dot.abs() < 1e-5, "{dot}");
        let mut found =
            CompressedMatrix { param: 0, begin: 0, shape: SHAPE, p, q: vec![0.0; 4 * 2] };
        found.multiply_transposed(&matrix);
        for (a, b) in matrix.iter().zip(product(&found.p, &found.q, SHAPE)) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    #[test]
    fn zero_and_dependent_columns_stay_finite() {
        let mut zeros = vec![0.0; 10];
        orthonormalise(&mut zeros, 2);
        assert_eq!(zeros, [0.0; 10]);
        let mut same: Vec<f32> = (1..=5_u8).flat_map(|row| [f32::from(row); 2]).collect();
        orthonormalise(&mut same, 2);
        assert!(same.iter().all(|value| value.is_finite()));
        assert!(!is_of_full_rank(&same, 2) && !is_of_full_rank(&[f32::NAN, 1.0], 2));
    }

    #[test]
    fn compression_error_is_added_in_the_next_step() {
        let hook = PowerSgd::new(settings("rank=1;min_ratio=1"), &[], 0);
        let shape = MatrixShape { rows: 2, columns: 2, rank: 1 };
        let mut values = vec![1.0, 0.0, 0.0, 3.0];
        let matrix =
            CompressedMatrix { param: 0, begin: 0, shape, p: vec![0.0, 1.0], q: vec![0.0, 3.0] };
        let update = hook.finish(matrix, &[0.0, 3.0], &mut values, 0);
        assert_eq!(values, [0.0, 0.0, 0.0, 3.0]);
        assert_eq!(update.error, [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(update.q, [0.0, 3.0]);
    }
}
