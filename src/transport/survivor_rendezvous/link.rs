//! [`SurvivorLink`]: a connection between two ranks whose group has failed. It carries frames in
//! both directions; each frame is a little-endian `u32` length followed by that many bytes.
//!
//! A receiver rejects a frame whose length is above the limit. This module does not depend on the
//! content of the frames or on the transport (Unix socket or TCP).

use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::sys::poll::Interest;
use crate::sys::stream::SocketStream;
use crate::wait::io;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The size of the length field before each frame.
const HEADER_BYTES: usize = 4;

/// The size of the buffer for one read.
const READ_CHUNK_BYTES: usize = 16 << 10;

/// One end of a connection between two ranks. Dropping the link closes the connection after the
/// bytes that were sent.
#[derive(Debug)]
pub struct SurvivorLink {
    stream: Arc<SocketStream>,
    /// Received bytes that [`SurvivorLink::poll`] has not returned yet.
    received: Vec<u8>,
    max_frame_len: usize,
}

/// Returns the frame with its length field before it.
pub(super) fn encode_frame(frame: &[u8]) -> Vec<u8> {
    let len = u32::try_from(frame.len()).unwrap_or(u32::MAX).to_le_bytes();
    [&len, frame].concat()
}

impl SurvivorLink {
    /// Wraps an established connection. A received frame that is longer than `max_frame_len` is an
    /// error.
    pub(super) fn new(stream: Arc<SocketStream>, max_frame_len: usize) -> Self {
        Self { stream, received: Vec::new(), max_frame_len }
    }

    /// Returns the next frame if all its bytes have arrived.
    ///
    /// # Errors
    /// `Connection` if the peer closed the connection, if the connection broke, or if the frame is
    /// too long.
    pub fn poll(&mut self) -> Result<Option<Vec<u8>>> {
        let mut chunk = [0; READ_CHUNK_BYTES];
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            match self.stream.receive(&mut chunk) {
                Ok(0) => {
                    let message = "the peer closed the connection";
                    return Err(Error::new(ErrorKind::Connection, message));
                }
                Ok(got) => self.received.extend_from_slice(&chunk[..got]),
                Err(cause) if cause.kind() == Io::WouldBlock => return Ok(None),
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) => return Err(Error::connection("the connection broke", cause)),
            }
        }
    }

    /// Removes the first complete frame from the received bytes.
    fn take_frame(&mut self) -> Result<Option<Vec<u8>>> {
        let Some((head, rest)) = self.received.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let len = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if len > self.max_frame_len {
            let message = format!(
                "the peer announces {len} bytes; the limit is {} bytes",
                self.max_frame_len
            );
            return Err(Error::new(ErrorKind::Connection, message));
        }
        let Some(frame) = rest.get(..len).map(<[u8]>::to_vec) else { return Ok(None) };
        self.received.drain(..HEADER_BYTES + len);
        Ok(Some(frame))
    }

    /// Sends a frame. Waits for room in the socket buffer until the deadline.
    ///
    /// # Errors
    /// `Connection` if the connection broke; `Timeout` if the peer does not read.
    pub fn send(&self, frame: &[u8], deadline: &Deadline) -> Result<()> {
        let bytes = encode_frame(frame);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.stream.send(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(cause) if cause.kind() == Io::WouldBlock => {
                    let ready = io::ready_within(self.stream.as_fd(), Interest::WRITE, deadline);
                    if !ready.map_err(|cause| Error::system("poll", cause))? {
                        let message = "the peer does not read from the connection";
                        return Err(Error::new(ErrorKind::Timeout, message));
                    }
                }
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) => return Err(Error::connection("the connection broke", cause)),
            }
        }
        Ok(())
    }
}

impl AsFd for SurvivorLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::unix;
    use crate::wait::io::wait_for_any_readable;

    fn pair(longest: usize) -> (SurvivorLink, SurvivorLink) {
        let (a, b) = unix::pair().unwrap();
        let link = |stream| {
            SurvivorLink::new(Arc::new(SocketStream::from_nonblocking_unix(stream)), longest)
        };
        (link(a), link(b))
    }

    #[test]
    fn frames_arrive_whole_and_in_order_until_the_end() {
        let (local, mut remote) = pair(1 << 20);
        let deadline = Deadline::after_ms(30_000);
        assert_eq!(remote.poll().unwrap(), None);
        let frames: Vec<Vec<u8>> = [0, 1, 5, 100_000].map(|len| vec![7; len]).into();
        let sent = frames.clone();
        let sender = std::thread::spawn(move || {
            sent.iter().for_each(|frame| local.send(frame, &deadline).unwrap());
        });
        let mut got = Vec::new();
        while got.len() < frames.len() {
            wait_for_any_readable([remote.as_fd()], &deadline).unwrap();
            while let Ok(Some(frame)) = remote.poll() {
                got.push(frame);
            }
        }
        sender.join().unwrap();
        assert_eq!(got, frames);
        assert_eq!(remote.poll().unwrap_err().kind(), ErrorKind::Connection);
    }

    #[test]
    fn oversized_frame_is_refused_from_its_header() {
        let (local, mut remote) = pair(10);
        local.stream.send(&11_u32.to_le_bytes()).unwrap();
        let error = remote.poll().unwrap_err();
        assert!(error.message().contains("announces 11 bytes"), "{error}");
    }

    #[test]
    fn send_times_out_when_peer_does_not_read() {
        let (local, _far) = pair(1 << 30);
        let error = local.send(&vec![0; 16 << 20], &Deadline::after_ms(20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }
}
