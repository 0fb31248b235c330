//! The byte format of the fields of messages between ranks that form a group.
//!
//! Integers are little-endian. The reader checks the bytes, because another process wrote them. It
//! returns `None` for invalid bytes.

use crate::base::error::{Error, ErrorKind};
use crate::base::ids::Nonce;

/// Appends encoded values to a byte vector.
#[derive(Debug)]
pub(super) struct WireWriter(pub(super) Vec<u8>);

impl WireWriter {
    pub(super) fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    pub(super) fn len(&mut self, len: usize) -> &mut Self {
        self.0.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        self
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.len(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub(super) fn nonce(&mut self, nonce: Nonce) -> &mut Self {
        self.0.extend_from_slice(&nonce.0);
        self
    }

    /// Writes a nonce. `None` is encoded as zeros.
    pub(super) fn optional_nonce(&mut self, nonce: Option<Nonce>) -> &mut Self {
        self.nonce(nonce.unwrap_or_default())
    }

    pub(super) fn error(&mut self, error: &Error) -> &mut Self {
        self.byte(error.kind().code()).text(error.message())
    }
}

/// Decodes values from the front of a byte slice.
#[derive(Debug)]
pub(super) struct WireReader<'a>(pub(super) &'a [u8]);

impl<'a> WireReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn len(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.len()?;
        self.take(len)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(super) fn nonce(&mut self) -> Option<Nonce> {
        self.take(16)?.try_into().ok().map(Nonce)
    }

    pub(super) fn optional_nonce(&mut self) -> Option<Option<Nonce>> {
        self.nonce().map(|nonce| Some(nonce).filter(|&nonce| nonce != Nonce::default()))
    }

    pub(super) fn error(&mut self) -> Option<Error> {
        let kind = ErrorKind::from_code(self.byte()?);
        Some(Error::new(kind, self.text()?))
    }
}
