//! The control connections between the node leaders (the first rank of each node). They carry
//! [`ControlFrame`]s: reports of departures and of the failure of the group, queries with their
//! answers, and heartbeats. The leaders connect when the group is created. The service thread reads
//! and handles the frames.
//!
//! A leader that leaves sends a goodbye frame. If a connection ends without a goodbye, the leader
//! has died: the system closes the sockets of a process that dies, and sends the end of a
//! connection again until the other host has received it. There are two cases in which no end
//! arrives: the host of the leader has failed as a whole, or the leader is stopped. The
//! [`heartbeat_monitor`](super::heartbeat_monitor) detects both cases. In addition,
//! `TCP_USER_TIMEOUT` ends a connection on which sent data is not acknowledged. This timeout equals
//! the heartbeat limit or, if the heartbeat is off, [`DEFAULT_USER_TIMEOUT`].

use super::control_frame::{ControlFrame, FrameBuffer, MAX_BYTES};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::poll::Interest;
use crate::sys::socket;
use crate::sys::stream::{SocketStream, is_transient};
use crate::transport::HeartbeatTiming;
use crate::wait::service::{self, DescriptorHandler, DescriptorWatch, WatchAction};
use std::fmt::Debug;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The `TCP_USER_TIMEOUT` of a control connection if the heartbeat is off.
const DEFAULT_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Receives the events of control connections on the service thread.
pub(super) trait ControlHandler: Send + Sync + Debug {
    /// Returns the number of ranks of the group. A frame with a rank that is not below this number
    /// is malformed.
    fn rank_count(&self) -> usize;

    /// Handles a frame of any kind except a heartbeat or a goodbye.
    fn on_frame(&self, frame: ControlFrame, connection: &ControlConnection);

    /// Handles the end of the connection to `leader` without a goodbye, or a malformed frame from
    /// that leader.
    fn on_lost(&self, leader: Rank, reason: &str);

    /// Handles bytes on an encrypted connection to `leader` that this leader did not send.
    fn on_tampered(&self, leader: Rank, cause: &std::io::Error);
}

/// The reason why no further frame arrives on a connection.
enum ControlLoss {
    /// The connection ended, or carried a malformed frame.
    Ended(String),
    /// A third party changes the connection.
    Tampered(std::io::Error),
}

/// The control connection to the leader of another node.
#[derive(Debug)]
pub(super) struct ControlConnection {
    handler: Weak<dyn ControlHandler>,
    has_heartbeat: bool,
    /// The rank of the other leader.
    leader: Rank,
    stream: Arc<SocketStream>,
    frame_buffer: Mutex<FrameBuffer>,
    /// Frames that did not fit into the socket buffer. The mesh sends at most one departure per
    /// rank of a node and one failure, so the buffer is bounded.
    send_buffer: Mutex<Vec<u8>>,
    watch: Mutex<Option<DescriptorWatch>>,
    /// The number of successful reads. If it changes, the other leader is alive.
    receive_count: AtomicU64,
    /// Whether no further frame is expected, because the other leader has left or its death was
    /// reported.
    is_finished: AtomicBool,
}

impl ControlConnection {
    /// Takes over an established connection to another leader. `timing` is the timing of the
    /// heartbeats that both ends send, or `None` if heartbeats are off.
    pub(super) fn open(
        handler: Weak<dyn ControlHandler>,
        leader: Rank,
        stream: Arc<SocketStream>,
        timing: Option<HeartbeatTiming>,
    ) -> Arc<Self> {
        let user_timeout = timing.map_or(DEFAULT_USER_TIMEOUT, HeartbeatTiming::limit);
        if let Err(cause) = socket::set_user_timeout(stream.as_ref(), user_timeout) {
            crate::log!(
                LogLevel::Warn,
                "cannot set the TCP user timeout, so the loss of a host may go undetected: {cause}"
            );
        }
        Arc::new(Self {
            handler,
            has_heartbeat: timing.is_some(),
            leader,
            stream,
            frame_buffer: Mutex::default(),
            send_buffer: Mutex::default(),
            watch: Mutex::default(),
            receive_count: AtomicU64::new(0),
            is_finished: AtomicBool::new(false),
        })
    }

    /// Starts to read frames from the connection.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn start_reading(self: &Arc<Self>) -> crate::base::error::Result<()> {
        let mut watch = lock(&self.watch);
        *watch = Some(service::watch(self.clone())?);
        drop(watch);
        // Send the first heartbeat immediately, because the other leader monitors this connection
        // only after it has received something.
        if self.has_heartbeat {
            self.send_heartbeat();
        }
        Ok(())
    }

    /// Sends a heartbeat.
    pub(super) fn send_heartbeat(&self) {
        self.try_send(&ControlFrame::Heartbeat);
    }

    /// Returns the number of successful reads, which the heartbeat monitor uses as the heartbeat
    /// counter of the other leader. Returns `None` before the first read, and after the connection
    /// has finished.
    pub(super) fn heartbeat_count(&self) -> Option<u64> {
        let signs = self.receive_count.load(Ordering::Acquire);
        Some(signs).filter(|&signs| signs != 0 && !self.is_finished.load(Ordering::Acquire))
    }

    /// Sends a frame that may be lost. Does nothing if earlier frames still wait for room in the
    /// socket buffer.
    pub(super) fn try_send(&self, frame: &ControlFrame) {
        let mut outbox = lock(&self.send_buffer);
        if outbox.is_empty() {
            frame.encode(&mut outbox);
            drop(outbox);
            self.flush();
        }
    }

    /// Sends a frame. If the socket buffer is full, the service thread sends the rest later.
    pub(super) fn send(&self, frame: &ControlFrame) {
        frame.encode(&mut lock(&self.send_buffer));
        self.flush();
    }

    /// Sends the departure of this leader (`rank`) and a goodbye, and closes the connection.
    pub(super) fn close(&self, rank: Rank) {
        self.send(&ControlFrame::Left(rank));
        self.send(&ControlFrame::Goodbye);
        let watch = lock(&self.watch).take();
        drop(watch);
        self.stream.shutdown_write();
    }

    /// Closes without a goodbye, as the system does for a process that dies.
    #[cfg(test)]
    pub(super) fn close_abruptly(&self) {
        let watch = lock(&self.watch).take();
        drop(watch);
        self.stream.shutdown_write();
    }

    fn flush(&self) {
        let mut outbox = lock(&self.send_buffer);
        while !outbox.is_empty() {
            match self.stream.send(&outbox) {
                Ok(sent) => drop(outbox.drain(..sent)),
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) if cause.kind() == Io::WouldBlock => break,
                // The next read fails too, and reports the error.
                Err(_) => outbox.clear(),
            }
        }
        let interest = Interest { read: true, write: !outbox.is_empty() };
        if let Some(watch) = lock(&self.watch).as_ref() {
            watch.set_interest(interest);
        }
    }

    /// Reads and handles all frames that have arrived. Returns `Done` after a goodbye.
    ///
    /// # Errors
    /// The reason why no further frame arrives.
    fn read_frames(&self, handler: &dyn ControlHandler) -> Result<WatchAction, ControlLoss> {
        let mut chunk = [0; MAX_BYTES];
        loop {
            match self.stream.receive(&mut chunk) {
                Ok(0) => {
                    let reason = "its connection ended without a goodbye message".to_owned();
                    return Err(ControlLoss::Ended(reason));
                }
                Ok(got) => {
                    self.receive_count.fetch_add(1, Ordering::Release);
                    let handled = self.handle_frames(handler, &chunk[..got]);
                    if handled.map_err(ControlLoss::Ended)? == WatchAction::Done {
                        return Ok(WatchAction::Done);
                    }
                }
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) if is_transient(&cause) => return Ok(WatchAction::Keep),
                Err(cause) if cause.kind() == Io::InvalidData => {
                    return Err(ControlLoss::Tampered(cause));
                }
                Err(cause) => return Err(ControlLoss::Ended(cause.to_string())),
            }
        }
    }

    fn handle_frames(
        &self,
        handler: &dyn ControlHandler,
        bytes: &[u8],
    ) -> Result<WatchAction, String> {
        let mut frame_buffer = std::mem::take(&mut *lock(&self.frame_buffer));
        frame_buffer.push_bytes(bytes);
        while let Some(frame) = frame_buffer
            .next_frame(handler.rank_count())
            .map_err(|what| format!("it sent {what}"))?
        {
            match frame {
                ControlFrame::Goodbye => return Ok(WatchAction::Done),
                ControlFrame::Heartbeat => {}
                frame => handler.on_frame(frame, self),
            }
        }
        *lock(&self.frame_buffer) = frame_buffer;
        Ok(WatchAction::Keep)
    }
}

impl DescriptorHandler for ControlConnection {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        let Some(handler) = self.handler.upgrade() else { return WatchAction::Done };
        match self.read_frames(handler.as_ref()) {
            Ok(WatchAction::Keep) => WatchAction::Keep,
            Ok(WatchAction::Done) => {
                self.is_finished.store(true, Ordering::Release);
                WatchAction::Done
            }
            Err(loss) => {
                self.is_finished.store(true, Ordering::Release);
                match loss {
                    ControlLoss::Ended(reason) => handler.on_lost(self.leader, &reason),
                    ControlLoss::Tampered(cause) => handler.on_tampered(self.leader, &cause),
                }
                WatchAction::Done
            }
        }
    }

    fn on_writable(&self) -> WatchAction {
        self.flush();
        WatchAction::Keep
    }
}
