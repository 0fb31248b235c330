//! Ranks to test with, and messages whose memory outlives every test.

use crate::base::buffer::{Dst, Src};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{ErrorKind, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::sys::host;
use crate::transport::inproc::{Domain, Fabric};
use crate::transport::matching::Engine;
use crate::transport::matching::state::State;
use crate::transport::shm::{Meeting, Member as Who, Party};
use crate::transport::{
    Completion, Delivery, Endpoint, Geometry, Incoming, Outgoing, PeerName, PointToPoint, Reuse,
    Room, SharedDomain, Vitals,
};
use crate::wait::Pace;
use crate::wait::bell::Bell;
use crate::wait::until;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) const PATIENCE_MS: u64 = 60_000;

pub(super) const PACE: Pace = Pace { spin: Duration::from_micros(50), crowded: false };

/// How ranks are spread over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// All on one.
    Together,
    /// All on one, in a segment as between processes, of memory that is used again late.
    Segment,
    /// Each on its own.
    Apart,
    /// Two on each.
    Pairs,
}

pub(super) const SPREADS: [Spread; 4] =
    [Spread::Together, Spread::Segment, Spread::Apart, Spread::Pairs];

/// A rank.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) engine: Engine,
    pub(super) endpoint: Option<Arc<dyn Endpoint>>,
    pub(super) domain: Arc<dyn SharedDomain>,
}

pub(super) fn name(rank: Rank) -> PeerName {
    PeerName { rank, pid: host::pid(), host: "here".into() }
}

pub(super) fn geometry(ranks: WorldSize) -> Geometry {
    Geometry { ranks, slot_bytes: 4096, reuse: Reuse::Soon }
}

/// The ranks of a new group.
pub(super) fn world(spread: Spread, ranks: WorldSize) -> Vec<Member> {
    let group = host::random_nonce().unwrap();
    let per_node = match spread {
        Spread::Together | Spread::Segment => ranks,
        Spread::Apart => 1,
        Spread::Pairs => 2,
    };
    let domains = if spread == Spread::Segment {
        segment(group, ranks)
    } else {
        let join = |rank: Rank| {
            let node = rank / per_node;
            let last = ranks.min((node + 1) * per_node);
            let peers: Vec<_> = (node * per_node..last).map(name).collect();
            let geometry = geometry(peers.len());
            let domain = Domain::join(group, node, rank % per_node, peers, geometry, PACE);
            let domain: Arc<dyn SharedDomain> = Arc::new(domain.unwrap());
            domain
        };
        (0..ranks).map(join).collect()
    };
    let member = |(rank, domain): (Rank, Arc<dyn SharedDomain>)| {
        let endpoint = (per_node < ranks).then(|| {
            let names = (0..ranks).map(name).collect();
            let fabric = Fabric::join(group, rank, names, Arc::clone(&domain), PACE).unwrap();
            let endpoint: Arc<dyn Endpoint> = Arc::new(fabric);
            endpoint
        });
        let engine = match &endpoint {
            Some(_) => Engine::new(Arc::clone(&domain), endpoint.clone(), true).unwrap(),
            None => Engine::dormant(Arc::clone(&domain), true),
        };
        Member { engine, endpoint, domain }
    };
    domains.into_iter().enumerate().map(member).collect()
}

/// Domains over one segment, as processes have it.
fn segment(group: GroupId, ranks: WorldSize) -> Vec<Arc<dyn SharedDomain>> {
    let meetings: Vec<_> = (0..ranks).map(|_| Meeting::open().unwrap()).collect();
    let peers: Arc<[PeerName]> = (0..ranks).map(name).collect();
    let member = |meeting: &Meeting| Who {
        socket: meeting.name().to_owned(),
        nonce: host::random_nonce().unwrap(),
    };
    let members: Vec<_> = meetings.iter().map(member).collect();
    let join = |(me, meeting): (Rank, Meeting)| {
        let (peers, members) = (Arc::clone(&peers), members.clone());
        std::thread::Builder::new().spawn(move || {
            let deadline = Deadline::after_ms(PATIENCE_MS);
            let (peers, members, deadline) = (&peers, &members, &deadline);
            let vitals = Vitals::default();
            let party = Party { group, peers, members, me, deadline, vitals };
            let geometry = Geometry { reuse: Reuse::Late, ..geometry(ranks) };
            let domain = meeting.join(&party, geometry, PACE, &|| None).unwrap();
            let domain: Arc<dyn SharedDomain> = Arc::new(domain);
            domain
        })
    };
    let threads: Vec<_> = meetings.into_iter().enumerate().map(join).collect();
    threads.into_iter().map(|thread| thread.unwrap().join().unwrap()).collect()
}

/// What has become of a message.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    value: Mutex<Option<Result<Delivery>>>,
    grown: Mutex<Option<Vec<u8>>>,
    awaited: bool,
    bell: Bell,
}

impl Completion for Outcome {
    fn complete(&self, outcome: Result<Delivery>) {
        let before = self.value.lock().unwrap().replace(outcome);
        assert!(before.is_none(), "completed twice: {before:?}");
        self.bell.ring();
    }

    fn is_awaited(&self) -> bool {
        self.awaited
    }

    fn complete_grown(&self, delivery: Delivery, bytes: Vec<u8>) {
        *self.grown.lock().unwrap() = Some(bytes);
        self.complete(Ok(delivery));
    }
}

impl Outcome {
    /// The message, where the engine has made its memory.
    pub(super) fn grown(&self) -> Vec<u8> {
        self.grown.lock().unwrap().clone().expect("memory of the engine's")
    }

    pub(super) fn get(&self) -> Option<Result<Delivery>> {
        self.value.lock().unwrap().clone()
    }

    /// Waits without attending: others make the progress.
    pub(super) fn wait(&self) -> Result<Delivery> {
        let deadline = Deadline::after_ms(PATIENCE_MS);
        until(&self.bell, Pace::PATIENT, &deadline, || None, || self.get()).unwrap()
    }

    /// The kind of error and its text.
    pub(super) fn error(&self) -> (ErrorKind, String) {
        let error = self.wait().unwrap_err();
        (error.kind(), error.message().to_owned())
    }
}

/// Memory that is never freed.
pub(super) fn room(len: usize) -> Dst<'static> {
    Dst::from(Box::leak(vec![0; len].into_boxed_slice()))
}

/// What is in it.
pub(super) fn content(of: Dst<'_>) -> Vec<u8> {
    let mut bytes = vec![0; of.len()];
    Dst::from(bytes.as_mut_slice()).copy_from(of.as_src());
    bytes
}

/// What was lent to a receive.
pub(super) fn lent_to(message: &Incoming) -> Dst<'static> {
    match message.into {
        Room::Lent(bytes) => bytes,
        Room::Grows { .. } => Dst::empty(),
    }
}

/// The bytes of a message, other ones for each seed.
pub(super) fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(next).collect()
}

pub(super) fn lent(bytes: Vec<u8>) -> Src<'static> {
    Src::from(&*Box::leak(bytes.into_boxed_slice()))
}

pub(super) fn outgoing(to: Rank, tag: u32, bytes: Vec<u8>) -> Outgoing {
    let deadline = Deadline::after_ms(PATIENCE_MS);
    Outgoing { to, tag, dtype: DataType::U8, bytes: lent(bytes), deadline, synchronous: false }
}

pub(super) fn incoming(from: Option<Rank>, tag: Option<u32>, len: usize) -> Incoming {
    let deadline = Deadline::after_ms(PATIENCE_MS);
    Incoming { from, tag, dtype: DataType::U8, into: room(len).into(), deadline }
}

/// A receive that takes messages of up to so many bytes.
pub(super) fn growing(from: Option<Rank>, tag: Option<u32>, most: usize) -> Incoming {
    Incoming { into: Room::Grows { most }, ..incoming(from, tag, 0) }
}

impl Member {
    pub(super) fn post_send(&self, message: Outgoing) -> Arc<Outcome> {
        let outcome = Arc::new(Outcome::default());
        self.engine.send(message, outcome.clone()).unwrap();
        outcome
    }

    pub(super) fn post_receive(&self, message: Incoming) -> Arc<Outcome> {
        let outcome = Arc::new(Outcome::default());
        self.engine.receive(message, outcome.clone()).unwrap();
        outcome
    }

    /// Of a caller that blocks.
    pub(super) fn post_send_and_wait(&self, message: Outgoing) -> Arc<Outcome> {
        let outcome = Arc::new(Outcome { awaited: true, ..Outcome::default() });
        self.engine.send(message, outcome.clone()).unwrap();
        outcome
    }

    /// Of a caller that blocks.
    pub(super) fn post_receive_and_wait(&self, message: Incoming) -> Arc<Outcome> {
        let outcome = Arc::new(Outcome { awaited: true, ..Outcome::default() });
        self.engine.receive(message, outcome.clone()).unwrap();
        outcome
    }

    /// Waits for a message and attends meanwhile.
    pub(super) fn attend_to(&self, outcome: &Outcome) -> Result<Delivery> {
        let over = || outcome.get().is_some();
        self.engine.attend(&over, &Deadline::after_ms(PATIENCE_MS));
        outcome.get().unwrap()
    }

    pub(super) fn send(&self, to: Rank, tag: u32, bytes: Vec<u8>) -> Result<Delivery> {
        self.attend_to(&self.post_send(outgoing(to, tag, bytes)))
    }

    pub(super) fn receive(&self, from: Rank, tag: u32, len: usize) -> Result<Vec<u8>> {
        let message = incoming(Some(from), Some(tag), len);
        let delivery = self.attend_to(&self.post_receive(message))?;
        Ok(content(lent_to(&message).slice(0, delivery.bytes)))
    }
}

/// Does something to a member's engine.
pub(super) fn with<T>(member: &Member, act: impl FnOnce(&mut State) -> T) -> T {
    member.engine.core().unwrap().with(act)
}

/// Makes progress until something holds, by nobody else's doing.
pub(super) fn go_on_until(members: &[&Member], holds: impl Fn() -> bool) {
    let limit = Deadline::after_ms(PATIENCE_MS);
    while !holds() {
        assert!(!limit.has_passed());
        members.iter().for_each(|member| with(member, State::progress));
    }
}

/// From here on, a rank does what the test has it do, and nothing else: as between two calls that
/// attend, however long that takes.
pub(super) fn leave_alone(member: &Member) {
    let core = member.engine.core().unwrap();
    core.dismiss_service(&mut core.lock().watch);
}

/// Has every rank do something on a thread of its own.
pub(super) fn each(members: Vec<Member>, act: impl Fn(Rank, &Member) + Sync) {
    let act = &act;
    std::thread::scope(|scope| {
        let run = |(rank, member): (Rank, Member)| {
            let thread = std::thread::Builder::new();
            // Nobody leaves before all are through.
            thread.spawn_scoped(scope, move || {
                act(rank, &member);
                member
            })
        };
        let threads: Vec<_> = members.into_iter().enumerate().map(run).collect();
        let all: Vec<_> = threads.into_iter().map(|thread| thread.unwrap().join()).collect();
        assert!(all.iter().all(|one| one.is_ok()), "a rank failed");
    });
}
