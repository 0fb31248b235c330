//! The authentication handshake of a store with a secret. Before any request, both sides prove to
//! each other that they hold the secret. Torch's protocol has no such handshake. A store without a
//! secret uses torch's protocol unchanged.
//!
//! | from | bytes | meaning |
//! |---|---|---|
//! | client | 64, 32 random bytes | CHALLENGE: requests the server's proof |
//! | server | "KNOW", 32 random bytes, its proof | proves the secret, requests the client's proof |
//! | client | 65, its proof | PROOF; VALIDATE and PING follow in the same write |
//!
//! A proof is a keyed BLAKE3 hash. The key is derived from the secret. The input is a text for the
//! role of the prover (server or client), then the client's random bytes, then the server's random
//! bytes. Because of the random bytes, a proof is invalid on any other connection. Because of the
//! role, an attacker cannot send a proof back to its author. The server reads no request before it
//! has checked the client's proof.
//!
//! If the server rejects the client, it sends one of these four-byte status words and closes the
//! connection. A client of torch takes the word for a wrong reply to its PING, and gives up.
//!
//! | word | meaning |
//! |---|---|
//! | "AUTH" | the store has a secret, and the client began with VALIDATE |
//! | "OPEN" | the store has no secret, and the client began with CHALLENGE |
//! | "DENY" | the client's proof is wrong |
//!
//! The functions convert bytes to bytes: they do no I/O and do not wait. The handshake
//! authenticates both sides once, at the start of the connection. Later bytes are neither encrypted
//! nor signed.

use super::proto::{Opcode, StatusWord};
use super::secret::Secret;
use crate::base::{Error, ErrorKind, Result};
use crate::sys::host;
use std::fmt;

/// The first byte that a client with a secret sends. No opcode of torch has this number.
const CHALLENGE: u8 = 64;
/// The first byte of the message with the client's proof.
const PROOF: u8 = 65;

const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = blake3::OUT_LEN;
/// The length of a CHALLENGE or PROOF message, in bytes.
pub const MESSAGE_BYTES: usize = 1 + NONCE_BYTES;
/// The length of the server's answer in bytes, without the word "KNOW" in front.
pub const ANSWER_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
/// The length in bytes of VALIDATE and PING together. Every client without a secret begins with
/// these two requests.
const INTRODUCTION_BYTES: usize = 10;

type AuthNonce = [u8; NONCE_BYTES];

const KNOW: StatusWord = *b"KNOW";

/// The first input of a proof by the server. The two roles have different texts, so that a proof of
/// one side is not valid as a proof of the other side.
const SERVER_ROLE: &[u8] = b"libdist store server";
/// The first input of a proof by a client.
const CLIENT_ROLE: &[u8] = b"libdist store client";

const _: () = assert!(NONCE_BYTES == PROOF_BYTES && INTRODUCTION_BYTES < MESSAGE_BYTES);

fn compute_proof(
    secret: &Secret,
    role: &[u8],
    client: &AuthNonce,
    server: &AuthNonce,
) -> blake3::Hash {
    secret.hash(&[role, client, server])
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

/// The progress of the server's handshake with one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthProgress {
    /// The handshake needs more bytes.
    Incomplete,
    /// The handshake is complete: requests follow, VALIDATE first.
    Complete,
}

/// The state of the server's side of the handshake.
#[derive(Clone, Copy, Debug)]
enum AuthState {
    Initial,
    /// The server expects the client's proof. The field is the client's random bytes.
    AwaitingProof(AuthNonce),
    Finished(std::result::Result<(), AuthRefusal>),
}

/// The server's side of the handshake, one per connection.
#[derive(Debug)]
pub struct ServerHandshake {
    secret: Option<Secret>,
    nonce: AuthNonce,
    state: AuthState,
    /// The first `received_bytes` bytes are the part of the expected message that has arrived.
    message: [u8; MESSAGE_BYTES],
    received_bytes: usize,
}

impl ServerHandshake {
    /// Creates the handshake of a server with or without a secret.
    ///
    /// # Errors
    /// `System` if the kernel provides no random bytes.
    pub fn new(secret: Option<&Secret>) -> Result<Self> {
        let nonce = if secret.is_some() { host::random_bytes()? } else { [0; NONCE_BYTES] };
        Ok(Self {
            secret: secret.cloned(),
            nonce,
            state: AuthState::Initial,
            message: [0; MESSAGE_BYTES],
            received_bytes: 0,
        })
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
            match self.state {
                AuthState::Finished(outcome) => return outcome.map(|()| AuthProgress::Complete),
                AuthState::Initial | AuthState::AwaitingProof(_) => {
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
        let secret = self.secret.clone();
        Some(match (self.state, secret, first) {
            (AuthState::Initial, None, CHALLENGE) => {
                self.collect_message(MESSAGE_BYTES, input)?;
                Err(AuthRefusal::NoSecret)
            }
            (AuthState::Initial, None, _) => Ok(AuthState::Finished(Ok(()))),
            (AuthState::Initial, Some(secret), CHALLENGE) => {
                let client = self.collect_message(MESSAGE_BYTES, input)?;
                output.extend(KNOW);
                output.extend(self.nonce);
                output.extend(compute_proof(&secret, SERVER_ROLE, &client, &self.nonce).as_bytes());
                Ok(AuthState::AwaitingProof(client))
            }
            (AuthState::AwaitingProof(client), Some(secret), PROOF) => {
                let received_proof =
                    blake3::Hash::from_bytes(self.collect_message(MESSAGE_BYTES, input)?);
                // The comparison takes constant time.
                let is_right =
                    received_proof == compute_proof(&secret, CLIENT_ROLE, &client, &self.nonce);
                if is_right {
                    Ok(AuthState::Finished(Ok(())))
                } else {
                    Err(AuthRefusal::WrongProof)
                }
            }
            (AuthState::AwaitingProof(_), _, _) => Err(AuthRefusal::WrongProof),
            (AuthState::Initial, Some(_), first) if first == Opcode::Validate as u8 => {
                self.collect_message(INTRODUCTION_BYTES, input)?;
                Err(AuthRefusal::SecretRequired)
            }
            (_, _, first) => Err(AuthRefusal::UnexpectedFirstByte(first)),
        })
    }

    /// Collects a message of `wanted` bytes. Once it is complete, returns its bytes after the first
    /// one, and resets `received_bytes` for the next message. A shorter message leaves stale bytes
    /// at the end of the result.
    fn collect_message(
        &mut self,
        wanted: usize,
        input: &mut &[u8],
    ) -> Option<[u8; MESSAGE_BYTES - 1]> {
        let count = input.len().min(wanted - self.received_bytes);
        let (taken, rest) = input.split_at(count);
        self.message[self.received_bytes..self.received_bytes + count].copy_from_slice(taken);
        self.received_bytes += count;
        *input = rest;
        if self.received_bytes < wanted {
            return None;
        }
        self.received_bytes = 0;
        let mut content = [0; MESSAGE_BYTES - 1];
        content.copy_from_slice(&self.message[1..]);
        Some(content)
    }
}

/// The client's side of the handshake, for a client with a secret.
#[derive(Debug)]
pub struct ClientHandshake {
    secret: Secret,
    nonce: AuthNonce,
}

impl ClientHandshake {
    /// Starts the handshake. Returns the handshake and the client's first message.
    ///
    /// # Errors
    /// `System` if the kernel provides no random bytes.
    pub fn begin(secret: &Secret) -> Result<(Self, [u8; MESSAGE_BYTES])> {
        let handshake = Self { secret: secret.clone(), nonce: host::random_bytes()? };
        let challenge = message(CHALLENGE, &handshake.nonce);
        Ok((handshake, challenge))
    }

    /// Checks the first word that the server sends. The server's answer follows only if the word is
    /// "KNOW".
    ///
    /// # Errors
    /// The reason why no answer follows.
    pub fn check_server_word(word: StatusWord) -> std::result::Result<(), AuthFailure> {
        if word == KNOW {
            return Ok(());
        }
        Err(AuthFailure::from_word(word).unwrap_or(AuthFailure::NotAStore(word)))
    }

    /// Checks the server's answer. Returns the client's proof message.
    ///
    /// # Errors
    /// [`AuthFailure::SecretMismatch`]; the client must send nothing to this server.
    pub fn finish(
        self,
        answer: &[u8; ANSWER_BYTES],
    ) -> std::result::Result<[u8; MESSAGE_BYTES], AuthFailure> {
        let (mut server, mut received_proof) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
        server.copy_from_slice(&answer[..NONCE_BYTES]);
        received_proof.copy_from_slice(&answer[NONCE_BYTES..]);
        // The comparison takes constant time.
        if compute_proof(&self.secret, SERVER_ROLE, &self.nonce, &server)
            != blake3::Hash::from_bytes(received_proof)
        {
            return Err(AuthFailure::SecretMismatch);
        }
        let client_proof = compute_proof(&self.secret, CLIENT_ROLE, &self.nonce, &server);
        Ok(message(PROOF, client_proof.as_bytes()))
    }
}

fn message(kind: u8, content: &[u8; MESSAGE_BYTES - 1]) -> [u8; MESSAGE_BYTES] {
    let mut message = [kind; MESSAGE_BYTES];
    message[1..].copy_from_slice(content);
    message
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
