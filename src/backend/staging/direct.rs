//! The direct path: some host back ends (plug-ins) can access device memory themselves. For the
//! calls that such a host back end supports, the staging back end passes the device buffers to it
//! without a copy. Before that, it only waits until the device has completed the earlier work of
//! the caller's stream.
//!
//! The staging back end asks the host back end for each call whether it supports the call on device
//! memory. The host back end must give the same answer on all ranks.

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

/// The names of the two calls for point-to-point messages.
const MESSAGE_NAMES: [&str; 2] = ["send", "recv"];

/// The host back end, with the kinds of calls that it supports on device memory.
#[derive(Debug)]
pub(super) struct DirectDevicePath {
    host: StagingHost,
    /// The operations that the host back end supports on device memory, tested with the type f32
    /// and, for reductions, the operator SUM. It may still refuse other types or operators.
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

    /// Waits until the device has completed the earlier work of the stream, so that the buffer of a
    /// message is ready. Returns the device and the stream for the host back end.
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
