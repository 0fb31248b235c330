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

use super::peer_history::{PeerHistory, PresenceMessage};
use super::{SEGMENT_BYTES, Team};
use crate::algo::Operation;
use crate::algo::arrival_skew::ArrivalSkew;
use crate::algo::pattern::slices::owned_slice;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::collective_header::{CollectiveHeader, CollectiveMessageKind, HEADER_BYTES};
use crate::transport::heartbeat::DEPARTURE_GRACE;
use crate::transport::{Channel, Endpoint, StreamDirection, StreamInterest};
use crate::wait::slow_wait::SlowWaitWatch;
use std::time::{Duration, Instant};

/// Messages from this size on are cut into stripes: whole segments of large vectors are.
const STRIPE_MIN_BYTES: usize = SEGMENT_BYTES;

/// The incarnation of the group.
const EPOCH: u32 = 0;

/// How long a wait keeps yielding the core before it rests.
const YIELD_FOR: Duration = Duration::from_micros(1000);

/// How many rounds in which something moves a wait goes before it looks at the deadline and at
/// failures.
const ROUNDS_PER_CHECK: u32 = 1000;

/// The longest rest before a look at the deadline and at who else is there.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// One operation of the group, as far as it goes over messages.
#[derive(Debug)]
pub struct MessageOperation<'a> {
    pub(super) endpoint: &'a dyn Endpoint,
    history: &'a mut PeerHistory,
    pub(super) operation: &'a Operation<'a>,
    /// Some ranks share memory with others, and wait for those too.
    has_shared_nodes: bool,
    arrival_skew: ArrivalSkew<'a>,
}

impl<'a> MessageOperation<'a> {
    /// Enters an operation; `has_shared_nodes` says that ranks share memory inside of nodes.
    pub fn begin(
        endpoint: &'a dyn Endpoint,
        history: &'a mut PeerHistory,
        operation: &'a Operation<'a>,
        has_shared_nodes: bool,
    ) -> Self {
        history.enter(operation.descriptor);
        Self {
            endpoint,
            history,
            operation,
            has_shared_nodes,
            arrival_skew: ArrivalSkew::of(operation),
        }
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
        self.history.take_scratch(bytes)
    }

    /// Gives scratch memory back, for the next who needs some.
    pub fn return_scratch(&mut self, scratch: Vec<u8>) {
        self.history.keep_scratch(scratch);
    }

    /// Begins to exchange messages within a team.
    pub fn exchange<'x>(&'x mut self, team: Team<'x>) -> MessageExchange<'x> {
        MessageExchange {
            endpoint: self.endpoint,
            history: self.history,
            operation: self.operation,
            has_shared_nodes: self.has_shared_nodes,
            team,
            pending: Vec::new(),
            last_token: 0,
            idle_since: None,
            arrival_skew: &self.arrival_skew,
            last_completed_peer: self.endpoint.rank(),
            idle_watch: SlowWaitWatch::default(),
            has_recorded_missing: false,
        }
    }
}

/// A message that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageToken(u64);

/// Messages on their way. What is posted must have been waited for before the exchange ends.
#[derive(Debug)]
pub struct MessageExchange<'x> {
    pub(super) endpoint: &'x dyn Endpoint,
    pub(super) history: &'x mut PeerHistory,
    pub(super) operation: &'x Operation<'x>,
    pub(super) has_shared_nodes: bool,
    pub(super) team: Team<'x>,
    /// In the order of posting. Algorithms keep this short.
    pub(super) pending: Vec<PendingStripe<'x>>,
    last_token: u64,
    /// Since when nothing has moved.
    idle_since: Option<Instant>,
    pub(super) arrival_skew: &'x ArrivalSkew<'x>,
    /// Whose message was the last to be over.
    last_completed_peer: Rank,
    /// Of a wait in which nothing moves.
    idle_watch: SlowWaitWatch,
    /// Who is missing in this wait has been noted.
    has_recorded_missing: bool,
}

/// One stripe of one message.
#[derive(Debug)]
pub(super) struct PendingStripe<'x> {
    token: u64,
    pub(super) peer: Rank,
    pub(super) stream: u8,
    pub(super) transfer: StripeTransfer<'x>,
}

#[derive(Debug)]
pub(super) enum StripeTransfer<'x> {
    /// Header and payload; the first `done` bytes of both have gone.
    Out { header: [u8; HEADER_BYTES], payload: Src<'x>, done: usize },
    /// The header that must come and, once it has, the bytes of payload that are there.
    In { expected: CollectiveHeader, payload: Dst<'x>, done: Option<usize> },
}

impl PendingStripe<'_> {
    fn is_same_stream(&self, other: &Self) -> bool {
        (self.peer, self.stream, self.direction()) == (other.peer, other.stream, other.direction())
    }

    pub(super) fn direction(&self) -> StreamDirection {
        match self.transfer {
            StripeTransfer::Out { .. } => StreamDirection::Out,
            StripeTransfer::In { .. } => StreamDirection::In,
        }
    }

    /// A part of the message has gone on the stream of a mark, which must wait for the rest.
    pub(super) fn is_blocking(&self, mark: &PresenceMessage) -> bool {
        (self.peer, self.stream) == (mark.peer, 0)
            && matches!(self.transfer, StripeTransfer::Out { done: 1.., .. })
    }
}

impl<'x> MessageExchange<'x> {
    /// Posts a message to the member at a position.
    pub fn send(&mut self, position: usize, payload: Src<'x>) -> MessageToken {
        let peer = self.team.rank(position);
        self.history.peers[peer].sent += 1;
        let number = self.history.peers[peer].sent;
        self.last_token += 1;
        let stripes = self.stripe_count(payload.len());
        for stripe in 0..stripes {
            let part = owned_slice(payload.len(), stripes.into(), stripe.into());
            let header = self.header(stripe, stripes, number, payload.len());
            let header = CollectiveHeader { blame: self.own_blame(), ..header }.encode();
            let payload = payload.slice(part.start, part.len());
            let transfer = StripeTransfer::Out { header, payload, done: 0 };
            self.pending.push(PendingStripe {
                token: self.last_token,
                peer,
                stream: stripe,
                transfer,
            });
        }
        MessageToken(self.last_token)
    }

    /// Posts the end of a message from the member at a position.
    pub fn receive(&mut self, position: usize, payload: Dst<'x>) -> MessageToken {
        let peer = self.team.rank(position);
        self.history.peers[peer].received += 1;
        let number = self.history.peers[peer].received;
        self.last_token += 1;
        let stripes = self.stripe_count(payload.len());
        for stripe in 0..stripes {
            let part = owned_slice(payload.len(), stripes.into(), stripe.into());
            let expected = self.header(stripe, stripes, number, payload.len());
            let payload = payload.slice(part.start, part.len());
            let transfer = StripeTransfer::In { expected, payload, done: None };
            self.pending.push(PendingStripe {
                token: self.last_token,
                peer,
                stream: stripe,
                transfer,
            });
        }
        MessageToken(self.last_token)
    }

    /// Waits until a message has gone or come.
    ///
    /// # Errors
    /// What ended the wait: `Timeout`, `PeerFailed`, `Mismatch`, `Aborted`, `Connection`.
    pub fn wait(&mut self, token: MessageToken) -> Result<()> {
        self.wait_until(|pending| pending.iter().all(|parcel| parcel.token != token.0))
    }

    /// Waits until no more than `max_pending` posted stripes are on their way.
    ///
    /// # Errors
    /// As [`MessageExchange::wait`].
    pub fn wait_until_at_most(&mut self, max_pending: usize) -> Result<()> {
        self.wait_until(|pending| pending.len() <= max_pending)
    }

    /// Waits until everything posted has gone or come.
    ///
    /// # Errors
    /// As [`MessageExchange::wait`].
    pub fn finish(mut self) -> Result<()> {
        self.wait_until(|pending| pending.is_empty())
    }

    fn stripe_count(&self, bytes: usize) -> u8 {
        if bytes >= STRIPE_MIN_BYTES { self.endpoint.collective_streams() } else { 1 }
    }

    pub(super) fn header(
        &self,
        stripe: u8,
        stripes: u8,
        number: u64,
        len: usize,
    ) -> CollectiveHeader {
        CollectiveHeader {
            kind: CollectiveMessageKind::Data,
            stripe,
            stripes,
            epoch: EPOCH,
            message_number: number,
            call_fingerprint: self.history.call_fingerprint(),
            descriptor: self.operation.descriptor.without_label_text(),
            len: len as u64,
            blame: None,
        }
    }

    fn wait_until(&mut self, done: impl Fn(&[PendingStripe<'_>]) -> bool) -> Result<()> {
        if done(&self.pending) {
            return Ok(());
        }
        let wait_start = self.arrival_skew.start_wait();
        self.has_recorded_missing = false;
        let mut rounds = 0_u32;
        while !done(&self.pending) {
            rounds = rounds.wrapping_add(1);
            self.run_round(rounds.is_multiple_of(ROUNDS_PER_CHECK))
                .map_err(|error| self.fail(error))?;
        }
        if self.arrival_skew.has_long_wait() {
            self.observe_awaited(Vec::new());
        }
        self.arrival_skew.end_wait(wait_start, self.last_completed_peer);
        Ok(())
    }

    /// One round over everything posted; where nothing moves, or `is_check_due`, with a look at
    /// what ends the wait.
    fn run_round(&mut self, is_check_due: bool) -> Result<()> {
        if !self.progress()? {
            return self.back_off();
        }
        self.idle_since = None;
        if is_check_due {
            self.check_failure()?;
            self.check_deadline()?;
        }
        Ok(())
    }

    /// Tries everything that is posted; true if anything moved.
    fn progress(&mut self) -> Result<bool> {
        let mut moved = !self.history.presence_queue.is_empty() && self.send_presence();
        let mut i = 0;
        while let Some(parcel) = self.pending.get(i) {
            if self.pending[..i].iter().any(|earlier| earlier.is_same_stream(parcel)) {
                i += 1;
                continue;
            }
            let (bytes, over) = self.advance_stripe(i)?;
            moved |= bytes > 0;
            if over {
                self.last_completed_peer = self.pending.remove(i).peer;
            } else {
                i += 1;
            }
        }
        Ok(moved)
    }

    /// Moves one stripe on: how many bytes, and whether that was all.
    fn advance_stripe(&mut self, i: usize) -> Result<(usize, bool)> {
        let PendingStripe { peer, stream, transfer: ref mut body, .. } = self.pending[i];
        match body {
            StripeTransfer::Out { header, payload, done } => {
                if stream == 0 && self.history.has_partial_presence(peer) {
                    return Ok((0, false));
                }
                let sent = send_remaining(self.endpoint, peer, stream, header, *payload, *done)?;
                *done += sent;
                let over = *done == HEADER_BYTES + payload.len();
                if over && stream == 0 {
                    // It reads the message past the marks before it.
                    self.history.peers[peer].unread_presence = 0;
                }
                Ok((sent, over))
            }
            StripeTransfer::In { expected, payload, done } => {
                let (expected, payload, begun) = (*expected, *payload, *done);
                let mut moved = 0;
                let mut received = match begun {
                    Some(have) => have,
                    None => {
                        let found = self.match_header(peer, stream, &expected, &mut moved)?;
                        if !found {
                            return Ok((moved, false));
                        }
                        let ahead = self.history.read_ahead(peer, stream);
                        ahead.copy_out(payload)
                    }
                };
                if received < payload.len() {
                    let rest = payload.slice(received, payload.len() - received);
                    let count =
                        self.endpoint.try_receive(peer, Channel::Collective(stream), rest)?;
                    received += count;
                    moved += count;
                }
                if let StripeTransfer::In { done, .. } = &mut self.pending[i].transfer {
                    *done = Some(received);
                }
                Ok((moved, received == payload.len()))
            }
        }
    }

    /// Looks for the header that must come next; true once it has, and is the right one. One mark
    /// of presence is passed at a look, so that no number of them keeps this rank from looking at
    /// the time.
    fn match_header(
        &mut self,
        peer: Rank,
        stream: u8,
        expected: &CollectiveHeader,
        moved: &mut usize,
    ) -> Result<bool> {
        let Some(header) = self.next_header(peer, stream, moved)? else { return Ok(false) };
        *moved += 1;
        if (CollectiveHeader { blame: None, ..header }) == *expected {
            self.history.read_ahead(peer, stream).skip_header();
            let peer = &mut self.history.peers[peer];
            if peer.last_seen_moment < header.descriptor.order_key() {
                peer.blame = header.blame;
            }
            peer.last_seen_moment = header.descriptor.order_key();
            peer.awaited_rank = None;
            return Ok(true);
        }
        match self.consume_presence(peer, stream, &header)? {
            true => Ok(false),
            false => Err(self.unexpected_header_error(peer, &header, expected)),
        }
    }

    /// The header that has come on a stream, if it has.
    pub(super) fn next_header(
        &mut self,
        peer: Rank,
        stream: u8,
        moved: &mut usize,
    ) -> Result<Option<CollectiveHeader>> {
        let name = |error: Error| error.context(self.endpoint.peer(peer)).with_culprit(peer);
        let ahead = self.history.read_ahead(peer, stream);
        if ahead.header().map_err(name)?.is_none() {
            *moved += ahead.fill(self.endpoint, peer, stream)?;
        }
        self.history.read_ahead(peer, stream).header().map_err(name)
    }

    /// Takes a mark of presence of this operation, or of one before it, off the stream; false for
    /// any other header.
    pub(super) fn consume_presence(
        &mut self,
        peer: Rank,
        stream: u8,
        header: &CollectiveHeader,
    ) -> Result<bool> {
        let moment = header.descriptor.order_key();
        if header.kind != CollectiveMessageKind::ArrivalNotice
            || moment > self.operation.descriptor.order_key()
        {
            return Ok(false);
        }
        self.check_agreement(peer, header)?;
        self.history.read_ahead(peer, stream).skip_header();
        let peer = &mut self.history.peers[peer];
        if peer.last_seen_moment < moment {
            peer.blame = None;
        }
        peer.last_seen_moment = moment;
        peer.awaited_rank = header.blame.map(|excuse| excuse.rank);
        // Who calls the roll reads what has come.
        peer.unread_presence = 0;
        Ok(true)
    }

    pub(super) fn own_name(&self) -> String {
        self.endpoint.peer(self.endpoint.rank()).to_string()
    }

    /// Nothing moves: spins, yields or rests, and looks why there is nothing to wait for any more.
    fn back_off(&mut self) -> Result<()> {
        self.check_failure()?;
        let deadline = self.operation.deadline();
        let pace = self.endpoint.wait_policy();
        let spin = if pace.is_oversubscribed { Duration::ZERO } else { pace.spin_time };
        if self.idle_since.is_none() {
            self.idle_watch.reset();
        }
        let idle = self.idle_since.get_or_insert_with(Instant::now).elapsed();
        if idle < spin {
            std::hint::spin_loop();
            return Ok(());
        }
        let is_first_look = !std::mem::replace(&mut self.has_recorded_missing, true);
        self.observe_awaited(if is_first_look {
            self.awaited_peers(StreamDirection::In)
        } else {
            Vec::new()
        });
        let left = deadline.remaining();
        if idle < spin + YIELD_FOR && !left.is_zero() {
            std::thread::yield_now();
            return Ok(());
        }
        let moved = deadline.elapsed() >= self.presence_delay() && self.exchange_presence()?;
        self.check_deadline()?;
        if moved {
            return Ok(());
        }
        let mut watch = std::mem::take(&mut self.idle_watch);
        watch.check(|lasted| self.log_long_wait(lasted));
        self.idle_watch = watch;
        let limit = if left.is_zero() { Duration::from_millis(10) } else { left.min(MAX_SLEEP) };
        self.endpoint.wait_for_streams(&self.awaited_events(), limit);
        Ok(())
    }

    fn check_failure(&self) -> Result<()> {
        self.endpoint.failure().map_or(Ok(()), Err)
    }

    fn check_deadline(&self) -> Result<()> {
        let deadline = self.operation.deadline();
        let is_over =
            || deadline.elapsed().saturating_sub(deadline.timeout()) >= self.report_grace();
        if deadline.has_passed() && is_over() { Err(self.timeout_error()) } else { Ok(()) }
    }

    /// What the stripes at the heads of their streams wait for.
    pub(super) fn awaited_events(&self) -> Vec<StreamInterest> {
        let mut wishes: Vec<StreamInterest> = Vec::new();
        for parcel in &self.pending {
            let channel = Channel::Collective(parcel.stream);
            let wish = StreamInterest { peer: parcel.peer, channel, direction: parcel.direction() };
            if !wishes.contains(&wish) {
                wishes.push(wish);
            }
        }
        let (channel, direction) = (Channel::Collective(0), StreamDirection::Out);
        for mark in &self.history.presence_queue {
            let wish = StreamInterest { peer: mark.peer, channel, direction };
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
            && found.elapsed() < DEPARTURE_GRACE
        {
            self.endpoint.wait_for_streams(&[], DEPARTURE_GRACE.saturating_sub(found.elapsed()));
        }
        self.endpoint.fail(&error);
        self.endpoint.failure().unwrap_or(error)
    }
}

/// Sends what is left of a stripe, as far as goes.
pub(super) fn send_remaining(
    endpoint: &dyn Endpoint,
    peer: Rank,
    stream: u8,
    header: &[u8; HEADER_BYTES],
    payload: Src<'_>,
    done: usize,
) -> Result<usize> {
    let channel = Channel::Collective(stream);
    if let Some(rest) = header.get(done..).filter(|rest| !rest.is_empty()) {
        return endpoint.try_send(peer, channel, &[Src::from(rest), payload]);
    }
    let done = done - HEADER_BYTES;
    let rest = payload.slice(done, payload.len() - done);
    endpoint.try_send(peer, channel, &[rest])
}
