//! The registry of the process: its listening socket, its links, and its members (the ranks of this
//! process in all groups).
//!
//! Of two processes that need a link, the process whose registry has the greater name connects. If
//! a link has ended although both processes live, the same process connects again.

use super::frame::{
    FrameKind, LinkHello, NeighbourFrame, ProcessAddress, SURVIVOR_UNKNOWN, SurvivorHello,
};
use super::incoming::{ConnectionReceiver, HostListener};
use super::link::{LinkInput, NeighbourLink};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::base::log::LogLevel;
use crate::base::sync::lock;
use crate::sys::stream::SocketStream;
use crate::sys::{host, unix};
use crate::wait::doorbell::Doorbell;
use crate::wait::service::{self, DescriptorHandler, WatchAction};
use crate::wait::service_task::ServiceTask;
use crate::wait::{WaitPolicy, io, wait_until};
use std::collections::HashMap;
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The group and the rank of a member.
type MemberKey = (GroupId, Rank);

/// A member, as the registry knows it. The functions are called on the service thread, except for
/// frames of the setup between ranks of this process.
pub(super) trait FrameReceiver: Send + Sync {
    /// Handles a frame of a rank of the process with this registry.
    fn on_frame(&self, process: Nonce, frame: &NeighbourFrame, descriptor: Option<OwnedFd>);

    /// Handles the end of the link to a process.
    fn on_process_end(&self, process: Nonce);

    /// Takes over the connection of a survivor.
    fn accept_survivor(&self, hello: SurvivorHello, stream: SocketStream);
}

crate::base::trait_object_debug::impl_debug_of_objects!(FrameReceiver);

/// The registry of this process. It exists while one of its members does.
#[derive(Debug)]
pub(in crate::transport) struct NeighbourRegistry {
    /// The process that created the registry. A forked child has a copy of the registry, but no
    /// service thread, so it cannot use the copy.
    pid: u32,
    listener: HostListener,
    pub(super) inner: Arc<RegistryInner>,
}

/// The part of the registry that the service thread uses.
#[derive(Debug)]
pub(super) struct RegistryInner {
    /// The name of the registry.
    pub(super) name: Nonce,
    state: Mutex<RegistryState>,
    /// Notified when a link to an awaited process is made or ends.
    pub(super) links_changed: Doorbell,
}

#[derive(Debug, Default)]
struct RegistryState {
    /// True once the registry is dropped: nothing is added then.
    is_closed: bool,
    members: HashMap<MemberKey, Weak<dyn FrameReceiver>>,
    links: HashMap<Nonce, LinkState>,
    /// The processes to which threads of this process wait for a link.
    awaited: Vec<Nonce>,
    /// Wake requests between ranks of this process, which the service thread handles.
    local_wakes: Vec<NeighbourFrame>,
    local_wake_task: Option<ServiceTask>,
}

/// A wait for the link to a process. Other links do not wake the waiting thread: while the ranks of
/// a large group connect, it would wake once for each of them.
#[derive(Debug)]
pub(in crate::transport) struct AwaitedLink<'a> {
    registry: &'a RegistryInner,
    process: Nonce,
}

impl Drop for AwaitedLink<'_> {
    fn drop(&mut self) {
        let awaited = &mut self.registry.state().awaited;
        let own = awaited.iter().position(|&process| process == self.process);
        if let Some(at) = own {
            awaited.swap_remove(at);
        }
    }
}

/// The state of the link to one process.
#[derive(Debug)]
enum LinkState {
    /// A thread of this process connects.
    Connecting,
    Up(Arc<NeighbourLink>),
    /// The link has ended. The kernel reported this process id for the other end.
    Ended {
        pid: u32,
    },
}

static REGISTRY: Mutex<Weak<NeighbourRegistry>> = Mutex::new(Weak::new());

impl NeighbourRegistry {
    /// Returns the registry of this process; creates it if there is none, or if the listening
    /// socket of the present one was shut down.
    ///
    /// # Errors
    /// `System`.
    pub(super) fn of_this_process() -> Result<Arc<Self>> {
        let mut known = lock(&REGISTRY);
        let is_usable = |it: &Arc<Self>| it.pid == host::pid() && !it.listener.has_ended();
        if let Some(registry) = known.upgrade().filter(is_usable) {
            return Ok(registry);
        }
        let registry = Arc::new(Self::new()?);
        *known = Arc::downgrade(&registry);
        Ok(registry)
    }

    /// Creates a registry, whose name no other registry has.
    ///
    /// # Errors
    /// `System`.
    pub(in crate::transport) fn new() -> Result<Self> {
        let name = host::random_nonce()?;
        let (state, links_changed) = (Mutex::default(), Doorbell::default());
        let inner = Arc::new(RegistryInner { name, state, links_changed });
        let receiver: Weak<dyn ConnectionReceiver> = Arc::<RegistryInner>::downgrade(&inner) as _;
        let listener = HostListener::listen(name, receiver)?;
        let weak = Arc::downgrade(&inner);
        let task = ServiceTask::new(move || {
            weak.upgrade().iter().for_each(RegistryInner::handle_local_wakes);
        })?;
        inner.state().local_wake_task = Some(task);
        Ok(Self { pid: host::pid(), listener, inner })
    }

    /// Registers a rank of a group.
    ///
    /// # Errors
    /// `Internal` if the rank is registered.
    pub(super) fn register(&self, key: MemberKey, member: Weak<dyn FrameReceiver>) -> Result<()> {
        let mut state = self.inner.state();
        if state.members.get(&key).is_some_and(|known| known.strong_count() > 0) {
            let (group, rank) = key;
            let message =
                format!("rank {rank} of group {group} is registered twice in this process");
            return Err(Error::internal(message));
        }
        state.members.insert(key, member);
        Ok(())
    }

    /// Removes a member that is being dropped.
    pub(super) fn unregister(&self, key: MemberKey) {
        let mut state = self.inner.state();
        if state.members.get(&key).is_some_and(|known| known.strong_count() == 0) {
            state.members.remove(&key);
        }
    }

    /// Returns true if this process makes the link to a process, and not the other one.
    pub(super) fn connects_to(&self, process: Nonce) -> bool {
        self.inner.name.0 > process.0
    }

    /// Makes changes of the link to a process notify the doorbell until the result is dropped.
    pub(super) fn await_link(&self, process: Nonce) -> AwaitedLink<'_> {
        self.inner.state().awaited.push(process);
        AwaitedLink { registry: &self.inner, process }
    }

    /// Returns the link to a process, if it is up.
    pub(super) fn find_link(&self, process: Nonce) -> Option<Arc<NeighbourLink>> {
        match self.inner.state().links.get(&process) {
            Some(LinkState::Up(link)) if !link.has_ended() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Returns the process id at the other end of the link to a process, as the kernel reports it,
    /// and whether the link has ended.
    pub(super) fn process_of_link(&self, process: Nonce) -> Option<(u32, bool)> {
        match self.inner.state().links.get(&process)? {
            LinkState::Up(link) => Some((link.pid(), link.has_ended())),
            LinkState::Ended { pid } => Some((*pid, true)),
            LinkState::Connecting => None,
        }
    }

    /// Returns the process id at the other end of a link that has ended.
    pub(super) fn ended_pid(&self, process: Nonce) -> Option<u32> {
        match self.inner.state().links.get(&process) {
            Some(LinkState::Ended { pid }) => Some(*pid),
            _ => None,
        }
    }

    /// Returns the link to a process, and connects to it if there is none.
    ///
    /// # Errors
    /// `Connection` if no process listens there; `Timeout`, `Auth`, `System`.
    pub(super) fn connect(
        &self,
        process: Nonce,
        deadline: &Deadline,
    ) -> Result<Arc<NeighbourLink>> {
        let claim = || match self.claim_connect(process) {
            ConnectClaim::Up(link) => Some(Some(link)),
            ConnectClaim::Mine => Some(None),
            ConnectClaim::OfAnotherThread => None,
        };
        let policy = WaitPolicy::SLEEP_SOON;
        let _awaited = self.await_link(process);
        let claimed = wait_until(&self.inner.links_changed, policy, deadline, || None, claim);
        let claimed = claimed.map_err(|_| timeout_error(deadline))?;
        if let Some(link) = claimed {
            return Ok(link);
        }
        let made = self.make_link(process, deadline);
        if made.is_err() {
            self.inner.state().links.remove(&process);
            self.inner.links_changed.notify();
        }
        made
    }

    /// Claims the connect to a process, unless the link is up or another thread connects.
    fn claim_connect(&self, process: Nonce) -> ConnectClaim {
        let mut state = self.inner.state();
        match state.links.get(&process) {
            Some(LinkState::Up(link)) if !link.has_ended() => ConnectClaim::Up(Arc::clone(link)),
            Some(LinkState::Connecting) => ConnectClaim::OfAnotherThread,
            _ => {
                state.links.insert(process, LinkState::Connecting);
                ConnectClaim::Mine
            }
        }
    }

    fn make_link(&self, process: Nonce, deadline: &Deadline) -> Result<Arc<NeighbourLink>> {
        let stream = connect(process, deadline)?;
        let hello = LinkHello { from: self.inner.name, to: process }.encode();
        io::write_all(&stream, &hello, None, deadline)?;
        let link = Arc::new(NeighbourLink::new(Arc::new(stream), process)?);
        self.inner.add_link(Arc::clone(&link))?;
        Ok(link)
    }

    /// Gives a frame to a rank of this process.
    pub(super) fn deliver_locally(&self, frame: NeighbourFrame, descriptor: Option<OwnedFd>) {
        let inner = &self.inner;
        if frame.kind != FrameKind::Wake {
            if let Some(member) = inner.member((frame.group, frame.to)) {
                member.on_frame(inner.name, &frame, descriptor);
            }
            return;
        }
        let mut state = inner.state();
        state.local_wakes.push(frame);
        state.local_wake_task.iter().for_each(ServiceTask::wake);
    }
}

/// The outcome of an attempt to claim a connect.
enum ConnectClaim {
    Up(Arc<NeighbourLink>),
    Mine,
    OfAnotherThread,
}

impl Drop for NeighbourRegistry {
    fn drop(&mut self) {
        // Do not hold the lock while the watches end: a handler that is running locks the state.
        let closed = RegistryState { is_closed: true, ..RegistryState::default() };
        let state = std::mem::replace(&mut *self.inner.state(), closed);
        for link in state.links.values() {
            if let LinkState::Up(link) = link {
                link.stop_watching();
            }
        }
    }
}

impl RegistryInner {
    fn state(&self) -> MutexGuard<'_, RegistryState> {
        lock(&self.state)
    }

    fn member(&self, key: MemberKey) -> Option<Arc<dyn FrameReceiver>> {
        self.state().members.get(&key).and_then(Weak::upgrade)
    }

    /// Adds a link. An earlier link to the same process is replaced if it has ended.
    ///
    /// # Errors
    /// `Connection` if the earlier link is up, or if the registry is closed.
    fn add_link(self: &Arc<Self>, link: Arc<NeighbourLink>) -> Result<()> {
        let process = link.process();
        let mut state = self.state();
        let is_up = |known: &LinkState| matches!(known, LinkState::Up(it) if !it.has_ended());
        if state.is_closed || state.links.get(&process).is_some_and(is_up) {
            let message = "a process made a second link";
            return Err(Error::new(ErrorKind::Connection, message));
        }
        let replaced = state.links.insert(process, LinkState::Up(Arc::clone(&link)));
        let is_awaited = state.awaited.contains(&process);
        drop(state);
        if let Some(LinkState::Up(replaced)) = replaced {
            self.report_end(&replaced);
        }
        let handler = LinkHandler { link: Arc::clone(&link), registry: Arc::downgrade(self) };
        match service::watch(Arc::new(handler)) {
            Ok(watch) => link.set_watch(watch),
            Err(error) => {
                self.end_link(&link);
                return Err(error);
            }
        }
        if self.state().is_closed {
            link.stop_watching();
        }
        if is_awaited {
            self.links_changed.notify();
        }
        Ok(())
    }

    /// Handles the end of a link.
    fn end_link(&self, link: &Arc<NeighbourLink>) {
        link.shut_down();
        let mut state = self.state();
        if let Some(known) = state.links.get_mut(&link.process())
            && matches!(known, LinkState::Up(present) if Arc::ptr_eq(present, link))
        {
            *known = LinkState::Ended { pid: link.pid() };
        }
        let is_awaited = state.awaited.contains(&link.process());
        drop(state);
        if is_awaited {
            self.links_changed.notify();
        }
        self.report_end(link);
    }

    /// Tells all members that a neighbour's process has ended.
    fn report_end(&self, link: &NeighbourLink) {
        let members: Vec<_> = self.state().members.values().filter_map(Weak::upgrade).collect();
        members.iter().for_each(|member| member.on_process_end(link.process()));
    }

    /// Handles a frame of a neighbour.
    fn handle_frame(
        &self,
        link: &NeighbourLink,
        frame: NeighbourFrame,
        descriptor: Option<OwnedFd>,
    ) {
        match self.member((frame.group, frame.to)) {
            Some(member) => member.on_frame(link.process(), &frame, descriptor),
            // The receiver has given up before it could join.
            None if matches!(frame.kind, FrameKind::Segment | FrameKind::Mapped) => {
                let kind = FrameKind::JoinFailed;
                let answer = NeighbourFrame { kind, from: frame.to, to: frame.from, ..frame };
                // If the link has ended, the neighbour needs no answer.
                drop(link.send(&answer, None));
            }
            // The receiver has left the group.
            None => {}
        }
    }

    fn handle_local_wakes(self: &Arc<Self>) {
        let wakes = std::mem::take(&mut self.state().local_wakes);
        for frame in wakes {
            if let Some(member) = self.member((frame.group, frame.to)) {
                member.on_frame(self.name, &frame, None);
            }
        }
    }
}

impl ConnectionReceiver for RegistryInner {
    fn accept_link(self: Arc<Self>, process: Nonce, stream: Arc<UnixStream>) {
        let link = NeighbourLink::new(stream, process).map(Arc::new);
        if let Err(error) = link.and_then(|link| self.add_link(link)) {
            crate::log!(LogLevel::Warn, "dropped an unexpected connection: {error}");
        }
    }

    /// Gives the connection to the member that the hello names. If there is no such member, says so
    /// and closes the connection.
    fn accept_survivor(&self, hello: SurvivorHello, stream: SocketStream) {
        match self.member((hello.group, hello.to)) {
            Some(member) => member.accept_survivor(hello, stream),
            // A new connection has room for the byte. If it has ended, the byte is of no use.
            None => drop(stream.send(&[SURVIVOR_UNKNOWN])),
        }
    }
}

/// The handler of the service thread for one link.
#[derive(Debug)]
struct LinkHandler {
    link: Arc<NeighbourLink>,
    registry: Weak<RegistryInner>,
}

impl DescriptorHandler for LinkHandler {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    fn on_readable(&self) -> WatchAction {
        let Some(registry) = self.registry.upgrade() else { return WatchAction::Done };
        loop {
            match self.link.read() {
                LinkInput::Frame(frame, descriptor) => {
                    registry.handle_frame(&self.link, frame, descriptor);
                }
                LinkInput::Nothing => return WatchAction::Keep,
                LinkInput::Ended => {
                    registry.end_link(&self.link);
                    return WatchAction::Done;
                }
            }
        }
    }

    fn on_writable(&self) -> WatchAction {
        self.link.send_queued();
        WatchAction::Keep
    }
}

/// Connects to the registry with this name. Checks the user of the listening process, because
/// another user may have taken the name after the process with the registry has ended.
fn connect(process: Nonce, deadline: &Deadline) -> Result<UnixStream> {
    let name = ProcessAddress::socket_name(process);
    loop {
        match unix::connect(&name) {
            Ok(stream) => return unix::check_peer_user(&stream).map(|()| stream),
            // The listen queue of the neighbour is full. The neighbour empties it when it accepts
            // connections, so try again.
            Err(cause) if cause.kind() == Io::WouldBlock && !deadline.has_passed() => {
                std::thread::yield_now();
            }
            Err(cause) => return Err(Error::connection("connecting to its Unix socket", cause)),
        }
    }
}

fn timeout_error(deadline: &Deadline) -> Error {
    let ms = deadline.elapsed().as_millis();
    let message = format!("no link to it was made within {ms} ms");
    Error::new(ErrorKind::Timeout, message)
}
