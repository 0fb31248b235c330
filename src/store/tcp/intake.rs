//! What a client says: its introduction, and then requests. Pure: bytes go in as they come.

use super::proto::{self, Decoder, Opcode, Request};
use super::session::Refusal;

/// What has arrived of a client's introduction or its next request.
#[derive(Debug, Default)]
pub(super) struct Intake {
    decoder: Decoder,
    validated: bool,
}

impl Intake {
    /// True once the client has shown that it is a store client.
    pub(super) fn is_validated(&self) -> bool {
        self.validated
    }

    /// How much memory the beginning of a request takes here.
    pub(super) fn held(&self) -> usize {
        self.decoder.held()
    }

    /// The next request in what was received, once it is complete. The introduction is none.
    ///
    /// # Errors
    /// The client is to be dropped.
    pub(super) fn next(&mut self, input: &mut &[u8]) -> Result<Option<Request<'static>>, Refusal> {
        while let Some(request) = self.decoder.next(input)? {
            if self.validated {
                return Ok(Some(request));
            }
            self.validate(&request)?;
        }
        match self.decoder.begun() {
            // Nothing else can become the introduction, so there is no reason to wait for the rest.
            Some(opcode) if !self.validated && opcode != Opcode::Validate => {
                Err(Refusal::NotValidated)
            }
            _ => Ok(None),
        }
    }

    fn validate(&mut self, request: &Request<'_>) -> Result<(), Refusal> {
        match *request {
            Request::Validate(proto::MAGIC) => {
                self.validated = true;
                Ok(())
            }
            Request::Validate(magic) => Err(Refusal::WrongMagic(magic)),
            _ => Err(Refusal::NotValidated),
        }
    }
}
