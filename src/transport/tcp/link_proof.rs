//! The proof in a hello: with `DIST_SECURITY=auth` or `encrypt`, both sides prove that they hold
//! the job's secret ([`crate::security::handshake`]). With `none`, they only repeat each other's
//! fresh random number, which proves that the other side receives. Both forms have the same
//! lengths.
//!
//! | message | with `auth` or `encrypt` | with `none` |
//! |---|---|---|
//! | proof of the connecting side | Noise message | its number, zeros |
//! | answer of the acceptor | Noise message | its number, the other side's number, zeros |
//! | confirmation of the connecting side | tag | the acceptor's number |
//! | acceptance of the acceptor | tag | the connecting side's number |
//!
//! The prologue of the Noise handshake contains the hello: group, epoch, both ranks, purpose and
//! security setting. It also contains the nonces of both ranks, which are new for each process and
//! each attempt of a job, and which no connection carries.
//!
//! With `encrypt`, each side encrypts its bytes after its last message of the handshake.

use super::hello::{
    ACCEPTED, CONFIRM_BYTES, ConfirmationTag, Hello, HelloRefusal, PROOF_BYTES, ProofMessage,
};
use super::members::TcpMember;
use crate::base::error::Result as LocalResult;
use crate::base::ids::Nonce;
use crate::security::connection_keys::ConnectionKeys;
use crate::security::handshake::{
    ConfirmedInitiator, HandshakeInitiator, HandshakeResponder, HandshakeTerms,
};
use crate::security::{CipherSuite, LinkSecurity, SecuritySetting};
use crate::sys::host;
use crate::sys::stream::SocketStream;

const NONCE_BYTES: usize = size_of::<Nonce>();
const _: () =
    assert!(NONCE_BYTES == size_of::<ConfirmationTag>() && 2 * NONCE_BYTES <= PROOF_BYTES);

/// What the two ends of a connection know of each other before they connect.
#[derive(Clone, Debug)]
pub(super) struct LinkTerms {
    security: LinkSecurity,
    cipher: CipherSuite,
    /// The nonces and the cipher suites of the connecting rank and of the acceptor.
    identities: Vec<u8>,
}

impl LinkTerms {
    /// Returns the terms of a connection that the member `from` makes to the member `to`.
    pub(super) fn between(security: &LinkSecurity, from: &TcpMember, to: &TcpMember) -> Self {
        let identity = |member: &TcpMember| {
            let mut bytes = member.nonce.0.to_vec();
            bytes.push(member.advert.ciphers.number());
            bytes
        };
        Self {
            security: security.clone(),
            cipher: from.advert.ciphers.best_common(to.advert.ciphers),
            identities: [identity(from), identity(to)].concat(),
        }
    }

    /// Returns the security setting of this process.
    pub(super) fn setting(&self) -> SecuritySetting {
        self.security.setting()
    }

    /// Returns the cipher suite of the connection.
    pub(super) fn cipher(&self) -> CipherSuite {
        self.cipher
    }

    /// Checks that a hello has the setting and the cipher suite of these terms.
    ///
    /// # Errors
    /// `RequiresAuth`, `RequiresNone`, `RequiresEncrypt` or `IdentityMismatch`.
    pub(super) fn check(&self, hello: &Hello) -> Result<(), HelloRefusal> {
        match self.setting() {
            setting if setting != hello.security => Err(HelloRefusal::of_setting(setting)),
            _ if hello.cipher != self.cipher => Err(HelloRefusal::IdentityMismatch),
            _ => Ok(()),
        }
    }

    /// The prologue has the security setting, which is a part of the hello.
    fn prologue(&self, hello: &Hello) -> Vec<u8> {
        [b"libdist link 1", &hello.encode()[..], &self.identities].concat()
    }

    /// Returns the terms of the Noise handshake, or `None` with the setting `none`.
    fn handshake<'a>(&'a self, prologue: &'a [u8]) -> Option<HandshakeTerms<'a>> {
        let (secret, encrypts) = match &self.security {
            LinkSecurity::None => return None,
            LinkSecurity::Auth(secret) => (secret, false),
            LinkSecurity::Encrypt(secret) => (secret, true),
        };
        Some(HandshakeTerms { secret, cipher: self.cipher, prologue, encrypts })
    }
}

/// The last message of the acceptor, by which it takes over a connection.
#[derive(Debug)]
pub(super) struct LinkAcceptance {
    message: [u8; CONFIRM_BYTES],
    keys: Option<ConnectionKeys>,
}

impl LinkAcceptance {
    fn new(tag: ConfirmationTag, keys: Option<ConnectionKeys>) -> Self {
        let mut message = [ACCEPTED; CONFIRM_BYTES];
        message[1..].copy_from_slice(&tag);
        Self { message, keys }
    }

    /// Returns the message.
    #[cfg(any(test, fuzzing))]
    pub(super) fn message(&self) -> &[u8; CONFIRM_BYTES] {
        &self.message
    }

    /// Sends the message. With `encrypt`, all later bytes are encrypted.
    pub(super) fn send(&self, stream: &SocketStream) {
        // A new connection has room for the message. If it is broken, the next read reports it.
        drop(stream.send(&self.message));
        encrypt(stream, self.keys.as_ref());
    }
}

/// Encrypts a connection whose handshake is complete, if there are keys.
pub(super) fn encrypt(stream: &SocketStream, keys: Option<&ConnectionKeys>) {
    if let Some(keys) = keys {
        // Fails only if the stream is encrypted already, and then it stays encrypted.
        drop(stream.encrypt(keys.record_ciphers(), &[]));
    }
}

/// The connecting side, after it has sent its proof.
#[derive(Debug)]
pub(super) enum ConnectProof {
    /// The setting `none`, with the number of this side.
    Open(Nonce),
    /// The settings `auth` and `encrypt`.
    Auth(HandshakeInitiator),
}

/// The connecting side, after it has sent its confirmation.
#[derive(Debug)]
pub(super) enum ConfirmedProof {
    /// The setting `none`, with the number of this side.
    Open(Nonce),
    /// The settings `auth` and `encrypt`.
    Auth(ConfirmedInitiator),
}

/// The acceptor, after it has sent its answer.
#[derive(Debug)]
pub(super) enum AcceptProof {
    /// The setting `none`.
    Open {
        /// The number of this side.
        own: Nonce,
        /// The number of the connecting side.
        peer: Nonce,
    },
    /// The settings `auth` and `encrypt`.
    Auth(HandshakeResponder),
}

impl ConnectProof {
    /// Returns the connecting side of a new connection, and its proof.
    ///
    /// # Errors
    /// `System` or `Internal` if the system provides no random bytes.
    pub(super) fn begin(terms: &LinkTerms, hello: &Hello) -> LocalResult<(Self, ProofMessage)> {
        match terms.handshake(&terms.prologue(hello)) {
            None => {
                let own = host::random_nonce()?;
                Ok((Self::Open(own), pack(&[own])))
            }
            Some(terms) => {
                let (initiator, message) = HandshakeInitiator::begin(terms)?;
                Ok((Self::Auth(initiator), message))
            }
        }
    }

    /// Checks the answer. Returns the confirmation, too.
    ///
    /// # Errors
    /// `WrongProof`; this side must send nothing more.
    pub(super) fn finish(
        self,
        answer: &ProofMessage,
    ) -> Result<(ConfirmedProof, ConfirmationTag), HelloRefusal> {
        match self {
            Self::Open(own) => {
                let peer = nonce_at(answer, 0);
                if *answer != pack(&[peer, own]) {
                    return Err(HelloRefusal::WrongProof);
                }
                Ok((ConfirmedProof::Open(own), peer.0))
            }
            Self::Auth(initiator) => match initiator.finish(answer) {
                Ok((confirmed, tag)) => Ok((ConfirmedProof::Auth(confirmed), tag)),
                Err(_) => Err(HelloRefusal::WrongProof),
            },
        }
    }
}

impl ConfirmedProof {
    /// Checks the acceptance. Returns the keys with the setting `encrypt`.
    ///
    /// # Errors
    /// `WrongProof`.
    pub(super) fn check_acceptance(
        self,
        tag: &ConfirmationTag,
    ) -> Result<Option<ConnectionKeys>, HelloRefusal> {
        match self {
            Self::Open(own) if own.0 == *tag => Ok(None),
            Self::Open(_) => Err(HelloRefusal::WrongProof),
            Self::Auth(confirmed) => {
                confirmed.check_acceptance(tag).map_err(|_| HelloRefusal::WrongProof)
            }
        }
    }
}

impl AcceptProof {
    /// Checks the proof of the connecting side. Returns the answer, too. The caller has checked
    /// the hello. With `auth`, the proof may be a replay.
    ///
    /// # Errors
    /// `WrongProof`, or `UnknownProtocol` if the proof is malformed or this process gets no random
    /// bytes.
    pub(super) fn answer(
        terms: &LinkTerms,
        hello: &Hello,
        proof: &ProofMessage,
    ) -> Result<(Self, ProofMessage), HelloRefusal> {
        match terms.handshake(&terms.prologue(hello)) {
            None => {
                let peer = nonce_at(proof, 0);
                if *proof != pack(&[peer]) {
                    return Err(HelloRefusal::UnknownProtocol);
                }
                let own = host::random_nonce().map_err(|_| HelloRefusal::UnknownProtocol)?;
                Ok((Self::Open { own, peer }, pack(&[own, peer])))
            }
            Some(terms) => {
                let (responder, answer) = HandshakeResponder::answer(terms, proof)
                    .map_err(|_| HelloRefusal::WrongProof)?;
                Ok((Self::Auth(responder), answer))
            }
        }
    }

    /// Checks the confirmation. Returns the acceptance.
    ///
    /// # Errors
    /// `WrongProof`.
    pub(super) fn finish(self, tag: &ConfirmationTag) -> Result<LinkAcceptance, HelloRefusal> {
        match self {
            Self::Open { own, peer } if own.0 == *tag => Ok(LinkAcceptance::new(peer.0, None)),
            Self::Open { .. } => Err(HelloRefusal::WrongProof),
            Self::Auth(responder) => {
                let (tag, keys) = responder.finish(tag).map_err(|_| HelloRefusal::WrongProof)?;
                Ok(LinkAcceptance::new(tag, keys))
            }
        }
    }
}

/// Returns these numbers as a message, followed by zeros.
fn pack(nonces: &[Nonce]) -> ProofMessage {
    let mut message = [0; PROOF_BYTES];
    for (place, nonce) in message.chunks_exact_mut(NONCE_BYTES).zip(nonces) {
        place.copy_from_slice(&nonce.0);
    }
    message
}

fn nonce_at(message: &ProofMessage, index: usize) -> Nonce {
    Nonce(std::array::from_fn(|byte| message[index * NONCE_BYTES + byte]))
}
