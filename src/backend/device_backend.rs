//! The part of a group that serves the memory of its device, beside the one for host memory
//! ([`super::device_map`]).

use super::nccl::NcclEnqueuer;
use super::{BackendMemory, GroupContext, OpKind, Operation, SupportQuery};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, GpuTarget, StreamMarker};
use crate::base::ids::Rank;
use crate::device::memory::DeviceMemory;
use crate::device::{self, driver};
use crate::transport::{Completion, ReceiveRequest, SendRequest};
use serde_json::Value;
use std::fmt::Debug;
use std::sync::Arc;

/// A message, on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMessage<'a> {
    /// The other rank.
    pub peer: Rank,
    /// The type of its elements.
    pub dtype: DataType,
    /// Which way it goes.
    pub transfer: DeviceTransfer<'a>,
}

/// The memory of a message.
#[derive(Clone, Copy, Debug)]
pub enum DeviceTransfer<'a> {
    /// To the other rank.
    Send(Src<'a>),
    /// From it: as long as what it sends.
    Recv(Dst<'a>),
}

/// What one group enqueues on its device, as a part of what several do
/// ([`super::enqueue_batches`]).
#[derive(Debug)]
pub struct DeviceBatch<'a> {
    /// What takes them: [`super::Backend::enqueuer`].
    pub enqueuer: NcclEnqueuer<'a>,
    /// Its collectives, in the order that all ranks have.
    pub operations: &'a [Operation<'a>],
    /// Its messages, whose order does not count, and where they go.
    pub messages: &'a [(DeviceMessage<'a>, EnqueueRequest<'a>)],
    /// When all that must have ended.
    pub deadline: &'a Deadline,
}

/// Messages on a device that are matched by sender and tag and carried by the host, each at its own
/// time. They do not meet those in host memory.
pub trait DevicePointToPoint: Send + Sync + Debug {
    /// As [`crate::transport::PointToPoint::send`]. `stream` is the caller's, whose work so far
    /// comes before it.
    ///
    /// # Errors
    /// As there; `Backend`.
    fn send(
        &self,
        message: SendRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()>;

    /// As [`crate::transport::PointToPoint::receive`].
    ///
    /// # Errors
    /// As [`DevicePointToPoint::send`].
    fn receive(
        &self,
        message: ReceiveRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()>;
}

/// What serves a device. The obligations of [`super::Backend`] hold for it too.
pub(super) trait DeviceBackend: Send + Sync + Debug {
    /// Its device.
    fn device(&self) -> usize;

    /// As [`super::Backend::supports`].
    fn supports(&self, query: &SupportQuery) -> Result<()>;

    /// Whether an operation ends once it is enqueued; else it has taken place when it ends.
    fn is_stream_ordered(&self) -> bool;

    /// As [`super::Backend::run`], in the device's memory.
    fn run(&self, operation: &Operation<'_>, launch: &EnqueueRequest<'_>) -> Result<()>;

    /// As [`super::Backend::enqueuer`].
    fn enqueuer(&self) -> Option<NcclEnqueuer<'_>> {
        None
    }

    /// As [`super::Backend::device_point_to_point`].
    fn device_point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        None
    }

    /// As [`super::Backend::check_stream`].
    fn check_stream(&self, stream: usize) -> Result<()>;

    /// As [`super::Backend::record_stream_event`].
    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>>;

    /// As [`super::Backend::allocate_on`].
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>>;

    /// The group has failed, which its fate does not tell everybody.
    fn on_group_failure(&self) {}

    /// For `dist_group_describe`.
    fn describe(&self) -> Value;
}

/// The context of the device that was named for this rank, or that is current on its thread.
///
/// # Errors
/// `InvalidArgument` where there is none; what keeps the driver or the device from being used.
pub(super) fn device_context(context: &GroupContext<'_>) -> Result<Arc<device::CudaContext>> {
    let driver = driver::get_or_load()?;
    let Some(device) = context.device.or_else(|| driver.current_device()) else {
        let message = "no device was named for this rank: set `device` in the options (DIST_FIELD_DEVICE), or make one \
                       current on the thread that makes the group (cudaSetDevice and a first call, cuCtxSetCurrent)";
        return Err(Error::invalid(message));
    };
    device::CudaContext::primary(device)
}

/// Whether it is a call that needs no memory of a device.
pub(super) fn needs_no_device_memory(query: &SupportQuery) -> bool {
    query.kind == Some(OpKind::Barrier)
}

/// A stream of the caller's that no call can go to.
pub(super) fn graph_capture_error(name: &str) -> Error {
    let message =
        format!("the stream records a graph, which the back end {name} does not support yet");
    Error::new(ErrorKind::Unsupported, message)
}

impl BackendMemory for DeviceMemory {
    fn as_mut_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(usize::try_from(self.address()).unwrap_or(0))
    }

    fn len(&self) -> usize {
        Self::len(self)
    }
}
