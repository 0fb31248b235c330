//! One client connection of the server: its socket, its request reader (`request_reader`), and the
//! replies that are not sent yet.

use super::handshake::{ServerHandshake, StoreSecurity};
use super::proto::StoreRequest;
use super::request_handler::ClientRejection;
use super::request_reader::RequestReader;
use super::waiters::ConnectionId;
use crate::security::CipherSet;
use crate::sys::poll::{Interest, Poller};
use crate::sys::stream::{SocketStream, is_transient};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;

/// When all replies are sent, the output buffer shrinks to this capacity.
const MAX_IDLE_BUFFER_BYTES: usize = 1 << 10;

/// The name of a client in log lines.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClientName {
    /// The address of a TCP client.
    Address(SocketAddr),
    /// The process id of a client on this host.
    Process(u32),
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Process(pid) => write!(f, "process {pid} of this host"),
        }
    }
}

/// One client connection.
#[derive(Debug)]
pub(super) struct ClientConnection {
    stream: SocketStream,
    name: ClientName,
    request_reader: RequestReader,
    /// True if the client has closed its sending side. The server still sends the pending replies.
    is_read_closed: bool,
    output: Vec<u8>,
    /// The number of bytes of `output` that have been sent.
    sent: usize,
    interest: Interest,
}

/// The result of one read from the socket.
pub(super) enum ReadEvent {
    /// This number of bytes was read.
    Bytes(usize),
    /// No bytes are available now.
    Nothing,
    /// The client will send no more bytes.
    Closed,
}

impl ClientConnection {
    /// Creates the connection of a new client, and adds it to `poller` under `id`.
    ///
    /// # Errors
    /// The system error.
    pub(super) fn register(
        stream: SocketStream,
        name: ClientName,
        id: ConnectionId,
        security: &StoreSecurity,
        poller: &Poller,
    ) -> io::Result<Self> {
        let handshake = ServerHandshake::new(security, CipherSet::of_this_processor());
        poller.add(stream.as_fd(), id, Interest::READ)?;
        Ok(Self {
            stream,
            name,
            request_reader: RequestReader::new(handshake),
            is_read_closed: false,
            output: Vec::new(),
            sent: 0,
            interest: Interest::READ,
        })
    }

    /// Returns the client's name.
    pub(super) fn name(&self) -> ClientName {
        self.name
    }

    /// Returns true once the client has been validated.
    pub(super) fn is_validated(&self) -> bool {
        self.request_reader.is_validated()
    }

    /// Returns true if the client has closed its side and all replies have been sent.
    pub(super) fn is_finished(&self) -> bool {
        self.is_read_closed && self.output.is_empty()
    }

    /// Returns the buffered bytes: an unfinished request and unsent replies.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.request_reader.buffered_bytes() + self.unsent_bytes()
    }

    /// Returns the number of bytes that are still to be sent to the client.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Returns the buffer for replies.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends a word without waiting, to a client that gets no more bytes after it.
    pub(super) fn send_now(&self, word: &[u8]) {
        drop(self.stream.send(word));
    }

    /// Makes one read call for available bytes.
    ///
    /// # Errors
    /// The system error, if the connection is broken.
    pub(super) fn receive(&mut self, chunk: &mut [u8]) -> io::Result<ReadEvent> {
        if self.is_read_closed {
            return Ok(ReadEvent::Nothing);
        }
        match self.stream.receive(chunk) {
            Ok(0) => {
                self.is_read_closed = true;
                Ok(ReadEvent::Closed)
            }
            Ok(count) => Ok(ReadEvent::Bytes(count)),
            Err(cause) if is_transient(&cause) => Ok(ReadEvent::Nothing),
            Err(cause) => Err(cause),
        }
    }

    /// Consumes received bytes from `input` up to the end of the next complete request, and returns
    /// this request. Processes VALIDATE itself and does not return it.
    ///
    /// # Errors
    /// The reason to disconnect the client.
    pub(super) fn next_request(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<StoreRequest<'static>>, ClientRejection> {
        let request = self.request_reader.next_request(input, &mut self.output)?;
        if let Some(keys) = self.request_reader.take_keys() {
            // The client has received all plain replies, or it could not have sent its proof.
            let outcome = self.stream.encrypt(keys.record_ciphers(), std::mem::take(input));
            outcome.map_err(|_| ClientRejection::EncryptedTwice)?;
        }
        Ok(request)
    }

    /// Returns true if a receive has a result although the socket may not be readable.
    pub(super) fn has_buffered_input(&self) -> bool {
        !self.is_read_closed && self.stream.has_buffered_input()
    }

    /// Sends as many bytes as the socket accepts.
    ///
    /// # Errors
    /// The system error, if the connection is broken.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.stream.send(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(cause) => return Err(cause),
            }
        }
        self.output.clear();
        self.output.shrink_to(MAX_IDLE_BUFFER_BYTES);
        self.sent = 0;
        Ok(())
    }

    /// Tells the poller which events to watch for: readable until the client closes its sending
    /// side, and writable while there are unsent replies.
    ///
    /// # Errors
    /// The system error.
    pub(super) fn update_interest(&mut self, id: ConnectionId, poller: &Poller) -> io::Result<()> {
        let interest = Interest { read: !self.is_read_closed, write: !self.output.is_empty() };
        if interest != self.interest {
            poller.change(self.stream.as_fd(), id, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}
