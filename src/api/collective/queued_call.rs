//! A collective in the group's queue, in one of four forms: on buffers, on byte strings, with an
//! operator of the caller, or on a list of tensors.

use crate::api::collective::bytes::{self, BytesCall, BytesHandler};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::collective::operator::OperatorCall;
use crate::api::collective::tensor_list::{ListCall, ListTurn};
use crate::api::group::process_group::Group;
use crate::api::observe::operation_details::CallSizes;
use crate::api::observe::recorder::OperationRecord;
use crate::api::work::handle::Work;
use crate::api::work::issue::OperationTask;
use crate::base::buffer::Src;
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::Result;
use crate::base::gpu::{GpuTarget, StreamMarker};
use crate::transport::Descriptor;
use std::sync::Arc;

/// A collective that has passed its checks.
#[derive(Debug)]
pub(super) enum QueuedCall {
    Buffers(Call<'static>),
    /// A call on byte strings. The handler is removed when the call has run.
    Bytes(BytesCall<'static>, Option<BytesHandler>),
    Operator(OperatorCall<'static>),
    List(Box<ListCall<'static>>),
}

impl QueuedCall {
    /// Returns the GPU and the stream if the buffers are in device memory.
    pub(super) fn gpu(&self) -> Option<GpuTarget> {
        match self {
            Self::Buffers(call) => call.gpu,
            Self::List(call) => call.gpu(),
            Self::Bytes(..) | Self::Operator(_) => None,
        }
    }

    /// Calls `visit` for each buffer. The second argument of `visit` is true if the operation
    /// writes the buffer.
    pub(super) fn visit_buffers(&self, visit: &mut dyn FnMut(Src<'_>, bool)) {
        match self {
            Self::Buffers(call) => call.visit_buffers(visit),
            Self::Bytes(call, _) => call.visit_inputs(&mut |input| visit(input, false)),
            Self::Operator(call) => call.bytes_call.visit_buffers(visit),
            Self::List(call) => call.visit_buffers(visit),
        }
    }
}

/// The task that runs a collective when the collective gets its turn in the queue.
#[derive(Debug)]
pub(super) struct CallTask {
    pub(super) call: QueuedCall,
    pub(super) options: CallOptions,
    /// The event on the caller's device stream after which the buffers are ready, if an event was
    /// recorded.
    pub(super) ready_event: Option<Arc<dyn StreamMarker>>,
    pub(super) works: [Arc<Work>; 1],
}

impl OperationTask for CallTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn operation_count(&self) -> u64 {
        match self.call {
            QueuedCall::Bytes(..) => bytes::OPERATIONS_PER_CALL,
            QueuedCall::Buffers(_) | QueuedCall::Operator(_) | QueuedCall::List(_) => 1,
        }
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        let label = self.options.label;
        match &self.call {
            QueuedCall::Buffers(call) => call.descriptor(sequence, label),
            QueuedCall::Bytes(call, _) => call.length_descriptor(sequence, label),
            QueuedCall::Operator(call) => call.descriptor(sequence, label),
            QueuedCall::List(call) => call.descriptor(sequence, label),
        }
    }

    fn sizes(&self, group: &Group) -> CallSizes {
        match &self.call {
            QueuedCall::Buffers(call) => call.recorded_sizes(),
            QueuedCall::Bytes(call, _) => call.input_sizes(group.rank()),
            QueuedCall::Operator(call) => call.recorded_sizes(),
            QueuedCall::List(call) => call.sizes(group),
        }
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        match &self.call {
            QueuedCall::Buffers(_) => descriptor.to_string(),
            QueuedCall::Bytes(call, _) => call.title(descriptor),
            QueuedCall::Operator(call) => call.title(descriptor),
            QueuedCall::List(call) => call.title(descriptor),
        }
    }

    fn run(
        &mut self,
        group: &Group,
        first: Descriptor,
        deadline: &Deadline,
        record: &OperationRecord,
    ) -> Result<()> {
        let deadline = LazyDeadline::from(*deadline);
        let Self { call, options, ready_event, works } = self;
        match call {
            QueuedCall::Buffers(call) => {
                let mut operation =
                    call.operation(first, options, group.name(), &deadline, &group.observer);
                operation.enqueue_request =
                    call.device_launch(works[0].device_completion(), ready_event.as_deref());
                let outcome = group.carry_out(&operation, options.nan_check);
                record.device_time_record().listen(works[0].device_completion());
                outcome
            }
            QueuedCall::Bytes(call, handler) => {
                match (call.run(group, first, &deadline, record)?, handler.take()) {
                    (Some(strings), Some(handler)) => handler.deliver(strings),
                    _ => Ok(()),
                }
            }
            QueuedCall::Operator(call) => call.run(group, &first, &deadline, options.nan_check),
            QueuedCall::List(call) => {
                let (ready_event, completion) =
                    (ready_event.as_deref(), works[0].device_completion());
                let (first, deadline, part) = (&first, &deadline, 0);
                let turn = ListTurn {
                    group,
                    call,
                    options,
                    first,
                    deadline,
                    ready_event,
                    completion,
                    part,
                };
                let outcome = turn.run();
                record.device_time_record().listen(completion);
                outcome
            }
        }
    }
}
