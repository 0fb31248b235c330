//! One connection of a client: sends requests and reads answers, never longer than a deadline.
//!
//! After a [`RequestFailure`] the connection is of no use: what the server still sends could no
//! longer be told apart. The one exception is a WAIT (and a BARRIER, which waits alike), which can
//! be cancelled.

use super::handshake::{AuthFailure, ClientHandshake, MESSAGE_BYTES};
use super::proto::{self, Bytes, StoreRequest};
use super::secret::Secret;
use crate::base::Deadline;
use crate::sys::poll::Interest;
use crate::sys::stream::{self, SocketStream};
use crate::wait::adaptive_spin::AdaptiveSpin;
use crate::wait::io as io_wait;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

/// How long the server may take to answer what it answers at once, once the caller's deadline has
/// passed: to cancel a WAIT, and to say which keys are missing.
pub(super) const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// The longest value that is taken from a server.
const MAX_ANSWER_BYTES: u64 = 1 << 30;
/// How much of a value is read at once, and so how much memory is taken ahead of the bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// How much is read ahead: the answers to many small requests, at the cost of copying them.
const READ_AHEAD_BYTES: usize = 8 << 10;
/// How many questions are sent before their answers are read. Few enough for the answers to fit
/// into the sockets' buffers, so that neither side waits for the other.
const CHECK_BATCH_LEN: usize = 1024;

/// Why a connection failed.
#[derive(Debug)]
pub(super) enum RequestFailure {
    /// The deadline passed before the answer had come.
    Timeout,
    /// The server closed the connection, or the network broke it.
    Lost {
        /// What the system says.
        cause: io::Error,
        /// False: not one byte of the request had been sent.
        was_sent: bool,
    },
    /// The server sent what no store sends.
    Malformed(String),
    /// One of the two sides did not prove that it knows the job's secret.
    AuthFailed(AuthFailure),
    /// The server said, instead of answering the introduction, why it does not want this client.
    Refused(proto::StatusWord),
}

/// One connection.
#[derive(Debug)]
pub(super) struct StoreConnection {
    stream: SocketStream,
    output: Vec<u8>,
    /// What has been read ahead of its being asked for: `input[read_start..read_end]`.
    input: Box<[u8]>,
    read_start: usize,
    read_end: usize,
    nonce: u32,
    read_wait_policy: AdaptiveSpin,
    write_wait_policy: AdaptiveSpin,
    is_unix_socket: bool,
}

type RequestResult<T> = Result<T, RequestFailure>;

impl StoreConnection {
    /// A connection over a fresh stream, not yet introduced. `is_unix_socket`: to a server of
    /// libdist on this host.
    pub(super) fn new(stream: SocketStream, is_unix_socket: bool) -> Self {
        Self {
            stream,
            output: Vec::new(),
            input: vec![0; READ_AHEAD_BYTES].into_boxed_slice(),
            read_start: 0,
            read_end: 0,
            nonce: std::process::id(),
            read_wait_policy: AdaptiveSpin::default(),
            write_wait_policy: AdaptiveSpin::default(),
            is_unix_socket,
        }
    }

    /// The same with a number of one's choice for the first PING.
    #[cfg(any(test, fuzzing))]
    pub(super) fn with_nonce(self, nonce: u32) -> Self {
        Self { nonce, ..self }
    }

    /// True where the server is of libdist and on this host.
    pub(super) fn is_unix_socket(&self) -> bool {
        self.is_unix_socket
    }

    /// True where the server was seen to run on this thread's core.
    pub(super) fn shares_core(&self) -> bool {
        self.read_wait_policy.shares_core()
    }

    #[cfg(test)]
    pub(super) fn assume_shared_core(&mut self) {
        self.read_wait_policy = AdaptiveSpin::on_shared_core();
    }

    /// Introduces this client, and has the server prove that it knows the secret, if there is one.
    /// All bytes that are not an answer in one write: torch's server loses track otherwise.
    pub(super) fn validate(
        &mut self,
        secret: Option<&Secret>,
        deadline: &Deadline,
    ) -> RequestResult<()> {
        let mut hello = Vec::new();
        if let Some(secret) = secret {
            hello.extend(self.authenticate(secret, deadline)?);
        }
        let nonce = self.nonce;
        StoreRequest::Validate(proto::MAGIC).encode(&mut hello);
        StoreRequest::Ping(nonce).encode(&mut hello);
        match self.write_all(&hello, deadline) {
            Ok(()) => self.read_pong(nonce, deadline),
            // The server may have said why before it closed.
            Err(failure @ RequestFailure::Lost { .. }) => {
                let word = self.read_array(deadline).ok().and_then(failure_from_word);
                Err(word.unwrap_or(failure))
            }
            Err(failure) => Err(failure),
        }
    }

    /// The proof that this client knows the secret, once the server has given its own.
    fn authenticate(
        &mut self,
        secret: &Secret,
        deadline: &Deadline,
    ) -> RequestResult<[u8; MESSAGE_BYTES]> {
        let (handshake, challenge) = ClientHandshake::begin(secret).map_err(|error| {
            RequestFailure::Lost { cause: io::Error::other(error), was_sent: false }
        })?;
        self.write_all(&challenge, deadline)?;
        let word = self
            .read_array(deadline)
            .map_err(|_| RequestFailure::AuthFailed(AuthFailure::NoAnswer))?;
        if word == proto::SERVER_FULL {
            return Err(RequestFailure::Refused(word));
        }
        ClientHandshake::check_server_word(word).map_err(RequestFailure::AuthFailed)?;
        handshake.finish(&self.read_array(deadline)?).map_err(RequestFailure::AuthFailed)
    }

    /// True while the server has neither closed the connection nor sent anything unasked.
    pub(super) fn is_usable(&self) -> bool {
        self.read_start == self.read_end && self.stream.is_open_and_silent()
    }

    /// PING: shows that the server has carried out all that was sent before.
    pub(super) fn ping(&mut self, deadline: &Deadline) -> RequestResult<()> {
        self.nonce = self.nonce.wrapping_add(1);
        let nonce = self.nonce;
        self.send(&[StoreRequest::Ping(nonce)], deadline)?;
        self.read_pong(nonce, deadline)
    }

    /// Sends requests in one write.
    pub(super) fn send(
        &mut self,
        requests: &[StoreRequest<'_>],
        deadline: &Deadline,
    ) -> RequestResult<()> {
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        requests.iter().for_each(|request| request.encode(&mut output));
        let outcome = self.write_all(&output, deadline);
        output.shrink_to(CHUNK_BYTES);
        self.output = output;
        outcome
    }

    /// The answer to GET and `COMPARE_SET`, and one of `MULTI_GET`'s.
    pub(super) fn read_bytes(&mut self, deadline: &Deadline) -> RequestResult<Vec<u8>> {
        let length = u64::from_le_bytes(self.read_array(deadline)?);
        let length = usize::try_from(length).ok().filter(|_| length <= MAX_ANSWER_BYTES);
        let Some(length) = length else {
            return Err(RequestFailure::Malformed("a value of absurd length".to_owned()));
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
    pub(super) fn read_i64(&mut self, deadline: &Deadline) -> RequestResult<i64> {
        Ok(i64::from_le_bytes(self.read_array(deadline)?))
    }

    /// The answer to GETNUMKEYS, `DELETE_KEY` and `QUEUE_LEN`, and the beginning of others.
    pub(super) fn read_count(&mut self, deadline: &Deadline) -> RequestResult<i64> {
        match self.read_i64(deadline)? {
            count @ 0.. => Ok(count),
            negative => Err(RequestFailure::Malformed(format!("{negative} as a count"))),
        }
    }

    /// CHECK: whether all keys exist.
    pub(super) fn check(&mut self, keys: &[Bytes<'_>], deadline: &Deadline) -> RequestResult<bool> {
        self.send(&[StoreRequest::Check(keys.to_vec())], deadline)?;
        self.read_ready(deadline)
    }

    /// WAIT: true once all keys exist, false when the deadline passes first. Either way the
    /// connection stays usable.
    pub(super) fn wait(&mut self, keys: &[Bytes<'_>], deadline: &Deadline) -> RequestResult<bool> {
        self.await_answer(StoreRequest::Wait(keys.to_vec()), deadline)
    }

    /// BARRIER: true once all have come, false when the deadline passes first. Either way the
    /// connection stays usable.
    pub(super) fn barrier(
        &mut self,
        key: &Bytes<'_>,
        size: i64,
        deadline: &Deadline,
    ) -> RequestResult<bool> {
        self.await_answer(StoreRequest::Barrier(key.clone(), size), deadline)
    }

    fn await_answer(
        &mut self,
        request: StoreRequest<'_>,
        deadline: &Deadline,
    ) -> RequestResult<bool> {
        // A time-out can name what is missing only if the server has been asked.
        self.send(&[request], &extend_to_grace_period(deadline))?;
        match self.read_byte(deadline) {
            Ok(proto::READY) => Ok(true),
            Ok(other) => Err(unexpected_byte("WAIT", other)),
            Err(RequestFailure::Timeout) => self.cancel_wait(),
            Err(failure) => Err(failure),
        }
    }

    /// GET: the value of a key, if it exists.
    pub(super) fn get(
        &mut self,
        key: &Bytes<'_>,
        deadline: &Deadline,
    ) -> RequestResult<Option<Vec<u8>>> {
        self.send(&[StoreRequest::Get(key.clone())], deadline)?;
        let value = self.read_bytes(deadline)?;
        if !value.is_empty() {
            return Ok(Some(value));
        }
        // Empty, or missing. The key may come at any time, and must not seem to have come with this
        // value: so the value is asked for again, after whether it exists and in the same write.
        self.send(
            &[StoreRequest::Check(vec![key.clone()]), StoreRequest::Get(key.clone())],
            deadline,
        )?;
        let exists = self.read_ready(deadline)?;
        let value = self.read_bytes(deadline)?;
        Ok((exists || !value.is_empty()).then_some(value))
    }

    /// `MULTI_GET`: the values of keys, if all of them exist.
    pub(super) fn multi_get(
        &mut self,
        keys: &[Bytes<'_>],
        deadline: &Deadline,
    ) -> RequestResult<Option<Vec<Vec<u8>>>> {
        self.send(&[StoreRequest::MultiGet(keys.to_vec())], deadline)?;
        let (values, complete) = self.read_values(keys.len(), deadline)?;
        if complete {
            return Ok(Some(values));
        }
        // As for GET.
        let requests = [StoreRequest::Check(keys.to_vec()), StoreRequest::MultiGet(keys.to_vec())];
        self.send(&requests, deadline)?;
        let exists = self.read_ready(deadline)?;
        let (values, complete) = self.read_values(keys.len(), deadline)?;
        Ok((exists || complete).then_some(values))
    }

    /// So many values, and whether none of them is empty.
    fn read_values(
        &mut self,
        count: usize,
        deadline: &Deadline,
    ) -> RequestResult<(Vec<Vec<u8>>, bool)> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.read_bytes(deadline)?);
        }
        let complete = values.iter().all(|value| !value.is_empty());
        Ok((values, complete))
    }

    /// The answer to `LIST_KEYS`.
    pub(super) fn read_list(&mut self, deadline: &Deadline) -> RequestResult<Vec<Vec<u8>>> {
        let count = self.read_count(deadline)?;
        (0..count).map(|_| self.read_bytes(deadline)).collect()
    }

    /// `QUEUE_POP`: the first item, if there is one.
    pub(super) fn pop(
        &mut self,
        key: &Bytes<'_>,
        deadline: &Deadline,
    ) -> RequestResult<Option<Vec<u8>>> {
        self.send(&[StoreRequest::QueuePop(key.clone())], deadline)?;
        if self.read_count(deadline)? == 0 { Ok(None) } else { self.read_bytes(deadline).map(Some) }
    }

    /// Those of `keys` that do not exist, by position.
    pub(super) fn find_missing(&mut self, keys: &[Bytes<'_>]) -> RequestResult<Vec<usize>> {
        let deadline = Deadline::after(GRACE_PERIOD);
        let mut missing = Vec::new();
        for (batch, keys) in keys.chunks(CHECK_BATCH_LEN).enumerate() {
            let questions: Vec<_> =
                keys.iter().map(|key| StoreRequest::Check(vec![key.clone()])).collect();
            self.send(&questions, &deadline)?;
            for position in 0..keys.len() {
                if !self.read_ready(&deadline)? {
                    missing.push(batch * CHECK_BATCH_LEN + position);
                }
            }
        }
        Ok(missing)
    }

    /// Ends the pending WAIT. True: its answer had already been on the way.
    fn cancel_wait(&mut self) -> RequestResult<bool> {
        let deadline = Deadline::after(GRACE_PERIOD);
        self.send(&[StoreRequest::CancelWait], &deadline)?;
        match self.read_byte(&deadline)? {
            proto::WAIT_CANCELED => Ok(false),
            proto::READY => match self.read_byte(&deadline)? {
                proto::WAIT_CANCELED => Ok(true),
                other => Err(unexpected_byte("CANCEL_WAIT", other)),
            },
            other => Err(unexpected_byte("CANCEL_WAIT", other)),
        }
    }

    /// The answer to CHECK.
    pub(super) fn read_ready(&mut self, deadline: &Deadline) -> RequestResult<bool> {
        match self.read_byte(deadline)? {
            proto::READY => Ok(true),
            proto::NOT_READY => Ok(false),
            other => Err(unexpected_byte("CHECK", other)),
        }
    }

    fn read_pong(&mut self, nonce: u32, deadline: &Deadline) -> RequestResult<()> {
        let answer = self.read_array(deadline)?;
        if answer == nonce.to_le_bytes() {
            return Ok(());
        }
        if let Some(refusal) = failure_from_word(answer) {
            return Err(refusal);
        }
        let (sent, received) =
            (nonce.to_le_bytes().escape_ascii().to_string(), answer.escape_ascii());
        Err(RequestFailure::Malformed(format!("\"{received}\" in answer to PING \"{sent}\"")))
    }

    fn read_byte(&mut self, deadline: &Deadline) -> RequestResult<u8> {
        let [byte] = self.read_array(deadline)?;
        Ok(byte)
    }

    fn read_array<const N: usize>(&mut self, deadline: &Deadline) -> RequestResult<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes, deadline)?;
        Ok(bytes)
    }

    fn write_all(&mut self, bytes: &[u8], deadline: &Deadline) -> RequestResult<()> {
        let stream = &self.stream;
        let mut sent = 0;
        while sent < bytes.len() {
            let outcome = match stream.send(&bytes[sent..]) {
                // The server may be about to make room.
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    let retry = || match stream.send(&bytes[sent..]) {
                        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => None,
                        outcome => Some(outcome),
                    };
                    self.write_wait_policy.try_spin(retry).unwrap_or(Err(cause))
                }
                outcome => outcome,
            };
            match outcome {
                Ok(count) => sent += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    match io_wait::ready_within(stream.as_fd(), Interest::WRITE, deadline) {
                        Ok(true) => {}
                        Ok(false) => return Err(RequestFailure::Timeout),
                        Err(cause) => {
                            return Err(RequestFailure::Lost { cause, was_sent: sent > 0 });
                        }
                    }
                }
                Err(cause) => return Err(RequestFailure::Lost { cause, was_sent: sent > 0 }),
            }
        }
        Ok(())
    }

    fn read_exact(&mut self, bytes: &mut [u8], deadline: &Deadline) -> RequestResult<()> {
        let mut received = 0;
        while received < bytes.len() {
            if self.read_start == self.read_end {
                // What is long goes where it belongs without a stop on the way.
                let rest = &mut bytes[received..];
                if rest.len() >= READ_AHEAD_BYTES {
                    received +=
                        receive_some(&self.stream, &mut self.read_wait_policy, rest, deadline)?;
                    continue;
                }
                self.read_ahead(deadline)?;
            }
            let buffered = &self.input[self.read_start..self.read_end];
            let count = buffered.len().min(bytes.len() - received);
            bytes[received..received + count].copy_from_slice(&buffered[..count]);
            received += count;
            self.read_start += count;
        }
        Ok(())
    }

    /// Fills the empty input with what has come, which is at least one byte.
    fn read_ahead(&mut self, deadline: &Deadline) -> RequestResult<()> {
        (self.read_start, self.read_end) = (0, 0);
        self.read_end =
            receive_some(&self.stream, &mut self.read_wait_policy, &mut self.input, deadline)?;
        Ok(())
    }
}

/// At least one byte.
fn receive_some(
    stream: &SocketStream,
    wait_policy: &mut AdaptiveSpin,
    bytes: &mut [u8],
    deadline: &Deadline,
) -> RequestResult<usize> {
    let is_transient = |kind: io::ErrorKind| {
        matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
    };
    let mut outcome = wait_policy.try_spin(|| match stream.receive(bytes) {
        Err(cause) if is_transient(cause.kind()) => None,
        outcome => Some(outcome),
    });
    loop {
        match outcome {
            Some(Ok(0)) => {
                let cause = io::Error::other("the store closed it");
                return Err(RequestFailure::Lost { cause, was_sent: true });
            }
            Some(Ok(count)) => return Ok(count),
            Some(Err(cause)) if !is_transient(cause.kind()) => {
                return Err(RequestFailure::Lost { cause, was_sent: true });
            }
            Some(Err(_)) | None => {}
        }
        // The kernel's own time-out saves a call where the deadline is far; near it, poll is exact.
        outcome = if deadline.remaining() > stream::RECEIVE_TIMEOUT {
            Some(stream.receive_blocking(bytes))
        } else {
            match io_wait::ready_within(stream.as_fd(), Interest::READ, deadline) {
                Ok(true) => Some(stream.receive(bytes)),
                Ok(false) => return Err(RequestFailure::Timeout),
                Err(cause) => return Err(RequestFailure::Lost { cause, was_sent: true }),
            }
        };
    }
}

/// What a server means by a word in the place of an answer to the introduction.
fn failure_from_word(word: proto::StatusWord) -> Option<RequestFailure> {
    if let Some(obstacle) = AuthFailure::from_word(word) {
        return Some(RequestFailure::AuthFailed(obstacle));
    }
    proto::STATUS_WORDS.contains(&word).then_some(RequestFailure::Refused(word))
}

/// Time to finish what has begun: the deadline, but not less than the grace.
pub(super) fn extend_to_grace_period(deadline: &Deadline) -> Deadline {
    Deadline::after(deadline.remaining().max(GRACE_PERIOD))
}

fn unexpected_byte(request: &str, byte: u8) -> RequestFailure {
    RequestFailure::Malformed(format!("byte {byte} in answer to {request}"))
}
