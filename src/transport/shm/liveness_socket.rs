//! The liveness sockets: one Unix socket between each two ranks of a host. A liveness socket shows
//! the death of the peer, and carries wake requests.
//!
//! **Death and departure.** A rank that leaves in order sets its departure flag in the region (the
//! shared memory of the host's ranks). This is a store, which cannot fail. If a rank reads an end
//! of file on a socket and the peer has not set that flag, the peer has died.
//!
//! **Wake requests.** A wake request is one byte, on which the service thread of the peer's process
//! calls the listeners. A rank sends it when it leaves, when it rings the doorbell of a peer that
//! listens (`SharedDomain::notify_listeners`), and when it queries the peer's activity. The region
//! has a word for each direction that says whether a request is pending. While a request is
//! pending, a rank sends no further request. A socket is therefore never full, and many wake
//! requests cost one system call.
//!
//! **Forked children.** If a process forks and the child calls no exec, the child keeps the socket
//! open after the death of the process. Therefore the service thread also watches the peer's
//! process itself, by a pidfd. This requires that the kernel reports the same process id for the
//! peer as the peer has sent.

use super::domain_state::ShmDomainShared;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::sys::pidfd::PidFd;
use crate::sys::poll::Interest;
use crate::sys::{host, process_status, unix};
use crate::transport::SharedDomain as _;
use crate::wait::io;
use crate::wait::service::{DescriptorHandler, WatchAction};
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The handler of the service thread for the liveness socket to one peer.
#[derive(Debug)]
pub(super) struct LivenessSocket {
    shared: Arc<ShmDomainShared>,
    peer: Rank,
}

/// The handler of the service thread for the exit of a peer's process, which the kernel reports.
#[derive(Debug)]
struct ProcessExitHandler {
    socket: Arc<LivenessSocket>,
    process: PidFd,
}

impl LivenessSocket {
    /// Returns the liveness sockets to all other ranks.
    pub(super) fn for_all_peers(shared: &Arc<ShmDomainShared>) -> impl Iterator<Item = Arc<Self>> {
        let others = (0..shared.peers.len()).filter(|&peer| peer != shared.rank);
        others.map(|peer| Arc::new(Self { shared: Arc::clone(shared), peer }))
    }

    fn stream(&self) -> &UnixStream {
        self.shared.stream(self.peer)
    }

    /// Returns a handler for the exit of the peer's process, or `None` if the kernel cannot report
    /// the exit.
    pub(super) fn exit_handler(self: &Arc<Self>) -> Option<Arc<dyn DescriptorHandler>> {
        let process = verified_process(self.stream(), self.shared.peers[self.peer].pid)?;
        Some(Arc::new(ProcessExitHandler { socket: Arc::clone(self), process }))
    }

    /// Reads and handles the pending wake requests of the peer. Returns true if the socket has
    /// ended, so that the peer can send no further request.
    fn handle_input(&self) -> bool {
        let shared = &self.shared;
        let mut bytes = [0; 16];
        loop {
            match unix::receive(self.stream(), &mut bytes) {
                Ok((0, _)) => return true,
                Ok(_) => {
                    // Mark the request as answered before handling it. If the peer has something
                    // new to report after this mark, it sends another request.
                    shared.region.finish_wake_request(self.peer, shared.rank);
                    if shared.region.heartbeat(shared.rank).take_activity_request() {
                        shared.publish_activity();
                    }
                    self.check_departure();
                    shared.listeners.notify_all();
                }
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) => return cause.kind() != Io::WouldBlock,
            }
        }
    }

    /// Returns whether the peer has left in order. If it has, records this and notifies this rank.
    fn check_departure(&self) -> bool {
        let shared = &self.shared;
        if !shared.region.presence(self.peer).has_left() {
            return false;
        }
        if !shared.has_left[self.peer].swap(true, Ordering::AcqRel) {
            shared.region.doorbell(shared.rank).notify();
            shared.listeners.notify_all();
        }
        true
    }

    /// Handles the end of the socket. If the peer has not left in order, it has died, and the
    /// domain fails.
    fn handle_end(&self) {
        let shared = &self.shared;
        if self.check_departure() {
            return;
        }
        let name = &shared.peers[self.peer];
        let doing = shared.region.describe_progress(self.peer);
        let message = format!("{name} died; it {doing}");
        crate::log!(LogLevel::Error, "{message}");
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(name.rank);
        shared.fail(&error.with_fault(RankFault::Died));
    }
}

/// Returns a pidfd of the process at the other end of a connection. Returns `None` if the kernel
/// reports another process id than the peer has sent, or if the peer is in this process.
fn verified_process(stream: &UnixStream, reported_pid: u32) -> Option<PidFd> {
    let (kernel_pid, _) = unix::peer_credentials(stream).ok()?;
    if kernel_pid != reported_pid || reported_pid == host::pid() {
        return None;
    }
    PidFd::open(i32::try_from(reported_pid).ok()?).ok()
}

/// Returns whether the process at the other end of a connection is stopped, according to the
/// kernel.
pub(super) fn is_stopped(stream: &UnixStream, reported_pid: u32) -> bool {
    verified_process(stream, reported_pid).is_some() && process_status::is_stopped(reported_pid)
}

/// The time that a process is given to exit after its sockets have closed.
const PROCESS_EXIT_DELAY: Duration = Duration::from_millis(100);

/// Returns whether a connection ended because the process at its other end exited. Returns false if
/// the kernel cannot report this.
pub(super) fn ended_with_process(stream: &UnixStream, reported_pid: u32) -> bool {
    match verified_process(stream, reported_pid) {
        Some(process) => {
            let limit = Deadline::after(PROCESS_EXIT_DELAY);
            io::ready_within(process.as_fd(), Interest::READ, &limit).unwrap_or(false)
        }
        // The process has already been reaped, or is not visible in this PID namespace.
        None => {
            unix::peer_credentials(stream).is_ok_and(|(seen, _)| seen == reported_pid)
                && process_status::is_gone(reported_pid, None)
        }
    }
}

impl DescriptorHandler for LivenessSocket {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        if !self.handle_input() {
            return WatchAction::Keep;
        }
        self.handle_end();
        WatchAction::Done
    }
}

impl DescriptorHandler for ProcessExitHandler {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        // Handle the requests that the peer sent before its death.
        self.socket.handle_input();
        self.socket.handle_end();
        WatchAction::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::transport::shm::{ShmDomain, ShmJoinConfig, ShmListener, ShmMember};
    use crate::transport::{
        DoorbellListener, HeartbeatConfig, PeerName, RegionGeometry, ReusePolicy,
    };
    use crate::wait::{WaitPolicy, wait_until};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    /// Creates two ranks that are threads.
    fn pair() -> (ShmDomain, ShmDomain) {
        let meetings = [0, 1].map(|_| ShmListener::listen().unwrap());
        let name = |rank| PeerName::new(rank, host::pid(), "here".into());
        let peers: Arc<[PeerName]> = [name(0), name(1)].into();
        let member = |meeting: &ShmListener| ShmMember {
            socket: meeting.name().to_owned(),
            nonce: host::random_nonce().unwrap(),
        };
        let members: Vec<_> = meetings.iter().map(member).collect();
        let group = host::random_nonce().unwrap();
        let geometry =
            RegionGeometry { ranks: 2, slot_bytes: 4096, reuse_policy: ReusePolicy::WhileCached };
        let deadline = Deadline::after_ms(30_000);
        std::thread::scope(|scope| {
            let join = |(me, meeting): (Rank, ShmListener)| {
                let (peers, members, deadline) = (&peers, &members, &deadline);
                let vitals = HeartbeatConfig::default();
                let config = ShmJoinConfig { group, peers, members, me, deadline, vitals };
                scope.spawn(move || {
                    meeting.join(&config, geometry, WaitPolicy::SLEEP_SOON, &|| None)
                })
            };
            let threads = meetings.into_iter().enumerate().map(join).collect::<Vec<_>>();
            let mut domains = threads.into_iter().map(|thread| thread.join().unwrap().unwrap());
            (domains.next().unwrap(), domains.next().unwrap())
        })
    }

    /// A listener that blocks the service thread while the test holds the lock.
    #[derive(Debug, Default)]
    struct Slow(Mutex<()>, AtomicU64);

    impl DoorbellListener for Slow {
        fn on_doorbell(&self) {
            self.1.fetch_add(1, Ordering::Release);
            drop(self.0.lock().unwrap());
        }
    }

    #[test]
    fn peer_leaving_after_many_notifications_is_not_dead() {
        let (leaver, stayer) = pair();
        let slow = Arc::new(Slow::default());
        let listener: Arc<dyn DoorbellListener> = slow.clone();
        stayer.add_listener(Arc::downgrade(&listener));
        let held = slow.0.lock().unwrap();
        // Send more notifications than a socket holds.
        (0..5000).for_each(|_| leaver.notify_listeners(1));
        drop(leaver);
        drop(held);
        let region = stayer.region();
        let over = || (stayer.has_left(0) || stayer.failure().is_some()).then_some(());
        let deadline = Deadline::after_ms(30_000);
        wait_until(region.doorbell(1), WaitPolicy::SLEEP_SOON, &deadline, || None, over).unwrap();
        assert_eq!(stayer.failure(), None);
        assert!(stayer.has_left(0));
    }

    #[test]
    fn every_notification_calls_the_listener() {
        let (notifier, listening) = pair();
        let slow = Arc::new(Slow::default());
        let listener: Arc<dyn DoorbellListener> = slow.clone();
        listening.add_listener(Arc::downgrade(&listener));
        for _ in 0..1000 {
            let before = slow.1.load(Ordering::Acquire);
            notifier.notify_listeners(1);
            let began = std::time::Instant::now();
            while slow.1.load(Ordering::Acquire) == before {
                assert!(began.elapsed().as_secs() < 30, "a notification was lost");
                std::thread::yield_now();
            }
        }
    }
}
