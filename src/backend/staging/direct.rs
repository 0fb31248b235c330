//! Passes device memory unchanged to the host back end, for the calls that it supports. Nothing is
//! copied; the library only waits until the device has completed the earlier work of the caller's
//! stream.
//!
//! The host back end (a plug-in) reports the supported calls, identically on all ranks. The library
//! asks for each call.

use super::host::StagingHost;
use crate::backend::{
    Completion, DevicePointToPoint, OpKind, Operation, ReceiveRequest, SendRequest, SupportQuery,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::gpu::GpuTarget;
use crate::base::op::ReduceOp;
use std::sync::Arc;

/// The names of the calls that a message needs.
const MESSAGE_NAMES: [&str; 2] = ["send", "recv"];

/// The host back end for calls on device memory.
#[derive(Debug)]
pub(super) struct DirectDevicePath {
    host: StagingHost,
    /// The operations that the host back end supports for at least f32 and SUM.
    kinds: Vec<OpKind>,
    has_messages: bool,
}

impl DirectDevicePath {
    pub(super) fn new(host: &StagingHost) -> Self {
        let can_run = |name: &'static str, kind: Option<OpKind>| {
            let op = kind.filter(|kind| kind.is_reduction()).map(|_| ReduceOp::Sum);
            let (dtype, gpu) = (Some(DataType::F32), Some(host.context.device()));
            host.backend.supports(&SupportQuery { name, kind, dtype, op, gpu }).is_ok()
        };
        let kinds = OpKind::ALL.into_iter().filter(|kind| can_run(kind.name(), Some(*kind)));
        Self {
            kinds: kinds.collect(),
            has_messages: MESSAGE_NAMES.iter().all(|name| can_run(name, None)),
            host: host.clone(),
        }
    }

    /// Returns true if the host back end supports the call on device memory.
    pub(super) fn can_run(&self, query: &SupportQuery) -> bool {
        let is_among = query.kind.map_or(self.has_messages, |kind| self.kinds.contains(&kind));
        let gpu = Some(self.host.context.device());
        is_among && self.host.backend.supports(&SupportQuery { gpu, ..*query }).is_ok()
    }

    /// Returns true if the host back end supports the operation on device memory.
    pub(super) fn can_run_operation(&self, operation: &Operation<'_>) -> bool {
        let descriptor = &operation.descriptor;
        let (kind, dtype) = (descriptor.kind, Some(operation.dtype()));
        self.kinds.contains(&kind)
            && self.can_run(&SupportQuery {
                name: kind.name(),
                kind: Some(kind),
                dtype,
                op: descriptor.op,
                gpu: None,
            })
    }

    pub(super) fn has_messages(&self) -> bool {
        self.has_messages
    }

    /// Returns the names of the supported calls, for `dist_group_describe`.
    pub(super) fn supported_names(&self) -> Vec<&'static str> {
        let messages = MESSAGE_NAMES.into_iter().filter(|_| self.has_messages);
        self.kinds.iter().map(|kind| kind.name()).chain(messages).collect()
    }

    /// Waits until the earlier work of the stream is complete, so that the buffer of a message is
    /// ready.
    fn await_stream(
        &self,
        stream: Option<usize>,
        deadline: &Deadline,
    ) -> Result<Option<GpuTarget>> {
        self.host.failure_state.check_failure()?;
        let event = self.host.record_event(stream)?;
        self.host.wait_limits(deadline).await_stream(|| event.is_over())?;
        Ok(Some(GpuTarget { device: self.host.context.device(), stream }))
    }
}

impl DevicePointToPoint for DirectDevicePath {
    fn send(
        &self,
        message: SendRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let gpu = self.await_stream(stream, &message.deadline)?;
        self.host.point_to_point()?.send_from_gpu(gpu, message, done)
    }

    fn receive(
        &self,
        message: ReceiveRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let gpu = self.await_stream(stream, &message.deadline)?;
        self.host.point_to_point()?.receive_to_gpu(gpu, message, done)
    }
}
