//! Asynchronous operations: a call is checked and prepared first, and issued later.
//!
//! [`Group::prepare`] checks a collective and returns a [`PreparedCall`]. [`PreparedCall::issue`]
//! posts a message to the engine, enqueues a device operation, or puts a `TaskJob` into the group's
//! queue. The job runs in its turn and ends the [`Work`].

use crate::api::collective::buffer_location::PreparedDeviceMessage;
use crate::api::collective::bytes::{BytesCall, BytesHandler, BytesTask};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::collective::device_launch;
use crate::api::collective::operator::{OperatorCall, OperatorTask};
use crate::api::group::process_group::Group;
use crate::api::observe::debug::in_flight_buffers;
use crate::api::observe::recorder;
use crate::api::observe::recorder::OperationRecord;
use crate::api::p2p::point_to_point::{IssuedMessage, MessageBuffer};
use crate::api::work::handle::{Work, WorkKind};
use crate::api::work::queue::{QueueJob, Turn};
use crate::backend::DeviceBackend;
use crate::base::buffer::Src;
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, Result};
use crate::base::gpu::{GpuTarget, StreamMarker};
use crate::transport::Descriptor;
use std::fmt::Debug;
use std::sync::Arc;

/// An operation that has passed its checks and has not been issued. Its buffers are in flight from
/// now until its work ends.
#[derive(Debug)]
pub struct PreparedCall {
    group: Arc<Group>,
    operation: PreparedOperation,
    options: CallOptions,
    work: Arc<Work>,
    /// The issue of a message that was already tried without a work.
    issued_message: Option<IssuedMessage>,
}

#[derive(Debug)]
enum PreparedOperation {
    Collective(Call<'static>),
    Bytes(BytesCall<'static>, BytesHandler),
    Operator(OperatorCall<'static>),
    Message(MessageBuffer),
    /// A message in device memory.
    DeviceMessage(MessageBuffer, GpuTarget),
}

/// An operation that is enqueued on a device, with its work.
#[derive(Debug)]
pub(in crate::api) enum DeviceOperation {
    Collective(Call<'static>, CallOptions, Arc<Work>),
    Message(PreparedDeviceMessage),
}

impl PreparedCall {
    pub(in crate::api) fn message(
        group: Arc<Group>,
        (memory, gpu): (MessageBuffer, Option<GpuTarget>),
        options: CallOptions,
        work: Arc<Work>,
    ) -> Self {
        let operation = match gpu {
            None => PreparedOperation::Message(memory),
            Some(gpu) => PreparedOperation::DeviceMessage(memory, gpu),
        };
        Self { group, operation, options, work, issued_message: None }
    }

    /// Sets the number and the recorder entry of a message that was already issued.
    #[must_use]
    pub fn with_issued_message(self, issued_message: Option<IssuedMessage>) -> Self {
        Self { issued_message, ..self }
    }

    pub(in crate::api) fn bytes(
        group: Arc<Group>,
        call: BytesCall<'static>,
        options: CallOptions,
        handler: BytesHandler,
    ) -> Self {
        let work = Work::new(WorkKind::Collective(call.kind()), Arc::clone(&group.queue));
        Self {
            group,
            operation: PreparedOperation::Bytes(call, handler),
            options,
            work,
            issued_message: None,
        }
    }

    pub(in crate::api) fn operator(
        group: Arc<Group>,
        call: OperatorCall<'static>,
        options: CallOptions,
        work: Arc<Work>,
    ) -> Self {
        Self {
            group,
            operation: PreparedOperation::Operator(call),
            options,
            work,
            issued_message: None,
        }
    }

    /// Returns the operation's group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the operation's work.
    pub fn work(&self) -> &Arc<Work> {
        &self.work
    }

    /// Returns the GPU and stream of the operation if its buffers are in device memory.
    pub(in crate::api) fn gpu(&self) -> Option<GpuTarget> {
        match &self.operation {
            PreparedOperation::Collective(call) => call.gpu(),
            PreparedOperation::DeviceMessage(_, gpu) => Some(*gpu),
            PreparedOperation::Bytes(..)
            | PreparedOperation::Operator(_)
            | PreparedOperation::Message(_) => None,
        }
    }

    /// Returns whether the operation runs on a stream of the library, which the caller cannot wait
    /// for.
    pub fn is_on_library_stream(&self) -> bool {
        self.gpu().is_some_and(|gpu| gpu.stream.is_none())
    }

    /// Issues the operation. Its deadline starts now.
    ///
    /// # Errors
    /// `OutOfMemory`, `System`; for a message also the group's failure. On error nothing was
    /// issued.
    pub fn issue(self) -> Result<()> {
        if self.is_device_enqueued() {
            return self.issue_on_device();
        }
        self.register_in_flight_buffers();
        let deadline = self.group.deadline(&self.options);
        let Self { group, operation, options, work, issued_message } = self;
        let issued = match operation {
            PreparedOperation::Message(memory) => {
                group.post_message((memory, None), deadline, (&work, issued_message), &options)
            }
            PreparedOperation::DeviceMessage(memory, gpu) => {
                group.post_message((memory, Some(gpu)), deadline, (&work, issued_message), &options)
            }
            PreparedOperation::Collective(call) => {
                let works = [Arc::clone(&work)];
                group.record_ready_event(&call).and_then(|ready| {
                    enqueue_task(
                        group,
                        deadline,
                        CollectiveTask { call, options, ready_event: ready, works },
                    )
                })
            }
            PreparedOperation::Bytes(call, deliver) => {
                let task = BytesTask::new(call, options.label, deliver, Arc::clone(&work));
                enqueue_task(group, deadline, task)
            }
            PreparedOperation::Operator(call) => {
                let task = OperatorTask::new(call, &options, Arc::clone(&work));
                enqueue_task(group, deadline, task)
            }
        };
        issued.inspect_err(|_| in_flight_buffers::unregister_work(&work))
    }

    /// Registers the operation's buffers as in flight, if this debug check is on. The end of the
    /// work unregisters them.
    pub(in crate::api) fn register_in_flight_buffers(&self) {
        in_flight_buffers::register_work(&self.group, &self.work, |note| self.visit_buffers(note));
    }

    /// Ends the work of an operation that was not issued.
    pub(in crate::api) fn abandon(&self, reason: Error) {
        self.work.end(Err(reason));
    }

    /// Returns the order of the operation in a batch. Receives go before sends, so that no send
    /// lacks its receive. Both go before collectives, which wait longer. Operations that are
    /// enqueued on a device are not ordered here.
    pub(in crate::api) fn batch_order(&self) -> u8 {
        match &self.operation {
            PreparedOperation::Message(
                MessageBuffer::Receive(_)
                | MessageBuffer::ReceiveAllocated { .. }
                | MessageBuffer::ReceiveMatched(..)
                | MessageBuffer::SendRecv(_),
            ) => 0,
            PreparedOperation::DeviceMessage(MessageBuffer::Receive(_), _) => 0,
            PreparedOperation::Message(MessageBuffer::Send(_))
            | PreparedOperation::DeviceMessage(..) => 1,
            PreparedOperation::Collective(_)
            | PreparedOperation::Bytes(..)
            | PreparedOperation::Operator(_) => 2,
        }
    }

    /// Returns whether the operation is a collective of any kind.
    pub(in crate::api) fn is_collective(&self) -> bool {
        !matches!(
            self.operation,
            PreparedOperation::Message(_) | PreparedOperation::DeviceMessage(..)
        )
    }

    /// Returns whether the operation is enqueued on a device (see [`device_launch`]).
    pub(in crate::api) fn is_device_enqueued(&self) -> bool {
        let enqueuer = self.group.backend.device().and_then(DeviceBackend::enqueuer);
        self.gpu().is_some() && enqueuer.is_some()
    }

    /// Returns the operation's deadline, which starts now.
    pub(in crate::api) fn start_deadline(&self) -> Deadline {
        self.group.deadline(&self.options)
    }

    /// Converts the operation into its enqueued form. Returns its work if the operation cannot be
    /// enqueued.
    pub(in crate::api) fn into_device_operation(
        self,
    ) -> std::result::Result<DeviceOperation, Arc<Work>> {
        let Self { operation, options, work, .. } = self;
        match operation {
            PreparedOperation::Collective(call) => {
                Ok(DeviceOperation::Collective(call, options, work))
            }
            PreparedOperation::DeviceMessage(memory, gpu) => {
                Ok(DeviceOperation::Message(PreparedDeviceMessage { memory, gpu, work }))
            }
            PreparedOperation::Bytes(..)
            | PreparedOperation::Operator(_)
            | PreparedOperation::Message(_) => Err(work),
        }
    }

    /// Enqueues the operation on its device. Returns the error of a message immediately.
    fn issue_on_device(self) -> Result<()> {
        let work = Arc::clone(&self.work);
        let is_message = !self.is_collective();
        device_launch::issue_on_devices(vec![self], false);
        work.outcome().filter(|_| is_message).unwrap_or(Ok(()))
    }

    /// Calls `visit` for each buffer, with true if the operation writes it.
    pub(in crate::api) fn visit_buffers(&self, visit: &mut dyn FnMut(Src<'_>, bool)) {
        match &self.operation {
            PreparedOperation::Collective(call) => call.visit_buffers(visit),
            PreparedOperation::Operator(call) => call.each_buffer(visit),
            PreparedOperation::Bytes(call, _) => {
                call.visit_inputs(&mut |input| visit(input, false))
            }
            PreparedOperation::Message(memory) | PreparedOperation::DeviceMessage(memory, _) => {
                match memory {
                    MessageBuffer::Send(bytes) => visit(*bytes, false),
                    MessageBuffer::Receive(into) => visit(into.as_src(), true),
                    MessageBuffer::ReceiveMatched(_, into) => visit(into.as_src(), true),
                    // If the two buffers overlap, the incoming bytes are copied after the send has
                    // ended. In that case only the receive buffer is visited.
                    MessageBuffer::SendRecv(exchange) => {
                        if !exchange.overlaps() {
                            visit(exchange.send_bytes, false);
                        }
                        visit(exchange.recv_buffer.as_src(), true);
                    }
                    MessageBuffer::ReceiveAllocated { .. } => {}
                }
            }
        }
    }

    /// Returns the collective and its options, if the operation is a collective on buffers.
    pub(in crate::api) fn collective(&self) -> Option<(&Call<'static>, &CallOptions)> {
        match &self.operation {
            PreparedOperation::Collective(call) => Some((call, &self.options)),
            PreparedOperation::Bytes(..)
            | PreparedOperation::Operator(_)
            | PreparedOperation::Message(_)
            | PreparedOperation::DeviceMessage(..) => None,
        }
    }
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
        let work = Work::new(WorkKind::Collective(call.kind()), Arc::clone(&self.queue));
        let group = Arc::clone(self);
        Ok(PreparedCall {
            group,
            operation: PreparedOperation::Collective(call),
            options,
            work,
            issued_message: None,
        })
    }

    /// Issues a collective and returns immediately. The collective runs in its turn: on a thread
    /// that waits for it or for another operation of the group, or on the group's worker thread.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unsupported`, `OutOfMemory` if too many works are outstanding, `System`
    /// if no worker thread can be started. On error nothing was issued. The work reports later
    /// errors.
    pub fn issue(self: &Arc<Self>, call: Call<'static>, options: CallOptions) -> Result<Arc<Work>> {
        let prepared = self.prepare(call, options)?;
        let work = Arc::clone(prepared.work());
        prepared.issue()?;
        Ok(work)
    }
}

/// The part of a queue job that depends on the kind of operation.
pub(in crate::api) trait OperationTask: Send + Debug + 'static {
    /// Returns the works that end with the task.
    fn works(&self) -> &[Arc<Work>];

    /// Returns the number of back-end operations in the task.
    fn operation_count(&self) -> u64 {
        1
    }

    /// Returns the descriptor of the first operation, which has this sequence number. All ranks
    /// must agree on it.
    fn descriptor(&self, sequence: u64) -> Descriptor;

    /// Returns the name of the task in messages.
    fn title(&self, descriptor: &Descriptor) -> String {
        descriptor.to_string()
    }

    /// Runs the task in its turn.
    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()>;
}

/// Puts a task into its group's queue.
///
/// # Errors
/// `OutOfMemory` if too many works are outstanding, `System` if no worker thread can be started. On
/// error nothing has changed.
pub(in crate::api) fn enqueue_task<T: OperationTask>(
    group: Arc<Group>,
    deadline: Deadline,
    task: T,
) -> Result<()> {
    let queue = Arc::clone(&group.queue);
    let works = task.works().len();
    for begun in 0..works {
        if let Err(error) = queue.begin_work() {
            (0..begun).for_each(|_| queue.end_work());
            return Err(error);
        }
    }
    let enqueued = queue.enqueue_several(task.operation_count(), |ticket| {
        let descriptor = task.descriptor(ticket.sequence());
        task.works().iter().for_each(|work| work.mark_issued(ticket.sequence(), deadline));
        let record = group.record_collective(&descriptor, deadline.started(), false);
        Box::new(TaskJob { group, deadline, descriptor, record, task })
    });
    enqueued.inspect_err(|_| (0..works).for_each(|_| queue.end_work()))
}

/// The job of a task in the group's queue.
#[derive(Debug)]
struct TaskJob<T> {
    group: Arc<Group>,
    deadline: Deadline,
    descriptor: Descriptor,
    record: OperationRecord,
    task: T,
}

impl<T: OperationTask> TaskJob<T> {
    fn finish(self, outcome: Result<()>, turn: Option<Turn<'_>>) {
        let Self { group, descriptor, record, task, .. } = self;
        record.end(&outcome);
        let outcome = outcome.map_err(|error| {
            recorder::request_failure_dump();
            let error = error.context(format_args!(
                "{} on {}",
                task.title(&descriptor),
                group.describe_rank()
            ));
            group.with_culprit_process(error)
        });
        if let Some(turn) = turn {
            turn.end_without_wake();
        }
        if let Err(error) = &outcome {
            group.write_error_file(error);
        }
        // Release the group before the works end: a caller that sees the end may rely on the job
        // holding no reference to the group.
        drop(group);
        task.works().iter().for_each(|work| work.end(outcome.clone().map(|()| None)));
    }
}

impl<T: OperationTask> QueueJob for TaskJob<T> {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn failure(&self) -> Option<Error> {
        self.group.failure()
    }

    fn run(mut self: Box<Self>, turn: Turn<'_>) {
        let Self { group, deadline, descriptor, record, task } = &mut *self;
        let group = &*group;
        record.mark_running();
        let outcome = group.run_catching_panics(|| task.run(group, *descriptor, deadline));
        self.finish(outcome, Some(turn));
    }

    fn expire(self: Box<Self>) {
        let error = self.group.fail_expired_call(&self.descriptor, &self.deadline);
        self.finish(Err(error), None);
    }

    fn fail(self: Box<Self>, cause: &Error) {
        self.finish(Err(cause.clone()), None);
    }
}

/// A collective on the caller's buffers.
#[derive(Debug)]
struct CollectiveTask {
    call: Call<'static>,
    options: CallOptions,
    /// The event after which the buffers are ready, if one was recorded.
    ready_event: Option<Arc<dyn StreamMarker>>,
    works: [Arc<Work>; 1],
}

impl OperationTask for CollectiveTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        self.call.descriptor(sequence, self.options.label)
    }

    fn run(&mut self, group: &Group, first: Descriptor, deadline: &Deadline) -> Result<()> {
        let deadline = LazyDeadline::from(*deadline);
        let context = (group.name(), &deadline);
        let mut operation = self.call.operation(first, &self.options, context, &group.observer);
        operation.enqueue_request =
            self.call.device_launch(self.works[0].device_completion(), self.ready_event.as_deref());
        group.carry_out(&operation, self.options.nan_check)
    }
}
