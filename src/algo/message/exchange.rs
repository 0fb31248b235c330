//! The protocol of messages: how ranks that share no memory agree on what is sent and received.
//!
//! An operation is a number of messages between pairs of ranks; which ones follows from what all
//! ranks agree on, so that for every message that one rank posts the other posts its end, in the
//! same order. Then:
//!
//! * **Order.** Between two ranks messages are numbered, and arrive in the order in which they were
//!   posted. A large one is cut into stripes, one per parallel stream; each stripe has a header,
//!   and every stream keeps the order.
//! * **Agreement.** A header carries the sender's operation and a fingerprint chained over
//!   everything that it has called. The receiver knows number, stripe, length and fingerprint
//!   beforehand and compares all of them, so that two ranks that have ever called different things
//!   find out at the first message. Nothing is read by a length that the other side chose.
//! * **Roll call.** Ranks that wait for each other in a circle since they called different things
//!   exchange no message; and in a chain of ranks nobody but its neighbour sees who is late. So a
//!   rank that has waited for long says once to all members that it is there, and looks who else
//!   is. Who differs is found, and at the deadline those are named who have not come; whoever finds
//!   none missing lets others speak first.
//! * **Progress.** Whatever is waited for, everything posted goes on: a rank that sends to another
//!   which is not yet receiving still receives. So no order of posting can block, and streams may
//!   be small.
//!
//! Posted views belong to the exchange, which lives no longer than they do; the transport keeps
//! nothing. Any failure fails the group on all nodes, the first reason stays.

use super::lane::{Lane, Mark};
use super::{SEGMENT, Team};
use crate::algo::Operation;
use crate::algo::lateness::Lateness;
use crate::algo::pattern::slices::owned;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::frame::{HEADER_BYTES, Header, Kind};
use crate::transport::pulse::PARTING;
use crate::transport::{Channel, Direction, Endpoint, Wish};
use crate::wait::watch::Watch;
use std::time::{Duration, Instant};

/// Messages from this size on are cut into stripes: whole segments of large vectors are.
const STRIPED: usize = SEGMENT;

/// The incarnation of the group.
const EPOCH: u32 = 0;

/// How long a wait keeps yielding the core before it rests.
const YIELD_FOR: Duration = Duration::from_micros(1000);

/// How many rounds in which something moves a wait goes before it looks at the deadline and at
/// failures.
const ROUNDS_PER_CHECK: u32 = 1000;

/// The longest rest before a look at the deadline and at who else is there.
const REST: Duration = Duration::from_millis(100);

/// One operation of the group, as far as it goes over messages.
#[derive(Debug)]
pub struct Call<'a> {
    pub(super) endpoint: &'a dyn Endpoint,
    lane: &'a mut Lane,
    pub(super) operation: &'a Operation<'a>,
    /// Some ranks share memory with others, and wait for those too.
    nodes: bool,
    lateness: Lateness<'a>,
}

impl<'a> Call<'a> {
    /// Enters an operation; `nodes` says that ranks share memory inside of nodes.
    pub fn begin(
        endpoint: &'a dyn Endpoint,
        lane: &'a mut Lane,
        operation: &'a Operation<'a>,
        nodes: bool,
    ) -> Self {
        lane.enter(operation.descriptor);
        Self { endpoint, lane, operation, nodes, lateness: Lateness::of(operation) }
    }

    /// This rank in the group.
    pub fn rank(&self) -> Rank {
        self.endpoint.rank()
    }

    /// Scratch memory of at least that many bytes, with anything in it.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn scratch(&mut self, bytes: usize) -> Result<Vec<u8>> {
        self.lane.take_scratch(bytes)
    }

    /// Gives scratch memory back, for the next who needs some.
    pub fn keep(&mut self, scratch: Vec<u8>) {
        self.lane.keep_scratch(scratch);
    }

    /// Begins to exchange messages within a team.
    pub fn exchange<'x>(&'x mut self, team: Team<'x>) -> Exchange<'x> {
        Exchange {
            endpoint: self.endpoint,
            lane: self.lane,
            operation: self.operation,
            nodes: self.nodes,
            team,
            pending: Vec::new(),
            tokens: 0,
            idle: None,
            lateness: &self.lateness,
            last: self.endpoint.rank(),
            watch: Watch::default(),
            is_noted: false,
        }
    }
}

/// A message that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u64);

/// Messages on their way. What is posted must have been waited for before the exchange ends.
#[derive(Debug)]
pub struct Exchange<'x> {
    pub(super) endpoint: &'x dyn Endpoint,
    pub(super) lane: &'x mut Lane,
    pub(super) operation: &'x Operation<'x>,
    pub(super) nodes: bool,
    pub(super) team: Team<'x>,
    /// In the order of posting. Algorithms keep this short.
    pub(super) pending: Vec<Parcel<'x>>,
    tokens: u64,
    /// Since when nothing has moved.
    idle: Option<Instant>,
    pub(super) lateness: &'x Lateness<'x>,
    /// Whose message was the last to be over.
    last: Rank,
    /// Of a wait in which nothing moves.
    watch: Watch,
    /// Who is missing in this wait has been noted.
    is_noted: bool,
}

/// One stripe of one message.
#[derive(Debug)]
pub(super) struct Parcel<'x> {
    token: u64,
    pub(super) peer: Rank,
    pub(super) lane: u8,
    pub(super) body: Body<'x>,
}

#[derive(Debug)]
pub(super) enum Body<'x> {
    /// Header and payload; the first `done` bytes of both have gone.
    Out { header: [u8; HEADER_BYTES], payload: Src<'x>, done: usize },
    /// The header that must come and, once it has, the bytes of payload that are there.
    In { expected: Header, payload: Dst<'x>, done: Option<usize> },
}

impl Parcel<'_> {
    fn is_same_stream(&self, other: &Self) -> bool {
        (self.peer, self.lane, self.direction()) == (other.peer, other.lane, other.direction())
    }

    pub(super) fn direction(&self) -> Direction {
        match self.body {
            Body::Out { .. } => Direction::Out,
            Body::In { .. } => Direction::In,
        }
    }

    /// A part of the message has gone on the stream of a mark, which must wait for the rest.
    pub(super) fn is_before(&self, mark: &Mark) -> bool {
        (self.peer, self.lane) == (mark.peer, 0) && matches!(self.body, Body::Out { done: 1.., .. })
    }
}

impl<'x> Exchange<'x> {
    /// Posts a message to the member at a position.
    pub fn send(&mut self, to: usize, payload: Src<'x>) -> Token {
        let peer = self.team.rank(to);
        self.lane.peers[peer].sent += 1;
        let number = self.lane.peers[peer].sent;
        self.tokens += 1;
        let stripes = self.stripes(payload.len());
        for stripe in 0..stripes {
            let part = owned(payload.len(), stripes.into(), stripe.into());
            let header = self.header(stripe, stripes, number, payload.len());
            let header = Header { excuse: self.excuse(), ..header }.encode();
            let payload = payload.slice(part.start, part.len());
            let body = Body::Out { header, payload, done: 0 };
            self.pending.push(Parcel { token: self.tokens, peer, lane: stripe, body });
        }
        Token(self.tokens)
    }

    /// Posts the end of a message from the member at a position.
    pub fn receive(&mut self, from: usize, payload: Dst<'x>) -> Token {
        let peer = self.team.rank(from);
        self.lane.peers[peer].received += 1;
        let number = self.lane.peers[peer].received;
        self.tokens += 1;
        let stripes = self.stripes(payload.len());
        for stripe in 0..stripes {
            let part = owned(payload.len(), stripes.into(), stripe.into());
            let expected = self.header(stripe, stripes, number, payload.len());
            let payload = payload.slice(part.start, part.len());
            let body = Body::In { expected, payload, done: None };
            self.pending.push(Parcel { token: self.tokens, peer, lane: stripe, body });
        }
        Token(self.tokens)
    }

    /// Waits until a message has gone or come.
    ///
    /// # Errors
    /// What ended the wait: `Timeout`, `PeerFailed`, `Mismatch`, `Aborted`, `Connection`.
    pub fn wait(&mut self, token: Token) -> Result<()> {
        self.wait_until(|pending| pending.iter().all(|parcel| parcel.token != token.0))
    }

    /// Waits until no more than `most` posted stripes are on their way.
    ///
    /// # Errors
    /// As [`Exchange::wait`].
    pub fn wait_few(&mut self, most: usize) -> Result<()> {
        self.wait_until(|pending| pending.len() <= most)
    }

    /// Waits until everything posted has gone or come.
    ///
    /// # Errors
    /// As [`Exchange::wait`].
    pub fn finish(mut self) -> Result<()> {
        self.wait_until(|pending| pending.is_empty())
    }

    fn stripes(&self, bytes: usize) -> u8 {
        if bytes >= STRIPED { self.endpoint.lanes() } else { 1 }
    }

    pub(super) fn header(&self, stripe: u8, stripes: u8, number: u64, len: usize) -> Header {
        Header {
            kind: Kind::Data,
            stripe,
            stripes,
            epoch: EPOCH,
            number,
            chain: self.lane.chain(),
            descriptor: self.operation.descriptor.without_text(),
            len: len as u64,
            excuse: None,
        }
    }

    fn wait_until(&mut self, done: impl Fn(&[Parcel<'_>]) -> bool) -> Result<()> {
        if done(&self.pending) {
            return Ok(());
        }
        let began = self.lateness.wait_begins();
        self.is_noted = false;
        let mut rounds = 0_u32;
        while !done(&self.pending) {
            rounds = rounds.wrapping_add(1);
            self.step(rounds.is_multiple_of(ROUNDS_PER_CHECK)).map_err(|error| self.fail(error))?;
        }
        if self.lateness.is_long() {
            self.look_around(Vec::new());
        }
        self.lateness.wait_ends(began, self.last);
        Ok(())
    }

    /// One round over everything posted; where nothing moves, or `looks`, with a look at what ends
    /// the wait.
    fn step(&mut self, looks: bool) -> Result<()> {
        if !self.pump()? {
            return self.pause();
        }
        self.idle = None;
        if looks {
            self.check_failure()?;
            self.check_deadline()?;
        }
        Ok(())
    }

    /// Tries everything that is posted; true if anything moved.
    fn pump(&mut self) -> Result<bool> {
        let mut moved = !self.lane.marks.is_empty() && self.send_marks();
        let mut i = 0;
        while let Some(parcel) = self.pending.get(i) {
            if self.pending[..i].iter().any(|earlier| earlier.is_same_stream(parcel)) {
                i += 1;
                continue;
            }
            let (bytes, over) = self.advance(i)?;
            moved |= bytes > 0;
            if over {
                self.last = self.pending.remove(i).peer;
            } else {
                i += 1;
            }
        }
        Ok(moved)
    }

    /// Moves one stripe on: how many bytes, and whether that was all.
    fn advance(&mut self, i: usize) -> Result<(usize, bool)> {
        let Parcel { peer, lane, ref mut body, .. } = self.pending[i];
        match body {
            Body::Out { header, payload, done } => {
                if lane == 0 && self.lane.has_begun_mark(peer) {
                    return Ok((0, false));
                }
                let sent = send_rest(self.endpoint, peer, lane, header, *payload, *done)?;
                *done += sent;
                let over = *done == HEADER_BYTES + payload.len();
                if over && lane == 0 {
                    // It reads the message past the marks before it.
                    self.lane.peers[peer].marks = 0;
                }
                Ok((sent, over))
            }
            Body::In { expected, payload, done } => {
                let (expected, payload, begun) = (*expected, *payload, *done);
                let mut moved = 0;
                let mut have = match begun {
                    Some(have) => have,
                    None => {
                        let found = self.open(peer, lane, &expected, &mut moved)?;
                        if !found {
                            return Ok((moved, false));
                        }
                        let ahead = self.lane.ahead(peer, lane);
                        ahead.take(payload)
                    }
                };
                if have < payload.len() {
                    let rest = payload.slice(have, payload.len() - have);
                    let count = self.endpoint.try_receive(peer, Channel::Collective(lane), rest)?;
                    have += count;
                    moved += count;
                }
                if let Body::In { done, .. } = &mut self.pending[i].body {
                    *done = Some(have);
                }
                Ok((moved, have == payload.len()))
            }
        }
    }

    /// Looks for the header that must come next; true once it has, and is the right one. One mark
    /// of presence is passed at a look, so that no number of them keeps this rank from looking at
    /// the time.
    fn open(&mut self, peer: Rank, lane: u8, expected: &Header, moved: &mut usize) -> Result<bool> {
        let Some(header) = self.next_header(peer, lane, moved)? else { return Ok(false) };
        *moved += 1;
        if (Header { excuse: None, ..header }) == *expected {
            self.lane.ahead(peer, lane).skip_header();
            let peer = &mut self.lane.peers[peer];
            if peer.heard < header.descriptor.moment() {
                peer.excuse = header.excuse;
            }
            peer.heard = header.descriptor.moment();
            peer.waits_for = None;
            return Ok(true);
        }
        match self.pass_presence(peer, lane, &header)? {
            true => Ok(false),
            false => Err(self.unexpected(peer, &header, expected)),
        }
    }

    /// The header that has come on a stream, if it has.
    pub(super) fn next_header(
        &mut self,
        peer: Rank,
        lane: u8,
        moved: &mut usize,
    ) -> Result<Option<Header>> {
        let name = |error: Error| error.context(self.endpoint.peer(peer)).with_culprit(peer);
        let ahead = self.lane.ahead(peer, lane);
        if ahead.header().map_err(name)?.is_none() {
            *moved += ahead.fill(self.endpoint, peer, lane)?;
        }
        self.lane.ahead(peer, lane).header().map_err(name)
    }

    /// Takes a mark of presence of this operation, or of one before it, off the stream; false for
    /// any other header.
    pub(super) fn pass_presence(&mut self, peer: Rank, lane: u8, header: &Header) -> Result<bool> {
        let moment = header.descriptor.moment();
        if header.kind != Kind::Presence || moment > self.operation.descriptor.moment() {
            return Ok(false);
        }
        self.agree(peer, header)?;
        self.lane.ahead(peer, lane).skip_header();
        let peer = &mut self.lane.peers[peer];
        if peer.heard < moment {
            peer.excuse = None;
        }
        peer.heard = moment;
        peer.waits_for = header.excuse.map(|excuse| excuse.rank);
        // Who calls the roll reads what has come.
        peer.marks = 0;
        Ok(true)
    }

    pub(super) fn me(&self) -> String {
        self.endpoint.peer(self.endpoint.rank()).to_string()
    }

    /// Nothing moves: spins, yields or rests, and looks why there is nothing to wait for any more.
    fn pause(&mut self) -> Result<()> {
        self.check_failure()?;
        let deadline = self.operation.deadline();
        let pace = self.endpoint.pace();
        let spin = if pace.crowded { Duration::ZERO } else { pace.spin };
        if self.idle.is_none() {
            self.watch.reset();
        }
        let idle = self.idle.get_or_insert_with(Instant::now).elapsed();
        if idle < spin {
            std::hint::spin_loop();
            return Ok(());
        }
        let is_news = !std::mem::replace(&mut self.is_noted, true);
        self.look_around(if is_news { self.awaited(Direction::In) } else { Vec::new() });
        let left = deadline.left();
        if idle < spin + YIELD_FOR && !left.is_zero() {
            std::thread::yield_now();
            return Ok(());
        }
        let moved = deadline.elapsed() >= self.roll_call() && self.call_roll()?;
        self.check_deadline()?;
        if moved {
            return Ok(());
        }
        let mut watch = std::mem::take(&mut self.watch);
        watch.look(|lasted| self.tell(lasted));
        self.watch = watch;
        let limit = if left.is_zero() { Duration::from_millis(10) } else { left.min(REST) };
        self.endpoint.rest(&self.wishes(), limit);
        Ok(())
    }

    fn check_failure(&self) -> Result<()> {
        self.endpoint.failure().map_or(Ok(()), Err)
    }

    fn check_deadline(&self) -> Result<()> {
        let deadline = self.operation.deadline();
        let is_over = || deadline.elapsed().saturating_sub(deadline.allowed()) >= self.grace();
        if deadline.has_passed() && is_over() { Err(self.late()) } else { Ok(()) }
    }

    /// What the stripes at the heads of their streams wait for.
    pub(super) fn wishes(&self) -> Vec<Wish> {
        let mut wishes: Vec<Wish> = Vec::new();
        for parcel in &self.pending {
            let channel = Channel::Collective(parcel.lane);
            let wish = Wish { peer: parcel.peer, channel, direction: parcel.direction() };
            if !wishes.contains(&wish) {
                wishes.push(wish);
            }
        }
        let (channel, direction) = (Channel::Collective(0), Direction::Out);
        for mark in &self.lane.marks {
            let wish = Wish { peer: mark.peer, channel, direction };
            if !wishes.contains(&wish) {
                wishes.push(wish);
            }
        }
        wishes
    }

    /// Fails the group; the error to return is the first one that anybody has reported.
    fn fail(&self, error: Error) -> Error {
        // Who leaves because something failed says so, on another way than its last bytes.
        let found = Instant::now();
        while error.kind() == ErrorKind::PeerFailed
            && self.endpoint.failure().is_none()
            && found.elapsed() < PARTING
        {
            self.endpoint.rest(&[], PARTING.saturating_sub(found.elapsed()));
        }
        self.endpoint.fail(&error);
        self.endpoint.failure().unwrap_or(error)
    }
}

/// Sends what is left of a stripe, as far as goes.
pub(super) fn send_rest(
    endpoint: &dyn Endpoint,
    peer: Rank,
    lane: u8,
    header: &[u8; HEADER_BYTES],
    payload: Src<'_>,
    done: usize,
) -> Result<usize> {
    let channel = Channel::Collective(lane);
    if let Some(rest) = header.get(done..).filter(|rest| !rest.is_empty()) {
        return endpoint.try_send(peer, channel, &[Src::from(rest), payload]);
    }
    let done = done - HEADER_BYTES;
    let rest = payload.slice(done, payload.len() - done);
    endpoint.try_send(peer, channel, &[rest])
}
