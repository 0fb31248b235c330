//! Buckets in device memory.
//!
//! A bucket of gradient slots is reduced by one operation. The caller's gradients are reduced in
//! place with one operation each, and the back end receives the operations of a bucket as one
//! batch. Operations, zero fills and copies are enqueued in the stream of the gradients.
//!
//! An operation multiplies this rank's gradients by a factor, which must be known when the
//! operation is issued. If the factor depends on the weights of all ranks, the buckets are
//! therefore sent only at the end of the step.

use super::device::GradStream;
use super::memory::GradBlock;
use super::operation::new_work;
use super::reducer_state::{Reducer, ReducerPhase};
use super::send::StepSender;
use super::step::{GradMark, ReducerStep};
use super::step_log::{DeferredBytes, DeferredCondition, DeferredCopy};
use super::weights::ReduceFactor;
use crate::api::collective::call::{BufferLocation, Call, CallOptions};
use crate::api::collective::prepared_call::{self, PreparedCall};
use crate::api::work::handle::Work;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use std::sync::Arc;
use std::time::Instant;

/// The memory of one reduction: a gradient of the caller or the gradient slots of a bucket, and the
/// destination of the result.
#[derive(Clone, Copy, Debug)]
struct DeviceReduction {
    send: Dst<'static>,
    recv: Dst<'static>,
}

impl Reducer {
    /// Returns the options of an operation on a device, in the stream of the gradients.
    pub(super) fn device_options(&self, device: usize) -> CallOptions {
        CallOptions {
            location: BufferLocation::Device(device),
            stream: self.options.stream,
            ..self.call_options()
        }
    }

    /// Returns whether buckets on a device must wait, because the weights of the step have not
    /// arrived.
    pub(super) fn waits_for_weights(&self, step: &ReducerStep) -> bool {
        let is_unknown = step.sums.as_ref().is_none_or(|sums| sums.active().is_none());
        self.device.is_some() && self.options.exchanges_weights() && is_unknown
    }

    /// Sends the remaining buckets of a step with gradients on a device, and waits for their
    /// operations ([`Self::await_device`]). Does nothing if the gradients are in host memory.
    ///
    /// # Errors
    /// `InvalidHandle` if the group was released.
    pub(super) fn flush_device(&self, vote: u64) -> Result<()> {
        if self.device.is_none() {
            return Ok(());
        }
        // The first iteration waits for the weights of the step, the second for its buckets.
        for _ in 0..2 {
            let (works, limit) = {
                let mut state = self.settled();
                let state = &mut *state;
                let Some(mut step) = state.take_open_step() else { return Ok(()) };
                let group = state.group();
                if let Ok(group) = &group {
                    StepSender { reducer: self, state, group }.send_buckets(&mut step, vote);
                }
                let works = step.works.clone();
                state.phase = ReducerPhase::Open(step);
                (works, group?.deadline(&self.call_options()))
            };
            self.await_device(&works, &limit);
        }
        Ok(())
    }

    /// Waits until the operations are enqueued. If steps can be retried, or if the caller gave no
    /// stream, also waits until the device has completed the operations.
    fn await_device(&self, works: &[Arc<Work>], limit: &Deadline) {
        let is_synchronous = self.options.is_retryable || self.options.stream.is_none();
        let mut failure = None;
        for work in works {
            let ended = if is_synchronous { work.synchronize(limit) } else { work.wait(limit) };
            failure = failure.or(ended.err());
        }
        if let Some(error) = failure
            && let ReducerPhase::Open(step) = &mut self.lock().phase
        {
            step.failure.get_or_insert(error);
        }
    }
}

impl StepSender<'_> {
    /// Sends the next bucket, which is on a device.
    ///
    /// # Errors
    /// `Backend`, `OutOfMemory`, `System`; the failure of the group.
    pub(super) fn send_device_bucket(
        &self,
        step: &mut ReducerStep,
        factor: &ReduceFactor,
    ) -> Result<()> {
        let Self { reducer, state, group } = *self;
        let stream = self.stream()?;
        let bucket = &state.memory.layout.buckets[step.sent];
        let value = factor.value()?;
        for &param in &bucket.params {
            self.defer_copies(step, param)?;
            if step.marks[param] != GradMark::Ready || value == 0.0 {
                stream.fill_zero(self.device_grad(param))?;
            }
        }
        let mut options = reducer.device_options(stream.gpu().device);
        // Zeros need no factor, and a factor of 0 is not allowed.
        options.premul_scale = if value == 0.0 { 1.0 } else { value };
        let mut calls = Vec::new();
        for DeviceReduction { send, recv } in self.device_reductions(step.sent) {
            let call = Call::all_reduce(send.as_src(), recv, bucket.dtype, factor.op());
            calls.push(group.prepare(call, options.clone())?);
        }
        let works: Vec<Arc<Work>> = calls.iter().map(|call| Arc::clone(call.work())).collect();
        // The operations of a group end in the order of their issue, so the last work ends last.
        let last = works.last().map_or_else(|| new_work(group), Arc::clone);
        self.call_back_bucket(step, &last)?;
        launch_all(calls)?;
        let bytes = bucket.lengths.iter().sum::<usize>() as u64;
        let mut notes = step.log.lock();
        notes.bytes_reduced += bytes;
        notes.bytes_sent += bytes;
        drop(notes);
        step.times.first_sent.get_or_insert_with(Instant::now);
        step.works.extend(works);
        step.sent += 1;
        Ok(())
    }

    fn stream(&self) -> Result<&GradStream> {
        self.reducer.device.as_ref().ok_or_else(|| Error::internal("a device bucket has no stream"))
    }

    /// Returns the memory of a gradient.
    fn device_grad(&self, param: usize) -> Dst<'static> {
        let owned = self.reducer.params[param].grad;
        owned.or_else(|| self.state.memory.slot(param)).unwrap_or(Dst::empty())
    }

    /// Records the copies of a gradient and of its result that must wait for the end of the step.
    /// If this rank does not contribute the gradient and may have to restore it, first copies the
    /// gradient to separate memory.
    fn defer_copies(&self, step: &ReducerStep, param: usize) -> Result<()> {
        let mark = step.marks[param];
        let grad = self.device_grad(param);
        let result = self.state.memory.result(param);
        let keeps = !step.is_joined
            && mark != GradMark::Ready
            && mark.keeps_unused(self.reducer.options.missing);
        if keeps && !grad.is_empty() {
            let stream = self.stream()?;
            let aside = Arc::new(GradBlock::new(self.group, grad.len(), Some(stream))?);
            stream.copy(grad.as_src(), aside.view())?;
            for to in [Some(grad), result].into_iter().flatten() {
                let _held = Some(Arc::clone(&aside));
                let bytes = DeferredBytes::OnDevice { bytes: aside.view().as_src(), _held };
                let when = DeferredCondition::Unused;
                step.log.lock().deferred.push(DeferredCopy { param, when, bytes, to });
            }
            step.log.lock().bytes_copied += grad.len() as u64;
        }
        if let (Some(grad), Some(result), false) =
            (self.reducer.params[param].grad, result, step.is_joined)
        {
            let when = DeferredCondition::used_or_always(keeps);
            let bytes = DeferredBytes::OnDevice { bytes: result.as_src(), _held: None };
            step.log.lock().deferred.push(DeferredCopy { param, when, bytes, to: grad });
        }
        Ok(())
    }

    /// Creates the operations of a bucket: one for gradient slots, or one for each of the caller's
    /// gradients.
    fn device_reductions(&self, index: usize) -> Vec<DeviceReduction> {
        let memory = &self.state.memory;
        let bucket = &memory.layout.buckets[index];
        let result = memory.bucket_result(index);
        if let Some(slots) = memory.bucket_slots(index) {
            return vec![DeviceReduction { send: slots, recv: result.unwrap_or(slots) }];
        }
        let mut reductions = Vec::new();
        for (position, &param) in bucket.params.iter().enumerate() {
            let grad = self.reducer.params[param].grad.unwrap_or(Dst::empty());
            let recv = result.map_or(grad, |result| bucket.part(result, position));
            reductions.push(DeviceReduction { send: grad, recv });
        }
        reductions
    }
}

/// Issues the calls of a bucket. The calls that are enqueued on the device are issued as one batch.
fn launch_all(calls: Vec<PreparedCall>) -> Result<()> {
    let (enqueued, others): (Vec<PreparedCall>, Vec<PreparedCall>) =
        calls.into_iter().partition(PreparedCall::is_device_enqueued);
    others.into_iter().try_for_each(PreparedCall::issue)?;
    if !enqueued.is_empty() {
        prepared_call::issue_on_devices(enqueued, false);
    }
    Ok(())
}
