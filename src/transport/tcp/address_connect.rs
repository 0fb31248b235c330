//! One attempt to connect to one address of a peer: the connection, the handshake
//! ([`hello`](super::hello)) of the connecting side, and the reasons of a failure.

use super::connect_target::PeerConnectTarget;
use super::hello::{
    ACCEPTED, ANSWER_BYTES, CONFIRM, CONFIRM_BYTES, ConfirmationTag, DEATH_BYTES, DIED, Hello,
    HelloRefusal, ProofMessage, WELCOME, parse_answer, parse_end, proves_death,
};
use super::link_proof::{ConfirmedProof, ConnectProof, encrypt};
use crate::sys::poll::Interest;
use crate::sys::socket;
use crate::sys::stream::{SocketStream, is_transient};
use crate::wait::service::DescriptorWatch;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The failure of one address.
#[derive(Debug)]
pub(super) struct AddressFailure {
    pub(super) address: SocketAddr,
    pub(super) reason: AddressFailureReason,
}

impl AddressFailure {
    pub(super) fn refusal(&self) -> Option<HelloRefusal> {
        if let AddressFailureReason::Refused(refusal) = self.reason { Some(refusal) } else { None }
    }

    /// Returns true if the failure proves that the peer's process is dead.
    pub(super) fn is_death(&self) -> bool {
        matches!(self.reason, AddressFailureReason::Died)
    }

    /// Returns true if no process listens at the address, or one that does not have the rank.
    pub(super) fn is_absence(&self) -> bool {
        matches!(
            self.reason,
            AddressFailureReason::NotListening(_)
                | AddressFailureReason::Refused(HelloRefusal::NoSuchRank)
        )
    }
}

/// The address that is being tried.
#[derive(Debug)]
pub(super) struct CurrentConnect {
    pub(super) address: SocketAddr,
    pub(super) stream: Arc<SocketStream>,
    watch: DescriptorWatch,
    /// The deadline for this address.
    pub(super) due: Instant,
    proof: ProofProgress,
    /// The part of the current reply of the acceptor that has arrived.
    reply: [u8; ANSWER_BYTES],
    reply_len: usize,
}

/// The time in which the peer must accept a confirmed connection.
const ACCEPTANCE_TIMEOUT: Duration = Duration::from_secs(4);

/// The progress of the handshake on the connecting side.
#[derive(Debug, Default)]
enum ProofProgress {
    /// The connection is not established yet.
    #[default]
    Connecting,
    /// The hello was sent, and the answer is awaited.
    Sent(ConnectProof),
    /// The confirmation was sent, and the end of the handshake is awaited.
    Confirmed(ConfirmedProof),
}

/// The reason why an address failed.
#[derive(Debug)]
pub(super) enum AddressFailureReason {
    Refused(HelloRefusal),
    /// The death witness of the peer's process proves that the process is dead.
    Died,
    /// The peer's host reports that no process listens at the address.
    NotListening(String),
    /// The peer accepted the connection and ended it without an answer. This happens if the peer's
    /// process dies.
    EndedByPeer(String),
    ConnectError(String),
}

impl From<std::io::Error> for AddressFailureReason {
    fn from(cause: std::io::Error) -> Self {
        match cause.kind() {
            std::io::ErrorKind::ConnectionRefused => Self::NotListening(cause.to_string()),
            std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe => {
                Self::EndedByPeer(cause.to_string())
            }
            _ => Self::ConnectError(cause.to_string()),
        }
    }
}

impl std::fmt::Display for AddressFailureReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
            Self::Died => f.write_str("its process has died, as its host reports"),
            Self::NotListening(reason) | Self::EndedByPeer(reason) | Self::ConnectError(reason) => {
                f.write_str(reason)
            }
        }
    }
}

impl CurrentConnect {
    /// Creates the state of an attempt that has just begun.
    pub(super) fn new(
        address: SocketAddr,
        stream: Arc<SocketStream>,
        watch: DescriptorWatch,
        timeout: Duration,
    ) -> Self {
        Self {
            address,
            stream,
            watch,
            due: Instant::now() + timeout,
            proof: ProofProgress::Connecting,
            reply: [0; ANSWER_BYTES],
            reply_len: 0,
        }
    }

    /// Returns true if the confirmation was sent, so that the peer may have added the connection.
    pub(super) fn is_confirmed(&self) -> bool {
        matches!(self.proof, ProofProgress::Confirmed(_))
    }

    /// Continues the handshake. Returns true after both sides are verified and the peer has added
    /// the connection.
    pub(super) fn advance_handshake(
        &mut self,
        target: &PeerConnectTarget,
    ) -> Result<bool, AddressFailureReason> {
        loop {
            match std::mem::take(&mut self.proof) {
                ProofProgress::Connecting => {
                    match socket::finish_connect(self.stream.as_ref()) {
                        Err(cause) if is_transient(&cause) => return Ok(false),
                        outcome => outcome?,
                    }
                    self.proof = ProofProgress::Sent(self.send_hello(target)?);
                }
                ProofProgress::Sent(proof) => {
                    let answer = self.read_reply(ANSWER_BYTES)?;
                    let Some(answer) = parse_answer_or_death(answer, target)? else {
                        self.proof = ProofProgress::Sent(proof);
                        return Ok(false);
                    };
                    let (confirmed, tag) = proof.finish(answer)?;
                    self.reply_len = 0;
                    self.send_confirmation(&target.hello, &tag)?;
                    self.proof = ProofProgress::Confirmed(confirmed);
                }
                ProofProgress::Confirmed(proof) => {
                    let end = self.read_reply(CONFIRM_BYTES)?;
                    let Some(tag) = parse_end(end)? else {
                        self.proof = ProofProgress::Confirmed(proof);
                        return Ok(false);
                    };
                    let keys = proof.check_acceptance(tag)?;
                    encrypt(&self.stream, keys.as_ref());
                    return Ok(true);
                }
            }
        }
    }

    fn send_hello(&self, target: &PeerConnectTarget) -> Result<ConnectProof, AddressFailureReason> {
        let (proof, message) = ConnectProof::begin(&target.terms, &target.hello)
            .map_err(|error| AddressFailureReason::ConnectError(error.to_string()))?;
        send_all(&self.stream, &[&target.hello.encode()[..], &message].concat())?;
        self.watch.set_interest(Interest::READ);
        Ok(proof)
    }

    fn send_confirmation(
        &mut self,
        hello: &Hello,
        tag: &ConfirmationTag,
    ) -> Result<(), AddressFailureReason> {
        if hello.purpose.link_channel().is_some() {
            // From the confirmation below on, the peer may add the stream. Therefore a death of
            // this process must reset the connection from here on.
            self.stream.set_reset_on_close(true)?;
        }
        // The peer may have added the connection. If its answer is lost, a further connection takes
        // the place of this one.
        self.due = Instant::now() + ACCEPTANCE_TIMEOUT;
        Ok(send_all(&self.stream, &[&[CONFIRM][..], tag].concat())?)
    }

    /// Reads the reply of the acceptor, which has at most this length. Returns the part that has
    /// arrived. Reads no byte after the reply, because it belongs to the stream.
    fn read_reply(&mut self, length: usize) -> Result<&[u8], AddressFailureReason> {
        while self.reply_len < length {
            match self.stream.receive(&mut self.reply[self.reply_len..length]) {
                Ok(0) if self.reply_len == 0 => {
                    let reason = "it closed the connection".to_owned();
                    return Err(AddressFailureReason::EndedByPeer(reason));
                }
                // The part that has arrived may be a refusal.
                Ok(0) => break,
                Ok(got) => self.reply_len += got,
                Err(cause) if is_transient(&cause) => break,
                Err(cause) => return Err(cause.into()),
            }
            // A refusal has one byte.
            if ![WELCOME, ACCEPTED, DIED].contains(&self.reply[0]) {
                break;
            }
        }
        Ok(&self.reply[..self.reply_len])
    }
}

/// Returns the proof of the acceptor from its answer. Returns `None` if more bytes must arrive. A
/// death certificate and a refusal are failures.
fn parse_answer_or_death<'a>(
    answer: &'a [u8],
    target: &PeerConnectTarget,
) -> Result<Option<&'a ProofMessage>, AddressFailureReason> {
    if answer.first() != Some(&DIED) {
        return Ok(parse_answer(answer)?);
    }
    let Some(certificate) = answer.first_chunk::<DEATH_BYTES>() else { return Ok(None) };
    let is_proven = target.death_hash.is_some_and(|hash| proves_death(certificate, hash));
    Err(if is_proven {
        AddressFailureReason::Died
    } else {
        AddressFailureReason::Refused(HelloRefusal::UnknownProtocol)
    })
}

impl From<HelloRefusal> for AddressFailureReason {
    fn from(refusal: HelloRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Sends a few bytes on a new connection, whose socket buffer has room for them.
fn send_all(stream: &SocketStream, bytes: &[u8]) -> std::io::Result<()> {
    match stream.send(bytes)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(std::io::ErrorKind::WriteZero.into()),
    }
}
