//! Parses the bytes that one client sends: first the handshake, then VALIDATE, then requests. The
//! parser does no I/O, and accepts the bytes in pieces of any size.

use super::decoder::RequestDecoder;
use super::handshake::{AuthProgress, ServerHandshake};
use super::proto::{self, Opcode, StoreRequest};
use super::request_handler::ClientRejection;
use crate::security::connection_keys::ConnectionKeys;

/// The parser state of one client connection.
#[derive(Debug, Default)]
pub(super) struct RequestReader {
    /// The authentication handshake; `None` once it is complete.
    handshake: Option<ServerHandshake>,
    /// The keys of an encrypted connection whose handshake is complete, until the caller takes
    /// them.
    keys: Option<ConnectionKeys>,
    decoder: RequestDecoder,
    is_validated: bool,
}

impl RequestReader {
    /// Creates the reader of a client that begins with this handshake.
    pub(super) fn new(handshake: ServerHandshake) -> Self {
        Self { handshake: Some(handshake), ..Self::default() }
    }

    /// Returns the keys of an encrypted connection, once, after its handshake. The rest of the
    /// input is encrypted then.
    pub(super) fn take_keys(&mut self) -> Option<ConnectionKeys> {
        self.keys.take()
    }

    /// Returns true once the client has sent a valid VALIDATE.
    pub(super) fn is_validated(&self) -> bool {
        self.is_validated
    }

    /// Returns the approximate memory of the unfinished request.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.decoder.buffered_bytes()
    }

    /// Consumes received bytes from `input` up to the end of the next complete request, and returns
    /// this request. Processes handshake messages and VALIDATE itself and does not return them.
    /// Appends the replies of the handshake to `output`, even if it rejects the client. Returns
    /// `None` before the end of `input` if the rest is encrypted ([`RequestReader::take_keys`]).
    ///
    /// # Errors
    /// The reason to disconnect the client.
    pub(super) fn next_request(
        &mut self,
        input: &mut &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<StoreRequest<'static>>, ClientRejection> {
        if let Some(handshake) = &mut self.handshake {
            match handshake.advance(input, output)? {
                AuthProgress::Incomplete => return Ok(None),
                AuthProgress::Complete => {
                    self.keys = handshake.take_keys();
                    self.handshake = None;
                }
            }
            if self.keys.is_some() {
                return Ok(None);
            }
        }
        while let Some(request) = self.decoder.next(input)? {
            if self.is_validated {
                return Ok(Some(request));
            }
            self.validate(&request)?;
        }
        match self.decoder.pending_opcode() {
            // The first request is not VALIDATE. Reject the client before the request is complete.
            Some(opcode) if !self.is_validated && opcode != Opcode::Validate => {
                Err(ClientRejection::NotValidated)
            }
            _ => Ok(None),
        }
    }

    fn validate(&mut self, request: &StoreRequest<'_>) -> Result<(), ClientRejection> {
        match *request {
            StoreRequest::Validate(proto::MAGIC) => {
                self.is_validated = true;
                Ok(())
            }
            StoreRequest::Validate(magic) => Err(ClientRejection::WrongMagic(magic)),
            _ => Err(ClientRejection::NotValidated),
        }
    }
}
