//! One client of the server: its socket, what it says (`request_reader`), and what it is still to
//! be sent.

use super::handshake::ServerHandshake;
use super::proto::StoreRequest;
use super::request_handler::{ClientRejection, ConnectionId};
use super::request_reader::RequestReader;
use super::secret::Secret;
use crate::sys::poll::{Interest, Poller};
use crate::sys::stream::SocketStream;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;

/// An output buffer larger than this is given back once it is empty.
const MAX_IDLE_BUFFER_BYTES: usize = 1 << 10;

/// A client in log lines.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClientName {
    /// One that came over TCP.
    Address(SocketAddr),
    /// A process of this host.
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

/// One client.
#[derive(Debug)]
pub(super) struct ClientConnection {
    stream: SocketStream,
    name: ClientName,
    request_reader: RequestReader,
    /// The client will send nothing more; what it is owed is still sent.
    is_read_closed: bool,
    output: Vec<u8>,
    /// How much of `output` has been sent.
    sent: usize,
    interest: Interest,
}

/// What a look at the socket brought.
pub(super) enum ReadEvent {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The client will send nothing more.
    Closed,
}

impl ClientConnection {
    /// A client that has said nothing yet, watched by `poller` as `id`.
    ///
    /// # Errors
    /// The reason as the system gives it.
    pub(super) fn register(
        stream: SocketStream,
        name: ClientName,
        id: ConnectionId,
        secret: Option<&Secret>,
        poller: &Poller,
    ) -> io::Result<Self> {
        let handshake = ServerHandshake::new(secret).map_err(io::Error::other)?;
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

    /// Who it is.
    pub(super) fn name(&self) -> ClientName {
        self.name
    }

    /// True once it has shown that it is a store client.
    pub(super) fn is_validated(&self) -> bool {
        self.request_reader.is_validated()
    }

    /// True once it has sent all that it will and been sent all that it is owed.
    pub(super) fn is_finished(&self) -> bool {
        self.is_read_closed && self.output.is_empty()
    }

    /// How much memory waits here: for the rest of a request, or for the client to read.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.request_reader.buffered_bytes() + self.unsent_bytes()
    }

    /// How many bytes the client is still to be sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Where answers go.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Reads what has arrived, once.
    ///
    /// # Errors
    /// The connection is broken.
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

    /// The next request in what was received, once it is complete. The introduction is none.
    ///
    /// # Errors
    /// The client is to be dropped.
    pub(super) fn next_request(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<StoreRequest<'static>>, ClientRejection> {
        self.request_reader.next_request(input, &mut self.output)
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// The connection is broken.
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

    /// Has the poller watch for what this client is about.
    ///
    /// # Errors
    /// The reason as the system gives it.
    pub(super) fn update_interest(&mut self, id: ConnectionId, poller: &Poller) -> io::Result<()> {
        let interest = Interest { read: !self.is_read_closed, write: !self.output.is_empty() };
        if interest != self.interest {
            poller.change(self.stream.as_fd(), id, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

fn is_transient(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
