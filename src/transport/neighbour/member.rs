//! [`NeighbourMember`]: one rank of this process in one group.
//!
//! A member registers before its rank publishes the address of the process, so that it misses no
//! frame and no end of a neighbour's process. It collects both until the rank's domain takes over
//! ([`NeighbourMember::hand_over`]), and then passes them to the domain.

use super::frame::{FrameKind, NeighbourFrame, ProcessAddress, SurvivorHello};
use super::link::NeighbourLink;
use super::registry::{AwaitedLink, FrameReceiver, NeighbourRegistry};
use super::survivors::SurvivorQueue;
use crate::base::deadline::Deadline;
use crate::base::error::Result;
use crate::base::ids::{GroupId, Nonce, Rank, WorldSize};
use crate::base::sync::lock;
use crate::sys::eventfd::EventFd;
use crate::sys::process_status;
use crate::sys::stream::SocketStream;
use crate::wait::doorbell::Doorbell;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// Takes the events of a member after the setup. All functions are called on the service thread.
pub(in crate::transport) trait NeighbourHandler: Send + Sync {
    /// Called when a rank of a process (the name of its registry) has sent a wake request.
    fn on_wake(&self, process: Nonce, from: Rank);

    /// Called when the link to a process has ended.
    fn on_process_end(&self, process: Nonce);
}

crate::base::trait_object_debug::impl_debug_of_objects!(NeighbourHandler);

/// The way to the process of a peer.
#[derive(Clone, Debug)]
pub(in crate::transport) enum PeerRoute {
    /// The peer is a thread of this process.
    SameProcess,
    Link(Arc<NeighbourLink>),
}

impl PeerRoute {
    /// Returns true if the link to the process of the peer has ended.
    pub(in crate::transport) fn has_ended(&self) -> bool {
        match self {
            Self::SameProcess => false,
            Self::Link(link) => link.has_ended(),
        }
    }

    /// Returns the link, if the peer is in another process.
    pub(in crate::transport) fn link(&self) -> Option<&NeighbourLink> {
        match self {
            Self::SameProcess => None,
            Self::Link(link) => Some(link),
        }
    }
}

/// One rank of this process in one group. Dropping the member ends the registration.
#[derive(Debug)]
pub struct NeighbourMember {
    registry: Arc<NeighbourRegistry>,
    group: GroupId,
    rank: Rank,
    size: WorldSize,
    state: Mutex<MemberState>,
    /// Notified when the setup state changes.
    setup_changed: Doorbell,
    survivors: SurvivorQueue,
}

#[derive(Debug)]
enum MemberState {
    /// The rank has not joined its domain.
    Setup(Box<MemberInbox>),
    /// The domain takes all events.
    Joined(Weak<dyn NeighbourHandler>),
}

/// The events before the domain takes over. Each sender is recorded with the name of the registry
/// from which its frame came. The number of entries is at most the number of ranks of the group.
#[derive(Debug, Default)]
struct MemberInbox {
    segments: BTreeMap<Rank, (Nonce, Option<OwnedFd>)>,
    mapped: BTreeMap<Rank, Nonce>,
    failed: BTreeMap<Rank, Nonce>,
    wakes: BTreeMap<Rank, Nonce>,
    /// The rank for whose frames the joining thread waits.
    awaited: Option<Rank>,
}

/// A peer during the setup.
#[derive(Clone, Debug)]
pub(in crate::transport) struct SetupPeer {
    /// The name of the registry of the peer's process.
    pub(in crate::transport) process: Nonce,
    pub(in crate::transport) rank: Rank,
    pub(in crate::transport) route: PeerRoute,
}

/// The reason why a peer does not complete the setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum SetupLoss {
    /// The link to the process of the peer has ended.
    ProcessEnded,
    /// The peer does not join the group.
    JoinFailed,
}

/// What a process knows about the end of a neighbour's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum ProcessEnd {
    /// The kernel reports that the process has ended.
    Proven,
    /// The kernel does not show the process, which is in another PID namespace, and the link to it
    /// has ended.
    LinkEnded,
    /// The process lives, or nothing is known.
    Unproven,
}

impl NeighbourMember {
    /// Registers a rank of a group with the registry of this process.
    ///
    /// # Errors
    /// `System`; `Internal` if the rank is registered.
    pub fn register(group: GroupId, rank: Rank, size: WorldSize) -> Result<Arc<Self>> {
        Self::register_with(NeighbourRegistry::of_this_process()?, group, rank, size)
    }

    /// Registers a rank with this registry.
    pub(in crate::transport) fn register_with(
        registry: Arc<NeighbourRegistry>,
        group: GroupId,
        rank: Rank,
        size: WorldSize,
    ) -> Result<Arc<Self>> {
        let member = Arc::new(Self {
            registry,
            group,
            rank,
            size,
            state: Mutex::new(MemberState::Setup(Box::default())),
            setup_changed: Doorbell::default(),
            survivors: SurvivorQueue::default(),
        });
        let receiver: Weak<dyn FrameReceiver> = Arc::<Self>::downgrade(&member) as _;
        member.registry.register((group, rank), receiver)?;
        Ok(member)
    }

    /// Returns the name of the socket of this process, which the rank publishes.
    pub fn socket_name(&self) -> String {
        ProcessAddress::socket_name(self.registry.inner.name)
    }

    /// Returns whether a registry is the one of this member.
    pub(in crate::transport) fn is_own_process(&self, process: Nonce) -> bool {
        self.registry.inner.name == process
    }

    /// Returns true if this process makes the link to a process, and not the other one.
    pub(in crate::transport) fn connects_to(&self, process: Nonce) -> bool {
        self.registry.connects_to(process)
    }

    /// Returns the link to a process, and connects to it if there is none.
    ///
    /// # Errors
    /// `Connection` if no process listens there; `Timeout`, `Auth`, `System`.
    pub(in crate::transport) fn connect(
        &self,
        process: Nonce,
        deadline: &Deadline,
    ) -> Result<Arc<NeighbourLink>> {
        self.registry.connect(process, deadline)
    }

    /// Returns the link to a process, if it is up.
    pub(in crate::transport) fn find_link(&self, process: Nonce) -> Option<Arc<NeighbourLink>> {
        self.registry.find_link(process)
    }

    /// Makes changes of the link to a process notify the doorbell until the result is dropped.
    pub(in crate::transport) fn await_link(&self, process: Nonce) -> AwaitedLink<'_> {
        self.registry.await_link(process)
    }

    /// Returns the process id at the other end of a link that has ended.
    pub(in crate::transport) fn ended_pid(&self, process: Nonce) -> Option<u32> {
        self.registry.ended_pid(process)
    }

    /// Returns what this process knows about the end of a neighbour's process, whose rank has
    /// published `reported_pid`.
    pub(in crate::transport) fn process_end(
        &self,
        process: Nonce,
        reported_pid: u32,
    ) -> ProcessEnd {
        match self.registry.process_of_link(process) {
            Some((pid, _)) if pid != 0 && pid == reported_pid => {
                match process_status::has_ended(pid) {
                    true => ProcessEnd::Proven,
                    false => ProcessEnd::Unproven,
                }
            }
            Some((_, true)) => ProcessEnd::LinkEnded,
            _ => ProcessEnd::Unproven,
        }
    }

    /// Returns the doorbell that is notified when an awaited link is made or ends.
    pub(in crate::transport) fn links_changed(&self) -> &Doorbell {
        &self.registry.inner.links_changed
    }

    /// Makes frames of a rank notify the doorbell during the setup. Frames of other ranks, except
    /// [`FrameKind::JoinFailed`], do not wake the waiting thread.
    pub(in crate::transport) fn await_frames_of(&self, rank: Rank) {
        self.with_inbox(|inbox| inbox.awaited = Some(rank));
    }

    /// Returns the doorbell that is notified when an awaited frame or an end arrives during the
    /// setup.
    pub(in crate::transport) fn setup_changed(&self) -> &Doorbell {
        &self.setup_changed
    }

    /// Sends a frame to a peer. A send to a process that has ended fails or has no effect.
    ///
    /// # Errors
    /// The error of the system.
    pub(in crate::transport) fn send(
        &self,
        route: &PeerRoute,
        kind: FrameKind,
        to: Rank,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<()> {
        let frame = NeighbourFrame { kind, group: self.group, from: self.rank, to };
        match route {
            PeerRoute::Link(link) => link.send(&frame, descriptor),
            PeerRoute::SameProcess => {
                let copy = descriptor.map(|fd| fd.try_clone_to_owned()).transpose()?;
                self.registry.deliver_locally(frame, copy);
                Ok(())
            }
        }
    }

    /// Returns the segment that a peer has sent, if it has arrived. The inner option is `None` if
    /// this process could not receive the descriptor.
    pub(in crate::transport) fn take_segment(&self, peer: &SetupPeer) -> Option<Option<OwnedFd>> {
        self.with_inbox(|inbox| match inbox.segments.remove(&peer.rank) {
            Some((process, descriptor)) if process == peer.process => Some(descriptor),
            _ => None,
        })?
    }

    /// Returns whether a peer has mapped the segment.
    pub(in crate::transport) fn has_mapped(&self, peer: &SetupPeer) -> bool {
        let has_mapped =
            |inbox: &mut MemberInbox| inbox.mapped.get(&peer.rank) == Some(&peer.process);
        self.with_inbox(has_mapped).unwrap_or(false)
    }

    /// Returns why a peer does not complete the setup, if this is known.
    pub(in crate::transport) fn setup_loss(&self, peer: &SetupPeer) -> Option<SetupLoss> {
        let has_failed =
            |inbox: &mut MemberInbox| inbox.failed.get(&peer.rank) == Some(&peer.process);
        if self.with_inbox(has_failed).unwrap_or(false) {
            return Some(SetupLoss::JoinFailed);
        }
        peer.route.has_ended().then_some(SetupLoss::ProcessEnded)
    }

    fn with_inbox<T>(&self, action: impl FnOnce(&mut MemberInbox) -> T) -> Option<T> {
        match &mut *lock(&self.state) {
            MemberState::Setup(inbox) => Some(action(inbox)),
            MemberState::Joined(_) => None,
        }
    }

    /// Passes all further events to the domain, and the wake requests that have arrived before. The
    /// domain must then check which links have ended before.
    pub(in crate::transport) fn hand_over(&self, handler: &Arc<impl NeighbourHandler + 'static>) {
        let weak: Weak<dyn NeighbourHandler> = Arc::<_>::downgrade(handler) as _;
        let before = std::mem::replace(&mut *lock(&self.state), MemberState::Joined(weak));
        if let MemberState::Setup(inbox) = before {
            inbox.wakes.iter().for_each(|(&from, &process)| handler.on_wake(process, from));
        }
    }

    /// Begins a session of survivors. Returns the flag that is raised when a connection arrives.
    ///
    /// # Errors
    /// `System`.
    pub fn open_survivor_session(&self) -> Result<Arc<EventFd>> {
        self.survivors.open_session()
    }

    /// Ends a session of survivors. Connections wait for the next session.
    pub fn close_survivor_session(&self) {
        self.survivors.close_session();
    }

    /// Removes and returns the connections of survivors that have arrived.
    pub fn take_survivors(&self) -> Vec<(SurvivorHello, Arc<SocketStream>)> {
        self.survivors.take_arrivals()
    }

    /// Answers all connections of survivors with these bytes until the next session.
    pub fn set_survivor_answer(&self, answer: Vec<u8>) {
        self.survivors.set_answer(answer);
    }
}

impl FrameReceiver for NeighbourMember {
    fn on_frame(&self, process: Nonce, frame: &NeighbourFrame, descriptor: Option<OwnedFd>) {
        let from = frame.from;
        if from >= self.size {
            return;
        }
        let mut state = lock(&self.state);
        let inbox = match &mut *state {
            MemberState::Setup(inbox) => inbox,
            MemberState::Joined(handler) => {
                let handler = handler.upgrade().filter(|_| frame.kind == FrameKind::Wake);
                drop(state);
                handler.iter().for_each(|it| it.on_wake(process, from));
                return;
            }
        };
        match frame.kind {
            FrameKind::Wake => drop(inbox.wakes.insert(from, process)),
            FrameKind::Segment => drop(inbox.segments.insert(from, (process, descriptor))),
            FrameKind::Mapped => drop(inbox.mapped.insert(from, process)),
            FrameKind::JoinFailed => drop(inbox.failed.insert(from, process)),
        }
        let is_awaited = inbox.awaited == Some(from) || frame.kind == FrameKind::JoinFailed;
        drop(state);
        if is_awaited {
            self.setup_changed.notify();
        }
    }

    fn on_process_end(&self, process: Nonce) {
        let handler = match &*lock(&self.state) {
            MemberState::Setup(_) => None,
            MemberState::Joined(handler) => handler.upgrade(),
        };
        handler.iter().for_each(|it| it.on_process_end(process));
        self.setup_changed.notify();
    }

    fn accept_survivor(&self, hello: SurvivorHello, stream: SocketStream) {
        self.survivors.accept(hello, stream);
    }
}

impl Drop for NeighbourMember {
    fn drop(&mut self) {
        self.registry.unregister((self.group, self.rank));
    }
}
