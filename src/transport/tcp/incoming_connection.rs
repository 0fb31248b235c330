//! An accepted connection during the handshake ([`hello`](super::hello)), and the trait of the rank
//! that takes it over after that.

use super::hello::{
    ConfirmationTag, Hello, HelloReadState, HelloReader, HelloRefusal, ProofMessage, WELCOME,
};
use super::link_proof::{AcceptProof, LinkAcceptance, LinkTerms};
use crate::base::error::Result as LocalResult;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::{SocketStream, is_transient};
use crate::wait::service::{self, DescriptorHandler, DescriptorWatch, WatchAction};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

/// Accepts connections for a rank of a group.
pub(super) trait ConnectionAcceptor: Send + Sync + Debug {
    /// Checks whether the sender of this hello is expected. Returns the terms of its connection.
    ///
    /// # Errors
    /// The reason for the refusal.
    fn check_hello(&self, hello: &Hello) -> Result<LinkTerms, HelloRefusal>;

    /// Takes over a connection on which both sides have verified each other. The implementation
    /// sends `acceptance` or a refusal to the peer. Called on the service thread.
    fn accept_connection(
        &self,
        hello: &Hello,
        stream: Arc<SocketStream>,
        acceptance: &LinkAcceptance,
    );
}

/// The connections whose handshakes are not complete, and the ranks that they address.
pub(super) trait IncomingConnections: Send + Sync + Debug {
    /// Returns the acceptor of the rank that a hello addresses.
    fn acceptor_for(&self, hello: &Hello) -> Option<Arc<dyn ConnectionAcceptor>>;

    /// Records that the hello of a connection was answered.
    fn mark_unconfirmed(&self, connection: &IncomingConnection);

    /// Removes a connection whose handshake has ended.
    fn remove_incoming(&self, connection: &IncomingConnection);
}

/// An accepted connection whose handshake is not complete.
#[derive(Debug)]
pub(super) struct IncomingConnection {
    stream: Arc<SocketStream>,
    remote_address: SocketAddr,
    registry: Weak<dyn IncomingConnections>,
    handshake: Mutex<IncomingHandshake>,
}

/// The state of the handshake of one connection.
#[derive(Debug, Default)]
struct IncomingHandshake {
    watch: Option<DescriptorWatch>,
    hello_reader: HelloReader,
    /// Set after the hello was checked and answered, and before the confirmation has arrived.
    answered: Option<AnsweredHello>,
}

/// A hello that was checked and answered.
#[derive(Debug)]
struct AnsweredHello {
    hello: Hello,
    proof: AcceptProof,
}

/// The result of reading from an incoming connection.
enum HandshakeOutcome {
    /// More bytes must arrive.
    Incomplete,
    /// The peer has sent the right confirmation, so both sides have verified each other.
    Accepted(Hello, Arc<dyn ConnectionAcceptor>, LinkAcceptance),
    /// The peer closed the connection, or the connection broke.
    Closed,
    Refused(HelloRefusal),
}

impl IncomingConnection {
    /// Starts the handshake on an accepted connection.
    ///
    /// # Errors
    /// `System` if the service thread cannot watch the connection.
    pub(super) fn watch(
        stream: SocketStream,
        remote_address: SocketAddr,
        registry: Weak<dyn IncomingConnections>,
    ) -> LocalResult<Arc<Self>> {
        let (stream, handshake) = (Arc::new(stream), Mutex::default());
        let incoming = Arc::new(Self { stream, remote_address, registry, handshake });
        let watch = service::watch(incoming.clone())?;
        lock(&incoming.handshake).watch = Some(watch);
        Ok(incoming)
    }

    /// Ends the watch.
    pub(super) fn stop_watching(&self) {
        let watch = lock(&self.handshake).watch.take();
        drop(watch);
    }

    /// Closes the connection in favour of newer ones. The peer may connect again.
    pub(super) fn evict(&self) {
        drop(self.stream.send(&[HelloRefusal::Overloaded as u8]));
        self.reject("too many connections have not completed the handshake");
    }

    /// Closes the connection, and logs the reason.
    pub(super) fn reject(&self, reason: impl std::fmt::Display) {
        self.stop_watching();
        crate::log!(LogLevel::Warn, "dropped a connection from {}: {reason}", self.remote_address);
    }

    /// Reads from the connection. The caller drops `used`, the acceptor of the hello, after this
    /// call: the end of an acceptor may end this connection, which takes the lock of the handshake.
    fn read_handshake(
        &self,
        registry: &dyn IncomingConnections,
        used: &mut Option<Arc<dyn ConnectionAcceptor>>,
    ) -> HandshakeOutcome {
        let mut handshake = lock(&self.handshake);
        loop {
            let received = match self.stream.receive(handshake.hello_reader.free_space()) {
                Ok(0) => return HandshakeOutcome::Closed,
                Ok(got) => got,
                Err(cause) if is_transient(&cause) => return HandshakeOutcome::Incomplete,
                Err(_) => return HandshakeOutcome::Closed,
            };
            match handshake.hello_reader.advance(received) {
                Ok(HelloReadState::Incomplete) => {}
                Ok(HelloReadState::Hello(hello, proof)) => {
                    let acceptor = registry.acceptor_for(&hello);
                    let answer = self.answer_hello(acceptor.as_ref(), hello, &proof);
                    *used = acceptor;
                    match answer {
                        Ok(answered) => {
                            handshake.answered = Some(answered);
                            registry.mark_unconfirmed(self);
                        }
                        Err(refusal) => return HandshakeOutcome::Refused(refusal),
                    }
                }
                Ok(HelloReadState::Confirmed(tag)) => {
                    let Some(answered) = handshake.answered.take() else {
                        return HandshakeOutcome::Refused(HelloRefusal::UnknownProtocol);
                    };
                    return answered.check_confirmation(&tag, registry);
                }
                Err(refusal) => return HandshakeOutcome::Refused(refusal),
            }
        }
    }

    /// Checks a hello and its proof. If they are valid, sends the answer.
    fn answer_hello(
        &self,
        acceptor: Option<&Arc<dyn ConnectionAcceptor>>,
        hello: Hello,
        proof: &ProofMessage,
    ) -> Result<AnsweredHello, HelloRefusal> {
        let acceptor = acceptor.ok_or(HelloRefusal::NoSuchRank)?;
        let terms = acceptor.check_hello(&hello)?;
        terms.check(&hello)?;
        let (proof, answer) = AcceptProof::answer(&terms, &hello, proof)?;
        // A new connection has room for the answer. If the connection is broken, the next read
        // reports it.
        drop(self.stream.send(&[&[WELCOME][..], &answer].concat()));
        Ok(AnsweredHello { hello, proof })
    }
}

impl AnsweredHello {
    fn check_confirmation(
        self,
        tag: &ConfirmationTag,
        registry: &dyn IncomingConnections,
    ) -> HandshakeOutcome {
        let acceptance = match self.proof.finish(tag) {
            Ok(acceptance) => acceptance,
            Err(refusal) => return HandshakeOutcome::Refused(refusal),
        };
        // The rank that the hello names may have left the group since the hello.
        match registry.acceptor_for(&self.hello) {
            Some(acceptor) => HandshakeOutcome::Accepted(self.hello, acceptor, acceptance),
            None => HandshakeOutcome::Refused(HelloRefusal::NoSuchRank),
        }
    }
}

impl DescriptorHandler for IncomingConnection {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        let Some(inner) = self.registry.upgrade() else { return WatchAction::Done };
        let mut used = None;
        let outcome = self.read_handshake(inner.as_ref(), &mut used);
        drop(used);
        if matches!(outcome, HandshakeOutcome::Incomplete) {
            return WatchAction::Keep;
        }
        inner.remove_incoming(self);
        match outcome {
            HandshakeOutcome::Accepted(hello, acceptor, acceptance) => {
                // End the watch before the acceptor gets the stream, because the acceptor may watch
                // the same descriptor.
                self.stop_watching();
                acceptor.accept_connection(&hello, Arc::clone(&self.stream), &acceptance);
            }
            HandshakeOutcome::Refused(refusal) => {
                drop(self.stream.send(&[refusal as u8]));
                if refusal == HelloRefusal::NoSuchRank {
                    self.stop_watching();
                    crate::log!(
                        LogLevel::Debug,
                        "dropped a connection from {}: {refusal}",
                        self.remote_address
                    );
                } else {
                    self.reject(refusal);
                }
            }
            HandshakeOutcome::Closed | HandshakeOutcome::Incomplete => self.stop_watching(),
        }
        WatchAction::Done
    }
}
