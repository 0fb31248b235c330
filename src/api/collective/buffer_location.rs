//! Finds out whether the buffers of a call are in host memory or in device memory, in groups that
//! serve a device in addition to host memory. For device memory, it also records when the buffers
//! are ready.
//!
//! * If the call's options name a location, the buffers are there.
//! * Otherwise the driver is asked for the location of each buffer. All buffers of a call must have
//!   the same location.
//! * If all buffers of a call are empty, the driver has no answer. In most collectives, empty
//!   buffers on one rank mean empty buffers on all ranks, and the call runs in host memory. In
//!   `gather_v`, `scatter_v` and `all_to_all_v`, the buffers may be empty on this rank only. Such a
//!   call uses the location that the other ranks use: the group's device, if the back end supports
//!   the call there.
//!
//! This module never accesses the content of a buffer. Groups without a device use this module only
//! for calls whose options name a device.

use crate::api::collective::call::{BufferLocation, Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::backend::{DeviceBackend, SupportQuery};
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::debug::NanCheck;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{EnqueuedOperationSlot, GpuTarget, StreamMarker};
use crate::device;
use std::sync::Arc;

/// The location of all buffers of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallLocation {
    /// All buffers are empty.
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

/// Returns the error of a call that names a device, in a group without a device.
fn no_device_error(device: usize) -> Error {
    let message = format!(
        "memory of device {device}: the group has no device; create the group with that device \
         (DIST_FIELD_DEVICE)"
    );
    Error::new(ErrorKind::Unsupported, message)
}

impl Group {
    /// Locates the buffers of a call and stores the location in the call.
    #[cold]
    pub(super) fn locate_buffers(&self, call: &mut Call<'_>, options: &CallOptions) -> Result<()> {
        let location = self
            .common_location(options, |note| call.visit_buffers(&mut |buffer, _| note(buffer)))?;
        let location = match location {
            CallLocation::NoBuffers if call.kind().is_pairwise() => {
                self.peers_location(call, options)
            }
            other => other,
        };
        call.gpu = self.check_gpu(location, options)?;
        call.is_empty = location == CallLocation::NoBuffers;
        Ok(())
    }

    /// Returns the GPU and the stream for one buffer. Returns `None` for host memory.
    #[cold]
    pub(in crate::api) fn locate_buffer(
        &self,
        bytes: Src<'_>,
        options: &CallOptions,
    ) -> Result<Option<GpuTarget>> {
        let location = self.common_location(options, |note| note(bytes))?;
        self.check_gpu(location, options)
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
                Ok(buffer_location)
                    if location == CallLocation::NoBuffers || location == buffer_location =>
                {
                    location = buffer_location
                }
                Ok(buffer_location) => {
                    let message = format!(
                        "one buffer is in {} and another in {}: all buffers of a call must be in \
                         the same memory",
                        location.describe(),
                        buffer_location.describe()
                    );
                    outcome = Err(Error::invalid(message));
                }
                Err(error) => outcome = Err(error),
            }
        });
        outcome?;
        if location == CallLocation::NoBuffers {
            self.check_named_device(options)?;
        }
        Ok(location)
    }

    /// Checks the device that the options of a call without buffers name, for example of a barrier:
    /// it must be the group's device.
    fn check_named_device(&self, options: &CallOptions) -> Result<()> {
        let BufferLocation::Device(device) = options.location else { return Ok(()) };
        match self.device {
            None => Err(no_device_error(device)),
            Some(own) if own != device => {
                let message = format!("device {device}: the group uses device {own} on this rank");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            Some(_) => Ok(()),
        }
    }

    fn buffer_location(&self, buffer: Src<'_>, options: &CallOptions) -> Result<CallLocation> {
        match options.location {
            BufferLocation::Host => return Ok(CallLocation::Host),
            BufferLocation::Device(device) => return Ok(CallLocation::Device(device)),
            BufferLocation::Unspecified => {}
        }
        let address = buffer.as_ptr().addr();
        let found = self.device.map_or(Ok(None), |_| device::memory::device_of(address))?;
        Ok(found.map_or(CallLocation::Host, CallLocation::Device))
    }

    /// Returns the location of the other ranks' buffers, for a rank whose own buffers are all
    /// empty.
    fn peers_location(&self, call: &Call<'_>, options: &CallOptions) -> CallLocation {
        let (kind, dtype) = (call.kind(), call.dtype);
        let device = match options.location {
            BufferLocation::Host => return CallLocation::Host,
            BufferLocation::Device(device) => Some(device),
            BufferLocation::Unspecified => self.device,
        };
        let query =
            SupportQuery { name: kind.name(), kind: Some(kind), dtype, op: call.op, gpu: device };
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
            CallLocation::Device(device) if self.device.is_none() => Err(no_device_error(device)),
            CallLocation::Device(device) if options.nan_check != NanCheck::Off => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the NaN check does not support memory of device {device}"),
            )),
            CallLocation::Device(device) if options.algorithm.is_some() => {
                let choice = "an algorithm by name";
                Err(self.unsupported_choice_error(choice, device))
            }
            CallLocation::Device(device)
                if options.canonical
                    && self.backend.device().is_some_and(DeviceBackend::is_stream_ordered) =>
            {
                Err(self.unsupported_choice_error("DIST_CALL_CANONICAL", device))
            }
            CallLocation::Device(device) => {
                let gpu = GpuTarget { device, stream: options.stream };
                let checked = self.backend.device().map_or(Ok(()), |it| it.check_stream(gpu));
                checked.map(|()| Some(gpu))
            }
            CallLocation::Host if options.stream.is_some() => {
                Err(Error::invalid("a stream was given for buffers in host memory"))
            }
            CallLocation::Host | CallLocation::NoBuffers => Ok(None),
        }
    }

    fn unsupported_choice_error(&self, choice: &str, device: usize) -> Error {
        let message = format!(
            "{choice} is not supported in memory of device {device}: back end {} chooses the algorithm itself",
            self.backend_name()
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Records an event on the stream of a call before the call is issued. When the event
    /// completes, the buffers are ready.
    pub(super) fn record_ready_event(
        &self,
        gpu: Option<GpuTarget>,
    ) -> Result<Option<Arc<dyn StreamMarker>>> {
        let target = self.backend.device().zip(gpu);
        target.map_or(Ok(None), |(device, gpu)| device.record_stream_event(gpu))
    }

    /// Waits until the device has completed an operation. If the deadline passes first, the group
    /// fails.
    pub(super) fn wait_for_device(
        &self,
        slot: &EnqueuedOperationSlot,
        deadline: &Deadline,
    ) -> Result<()> {
        let Some(completion) = slot.get() else { return Ok(()) };
        if completion.wait(deadline)? {
            return Ok(());
        }
        let message = format!(
            "the device did not complete the operation within {} ms",
            deadline.elapsed().as_millis()
        );
        let error = Error::new(ErrorKind::Timeout, message);
        self.fail(&error);
        // If the device watchdog has failed the group first, its failure is more detailed.
        Err(self.failure().unwrap_or(error))
    }
}
