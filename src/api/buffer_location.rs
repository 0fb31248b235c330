//! Where the buffers of a call lie, in groups that serve a device beside host memory, when they are
//! ready, and what becomes of messages there.
//!
//! What the call says counts, else the driver is asked about each buffer; all of one call lie in
//! one place. A call without anything in its buffers belongs to host memory if that is so on all
//! ranks by what they agree on; where only this rank has nothing (in `gather_v`, `scatter_v` and
//! `all_to_all_v`) it follows the others to the group's device.
//!
//! Nothing here touches a buffer. Groups without a device do not come here, but for calls that name
//! one.

use super::call::{BufferLocation, Call, CallOptions};
use super::group::Group;
use super::point_to_point::{MessageBuffer, MessageDescriptor};
use super::work::{Work, WorkKind};
use crate::backend::{DeviceMessage, DeviceWay, SupportQuery};
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::debug::NanCheck;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{EnqueuedOperationSlot, GpuTarget, StreamMarker};
use std::sync::Arc;

/// Where all buffers of a call lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallLocation {
    /// There are none.
    NoBuffers,
    Host,
    Device(usize),
}

impl CallLocation {
    fn describe(self) -> String {
        match self {
            Self::NoBuffers | Self::Host => "host memory".to_owned(),
            Self::Device(device) => format!("memory of device {device}"),
        }
    }
}

/// A message on a device, on its way to the back end.
#[derive(Debug)]
pub(super) struct PreparedDeviceMessage {
    pub(super) memory: MessageBuffer,
    pub(super) gpu: GpuTarget,
    pub(super) work: Arc<Work>,
}

impl Group {
    /// Notes in a call where its buffers lie.
    #[cold]
    pub(super) fn locate_buffers(&self, call: &mut Call<'_>, options: &CallOptions) -> Result<()> {
        let location = self
            .common_location(options, |note| call.visit_buffers(&mut |buffer, _| note(buffer)))?;
        let location = match location {
            CallLocation::NoBuffers if call.kind().is_pairwise() => {
                self.peers_location(call, options)
            }
            place => place,
        };
        let gpu = self.check_gpu(location, options)?;
        call.set_location(gpu, location == CallLocation::NoBuffers);
        Ok(())
    }

    /// Where a message's buffer lies; `None` for host memory.
    #[cold]
    pub(super) fn locate_message(
        &self,
        message: &MessageDescriptor,
        memory: &MessageBuffer,
        options: &CallOptions,
    ) -> Result<Option<GpuTarget>> {
        let bytes = match memory {
            MessageBuffer::Send(bytes) => *bytes,
            MessageBuffer::Receive(into) | MessageBuffer::ReceiveMatched(_, into) => into.as_src(),
            MessageBuffer::SendRecv(exchange) => exchange.recv_buffer.as_src(),
            MessageBuffer::ReceiveAllocated { .. } => Src::empty(),
        };
        let location = self.common_location(options, |note| note(bytes))?;
        let Some(gpu) = self.check_gpu(location, options)? else { return Ok(None) };
        let (name, dtype) =
            (if message.is_outgoing { "send" } else { "recv" }, Some(message.dtype));
        let query = SupportQuery { name, kind: None, dtype, op: None, gpu: Some(gpu.device) };
        self.backend.supports(&query)?;
        let unsupported = |why: &str| {
            let text = format!(
                "{query} in memory of device {}: back end {}: {why}",
                gpu.device,
                self.backend_name()
            );
            Err(Error::new(ErrorKind::Unsupported, text))
        };
        if self.backend.device_point_to_point().is_some() {
            // As in host memory.
            return Ok(Some(gpu));
        }
        if message.peer.is_none() {
            return unsupported("NCCL cannot receive from any rank: name one");
        }
        if message.tag.is_some_and(|tag| tag != 0) {
            return unsupported(
                "NCCL has no tags, messages between two ranks are in one order: tag 0 is possible",
            );
        }
        Ok(Some(gpu))
    }

    fn common_location(
        &self,
        options: &CallOptions,
        visit_buffers: impl FnOnce(&mut dyn FnMut(Src<'_>)),
    ) -> Result<CallLocation> {
        let (mut location, mut outcome) = (CallLocation::NoBuffers, Ok(()));
        visit_buffers(&mut |buffer| {
            if outcome.is_err() || buffer.is_empty() {
                return;
            }
            match self.buffer_location(buffer, options) {
                Ok(place) if location == CallLocation::NoBuffers || location == place => {
                    location = place
                }
                Ok(place) => {
                    let message = format!(
                        "one buffer lies in {}, and another in {}: all of a call lie in one place",
                        location.describe(),
                        place.describe()
                    );
                    outcome = Err(Error::invalid(message));
                }
                Err(error) => outcome = Err(error),
            }
        });
        outcome.map(|()| location)
    }

    fn buffer_location(&self, buffer: Src<'_>, options: &CallOptions) -> Result<CallLocation> {
        match options.location {
            BufferLocation::Host => return Ok(CallLocation::Host),
            BufferLocation::Device(device) => return Ok(CallLocation::Device(device)),
            BufferLocation::Unspecified => {}
        }
        let found = self.backend.device_of(buffer.as_ptr().addr())?;
        Ok(found.map_or(CallLocation::Host, CallLocation::Device))
    }

    /// Where the other ranks' buffers lie, of which this one has none.
    fn peers_location(&self, call: &Call<'_>, options: &CallOptions) -> CallLocation {
        let (kind, dtype) = (call.kind(), call.dtype());
        let device = match options.location {
            BufferLocation::Host => return CallLocation::Host,
            BufferLocation::Device(device) => Some(device),
            BufferLocation::Unspecified => self.device,
        };
        let query =
            SupportQuery { name: kind.name(), kind: Some(kind), dtype, op: call.op(), gpu: device };
        match device {
            Some(device) if self.backend.supports(&query).is_ok() => CallLocation::Device(device),
            _ => CallLocation::Host,
        }
    }

    fn check_gpu(
        &self,
        location: CallLocation,
        options: &CallOptions,
    ) -> Result<Option<GpuTarget>> {
        match location {
            CallLocation::Device(device) if self.device.is_none() => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "memory of device {device}: the group has no device; name one where it is made (DIST_FIELD_DEVICE)"
                ),
            )),
            CallLocation::Device(device) if options.nan_check != NanCheck::Off => Err(Error::new(
                ErrorKind::Unsupported,
                format!("nobody looks for NaN in memory of device {device}"),
            )),
            CallLocation::Device(device) if options.algorithm.is_some() => {
                let wish = "an algorithm by name";
                Err(self.unsupported_choice_error(wish, device))
            }
            CallLocation::Device(device)
                if options.canonical && self.backend.is_stream_ordered() =>
            {
                Err(self.unsupported_choice_error("DIST_CALL_CANONICAL", device))
            }
            CallLocation::Device(device) => {
                let gpu = GpuTarget { device, stream: options.stream };
                self.backend.check_stream(gpu).map(|()| Some(gpu))
            }
            CallLocation::Host if options.stream.is_some() => {
                Err(Error::invalid("a stream was given for buffers in host memory"))
            }
            CallLocation::Host | CallLocation::NoBuffers => Ok(None),
        }
    }

    fn unsupported_choice_error(&self, choice: &str, device: usize) -> Error {
        let message = format!(
            "{choice}, in memory of device {device}: back end {} chooses by itself",
            self.backend_name()
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Notes what is in its stream before a call that is about to be issued.
    pub(super) fn record_ready_event(
        &self,
        call: &Call<'_>,
    ) -> Result<Option<Arc<dyn StreamMarker>>> {
        call.gpu().map_or(Ok(None), |gpu| self.backend.record_stream_event(gpu))
    }

    /// Waits until the device is done with an operation, for a call that has nothing else to wait
    /// for.
    pub(super) fn wait_for_device(
        &self,
        slot: &EnqueuedOperationSlot,
        deadline: &Deadline,
    ) -> Result<()> {
        let Some(flight) = slot.get() else { return Ok(()) };
        if flight.wait(deadline)? {
            return Ok(());
        }
        let message =
            format!("the device was not done with it within {} ms", deadline.elapsed().as_millis());
        let error = Error::new(ErrorKind::Timeout, message);
        self.fail(&error);
        // The watchdog may have said more.
        Err(self.failure().unwrap_or(error))
    }
}

impl PreparedDeviceMessage {
    pub(super) fn descriptor(&self) -> Result<MessageDescriptor> {
        match self.work.kind() {
            WorkKind::Message(message) => Ok(message),
            _ => Err(Error::internal("a work that is no message was posted as one")),
        }
    }

    pub(super) fn bytes(&self) -> Src<'static> {
        match &self.memory {
            MessageBuffer::Send(bytes) => *bytes,
            MessageBuffer::Receive(into) => into.as_src(),
            MessageBuffer::ReceiveAllocated { .. }
            | MessageBuffer::ReceiveMatched(..)
            | MessageBuffer::SendRecv(_) => Src::empty(),
        }
    }

    pub(super) fn to_device_message(&self) -> Result<DeviceMessage<'static>> {
        let message = self.descriptor()?;
        let direction = match &self.memory {
            MessageBuffer::Send(bytes) => DeviceWay::Send(*bytes),
            MessageBuffer::Receive(into) => DeviceWay::Recv(*into),
            MessageBuffer::ReceiveAllocated { .. }
            | MessageBuffer::ReceiveMatched(..)
            | MessageBuffer::SendRecv(_) => {
                return Err(Error::internal("a call for host memory only on a device"));
            }
        };
        let peer = message.peer.ok_or_else(|| Error::internal("a message from anybody"))?;
        Ok(DeviceMessage { peer, dtype: message.dtype, transfer: direction })
    }
}
