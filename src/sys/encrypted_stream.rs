//! [`EncryptedStream`]: moves the bytes of a socket through the record layer. The callers of
//! [`SocketStream`](super::stream::SocketStream) see plain bytes.
//!
//! **Sends.** A record is sealed before the socket has taken it, and a sealed record cannot be
//! taken back. If the socket takes only a part, the rest stays here until the next send. A send
//! then returns the number of all sealed bytes except the last one. So the caller knows that the
//! send is not complete, and calls again with the remaining bytes. The first of them is sealed
//! already.
//!
//! **Receives.** The socket does not become readable for bytes that were received and not taken
//! yet. Before a caller waits for a socket, it must ask [`EncryptedStream::has_input`].
//!
//! Each direction has a lock. No thread holds both.

use super::record_layer::{
    BATCH_BYTES, MAX_TEXT_BYTES, OVERHEAD_BYTES, OpenerState, RecordCiphers, RecordError,
    RecordOpener, RecordSealer,
};
use crate::base::buffer::{Dst, Src};
use crate::base::sync::lock;
use std::io;
use std::sync::Mutex;

/// The end of a stream, as far as it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The peer has ended the stream in order, or unread bytes precede the end.
    Orderly,
    /// The connection ended, or carried wrong bytes, without an orderly end.
    Failed(RecordError),
}

/// The two directions of an encrypted connection.
#[derive(Debug)]
pub(super) struct EncryptedStream {
    sending: Mutex<SendingSide>,
    receiving: Mutex<RecordOpener>,
}

/// The direction that this side seals.
#[derive(Debug)]
struct SendingSide {
    sealer: RecordSealer,
    /// The last sealed byte, if the caller does not know yet that it was sent.
    withheld: Option<u8>,
}

/// A position in the parts of a send.
struct PartCursor<'a, 'b> {
    parts: &'a [Src<'b>],
    /// The number of bytes of the first part that were taken.
    offset: usize,
}

impl PartCursor<'_, '_> {
    fn remaining(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum::<usize>() - self.offset
    }

    /// Fills `into` with the next bytes. There are enough of them.
    fn take(&mut self, mut into: &mut [u8]) {
        while !into.is_empty()
            && let Some(part) = self.parts.first()
        {
            let count = into.len().min(part.len() - self.offset);
            let (filled, rest) = into.split_at_mut(count);
            Dst::from(filled).copy_from(part.slice(self.offset, count));
            into = rest;
            self.offset += count;
            if self.offset == part.len() {
                self.parts = &self.parts[1..];
                self.offset = 0;
            }
        }
    }
}

impl EncryptedStream {
    /// Creates the stream of a connection whose bytes are encrypted from now on. `received` are the
    /// encrypted bytes that the caller has already read.
    pub(super) fn new(ciphers: RecordCiphers, received: &[u8]) -> Self {
        let mut opener = RecordOpener::new(ciphers.opening);
        opener.add_bytes(received);
        let sending = SendingSide { sealer: RecordSealer::new(ciphers.sealing), withheld: None };
        Self { sending: Mutex::new(sending), receiving: Mutex::new(opener) }
    }

    /// Sends the parts, as [`SocketStream::send_parts`](super::stream::SocketStream::send_parts).
    /// `write` sends bytes on the socket.
    ///
    /// # Errors
    /// The error of `write`, including `WouldBlock`. `InvalidInput` if the caller does not repeat
    /// the bytes of a partial send.
    pub(super) fn send(
        &self,
        parts: &[Src<'_>],
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut sending = lock(&self.sending);
        let mut cursor = PartCursor { parts, offset: 0 };
        let total = cursor.remaining();
        if total == 0 {
            return Ok(0);
        }
        if let Some(expected) = sending.withheld {
            let mut first = [0];
            cursor.take(&mut first);
            if first != [expected] {
                return Err(RecordError::Misuse.into());
            }
            sending.write_sealed(&mut write)?;
            sending.withheld = None;
        }
        loop {
            let left = cursor.remaining();
            if left == 0 {
                sending.sealer.release_buffer();
                return Ok(total);
            }
            let taken = total - left;
            let outcome = match sending.seal_some(&mut cursor) {
                Ok(()) => sending.write_sealed(&mut write),
                Err(error) => Err(error.into()),
            };
            let sealed = total - cursor.remaining();
            match outcome {
                Ok(()) => sending.withheld = None,
                // Report the bytes before the failed records; the next call gets the error again.
                Err(cause) if !is_transient(&cause) => {
                    return if taken > 0 { Ok(taken) } else { Err(cause) };
                }
                Err(cause) => return if sealed > 1 { Ok(sealed - 1) } else { Err(cause) },
            }
        }
    }

    /// Returns the number of sealed bytes that the socket has not taken.
    pub(super) fn unsent(&self) -> usize {
        lock(&self.sending).sealer.unsent().len()
    }

    /// Sends the rest of earlier sends and the record of the orderly end, without waiting. Returns
    /// true once both are sent; further calls have no effect then.
    ///
    /// # Errors
    /// The error of `write`, but not a transient one.
    pub(super) fn send_end(
        &self,
        write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<bool> {
        let mut sending = lock(&self.sending);
        sending.sealer.seal_end().map_err(io::Error::from)?;
        match sending.write_sealed(write) {
            Ok(()) => Ok(true),
            Err(cause) if is_transient(&cause) => Ok(false),
            Err(cause) => Err(cause),
        }
    }

    /// Receives the available bytes, as far as the buffer has room. `read` reads from the socket
    /// without waiting. Zero bytes mean that the peer has ended the stream in order.
    ///
    /// # Errors
    /// The error of `read`, including `WouldBlock`; a [`RecordError`].
    pub(super) fn receive(
        &self,
        into: Dst<'_>,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut opener = lock(&self.receiving);
        let mut got = 0;
        let mut may_have_more = true;
        while got < into.len() {
            if opener.open_next() {
                got += opener.take_text(into.slice(got, into.len() - got));
                continue;
            }
            let outcome = match opener.state() {
                OpenerState::Ended => return Ok(got),
                OpenerState::Failed(error) => Err(error.into()),
                OpenerState::Open if may_have_more => read_records(&mut opener, &mut read),
                OpenerState::Open => break,
            };
            match outcome {
                // A read that does not fill the space has emptied the socket.
                Ok(has_filled) => may_have_more = has_filled || got == 0,
                // The next call gets the error again.
                Err(_) if got > 0 => break,
                Err(cause) => return Err(cause),
            }
        }
        Ok(got)
    }

    /// Returns true if a receive has a result without reading from the socket.
    pub(super) fn has_input(&self) -> bool {
        lock(&self.receiving).is_ready()
    }

    /// Returns true if no byte has arrived that the caller has not taken.
    pub(super) fn is_silent(&self) -> bool {
        let opener = lock(&self.receiving);
        opener.is_empty() && opener.state() == OpenerState::Open
    }

    /// Classifies the end of a connection that the socket reports as ended. Reads at most one
    /// record, which a later receive returns.
    pub(super) fn classify_end(
        &self,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> StreamEnd {
        let mut opener = lock(&self.receiving);
        loop {
            let has_text = opener.open_next();
            match opener.state() {
                OpenerState::Failed(error) => return StreamEnd::Failed(error),
                OpenerState::Ended => return StreamEnd::Orderly,
                OpenerState::Open if has_text => return StreamEnd::Orderly,
                OpenerState::Open => {}
            }
            match read_records(&mut opener, &mut read) {
                Ok(_) => {}
                Err(cause) if is_transient(&cause) => return StreamEnd::Orderly,
                Err(_) => return StreamEnd::Failed(RecordError::Cut),
            }
        }
    }
}

impl SendingSide {
    /// Seals the next bytes, at most as many as one write takes.
    fn seal_some(&mut self, cursor: &mut PartCursor<'_, '_>) -> Result<(), RecordError> {
        loop {
            let room = BATCH_BYTES.saturating_sub(self.sealer.unsent().len() + OVERHEAD_BYTES);
            let len = cursor.remaining().min(MAX_TEXT_BYTES).min(room);
            if len == 0 {
                return Ok(());
            }
            let mut last = 0;
            self.sealer.seal_text(len, |text| {
                cursor.take(text);
                last = text.last().copied().unwrap_or(0);
            })?;
            self.withheld = Some(last);
        }
    }

    /// Sends all sealed bytes.
    fn write_sealed(
        &mut self,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        while !self.sealer.unsent().is_empty() {
            let count = write(self.sealer.unsent())?;
            self.sealer.mark_sent(count);
        }
        Ok(())
    }
}

/// Reads once from the socket. Returns true if the read has filled the space.
fn read_records(
    opener: &mut RecordOpener,
    read: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<bool> {
    let space = opener.space();
    let len = space.len();
    match read(space) {
        Ok(0) => {
            opener.end_input();
            Ok(true)
        }
        Ok(count) => {
            opener.add(count);
            Ok(count == len)
        }
        Err(cause) => {
            opener.release_buffer();
            Err(cause)
        }
    }
}

fn is_transient(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
#[path = "encrypted_stream_tests.rs"]
mod tests;
