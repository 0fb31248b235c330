//! What the part for host memory takes in a device's memory as it is: nothing is copied, it is only
//! waited until the device has come to where the caller's stream was.
//!
//! Which calls these are is the part's word (a plug-in's), the same on all ranks, and asked for
//! each.

use super::buffers::StagingWaitLimits;
use crate::backend::{
    Backend, Completion, DevicePointToPoint, GroupFailureState, OpKind, Operation, PointToPoint,
    ReceiveRequest, SendRequest, SupportQuery,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::gpu::GpuTarget;
use crate::base::op::ReduceOp;
use crate::device::stream::DEFAULT_STREAM;
use crate::device::{CudaContext, CudaEvent};
use std::sync::Arc;

/// What two ranks need to exchange a message.
const MESSAGE_NAMES: [&str; 2] = ["send", "recv"];

/// The part for host memory, for calls on the device.
#[derive(Debug)]
pub(super) struct DirectDevicePath {
    context: Arc<CudaContext>,
    cpu: Arc<dyn Backend>,
    failure_state: Arc<dyn GroupFailureState>,
    /// Which operations it takes, of some type.
    kinds: Vec<OpKind>,
    has_messages: bool,
}

impl DirectDevicePath {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        (cpu, failure_state): (&Arc<dyn Backend>, &Arc<dyn GroupFailureState>),
    ) -> Self {
        let can_run = |name: &'static str, kind: Option<OpKind>| {
            let op = kind.filter(|kind| kind.is_reduction()).map(|_| ReduceOp::Sum);
            let (dtype, gpu) = (Some(DataType::F32), Some(context.device()));
            cpu.supports(&SupportQuery { name, kind, dtype, op, gpu }).is_ok()
        };
        let kinds = OpKind::ALL.into_iter().filter(|kind| can_run(kind.name(), Some(*kind)));
        Self {
            kinds: kinds.collect(),
            has_messages: MESSAGE_NAMES.iter().all(|name| can_run(name, None)),
            context: Arc::clone(context),
            cpu: Arc::clone(cpu),
            failure_state: Arc::clone(failure_state),
        }
    }

    /// Whether a call is one of those.
    pub(super) fn can_run(&self, query: &SupportQuery) -> bool {
        let is_among = query.kind.map_or(self.has_messages, |kind| self.kinds.contains(&kind));
        is_among
            && self
                .cpu
                .supports(&SupportQuery { gpu: Some(self.context.device()), ..*query })
                .is_ok()
    }

    /// The same of an operation.
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

    /// The names of what it takes, for `dist_group_describe`.
    pub(super) fn supported_names(&self) -> Vec<&'static str> {
        let messages = MESSAGE_NAMES.into_iter().filter(|_| self.has_messages);
        self.kinds.iter().map(|kind| kind.name()).chain(messages).collect()
    }

    fn point_to_point(&self) -> Result<&dyn PointToPoint> {
        self.cpu.point_to_point().ok_or_else(|| Error::internal("the host part has no messages"))
    }

    /// Waits until a message's memory is ready.
    fn await_stream(
        &self,
        stream: Option<usize>,
        deadline: &Deadline,
    ) -> Result<Option<GpuTarget>> {
        if let Some(failure) = self.failure_state.failure() {
            return Err(failure);
        }
        let stream_event = CudaEvent::new(&self.context)?;
        stream_event.record(stream.unwrap_or(DEFAULT_STREAM))?;
        let limits =
            StagingWaitLimits { deadline, check_failure: &|| self.failure_state.failure() };
        limits.wait(&"what is in the stream before it", || stream_event.is_over())?;
        Ok(Some(GpuTarget { device: self.context.device(), stream }))
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
        self.point_to_point()?.send_from_gpu(gpu, message, done)
    }

    fn receive(
        &self,
        message: ReceiveRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()> {
        let gpu = self.await_stream(stream, &message.deadline)?;
        self.point_to_point()?.receive_to_gpu(gpu, message, done)
    }
}
