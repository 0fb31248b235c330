//! What a client says: the handshake, its introduction, and then requests. Pure: bytes go in as
//! they come.

use super::handshake::{AuthProgress, ServerHandshake};
use super::proto::{self, Opcode, RequestDecoder, StoreRequest};
use super::request_handler::ClientRejection;

/// What has arrived of a client's introduction or its next request.
#[derive(Debug, Default)]
pub(super) struct RequestReader {
    /// What comes before requests; none once it is over.
    handshake: Option<ServerHandshake>,
    decoder: RequestDecoder,
    is_validated: bool,
}

impl RequestReader {
    /// That of a client which first has this handshake.
    pub(super) fn new(handshake: ServerHandshake) -> Self {
        Self { handshake: Some(handshake), ..Self::default() }
    }

    /// True once the client has shown that it is a store client.
    pub(super) fn is_validated(&self) -> bool {
        self.is_validated
    }

    /// How much memory the beginning of a request takes here.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.decoder.buffered_bytes()
    }

    /// The next request in what was received, once it is complete. Handshake and introduction are
    /// none; what the client is to be told in the former goes to `output`, also where it is
    /// refused.
    ///
    /// # Errors
    /// The client is to be dropped.
    pub(super) fn next_request(
        &mut self,
        input: &mut &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<StoreRequest<'static>>, ClientRejection> {
        if let Some(handshake) = &mut self.handshake {
            match handshake.advance(input, output)? {
                AuthProgress::Incomplete => return Ok(None),
                AuthProgress::Complete => self.handshake = None,
            }
        }
        while let Some(request) = self.decoder.next(input)? {
            if self.is_validated {
                return Ok(Some(request));
            }
            self.validate(&request)?;
        }
        match self.decoder.pending_opcode() {
            // Nothing else can become the introduction, so there is no reason to wait for the rest.
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
