//! The interface of a device back end: the back end of a group for the memory of the group's
//! device. A group with a device map has one in addition to its host back end
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

/// The arguments of a point-to-point message in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMessage<'a> {
    /// The peer: the receiver of a send, the sender of a receive.
    pub peer: Rank,
    /// The element type.
    pub dtype: DataType,
    /// The direction of the transfer, with the buffer.
    pub transfer: DeviceTransfer<'a>,
}

/// The direction of a message in device memory, with its buffer.
#[derive(Clone, Copy, Debug)]
pub enum DeviceTransfer<'a> {
    /// Sends this buffer to the peer.
    Send(Src<'a>),
    /// Receives from the peer into this buffer, whose length equals the length that the peer sends.
    Recv(Dst<'a>),
}

/// The operations that one group enqueues on its device, as an element of a batch of several groups
/// ([`super::enqueue_batches`]).
#[derive(Debug)]
pub struct DeviceBatch<'a> {
    /// The enqueuer of the group: [`super::Backend::enqueuer`].
    pub enqueuer: NcclEnqueuer<'a>,
    /// The collectives of the group, in the same order on all ranks.
    pub operations: &'a [Operation<'a>],
    /// The point-to-point messages of the group, in any order, each with its device and stream.
    pub messages: &'a [(DeviceMessage<'a>, EnqueueRequest<'a>)],
    /// The deadline of the whole batch.
    pub deadline: &'a Deadline,
}

/// Point-to-point messages in device memory that the receiver matches by sender and tag. The host
/// transfers them one by one, each when its match is found. They never match messages in host
/// memory.
pub trait DevicePointToPoint: Send + Sync + Debug {
    /// Sends a message, as [`crate::transport::PointToPoint::send`] does. `stream` is the caller's
    /// stream: the message waits for the work that is in this stream at the call.
    ///
    /// # Errors
    /// The errors of [`crate::transport::PointToPoint::send`]; `Backend`.
    fn send(
        &self,
        message: SendRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()>;

    /// Receives a message, as [`crate::transport::PointToPoint::receive`] does.
    ///
    /// # Errors
    /// The errors of [`DevicePointToPoint::send`].
    fn receive(
        &self,
        message: ReceiveRequest,
        stream: Option<usize>,
        done: Arc<dyn Completion>,
    ) -> Result<()>;
}

/// The back end of a group for the memory of one device. It has the obligations of
/// [`super::Backend`].
pub(super) trait DeviceBackend: Send + Sync + Debug {
    /// Returns the number of the device.
    fn device(&self) -> usize;

    /// Checks whether the back end supports a kind of call; see [`super::Backend::supports`].
    fn supports(&self, query: &SupportQuery) -> Result<()>;

    /// Returns true if an operation ends when it is enqueued. Otherwise its data is complete when
    /// it ends.
    fn is_stream_ordered(&self) -> bool;

    /// Runs an operation in the memory of the device; see [`super::Backend::run`].
    fn run(&self, operation: &Operation<'_>, launch: &EnqueueRequest<'_>) -> Result<()>;

    /// See [`super::Backend::enqueuer`].
    fn enqueuer(&self) -> Option<NcclEnqueuer<'_>> {
        None
    }

    /// See [`super::Backend::device_point_to_point`].
    fn device_point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        None
    }

    /// See [`super::Backend::check_stream`].
    fn check_stream(&self, stream: usize) -> Result<()>;

    /// See [`super::Backend::record_stream_event`].
    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>>;

    /// See [`super::Backend::allocate_on`].
    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>>;

    /// Reacts to a failure of the group that [`super::GroupFailureState`] may not have reported to
    /// every rank.
    fn on_group_failure(&self) {}

    /// Returns the details for `dist_group_describe`.
    fn describe(&self) -> Value;
}

/// Returns the context of the device that the options name for this rank, or else of the device
/// that is current on the calling thread.
///
/// # Errors
/// `InvalidArgument` if there is no such device; the error of the driver or of the device if one
/// cannot be used.
pub(super) fn device_context(context: &GroupContext<'_>) -> Result<Arc<device::CudaContext>> {
    let driver = driver::get_or_load()?;
    let Some(device) = context.device.or_else(|| driver.current_device()) else {
        let message = "no device is set for this rank: set `device` in the options \
                       (DIST_FIELD_DEVICE), or make a device current on the thread that creates \
                       the group (cudaSetDevice and a first call, or cuCtxSetCurrent)";
        return Err(Error::invalid(message));
    };
    device::CudaContext::primary(device)
}

/// Returns true for a call that has no buffers, so that it needs no memory of a device.
pub(super) fn needs_no_device_memory(query: &SupportQuery) -> bool {
    query.kind == Some(OpKind::Barrier)
}

/// Returns the error for a stream that is capturing a graph.
pub(super) fn graph_capture_error(name: &str) -> Error {
    let message = format!(
        "the stream is being captured into a graph: the back end {name} does not support graph \
         capture yet"
    );
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
