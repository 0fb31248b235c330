//! The input and the outcome of a hook, which reduces a bucket in place of an all_reduce.

use super::super::layout::BucketSpec;
use super::super::operation::OperationTurn;
use crate::api::collective::call::Call;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::kernel;

/// The outcome of a hook for one bucket, for use at the end of the step.
#[derive(Debug, Default)]
pub(in crate::api::reducer) struct HookOutcome {
    /// The number of bytes sent, in the hook's encoding.
    pub(in crate::api::reducer) bytes_sent: u64,
    /// Updates that the hook keeps if the ranks agree on the step.
    pub(in crate::api::reducer) updates: Vec<PowerUpdate>,
}

/// The state of PowerSGD for one gradient, for use in the next step.
#[derive(Debug)]
pub(in crate::api::reducer) struct PowerUpdate {
    pub(super) param: usize,
    pub(super) error: Vec<f32>,
    pub(super) q: Vec<f32>,
}

/// A bucket that a hook reduces.
#[derive(Clone, Copy, Debug)]
pub(in crate::api::reducer) struct HookBucket<'b> {
    pub(in crate::api::reducer) spec: &'b BucketSpec,
    pub(in crate::api::reducer) index: usize,
    pub(in crate::api::reducer) n_buckets: usize,
    pub(in crate::api::reducer) step: u64,
    /// This rank's gradients.
    pub(in crate::api::reducer) send: Dst<'static>,
    /// The memory for the sums; it may be the same as `send`.
    pub(in crate::api::reducer) recv: Dst<'static>,
    /// The factor of this rank's gradients.
    pub(in crate::api::reducer) factor: f64,
}

impl HookBucket<'_> {
    pub(super) fn dtype(&self) -> DataType {
        self.spec.dtype
    }

    /// Returns the number of elements without the gaps between gradients.
    pub(super) fn count(&self) -> usize {
        self.spec.lengths.iter().sum::<usize>() / self.dtype().size()
    }

    /// Returns, for each gradient, its offset in the bucket in bytes, its length in bytes, and the
    /// index of its first element if the gradients follow each other without gaps.
    ///
    /// For example, two gradients of 3 and 2 elements in f32 give (0, 12, 0) and (64, 8, 3),
    /// because gradients begin at multiples of 64 bytes.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let size = self.dtype().size();
        let pieces = self.spec.offsets.iter().zip(&self.spec.lengths);
        pieces.scan(0, move |begin, (&offset, &len)| {
            let at = *begin;
            *begin += len / size;
            Some((offset, len, at))
        })
    }

    /// Writes this rank's gradients as f32 without gaps, multiplied by this rank's factor.
    pub(super) fn widen_into(&self, values: &mut Vec<f32>) {
        values.clear();
        values.resize(self.count(), 0.0);
        for (offset, len, begin) in self.pieces() {
            let into = &mut values[begin..begin + len / self.dtype().size()];
            kernel::widen(self.dtype(), self.factor, self.send.as_src().slice(offset, len), into);
        }
    }

    /// Writes the sums, given without gaps, into the result.
    pub(super) fn narrow_from(&self, values: &[f32]) {
        for (offset, len, begin) in self.pieces() {
            let from = &values[begin..begin + len / self.dtype().size()];
            kernel::narrow(self.dtype(), from, self.recv.slice(offset, len));
        }
    }

    /// Sends and adds the gradients as f16 or bf16, which takes half the bytes of f32.
    pub(super) fn reduce_as(
        &self,
        to: DataType,
        turn: &mut OperationTurn<'_>,
    ) -> Result<HookOutcome> {
        let (dtype, size) = (self.dtype(), to.size());
        let mut room = vec![0; self.count() * size];
        let view = Dst::from(room.as_mut_slice());
        let part = |begin: usize, len: usize| view.slice(begin * size, len / dtype.size() * size);
        for (offset, len, begin) in self.pieces() {
            let src = self.send.as_src().slice(offset, len);
            kernel::convert(dtype, src, self.factor, to, part(begin, len));
        }
        turn.run(&sum(view.as_src(), view, to))?;
        for (offset, len, begin) in self.pieces() {
            let src = part(begin, len).as_src();
            kernel::convert(to, src, 1.0, dtype, self.recv.slice(offset, len));
        }
        Ok(HookOutcome { bytes_sent: view.len() as u64, updates: Vec::new() })
    }

    /// Copies this rank's gradients into the result unchanged.
    pub(super) fn keep_own(&self) {
        if self.send.as_mut_ptr() != self.recv.as_mut_ptr() {
            self.recv.copy_from(self.send.as_src());
        }
    }

    /// Copies this rank's gradients into the result, multiplied by this rank's factor. The gaps
    /// become zeros.
    pub(super) fn scale_own(&self) {
        let mut end = 0;
        for (offset, len, _) in self.pieces() {
            self.recv.slice(end, offset - end).fill_zero();
            let (from, to) = (self.send.slice(offset, len), self.recv.slice(offset, len));
            kernel::scale_copy(self.dtype(), self.factor, to, from.as_src());
            end = offset + len;
        }
    }
}

/// Adds vectors of all ranks, in place.
///
/// # Errors
/// The errors of an all_reduce.
pub(super) fn add_up(turn: &mut OperationTurn<'_>, values: &mut [f32]) -> Result<()> {
    let view = Dst::from(values);
    turn.run(&sum(view.as_src(), view, DataType::F32))
}

/// Returns an all_reduce with the operator SUM.
pub(super) fn sum<'a>(send: Src<'a>, recv: Dst<'a>, dtype: DataType) -> Call<'a> {
    Call::all_reduce(send, recv, dtype, crate::base::op::ReduceOp::Sum)
}
