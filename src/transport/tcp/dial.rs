//! Reaching a peer: its addresses one after another, and on the first connection that there is, the
//! mutual hello. The service thread does it; nobody waits here.

use super::advert::Offer;
use super::door::{is_passing, lock};
use super::hello::{ANSWER_BYTES, CONFIRM, Hello, Purpose, Refusal, TAKEN, is_answered};
use super::join::Member;
use super::mesh::leave;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind};
use crate::sys::poll::Interest;
use crate::sys::socket;
use crate::sys::stream::Stream;
use crate::transport::PeerName;
use crate::wait::service::{self, Alarm, Alarmed, Next, Watch, Watched};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long all addresses together may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(20);
/// How long one may take while there is another.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(3);
/// How long to wait before all addresses are tried again.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// How often one is tried again that had a connection and ended it.
const ENDED_ROUNDS: u32 = 3;

/// Who wants to be connected. Called on any thread; may not block.
pub(super) trait Caller: Send + Sync + Debug {
    /// There is the connection, both sides have been checked, and the other one has it in its
    /// place.
    fn connected(&self, hello: &Hello, stream: Arc<Stream>);

    /// There is none. In the way of a reunion, `PeerFailed` and `NotFound` mean that there is
    /// nobody to reach.
    fn failed(&self, hello: &Hello, error: Error);
}

/// Whom to reach, and how.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) hello: Hello,
    pub(super) name: PeerName,
    pub(super) offers: Vec<Offer>,
    /// Where to connect from, in turn; empty where the system chooses.
    pub(super) sources: Vec<Offer>,
    /// Until when to try again and again, since the peer may not be there yet.
    pub(super) retry_until: Option<Deadline>,
}

impl Target {
    /// The way from one member to another.
    ///
    /// # Errors
    /// `Connection` where there is no address to try.
    pub(super) fn of(
        hello: Hello,
        own: &Member,
        peer: &Member,
        retry_until: Option<Deadline>,
    ) -> Result<Self, Error> {
        let offers = peer.advert.offers_for(&own.advert, hello.purpose.rail(), &peer.name)?;
        // Where one side has an interface less, the turns of the two do not mean the same networks.
        let takes_turns = own.advert.rails > 1 && own.advert.rails == peer.advert.rails;
        let sources = if takes_turns { own.advert.near.clone() } else { Vec::new() };
        Ok(Self { hello, name: peer.name.clone(), offers, sources, retry_until })
    }
}

/// An attempt to reach a peer.
#[derive(Debug)]
pub(super) struct Dial {
    target: Target,
    attempts: Vec<Attempted>,
    caller: Weak<dyn Caller>,
    me: Weak<Self>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    alarm: Option<Alarm>,
    /// The next address.
    next: usize,
    current: Option<Current>,
    /// When the alarm is due, where nothing is under way.
    again: Option<Instant>,
    /// What kept each address of this round from answering.
    causes: Vec<Cause>,
    /// How many rounds an address has ended a connection in.
    ended: u32,
    over: bool,
}

/// An address of the peer's, and the own one to reach it from, where the system does not choose
/// that.
type Attempted = (SocketAddr, Option<SocketAddr>);

/// What kept an address from answering.
#[derive(Debug)]
struct Cause {
    address: SocketAddr,
    why: Failed,
}

impl Cause {
    fn refusal(&self) -> Option<Refusal> {
        if let Failed::Refused(refusal) = self.why { Some(refusal) } else { None }
    }

    /// Whether nobody is there: neither the process nor the rank.
    fn tells_absence(&self) -> bool {
        matches!(self.why, Failed::Closed(_) | Failed::Refused(Refusal::NotHere))
    }
}

/// The address that is being tried.
#[derive(Debug)]
struct Current {
    address: SocketAddr,
    stream: Arc<Stream>,
    watch: Watch,
    /// `None` once it is confirmed: the other side may have taken the connection, so it must say so
    /// or end it.
    due: Option<Instant>,
    said_hello: bool,
    answer: [u8; ANSWER_BYTES],
    filled: usize,
}

/// How an attempt ended.
type Outcome = Result<Arc<Stream>, Error>;

impl Dial {
    /// One that has not begun.
    pub(super) fn new(target: Target, caller: Weak<dyn Caller>) -> Arc<Self> {
        let attempts = attempts(&target);
        let progress = Mutex::default();
        Arc::new_cyclic(|me| Self { target, attempts, caller, me: me.clone(), progress })
    }

    /// Begins.
    pub(super) fn start(self: &Arc<Self>) {
        self.with(|dial, progress| match service::alarm(self.clone()) {
            Ok(alarm) => {
                progress.alarm = Some(alarm);
                dial.try_next(progress)
            }
            Err(error) => Some(Err(error)),
        });
    }

    /// Ends it; nobody is told.
    pub(super) fn cancel(&self) {
        let mut progress = lock(&self.progress);
        progress.over = true;
        let rest = (progress.alarm.take(), progress.current.take());
        drop(progress);
        // Where the other side has taken it, this is the end of the stream.
        rest.1.iter().filter(|current| current.due.is_none()).for_each(|it| leave(&it.stream));
        drop(rest);
    }

    /// What has kept the addresses from answering so far, in words; `None` once it is over.
    pub(super) fn describe(&self) -> Option<String> {
        let progress = lock(&self.progress);
        (!progress.over).then(|| describe(&progress.causes))
    }

    /// Takes a step under the lock, and tells the caller without it.
    fn with(&self, step: impl FnOnce(&Self, &mut Progress) -> Option<Outcome>) {
        let mut progress = lock(&self.progress);
        if progress.over {
            return;
        }
        let Some(outcome) = step(self, &mut progress) else {
            let due = match &progress.current {
                Some(current) => current.due,
                None => progress.again,
            };
            if let Some(alarm) = &progress.alarm {
                alarm.set(due);
            }
            return;
        };
        progress.over = true;
        let rest = (progress.alarm.take(), progress.current.take());
        drop(progress);
        // The watch ends first: whoever gets the connection may watch it too.
        drop(rest);
        let Some(caller) = self.caller.upgrade() else { return };
        match outcome {
            Ok(stream) => caller.connected(&self.target.hello, stream),
            Err(error) => caller.failed(&self.target.hello, error),
        }
    }

    /// Begins with the next address at which that is possible.
    fn try_next(&self, progress: &mut Progress) -> Option<Outcome> {
        progress.current = None;
        progress.again = None;
        while let Some(&attempted) = self.attempts.get(progress.next) {
            progress.next += 1;
            match self.begin(attempted) {
                Ok(current) => {
                    progress.current = Some(current);
                    return None;
                }
                Err(why) => self.note(progress, attempted.0, Failed::Broken(why)),
            }
        }
        // One of several addresses may have become somebody else's.
        let may_retry = !all_say(&progress.causes, &[Refusal::Stranger, Refusal::Foreign]);
        let left =
            self.target.retry_until.as_ref().filter(|until| may_retry && !until.has_passed());
        // The next round tells whether it has died.
        let ended = progress.causes.iter().any(|cause| matches!(cause.why, Failed::Ended(_)));
        progress.ended += u32::from(ended);
        if left.is_some() || (ended && progress.ended <= ENDED_ROUNDS) {
            progress.next = 0;
            progress.again = Some(Instant::now() + RETRY_AFTER);
            return None;
        }
        Some(Err(self.unreachable(progress)))
    }

    fn unreachable(&self, progress: &Progress) -> Error {
        let name = &self.target.name;
        let error = if all_say(&progress.causes, &[Refusal::NotHere]) {
            Error::new(ErrorKind::PeerFailed, format!("{name} has left the group"))
        } else {
            // All ranks are told, so that it matters who.
            let (from, why) = (self.target.hello.from, describe(&progress.causes));
            let message = format!("rank {from} cannot reach {name} over TCP: {why}");
            // Only they make a difference between one that is gone and one that cannot be reached.
            let is_gone = self.target.hello.purpose == Purpose::Reunion
                && !progress.causes.is_empty()
                && progress.causes.iter().all(Cause::tells_absence);
            let kind = if is_gone { ErrorKind::NotFound } else { ErrorKind::Connection };
            Error::new(kind, message)
        };
        error.with_culprit(name.rank)
    }

    fn begin(&self, (address, source): Attempted) -> Result<Current, String> {
        let stream = socket::begin_connect(address, source).map_err(|cause| match source {
            Some(source) => format!("{cause} (from {})", source.ip()),
            None => cause.to_string(),
        })?;
        let stream = Arc::new(Stream::from_connection(stream));
        let watched = Attempt { dial: self.me.clone(), stream: Arc::clone(&stream) };
        let watch = service::watch(Arc::new(watched)).map_err(|error| error.to_string())?;
        watch.want(Interest::WRITE);
        let others = self.attempts.last().is_some_and(|last| *last != (address, source));
        let count = u32::try_from(self.attempts.len()).unwrap_or(u32::MAX).max(1);
        let share = CONNECT_PATIENCE / count;
        let patience = if others { share.min(ADDRESS_PATIENCE) } else { CONNECT_PATIENCE };
        Ok(Current {
            address,
            stream,
            watch,
            due: Some(Instant::now() + patience),
            said_hello: false,
            answer: [0; ANSWER_BYTES],
            filled: 0,
        })
    }

    /// Goes on with the address that is being tried.
    fn advance(&self, progress: &mut Progress, of: &Arc<Stream>) -> Option<Outcome> {
        let current = progress.current.as_mut().filter(|it| Arc::ptr_eq(&it.stream, of))?;
        match current.step(&self.target.hello) {
            Ok(false) => None,
            Ok(true) => Some(Ok(Arc::clone(of))),
            Err(why) => self.blame(progress, why),
        }
    }

    /// This address is no good.
    fn blame(&self, progress: &mut Progress, why: Failed) -> Option<Outcome> {
        if let Some(address) = progress.current.as_ref().map(|current| current.address) {
            self.note(progress, address, why);
        }
        self.try_next(progress)
    }

    /// Keeps the causes of one round.
    fn note(&self, progress: &mut Progress, address: SocketAddr, why: Failed) {
        if progress.causes.len() >= self.attempts.len() {
            progress.causes.clear();
        }
        progress.causes.push(Cause { address, why });
    }
}

/// All addresses in turn, each from the own one that takes turns with it and then from any: an
/// answer may find no way back to the former.
fn attempts(target: &Target) -> Vec<Attempted> {
    let mut attempts = Vec::new();
    for &offer in &target.offers {
        attempts.extend(source_for(offer, &target.sources).map(|it| (offer.address, Some(it))));
        attempts.push((offer.address, None));
    }
    attempts
}

/// The own address that takes turns with the peer's.
fn source_for(offer: Offer, sources: &[Offer]) -> Option<SocketAddr> {
    let rails = sources.iter().map(|source| source.rail + 1).max()?;
    let fits = |source: &&Offer| {
        source.rail == offer.rail % rails
            && source.address.is_ipv4() == offer.address.is_ipv4()
            && source.address.ip().is_loopback() == offer.address.ip().is_loopback()
    };
    let mut source = sources.iter().find(fits)?.address;
    source.set_port(0);
    Some(source)
}

/// Why an address is no good.
#[derive(Debug)]
enum Failed {
    Refused(Refusal),
    /// The host says that nobody listens there.
    Closed(String),
    /// It had the connection, and ended it without an answer, as a process does that dies.
    Ended(String),
    Broken(String),
}

impl From<std::io::Error> for Failed {
    fn from(cause: std::io::Error) -> Self {
        match cause.kind() {
            std::io::ErrorKind::ConnectionRefused => Self::Closed(cause.to_string()),
            std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe => {
                Self::Ended(cause.to_string())
            }
            _ => Self::Broken(cause.to_string()),
        }
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
            Self::Closed(why) | Self::Ended(why) | Self::Broken(why) => f.write_str(why),
        }
    }
}

impl Current {
    /// True once both sides have been checked, and the other one has taken the connection.
    fn step(&mut self, hello: &Hello) -> Result<bool, Failed> {
        if !self.said_hello {
            match socket::finish_connect(self.stream.as_ref()) {
                Err(cause) if is_passing(&cause) => return Ok(false),
                outcome => outcome?,
            }
            say(&self.stream, &hello.encode())?;
            self.said_hello = true;
            self.watch.want(Interest::READ);
        }
        if self.due.is_some() {
            if !self.read_answer(hello)? {
                return Ok(false);
            }
            if matches!(hello.purpose, Purpose::Stream(_)) {
                // It may be a stream before this side knows that it is.
                self.stream.set_reset_on_close(true)?;
            }
            self.due = None;
            say(&self.stream, &[CONFIRM])?;
        }
        let mut byte = [0];
        match self.stream.receive(&mut byte) {
            Ok(0) => Err(Failed::Ended("it closed the connection".to_owned())),
            Ok(_) if byte[0] == TAKEN => Ok(true),
            Ok(_) => Err(Failed::Refused(Refusal::from_number(byte[0]))),
            Err(cause) if is_passing(&cause) => Ok(false),
            Err(cause) => Err(cause.into()),
        }
    }

    /// True once the right answer has come.
    fn read_answer(&mut self, hello: &Hello) -> Result<bool, Failed> {
        while !is_answered(hello, &self.answer[..self.filled]).map_err(Failed::Refused)? {
            match self.stream.receive(&mut self.answer[self.filled..]) {
                Ok(0) => return Err(Failed::Ended("it closed the connection".to_owned())),
                Ok(got) => self.filled += got,
                Err(cause) if is_passing(&cause) => return Ok(false),
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(true)
    }
}

/// Sends a few bytes on a connection that is new, and so has room for them.
fn say(stream: &Stream, bytes: &[u8]) -> std::io::Result<()> {
    match stream.send(bytes)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(std::io::ErrorKind::WriteZero.into()),
    }
}

/// Whether every address has answered, with one of these refusals.
fn all_say(causes: &[Cause], refusals: &[Refusal]) -> bool {
    let says = |cause: &Cause| cause.refusal().is_some_and(|it| refusals.contains(&it));
    !causes.is_empty() && causes.iter().all(says)
}

fn describe(causes: &[Cause]) -> String {
    if causes.is_empty() {
        return "it has not answered".to_owned();
    }
    let one = |Cause { address, why, .. }: &Cause| format!("{address}: {why}");
    causes.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl Alarmed for Dial {
    fn on_alarm(&self) {
        self.with(|dial, progress| {
            let now = Instant::now();
            match &progress.current {
                Some(current) if current.due.is_none_or(|due| due > now) => None,
                Some(_) => {
                    let why = Failed::Broken("it did not answer in time".to_owned());
                    dial.blame(progress, why)
                }
                None => dial.try_next(progress),
            }
        });
    }
}

/// One connection of an attempt, as the service thread watches it.
#[derive(Debug)]
struct Attempt {
    dial: Weak<Dial>,
    stream: Arc<Stream>,
}

impl Attempt {
    fn go_on(&self) -> Next {
        let Some(dial) = self.dial.upgrade() else { return Next::Done };
        dial.with(|dial, progress| dial.advance(progress, &self.stream));
        Next::Keep
    }
}

impl Watched for Attempt {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn on_readable(&self) -> Next {
        self.go_on()
    }

    fn on_writable(&self) -> Next {
        self.go_on()
    }
}
