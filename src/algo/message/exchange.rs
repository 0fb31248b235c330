//! The message protocol: how ranks without shared memory agree on the messages that they send and
//! receive.
//!
//! An operation consists of messages between pairs of ranks. To *post* a message is to register its
//! buffer for sending or receiving; the transfer happens later. The messages of an operation depend
//! only on facts that all ranks agree on. If one rank posts a send, the other rank therefore posts
//! the matching receive, in the same order.
//!
//! - **Order.** The messages from one rank to another are numbered, and arrive in the order in
//!   which they were posted. A large message is cut into *stripes*, one for each parallel stream
//!   between the two ranks. Each stripe has a header. A stream delivers its stripes in order.
//! - **Agreement.** A header contains the sender's operation and its call fingerprint, a hash
//!   chained over all operations that the sender has issued. The receiver knows the expected
//!   message number, stripe, length and fingerprint, and compares the header with them. Two ranks
//!   that issued different operations therefore detect the mismatch at the next message between
//!   them. The length in a header never determines how many bytes a rank reads.
//! - **Presence exchange.** A *presence message* is a header without a payload; it says that the
//!   sender has entered an operation. There are two cases in which ordinary messages do not show
//!   the reason of a wait. Ranks that issued different operations may wait for each other in a
//!   cycle, without any message. And in a chain of waiting ranks, only the neighbour of the late
//!   rank sees which rank is late. Therefore a rank in a long wait sends one presence message to
//!   every member, and reads the presence messages of the other members. The ranks thus find a rank
//!   that issued a different operation, and at the deadline the error names the ranks that have not
//!   entered the operation. A rank that finds no rank missing waits for the report of another rank.
//! - **Progress.** While a rank waits for one message, it makes progress on all messages that it
//!   has posted. For example, a rank whose send is blocked by a slow receiver still receives.
//!   Therefore no order of posting can deadlock, and the buffers of the streams may be small.
//!
//! The exchange borrows the posted buffers, so it cannot outlive them. Until it ends, or until the
//! algorithm waits for a sent message, the transport may send its payload again, because a
//! connection broke. An algorithm that changes a sent payload earlier does so because of bytes that
//! the receiver sent after it had the payload.
//!
//! Any failure fails the group on all nodes; the first reason is kept.

use super::peer_history::{PeerHistory, PresenceMessage};
use super::team::{MAX_POSTED_STRIPES, SEGMENT_BYTES, Team};
use crate::algo::Operation;
use crate::algo::arrival_skew::ArrivalSkew;
use crate::algo::awaited_report::AwaitedReport;
use crate::algo::pattern::pairwise;
use crate::algo::pattern::slices::owned_slice;
use crate::base::buffer::{Dst, Src};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::collective_header::{CollectiveHeader, CollectiveMessageKind, HEADER_BYTES};
use crate::transport::heartbeat::DEPARTURE_GRACE;
use crate::transport::loans::Loans;
use crate::transport::{Channel, Endpoint, StreamDirection, StreamInterest};
use crate::wait::slow_wait::SlowWaitWatch;
use crate::wait::{self, WaitPhase};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The minimum size of a message that is cut into stripes. It is the segment size of large vectors.
const STRIPE_MIN_BYTES: usize = SEGMENT_BYTES;

/// The number of rounds with progress after which a wait checks the deadline and failures.
const ROUNDS_PER_CHECK: u32 = 1000;

/// The longest sleep before a wait checks the deadline and the presence messages.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The message part of one operation of the group.
#[derive(Debug)]
pub struct MessageOperation<'a> {
    pub(super) endpoint: &'a dyn Endpoint,
    history: &'a mut PeerHistory,
    pub(super) operation: &'a Operation<'a>,
    /// Whether some ranks share memory with other ranks, and thus also wait for each other in
    /// shared memory.
    has_shared_nodes: bool,
    arrival_skew: ArrivalSkew<'a>,
}

impl<'a> MessageOperation<'a> {
    /// Starts an operation. `has_shared_nodes` tells whether ranks share memory within nodes.
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

    /// Returns this rank in the group.
    pub fn rank(&self) -> Rank {
        self.endpoint.rank()
    }

    /// Returns scratch memory of at least `bytes` bytes, with arbitrary contents.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn scratch(&mut self, bytes: usize) -> Result<Vec<u8>> {
        self.history.take_scratch(bytes)
    }

    /// Returns scratch memory for reuse.
    pub fn return_scratch(&mut self, scratch: Vec<u8>) {
        self.history.keep_scratch(scratch);
    }

    /// Starts an exchange of messages within a team.
    pub fn exchange<'x>(&'x mut self, team: Team<'x>) -> MessageExchange<'x> {
        MessageExchange {
            endpoint: self.endpoint,
            history: self.history,
            operation: self.operation,
            has_shared_nodes: self.has_shared_nodes,
            team,
            pending: Vec::new(),
            loans: Loans::to(self.endpoint),
            last_token: 0,
            idle_since: None,
            arrival_skew: &self.arrival_skew,
            last_completed_peer: self.endpoint.rank(),
            idle_watch: SlowWaitWatch::default(),
            awaited_report: AwaitedReport::of(self.operation),
            has_recorded_missing: false,
        }
    }
}

/// The token of a posted message, with which the caller can wait for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageToken {
    number: u64,
    direction: StreamDirection,
}

/// A set of pending messages. The caller must wait for every posted message before it drops the
/// exchange.
#[derive(Debug)]
pub struct MessageExchange<'x> {
    pub(super) endpoint: &'x dyn Endpoint,
    pub(super) history: &'x mut PeerHistory,
    pub(super) operation: &'x Operation<'x>,
    pub(super) has_shared_nodes: bool,
    pub(super) team: Team<'x>,
    /// The pending stripes in the order of posting. Algorithms keep this list short.
    pub(super) pending: Vec<PendingStripe<'x>>,
    /// The sent payloads that the endpoint may have to send again.
    pub(super) loans: Loans<'x>,
    last_token: u64,
    /// The time at which the present period without progress began; `None` if the last round made
    /// progress.
    idle_since: Option<Instant>,
    pub(super) arrival_skew: &'x ArrivalSkew<'x>,
    /// The peer of the message that completed last.
    pub(super) last_completed_peer: Rank,
    /// The timer for log messages about a wait without progress.
    idle_watch: SlowWaitWatch,
    awaited_report: AwaitedReport<'x>,
    /// Whether the present wait has already recorded the missing ranks.
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
    /// A stripe to send. `done` is the number of bytes that have been sent, of the header and the
    /// payload together.
    Out { header: [u8; HEADER_BYTES], payload: Src<'x>, done: usize },
    /// A stripe to receive. `done` is `None` until the expected header has arrived. After that,
    /// `done` is the number of received payload bytes.
    In { expected: CollectiveHeader, payload: Dst<'x>, done: Option<usize> },
}

impl PendingStripe<'_> {
    pub(super) fn is_same_stream(&self, other: &Self) -> bool {
        (self.peer, self.stream, self.direction()) == (other.peer, other.stream, other.direction())
    }

    pub(super) fn direction(&self) -> StreamDirection {
        match self.transfer {
            StripeTransfer::Out { .. } => StreamDirection::Out,
            StripeTransfer::In { .. } => StreamDirection::In,
        }
    }

    /// Returns whether this stripe blocks a presence message. This is the case if a part of the
    /// stripe has been sent on the stream of the presence message, because the rest of the stripe
    /// must then be sent first.
    pub(super) fn is_blocking(&self, presence: &PresenceMessage) -> bool {
        (self.peer, self.stream) == (presence.peer, 0)
            && matches!(self.transfer, StripeTransfer::Out { done: 1.., .. })
    }
}

impl<'x> MessageExchange<'x> {
    /// Posts a message to the member at a position.
    pub fn send(&mut self, position: usize, payload: Src<'x>) -> MessageToken {
        let (peer, blame) = (self.team.rank(position), self.own_blame());
        self.history.peers[peer].sent += 1;
        let number = self.history.peers[peer].sent;
        let direction = StreamDirection::Out;
        self.post(peer, direction, number, payload.len(), |header, part| StripeTransfer::Out {
            header: CollectiveHeader { blame, ..header }.encode(),
            payload: payload.range(part),
            done: 0,
        })
    }

    /// Posts the receive of a message from the member at a position.
    pub fn receive(&mut self, position: usize, payload: Dst<'x>) -> MessageToken {
        let peer = self.team.rank(position);
        self.history.peers[peer].received += 1;
        let number = self.history.peers[peer].received;
        let direction = StreamDirection::In;
        self.post(peer, direction, number, payload.len(), |expected, part| StripeTransfer::In {
            expected,
            payload: payload.range(part),
            done: None,
        })
    }

    /// Posts a message of `len` bytes in stripes.
    fn post(
        &mut self,
        peer: Rank,
        direction: StreamDirection,
        number: u64,
        len: usize,
        transfer: impl Fn(CollectiveHeader, &Range<usize>) -> StripeTransfer<'x>,
    ) -> MessageToken {
        self.last_token += 1;
        let (token, stripes) = (self.last_token, self.stripe_count(len));
        for stream in 0..stripes {
            let part = owned_slice(len, stripes.into(), stream.into());
            let transfer = transfer(self.header(stream, stripes, number, len), &part);
            self.pending.push(PendingStripe { token, peer, stream, transfer });
        }
        MessageToken { number: token, direction }
    }

    /// Waits until a message has been sent or received. After the wait for a sent message, its
    /// payload may be changed.
    ///
    /// # Errors
    /// The reason why the wait ended: `Timeout`, `PeerFailed`, `Mismatch`, `Aborted`, `Connection`.
    pub fn wait(&mut self, token: MessageToken) -> Result<()> {
        self.wait_until(|pending| pending.iter().all(|stripe| stripe.token != token.number))?;
        if token.direction == StreamDirection::Out {
            self.loans.end();
        }
        Ok(())
    }

    /// Waits until at most `max_pending` posted stripes are in flight. If none may be in flight,
    /// all payloads may be changed after the wait.
    ///
    /// # Errors
    /// As [`MessageExchange::wait`].
    pub fn wait_until_at_most(&mut self, max_pending: usize) -> Result<()> {
        self.wait_until(|pending| pending.len() <= max_pending)?;
        if max_pending == 0 {
            self.loans.end();
        }
        Ok(())
    }

    /// Waits until all posted messages have been sent or received.
    ///
    /// # Errors
    /// As [`MessageExchange::wait`].
    pub fn finish(mut self) -> Result<()> {
        self.wait_until(|pending| pending.is_empty())
    }

    /// Receives a message from every other member, and finishes the exchange. `part` returns the
    /// destination for the member at a position. The next member comes first. The number of
    /// messages in flight is limited.
    ///
    /// # Errors
    /// As [`MessageExchange::wait`].
    pub fn receive_from_all<'r: 'x>(mut self, part: impl Fn(usize) -> Dst<'r>) -> Result<()> {
        let (size, me) = (self.team.size(), self.team.own_position());
        for distance in 1..size {
            let from = pairwise::send_peer(size, me, distance);
            self.receive(from, part(from));
            self.wait_until_at_most(MAX_POSTED_STRIPES)?;
        }
        self.finish()
    }

    /// Sends a message to every other member, receives a message from every other member, and
    /// finishes the exchange. `outgoing` and `incoming` return the buffers for the member at a
    /// position. The pairs differ from round to round, so that no member receives from all members
    /// at the same time. Several rounds are in flight at the same time.
    ///
    /// # Errors
    /// As [`MessageExchange::wait`].
    pub fn exchange_with_all<'s: 'x, 'r: 'x>(
        mut self,
        outgoing: impl Fn(usize) -> Src<'s>,
        incoming: impl Fn(usize) -> Dst<'r>,
    ) -> Result<()> {
        let (size, me) = (self.team.size(), self.team.own_position());
        for distance in 1..size {
            let from = pairwise::receive_peer(size, me, distance);
            let to = pairwise::send_peer(size, me, distance);
            self.receive(from, incoming(from));
            self.send(to, outgoing(to));
            self.wait_until_at_most(MAX_POSTED_STRIPES)?;
        }
        self.finish()
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

    /// Runs one round of progress on all posted messages. If the round makes no progress, or if
    /// `is_check_due`, the function also checks for failures and for the deadline.
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

    pub(super) fn own_name(&self) -> String {
        self.endpoint.peer(self.endpoint.rank()).to_string()
    }

    /// Handles a round without progress: checks for failures and for the deadline, and spins,
    /// yields or sleeps once. The general wait function [`crate::wait::wait_until`] is not suitable
    /// here, because the caller must make progress between two sleeps.
    fn back_off(&mut self) -> Result<()> {
        self.check_failure()?;
        let deadline = self.operation.deadline();
        if self.idle_since.is_none() {
            self.idle_watch.reset();
            self.awaited_report.reset();
        }
        let idle = self.idle_since.get_or_insert_with(Instant::now).elapsed();
        let phase = self.endpoint.wait_policy().phase(idle);
        if phase == WaitPhase::Spin {
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
        if phase == WaitPhase::Yield && !left.is_zero() && wait::try_yield() {
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
        let (endpoint, pending) = (self.endpoint, &self.pending);
        self.awaited_report.check(|| needed_ranks(endpoint, pending));
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

    /// Returns the stream events that let a pending stripe or a queued presence message continue.
    pub(super) fn awaited_events(&self) -> Vec<StreamInterest> {
        let stripes = self.pending.iter().map(|stripe| StreamInterest {
            peer: stripe.peer,
            channel: Channel::Collective(stripe.stream),
            direction: stripe.direction(),
        });
        let (channel, direction) = (Channel::Collective(0), StreamDirection::Out);
        let queue = self.history.presence_queue.iter();
        let presence =
            queue.map(|presence| StreamInterest { peer: presence.peer, channel, direction });
        let mut interests: Vec<StreamInterest> = Vec::new();
        for interest in stripes.chain(presence) {
            if !interests.contains(&interest) {
                interests.push(interest);
            }
        }
        interests
    }

    /// Fails the group with this error. Returns the first error that any rank has reported.
    fn fail(&self, error: Error) -> Error {
        // A rank that leaves because of a failure closes its streams and reports the failure on a
        // different connection. This rank may see the closed stream first, so it waits for the
        // report.
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

/// Returns the ranks of the group that must take part in the operation before these stripes can
/// complete. These are the senders, and the receivers that do not read the bytes that have arrived
/// there.
fn needed_ranks(endpoint: &dyn Endpoint, pending: &[PendingStripe<'_>]) -> Vec<Rank> {
    let is_needed = |stripe: &&PendingStripe<'_>| match stripe.transfer {
        StripeTransfer::In { .. } => true,
        StripeTransfer::Out { .. } => {
            endpoint.is_held_by_receiver(stripe.peer, Channel::Collective(stripe.stream))
        }
    };
    let peers = pending.iter().filter(is_needed).map(|stripe| endpoint.peer(stripe.peer).rank);
    let mut ranks: Vec<Rank> = peers.collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}
