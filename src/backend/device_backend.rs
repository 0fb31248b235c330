//! The interface of a device back end, which runs the operations of a group on buffers in the
//! memory of a GPU. A group with a device map has a device back end in addition to its host back
//! end, which runs the operations on buffers in host memory ([`super::device_map`]).
//!
//! [`DeviceBackend`] contains the functions of every device back end. Two optional abilities are
//! separate traits: [`DevicePointToPoint`] and [`JointEnqueuer`].

use super::memory::BackendMemory;
use super::support_query::SupportQuery;
use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::Result;
use crate::base::gpu::{EnqueueRequest, GpuTarget, StreamMarker};
use crate::base::ids::Rank;
use crate::transport::{Completion, MessageTraffic, OpKind, ReceiveRequest, SendRequest};
use serde_json::Value;
use std::any::Any;
use std::sync::Arc;

/// The device back end of a group, for one device on each rank. It has the same obligations as
/// [`super::Backend`].
pub trait DeviceBackend: Send + Sync {
    /// Returns the name of the back end that serves the device. The name is empty if the group has
    /// a device, but no back end could be created for it.
    fn name(&self) -> &'static str;

    /// Returns the number of the device.
    fn device(&self) -> usize;

    /// Checks whether the back end supports a kind of call; see [`super::Backend::supports`].
    ///
    /// # Errors
    /// `Unsupported`.
    fn supports(&self, query: &SupportQuery) -> Result<()>;

    /// Runs an operation on buffers in the memory of the device; see [`super::Backend::run`].
    /// `request` contains the device, the caller's stream, and the slot for the enqueued operation.
    ///
    /// # Errors
    /// The errors of [`super::Backend::run`].
    fn run(&self, operation: &Operation<'_>, request: &EnqueueRequest<'_>) -> Result<()>;

    /// Returns true if [`DeviceBackend::run`] returns when the operation is enqueued in the stream.
    /// The device then completes the data later. Returns false if the data is complete when `run`
    /// returns.
    fn is_stream_ordered(&self) -> bool;

    /// Returns how many part numbers ([`crate::transport::Descriptor::part`]) an operation uses,
    /// starting with the part number of the operation itself. `block_bytes` is the count argument
    /// in bytes. The result is equal on all ranks.
    fn part_count(&self, kind: OpKind, block_bytes: usize) -> u16 {
        let _ = (kind, block_bytes);
        1
    }

    /// Checks whether a call can be enqueued in the caller's stream.
    ///
    /// # Errors
    /// `Unsupported`; `Backend`, which also reports a handle that is not a stream.
    fn check_stream(&self, gpu: GpuTarget) -> Result<()>;

    /// Records a marker behind the work that is in the caller's stream when a call is issued, and
    /// returns it. A back end needs the marker if its host thread must wait for this work before it
    /// accesses the buffers. Any other back end returns `None`.
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

    /// Returns the interface for point-to-point messages in device memory if the host transfers
    /// each message on its own. Returns `None` if the back end enqueues messages in batches.
    fn point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        None
    }

    /// Returns the enqueuer of this group if operations of several groups can be enqueued together
    /// ([`enqueue_batches`]), otherwise `None`.
    fn enqueuer(&self) -> Option<&dyn JointEnqueuer> {
        None
    }

    /// Informs the back end that the group has failed, in case the listeners of
    /// [`super::GroupFailureState`] were not called.
    fn on_group_failure(&self);

    /// Returns the details for `dist_group_describe`.
    fn describe(&self) -> Value;
}

crate::base::trait_object_debug::impl_debug_of_objects!(DeviceBackend);

/// The arguments of a point-to-point message in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMessage<'a> {
    /// The peer: the receiver of a send, the sender of a receive.
    pub peer: Rank,
    /// The element type.
    pub dtype: DataType,
    /// The direction and the buffer.
    pub transfer: DeviceTransfer<'a>,
}

/// The direction and the buffer of a message in device memory.
#[derive(Clone, Copy, Debug)]
pub enum DeviceTransfer<'a> {
    /// Sends this buffer to the peer.
    Send(Src<'a>),
    /// Receives from the peer into this buffer. The buffer has the length of the message that the
    /// peer sends.
    Recv(Dst<'a>),
}

/// The operations that one group enqueues on its device. [`enqueue_batches`] enqueues the batches
/// of several groups together.
#[derive(Debug)]
pub struct DeviceBatch<'a> {
    /// The enqueuer of the group: [`DeviceBackend::enqueuer`].
    pub enqueuer: &'a dyn JointEnqueuer,
    /// The collectives of the group, in the same order on all ranks.
    pub operations: &'a [Operation<'a>],
    /// The point-to-point messages of the group in any order, each with its device and stream.
    pub messages: &'a [(DeviceMessage<'a>, EnqueueRequest<'a>)],
    /// The deadline for all operations and messages of the batch.
    pub deadline: &'a Deadline,
}

/// The ability of a device back end to enqueue the operations of several groups together.
pub trait JointEnqueuer: Any + Send + Sync {
    /// Enqueues the batches of several groups; see [`enqueue_batches`]. The enqueuers of all
    /// batches must have the same type as `self`.
    fn enqueue_batches(&self, batches: &[DeviceBatch<'_>]) -> Vec<Result<()>>;

    /// Returns the reason why a message with this peer and this tag cannot be enqueued, or `None`
    /// if it can be enqueued. The argument `peer` is `None` for a receive from any rank, and `tag`
    /// is `None` for a receive with any tag.
    fn message_restriction(&self, peer: Option<Rank>, tag: Option<u32>) -> Option<&'static str>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(JointEnqueuer);

/// Enqueues the operations of several groups together, each on the device of its group, so that no
/// group waits for another group. Returns one result for each element of `batches`. If a result is
/// an error, the group of that batch has failed. If several ranks or several threads enqueue for
/// the same groups, they must use the same order of the groups.
pub fn enqueue_batches(batches: &[DeviceBatch<'_>]) -> Vec<Result<()>> {
    batches.first().map_or_else(Vec::new, |first| first.enqueuer.enqueue_batches(batches))
}

/// The ability of a device back end to transfer point-to-point messages in device memory one by
/// one. The receiver matches messages by sender and tag, and the host transfers a message when its
/// match is found. Messages in device memory never match messages in host memory.
pub trait DevicePointToPoint: Send + Sync {
    /// Sends a message, as [`crate::transport::PointToPoint::send`] does. `stream` is the caller's
    /// stream. The transfer begins after the device has completed the work that is in this stream
    /// at the time of the call.
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

    /// Returns the messages that this interface has exchanged, and those of one work that wait for
    /// a call of another rank, as [`crate::transport::PointToPoint::traffic`] does. Without counts
    /// if they are unknown, or if the messages are among those of the host back end.
    fn traffic(&self, work_id: usize) -> MessageTraffic {
        let _ = work_id;
        MessageTraffic::default()
    }
}

crate::base::trait_object_debug::impl_debug_of_objects!(DevicePointToPoint);
