//! The output parameter `status` of receives and probes.

use super::args::to_i32;
use super::sized_struct;
use super::types::dist_recv_status_t;
use crate::api::p2p::probe::{Delivery, MessageEnvelope};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};

/// The output for the status of a message. The pointer is NULL if the caller passes none.
#[derive(Debug)]
pub(super) struct RecvStatusOut(*mut dist_recv_status_t);

impl RecvStatusOut {
    /// Checks `struct_size` of the caller's struct.
    #[inline]
    pub(super) fn new(status: *mut dist_recv_status_t) -> Result<Self> {
        if !status.is_null() {
            sized_struct::output_size(status.cast_const())?;
        }
        Ok(Self(status))
    }

    /// Refuses the output in a call that does not block, because such a call may return before
    /// there is a message.
    pub(super) fn refuse_without_blocking(&self) -> Result<()> {
        if self.0.is_null() {
            return Ok(());
        }
        let message = "status is for calls that block: pass NULL, and call dist_work_source, \
                       dist_work_tag and dist_work_received_count";
        Err(Error::invalid(message))
    }

    /// Writes the status of a message that was received.
    #[inline]
    pub(super) fn write(&self, delivery: Option<Delivery>, dtype: DataType) -> Result<()> {
        match delivery {
            Some(Delivery { peer, tag, bytes }) if !self.0.is_null() => {
                self.write_envelope(&MessageEnvelope { from: peer, tag, dtype, bytes })
            }
            _ => Ok(()),
        }
    }

    /// Writes the status of a message that a probe found.
    #[cold]
    pub(super) fn write_envelope(&self, envelope: &MessageEnvelope) -> Result<()> {
        if self.0.is_null() {
            return Ok(());
        }
        let MessageEnvelope { from, tag, dtype, bytes } = *envelope;
        let tag = i32::try_from(tag);
        let status = dist_recv_status_t {
            struct_size: 0,
            source: to_i32(from)?,
            tag: tag.map_err(|_| {
                Error::internal("a caller received an internal message of the library")
            })?,
            count: bytes / dtype.size(),
            dtype: dtype.number(),
            reserved: 0,
        };
        // Read the size again, because the caller's struct may have changed.
        sized_struct::write(self.0, sized_struct::output_size(self.0.cast_const())?, status);
        Ok(())
    }
}
