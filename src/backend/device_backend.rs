//! The interface of a device back end: the back end of a group for the memory of the group's
//! device. A group with a device map has one in addition to its host back end
//! ([`super::device_map`]). Its rarely used abilities are traits of their own.

use super::memory::BackendMemory;
use super::support_query::SupportQuery;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::gpu::{EnqueueRequest, GpuTarget, StreamMarker};
use crate::base::ids::Rank;
use crate::transport::{Completion, ReceiveRequest, SendRequest};
use serde_json::Value;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// The back end of a group for the memory of one device. It has the obligations of
/// [`super::Backend`].
pub trait DeviceBackend: Send + Sync + Debug {
    /// Returns the name of the back end that serves the device; empty if none does.
    fn name(&self) -> &'static str;

    /// Returns the number of the device.
    fn device(&self) -> usize;

    /// Checks whether the back end supports a kind of call; see [`super::Backend::supports`].
    ///
    /// # Errors
    /// `Unsupported`.
    fn supports(&self, query: &SupportQuery) -> Result<()>;

    /// Runs an operation in the memory of the device; see [`super::Backend::run`].
    ///
    /// # Errors
    /// The errors of [`super::Backend::run`].
    fn run(&self, operation: &Operation<'_>, launch: &EnqueueRequest<'_>) -> Result<()>;

    /// Returns true if an operation ends when it is enqueued, before its data is complete.
    /// Otherwise its data is complete when it ends.
    fn is_stream_ordered(&self) -> bool;

    /// Checks whether a call can be enqueued in the caller's stream.
    ///
    /// # Errors
    /// `Unsupported`; `Backend`, also if the handle is not a stream.
    fn check_stream(&self, gpu: GpuTarget) -> Result<()>;

    /// Records an event for the work that is in a stream when a call is issued. Only back ends that
    /// wait for this work themselves return one.
    ///
    /// # Errors
    /// `Backend`.
    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        let _ = gpu;
        Ok(None)
    }

    /// Allocates memory for buffers on the device with this number.
    ///
    /// # Errors
    /// `Unsupported`, `OutOfMemory`, `Backend`.
    fn allocate(&self, device: usize, bytes: usize) -> Result<Box<dyn BackendMemory>>;

    /// Returns the interface for messages in device memory if the host transfers them one by one;
    /// `None` if the back end enqueues them together.
    fn point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        None
    }

    /// Returns the enqueuer of this group if operations of several groups can be enqueued on their
    /// devices as one batch; otherwise `None`.
    fn enqueuer(&self) -> Option<&dyn JointEnqueuer> {
        None
    }

    /// Reacts to a failure of the group that [`super::GroupFailureState`] may not have reported to
    /// every rank.
    fn on_group_failure(&self);

    /// Returns the details for `dist_group_describe`.
    fn describe(&self) -> Value;
}

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
/// ([`enqueue_batches`]).
#[derive(Debug)]
pub struct DeviceBatch<'a> {
    /// The enqueuer of the group: [`DeviceBackend::enqueuer`].
    pub enqueuer: &'a dyn JointEnqueuer,
    /// The collectives of the group, in the same order on all ranks.
    pub operations: &'a [Operation<'a>],
    /// The point-to-point messages of the group, in any order, each with its device and stream.
    pub messages: &'a [(DeviceMessage<'a>, EnqueueRequest<'a>)],
    /// The deadline of the whole batch.
    pub deadline: &'a Deadline,
}

/// Enqueues the operations of several groups, each on its device, as one batch.
pub trait JointEnqueuer: Any + Send + Sync + Debug {
    /// Enqueues batches whose enqueuers have the type of this one; see [`enqueue_batches`].
    fn enqueue_batches(&self, batches: &[DeviceBatch<'_>]) -> Vec<Result<()>>;

    /// Returns the reason why a message with this peer and this tag cannot be enqueued, if it
    /// cannot. `None` means any peer or any tag.
    fn message_restriction(&self, peer: Option<Rank>, tag: Option<u32>) -> Option<&'static str>;
}

/// Enqueues the operations of several groups, each on its device, as one operation, so that no
/// group waits for another. Returns one result per batch; an error has failed the group of this
/// batch. The batches must have the same order on all ranks and in all threads.
pub fn enqueue_batches(batches: &[DeviceBatch<'_>]) -> Vec<Result<()>> {
    batches.first().map_or_else(Vec::new, |first| first.enqueuer.enqueue_batches(batches))
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
