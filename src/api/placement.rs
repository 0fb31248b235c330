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

use super::call::{Call, CallOptions, Where};
use super::group::Group;
use super::point_to_point::{Memory, Message};
use super::work::{Work, WorkKind};
use crate::backend::{DeviceMessage, DeviceWay, Query};
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::debug::Values;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{FlightSlot, Gpu, Mark};
use std::sync::Arc;

/// Where all buffers of a call lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    /// There are none.
    Nowhere,
    Host,
    On(usize),
}

impl Lies {
    fn words(self) -> String {
        match self {
            Self::Nowhere | Self::Host => "host memory".to_owned(),
            Self::On(device) => format!("memory of device {device}"),
        }
    }
}

/// A message on a device, on its way to the back end.
#[derive(Debug)]
pub(super) struct OnDevice {
    pub(super) memory: Memory,
    pub(super) gpu: Gpu,
    pub(super) work: Arc<Work>,
}

impl Group {
    /// Notes in a call where its buffers lie.
    #[cold]
    pub(super) fn locate(&self, call: &mut Call<'_>, options: &CallOptions) -> Result<()> {
        let place =
            self.place_of(options, |note| call.each_buffer(&mut |buffer, _| note(buffer)))?;
        let place = match place {
            Lies::Nowhere if call.kind().is_pairwise() => self.of_the_others(call, options),
            place => place,
        };
        let gpu = self.gpu(place, options)?;
        call.set_place(gpu, place == Lies::Nowhere);
        Ok(())
    }

    /// Where a message's buffer lies; `None` for host memory.
    #[cold]
    pub(super) fn locate_message(
        &self,
        message: &Message,
        memory: &Memory,
        options: &CallOptions,
    ) -> Result<Option<Gpu>> {
        let bytes = match memory {
            Memory::Out(bytes) => *bytes,
            Memory::In(into) | Memory::Matched(_, into) => into.as_src(),
            Memory::Exchange(exchange) => exchange.into.as_src(),
            Memory::Grows { .. } => Src::empty(),
        };
        let place = self.place_of(options, |note| note(bytes))?;
        let Some(gpu) = self.gpu(place, options)? else { return Ok(None) };
        let (name, dtype) =
            (if message.is_outgoing { "send" } else { "recv" }, Some(message.dtype));
        let query = Query { name, kind: None, dtype, op: None, gpu: Some(gpu.device) };
        self.backend.supports(&query)?;
        let refused = |why: &str| {
            let text = format!(
                "{query} in memory of device {}: back end {}: {why}",
                gpu.device,
                self.backend_name()
            );
            Err(Error::new(ErrorKind::Unsupported, text))
        };
        if self.backend.carried().is_some() {
            // As in host memory.
            return Ok(Some(gpu));
        }
        if message.peer.is_none() {
            return refused("NCCL cannot receive from any rank: name one");
        }
        if message.tag.is_some_and(|tag| tag != 0) {
            return refused(
                "NCCL has no tags, messages between two ranks are in one order: tag 0 is possible",
            );
        }
        Ok(Some(gpu))
    }

    fn place_of(
        &self,
        options: &CallOptions,
        each: impl FnOnce(&mut dyn FnMut(Src<'_>)),
    ) -> Result<Lies> {
        let (mut found, mut outcome) = (Lies::Nowhere, Ok(()));
        each(&mut |buffer| {
            if outcome.is_err() || buffer.is_empty() {
                return;
            }
            match self.lies(buffer, options) {
                Ok(place) if found == Lies::Nowhere || found == place => found = place,
                Ok(place) => {
                    let message = format!(
                        "one buffer lies in {}, and another in {}: all of a call lie in one place",
                        found.words(),
                        place.words()
                    );
                    outcome = Err(Error::invalid(message));
                }
                Err(error) => outcome = Err(error),
            }
        });
        outcome.map(|()| found)
    }

    fn lies(&self, buffer: Src<'_>, options: &CallOptions) -> Result<Lies> {
        match options.place {
            Where::Host => return Ok(Lies::Host),
            Where::Device(device) => return Ok(Lies::On(device)),
            Where::Unsaid => {}
        }
        let found = self.backend.device_of(buffer.as_ptr().addr())?;
        Ok(found.map_or(Lies::Host, Lies::On))
    }

    /// Where the other ranks' buffers lie, of which this one has none.
    fn of_the_others(&self, call: &Call<'_>, options: &CallOptions) -> Lies {
        let (kind, dtype) = (call.kind(), call.dtype());
        let device = match options.place {
            Where::Host => return Lies::Host,
            Where::Device(device) => Some(device),
            Where::Unsaid => self.device,
        };
        let query =
            Query { name: kind.name(), kind: Some(kind), dtype, op: call.op(), gpu: device };
        match device {
            Some(device) if self.backend.supports(&query).is_ok() => Lies::On(device),
            _ => Lies::Host,
        }
    }

    fn gpu(&self, place: Lies, options: &CallOptions) -> Result<Option<Gpu>> {
        match place {
            Lies::On(device) if self.device.is_none() => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "memory of device {device}: the group has no device; name one where it is made (DIST_FIELD_DEVICE)"
                ),
            )),
            Lies::On(device) if options.values != Values::Any => Err(Error::new(
                ErrorKind::Unsupported,
                format!("nobody looks for NaN in memory of device {device}"),
            )),
            Lies::On(device) if options.algorithm.is_some() => {
                let wish = "an algorithm by name";
                Err(self.no_choice(wish, device))
            }
            Lies::On(device) if options.canonical && self.backend.is_stream_ordered() => {
                Err(self.no_choice("DIST_CALL_CANONICAL", device))
            }
            Lies::On(device) => {
                let gpu = Gpu { device, stream: options.stream };
                self.backend.check_stream(gpu).map(|()| Some(gpu))
            }
            Lies::Host if options.stream.is_some() => {
                Err(Error::invalid("a stream was given for buffers in host memory"))
            }
            Lies::Host | Lies::Nowhere => Ok(None),
        }
    }

    fn no_choice(&self, wish: &str, device: usize) -> Error {
        let message = format!(
            "{wish}, in memory of device {device}: back end {} chooses by itself",
            self.backend_name()
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Notes what is in its stream before a call that is about to be issued.
    pub(super) fn mark(&self, call: &Call<'_>) -> Result<Option<Arc<dyn Mark>>> {
        call.gpu().map_or(Ok(None), |gpu| self.backend.mark(gpu))
    }

    /// Waits until the device is done with an operation, for a call that has nothing else to wait
    /// for.
    pub(super) fn await_device(&self, slot: &FlightSlot, deadline: &Deadline) -> Result<()> {
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

impl OnDevice {
    pub(super) fn message(&self) -> Result<Message> {
        match self.work.kind() {
            WorkKind::Message(message) => Ok(message),
            _ => Err(Error::internal("a work that is no message was posted as one")),
        }
    }

    pub(super) fn bytes(&self) -> Src<'static> {
        match &self.memory {
            Memory::Out(bytes) => *bytes,
            Memory::In(into) => into.as_src(),
            Memory::Grows { .. } | Memory::Matched(..) | Memory::Exchange(_) => Src::empty(),
        }
    }

    pub(super) fn describe(&self) -> Result<DeviceMessage<'static>> {
        let message = self.message()?;
        let way = match &self.memory {
            Memory::Out(bytes) => DeviceWay::Out(*bytes),
            Memory::In(into) => DeviceWay::In(*into),
            Memory::Grows { .. } | Memory::Matched(..) | Memory::Exchange(_) => {
                return Err(Error::internal("a call for host memory only on a device"));
            }
        };
        let peer = message.peer.ok_or_else(|| Error::internal("a message from anybody"))?;
        Ok(DeviceMessage { peer, dtype: message.dtype, way })
    }
}
