//! The frame of saved data: a magic number, the length of the header, the header, and the data.
//!
//! The length is a little-endian 64-bit number, and the header is JSON. Two formats use this frame,
//! those of `outer/save.rs` and `shard/save.rs`. The two formats define the fields of the header
//! and the data after the header.

use crate::base::error::{Error, Result};
use serde_json::Value;

/// A format of saved data, with the texts of its errors.
#[derive(Debug)]
pub(super) struct CheckpointFormat {
    pub(super) magic: [u8; 8],
    /// The name of the data in errors.
    pub(super) title: &'static str,
    /// The function that returns such data.
    pub(super) source: &'static str,
    /// The error text for data that end too early.
    pub(super) truncated: &'static str,
    /// The error text for a header that is no JSON.
    pub(super) invalid_header: &'static str,
}

impl CheckpointFormat {
    /// Returns the bytes in front of the data.
    pub(super) fn begin(&self, header: &Value) -> Vec<u8> {
        let header = header.to_string().into_bytes();
        let mut bytes = self.magic.to_vec();
        bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes
    }

    /// Returns the header and the data.
    ///
    /// # Errors
    /// `InvalidArgument` for bytes of another format.
    pub(super) fn read<'b>(&self, bytes: &'b [u8]) -> Result<(Value, &'b [u8])> {
        let foreign = || self.error(&format!("not an output of {}", self.source));
        let rest = bytes.strip_prefix(&self.magic).ok_or_else(foreign)?;
        let (len, rest) = rest.split_first_chunk::<8>().ok_or_else(foreign)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let parts = rest.split_at_checked(len);
        let (header, data) = parts.ok_or_else(|| self.error(self.truncated))?;
        let header = serde_json::from_slice(header);
        Ok((header.map_err(|_| self.error(self.invalid_header))?, data))
    }

    /// Returns the error for wrong bytes.
    pub(super) fn error(&self, text: &str) -> Error {
        Error::invalid(format!("bytes ({}): {text}", self.title))
    }
}
