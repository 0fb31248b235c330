//! The part of one group in a batch of enqueued operations: its collectives, which take a turn of
//! the group's queue, and its messages.

use crate::api::collective::buffer_location::PreparedDeviceMessage;
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::observe::recorder;
use crate::api::observe::recorder::OperationRecord;
use crate::api::work::handle::{PendingMessage, Work};
use crate::api::work::issue::{DeviceOperation, PreparedCall};
use crate::api::work::queue::Turn;
use crate::backend::{DeviceBackend, DeviceMessage, JointEnqueuer, Operation};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, Result};
use crate::base::gpu::EnqueueRequest;
use crate::transport::{Completion, Delivery, Descriptor};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A collective, with its recorder entry once it has a sequence number.
#[derive(Debug)]
struct EnqueuedCollective {
    call: Call<'static>,
    options: CallOptions,
    work: Arc<Work>,
    record: Option<OperationRecord>,
}

/// The operations of one group. Its works end exactly once: by [`GroupBatch::finish`] or
/// [`abandon_works`].
#[derive(Debug)]
pub(super) struct GroupBatch {
    group: Arc<Group>,
    collectives: Vec<EnqueuedCollective>,
    messages: Vec<PreparedDeviceMessage>,
    /// The shortest deadline of the calls.
    deadline: Deadline,
    /// The sequence number of the first collective.
    first_number: u64,
}

impl GroupBatch {
    pub(super) fn new(group: &Arc<Group>) -> Self {
        let (collectives, messages) = (Vec::new(), Vec::new());
        Self {
            group: Arc::clone(group),
            collectives,
            messages,
            deadline: Deadline::never(),
            first_number: 0,
        }
    }

    /// Adds an enqueued call of the group. A call that cannot be enqueued ends with an error.
    pub(super) fn add(&mut self, call: PreparedCall) {
        call.register_in_flight_buffers();
        let deadline = call.start_deadline();
        if deadline.timeout() < self.deadline.timeout() {
            self.deadline = deadline;
        }
        match call.into_device_operation() {
            Ok(DeviceOperation::Collective(call, options, work)) => {
                self.collectives.push(EnqueuedCollective { call, options, work, record: None });
            }
            Ok(DeviceOperation::Message(message)) => self.messages.push(message),
            Err(work) => work.end(Err(Error::internal(
                "a call without a device operation is in a device batch",
            ))),
        }
    }

    /// Counts the works as begun. If there are too many, all of them end with that error.
    pub(super) fn count_works(self) -> Option<Self> {
        let works = self.works();
        for begun in 0..works.len() {
            if let Err(error) = self.group.queue.begin_work() {
                abandon_works(&self.group, &works, begun, &error);
                return None;
            }
        }
        Some(self)
    }

    pub(super) fn works(&self) -> Vec<Arc<Work>> {
        let collectives = self.collectives.iter().map(|it| &it.work);
        collectives.chain(self.messages.iter().map(|it| &it.work)).map(Arc::clone).collect()
    }

    /// Returns how many numbers of the queue the batch needs; 0 without collectives.
    pub(super) fn number_count(&self) -> u64 {
        self.collectives.len() as u64
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    pub(super) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    pub(super) fn enqueuer(&self) -> Option<&dyn JointEnqueuer> {
        self.group.backend.device().and_then(DeviceBackend::enqueuer)
    }

    /// Marks the operations as issued. The first collective has the sequence number `first_number`.
    pub(super) fn mark_issued(&mut self, first_number: u64) {
        let Self { group, collectives, messages, deadline, .. } = self;
        self.first_number = first_number;
        for (collective, sequence) in collectives.iter_mut().zip(first_number..) {
            let descriptor = collective.call.descriptor(sequence, collective.options.label);
            collective.work.mark_issued(sequence, *deadline);
            collective.record =
                Some(group.record_collective(&descriptor, deadline.started(), false));
        }
        for message in messages {
            let sequence = group.messages_issued.fetch_add(1, Ordering::Relaxed) + 1;
            if let Ok(descriptor) = message.descriptor() {
                let record = group.record_message(
                    &descriptor,
                    sequence,
                    recorder::recorder_ns(deadline.started()),
                );
                message.work.keep_until_done(PendingMessage { group: Arc::clone(group), record });
            }
            message.work.mark_issued(sequence, *deadline);
        }
    }

    /// Returns the arrival check of the collectives, if the group runs it.
    pub(super) fn arrival_check(&self) -> Option<impl FnOnce() -> Result<()> + Send + 'static> {
        if !self.group.has_arrival_check {
            return None;
        }
        let (group, deadline) = (Arc::clone(&self.group), self.deadline);
        let descriptors: Vec<Descriptor> = self.numbered_collectives().map(|(_, it)| it).collect();
        Some(move || descriptors.iter().try_for_each(|it| group.await_all_arrivals(it, &deadline)))
    }

    /// Returns the collectives as operations of the back end, and marks them as running.
    pub(super) fn operations<'p>(&'p self, deadline: &'p LazyDeadline) -> Vec<Operation<'p>> {
        let operation = |(collective, descriptor): (&'p EnqueuedCollective, Descriptor)| {
            collective.record.iter().for_each(OperationRecord::mark_running);
            let context = (self.group.name(), deadline);
            let mut operation = collective.call.operation(
                descriptor,
                &collective.options,
                context,
                &self.group.observer,
            );
            operation.enqueue_request =
                collective.call.device_launch(collective.work.device_completion(), None);
            operation
        };
        self.numbered_collectives().map(operation).collect()
    }

    /// Returns the messages as operations of the back end.
    pub(super) fn messages(&self) -> Result<Vec<(DeviceMessage<'static>, EnqueueRequest<'_>)>> {
        let launched = self.messages.iter().map(|it| {
            let launch = EnqueueRequest {
                gpu: it.gpu,
                operation_slot: it.work.device_completion(),
                buffers_ready: None,
            };
            Ok((it.to_device_message()?, launch))
        });
        launched.collect()
    }

    /// Fails the group, because the deadline passed before its turn or before the turn of another
    /// group batch.
    pub(super) fn expire(&self) -> Error {
        match self.numbered_collectives().next() {
            Some((_, descriptor)) => self.group.fail_expired_call(&descriptor, &self.deadline),
            None => Error::internal("a group batch that has only messages waited for a turn"),
        }
    }

    /// Ends the works, and the turn if there was one.
    pub(super) fn finish(mut self, outcome: &Result<()>, turn: Option<Turn<'_>>) {
        if let Err(error) = outcome {
            recorder::request_failure_dump();
            self.group.write_error_file(error);
        }
        let mut ended = Vec::with_capacity(self.collectives.len());
        for (index, collective) in std::mem::take(&mut self.collectives).into_iter().enumerate() {
            let EnqueuedCollective { call, options, work, record, .. } = collective;
            record.into_iter().for_each(|record| record.end(outcome));
            let title = call.descriptor(self.first_number + index as u64, options.label);
            let context = || format!("{title} on {}", self.group.describe_rank());
            let explain = |error: Error| self.group.with_culprit_process(error.context(context()));
            ended.push((work, outcome.clone().map_err(explain)));
        }
        for message in std::mem::take(&mut self.messages) {
            let peer = message.descriptor().ok().and_then(|it| it.peer).unwrap_or(0);
            let delivery = Delivery { peer, tag: 0, bytes: message.bytes().len() };
            message.work.complete(outcome.clone().map(|()| delivery));
        }
        turn.into_iter().for_each(Turn::end_without_wake);
        // Release the group before the works end: a caller that sees the end may rely on the batch
        // holding no reference to the group.
        drop(self.group);
        ended.into_iter().for_each(|(work, outcome)| work.end(outcome.map(|()| None)));
    }

    fn numbered_collectives(&self) -> impl Iterator<Item = (&EnqueuedCollective, Descriptor)> {
        let numbered = self.collectives.iter().zip(self.first_number..);
        let descriptor =
            |of: &EnqueuedCollective, number| of.call.descriptor(number, of.options.label);
        numbered.map(move |(collective, number)| (collective, descriptor(collective, number)))
    }
}

/// Ends works that were not issued. The first `begun` of them were counted as begun.
pub(super) fn abandon_works(group: &Group, works: &[Arc<Work>], begun: usize, reason: &Error) {
    (0..begun).for_each(|_| group.queue.end_work());
    works.iter().for_each(|work| work.end(Err(reason.clone())));
}
