//! What a client says: the handshake, its introduction, and then requests. Pure: bytes go in as
//! they come.

use super::handshake::{Progress, ServerHandshake};
use super::proto::{self, Decoder, Opcode, Request};
use super::session::Refusal;

/// What has arrived of a client's introduction or its next request.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// What comes before requests; none once it is over.
    handshake: Option<ServerHandshake>,
    decoder: Decoder,
    validated: bool,
}

impl Intake {
    /// That of a client which first has this handshake.
    pub(super) fn new(handshake: ServerHandshake) -> Self {
        Self { handshake: Some(handshake), ..Self::default() }
    }

    /// True once the client has shown that it is a store client.
    pub(super) fn is_validated(&self) -> bool {
        self.validated
    }

    /// How much memory the beginning of a request takes here.
    pub(super) fn held(&self) -> usize {
        self.decoder.held()
    }

    /// The next request in what was received, once it is complete. Handshake and introduction are
    /// none; what the client is to be told in the former goes to `output`, also where it is
    /// refused.
    ///
    /// # Errors
    /// The client is to be dropped.
    pub(super) fn next(
        &mut self,
        input: &mut &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<Request<'static>>, Refusal> {
        if let Some(handshake) = &mut self.handshake {
            match handshake.take(input, output)? {
                Progress::More => return Ok(None),
                Progress::Done => self.handshake = None,
            }
        }
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
