//! The input of a hook: a bucket, and the turn in which the hook may communicate.

use super::super::layout::BucketSpec;
use super::super::task::run_in_turn;
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::kernel;
use crate::transport::Descriptor;

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
    pub(super) fn pieces(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let size = self.dtype().size();
        let pieces = self.spec.offsets.iter().zip(&self.spec.lengths);
        pieces.scan(0, move |begin, (&offset, &len)| {
            let at = *begin;
            *begin += len / size;
            Some((offset, len, at))
        })
    }

    /// Writes this rank's gradients as f32 without gaps, multiplied by its factor.
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

    /// Copies this rank's gradients into the result unchanged.
    pub(super) fn keep_own(&self) {
        if self.send.as_mut_ptr() != self.recv.as_mut_ptr() {
            self.recv.copy_from(self.send.as_src());
        }
    }

    /// Copies this rank's gradients into the result, multiplied by its factor. The gaps become
    /// zeros.
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

/// The turn of a group in which a hook runs.
#[derive(Debug)]
pub(in crate::api::reducer) struct HookTurn<'t> {
    pub(in crate::api::reducer) group: &'t Group,
    pub(in crate::api::reducer) options: &'t CallOptions,
    pub(in crate::api::reducer) first: Descriptor,
    pub(in crate::api::reducer) deadline: &'t Deadline,
    /// The number of operations that ran in this turn.
    pub(in crate::api::reducer) used: u64,
}

impl HookTurn<'_> {
    /// Runs the next operation of the turn.
    ///
    /// # Errors
    /// The errors of collectives.
    pub(super) fn run(&mut self, call: &Call<'_>) -> Result<()> {
        let Descriptor { sequence, label, .. } = self.first;
        let descriptor = call.descriptor(sequence + self.used, label);
        self.used += 1;
        run_in_turn(self.group, call, self.options, descriptor, self.deadline)
    }

    /// Adds vectors of all ranks, in place.
    ///
    /// # Errors
    /// The errors of an all_reduce.
    pub(super) fn add_up(&mut self, values: &mut [f32]) -> Result<()> {
        let view = Dst::from(values);
        self.run(&sum(view.as_src(), view, DataType::F32))
    }
}

/// Returns an all_reduce that adds.
pub(super) fn sum<'a>(send: Src<'a>, recv: Dst<'a>, dtype: DataType) -> Call<'a> {
    Call::all_reduce(send, recv, dtype, crate::base::op::ReduceOp::Sum)
}
