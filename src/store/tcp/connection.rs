//! One connection of a client: sends requests and reads answers, never longer than a deadline.
//!
//! After a [`Failure`] the connection is of no use: what the server still sends could no longer be
//! told apart. The one exception is a WAIT (and a BARRIER, which waits alike), which can be
//! cancelled.

use super::handshake::{ClientHandshake, MESSAGE_BYTES, Obstacle};
use super::proto::{self, Bytes, Request};
use super::secret::Secret;
use crate::base::Deadline;
use crate::sys::poll::Interest;
use crate::sys::stream::{self, Stream};
use crate::wait::io as io_wait;
use crate::wait::patience::Patience;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

/// How long the server may take to answer what it answers at once, once the caller's deadline has
/// passed: to cancel a WAIT, and to say which keys are missing.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// The longest value that is taken from a server.
const MAX_ANSWER_BYTES: u64 = 1 << 30;
/// How much of a value is read at once, and so how much memory is taken ahead of the bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// How much is read ahead: the answers to many small requests, at the cost of copying them.
const READ_AHEAD: usize = 8 << 10;
/// How many questions are sent before their answers are read. Few enough for the answers to fit
/// into the sockets' buffers, so that neither side waits for the other.
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
    /// One of the two sides did not prove that it knows the job's secret.
    Unproven(Obstacle),
    /// The server said, instead of answering the introduction, why it does not want this client.
    Refused(proto::Word),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    output: Vec<u8>,
    /// What has been read ahead of its being asked for: `input[taken..filled]`.
    input: Box<[u8]>,
    taken: usize,
    filled: usize,
    nonce: u32,
    patience: Patience,
    write_patience: Patience,
    shortcut: bool,
}

type Outcome<T> = Result<T, Failure>;

impl Connection {
    /// A connection over a fresh stream, not yet introduced. `shortcut`: to a server of libdist on
    /// this host.
    pub(super) fn new(stream: Stream, shortcut: bool) -> Self {
        Self {
            stream,
            output: Vec::new(),
            input: vec![0; READ_AHEAD].into_boxed_slice(),
            taken: 0,
            filled: 0,
            nonce: std::process::id(),
            patience: Patience::default(),
            write_patience: Patience::default(),
            shortcut,
        }
    }

    /// The same with a number of one's choice for the first PING.
    #[cfg(any(test, fuzzing))]
    pub(super) fn with_nonce(self, nonce: u32) -> Self {
        Self { nonce, ..self }
    }

    /// True where the server is of libdist and on this host.
    pub(super) fn is_shortcut(&self) -> bool {
        self.shortcut
    }

    /// True where the server was seen to run on this thread's core.
    pub(super) fn shares_core(&self) -> bool {
        self.patience.shares_core()
    }

    #[cfg(test)]
    pub(super) fn assume_shared_core(&mut self) {
        self.patience = Patience::on_shared_core();
    }

    /// Introduces this client, and has the server prove that it knows the secret, if there is one.
    /// All bytes that are not an answer in one write: torch's server loses track otherwise.
    pub(super) fn introduce(
        &mut self,
        secret: Option<&Secret>,
        deadline: &Deadline,
    ) -> Outcome<()> {
        let mut hello = Vec::new();
        if let Some(secret) = secret {
            hello.extend(self.prove(secret, deadline)?);
        }
        let nonce = self.nonce;
        Request::Validate(proto::MAGIC).encode(&mut hello);
        Request::Ping(nonce).encode(&mut hello);
        match self.write_all(&hello, deadline) {
            Ok(()) => self.pong(nonce, deadline),
            // The server may have said why before it closed.
            Err(failure @ Failure::Lost { .. }) => {
                let word = self.array(deadline).ok().and_then(refusal);
                Err(word.unwrap_or(failure))
            }
            Err(failure) => Err(failure),
        }
    }

    /// The proof that this client knows the secret, once the server has given its own.
    fn prove(&mut self, secret: &Secret, deadline: &Deadline) -> Outcome<[u8; MESSAGE_BYTES]> {
        let (handshake, challenge) = ClientHandshake::begin(secret)
            .map_err(|error| Failure::Lost { cause: io::Error::other(error), sent: false })?;
        self.write_all(&challenge, deadline)?;
        let word = self.array(deadline).map_err(|_| Failure::Unproven(Obstacle::NoAnswer))?;
        if word == proto::FULL {
            return Err(Failure::Refused(word));
        }
        ClientHandshake::greet(word).map_err(Failure::Unproven)?;
        handshake.finish(&self.array(deadline)?).map_err(Failure::Unproven)
    }

    /// True while the server has neither closed the connection nor sent anything unasked.
    pub(super) fn is_usable(&self) -> bool {
        self.taken == self.filled && self.stream.is_open_and_silent()
    }

    /// PING: shows that the server has carried out all that was sent before.
    pub(super) fn ping(&mut self, deadline: &Deadline) -> Outcome<()> {
        self.nonce = self.nonce.wrapping_add(1);
        let nonce = self.nonce;
        self.send(&[Request::Ping(nonce)], deadline)?;
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

    /// The answer to ADD.
    pub(super) fn number(&mut self, deadline: &Deadline) -> Outcome<i64> {
        Ok(i64::from_le_bytes(self.array(deadline)?))
    }

    /// The answer to GETNUMKEYS, `DELETE_KEY` and `QUEUE_LEN`, and the beginning of others.
    pub(super) fn count(&mut self, deadline: &Deadline) -> Outcome<i64> {
        match self.number(deadline)? {
            count @ 0.. => Ok(count),
            negative => Err(Failure::Garbled(format!("{negative} as a count"))),
        }
    }

    /// CHECK: whether all keys exist.
    pub(super) fn check(&mut self, keys: &[Bytes<'_>], deadline: &Deadline) -> Outcome<bool> {
        self.send(&[Request::Check(keys.to_vec())], deadline)?;
        self.ready(deadline)
    }

    /// WAIT: true once all keys exist, false when the deadline passes first. Either way the
    /// connection stays usable.
    pub(super) fn wait(&mut self, keys: &[Bytes<'_>], deadline: &Deadline) -> Outcome<bool> {
        self.await_answer(Request::Wait(keys.to_vec()), deadline)
    }

    /// BARRIER: true once all have come, false when the deadline passes first. Either way the
    /// connection stays usable.
    pub(super) fn barrier(
        &mut self,
        key: &Bytes<'_>,
        size: i64,
        deadline: &Deadline,
    ) -> Outcome<bool> {
        self.await_answer(Request::Barrier(key.clone(), size), deadline)
    }

    fn await_answer(&mut self, request: Request<'_>, deadline: &Deadline) -> Outcome<bool> {
        // A time-out can name what is missing only if the server has been asked.
        self.send(&[request], &at_least_grace(deadline))?;
        match self.byte(deadline) {
            Ok(proto::READY) => Ok(true),
            Ok(other) => Err(unexpected("WAIT", other)),
            Err(Failure::Timeout) => self.cancel_wait(),
            Err(failure) => Err(failure),
        }
    }

    /// GET: the value of a key, if it exists.
    pub(super) fn get(&mut self, key: &Bytes<'_>, deadline: &Deadline) -> Outcome<Option<Vec<u8>>> {
        self.send(&[Request::Get(key.clone())], deadline)?;
        let value = self.bytes(deadline)?;
        if !value.is_empty() {
            return Ok(Some(value));
        }
        // Empty, or missing. The key may come at any time, and must not seem to have come with this
        // value: so the value is asked for again, after whether it exists and in the same write.
        self.send(&[Request::Check(vec![key.clone()]), Request::Get(key.clone())], deadline)?;
        let there = self.ready(deadline)?;
        let value = self.bytes(deadline)?;
        Ok((there || !value.is_empty()).then_some(value))
    }

    /// `MULTI_GET`: the values of keys, if all of them exist.
    pub(super) fn multi_get(
        &mut self,
        keys: &[Bytes<'_>],
        deadline: &Deadline,
    ) -> Outcome<Option<Vec<Vec<u8>>>> {
        self.send(&[Request::MultiGet(keys.to_vec())], deadline)?;
        let (values, complete) = self.values(keys.len(), deadline)?;
        if complete {
            return Ok(Some(values));
        }
        // As for GET.
        let requests = [Request::Check(keys.to_vec()), Request::MultiGet(keys.to_vec())];
        self.send(&requests, deadline)?;
        let there = self.ready(deadline)?;
        let (values, complete) = self.values(keys.len(), deadline)?;
        Ok((there || complete).then_some(values))
    }

    /// So many values, and whether none of them is empty.
    fn values(&mut self, count: usize, deadline: &Deadline) -> Outcome<(Vec<Vec<u8>>, bool)> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.bytes(deadline)?);
        }
        let complete = values.iter().all(|value| !value.is_empty());
        Ok((values, complete))
    }

    /// The answer to `LIST_KEYS`.
    pub(super) fn list(&mut self, deadline: &Deadline) -> Outcome<Vec<Vec<u8>>> {
        let count = self.count(deadline)?;
        (0..count).map(|_| self.bytes(deadline)).collect()
    }

    /// `QUEUE_POP`: the first item, if there is one.
    pub(super) fn pop(&mut self, key: &Bytes<'_>, deadline: &Deadline) -> Outcome<Option<Vec<u8>>> {
        self.send(&[Request::QueuePop(key.clone())], deadline)?;
        if self.count(deadline)? == 0 { Ok(None) } else { self.bytes(deadline).map(Some) }
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

    /// The answer to CHECK.
    pub(super) fn ready(&mut self, deadline: &Deadline) -> Outcome<bool> {
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
        if let Some(refusal) = refusal(answer) {
            return Err(refusal);
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
        let stream = &self.stream;
        let mut sent = 0;
        while sent < bytes.len() {
            let outcome = match stream.send(&bytes[sent..]) {
                // The server may be about to make room.
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    let again = || match stream.send(&bytes[sent..]) {
                        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => None,
                        outcome => Some(outcome),
                    };
                    self.write_patience.look(again).unwrap_or(Err(cause))
                }
                outcome => outcome,
            };
            match outcome {
                Ok(count) => sent += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    match io_wait::ready_within(stream.as_fd(), Interest::WRITE, deadline) {
                        Ok(true) => {}
                        Ok(false) => return Err(Failure::Timeout),
                        Err(cause) => return Err(Failure::Lost { cause, sent: sent > 0 }),
                    }
                }
                Err(cause) => return Err(Failure::Lost { cause, sent: sent > 0 }),
            }
        }
        Ok(())
    }

    fn read_exact(&mut self, bytes: &mut [u8], deadline: &Deadline) -> Outcome<()> {
        let mut got = 0;
        while got < bytes.len() {
            if self.taken == self.filled {
                // What is long goes where it belongs without a stop on the way.
                let rest = &mut bytes[got..];
                if rest.len() >= READ_AHEAD {
                    got += receive(&self.stream, &mut self.patience, rest, deadline)?;
                    continue;
                }
                self.read_ahead(deadline)?;
            }
            let there = &self.input[self.taken..self.filled];
            let count = there.len().min(bytes.len() - got);
            bytes[got..got + count].copy_from_slice(&there[..count]);
            got += count;
            self.taken += count;
        }
        Ok(())
    }

    /// Fills the empty input with what has come, which is at least one byte.
    fn read_ahead(&mut self, deadline: &Deadline) -> Outcome<()> {
        (self.taken, self.filled) = (0, 0);
        self.filled = receive(&self.stream, &mut self.patience, &mut self.input, deadline)?;
        Ok(())
    }
}

/// At least one byte.
fn receive(
    stream: &Stream,
    patience: &mut Patience,
    bytes: &mut [u8],
    deadline: &Deadline,
) -> Outcome<usize> {
    let is_transient = |kind: io::ErrorKind| {
        matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
    };
    let mut outcome = patience.look(|| match stream.receive(bytes) {
        Err(cause) if is_transient(cause.kind()) => None,
        outcome => Some(outcome),
    });
    loop {
        match outcome {
            Some(Ok(0)) => {
                let cause = io::Error::other("the store closed it");
                return Err(Failure::Lost { cause, sent: true });
            }
            Some(Ok(count)) => return Ok(count),
            Some(Err(cause)) if !is_transient(cause.kind()) => {
                return Err(Failure::Lost { cause, sent: true });
            }
            Some(Err(_)) | None => {}
        }
        // The kernel's own time-out saves a call where the deadline is far; near it, poll is exact.
        outcome = if deadline.left() > stream::PATIENCE {
            Some(stream.receive_patiently(bytes))
        } else {
            match io_wait::ready_within(stream.as_fd(), Interest::READ, deadline) {
                Ok(true) => Some(stream.receive(bytes)),
                Ok(false) => return Err(Failure::Timeout),
                Err(cause) => return Err(Failure::Lost { cause, sent: true }),
            }
        };
    }
}

/// What a server means by a word in the place of an answer to the introduction.
fn refusal(word: proto::Word) -> Option<Failure> {
    if let Some(obstacle) = Obstacle::from_word(word) {
        return Some(Failure::Unproven(obstacle));
    }
    proto::WORDS.contains(&word).then_some(Failure::Refused(word))
}

/// Time to finish what has begun: the deadline, but not less than the grace.
pub(super) fn at_least_grace(deadline: &Deadline) -> Deadline {
    Deadline::after(deadline.left().max(GRACE))
}

fn unexpected(request: &str, byte: u8) -> Failure {
    Failure::Garbled(format!("byte {byte} in answer to {request}"))
}
