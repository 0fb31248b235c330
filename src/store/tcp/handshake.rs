//! The authentication handshake of a store with a secret. Before any request, both sides prove to
//! each other that they hold the secret. Torch's protocol has no such handshake. A store without a
//! secret uses torch's protocol unchanged.
//!
//! | from | bytes | meaning |
//! |---|---|---|
//! | client | 66, its suites, the chosen suite, 1 or 0, a Noise message | CHALLENGE |
//! | server | "KNOW", a Noise message | proves that the server holds the secret |
//! | client | 67, the confirmation | PROOF; VALIDATE and PING follow |
//!
//! The module [`crate::security::handshake`] makes and checks the Noise messages. The
//! server reads no request before it has checked the client's proof. The *suites* are cipher
//! suites. The client chooses its best suite. If the server's processor does not support it, the
//! server replies "CHAC", and the client repeats its challenge with the suite that every processor
//! supports. The Noise messages contain the suites of the client. So if an attacker sends "CHAC" to
//! a client whose best suite the server supports, the server rejects the client.
//!
//! The number 1 in the challenge says that the connection is *encrypted*: every byte after the
//! client's confirmation belongs to a sealed record. A connection is encrypted if one of the two
//! sides requires it (`DIST_SECURITY=encrypt`). If only the server does, it replies "CRYP" to a
//! challenge with the number 0, and the client repeats its challenge with 1. The Noise messages
//! contain this number, too, so an attacker cannot make the two sides disagree, and no side that
//! requires encryption accepts a connection without it.
//!
//! If the server rejects the client, it sends one of these four-byte status words and closes the
//! connection. A client of torch takes the word for a wrong reply to its PING, and gives up.
//!
//! | word | meaning |
//! |---|---|
//! | "AUTH" | the store has a secret, and the client began with VALIDATE |
//! | "OPEN" | the store has no secret, and the client began with CHALLENGE |
//! | "DENY" | the client's challenge or proof is wrong |
//!
//! The functions convert bytes to bytes: they do no I/O and do not wait. The handshake
//! authenticates both sides once, at the start of the connection. If the connection is not
//! encrypted, later bytes are neither encrypted nor signed.

use super::proto::{Opcode, StatusWord};
use crate::base::{Error, ErrorKind, Result};
use crate::security::connection_keys::ConnectionKeys;
use crate::security::handshake::{
    self, CONFIRMATION_BYTES, HandshakeInitiator, HandshakeResponder, HandshakeTerms,
};
use crate::security::{CipherSet, CipherSuite, Secret};
use std::fmt;

/// The first byte that a client with a secret sends. No opcode of torch has this number.
const CHALLENGE: u8 = 66;
/// The first byte of the message with the client's proof.
const PROOF: u8 = 67;

/// The length of a CHALLENGE message, in bytes.
pub const CHALLENGE_BYTES: usize = 4 + handshake::MESSAGE_BYTES;
/// The length of a PROOF message, in bytes.
pub const PROOF_BYTES: usize = 1 + CONFIRMATION_BYTES;
/// The length of the server's answer in bytes, without the word "KNOW" in front.
pub const ANSWER_BYTES: usize = handshake::MESSAGE_BYTES;
/// The length in bytes of VALIDATE and PING together. Every client without a secret begins with
/// these two requests.
const INTRODUCTION_BYTES: usize = 10;

const KNOW: StatusWord = *b"KNOW";
/// Requests a challenge with [`CipherSuite::ChaChaPoly`].
const OTHER_SUITE: StatusWord = *b"CHAC";
/// Requests a challenge for an encrypted connection.
const ENCRYPTION_REQUIRED: StatusWord = *b"CRYP";

const _: () = assert!(INTRODUCTION_BYTES < CHALLENGE_BYTES && PROOF_BYTES < CHALLENGE_BYTES);

/// Returns the text that both sides must have in common, in addition to the secret.
fn prologue(offered: u8, chosen: u8, encrypts: u8) -> Vec<u8> {
    [&b"libdist store connection 2"[..], &[offered, chosen, encrypts]].concat()
}

/// The reason why a server rejects a client in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthRefusal {
    /// The client gave no proof, but the store has a secret.
    #[error("it did not prove that it has the job's secret")]
    SecretRequired,
    /// The client requested a proof, but the store has no secret.
    #[error("it requested a proof of the secret, but this store has no secret")]
    NoSecret,
    /// The client's proof is wrong.
    #[error("it does not have the job's secret")]
    WrongProof,
    /// No store client begins with this byte.
    #[error("its first byte is {0} instead of a challenge")]
    UnexpectedFirstByte(u8),
}

impl AuthRefusal {
    /// Returns the status word that tells the client the reason, or `None` if the peer is no store
    /// client and would not understand the word.
    fn status_word(self) -> Option<StatusWord> {
        match self {
            Self::SecretRequired => Some(*b"AUTH"),
            Self::NoSecret => Some(*b"OPEN"),
            Self::WrongProof => Some(*b"DENY"),
            Self::UnexpectedFirstByte(_) => None,
        }
    }
}

/// The protection of the connections to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSecurity {
    /// The secret that clients must prove to hold.
    pub secret: Option<Secret>,
    /// Whether the server requires encryption. Has no effect without a secret.
    pub encrypts: bool,
    /// Whether clients need no proof.
    pub is_open: bool,
}

impl StoreSecurity {
    /// Returns the protection of one connection. Only a Unix socket may be open: its listener
    /// accepts only clients of the server's user and of root.
    pub(super) fn for_client(&self, is_unix_socket: bool) -> Self {
        Self { is_open: self.is_open && is_unix_socket, ..self.clone() }
    }
}

/// The progress of the server's handshake with one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthProgress {
    /// The handshake needs more bytes.
    Incomplete,
    /// The handshake is complete: requests follow, VALIDATE first.
    Complete,
}

/// The state of the server's side of the handshake.
#[derive(Debug)]
enum AuthState {
    Initial,
    /// The server has requested another challenge.
    AwaitingOtherChallenge(ChallengeRequests),
    /// The server expects the client's proof.
    AwaitingProof(HandshakeResponder),
    Finished(std::result::Result<(), AuthRefusal>),
}

/// The reasons for which the server has requested another challenge. It requests each change once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChallengeRequests {
    other_suite: bool,
    encryption: bool,
}

/// The server's side of the handshake, one per connection.
#[derive(Debug)]
pub struct ServerHandshake {
    security: StoreSecurity,
    ciphers: CipherSet,
    state: AuthState,
    keys: Option<ConnectionKeys>,
    /// The first `received_bytes` bytes are the part of the expected message that has arrived.
    message: [u8; CHALLENGE_BYTES],
    received_bytes: usize,
}

impl ServerHandshake {
    /// Creates the handshake of a server. `ciphers` are the suites that the server supports.
    pub fn new(security: &StoreSecurity, ciphers: CipherSet) -> Self {
        Self {
            security: security.clone(),
            ciphers,
            state: AuthState::Initial,
            keys: None,
            message: [0; CHALLENGE_BYTES],
            received_bytes: 0,
        }
    }

    /// Returns the keys of a complete handshake, if the connection is encrypted.
    pub fn take_keys(&mut self) -> Option<ConnectionKeys> {
        self.keys.take()
    }

    /// Processes bytes that the client sent, in pieces of any size. Appends the server's messages
    /// to `output`, even if it rejects the client. Once the handshake is complete, consumes no more
    /// bytes of `input`.
    ///
    /// # Errors
    /// The reason to close the connection. In this case `input` is consumed to its end, including
    /// the VALIDATE and PING of a client without a secret. If the server closed a socket with
    /// unread bytes, the kernel would reset the connection, and the client might not receive the
    /// status word.
    pub fn advance(
        &mut self,
        input: &mut &[u8],
        output: &mut Vec<u8>,
    ) -> std::result::Result<AuthProgress, AuthRefusal> {
        loop {
            if let AuthState::Finished(outcome) = self.state {
                return outcome.map(|()| AuthProgress::Complete);
            }
            let Some(outcome) = self.next_state(input, output) else {
                return Ok(AuthProgress::Incomplete);
            };
            self.state = outcome.unwrap_or_else(|refusal| {
                output.extend(refusal.status_word().into_iter().flatten());
                *input = &[];
                AuthState::Finished(Err(refusal))
            });
        }
    }

    /// Processes the expected message and returns the next state. Returns `None` as long as the
    /// message is incomplete.
    fn next_state(
        &mut self,
        input: &mut &[u8],
        output: &mut Vec<u8>,
    ) -> Option<std::result::Result<AuthState, AuthRefusal>> {
        let first = if self.received_bytes > 0 { self.message[0] } else { *input.first()? };
        let is_initial = matches!(self.state, AuthState::Initial);
        let awaits_proof = matches!(self.state, AuthState::AwaitingProof(_));
        Some(match (self.security.secret.clone(), first) {
            (None, CHALLENGE) => {
                self.collect_message(CHALLENGE_BYTES, input)?;
                Err(AuthRefusal::NoSecret)
            }
            (None, _) => Ok(AuthState::Finished(Ok(()))),
            (Some(_), first)
                if is_initial && self.security.is_open && first == Opcode::Validate as u8 =>
            {
                Ok(AuthState::Finished(Ok(())))
            }
            (Some(_), PROOF) if awaits_proof => {
                self.collect_message(PROOF_BYTES, input)?;
                self.check_proof()
            }
            (Some(_), _) if awaits_proof => Err(AuthRefusal::WrongProof),
            (Some(secret), CHALLENGE) => {
                self.collect_message(CHALLENGE_BYTES, input)?;
                self.answer_challenge(&secret, output)
            }
            (Some(_), first) if is_initial && first == Opcode::Validate as u8 => {
                self.collect_message(INTRODUCTION_BYTES, input)?;
                Err(AuthRefusal::SecretRequired)
            }
            (Some(_), first) => Err(AuthRefusal::UnexpectedFirstByte(first)),
        })
    }

    /// Checks the challenge in `message`, and appends the answer to `output`.
    fn answer_challenge(
        &self,
        secret: &Secret,
        output: &mut Vec<u8>,
    ) -> std::result::Result<AuthState, AuthRefusal> {
        let [_, offered, chosen, encrypts, noise @ ..] = &self.message;
        let prologue = prologue(*offered, *chosen, *encrypts);
        let offered = CipherSet::from_number(*offered);
        let best = self.ciphers.best_common(offered);
        let Some(chosen) = CipherSuite::from_number(*chosen).filter(|_| *encrypts <= 1) else {
            return Err(AuthRefusal::WrongProof);
        };
        let encrypts = *encrypts == 1;
        let mut requested = match self.state {
            AuthState::AwaitingOtherChallenge(requested) => requested,
            _ => ChallengeRequests::default(),
        };
        if self.security.encrypts && !encrypts && !requested.encryption {
            requested.encryption = true;
            output.extend(ENCRYPTION_REQUIRED);
            return Ok(AuthState::AwaitingOtherChallenge(requested));
        }
        let is_best_of_client = chosen == offered.best_common(offered);
        if chosen != best && is_best_of_client && !requested.other_suite {
            requested.other_suite = true;
            output.extend(OTHER_SUITE);
            return Ok(AuthState::AwaitingOtherChallenge(requested));
        }
        if chosen != best || (self.security.encrypts && !encrypts) {
            return Err(AuthRefusal::WrongProof);
        }
        let terms = HandshakeTerms { secret, cipher: chosen, prologue: &prologue, encrypts };
        let (responder, answer) =
            HandshakeResponder::answer(terms, noise).map_err(|_| AuthRefusal::WrongProof)?;
        output.extend(KNOW);
        output.extend(answer);
        Ok(AuthState::AwaitingProof(responder))
    }

    /// Checks the proof in `message`.
    fn check_proof(&mut self) -> std::result::Result<AuthState, AuthRefusal> {
        let mut confirmation = [0; CONFIRMATION_BYTES];
        confirmation.copy_from_slice(&self.message[1..PROOF_BYTES]);
        match std::mem::replace(&mut self.state, AuthState::Initial) {
            AuthState::AwaitingProof(responder) => match responder.finish(&confirmation) {
                Ok((_, keys)) => {
                    self.keys = keys;
                    Ok(AuthState::Finished(Ok(())))
                }
                Err(_) => Err(AuthRefusal::WrongProof),
            },
            _ => Err(AuthRefusal::WrongProof),
        }
    }

    /// Collects a message of `wanted` bytes in `message`. Returns `None` as long as it is
    /// incomplete, and resets `received_bytes` once it is complete.
    fn collect_message(&mut self, wanted: usize, input: &mut &[u8]) -> Option<()> {
        let count = input.len().min(wanted - self.received_bytes);
        let (taken, rest) = input.split_at(count);
        self.message[self.received_bytes..self.received_bytes + count].copy_from_slice(taken);
        self.received_bytes += count;
        *input = rest;
        if self.received_bytes < wanted {
            return None;
        }
        self.received_bytes = 0;
        Some(())
    }
}

/// The client's side of the handshake, for a client with a secret.
#[derive(Debug)]
pub struct ClientHandshake(HandshakeInitiator);

/// The message of the client that follows the first word of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerReply {
    /// The server's answer to the challenge follows the word.
    Answer,
    /// The client must repeat its challenge with [`CipherSet::EVERY_PROCESSOR`] as its choice.
    OtherSuite,
    /// The client must repeat its challenge for an encrypted connection.
    EncryptionRequired,
}

/// The proof message of a client, and the keys, if the connection is encrypted after this message.
pub type ClientProof = ([u8; PROOF_BYTES], Option<ConnectionKeys>);

impl ClientHandshake {
    /// Starts the handshake with the best suite of `choice`. `offered` are the suites that the
    /// client supports. `encrypts` says whether the connection is encrypted. Returns the client's
    /// first message, too.
    ///
    /// # Errors
    /// `Internal` if the kernel provides no random bytes.
    pub fn begin(
        secret: &Secret,
        offered: CipherSet,
        choice: CipherSet,
        encrypts: bool,
    ) -> Result<(Self, [u8; CHALLENGE_BYTES])> {
        let chosen = offered.best_common(choice);
        let (offered, encrypted) = (offered.number(), u8::from(encrypts));
        let prologue = prologue(offered, chosen as u8, encrypted);
        let terms = HandshakeTerms { secret, cipher: chosen, prologue: &prologue, encrypts };
        let (initiator, noise) = HandshakeInitiator::begin(terms)?;
        let mut challenge = [0; CHALLENGE_BYTES];
        challenge[..4].copy_from_slice(&[CHALLENGE, offered, chosen as u8, encrypted]);
        challenge[4..].copy_from_slice(&noise);
        Ok((Self(initiator), challenge))
    }

    /// Checks the first word that the server sends.
    ///
    /// # Errors
    /// The reason why no answer follows.
    pub fn check_server_word(word: StatusWord) -> std::result::Result<ServerReply, AuthFailure> {
        match word {
            KNOW => Ok(ServerReply::Answer),
            OTHER_SUITE => Ok(ServerReply::OtherSuite),
            ENCRYPTION_REQUIRED => Ok(ServerReply::EncryptionRequired),
            _ => Err(AuthFailure::from_word(word).unwrap_or(AuthFailure::NotAStore(word))),
        }
    }

    /// Checks the server's answer. Returns the client's proof message.
    ///
    /// # Errors
    /// [`AuthFailure::SecretMismatch`]; the client must send nothing to this server.
    pub fn finish(
        self,
        answer: &[u8; ANSWER_BYTES],
    ) -> std::result::Result<ClientProof, AuthFailure> {
        let (initiator, confirmation) =
            self.0.finish(answer).map_err(|_| AuthFailure::SecretMismatch)?;
        let mut proof = [PROOF; PROOF_BYTES];
        proof[1..].copy_from_slice(&confirmation);
        Ok((proof, initiator.into_keys()))
    }
}

/// The reason why the handshake failed, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthFailure {
    /// The server requires a proof, but this client has no secret.
    SecretRequired,
    /// This client has a secret, but the server has none.
    NoSecret,
    /// The server reports that this client's proof is wrong.
    Denied,
    /// The server's proof is wrong.
    SecretMismatch,
    /// The server closed the connection or timed out instead of sending its proof.
    NoAnswer,
    /// The server sent bytes that no store sends.
    NotAStore(StatusWord),
}

impl AuthFailure {
    /// Returns the failure for a status word of the server. A client without a secret receives the
    /// word instead of the reply to its first PING.
    pub fn from_word(word: StatusWord) -> Option<Self> {
        match &word {
            b"AUTH" => Some(Self::SecretRequired),
            b"OPEN" => Some(Self::NoSecret),
            b"DENY" => Some(Self::Denied),
            _ => None,
        }
    }

    /// Returns true if another attempt would fail in the same way.
    pub fn is_final(self) -> bool {
        self != Self::NoAnswer
    }

    /// Builds the error text for the user. `peer` is the address of the store.
    pub fn to_error(self, peer: &dyn fmt::Display) -> Error {
        let text = match self {
            Self::SecretRequired => format!(
                "the store at {peer} requires the job's secret, but this process has none: set \
                 DIST_STORE_SECRET_FILE for dist_init, or pass the secret in the options of \
                 dist_store_tcp_create; distrun --no-secret starts a store without a secret"
            ),
            Self::NoSecret => format!(
                "the store at {peer} has no secret, but this process has one: start the store with \
                 this secret, or give this process none; it may also be another job's store"
            ),
            Self::Denied => format!(
                "the store at {peer} rejected this process's proof of the job's secret: it may be another \
                 job's store"
            ),
            Self::SecretMismatch => format!(
                "the store at {peer} does not have the secret of this process: it is another job's \
                 store, or one of the two has a wrong secret"
            ),
            Self::NoAnswer => format!(
                "the server at {peer} does not answer the request for a proof of the secret: it may be \
                 torch's store, which has no secrets (then give this process none), or not a store"
            ),
            Self::NotAStore(word) => {
                let text = format!(
                    "the server at {peer} is not a store: it answered \"{}\" to the request for a proof \
                     of the job's secret",
                    word.escape_ascii()
                );
                return Error::new(ErrorKind::Connection, text);
            }
        };
        Error::new(ErrorKind::Auth, text)
    }
}
