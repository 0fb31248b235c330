//! Checks of a message before it is posted: the peer, the tag, the options, and the location of the
//! buffer in host or device memory.

use crate::api::collective::call_options::CallOptions;
use crate::api::group::process_group::Group;
use crate::api::p2p::message_descriptor::MessageDescriptor;
use crate::backend::{DeviceBackend, SupportQuery};
use crate::base::buffer::Src;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::GpuTarget;
use crate::base::ids::Rank;
use crate::transport::{LARGEST_TAG, PointToPoint};

impl Group {
    /// Checks the peer, the tag and the options of a message, and returns the messaging engine.
    pub(super) fn check_message(
        &self,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> Result<&dyn PointToPoint> {
        let is_member = peer.is_none_or(|peer| peer < self.size());
        let is_tag = tag.is_none_or(|tag| tag <= LARGEST_TAG);
        if !is_member || !is_tag || options.algorithm.is_some() {
            return Err(self.invalid_message_error(
                peer.filter(|_| !is_member),
                tag.filter(|_| !is_tag),
                options,
            ));
        }
        self.messaging_engine()
    }

    /// Returns the error for an invalid message. `peer` and `tag` are set if they are invalid. If
    /// neither is set, the error is that the options name an algorithm.
    #[cold]
    fn invalid_message_error(
        &self,
        peer: Option<Rank>,
        tag: Option<u32>,
        options: &CallOptions,
    ) -> Error {
        Error::invalid(match (peer, tag) {
            (Some(peer), _) => format!("rank {peer} does not exist in a group of {}", self.size()),
            (None, Some(tag)) => format!("tag {tag} is out of range: pass 0 to {LARGEST_TAG}"),
            (None, None) => {
                let name = options.algorithm.as_deref().unwrap_or_default();
                format!("algorithm \"{name}\": messages between two ranks have no algorithms")
            }
        })
    }

    /// Returns the location of a message's buffer; `None` for host memory.
    pub(super) fn locate_message(
        &self,
        message: &MessageDescriptor,
        bytes: Src<'_>,
        options: &CallOptions,
    ) -> Result<Option<GpuTarget>> {
        if self.device.is_none() && !options.is_for_device() {
            return Ok(None);
        }
        let Some(gpu) = self.locate_buffer(bytes, options)? else { return Ok(None) };
        let (name, dtype) =
            (if message.is_outgoing { "send" } else { "recv" }, Some(message.dtype));
        let query = SupportQuery { name, kind: None, dtype, op: None, gpu: Some(gpu.device) };
        self.backend.supports(&query)?;
        // A back end with an enqueuer puts messages on a device stream and may restrict the peer or
        // the tag. Without an enqueuer there is no restriction, as in host memory.
        let enqueuer = self.backend.device().and_then(DeviceBackend::enqueuer);
        match enqueuer.and_then(|it| it.message_restriction(message.peer, message.tag)) {
            None => Ok(Some(gpu)),
            Some(reason) => {
                let text = format!(
                    "{query} in memory of device {}: back end {}: {reason}",
                    gpu.device,
                    self.backend_name()
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        }
    }

    /// Returns an error if the buffer is in device memory.
    pub(super) fn reject_device_buffer(
        &self,
        message: &MessageDescriptor,
        bytes: Src<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let Some(gpu) = self.locate_message(message, bytes, options)? else { return Ok(()) };
        let text = format!(
            "the buffer is in memory of device {}, but this call supports host memory only: use \
             dist_send and dist_recv, in a batch if both must run at the same time",
            gpu.device
        );
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}
