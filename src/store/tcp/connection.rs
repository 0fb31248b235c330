//! One connection of a store client. It sends requests and reads replies. A deadline bounds each
//! call.
//!
//! After a [`RequestFailure`] the connection is unusable: replies carry no request number, so a
//! late reply would be taken for the reply to the next request. WAIT and BARRIER do not fail when
//! the deadline passes, because the client can cancel them.

use super::client_io::{await_ready, receive_some};
use super::handshake::{AuthFailure, ClientHandshake, ClientProof, ServerReply};
use super::proto::{self, Bytes, StoreRequest};
use super::request_failure::{RequestFailure, RequestResult};
use crate::base::Deadline;
use crate::security::{CipherSet, Secret};
use crate::sys::poll::Interest;
use crate::sys::stream::SocketStream;
use crate::wait::spin_history::AdaptiveSpin;
use std::io;
use std::time::Duration;

/// After the caller's deadline has passed, a call may still send requests that the server answers
/// immediately: to cancel a WAIT, or to find out which keys are missing. This is the time limit for
/// their replies.
pub(super) const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// The longest value that the client accepts from a server.
const MAX_ANSWER_BYTES: u64 = 1 << 30;
/// The number of bytes of a value that one read requests. The client allocates memory in steps of
/// this size, so that a server that announces a long value and does not send it costs no memory.
const CHUNK_BYTES: usize = 64 << 10;
/// The size of the read-ahead buffer. One system call can receive the replies to many small
/// requests into this buffer. The price is one copy of each reply.
const READ_AHEAD_BYTES: usize = 8 << 10;
/// The number of CHECK requests that `find_missing` sends before it reads their replies. The
/// replies must fit into the socket buffers. Otherwise the server would wait for the client to
/// read, while the client waits for the server to read.
const CHECK_BATCH_LEN: usize = 1024;

/// One connection to the server.
#[derive(Debug)]
pub(super) struct StoreConnection {
    stream: SocketStream,
    output: Vec<u8>,
    /// The read-ahead buffer. Its unread bytes are `input[read_start..read_end]`.
    input: Box<[u8]>,
    read_start: usize,
    read_end: usize,
    nonce: u32,
    read_wait_policy: AdaptiveSpin,
    write_wait_policy: AdaptiveSpin,
    is_unix_socket: bool,
}

impl StoreConnection {
    /// Creates a connection over a new stream. The caller must call [`Self::validate`] before any
    /// request. `is_unix_socket` tells that the stream is a Unix socket, so the server is a libdist
    /// server on this host.
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

    /// Sets the number of the first PING. The default is the process id.
    #[cfg(any(test, fuzzing))]
    pub(super) fn with_nonce(self, nonce: u32) -> Self {
        Self { nonce, ..self }
    }

    /// Returns true if the stream is a Unix socket, so the server is a libdist server on this host.
    pub(super) fn is_unix_socket(&self) -> bool {
        self.is_unix_socket
    }

    /// Returns true if recent waits showed that the server runs on this thread's CPU core.
    pub(super) fn shares_core(&self) -> bool {
        self.read_wait_policy.shares_core()
    }

    #[cfg(test)]
    pub(super) fn assume_shared_core(&mut self) {
        self.read_wait_policy = AdaptiveSpin::on_shared_core();
    }

    /// Sends VALIDATE and PING, and checks the reply to PING. If there is a secret, the two sides
    /// first authenticate each other, and encrypt the connection if one of them requires it.
    /// VALIDATE and PING go out in one write, because torch's server cannot parse a VALIDATE that
    /// arrives in pieces.
    pub(super) fn validate(
        &mut self,
        secret: Option<&Secret>,
        encrypts: bool,
        deadline: &Deadline,
    ) -> RequestResult<()> {
        let mut hello = Vec::new();
        if let Some(secret) = secret {
            match self.authenticate(secret, encrypts, deadline)? {
                (proof, None) => hello.extend(proof),
                (proof, Some(keys)) => {
                    self.write_all(&proof, deadline)?;
                    let received = &self.input[self.read_start..self.read_end];
                    let encrypted = self.stream.encrypt(keys.record_ciphers(), received);
                    encrypted.map_err(|cause| RequestFailure::Lost { cause, was_sent: true })?;
                    (self.read_start, self.read_end) = (0, 0);
                }
            }
        }
        let nonce = self.nonce;
        StoreRequest::Validate(proto::MAGIC).encode(&mut hello);
        StoreRequest::Ping(nonce).encode(&mut hello);
        match self.write_all(&hello, deadline) {
            Ok(()) => self.read_pong(nonce, deadline),
            // The server may have sent a status word before it closed the connection.
            Err(failure @ RequestFailure::Lost { .. }) => {
                let word = self.read_array(deadline).ok().and_then(RequestFailure::from_word);
                Err(word.unwrap_or(failure))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Checks that the server holds the secret. Returns the message that proves the same of this
    /// client, for the caller to send, and the keys if the connection is encrypted after it.
    fn authenticate(
        &mut self,
        secret: &Secret,
        mut encrypts: bool,
        deadline: &Deadline,
    ) -> RequestResult<ClientProof> {
        let offered = CipherSet::of_this_processor();
        let mut choice = offered;
        loop {
            let (handshake, challenge) =
                ClientHandshake::begin(secret, offered, choice, encrypts).map_err(|error| {
                    RequestFailure::Lost { cause: io::Error::other(error), was_sent: false }
                })?;
            self.write_all(&challenge, deadline)?;
            let word = self
                .read_array(deadline)
                .map_err(|_| RequestFailure::AuthFailed(AuthFailure::NoAnswer))?;
            if word == proto::SERVER_FULL {
                return Err(RequestFailure::Refused(word));
            }
            match ClientHandshake::check_server_word(word).map_err(RequestFailure::AuthFailed)? {
                ServerReply::Answer => {
                    let answer = self.read_array(deadline)?;
                    return handshake.finish(&answer).map_err(RequestFailure::AuthFailed);
                }
                ServerReply::OtherSuite if choice != CipherSet::EVERY_PROCESSOR => {
                    choice = CipherSet::EVERY_PROCESSOR;
                }
                ServerReply::EncryptionRequired if !encrypts => encrypts = true,
                ServerReply::OtherSuite | ServerReply::EncryptionRequired => {
                    return Err(RequestFailure::AuthFailed(AuthFailure::NotAStore(word)));
                }
            }
        }
    }

    /// Returns true if the server has not closed the connection and has sent no bytes without a
    /// request.
    pub(super) fn is_usable(&self) -> bool {
        self.read_start == self.read_end && self.stream.is_open_and_silent()
    }

    /// Sends PING and waits for the reply, which proves that the server has processed all earlier
    /// requests.
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

    /// Reads the reply to GET or `COMPARE_SET`, or one value of the reply to `MULTI_GET`.
    pub(super) fn read_bytes(&mut self, deadline: &Deadline) -> RequestResult<Vec<u8>> {
        let length = u64::from_le_bytes(self.read_array(deadline)?);
        let length = usize::try_from(length).ok().filter(|_| length <= MAX_ANSWER_BYTES);
        let Some(length) = length else {
            return Err(RequestFailure::Malformed(format!(
                "a value longer than {MAX_ANSWER_BYTES} bytes"
            )));
        };
        let mut value = Vec::new();
        while value.len() < length {
            let start = value.len();
            value.resize(length.min(start + CHUNK_BYTES), 0);
            self.read_exact(&mut value[start..], deadline)?;
        }
        Ok(value)
    }

    /// Reads the reply to ADD.
    pub(super) fn read_i64(&mut self, deadline: &Deadline) -> RequestResult<i64> {
        Ok(i64::from_le_bytes(self.read_array(deadline)?))
    }

    /// Reads the reply to GETNUMKEYS, `DELETE_KEY` or `QUEUE_LEN`, or the count at the start of
    /// other replies.
    pub(super) fn read_count(&mut self, deadline: &Deadline) -> RequestResult<i64> {
        match self.read_i64(deadline)? {
            count @ 0.. => Ok(count),
            negative => Err(RequestFailure::Malformed(format!("{negative} as a count"))),
        }
    }

    /// Sends CHECK. Returns true if all keys exist.
    pub(super) fn check(&mut self, keys: &[Bytes<'_>], deadline: &Deadline) -> RequestResult<bool> {
        self.send(&[StoreRequest::Check(keys.to_vec())], deadline)?;
        self.read_ready(deadline)
    }

    /// Sends WAIT. Returns true once all keys exist, or false if the deadline passes before. In
    /// both cases the connection stays usable.
    pub(super) fn wait(&mut self, keys: &[Bytes<'_>], deadline: &Deadline) -> RequestResult<bool> {
        self.await_answer(StoreRequest::Wait(keys.to_vec()), deadline)
    }

    /// Sends BARRIER. Returns true once `size` callers have arrived, or false if the deadline
    /// passes before. In both cases the connection stays usable.
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
        // Send the request even if the deadline has almost passed. The connection must be usable
        // after a timeout, so that the caller can ask for the missing keys.
        self.send(&[request], &extend_to_grace_period(deadline))?;
        match self.read_byte(deadline) {
            Ok(proto::READY) => Ok(true),
            Ok(other) => Err(RequestFailure::unexpected_byte("WAIT", other)),
            Err(RequestFailure::Timeout) => self.cancel_wait(),
            Err(failure) => Err(failure),
        }
    }

    /// Sends GET. Returns the value of the key, or `None` if the key does not exist.
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
        // The reply to GET is the same for an empty value and for a missing key. CHECK
        // distinguishes the two. But if another client stores a value between this GET and a CHECK,
        // the CHECK would report that the key exists, and this function would return the outdated
        // empty value. So send CHECK and a second GET in one write, and use the reply to the second
        // GET.
        self.send(
            &[StoreRequest::Check(vec![key.clone()]), StoreRequest::Get(key.clone())],
            deadline,
        )?;
        let exists = self.read_ready(deadline)?;
        let value = self.read_bytes(deadline)?;
        Ok((exists || !value.is_empty()).then_some(value))
    }

    /// Sends `MULTI_GET`. Returns the values of the keys, or `None` if a key does not exist.
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
        // At least one value is empty, or its key is missing. Send CHECK and a second `MULTI_GET`,
        // as in [`Self::get`].
        let requests = [StoreRequest::Check(keys.to_vec()), StoreRequest::MultiGet(keys.to_vec())];
        self.send(&requests, deadline)?;
        let exists = self.read_ready(deadline)?;
        let (values, complete) = self.read_values(keys.len(), deadline)?;
        Ok((exists || complete).then_some(values))
    }

    /// Reads `count` values. Returns them, and true if none of them is empty.
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

    /// Reads the reply to `LIST_KEYS`.
    pub(super) fn read_list(&mut self, deadline: &Deadline) -> RequestResult<Vec<Vec<u8>>> {
        let count = self.read_count(deadline)?;
        (0..count).map(|_| self.read_bytes(deadline)).collect()
    }

    /// Sends `QUEUE_POP`. Returns the first item, or `None` if the queue is empty.
    pub(super) fn pop(
        &mut self,
        key: &Bytes<'_>,
        deadline: &Deadline,
    ) -> RequestResult<Option<Vec<u8>>> {
        self.send(&[StoreRequest::QueuePop(key.clone())], deadline)?;
        if self.read_count(deadline)? == 0 { Ok(None) } else { self.read_bytes(deadline).map(Some) }
    }

    /// Returns the indices in `keys` of the keys that do not exist.
    pub(super) fn find_missing(&mut self, keys: &[Bytes<'_>]) -> RequestResult<Vec<usize>> {
        let deadline = Deadline::after(GRACE_PERIOD);
        let mut missing = Vec::new();
        for (batch, keys) in keys.chunks(CHECK_BATCH_LEN).enumerate() {
            let requests: Vec<_> =
                keys.iter().map(|key| StoreRequest::Check(vec![key.clone()])).collect();
            self.send(&requests, &deadline)?;
            for position in 0..keys.len() {
                if !self.read_ready(&deadline)? {
                    missing.push(batch * CHECK_BATCH_LEN + position);
                }
            }
        }
        Ok(missing)
    }

    /// Cancels the pending WAIT or BARRIER. Returns true if it completed before the server received
    /// the cancellation: its reply then precedes the reply to `CANCEL_WAIT`.
    fn cancel_wait(&mut self) -> RequestResult<bool> {
        let deadline = Deadline::after(GRACE_PERIOD);
        self.send(&[StoreRequest::CancelWait], &deadline)?;
        match self.read_byte(&deadline)? {
            proto::WAIT_CANCELED => Ok(false),
            proto::READY => match self.read_byte(&deadline)? {
                proto::WAIT_CANCELED => Ok(true),
                other => Err(RequestFailure::unexpected_byte("CANCEL_WAIT", other)),
            },
            other => Err(RequestFailure::unexpected_byte("CANCEL_WAIT", other)),
        }
    }

    /// Reads the reply to CHECK.
    pub(super) fn read_ready(&mut self, deadline: &Deadline) -> RequestResult<bool> {
        match self.read_byte(deadline)? {
            proto::READY => Ok(true),
            proto::NOT_READY => Ok(false),
            other => Err(RequestFailure::unexpected_byte("CHECK", other)),
        }
    }

    fn read_pong(&mut self, nonce: u32, deadline: &Deadline) -> RequestResult<()> {
        let answer = self.read_array(deadline)?;
        if answer == nonce.to_le_bytes() {
            return Ok(());
        }
        if let Some(failure) = RequestFailure::from_word(answer) {
            return Err(failure);
        }
        let (sent, received) =
            (nonce.to_le_bytes().escape_ascii().to_string(), answer.escape_ascii());
        Err(RequestFailure::Malformed(format!("\"{received}\" in reply to PING \"{sent}\"")))
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
                // The socket's send buffer is full. Spin for a short time, because the server may
                // be about to read.
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
                    await_ready(stream, Interest::WRITE, deadline, sent > 0)?;
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
                // Receive a long value directly into its destination, without a copy.
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

    /// Refills the read-ahead buffer, which is empty, with at least one byte.
    fn read_ahead(&mut self, deadline: &Deadline) -> RequestResult<()> {
        (self.read_start, self.read_end) = (0, 0);
        self.read_end =
            receive_some(&self.stream, &mut self.read_wait_policy, &mut self.input, deadline)?;
        Ok(())
    }
}

/// Returns a deadline that leaves at least [`GRACE_PERIOD`] from now.
pub(super) fn extend_to_grace_period(deadline: &Deadline) -> Deadline {
    Deadline::after(deadline.remaining().max(GRACE_PERIOD))
}
