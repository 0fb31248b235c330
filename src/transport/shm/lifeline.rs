//! One socket to each other rank of the host. A rank that leaves in order says so in the region,
//! where that cannot be refused; the end of file without it is a death. On the socket a rank is
//! only knocked for: when another one leaves, when it listens (`SharedDomain::knock`), and when it
//! is asked what it does. There is one knock at a time in each direction, which the region notes
//! too, so that a socket is never full and many knocks cost one system call.
//!
//! A process that forked without exec leaves its end open in the child, so the death of the process
//! itself is watched too, where the kernel shows us the same process id that the peer has told.

use super::{Shared, heart};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Fault};
use crate::base::ids::Rank;
use crate::base::log::Level;
use crate::sys::pidfd::PidFd;
use crate::sys::poll::Interest;
use crate::sys::{host, presence, unix};
use crate::transport::SharedDomain as _;
use crate::wait::io;
use crate::wait::service::{Next, Watched};
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const KNOCK: u8 = b'K';

/// The connection to one peer, as the service thread watches it.
#[derive(Debug)]
pub(super) struct Lifeline {
    shared: Arc<Shared>,
    peer: Rank,
}

/// The death of a peer's process, as the kernel reports it.
#[derive(Debug)]
struct Death {
    lifeline: Arc<Lifeline>,
    process: PidFd,
}

impl Lifeline {
    /// Those to all other ranks.
    pub(super) fn of_all(shared: &Arc<Shared>) -> impl Iterator<Item = Arc<Self>> {
        let others = (0..shared.peers.len()).filter(|&peer| peer != shared.rank);
        others.map(|peer| Arc::new(Self { shared: Arc::clone(shared), peer }))
    }

    fn stream(&self) -> &UnixStream {
        self.shared.stream(self.peer)
    }

    /// Something to watch that ends with the peer's process, where that is possible.
    pub(super) fn watch_process(self: &Arc<Self>) -> Option<Arc<dyn Watched>> {
        let process = process_of(self.stream(), self.shared.peers[self.peer].pid)?;
        Some(Arc::new(Death { lifeline: Arc::clone(self), process }))
    }

    /// Reads what the peer has said so far; true once nothing more can come.
    fn drain(&self) -> bool {
        let shared = &self.shared;
        let mut bytes = [0; 16];
        loop {
            match unix::receive(self.stream(), &mut bytes) {
                Ok((0, _)) => return true,
                Ok(_) => {
                    // First: whoever knocks after this knocks again.
                    shared.region.answer_knock(self.peer, shared.rank);
                    if shared.region.pulse(shared.rank).was_asked() {
                        heart::answer(shared);
                    }
                    self.look_for_leave();
                    shared.listeners.call();
                }
                Err(cause) if cause.kind() == Io::Interrupted => {}
                Err(cause) => return cause.kind() != Io::WouldBlock,
            }
        }
    }

    /// Takes note if the peer has left in order; true if it has.
    fn look_for_leave(&self) -> bool {
        let shared = &self.shared;
        if !shared.region.has_left(self.peer) {
            return false;
        }
        if !shared.left[self.peer].swap(true, Ordering::AcqRel) {
            shared.region.bell(shared.rank).ring();
            shared.listeners.call();
        }
        true
    }

    /// The peer can say nothing more: it has left, or it has died.
    fn ended(&self) {
        let shared = &self.shared;
        if self.look_for_leave() {
            return;
        }
        let name = &shared.peers[self.peer];
        let doing = shared.region.doing(self.peer);
        let message = format!("{name} died; it {doing}");
        crate::log!(Level::Error, "{message}");
        let error = Error::new(ErrorKind::PeerFailed, message).with_culprit(name.rank);
        shared.fail(&error.with_fault(Fault::Died));
    }
}

/// The process at the other end of a connection, where the kernel shows us the same id that it has
/// told.
fn process_of(stream: &UnixStream, told: u32) -> Option<PidFd> {
    let (seen, _) = unix::peer_credentials(stream).ok()?;
    if seen != told || told == host::pid() {
        return None;
    }
    PidFd::open(i32::try_from(told).ok()?).ok()
}

/// Whether the kernel reports that the process at the other end of a connection is stopped.
pub(super) fn is_stopped(stream: &UnixStream, told: u32) -> bool {
    process_of(stream, told).is_some() && presence::is_stopped(told)
}

/// How long after its sockets a process itself ends.
const ENDING: Duration = Duration::from_millis(100);

/// Whether a connection ended since the process at its other end did, as far as the kernel tells.
pub(super) fn ended_with_process(stream: &UnixStream, told: u32) -> bool {
    match process_of(stream, told) {
        Some(process) => {
            let limit = Deadline::after(ENDING);
            io::ready_within(process.as_fd(), Interest::READ, &limit).unwrap_or(false)
        }
        // It has been waited for already, or cannot be seen.
        None => {
            unix::peer_credentials(stream).is_ok_and(|(seen, _)| seen == told)
                && presence::is_gone(told, None)
        }
    }
}

/// Tells the other ranks that this one leaves in order.
pub(super) fn say_goodbye(shared: &Shared) {
    if shared.region.has_left(shared.rank) {
        return;
    }
    shared.region.mark_left(shared.rank);
    (0..shared.peers.len())
        .filter(|&peer| peer != shared.rank)
        .for_each(|peer| knock(shared, peer));
}

/// Calls the listeners of a rank, in its process.
pub(super) fn knock(shared: &Shared, rank: Rank) {
    if rank == shared.rank {
        shared.listeners.call();
    } else if shared.region.begin_knock(shared.rank, rank) {
        // A peer that is gone does not need it, and there is room for the one knock that waits.
        drop(unix::send(shared.stream(rank), &[KNOCK], None));
    }
}

impl Watched for Lifeline {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }

    fn on_readable(&self) -> Next {
        if !self.drain() {
            return Next::Keep;
        }
        self.ended();
        Next::Done
    }
}

impl Watched for Death {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    fn on_readable(&self) -> Next {
        // What it said before it died counts.
        self.lifeline.drain();
        self.lifeline.ended();
        Next::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::deadline::Deadline;
    use crate::transport::shm::{Domain, Meeting, Member, Party};
    use crate::transport::{Geometry, Listener, PeerName, Reuse, Vitals};
    use crate::wait::{Pace, until};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    /// Two ranks that are threads.
    fn pair() -> (Domain, Domain) {
        let meetings = [0, 1].map(|_| Meeting::open().unwrap());
        let name = |rank| PeerName { rank, pid: host::pid(), host: "here".into() };
        let peers: Arc<[PeerName]> = [name(0), name(1)].into();
        let member = |meeting: &Meeting| Member {
            socket: meeting.name().to_owned(),
            nonce: host::random_nonce().unwrap(),
        };
        let members: Vec<_> = meetings.iter().map(member).collect();
        let group = host::random_nonce().unwrap();
        let geometry = Geometry { ranks: 2, slot_bytes: 4096, reuse: Reuse::Soon };
        let deadline = Deadline::after_ms(30_000);
        std::thread::scope(|scope| {
            let join = |(me, meeting): (Rank, Meeting)| {
                let (peers, members, deadline) = (&peers, &members, &deadline);
                let vitals = Vitals::default();
                let party = Party { group, peers, members, me, deadline, vitals };
                scope.spawn(move || meeting.join(&party, geometry, Pace::PATIENT, &|| None))
            };
            let threads = meetings.into_iter().enumerate().map(join).collect::<Vec<_>>();
            let mut domains = threads.into_iter().map(|thread| thread.join().unwrap().unwrap());
            (domains.next().unwrap(), domains.next().unwrap())
        })
    }

    /// Holds the service thread up while somebody has the lock.
    #[derive(Debug, Default)]
    struct Slow(Mutex<()>, AtomicU64);

    impl Listener for Slow {
        fn on_knock(&self) {
            self.1.fetch_add(1, Ordering::Release);
            drop(self.0.lock().unwrap());
        }
    }

    #[test]
    fn who_leaves_after_many_knocks_has_not_died() {
        let (leaver, stayer) = pair();
        let slow = Arc::new(Slow::default());
        let listener: Arc<dyn Listener> = slow.clone();
        stayer.add_listener(Arc::downgrade(&listener));
        let held = slow.0.lock().unwrap();
        // More than a socket holds.
        (0..5000).for_each(|_| leaver.knock(1));
        drop(leaver);
        drop(held);
        let region = stayer.region();
        let over = || (stayer.has_left(0) || stayer.failure().is_some()).then_some(());
        let deadline = Deadline::after_ms(30_000);
        until(region.bell(1), Pace::PATIENT, &deadline, || None, over).unwrap();
        assert_eq!(stayer.failure(), None);
        assert!(stayer.has_left(0));
    }

    #[test]
    fn every_knock_is_followed_by_a_call() {
        let (knocker, listening) = pair();
        let slow = Arc::new(Slow::default());
        let listener: Arc<dyn Listener> = slow.clone();
        listening.add_listener(Arc::downgrade(&listener));
        for _ in 0..1000 {
            let before = slow.1.load(Ordering::Acquire);
            knocker.knock(1);
            let began = std::time::Instant::now();
            while slow.1.load(Ordering::Acquire) == before {
                assert!(began.elapsed().as_secs() < 30, "a knock is lost");
                std::thread::yield_now();
            }
        }
    }
}
