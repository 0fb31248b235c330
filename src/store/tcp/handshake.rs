//! How the two sides of a store with a secret prove to each other that they know it, before
//! anything else is said. Torch's protocol has nothing like it; stores without a secret go on as
//! torch's.
//!
//! | from | bytes | meaning |
//! |---|---|---|
//! | client | 64, 32 random bytes | CHALLENGE: prove that you know the secret |
//! | server | "KNOW", 32 random bytes, its proof | I know it; prove that you do |
//! | client | 65, its proof | PROOF; behind it, in the same write, what every client begins with: VALIDATE and PING |
//!
//! A proof is the BLAKE3 hash, with a key derived from the secret, of a text that says whose proof
//! it is and of both random numbers, the client's first. So none can be used on another connection,
//! nor turned back on whoever gave it. The server reads no request before it has the proof. Instead
//! of going on it may say one of these four-byte words and close; a client of torch takes them for
//! a wrong answer to its PING, and gives up:
//!
//! | word | meaning |
//! |---|---|
//! | "AUTH" | there is a secret, and the client began with VALIDATE |
//! | "OPEN" | there is no secret, and the client began with CHALLENGE |
//! | "DENY" | the client's proof is wrong |
//!
//! Bytes in, bytes out: nothing here waits, reads or writes. It says who the two sides are, at that
//! moment; what they say afterwards is neither encrypted nor signed.

use super::proto::{Opcode, StatusWord};
use super::secret::Secret;
use crate::base::{Error, ErrorKind, Result};
use crate::sys::host;
use std::fmt;

/// The first byte of a client that knows a secret; torch's operations have other numbers.
const CHALLENGE: u8 = 64;
/// The first byte of a client's proof.
const PROOF: u8 = 65;

const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = blake3::OUT_LEN;
/// The length of either message of a client.
pub const MESSAGE_BYTES: usize = 1 + NONCE_BYTES;
/// The length of the server's answer behind its word.
pub const ANSWER_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
/// VALIDATE and PING, with which every client without a secret begins.
const INTRODUCTION_BYTES: usize = 10;

type AuthNonce = [u8; NONCE_BYTES];

const KNOW: StatusWord = *b"KNOW";

/// Whose proof it is: so that neither side can be made to give the other's.
const SERVER_ROLE: &[u8] = b"libdist store server";
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

/// Why a server has nothing to do with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthRefusal {
    /// It gave no proof, where one is needed.
    #[error("it did not prove that it knows the job's secret")]
    SecretRequired,
    /// It asked for a proof that this server cannot give.
    #[error("it asked for a secret, and this store has none")]
    NoSecret,
    /// Its proof is wrong.
    #[error("it does not know the job's secret")]
    WrongProof,
    /// It began as no client of any store does.
    #[error("it began with byte {0} instead of a challenge")]
    UnexpectedFirstByte(u8),
}

impl AuthRefusal {
    /// What the client is told, if it can be expected to understand.
    fn status_word(self) -> Option<StatusWord> {
        match self {
            Self::SecretRequired => Some(*b"AUTH"),
            Self::NoSecret => Some(*b"OPEN"),
            Self::WrongProof => Some(*b"DENY"),
            Self::UnexpectedFirstByte(_) => None,
        }
    }
}

/// How far a server is with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthProgress {
    /// More bytes are to come.
    Incomplete,
    /// It is over: what follows are requests, VALIDATE first.
    Complete,
}

/// What the server expects next.
#[derive(Clone, Copy, Debug)]
enum AuthState {
    Initial,
    /// The proof for this challenge.
    AwaitingProof(AuthNonce),
    Finished(std::result::Result<(), AuthRefusal>),
}

/// The server's side, one for each connection.
#[derive(Debug)]
pub struct ServerHandshake {
    secret: Option<Secret>,
    nonce: AuthNonce,
    state: AuthState,
    /// What has come of the message expected, in its first `received_bytes` bytes.
    message: [u8; MESSAGE_BYTES],
    received_bytes: usize,
}

impl ServerHandshake {
    /// That of a server with or without a secret.
    ///
    /// # Errors
    /// `System` where the kernel has no random bytes to give.
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

    /// Takes what a client has sent, however it was cut, and appends what it is to be told to
    /// `output`, also where it is refused. Once it is done, nothing more is taken from `input`.
    ///
    /// # Errors
    /// Why the connection is to be closed. Then all of `input` has been taken, and a client that
    /// begins as torch's does has been heard out: closing a socket with unread bytes could destroy
    /// what it was told.
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

    /// The step that follows the message expected; `None` as long as that has not come.
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
                // Takes the same time wherever the two differ.
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

    /// Takes bytes until there are `wanted`; then returns what follows the first, and begins anew.
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

/// The client's side, where it knows a secret.
#[derive(Debug)]
pub struct ClientHandshake {
    secret: Secret,
    nonce: AuthNonce,
}

impl ClientHandshake {
    /// Begins, and gives what is to be sent first.
    ///
    /// # Errors
    /// `System` where the kernel has no random bytes to give.
    pub fn begin(secret: &Secret) -> Result<(Self, [u8; MESSAGE_BYTES])> {
        let handshake = Self { secret: secret.clone(), nonce: host::random_bytes()? };
        let challenge = message(CHALLENGE, &handshake.nonce);
        Ok((handshake, challenge))
    }

    /// Takes the server's word, behind which its answer follows.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn check_server_word(word: StatusWord) -> std::result::Result<(), AuthFailure> {
        if word == KNOW {
            return Ok(());
        }
        Err(AuthFailure::from_word(word).unwrap_or(AuthFailure::NotAStore(word)))
    }

    /// Takes the server's answer, and gives what is to be sent next.
    ///
    /// # Errors
    /// [`AuthFailure::SecretMismatch`]; nothing is to be sent to that server.
    pub fn finish(
        self,
        answer: &[u8; ANSWER_BYTES],
    ) -> std::result::Result<[u8; MESSAGE_BYTES], AuthFailure> {
        let (mut server, mut received_proof) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
        server.copy_from_slice(&answer[..NONCE_BYTES]);
        received_proof.copy_from_slice(&answer[NONCE_BYTES..]);
        // Takes the same time wherever the two differ.
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

/// Why a client gets no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthFailure {
    /// The server wants a proof, and this client knows no secret.
    SecretRequired,
    /// This client knows a secret, and the server none.
    NoSecret,
    /// The server says that this client's proof is wrong.
    Denied,
    /// The server's proof is wrong.
    SecretMismatch,
    /// The server broke the connection off, or said nothing in time, when it was to prove itself.
    NoAnswer,
    /// The server said something that no store says.
    NotAStore(StatusWord),
}

impl AuthFailure {
    /// What a server says with this word, which may also come instead of the answer to the first
    /// PING.
    pub fn from_word(word: StatusWord) -> Option<Self> {
        match &word {
            b"AUTH" => Some(Self::SecretRequired),
            b"OPEN" => Some(Self::NoSecret),
            b"DENY" => Some(Self::Denied),
            _ => None,
        }
    }

    /// True where another attempt would end in the same way.
    pub fn is_final(self) -> bool {
        self != Self::NoAnswer
    }

    /// The error that tells the user, for the store at `peer`.
    pub fn to_error(self, peer: &dyn fmt::Display) -> Error {
        let text = match self {
            Self::SecretRequired => format!(
                "the store at {peer} asks for the job's secret and this process gave none: \
                 dist_init takes it from DIST_STORE_SECRET_FILE, dist_store_tcp_create from its \
                 options; distrun --no-secret makes a store without one"
            ),
            Self::NoSecret => format!(
                "the store at {peer} has no secret, but this process was given one: start that \
                 store with it, or give none here; it may also be another job's store"
            ),
            Self::Denied => format!(
                "the store at {peer} did not accept this process's proof that it knows the job's \
                 secret: it may be another job's store"
            ),
            Self::SecretMismatch => format!(
                "the store at {peer} does not know the secret that this process was given: it is \
                 another job's store, or one of the two was given a wrong secret"
            ),
            Self::NoAnswer => format!(
                "the store at {peer} does not answer when it is asked for the job's secret: a store \
                 of torch's knows nothing of secrets (then give none here), nor does what is no store"
            ),
            Self::NotAStore(word) => {
                let text = format!(
                    "what listens at {peer} is not a store: it answered \"{}\" when it was asked \
                     for the job's secret",
                    word.escape_ascii()
                );
                return Error::new(ErrorKind::Connection, text);
            }
        };
        Error::new(ErrorKind::Auth, text)
    }
}
