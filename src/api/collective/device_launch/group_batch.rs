//! A group batch: the operations of one group in a batch of operations that are enqueued on
//! devices. The collectives of the group batch take one turn of the group's queue together. Its
//! messages need no turn.

use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::observe::recorder;
use crate::api::observe::recorder::{DeviceTimeRecord, OperationRecord};
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::api::work::handle::{PendingMessage, Work};
use crate::api::work::queue::Turn;
use crate::backend::{DeviceBackend, DeviceMessage, DeviceTransfer, JointEnqueuer, Operation};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, Result};
use crate::base::gpu::{EnqueueRequest, GpuTarget};
use crate::transport::{Completion, Delivery, Descriptor};
use std::sync::Arc;

/// A call that is to be enqueued on a device. Its time limit has started.
#[derive(Debug)]
pub(in crate::api::collective) struct DeviceCall {
    pub(in crate::api::collective) group: Arc<Group>,
    pub(in crate::api::collective) work: Arc<Work>,
    pub(in crate::api::collective) deadline: Deadline,
    pub(in crate::api::collective) operation: DeviceOperation,
}

/// The operation of an enqueued call.
#[derive(Debug)]
pub(in crate::api::collective) enum DeviceOperation {
    Collective(Call<'static>, CallOptions),
    Message { descriptor: MessageDescriptor, message: DeviceMessage<'static>, gpu: GpuTarget },
}

/// A message of a group batch, with its work.
#[derive(Debug)]
struct EnqueuedMessage {
    descriptor: MessageDescriptor,
    message: DeviceMessage<'static>,
    gpu: GpuTarget,
    work: Arc<Work>,
    /// The receiver of the device time. Set when the message is issued.
    time_record: Option<DeviceTimeRecord>,
}

/// A collective of a group batch, with its work.
#[derive(Debug)]
struct EnqueuedCollective {
    call: Call<'static>,
    options: CallOptions,
    work: Arc<Work>,
    /// The entry in the flight recorder. Set when the collective gets its sequence number.
    record: Option<OperationRecord>,
}

/// The operations of one group. The works of the operations end exactly once, either by
/// [`GroupBatch::finish`] or by [`abandon_works`].
#[derive(Debug)]
pub(super) struct GroupBatch {
    group: Arc<Group>,
    collectives: Vec<EnqueuedCollective>,
    messages: Vec<EnqueuedMessage>,
    /// The earliest deadline of the calls.
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

    /// Adds a call of the group.
    pub(super) fn add(&mut self, call: DeviceCall) {
        let DeviceCall { work, deadline, operation, .. } = call;
        if deadline.timeout() < self.deadline.timeout() {
            self.deadline = deadline;
        }
        match operation {
            DeviceOperation::Collective(call, options) => {
                self.collectives.push(EnqueuedCollective { call, options, work, record: None });
            }
            DeviceOperation::Message { descriptor, message, gpu } => {
                let time_record = None;
                self.messages.push(EnqueuedMessage { descriptor, message, gpu, work, time_record });
            }
        }
    }

    /// Counts the works as outstanding in the group's queue. If too many works are outstanding,
    /// waits until enough of them have ended, as other ranks do. If the deadline passes before
    /// that, all works of the group batch end with an error, and this returns `None`.
    pub(super) fn count_works(self) -> Option<Self> {
        let works = self.works();
        match self.group.queue.begin_works_within(works.len() as u64, &self.deadline) {
            Ok(()) => Some(self),
            Err(error) => {
                abandon_works(&self.group, &works, 0, &error);
                None
            }
        }
    }

    pub(super) fn works(&self) -> Vec<Arc<Work>> {
        let collectives = self.collectives.iter().map(|it| &it.work);
        collectives.chain(self.messages.iter().map(|it| &it.work)).map(Arc::clone).collect()
    }

    /// Returns the number of sequence numbers that the group batch needs, which is the number of
    /// its collectives. If it is 0, the group batch needs no turn.
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

    /// Marks the operations as issued. The first collective gets the sequence number
    /// `first_number`.
    pub(super) fn mark_issued(&mut self, first_number: u64) {
        let Self { group, collectives, messages, deadline, .. } = self;
        self.first_number = first_number;
        for (collective, sequence) in collectives.iter_mut().zip(first_number..) {
            let descriptor = collective.call.descriptor(sequence, collective.options.label);
            collective.work.mark_issued(sequence, *deadline);
            let record = group.record_collective(&descriptor, deadline.started(), false);
            record.add_sizes(&collective.call.recorded_sizes());
            collective.record = Some(record);
        }
        let positions = match messages.is_empty() {
            true => Vec::new(),
            false => group.queue.count_enqueued_messages(messages.iter().map(|it| {
                let is_outgoing = matches!(it.message.transfer, DeviceTransfer::Send(_));
                (it.message.peer, is_outgoing)
            })),
        };
        for (message, position) in messages.iter_mut().zip(positions) {
            let sequence = group.next_message_number();
            let issued_ns = recorder::recorder_ns(deadline.started());
            let record = group.observer.record_message(&message.descriptor, sequence, issued_ns);
            message.time_record = Some(record.device_time_record());
            message.work.keep_until_done(PendingMessage { group: Arc::clone(group), record });
            message.work.mark_enqueued_message(position);
            message.work.mark_issued(sequence, *deadline);
        }
    }

    /// Returns a function that runs the arrival check for all collectives, if the group runs this
    /// check.
    pub(super) fn arrival_check(&self) -> Option<impl FnOnce() -> Result<()> + Send + 'static> {
        if !self.group.has_arrival_check {
            return None;
        }
        let (group, deadline) = (Arc::clone(&self.group), self.deadline);
        let descriptors: Vec<Descriptor> = self.numbered_collectives().map(|(_, it)| it).collect();
        Some(move || descriptors.iter().try_for_each(|it| group.await_all_arrivals(it, &deadline)))
    }

    /// Returns the collectives as operations for the back end, and marks them as running.
    pub(super) fn operations<'p>(&'p self, deadline: &'p LazyDeadline) -> Vec<Operation<'p>> {
        let operation = |(collective, descriptor): (&'p EnqueuedCollective, Descriptor)| {
            collective.record.iter().for_each(OperationRecord::mark_running);
            let mut operation = collective.call.operation(
                descriptor,
                &collective.options,
                self.group.name(),
                deadline,
                &self.group.observer,
            );
            operation.enqueue_request =
                collective.call.device_launch(collective.work.device_completion(), None);
            operation
        };
        self.numbered_collectives().map(operation).collect()
    }

    /// Returns the messages as operations for the back end.
    pub(super) fn messages(&self) -> Vec<(DeviceMessage<'static>, EnqueueRequest<'_>)> {
        let enqueued = self.messages.iter().map(|it| {
            let operation_slot = it.work.device_completion();
            (it.message, EnqueueRequest { gpu: it.gpu, operation_slot, buffers_ready: None })
        });
        enqueued.collect()
    }

    /// Fails the group, because the deadline passed before this group batch and all other group
    /// batches of the batch had their turns. Returns the error.
    pub(super) fn expire(&self) -> Error {
        match self.numbered_collectives().next() {
            Some((_, descriptor)) => self.group.fail_expired_call(&descriptor, &self.deadline),
            None => Error::internal("a group batch that has only messages waited for a turn"),
        }
    }

    /// Ends the turn, if there is one, and the works.
    pub(super) fn finish(mut self, outcome: &Result<()>, turn: Option<Turn<'_>>) {
        if let Err(error) = outcome {
            recorder::request_failure_dump();
            self.group.record_returned_error(error);
        }
        let mut ended = Vec::with_capacity(self.collectives.len());
        for (index, collective) in std::mem::take(&mut self.collectives).into_iter().enumerate() {
            let EnqueuedCollective { call, options, work, record, .. } = collective;
            if let Some(record) = record {
                record.device_time_record().listen(work.device_completion());
                record.end(outcome);
            }
            let title =
                call.descriptor(self.first_number + index as u64, options.label).to_string();
            let explain = |error: Error| {
                self.group.with_culprit_process(self.group.with_call_context(error, &title))
            };
            ended.push((work, outcome.clone().map_err(explain)));
        }
        if !self.messages.is_empty() {
            self.group.queue.end_enqueue_of_messages();
        }
        for message in std::mem::take(&mut self.messages) {
            let bytes = match message.message.transfer {
                DeviceTransfer::Send(bytes) => bytes.len(),
                DeviceTransfer::Recv(into) => into.len(),
            };
            if let Some(time_record) = &message.time_record {
                time_record.listen(message.work.device_completion());
            }
            let delivery = Delivery { peer: message.message.peer, tag: 0, bytes };
            message.work.complete(outcome.clone().map(|()| delivery));
        }
        turn.into_iter().for_each(Turn::end_without_wake);
        // The group is released before the works end. A caller that sees the end of a work may rely
        // on it that the batch holds no reference to the group.
        drop(self.group);
        ended.into_iter().for_each(|(work, outcome)| work.end(outcome.map(|()| None)));
    }

    /// Returns the collectives with their descriptors, which have the sequence numbers.
    fn numbered_collectives(&self) -> impl Iterator<Item = (&EnqueuedCollective, Descriptor)> {
        let numbered = self.collectives.iter().zip(self.first_number..);
        let descriptor =
            |of: &EnqueuedCollective, number| of.call.descriptor(number, of.options.label);
        numbered.map(move |(collective, number)| (collective, descriptor(collective, number)))
    }
}

/// Ends works that were not issued. The first `begun` of them were counted as outstanding.
pub(super) fn abandon_works(group: &Group, works: &[Arc<Work>], begun: usize, reason: &Error) {
    (0..begun).for_each(|_| group.queue.end_work());
    works.iter().for_each(|work| work.end(Err(reason.clone())));
}
