//! How the ranks of a group find each other again once it has failed: without its streams, its
//! memory and the store.
//!
//! Every rank keeps a [`Port`] from the beginning of its group on: the Unix socket on which the
//! ranks of its node had met, and, where there are other nodes, a place behind the process's TCP
//! door. Nobody looks at it: who connects waits there until this rank opens a [`Session`], or, once
//! that has ended with an [answer](Session::answer), is told that. A port depends on nothing of its
//! group and may outlive it.
//!
//! A rank whose socket is closed has died or has left everything that came of the group; one that
//! lets others wait is alive, or stopped.
//!
//! Must not know: what the ranks say to each other.

mod link;
mod local;

pub use link::Link;

use super::PeerName;
use super::shm;
use super::tcp::{Gate, Ringing};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank};
use crate::wait::io;
use crate::wait::service::{self, Watch};
use local::{Answering, Entrance};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest frame: each of the ranks may contribute so much, and one of them a list of rules.
const LONGEST_BASE: usize = 1 << 20;
const LONGEST_PER_RANK: usize = 64 << 10;

/// How one rank of the group is found.
#[derive(Clone, Debug)]
pub struct Member {
    /// The nonce that it published.
    pub nonce: Nonce,
    /// What tells its Unix socket, where it is on this rank's node ([`shm::Meeting::nonce`]); the
    /// others are behind the gate.
    pub socket: Option<Nonce>,
}

/// Where the others find this rank.
#[derive(Debug)]
pub struct Port {
    group: GroupId,
    me: Rank,
    names: Arc<[PeerName]>,
    members: Vec<Member>,
    listener: Arc<UnixListener>,
    gate: Option<Gate>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A session is open.
    in_use: bool,
    answering: Option<Watch>,
}

impl Port {
    /// The port of rank `me`. There is a gate where some of the members have no socket.
    pub fn new(
        group: GroupId,
        me: Rank,
        names: Arc<[PeerName]>,
        members: Vec<Member>,
        listener: UnixListener,
        gate: Option<Gate>,
    ) -> Self {
        let (listener, state) = (Arc::new(listener), Mutex::default());
        Self { group, me, names, members, listener, gate, state }
    }

    /// Who a rank is.
    pub fn name(&self, rank: Rank) -> &PeerName {
        &self.names[rank]
    }

    /// Begins to look for the others; whoever comes is no longer answered.
    ///
    /// # Errors
    /// `InvalidArgument` while there is another session.
    pub fn open(&self) -> Result<Session<'_>> {
        let mut state = self.state();
        if state.in_use {
            return Err(Error::invalid("another thread does the same with this group"));
        }
        state.in_use = true;
        let answering = state.answering.take();
        drop(state);
        drop(answering);
        self.gate.iter().for_each(|gate| gate.answer(None));
        let entrance = RefCell::new(Entrance::new(Arc::clone(&self.listener)));
        Ok(Session { port: self, entrance })
    }

    fn longest(&self) -> usize {
        LONGEST_BASE + self.members.len() * LONGEST_PER_RANK
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that is looked at.
#[derive(Debug)]
pub struct Session<'a> {
    port: &'a Port,
    entrance: RefCell<Entrance>,
}

impl Session<'_> {
    /// Who a rank is.
    pub fn name(&self, rank: Rank) -> &PeerName {
        self.port.name(rank)
    }

    /// Begins to connect with a rank.
    pub fn call(&self, to: Rank) -> Calling {
        let Port { group, me, members, gate, .. } = self.port;
        let way = match (&members[to].socket, gate) {
            (Some(socket), _) => {
                let socket = shm::Meeting::name_of(*socket);
                Way::Local { socket, hello: local::hello(*group, members, *me, to) }
            }
            (None, Some(gate)) => gate.ring(to).map_or_else(Way::None, Way::Gate),
            (None, None) => Way::None(Error::internal("there is no gate")),
        };
        Calling { way, longest: self.port.longest() }
    }

    /// Those who have come and said who they are.
    pub fn arrivals(&self) -> Vec<(Rank, Link)> {
        let Port { group, me, members, gate, .. } = self.port;
        let longest = self.port.longest();
        let mut known = self.entrance.borrow_mut().arrivals((*group, members, *me), longest);
        let link = |(rank, stream)| (rank, Link::new(stream, longest));
        known.extend(gate.iter().flat_map(Gate::arrivals).map(link));
        known
    }

    /// Waits until somebody comes, something is to be read on one of the links, a call through the
    /// gate has ended, or the deadline has passed.
    ///
    /// # Errors
    /// `System`.
    pub fn wait<'a>(
        &self,
        links: impl IntoIterator<Item = &'a Link>,
        deadline: &Deadline,
    ) -> Result<()> {
        let entrance = self.entrance.borrow();
        let mut all: Vec<BorrowedFd<'_>> = entrance.descriptors().collect();
        all.extend(self.port.gate.as_ref().map(Gate::as_fd));
        for link in links {
            all.push(link.as_fd());
        }
        io::any_readable(all, deadline)
    }

    /// Waits until something is to be read on one of the links, or the deadline has passed. Who
    /// comes is not looked for.
    ///
    /// # Errors
    /// `System`.
    pub fn attend<'a>(
        links: impl IntoIterator<Item = &'a Link>,
        deadline: &Deadline,
    ) -> Result<()> {
        io::any_readable(links.into_iter().map(Link::as_fd), deadline)
    }

    /// Ends the session: from now on the service thread tells everybody who comes this, those who
    /// have come first.
    ///
    /// # Errors
    /// `System`.
    pub fn answer(self, answer: &[u8]) -> Result<()> {
        let answering = Answering::new(Arc::clone(&self.port.listener), answer);
        // A registration tells at once what is there already.
        let watch = service::watch(Arc::new(answering))?;
        self.port.gate.iter().for_each(|gate| gate.answer(Some(link::framed(answer))));
        self.port.state().answering = Some(watch);
        Ok(())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.port.state().in_use = false;
    }
}

/// A connection that is being made; dropping it gives that up.
#[derive(Debug)]
pub struct Calling {
    way: Way,
    longest: usize,
}

#[derive(Debug)]
enum Way {
    Local { socket: String, hello: Vec<u8> },
    Gate(Ringing),
    None(Error),
}

/// How a call ended.
#[derive(Debug)]
pub enum Called {
    /// There is a connection, whether or not anybody looks at it.
    Reached(Link),
    /// Nobody is there: the process has ended, or has left the group and everything that came of
    /// it.
    Gone(Error),
    /// It may be there, but cannot be reached.
    Unreachable(Error),
}

impl Calling {
    /// How it ended, once it has.
    pub fn poll(&self) -> Option<Called> {
        let outcome = match &self.way {
            Way::Local { socket, hello } => local::connect(socket, hello).transpose()?,
            Way::Gate(ringing) => ringing.outcome()?,
            Way::None(error) => Err(error.clone()),
        };
        Some(match outcome {
            Ok(stream) => Called::Reached(Link::new(stream, self.longest)),
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::PeerFailed => Called::Gone(error),
                _ => Called::Unreachable(error),
            },
        })
    }
}
