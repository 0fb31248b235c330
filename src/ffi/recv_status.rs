//! The parameter `status` of receives and probes.

use super::args::number;
use super::options;
use super::types::dist_recv_status_t;
use crate::api::probe::{Delivery, Envelope};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};

/// Where the status of a message goes, if the caller wants it.
#[derive(Debug)]
pub(super) struct StatusOut(*mut dist_recv_status_t);

impl StatusOut {
    /// Checks the size that the caller says.
    #[inline]
    pub(super) fn new(status: *mut dist_recv_status_t) -> Result<Self> {
        if !status.is_null() {
            options::output_size(status.cast_const())?;
        }
        Ok(Self(status))
    }

    /// Refuses it, in a call that does not block.
    pub(super) fn refuse(&self) -> Result<()> {
        if self.0.is_null() {
            return Ok(());
        }
        let message = "status is for calls that block: pass NULL, and ask dist_work_source, dist_work_tag and \
                       dist_work_received_count";
        Err(Error::invalid(message))
    }

    /// Writes the status of a message that was received.
    #[inline]
    pub(super) fn write(&self, delivery: Option<Delivery>, dtype: DataType) -> Result<()> {
        match delivery {
            Some(Delivery { peer, tag, bytes }) if !self.0.is_null() => {
                self.write_envelope(&Envelope { from: peer, tag, dtype, bytes })
            }
            _ => Ok(()),
        }
    }

    /// Writes the status of a message that a probe has found.
    #[cold]
    pub(super) fn write_envelope(&self, envelope: &Envelope) -> Result<()> {
        if self.0.is_null() {
            return Ok(());
        }
        let Envelope { from, tag, dtype, bytes } = *envelope;
        let tag = i32::try_from(tag);
        let status = dist_recv_status_t {
            struct_size: 0,
            source: number(from)?,
            tag: tag.map_err(|_| Error::internal("a caller received a message of the library"))?,
            count: bytes / dtype.size(),
            dtype: dtype.number(),
            reserved: 0,
        };
        // Again: the struct is the caller's.
        options::write(self.0, options::output_size(self.0.cast_const())?, status);
        Ok(())
    }
}
