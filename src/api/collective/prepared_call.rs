//! Prepared calls: collectives and messages that have been checked and are issued later.
//!
//! [`Group::prepare`] and its variants check a call and return a [`PreparedCall`].
//! [`PreparedCall::issue`] issues it: a message goes to the messaging engine, an operation on a
//! device is enqueued on the device, and any other collective becomes a task in the group's queue.
//! A batch collects prepared calls and issues them together.

use crate::api::collective::bytes::{BytesCall, BytesHandler};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::collective::device_launch::{self, DeviceCall, DeviceOperation};
use crate::api::collective::operator::OperatorCall;
use crate::api::collective::queued_call::{CallTask, QueuedCall};
use crate::api::collective::tensor_list::ListCall;
use crate::api::group::process_group::Group;
use crate::api::observe::debug::in_flight_buffers;
use crate::api::p2p::message_buffer::MessageBuffer;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::api::p2p::post::{IssuedMessage, MessageIssue};
use crate::api::work::handle::{Work, WorkKind};
use crate::api::work::issue::enqueue_task;
use crate::backend::DeviceBackend;
use crate::base::buffer::Src;
use crate::base::error::{Error, Result};
use crate::base::gpu::GpuTarget;
use crate::transport::OpKind;
use std::sync::Arc;

/// An operation that has passed its checks and has not been issued. The caller must not change its
/// buffers until its work (the handle of the asynchronous operation) has ended.
#[derive(Debug)]
pub struct PreparedCall {
    group: Arc<Group>,
    operation: PreparedOperation,
    options: CallOptions,
    work: Arc<Work>,
    /// The number and the recorder entry of a message, if an attempt to transfer it without a work
    /// has already recorded it.
    issued_message: Option<IssuedMessage>,
}

#[derive(Debug)]
enum PreparedOperation {
    Collective(QueuedCall),
    /// A message, with the GPU and the stream if its buffer is in device memory.
    Message(MessageBuffer, Option<GpuTarget>),
}

impl PreparedCall {
    fn new(
        group: &Arc<Group>,
        kind: WorkKind,
        operation: PreparedOperation,
        options: CallOptions,
    ) -> Self {
        let work = Work::new(kind, Arc::clone(&group.queue));
        Self { group: Arc::clone(group), operation, options, work, issued_message: None }
    }

    fn of_collective(
        group: &Arc<Group>,
        kind: OpKind,
        call: QueuedCall,
        options: CallOptions,
    ) -> Self {
        let operation = PreparedOperation::Collective(call);
        Self::new(group, WorkKind::Collective(kind), operation, options)
    }

    /// Creates the prepared call of a message that has passed its checks.
    pub(in crate::api) fn of_message(
        group: &Arc<Group>,
        message: MessageDescriptor,
        buffer: MessageBuffer,
        gpu: Option<GpuTarget>,
        options: CallOptions,
    ) -> Self {
        let operation = PreparedOperation::Message(buffer, gpu);
        Self::new(group, WorkKind::Message(message), operation, options)
    }

    /// Sets the number and the recorder entry of a message that was already recorded as issued.
    #[must_use]
    pub fn with_issued_message(self, issued_message: Option<IssuedMessage>) -> Self {
        Self { issued_message, ..self }
    }

    /// Returns the operation's group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the operation's work.
    pub fn work(&self) -> &Arc<Work> {
        &self.work
    }

    /// Returns the GPU and the stream of the operation if its buffers are in device memory.
    pub(super) fn gpu(&self) -> Option<GpuTarget> {
        match &self.operation {
            PreparedOperation::Collective(call) => call.gpu(),
            PreparedOperation::Message(_, gpu) => *gpu,
        }
    }

    /// Returns whether the operation runs on a device stream of the library. The caller cannot wait
    /// for such a stream.
    pub fn is_on_library_stream(&self) -> bool {
        self.gpu().is_some_and(|gpu| gpu.stream.is_none())
    }

    /// Issues the operation. The time limit of the operation starts now.
    ///
    /// # Errors
    /// `OutOfMemory`; `System`; for a message also the group's failure. On error, the operation was
    /// not issued.
    pub fn issue(self) -> Result<()> {
        if self.is_device_enqueued() {
            return self.issue_on_device();
        }
        self.register_in_flight_buffers();
        let deadline = self.group.deadline(&self.options);
        let Self { group, operation, options, work, issued_message: issued } = self;
        let outcome = match operation {
            PreparedOperation::Message(buffer, gpu) => {
                let issue = MessageIssue { gpu, deadline, issued };
                group.post_message(&work, buffer, issue, &options)
            }
            PreparedOperation::Collective(call) => {
                let works = [Arc::clone(&work)];
                group.record_ready_event(call.gpu()).and_then(|ready_event| {
                    let task = CallTask { call, options, ready_event, works };
                    enqueue_task(group, deadline, task)
                })
            }
        };
        outcome.inspect_err(|_| in_flight_buffers::unregister_work(&*work))
    }

    /// Registers the operation's buffers for the debug check for conflicting buffer uses, if this
    /// check is on. The end of the work unregisters them.
    pub(super) fn register_in_flight_buffers(&self) {
        in_flight_buffers::register_work(&self.group, &self.work, |note| self.visit_buffers(note));
    }

    /// Returns the position of the operation's kind in a batch. Receives are issued before sends,
    /// so that a send finds its receive already posted. Both are issued before collectives, which
    /// wait longer. Operations that are enqueued on a device are issued separately and do not use
    /// this order.
    pub(super) fn batch_order(&self) -> u8 {
        match &self.operation {
            PreparedOperation::Message(MessageBuffer::Send(_), _) => 1,
            PreparedOperation::Message(..) => 0,
            PreparedOperation::Collective(_) => 2,
        }
    }

    /// Returns whether the operation is a collective of any kind.
    pub(super) fn is_collective(&self) -> bool {
        matches!(self.operation, PreparedOperation::Collective(_))
    }

    /// Returns whether the operation is enqueued on a device (see [`device_launch`]).
    pub(in crate::api) fn is_device_enqueued(&self) -> bool {
        // A list enqueues its operations in its turn, after the ranks have compared their lists.
        if matches!(self.operation, PreparedOperation::Collective(QueuedCall::List(_))) {
            return false;
        }
        let enqueuer = self.group.backend.device().and_then(DeviceBackend::enqueuer);
        self.gpu().is_some() && enqueuer.is_some()
    }

    /// Converts the call to a call that is enqueued on a device. The time limit of the operation
    /// starts now. If the call has no device operation, its work ends with an error and this
    /// returns `None`.
    fn into_device_call(self) -> Option<DeviceCall> {
        self.register_in_flight_buffers();
        let deadline = self.group.deadline(&self.options);
        let Self { group, operation, options, work, .. } = self;
        let operation = match operation {
            PreparedOperation::Collective(QueuedCall::Buffers(call)) => {
                Some(DeviceOperation::Collective(call, options))
            }
            PreparedOperation::Message(buffer, Some(gpu)) => match work.kind() {
                WorkKind::Message(descriptor) => buffer
                    .device_message(&descriptor)
                    .map(|message| DeviceOperation::Message { descriptor, message, gpu }),
                _ => None,
            },
            _ => None,
        };
        let Some(operation) = operation else {
            let message = "a call without a device operation is in a device batch";
            work.end(Err(Error::internal(message)));
            return None;
        };
        Some(DeviceCall { group, work, deadline, operation })
    }

    /// Enqueues the operation on its device. If a message cannot be enqueued, returns the error.
    /// The error of a collective is only reported by its work.
    fn issue_on_device(self) -> Result<()> {
        let work = Arc::clone(&self.work);
        let is_message = !self.is_collective();
        issue_on_devices(vec![self], false);
        work.outcome().filter(|_| is_message).unwrap_or(Ok(()))
    }

    /// Calls `visit` for each buffer. The second argument of `visit` is true if the operation
    /// writes the buffer.
    pub(super) fn visit_buffers(&self, visit: &mut dyn FnMut(Src<'_>, bool)) {
        match &self.operation {
            PreparedOperation::Collective(call) => call.visit_buffers(visit),
            PreparedOperation::Message(buffer, _) => buffer.visit(visit),
        }
    }

    /// Returns the collective and its options if the operation is a collective on buffers, as
    /// opposed to byte strings or an operator of the caller.
    pub(super) fn collective(&self) -> Option<(&Call<'static>, &CallOptions)> {
        match &self.operation {
            PreparedOperation::Collective(QueuedCall::Buffers(call)) => Some((call, &self.options)),
            _ => None,
        }
    }
}

/// Enqueues calls on their devices together (see [`device_launch`]). If a call cannot be enqueued,
/// its work ends with the error. `is_awaited` is true if the calling thread will wait for the
/// calls.
pub(in crate::api) fn issue_on_devices(calls: Vec<PreparedCall>, is_awaited: bool) {
    let calls = calls.into_iter().filter_map(PreparedCall::into_device_call).collect();
    device_launch::launch(calls, is_awaited);
}

impl Group {
    /// Checks a collective that is issued later.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`.
    pub fn prepare(
        self: &Arc<Self>,
        mut call: Call<'static>,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        self.check_call(&mut call, &options)?;
        Ok(PreparedCall::of_collective(self, call.kind(), QueuedCall::Buffers(call), options))
    }

    /// Checks a collective on byte strings that is issued later. If this rank receives strings, the
    /// library passes them to `handler`.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn prepare_bytes(
        self: &Arc<Self>,
        call: BytesCall<'static>,
        options: CallOptions,
        handler: BytesHandler,
    ) -> Result<PreparedCall> {
        self.check_bytes(&call, &options)?;
        let kind = call.kind();
        let call_and_handler = QueuedCall::Bytes(call, Some(handler));
        Ok(PreparedCall::of_collective(self, kind, call_and_handler, options))
    }

    /// Checks a collective with a caller's operator that is issued later.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`.
    pub fn prepare_operator(
        self: &Arc<Self>,
        mut call: OperatorCall<'static>,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        self.check_operator(&mut call, &options)?;
        Ok(PreparedCall::of_collective(self, call.kind(), QueuedCall::Operator(call), options))
    }

    /// Checks a collective on a list of tensors that is issued later.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`.
    pub fn prepare_list(
        self: &Arc<Self>,
        mut call: ListCall<'static>,
        options: CallOptions,
    ) -> Result<PreparedCall> {
        self.check_list(&mut call, &options)?;
        let kind = call.kind();
        Ok(PreparedCall::of_collective(self, kind, QueuedCall::List(Box::new(call)), options))
    }

    /// Issues a collective and returns immediately. When all earlier collectives of the group have
    /// ended on this rank, the collective runs. The collective runs on a thread that waits for an
    /// operation of the group, or on the group's worker thread.
    ///
    /// # Errors
    /// `InvalidArgument`; `Unsupported`; `OutOfMemory` if too many works are outstanding; `System`
    /// if no worker thread can be started. On error, the collective was not issued. Errors after
    /// the issue are reported by the work.
    pub fn issue(self: &Arc<Self>, call: Call<'static>, options: CallOptions) -> Result<Arc<Work>> {
        let prepared = self.prepare(call, options)?;
        let work = Arc::clone(prepared.work());
        prepared.issue()?;
        Ok(work)
    }
}
