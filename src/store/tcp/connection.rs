//! One connection of a client: sends requests and reads answers, never longer than a deadline.
//!
//! After a [`Failure`] the connection is of no use: what the server still sends could no longer be
//! told apart. The one exception is a WAIT, which can be cancelled.

use super::proto::{self, Bytes, Request};
use crate::base::Deadline;
use crate::sys::poll::Interest;
use crate::sys::socket;
use crate::wait::io as io_wait;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::time::Duration;

/// How long the server may take to answer what it answers at once, once the caller's deadline has
/// passed: to cancel a WAIT, and to say which keys are missing.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// The longest value that is taken from a server.
const MAX_ANSWER_BYTES: u64 = 1 << 30;
/// How much is read at once, and so how much memory is taken ahead of the bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// How many questions are sent before their answers are read. Few enough for the answers to fit into
/// the sockets' buffers, so that neither side waits for the other.
const BATCH: usize = 1024;

/// Why a connection failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The deadline passed before the answer had come.
    Timeout,
    /// The server closed the connection, or the network broke it.
    Lost {
        /// What the system says.
        cause: io::Error,
        /// False: not one byte of the request had been sent.
        sent: bool,
    },
    /// The server sent what no store sends.
    Garbled(String),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    output: Vec<u8>,
    nonce: u32,
}

type Outcome<T> = Result<T, Failure>;

impl Connection {
    /// A connection over a fresh stream, not yet introduced.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, output: Vec::new(), nonce: std::process::id() }
    }

    /// Introduces this client. All bytes in one write: torch's server loses track otherwise.
    pub(super) fn introduce(&mut self, deadline: &Deadline) -> Outcome<()> {
        let nonce = self.nonce;
        self.send(&[Request::Validate(proto::MAGIC), Request::Ping(nonce)], deadline)?;
        self.pong(nonce, deadline)
    }

    /// True while the server has neither closed the connection nor sent anything unasked.
    pub(super) fn is_usable(&self) -> bool {
        socket::is_open_and_silent(&self.stream)
    }

    /// Sends a request that has no answer, and with it a PING, whose answer shows that the server has
    /// carried it out.
    pub(super) fn confirmed(&mut self, request: Request<'_>, deadline: &Deadline) -> Outcome<()> {
        self.nonce = self.nonce.wrapping_add(1);
        let nonce = self.nonce;
        self.send(&[request, Request::Ping(nonce)], deadline)?;
        self.pong(nonce, deadline)
    }

    /// Sends requests in one write.
    pub(super) fn send(&mut self, requests: &[Request<'_>], deadline: &Deadline) -> Outcome<()> {
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        requests.iter().for_each(|request| request.encode(&mut output));
        let outcome = self.write_all(&output, deadline);
        output.shrink_to(CHUNK_BYTES);
        self.output = output;
        outcome
    }

    /// The answer to GET and `COMPARE_SET`, and one of `MULTI_GET`'s.
    pub(super) fn bytes(&mut self, deadline: &Deadline) -> Outcome<Vec<u8>> {
        let length = u64::from_le_bytes(self.array(deadline)?);
        let length = usize::try_from(length).ok().filter(|_| length <= MAX_ANSWER_BYTES);
        let Some(length) = length else {
            return Err(Failure::Garbled("a value of absurd length".to_owned()));
        };
        let mut value = Vec::new();
        while value.len() < length {
            let start = value.len();
            value.resize(length.min(start + CHUNK_BYTES), 0);
            self.read_exact(&mut value[start..], deadline)?;
        }
        Ok(value)
    }

    /// The answer to ADD, GETNUMKEYS and `DELETE_KEY`.
    pub(super) fn number(&mut self, deadline: &Deadline) -> Outcome<i64> {
        Ok(i64::from_le_bytes(self.array(deadline)?))
    }

    /// CHECK: whether all keys exist.
    pub(super) fn check(&mut self, keys: &[Bytes<'_>], deadline: &Deadline) -> Outcome<bool> {
        self.send(&[Request::Check(keys.to_vec())], deadline)?;
        self.ready(deadline)
    }

    /// WAIT: true once all keys exist, false when the deadline passes first. Either way the
    /// connection stays usable.
    pub(super) fn wait(&mut self, keys: &[Bytes<'_>], deadline: &Deadline) -> Outcome<bool> {
        self.send(&[Request::Wait(keys.to_vec())], deadline)?;
        match self.byte(deadline) {
            Ok(proto::READY) => Ok(true),
            Ok(other) => Err(unexpected("WAIT", other)),
            Err(Failure::Timeout) => self.cancel_wait(),
            Err(failure) => Err(failure),
        }
    }

    /// `QUEUE_POP`: the first item, if there is one.
    pub(super) fn pop(&mut self, key: &Bytes<'_>, deadline: &Deadline) -> Outcome<Option<Vec<u8>>> {
        self.send(&[Request::QueuePop(key.clone())], deadline)?;
        if self.number(deadline)? == 0 { Ok(None) } else { self.bytes(deadline).map(Some) }
    }

    /// Those of `keys` that do not exist, by position.
    pub(super) fn missing(&mut self, keys: &[Bytes<'_>]) -> Outcome<Vec<usize>> {
        let grace = Deadline::after(GRACE);
        let mut missing = Vec::new();
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            let questions: Vec<_> =
                keys.iter().map(|key| Request::Check(vec![key.clone()])).collect();
            self.send(&questions, &grace)?;
            for position in 0..keys.len() {
                if !self.ready(&grace)? {
                    missing.push(batch * BATCH + position);
                }
            }
        }
        Ok(missing)
    }

    /// Ends the pending WAIT. True: its answer had already been on the way.
    fn cancel_wait(&mut self) -> Outcome<bool> {
        let grace = Deadline::after(GRACE);
        self.send(&[Request::CancelWait], &grace)?;
        match self.byte(&grace)? {
            proto::WAIT_CANCELED => Ok(false),
            proto::READY => match self.byte(&grace)? {
                proto::WAIT_CANCELED => Ok(true),
                other => Err(unexpected("CANCEL_WAIT", other)),
            },
            other => Err(unexpected("CANCEL_WAIT", other)),
        }
    }

    fn ready(&mut self, deadline: &Deadline) -> Outcome<bool> {
        match self.byte(deadline)? {
            proto::READY => Ok(true),
            proto::NOT_READY => Ok(false),
            other => Err(unexpected("CHECK", other)),
        }
    }

    fn pong(&mut self, nonce: u32, deadline: &Deadline) -> Outcome<()> {
        let answer = self.array(deadline)?;
        if answer == nonce.to_le_bytes() {
            return Ok(());
        }
        let (sent, got) = (nonce.to_le_bytes().escape_ascii().to_string(), answer.escape_ascii());
        Err(Failure::Garbled(format!("\"{got}\" in answer to PING \"{sent}\"")))
    }

    fn byte(&mut self, deadline: &Deadline) -> Outcome<u8> {
        let [byte] = self.array(deadline)?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self, deadline: &Deadline) -> Outcome<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes, deadline)?;
        Ok(bytes)
    }

    fn write_all(&mut self, bytes: &[u8], deadline: &Deadline) -> Outcome<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    self.await_ready(Interest::WRITE, sent > 0, deadline)?;
                }
                Err(cause) => return Err(Failure::Lost { cause, sent: sent > 0 }),
            }
        }
        Ok(())
    }

    fn read_exact(&mut self, bytes: &mut [u8], deadline: &Deadline) -> Outcome<()> {
        let mut got = 0;
        while got < bytes.len() {
            match self.stream.read(&mut bytes[got..]) {
                Ok(0) => {
                    let cause = io::Error::other("the store closed it");
                    return Err(Failure::Lost { cause, sent: true });
                }
                Ok(count) => got += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    self.await_ready(Interest::READ, true, deadline)?;
                }
                Err(cause) => return Err(Failure::Lost { cause, sent: true }),
            }
        }
        Ok(())
    }

    fn await_ready(&self, interest: Interest, sent: bool, deadline: &Deadline) -> Outcome<()> {
        match io_wait::ready_within(self.stream.as_fd(), interest, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Timeout),
            Err(cause) => Err(Failure::Lost { cause, sent }),
        }
    }
}

fn unexpected(request: &str, byte: u8) -> Failure {
    Failure::Garbled(format!("byte {byte} in answer to {request}"))
}
