//! [`NeighbourLink`]: the connection to one neighbour, a process of the same host.
//!
//! A frame is sent by one system call, which does not wait. If the socket is full, the frame goes
//! into a queue, and the service thread sends the queue as soon as there is room. The queue is
//! bounded by the senders: a rank has at most one wake request under way to each peer of a group.

use super::frame::{FRAME_BYTES, NeighbourFrame};
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::ids::Nonce;
use crate::base::sync::lock;
use crate::sys::fork_descriptors::ForkClosed;
use crate::sys::pidfd::PidFd;
use crate::sys::poll::{self, Interest};
use crate::sys::{host, process_status, unix};
use crate::wait::io;
use crate::wait::service::DescriptorWatch;
use std::collections::VecDeque;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The time that a process is given to exit after its sockets have closed.
const PROCESS_EXIT_DELAY: Duration = Duration::from_millis(100);

/// The link to one neighbour.
#[derive(Debug)]
pub(in crate::transport) struct NeighbourLink {
    /// Dropped before `stream`, so that the list never names a closed descriptor.
    _fork_closed: ForkClosed,
    stream: Arc<UnixStream>,
    /// The name of the neighbour's registry.
    process: Nonce,
    /// The id of the neighbour's process according to the kernel.
    pid: u32,
    outbox: Mutex<LinkOutbox>,
    inbox: Mutex<PartialFrame>,
}

/// The frames that the socket had no room for.
#[derive(Debug, Default)]
struct LinkOutbox {
    frames: VecDeque<QueuedFrame>,
    watch: Option<DescriptorWatch>,
}

#[derive(Debug)]
struct QueuedFrame {
    bytes: [u8; FRAME_BYTES],
    sent: usize,
    descriptor: Option<OwnedFd>,
}

/// The received part of the next frame.
#[derive(Debug, Default)]
struct PartialFrame {
    bytes: [u8; FRAME_BYTES],
    filled: usize,
    descriptor: Option<OwnedFd>,
}

/// The outcome of a read from a link.
#[derive(Debug)]
pub(super) enum LinkInput {
    /// A frame, and the descriptor that came with it.
    Frame(NeighbourFrame, Option<OwnedFd>),
    /// No complete frame is there.
    Nothing,
    /// The neighbour has closed the link, its process has ended, or the link is unusable.
    Ended,
}

impl NeighbourLink {
    /// Wraps a connected socket, whose other user has been checked.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn new(stream: Arc<UnixStream>, process: Nonce) -> Result<Self> {
        let (pid, _) = unix::peer_credentials(&stream)?;
        let fork_closed = ForkClosed::list(stream.as_fd());
        let (outbox, inbox) = (Mutex::default(), Mutex::default());
        Ok(Self { _fork_closed: fork_closed, stream, process, pid, outbox, inbox })
    }

    /// Returns the name of the neighbour's registry.
    pub(in crate::transport) fn process(&self) -> Nonce {
        self.process
    }

    /// Returns the id of the process at the other end, as the kernel reports it.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sets the service thread's watch of the link.
    pub(super) fn set_watch(&self, watch: DescriptorWatch) {
        let mut outbox = lock(&self.outbox);
        if !outbox.frames.is_empty() {
            watch.set_interest(Interest { read: true, write: true });
        }
        outbox.watch = Some(watch);
    }

    /// Ends the service thread's watch.
    pub(super) fn stop_watching(&self) {
        let watch = lock(&self.outbox).watch.take();
        // Drop the watch outside the lock, because dropping a watch takes another lock.
        drop(watch);
    }

    /// Returns true if the link has ended, even if the service thread has not handled the end.
    pub(super) fn has_ended(&self) -> bool {
        poll::has_hung_up(self.stream.as_fd())
    }

    /// Ends the link on both sides, also if only one direction of it has ended.
    pub(super) fn shut_down(&self) {
        // Fails only if the link has ended already.
        drop(self.stream.shutdown(std::net::Shutdown::Both));
    }

    /// Sends a frame, or queues it if the socket is full.
    ///
    /// # Errors
    /// The error of the system. The link may have ended; its handler reports that.
    pub(in crate::transport) fn send(
        &self,
        frame: &NeighbourFrame,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<()> {
        let bytes = frame.encode();
        let mut outbox = lock(&self.outbox);
        let mut sent = 0;
        if outbox.frames.is_empty() {
            match unix::send(&self.stream, &bytes, descriptor) {
                Ok(FRAME_BYTES) => return Ok(()),
                Ok(some) => sent = some,
                Err(cause) if matches!(cause.kind(), Io::WouldBlock | Io::Interrupted) => {}
                Err(cause) => return Err(cause),
            }
        }
        // The first byte of a frame carries the descriptor.
        let descriptor = descriptor.filter(|_| sent == 0);
        let descriptor = descriptor.map(|fd| fd.try_clone_to_owned()).transpose()?;
        outbox.frames.push_back(QueuedFrame { bytes, sent, descriptor });
        outbox.set_interest();
        Ok(())
    }

    /// Sends queued frames; called when the socket has room.
    pub(super) fn send_queued(&self) {
        let mut outbox = lock(&self.outbox);
        while let Some(frame) = outbox.frames.front_mut() {
            let descriptor = frame.descriptor.as_ref().map(AsFd::as_fd);
            match unix::send(&self.stream, &frame.bytes[frame.sent..], descriptor) {
                Ok(some) => {
                    frame.sent += some;
                    frame.descriptor = None;
                    if frame.sent == FRAME_BYTES {
                        outbox.frames.pop_front();
                    }
                }
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) if cause.kind() == Io::WouldBlock => break,
                // The link has ended, which the next read reports.
                Err(_) => outbox.frames.clear(),
            }
        }
        outbox.set_interest();
    }

    /// Reads the next frame. Only the service thread calls this function.
    pub(super) fn read(&self) -> LinkInput {
        let mut inbox = lock(&self.inbox);
        let PartialFrame { bytes, filled, descriptor } = &mut *inbox;
        while *filled < FRAME_BYTES {
            match unix::receive(&self.stream, &mut bytes[*filled..]) {
                Ok((0, _)) => return LinkInput::Ended,
                Ok((got, received)) => {
                    *filled += got;
                    *descriptor = descriptor.take().or(received);
                }
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) if cause.kind() == Io::WouldBlock => return LinkInput::Nothing,
                Err(_) => return LinkInput::Ended,
            }
        }
        *filled = 0;
        match NeighbourFrame::decode(bytes) {
            Some(frame) => LinkInput::Frame(frame, descriptor.take()),
            None => LinkInput::Ended,
        }
    }

    /// Returns a descriptor of the neighbour's process. Returns `None` if the kernel reports
    /// another process id than the peer has sent.
    fn verified_process(&self, reported_pid: u32) -> Option<PidFd> {
        if self.pid != reported_pid || reported_pid == host::pid() {
            return None;
        }
        PidFd::open(i32::try_from(reported_pid).ok()?).ok()
    }

    /// Returns whether the neighbour's process is stopped, according to the kernel.
    pub(in crate::transport) fn is_stopped(&self, reported_pid: u32) -> bool {
        self.verified_process(reported_pid).is_some() && process_status::is_stopped(reported_pid)
    }

    /// Returns whether the link ended because the neighbour's process exited. Returns false if the
    /// kernel cannot report this. Waits up to [`PROCESS_EXIT_DELAY`] for the exit.
    pub(in crate::transport) fn ended_with_process(&self, reported_pid: u32) -> bool {
        match self.verified_process(reported_pid) {
            Some(process) => {
                let limit = Deadline::after(PROCESS_EXIT_DELAY);
                io::ready_within(process.as_fd(), Interest::READ, &limit).unwrap_or(false)
            }
            // The process has already been reaped, or is not visible in this PID namespace.
            None => self.pid == reported_pid && process_status::is_gone(reported_pid, None),
        }
    }
}

impl AsFd for NeighbourLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl LinkOutbox {
    fn set_interest(&self) {
        if let Some(watch) = &self.watch {
            watch.set_interest(Interest { read: true, write: !self.frames.is_empty() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::FrameKind;
    use super::*;
    use std::fs::File;

    const GROUP: Nonce = Nonce([5; 16]);

    fn pair() -> (NeighbourLink, NeighbourLink) {
        let (a, b) = unix::pair().unwrap();
        let link = |stream| NeighbourLink::new(Arc::new(stream), Nonce::default()).unwrap();
        (link(a), link(b))
    }

    fn frame(from: usize) -> NeighbourFrame {
        NeighbourFrame { kind: FrameKind::Wake, group: GROUP, from, to: 0 }
    }

    #[test]
    fn frames_beyond_a_full_socket_arrive_in_order() {
        let (sender, receiver) = pair();
        let file = File::open("/proc/self/comm").unwrap();
        let count = 5000;
        for number in 0..count {
            let descriptor = (number % 100 == 0).then(|| file.as_fd());
            // The kernel limits the descriptors that are under way.
            sender.send(&frame(number), descriptor).unwrap();
        }
        assert!(!lock(&sender.outbox).frames.is_empty(), "the socket was never full");
        let mut got = 0;
        loop {
            match receiver.read() {
                LinkInput::Frame(received, descriptor) => {
                    assert_eq!(received, frame(got));
                    assert_eq!(descriptor.is_some(), got % 100 == 0, "frame {got}");
                    got += 1;
                }
                LinkInput::Nothing if got == count => break,
                LinkInput::Nothing => sender.send_queued(),
                LinkInput::Ended => panic!("the link ended"),
            }
        }
        drop(sender);
        assert!(matches!(receiver.read(), LinkInput::Ended));
        assert!(receiver.has_ended());
    }
}
