//! The handshake: Noise `NNpsk0` over X25519 and SHA-256, with AES-256-GCM or ChaCha20-Poly1305.
//! The pre-shared key is derived from the job's secret. The *initiator* is the side that connects,
//! the *responder* the side that accepts the connection.
//!
//! | step | from | bytes | what it proves |
//! |---|---|---|---|
//! | message | initiator | [`MESSAGE_BYTES`] | the initiator, or a replay of it, held the secret |
//! | answer | responder | [`MESSAGE_BYTES`] | the responder holds the secret, now |
//! | confirmation | initiator | [`CONFIRMATION_BYTES`] | the initiator holds the secret, now |
//! | acceptance | responder | [`CONFIRMATION_BYTES`] | the responder has taken the connection |
//!
//! Both sides contribute an ephemeral key. Therefore a recorded message, answer, confirmation or
//! acceptance is valid on no other connection. A responder must change nothing before it has
//! checked the confirmation, because a message can be a replay.
//!
//! The *prologue* is the text that both sides must know equally. It says who connects to whom, and
//! for which purpose. If the sides have different prologues, secrets or cipher suites, the first
//! check fails.
//!
//! If the terms request it, each side also gets the [`ConnectionKeys`], by which it encrypts the
//! bytes after the handshake.
//!
//! The functions convert bytes to bytes: they do no input or output, and do not wait.

use super::cipher::CipherSuite;
use super::connection_keys::ConnectionKeys;
use super::resolver;
use super::secret::Secret;
use crate::base::error::{Error, Result};
use snow::{Builder, HandshakeState, TransportState};

/// The length of the first message and of the answer: an ephemeral key and a tag.
pub const MESSAGE_BYTES: usize = 48;
/// The length of the confirmation and of the acceptance: a tag.
pub const CONFIRMATION_BYTES: usize = 16;

/// The other side does not hold the same secret, or has another prologue or cipher suite; or a
/// third party has changed, repeated or exchanged the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its proof of the job's secret is wrong")]
pub struct WrongProof;

/// The initiator, after its first message.
#[derive(Debug)]
pub struct HandshakeInitiator {
    state: Box<HandshakeState>,
    key_cipher: Option<CipherSuite>,
}

/// The initiator, after its confirmation.
#[derive(Debug)]
pub struct ConfirmedInitiator {
    state: Box<TransportState>,
    keys: Option<ConnectionKeys>,
}

/// The responder, after its answer.
#[derive(Debug)]
pub struct HandshakeResponder {
    state: Box<TransportState>,
    keys: Option<ConnectionKeys>,
}

/// What both sides must have in common.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeTerms<'a> {
    /// The job's secret.
    pub secret: &'a Secret,
    /// The cipher suite.
    pub cipher: CipherSuite,
    /// The text that names both sides and the purpose of the connection.
    pub prologue: &'a [u8],
    /// Whether the bytes after the handshake are encrypted. The prologue must say so, too.
    pub encrypts: bool,
}

impl HandshakeTerms<'_> {
    fn builder(&self) -> std::result::Result<Builder<'_>, snow::Error> {
        let parameters = self.cipher.protocol_name().parse()?;
        Builder::with_resolver(parameters, resolver::resolver())
            .psk(0, self.secret.handshake_key())?
            .prologue(self.prologue)
    }

    /// Returns the cipher for the bytes after the handshake, if they are encrypted.
    fn key_cipher(&self) -> Option<CipherSuite> {
        self.encrypts.then_some(self.cipher)
    }
}

impl HandshakeInitiator {
    /// Starts the handshake. Returns the first message, too.
    ///
    /// # Errors
    /// `Internal` if the system provides no random numbers, or if this processor does not support
    /// the cipher suite.
    pub fn begin(terms: HandshakeTerms<'_>) -> Result<(Self, [u8; MESSAGE_BYTES])> {
        let mut message = [0; MESSAGE_BYTES];
        let begun = terms.builder().and_then(Builder::build_initiator).and_then(|mut state| {
            state.write_message(&[], &mut message)?;
            Ok(state)
        });
        let key_cipher = terms.key_cipher();
        begun.map(|state| (Self { state: Box::new(state), key_cipher }, message)).map_err(|cause| {
            Error::internal(format!("the handshake of a connection cannot start: {cause}"))
        })
    }

    /// Checks the answer. Returns the confirmation, too.
    ///
    /// # Errors
    /// [`WrongProof`]; the initiator must send nothing more.
    pub fn finish(
        mut self,
        answer: &[u8; MESSAGE_BYTES],
    ) -> std::result::Result<(ConfirmedInitiator, [u8; CONFIRMATION_BYTES]), WrongProof> {
        self.state.read_message(answer, &mut []).map_err(|_| WrongProof)?;
        let keys = split_keys(&mut self.state, self.key_cipher, true);
        let mut state = self.state.into_transport_mode().map_err(|_| WrongProof)?;
        let confirmation = seal_nothing(&mut state)?;
        Ok((ConfirmedInitiator { state: Box::new(state), keys }, confirmation))
    }
}

impl ConfirmedInitiator {
    /// Checks the acceptance of the responder. Returns the keys, if the terms request them.
    ///
    /// # Errors
    /// [`WrongProof`].
    pub fn check_acceptance(
        mut self,
        acceptance: &[u8; CONFIRMATION_BYTES],
    ) -> std::result::Result<Option<ConnectionKeys>, WrongProof> {
        self.state.read_message(acceptance, &mut []).map_err(|_| WrongProof)?;
        Ok(self.keys)
    }

    /// Returns the keys, if the terms request them. For a protocol without an acceptance: the first
    /// record of the responder proves that it holds the secret.
    pub fn into_keys(self) -> Option<ConnectionKeys> {
        self.keys
    }
}

impl HandshakeResponder {
    /// Checks the first message of an initiator. Returns the answer, too. The message may be a
    /// replay.
    ///
    /// # Errors
    /// [`WrongProof`].
    pub fn answer(
        terms: HandshakeTerms<'_>,
        message: &[u8; MESSAGE_BYTES],
    ) -> std::result::Result<(Self, [u8; MESSAGE_BYTES]), WrongProof> {
        let mut answer = [0; MESSAGE_BYTES];
        let mut begin = || {
            let mut state = terms.builder()?.build_responder()?;
            // A message of a side without the secret fails here, before the expensive operations.
            state.read_message(message, &mut [])?;
            state.write_message(&[], &mut answer)?;
            let keys = split_keys(&mut state, terms.key_cipher(), false);
            Ok((state.into_transport_mode()?, keys))
        };
        let (state, keys) = begin().map_err(|_: snow::Error| WrongProof)?;
        Ok((Self { state: Box::new(state), keys }, answer))
    }

    /// Checks the confirmation. Returns the acceptance, which the responder sends after it has
    /// taken the connection, and the keys, if the terms request them.
    ///
    /// # Errors
    /// [`WrongProof`].
    pub fn finish(
        mut self,
        confirmation: &[u8; CONFIRMATION_BYTES],
    ) -> std::result::Result<([u8; CONFIRMATION_BYTES], Option<ConnectionKeys>), WrongProof> {
        self.state.read_message(confirmation, &mut []).map_err(|_| WrongProof)?;
        Ok((seal_nothing(&mut self.state)?, self.keys))
    }
}

/// Returns the keys of a side whose part of the handshake is complete.
fn split_keys(
    state: &mut HandshakeState,
    cipher: Option<CipherSuite>,
    is_initiator: bool,
) -> Option<ConnectionKeys> {
    let cipher = cipher?;
    let (mut of_initiator, mut of_responder) = state.dangerously_get_raw_split();
    let keys = match is_initiator {
        true => ConnectionKeys::new(cipher, of_initiator, of_responder),
        false => ConnectionKeys::new(cipher, of_responder, of_initiator),
    };
    super::secret::erase(&mut of_initiator);
    super::secret::erase(&mut of_responder);
    Some(keys)
}

/// Returns the tag of an empty message, which only the two sides of this handshake can compute.
fn seal_nothing(
    state: &mut TransportState,
) -> std::result::Result<[u8; CONFIRMATION_BYTES], WrongProof> {
    let mut tag = [0; CONFIRMATION_BYTES];
    match state.write_message(&[], &mut tag) {
        Ok(CONFIRMATION_BYTES) => Ok(tag),
        _ => Err(WrongProof),
    }
}
