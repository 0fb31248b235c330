//! The presence exchange in a long wait. It finds out which ranks are in the operation and which
//! rank is late, so that the timeout error names the right rank. The head of [`super::exchange`]
//! explains presence messages.

use super::exchange::{MessageExchange, PendingStripe, StripeTransfer};
use super::peer_history::PresenceMessage;
use crate::algo::Operation;
use crate::base::buffer::Src;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::log::LogLevel;
use crate::transport::collective_header::{
    BlamedRank, CollectiveHeader, CollectiveMessageKind, HEADER_BYTES,
};
use crate::transport::heartbeat::format_activity_answer;
use crate::transport::{Channel, Descriptor, StreamDirection};
use crate::wait::slow_wait::DisplaySeconds;
use std::time::Duration;

/// The wait after which a rank sends presence messages in a small group. In a larger group, a rank
/// sends them after half of the timeout.
const PRESENCE_DELAY: Duration = Duration::from_millis(250);
/// The maximum number of ranks of a small group. In a small group, a rank sends presence messages
/// to all ranks. In a larger group, this would need many streams, so a rank sends them only to its
/// team.
const MAX_ALL_PRESENCE_RANKS: usize = 64;

/// The report grace period of a rank that cannot name the late rank: the time for which it waits,
/// after its deadline, for the report of another rank.
const REPORT_GRACE: Duration = Duration::from_millis(300);

/// The report grace period of a rank that can name the late rank, if ranks share memory within
/// nodes. The ranks on the node of the late rank know more about the reason and report first.
const NODE_REPORT_GRACE: Duration = Duration::from_millis(150);

/// The maximum time for which a rank that has found a mismatch waits until its presence messages
/// are sent.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of presence messages of one rank that are consumed per poll.
const MAX_PRESENCE_PER_POLL: usize = 64;

impl MessageExchange<'_> {
    pub(super) fn presence_delay(&self) -> Duration {
        let half = self.operation.deadline().timeout() / 2;
        if self.is_small_group() { half.min(PRESENCE_DELAY) } else { half }
    }

    fn is_small_group(&self) -> bool {
        self.endpoint.size() <= MAX_ALL_PRESENCE_RANKS
    }

    /// Returns the receivers of this rank's presence messages. In a small group, the receivers are
    /// all other ranks, because a rank that called a different operation may be in a different
    /// team. In a larger group, the receivers are the other members of the team.
    fn presence_peers(&self) -> Vec<Rank> {
        let me = self.endpoint.rank();
        let others = |rank: &Rank| *rank != me;
        if self.is_small_group() {
            (0..self.endpoint.size()).filter(others).collect()
        } else {
            self.team.members().iter().copied().filter(others).collect()
        }
    }

    /// Queues this rank's presence messages, if this is the first call in the operation, and reads
    /// the presence messages of the peers. Returns whether there are messages to send, or whether
    /// bytes have arrived that may belong to a posted receive.
    pub(super) fn exchange_presence(&mut self) -> Result<bool> {
        let others = self.presence_peers();
        let has_presence_to_send = self.post_presence(&others);
        let mut received = 0;
        for peer in others {
            let is_inside = |stripe: &PendingStripe<'_>| {
                stripe.peer == peer
                    && stripe.stream == 0
                    && matches!(stripe.transfer, StripeTransfer::In { done: Some(_), .. })
            };
            if self.pending.iter().any(is_inside) {
                continue;
            }
            // The function ignores an error of the stream, because this rank may not need any
            // message from this peer.
            for _ in 0..MAX_PRESENCE_PER_POLL {
                let Ok(Some(header)) = self.next_header(peer, 0, &mut received) else { break };
                let is_later =
                    header.descriptor.order_key() > self.operation.descriptor.order_key();
                if is_later || !self.consume_presence(peer, 0, &header)? {
                    if !is_later {
                        self.check_agreement(peer, &header)?;
                    }
                    let order_key = header.descriptor.order_key();
                    self.history.peers[peer].record_seen(order_key, header.blame, None);
                    break;
                }
            }
        }
        Ok(has_presence_to_send || received > 0)
    }

    /// Queues a presence message to each of `others`, if this is the first call in the operation.
    /// Returns whether there are messages to send.
    fn post_presence(&mut self, others: &[Rank]) -> bool {
        let blamed = self.awaited_blame();
        let header = CollectiveHeader {
            kind: CollectiveMessageKind::ArrivalNotice,
            blame: blamed,
            ..self.header(0, 1, 0, 0)
        };
        self.history.queue_presence(others, &header)
    }

    /// Sends presence messages and waits until they are sent, at most [`ANNOUNCE_TIMEOUT`]. This
    /// rank calls the function before it queries a peer for a label, because it sends nothing
    /// during the query. The receivers find the mismatch by the presence message, and a rank that
    /// can query the label reports the error. The wait is necessary because the first connection to
    /// a rank takes some time.
    pub(super) fn announce_presence(&mut self) {
        let others = self.presence_peers();
        self.post_presence(&others);
        let limit = Deadline::after(ANNOUNCE_TIMEOUT);
        while self.endpoint.failure().is_none() && !limit.has_passed() {
            if self.send_presence() {
                continue;
            }
            let is_open = |presence: &PresenceMessage| {
                !self.pending.iter().any(|stripe| stripe.is_blocking(presence))
            };
            if !self.history.presence_queue.iter().any(is_open) {
                break;
            }
            self.endpoint.wait_for_streams(&self.awaited_events(), limit.remaining());
        }
    }

    /// Sends the queued presence messages, as far as the streams accept bytes and no other message
    /// is partly sent. Returns whether any bytes were sent.
    pub(super) fn send_presence(&mut self) -> bool {
        let mut moved = false;
        let (endpoint, pending) = (self.endpoint, &self.pending);
        self.history.presence_queue.retain_mut(|presence| {
            if pending.iter().any(|stripe| stripe.is_blocking(presence)) {
                return true;
            }
            let rest = Src::from(&presence.header[presence.done..]);
            let sent = endpoint.try_send(presence.peer, Channel::Collective(0), &[rest]);
            // A rank that has left needs no presence message.
            let Ok(sent) = sent else { return false };
            presence.done += sent;
            moved |= sent > 0;
            presence.done < HEADER_BYTES
        });
        moved
    }

    /// Returns the members of the team that this rank has not seen in the operation.
    fn missing_members(&self) -> Vec<Rank> {
        let order_key = self.operation.descriptor.order_key();
        let members = self.team.members().iter().copied();
        let is_missing = |&rank: &Rank| {
            rank != self.endpoint.rank() && self.history.peers[rank].last_seen_moment < order_key
        };
        members.filter(is_missing).collect()
    }

    /// Returns the peers of the pending stripes in one direction. For the direction `In`, these are
    /// the ranks whose messages this rank awaits. For the direction `Out`, these are the ranks that
    /// have not accepted all bytes of this rank's messages.
    pub(super) fn awaited_peers(&self, direction: StreamDirection) -> Vec<Rank> {
        let stripes = self.pending.iter().filter(|stripe| stripe.direction() == direction);
        let mut awaited: Vec<Rank> = stripes.map(|stripe| stripe.peer).collect();
        awaited.sort_unstable();
        awaited.dedup();
        awaited
    }

    /// Returns the ranks that are certainly late: the missing ranks for which this rank waits. A
    /// missing rank for which this rank does not wait may have finished the operation already.
    fn culprits(&self, missing: &[Rank]) -> Vec<Rank> {
        let of = |direction| {
            let mut awaited = self.awaited_peers(direction);
            awaited.retain(|rank| missing.contains(rank));
            awaited
        };
        Some(of(StreamDirection::In))
            .filter(|late| !late.is_empty())
            .unwrap_or_else(|| of(StreamDirection::Out))
    }

    /// Reports to the arrival skew, at one poll of a long wait, which of the awaited ranks have
    /// been seen in the operation. If such a rank has named a rank that it had waited for, that
    /// rank is blamed.
    pub(super) fn observe_awaited(&self, awaited: Vec<Rank>) {
        let order_key = self.operation.descriptor.order_key();
        let has_arrived = |rank: Rank| self.history.peers[rank].last_seen_moment >= order_key;
        let blame = |rank: Rank, by: Duration| match self.history.peers[rank].blame {
            Some(blamed) => (blamed.rank, by.min(blamed.waited)),
            None => (rank, by),
        };
        self.arrival_skew.observe_arrivals(awaited.into_iter(), has_arrived, blame);
    }

    /// Returns the rank that this rank has waited for in the operation, and the time of the wait.
    /// This rank sends them in its message headers, so that a peer that waits for this rank can
    /// blame the right rank.
    pub(super) fn own_blame(&self) -> Option<BlamedRank> {
        let (rank, waited) = self.operation.observer.latest_rank()?;
        BlamedRank::new(rank, waited)
    }

    pub(super) fn report_grace(&self) -> Duration {
        match (self.has_shared_nodes, self.culprits(&self.missing_members()).is_empty()) {
            (_, true) => REPORT_GRACE,
            (true, false) => NODE_REPORT_GRACE,
            (false, false) => Duration::ZERO,
        }
    }

    /// Logs a long wait.
    #[cold]
    pub(super) fn log_long_wait(&self, waited: DisplaySeconds) {
        let Operation { descriptor, group, .. } = self.operation;
        crate::log!(
            LogLevel::Warn,
            "{descriptor} of group {group}: {} has waited {waited} for {}",
            self.own_name(),
            self.describe_ranks(&self.blamed_ranks())
        );
    }

    /// Returns the ranks that this rank blames for a wait. The result is the first list in the
    /// array `late` that is not empty.
    fn blamed_ranks(&self) -> Vec<Rank> {
        let missing = self.missing_members();
        let late = [
            self.culprits(&missing),
            missing,
            self.awaited_peers(StreamDirection::In),
            self.awaited_peers(StreamDirection::Out),
        ];
        late.into_iter().find(|late| !late.is_empty()).unwrap_or_default()
    }

    /// Returns the rank that this rank waits for now, and the time since the start of the deadline.
    /// This rank sends them in its presence messages.
    fn awaited_blame(&self) -> Option<BlamedRank> {
        let mut awaited = self
            .awaited_peers(StreamDirection::In)
            .into_iter()
            .chain(self.awaited_peers(StreamDirection::Out));
        BlamedRank::new(awaited.next()?, self.operation.deadline().elapsed())
    }

    /// Describes ranks. The text contains for each rank its name, the last operation in which this
    /// rank has seen it, and its answer to a liveness query. If the described rank waits for
    /// another rank, the text continues with that rank, and so on.
    fn describe_ranks(&self, ranks: &[Rank]) -> String {
        let describe_rank = |(&rank, answer): (&Rank, Option<String>)| {
            let mut text = format!(
                "{}{}",
                self.describe_last_seen(rank),
                format_activity_answer(answer.as_deref())
            );
            for next in self.history.wait_chain(rank) {
                text = format!("{text}, and waited there for {}", self.describe_last_seen(next));
            }
            text
        };
        ranks
            .iter()
            .zip(self.endpoint.query_activities(ranks))
            .map(describe_rank)
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn describe_last_seen(&self, rank: Rank) -> String {
        let name = self.endpoint.peer(rank);
        match self.history.peers[rank].last_seen_moment {
            0 => format!("{name}, which was not seen in any operation yet"),
            heard => {
                let sequence = Descriptor::sequence_from_order_key(heard);
                format!("{name}, which was last seen in operation #{sequence}")
            }
        }
    }

    pub(super) fn timeout_error(&self) -> Error {
        let late = self.blamed_ranks();
        let Operation { descriptor, .. } = self.operation;
        let deadline = self.operation.deadline();
        let message = format!(
            "{descriptor} of {} timed out after {} ms (allowed: {} ms) waiting for {}",
            self.own_name(),
            deadline.elapsed().as_millis(),
            deadline.timeout().as_millis(),
            self.describe_ranks(&late)
        );
        let error = Error::new(ErrorKind::Timeout, message);
        match self.history.latest_rank(&late) {
            Some(rank) => error.with_culprit(rank),
            None => error,
        }
    }
}
