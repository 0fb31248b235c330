//! The process's door: its listening sockets, one for each address, whatever the number of its
//! groups, and who is behind it. The service thread accepts, reads the hello of each newcomer, and
//! hands the connection to the rank that is meant. Whoever says something else, or nothing in time,
//! is dropped.

use super::hello::{Hello, Purpose, Refusal, WELCOME};
use super::introduction::{Introduction, Said};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::log::Level;
use crate::sys::stream::Stream;
use crate::sys::{host, limits, poll, socket};
use crate::wait::service::{self, Alarm, Alarmed, Next, Watch, Watched};
use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::io::ErrorKind as Io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a newcomer may take to introduce itself.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// The most that may be about to, and their share of the descriptors; the oldest goes when another
/// one comes.
const MAX_NEWCOMERS: usize = 1024;
const SHARE_OF_DESCRIPTORS: u64 = 4;
/// How long one whose hello was right may take to confirm it: longer than it tries itself, since it
/// goes by what it was told.
const GREETED_PATIENCE: Duration = Duration::from_secs(60);
/// How many connections one call accepts.
const ACCEPTS_PER_TURN: usize = 64;
/// How long nothing is accepted after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who takes connections: a rank of a group.
pub(super) trait Guest: Send + Sync + Debug {
    /// Whether this one is expected.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, hello: &Hello) -> std::result::Result<(), Refusal>;

    /// Takes over a connection on which both sides have been checked, and tells the other side so,
    /// or that it is not taken. Called on the service thread.
    fn take(&self, hello: &Hello, stream: Arc<Stream>);
}

/// Whom a connection is for.
type Key = (GroupId, Rank);

/// The door.
#[derive(Debug)]
pub(super) struct Door {
    /// A forked child has a copy, and none of its threads.
    pid: u32,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// How many may be about to introduce themselves.
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    open: Vec<Open>,
    guests: HashMap<Key, Weak<dyn Guest>>,
    /// Those for whom connections of [`Purpose::Reunion`] are.
    reunions: HashMap<Key, Weak<dyn Guest>>,
    /// In the order of their coming.
    newcomers: VecDeque<(Instant, Arc<Newcomer>)>,
    /// Those whose hello was right, in the order of that. Nobody else's coming drops them.
    greeted: VecDeque<(Instant, Arc<Newcomer>)>,
    accept_again: Option<Instant>,
    alarm: Option<Alarm>,
}

/// One listening socket.
#[derive(Debug)]
struct Open {
    address: SocketAddr,
    watch: Watch,
}

static DOOR: Mutex<Weak<Door>> = Mutex::new(Weak::new());

impl Door {
    /// The door, with a socket for each of these addresses (whose ports do not count); on ports of
    /// the range, if one is given.
    ///
    /// # Errors
    /// `Connection` where no port of the range is free, `System`.
    pub(super) fn open(
        addresses: &[SocketAddr],
        ports: Option<&RangeInclusive<u16>>,
    ) -> Result<Arc<Self>> {
        let mut known = lock(&DOOR);
        let door = known.upgrade().filter(|door| door.pid == host::pid());
        let door = match door {
            Some(door) => door,
            None => Arc::new(Self::closed()?),
        };
        for address in addresses {
            door.inner.listen(*address, ports)?;
        }
        *known = Arc::downgrade(&door);
        Ok(door)
    }

    fn closed() -> Result<Self> {
        let share = limits::open_files()? / SHARE_OF_DESCRIPTORS;
        let most = usize::try_from(share).unwrap_or(usize::MAX).clamp(1, MAX_NEWCOMERS);
        let inner = Arc::new(Inner { state: Mutex::default(), most });
        let alarm = service::alarm(Arc::new(Clock(Arc::downgrade(&inner))))?;
        inner.state().alarm = Some(alarm);
        Ok(Self { pid: host::pid(), inner })
    }

    /// The port that is listened on at an address.
    pub(super) fn port(&self, ip: IpAddr) -> Option<u16> {
        let state = self.inner.state();
        state.open.iter().find(|open| open.address.ip() == ip).map(|open| open.address.port())
    }

    /// From now on, connections for this rank of this group are the guest's.
    ///
    /// # Errors
    /// `Internal` where there is such a guest.
    pub(super) fn register(&self, key: Key, guest: Weak<dyn Guest>) -> Result<()> {
        let mut state = self.inner.state();
        if state.guests.get(&key).is_some_and(|guest| guest.strong_count() > 0) {
            let (group, rank) = key;
            let message = format!("rank {rank} of group {group} is in this process twice");
            return Err(Error::internal(message));
        }
        state.guests.insert(key, guest);
        Ok(())
    }

    /// From now on, connections for what this rank of this group is after the group's failure are
    /// the guest's. It is forgotten when it is gone.
    pub(super) fn register_reunion(&self, key: Key, guest: Weak<dyn Guest>) {
        let mut state = self.inner.state();
        state.reunions.retain(|_, known| known.strong_count() > 0);
        state.reunions.insert(key, guest);
    }

    /// Ends what [`Door::register`] began.
    pub(super) fn forget(&self, key: Key) {
        self.inner.state().guests.remove(&key);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Outside the lock: what is watched looks at the state too.
        let state = std::mem::take(&mut *self.inner.state());
        let all = state.newcomers.iter().chain(&state.greeted);
        all.for_each(|(_, newcomer)| newcomer.leave());
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn listen(
        self: &Arc<Self>,
        address: SocketAddr,
        ports: Option<&RangeInclusive<u16>>,
    ) -> Result<()> {
        if self.state().open.iter().any(|open| open.address.ip() == address.ip()) {
            return Ok(());
        }
        let listener = listen(address, ports)?;
        let local = listener.local_addr();
        let address = local.map_err(|cause| Error::system("getsockname", &cause))?;
        let watch = service::watch(Arc::new(Entrance { listener, inner: Arc::downgrade(self) }))?;
        self.state().open.push(Open { address, watch });
        Ok(())
    }

    fn admit(self: &Arc<Self>, stream: Stream, from: SocketAddr) {
        let stream = Arc::new(stream);
        let inner = Arc::downgrade(self);
        let newcomer = Newcomer { stream, from, inner, intake: Mutex::default() };
        let newcomer = Arc::new(newcomer);
        match service::watch(newcomer.clone()) {
            Ok(watch) => lock(&newcomer.intake).watch = Some(watch),
            Err(error) => {
                crate::log!(Level::Warn, "a connection from {from} is dropped: {error}");
                return;
            }
        }
        let mut state = self.state();
        state.newcomers.push_back((Instant::now() + HELLO_PATIENCE, newcomer));
        let oldest = match state.newcomers.len() > self.most {
            true => state.newcomers.pop_front(),
            false => None,
        };
        state.set_alarm();
        drop(state);
        if let Some((_, newcomer)) = oldest {
            newcomer.turn_away("more have come than can be looked after");
        }
    }

    fn pause(&self) {
        let mut state = self.state();
        state.open.iter().for_each(|open| open.watch.rest());
        state.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
        state.set_alarm();
    }

    fn forget(&self, newcomer: &Newcomer) {
        let is_other = |(_, other): &(Instant, Arc<Newcomer>)| {
            !std::ptr::eq(Arc::as_ptr(other), std::ptr::from_ref(newcomer))
        };
        let mut state = self.state();
        state.newcomers.retain(is_other);
        state.greeted.retain(is_other);
    }

    /// Its hello was right.
    fn keep(&self, newcomer: &Newcomer) {
        let is_it = |(_, other): &(Instant, Arc<Newcomer>)| {
            std::ptr::eq(Arc::as_ptr(other), std::ptr::from_ref(newcomer))
        };
        let mut state = self.state();
        let place = state.newcomers.iter().position(is_it);
        if let Some((_, newcomer)) = place.and_then(|at| state.newcomers.remove(at)) {
            state.greeted.push_back((Instant::now() + GREETED_PATIENCE, newcomer));
            state.set_alarm();
        }
    }
}

impl State {
    fn set_alarm(&self) {
        let [newcomer, greeted] = [&self.newcomers, &self.greeted];
        let [newcomer, greeted] = [newcomer, greeted].map(|list| list.front().map(|&(by, _)| by));
        if let Some(alarm) = &self.alarm {
            alarm.set([newcomer, greeted, self.accept_again].into_iter().flatten().min());
        }
    }

    /// Those whose time is over.
    fn take_late(&mut self, now: Instant) -> Vec<Arc<Newcomer>> {
        let lists = [&mut self.newcomers, &mut self.greeted];
        let late = lists.into_iter().flat_map(|list| {
            let late = list.iter().take_while(|(by, _)| *by <= now).count();
            list.drain(..late).map(|(_, newcomer)| newcomer)
        });
        late.collect()
    }
}

/// Listens on a free port.
fn listen(mut address: SocketAddr, ports: Option<&RangeInclusive<u16>>) -> Result<TcpListener> {
    let failed = |address: SocketAddr, cause: &std::io::Error| {
        Error::system(format_args!("listening on {}", address.ip()), cause)
    };
    let Some(ports) = ports else {
        address.set_port(0);
        return socket::listen(address).map_err(|cause| failed(address, &cause));
    };
    // The ranks of a host begin at different places.
    let count = u32::from(ports.end() - ports.start()) + 1;
    let first = host::pid() % count;
    for turn in 0..count {
        let offset = u16::try_from((first + turn) % count).unwrap_or(0);
        address.set_port(ports.start() + offset);
        match socket::listen(address) {
            Err(cause) if cause.kind() == Io::AddrInUse => {}
            outcome => return outcome.map_err(|cause| failed(address, &cause)),
        }
    }
    let message = format!(
        "all {count} ports of DIST_PORT_RANGE={}-{} are in use at {}: each process of a host needs one for each \
         address; widen the range",
        ports.start(),
        ports.end(),
        address.ip()
    );
    Err(Error::new(ErrorKind::Connection, message))
}

/// A listening socket, as the service thread watches it.
#[derive(Debug)]
struct Entrance {
    listener: TcpListener,
    inner: Weak<Inner>,
}

impl Watched for Entrance {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn on_readable(&self) -> Next {
        let Some(inner) = self.inner.upgrade() else { return Next::Done };
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((stream, from)) => inner.admit(Stream::from_connection(stream), from),
                Err(cause) if cause.kind() == Io::WouldBlock => break,
                Err(cause) if socket::is_shortage(&cause) => {
                    crate::log!(Level::Warn, "a peer has to wait: {cause} (see ulimit -n)");
                    inner.pause();
                    break;
                }
                Err(cause) if poll::has_hung_up(self.listener.as_fd()) => {
                    crate::log!(Level::Error, "nobody can connect any more: {cause}");
                    return Next::Done;
                }
                // The peer gave up before it was accepted.
                Err(cause) => crate::log!(Level::Debug, "accept: {cause}"),
            }
        }
        Next::Keep
    }
}

/// Drops newcomers that are late, and opens the door again after a shortage.
#[derive(Debug)]
struct Clock(Weak<Inner>);

impl Alarmed for Clock {
    fn on_alarm(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        let now = Instant::now();
        let mut state = inner.state();
        let late = state.take_late(now);
        if state.accept_again.is_some_and(|at| at <= now) {
            state.accept_again = None;
            let read = poll::Interest::READ;
            state.open.iter().for_each(|open| open.watch.want(read));
        }
        state.set_alarm();
        drop(state);
        late.iter().for_each(|it| it.turn_away("it did not introduce itself in time"));
    }
}

/// Somebody who has connected.
#[derive(Debug)]
struct Newcomer {
    stream: Arc<Stream>,
    from: SocketAddr,
    inner: Weak<Inner>,
    intake: Mutex<Intake>,
}

/// What it has said so far.
#[derive(Debug, Default)]
struct Intake {
    watch: Option<Watch>,
    introduction: Introduction,
    /// Checked, answered, and not confirmed yet.
    greeted: Option<(Hello, Weak<dyn Guest>)>,
}

/// What became of a newcomer.
enum Turn {
    /// It has not said all.
    Waits,
    /// It is whom it says it is.
    Passes(Hello, Arc<dyn Guest>),
    /// It closed the connection.
    Leaves,
    Refused(Refusal),
}

impl Newcomer {
    /// Ends the watch.
    fn leave(&self) {
        let watch = lock(&self.intake).watch.take();
        drop(watch);
    }

    fn turn_away(&self, why: impl std::fmt::Display) {
        self.leave();
        crate::log!(Level::Warn, "a connection from {} is dropped: {why}", self.from);
    }

    fn listen(&self, inner: &Inner) -> Turn {
        let mut intake = lock(&self.intake);
        loop {
            let got = match self.stream.receive(intake.introduction.room()) {
                Ok(0) => return Turn::Leaves,
                Ok(got) => got,
                Err(cause) if is_passing(&cause) => return Turn::Waits,
                Err(_) => return Turn::Leaves,
            };
            match intake.introduction.came(got) {
                Ok(Said::Part) => {}
                Ok(Said::Hello(hello)) => match self.greet(inner, &hello) {
                    Ok(guest) => {
                        intake.greeted = Some((hello, guest));
                        inner.keep(self);
                    }
                    Err(refusal) => return Turn::Refused(refusal),
                },
                Ok(Said::Confirmed) => {
                    let Some((hello, guest)) = intake.greeted.take() else {
                        return Turn::Refused(Refusal::Foreign);
                    };
                    // The group may have been left meanwhile.
                    return guest.upgrade().map_or(Turn::Refused(Refusal::NotHere), |guest| {
                        Turn::Passes(hello, guest)
                    });
                }
                Err(refusal) => return Turn::Refused(refusal),
            }
        }
    }

    /// Checks a hello and answers it.
    fn greet(&self, inner: &Inner, hello: &Hello) -> std::result::Result<Weak<dyn Guest>, Refusal> {
        let key = (hello.group, hello.to);
        let guest = {
            let state = inner.state();
            let reunion = hello.purpose == Purpose::Reunion;
            let guests = if reunion { &state.reunions } else { &state.guests };
            guests.get(&key).and_then(Weak::upgrade)
        };
        let guest = guest.ok_or(Refusal::NotHere)?;
        guest.check(hello)?;
        let answer = [&[WELCOME][..], &hello.answer().encode()].concat();
        // A new connection has room for it; one that has not is broken, and will say so.
        drop(self.stream.send(&answer));
        Ok(Arc::downgrade(&guest))
    }
}

impl Watched for Newcomer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn on_readable(&self) -> Next {
        let Some(inner) = self.inner.upgrade() else { return Next::Done };
        let turn = self.listen(&inner);
        if matches!(turn, Turn::Waits) {
            return Next::Keep;
        }
        inner.forget(self);
        match turn {
            Turn::Passes(hello, guest) => {
                // Whoever takes it may watch it too.
                self.leave();
                guest.take(&hello, Arc::clone(&self.stream));
            }
            Turn::Refused(refusal) => {
                drop(self.stream.send(&[refusal as u8]));
                if refusal == Refusal::NotHere {
                    self.leave();
                    crate::log!(
                        Level::Debug,
                        "a connection from {} is dropped: {refusal}",
                        self.from
                    );
                } else {
                    self.turn_away(refusal);
                }
            }
            Turn::Leaves | Turn::Waits => self.leave(),
        }
        Next::Done
    }
}

/// Whether trying again later is all that is needed.
pub(super) fn is_passing(cause: &std::io::Error) -> bool {
    matches!(cause.kind(), Io::WouldBlock | Io::Interrupted)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
