//! Buckets in device memory.
//!
//! A bucket of places is reduced by one operation. The caller's gradients are reduced in place with
//! one operation each, and the back end receives those of a bucket as one batch. Operations, zero
//! fills and copies are enqueued in the stream of the gradients. The factor of an operation must be
//! known when it is issued, so with weights the buckets are sent at the end of the step.

use super::device::GradStream;
use super::launch::new_work;
use super::memory::GradBlock;
use super::options::ReducerOptions;
use super::step::{GradMark, ReducerStep};
use super::task::{DeferredCondition, DeferredCopy};
use super::weights::ReduceFactor;
use super::{Reducer, ReducerPhase, ReducerState};
use crate::api::collective::call::{BufferLocation, Call, CallOptions};
use crate::api::collective::prepared_call::{self, PreparedCall};
use crate::api::group::process_group::Group;
use crate::api::work::handle::Work;
use crate::backend::SupportQuery;
use crate::base::buffer::Dst;
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::op::ReduceOp;
use crate::transport::OpKind;
use std::sync::Arc;
use std::time::Instant;

/// Refuses gradients that the group cannot reduce on a device.
///
/// # Errors
/// `Unsupported`.
pub(super) fn check(
    group: &Group,
    (device, dtype, op): (usize, DataType, ReduceOp),
    options: &ReducerOptions,
) -> Result<()> {
    if group.device != Some(device) {
        let message = format!(
            "it is in the memory of device {device}: create the group with that device (DIST_FIELD_DEVICE)"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if options.is_canonical && group.backend.is_stream_ordered() {
        let message = format!(
            "DIST_REDUCER_CANONICAL is not supported on device {device}: back end {} chooses the \
             order of additions itself",
            group.backend_name()
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    op.check_defined_for(dtype, || group.backend_name())?;
    let kind = OpKind::AllReduce;
    let (name, dtype, op) = (kind.name(), Some(dtype), Some(op));
    group.backend.supports(&SupportQuery { name, kind: Some(kind), dtype, op, gpu: Some(device) })
}

/// A gradient or the places of a bucket, with the destination of the result.
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

    /// Sends the next bucket, which is on a device.
    ///
    /// # Errors
    /// `Backend`, `OutOfMemory`, `System`; the failure of the group.
    pub(super) fn send_device_bucket(
        &self,
        state: &ReducerState,
        step: &mut ReducerStep,
        group: &Arc<Group>,
        factor: &ReduceFactor,
    ) -> Result<()> {
        let stream = self.stream()?;
        let bucket = &state.memory.layout.buckets[step.sent];
        let value = factor.value()?;
        for position in 0..bucket.params.len() {
            self.prepare_grad(state, step, (group, stream), (position, value))?;
        }
        let mut options = self.device_options(stream.gpu().device);
        // Zeros need no factor, and a factor of 0 is not allowed.
        options.premul_scale = if value == 0.0 { 1.0 } else { value };
        let mut calls = Vec::new();
        for DeviceReduction { send, recv } in self.device_reductions(state, step.sent) {
            let call = Call::all_reduce(send.as_src(), recv, bucket.dtype, factor.op());
            calls.push(group.prepare(call, options.clone())?);
        }
        let works: Vec<Arc<Work>> = calls.iter().map(|call| Arc::clone(call.work())).collect();
        self.call_back_device(state, step, group, &works)?;
        launch_all(calls)?;
        let bytes = bucket.lengths.iter().sum::<usize>() as u64;
        let mut notes = step.notes.lock();
        notes.bytes_reduced += bytes;
        notes.bytes_sent += bytes;
        drop(notes);
        step.times.first_sent.get_or_insert_with(Instant::now);
        step.works.extend(works);
        step.sent += 1;
        Ok(())
    }

    fn stream(&self) -> Result<&GradStream> {
        self.device.as_ref().ok_or_else(|| Error::internal("a device bucket has no stream"))
    }

    /// Enqueues zeros for a gradient that this rank does not contribute, and records the copies
    /// that wait for the end of the step.
    fn prepare_grad(
        &self,
        state: &ReducerState,
        step: &ReducerStep,
        (group, stream): (&Group, &GradStream),
        (position, factor): (usize, f64),
    ) -> Result<()> {
        let bucket = &state.memory.layout.buckets[step.sent];
        let param = bucket.params[position];
        let mark = step.marks[param];
        let owned = self.params[param].grad;
        let grad = owned.or_else(|| state.memory.place(param)).unwrap_or(Dst::empty());
        let result = state.memory.result(param);
        let keeps = !step.is_joined && mark != GradMark::Ready && self.options.keeps_unused(mark);
        if keeps && !grad.is_empty() {
            let aside = Arc::new(GradBlock::new(group, grad.len(), Some(stream))?);
            stream.copy(grad.as_src(), aside.view())?;
            for to in [Some(grad), result].into_iter().flatten() {
                let held = Some(Arc::clone(&aside));
                let when = (param, DeferredCondition::Unused);
                let copy = DeferredCopy::on_device(when, aside.view().as_src(), held, to);
                step.notes.lock().deferred.push(copy);
            }
            step.notes.lock().bytes_copied += grad.len() as u64;
        }
        if mark != GradMark::Ready || factor == 0.0 {
            stream.fill_zero(grad)?;
        }
        if let (Some(grad), Some(result), false) = (owned, result, step.is_joined) {
            let when = if keeps { DeferredCondition::Used } else { DeferredCondition::Always };
            let copy = DeferredCopy::on_device((param, when), result.as_src(), None, grad);
            step.notes.lock().deferred.push(copy);
        }
        Ok(())
    }

    /// Creates the operations of a bucket: one for places, or one for each of the caller's
    /// gradients.
    fn device_reductions(&self, state: &ReducerState, index: usize) -> Vec<DeviceReduction> {
        let bucket = &state.memory.layout.buckets[index];
        let result = state.memory.bucket_result(index);
        if let Some(places) = state.memory.bucket_places(index) {
            return vec![DeviceReduction { send: places, recv: result.unwrap_or(places) }];
        }
        let mut reductions = Vec::new();
        for (position, &param) in bucket.params.iter().enumerate() {
            let grad = self.params[param].grad.unwrap_or(Dst::empty());
            let recv = result.map_or(grad, |result| bucket.part(result, position));
            reductions.push(DeviceReduction { send: grad, recv });
        }
        reductions
    }

    fn call_back_device(
        &self,
        state: &ReducerState,
        step: &ReducerStep,
        group: &Group,
        works: &[Arc<Work>],
    ) -> Result<()> {
        let is_called = !self.options.is_retryable && !step.is_joined;
        let Some(function) = state.on_bucket.as_ref().filter(|_| is_called) else { return Ok(()) };
        // The operations of a group end in the order of their issue.
        let last = works.last().map_or_else(|| new_work(group), Arc::clone);
        let bucket = (step.sent..step.sent + 1, step.number);
        self.call_back(&state.memory, (&last, None), function, bucket)
    }

    /// Sends the remaining buckets of a step with gradients on a device, and waits until the ranks
    /// can agree on the step. Does nothing without a device.
    /// # Errors
    /// `InvalidHandle` if the group was released.
    pub(super) fn flush_device(self: &Arc<Self>, vote: u64) -> Result<()> {
        if self.device.is_none() {
            return Ok(());
        }
        // The first iteration waits for the weights of the step, the second for its buckets.
        for _ in 0..2 {
            let (works, limit) = {
                let mut state = self.settled();
                let state = &mut *state;
                if !matches!(state.phase, ReducerPhase::Open(_)) {
                    return Ok(());
                }
                let ReducerPhase::Open(mut step) =
                    std::mem::replace(&mut state.phase, ReducerPhase::Idle)
                else {
                    return Err(Error::internal("the open step is missing"));
                };
                let group = state.group();
                if let Ok(group) = &group {
                    self.send_buckets(state, &mut step, vote, group);
                }
                let works = step.works.clone();
                state.phase = ReducerPhase::Open(step);
                (works, group?.deadline(&self.call_options()))
            };
            self.await_device(&works, &limit);
        }
        Ok(())
    }

    /// Waits until the operations are enqueued. With retryable steps, or without a stream of the
    /// caller, also waits until the device has completed them.
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

/// Issues the calls of a bucket, as one batch if they are enqueued.
fn launch_all(calls: Vec<PreparedCall>) -> Result<()> {
    let (enqueued, others): (Vec<PreparedCall>, Vec<PreparedCall>) =
        calls.into_iter().partition(PreparedCall::is_device_enqueued);
    others.into_iter().try_for_each(PreparedCall::issue)?;
    if !enqueued.is_empty() {
        prepared_call::issue_on_devices(enqueued, false);
    }
    Ok(())
}
