//! Where ranks on other nodes find this one after their group has failed. The connections come
//! through the process's door with [`Purpose::Reunion`] and are kept until somebody asks for them,
//! or, once there is an answer for everybody, are answered and closed.
//!
//! It depends on nothing of the group that may have failed, and outlives its mesh: whoever is late
//! is told what became of the group. Must not know: what is said over the connections.

use super::dial::{Caller, Dial, Target};
use super::door::{Door, Guest, lock};
use super::hello::{Hello, Purpose, Refusal, TAKEN};
use super::join::{Member, Party};
use crate::base::error::{Error, Result};
use crate::base::ids::{GroupId, Rank};
use crate::sys::event::Event;
use crate::sys::stream::Stream;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};

/// How many connections of one rank are kept that nobody has asked for; the oldest goes when
/// another one comes.
const MOST_OF_ONE: usize = 8;

/// A rank's gate.
#[derive(Debug)]
pub struct Gate {
    /// Open for as long as somebody may come.
    _door: Arc<Door>,
    inner: Arc<Inner>,
}

/// A connection that is being made; dropping it gives that up.
#[derive(Debug)]
pub struct Ringing {
    dial: Arc<Dial>,
    inner: Arc<Inner>,
    to: Rank,
}

/// What the service thread and the one who calls share.
#[derive(Debug)]
struct Inner {
    group: GroupId,
    epoch: u32,
    me: Rank,
    members: Vec<Member>,
    state: Mutex<State>,
    /// Raised when something has come.
    wake: Event,
    weak: Weak<Self>,
}

#[derive(Debug, Default)]
struct State {
    arrived: VecDeque<(Rank, Arc<Stream>)>,
    /// How attempts to reach others ended.
    outcomes: HashMap<Rank, Result<Arc<Stream>>>,
    /// What whoever comes is told.
    answer: Option<Vec<u8>>,
}

impl Gate {
    pub(super) fn open(door: Arc<Door>, party: &Party<'_>) -> Result<Self> {
        let Party { group, epoch, members, me, .. } = *party;
        let (members, wake) = (members.to_vec(), Event::new()?);
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let (state, weak) = (Mutex::default(), weak.clone());
            Inner { group, epoch, me, members, state, wake, weak }
        });
        let guest: Arc<dyn Guest> = inner.clone();
        door.register_reunion((group, me), Arc::downgrade(&guest));
        Ok(Self { _door: door, inner })
    }

    /// Begins to connect with another rank.
    ///
    /// # Errors
    /// `Connection` where there is no address to try.
    pub fn ring(&self, to: Rank) -> Result<Ringing> {
        let inner = &self.inner;
        let (own, peer) = (&inner.members[inner.me], &inner.members[to]);
        let hello = Hello {
            purpose: Purpose::Reunion,
            group: inner.group,
            epoch: inner.epoch,
            from: inner.me,
            to,
            nonce: own.nonce,
            expected: peer.nonce,
        };
        let caller: Weak<dyn Caller> = inner.weak.clone();
        let dial = Dial::new(Target::of(hello, own, peer, None)?, caller);
        drop(lock(&inner.state).outcomes.remove(&to));
        dial.start();
        Ok(Ringing { dial, inner: Arc::clone(inner), to })
    }

    /// Takes what has come, in the order of its coming.
    pub fn arrivals(&self) -> Vec<(Rank, Arc<Stream>)> {
        self.inner.wake.clear();
        lock(&self.inner.state).arrived.drain(..).collect()
    }

    /// From now on everybody who comes is told this, those who have come first; with `None`, they
    /// are kept again.
    pub fn answer(&self, answer: Option<Vec<u8>>) {
        let mut state = lock(&self.inner.state);
        let waiting = match &answer {
            Some(_) => std::mem::take(&mut state.arrived),
            None => VecDeque::new(),
        };
        state.answer.clone_from(&answer);
        drop(state);
        let answer = answer.unwrap_or_default();
        waiting.iter().for_each(|(_, stream)| tell(stream, &answer));
    }
}

impl AsFd for Gate {
    /// Readable when something may have come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.wake.as_fd()
    }
}

impl Ringing {
    /// How it ended, once it has.
    pub fn outcome(&self) -> Option<Result<Arc<Stream>>> {
        lock(&self.inner.state).outcomes.remove(&self.to)
    }
}

impl Drop for Ringing {
    fn drop(&mut self) {
        self.dial.cancel();
    }
}

/// The last words on a connection.
fn tell(stream: &Stream, answer: &[u8]) {
    // A new connection has room for it, and whoever has gone does not need it.
    drop(stream.send(answer));
    stream.end_sending();
}

impl Guest for Inner {
    fn check(&self, hello: &Hello) -> std::result::Result<(), Refusal> {
        let known = self.members.get(hello.from).filter(|member| member.nonce == hello.nonce);
        let is_expected = known.is_some()
            && hello.purpose == Purpose::Reunion
            && hello.from != self.me
            && hello.epoch == self.epoch
            && hello.expected == self.members[self.me].nonce;
        if is_expected { Ok(()) } else { Err(Refusal::Stranger) }
    }

    fn take(&self, hello: &Hello, stream: Arc<Stream>) {
        drop(stream.send(&[TAKEN]));
        let mut state = lock(&self.state);
        if let Some(answer) = &state.answer {
            return tell(&stream, answer);
        }
        let of_it = |(from, _): &&(Rank, Arc<Stream>)| *from == hello.from;
        if state.arrived.iter().filter(of_it).count() >= MOST_OF_ONE {
            let oldest = state.arrived.iter().position(|it| of_it(&it));
            drop(oldest.and_then(|at| state.arrived.remove(at)));
        }
        state.arrived.push_back((hello.from, stream));
        drop(state);
        self.wake.raise();
    }
}

impl Caller for Inner {
    fn connected(&self, hello: &Hello, stream: Arc<Stream>) {
        lock(&self.state).outcomes.insert(hello.to, Ok(stream));
        self.wake.raise();
    }

    fn failed(&self, hello: &Hello, error: Error) {
        lock(&self.state).outcomes.insert(hello.to, Err(error));
        self.wake.raise();
    }
}
