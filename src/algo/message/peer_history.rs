//! The state that a rank keeps between the operations of a group whose ranks exchange messages: its
//! past operations, its progress with each peer, and the read-ahead buffers.

use crate::algo::count_mismatch::LabelMismatch;
use crate::algo::fingerprint;
use crate::algo::select::describe_against;
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::label::Label;
use crate::transport::collective_header::{BlamedRank, CollectiveHeader, HEADER_BYTES};
use crate::transport::{Channel, Descriptor, Endpoint};
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// The number of past operations that a rank keeps to find the first mismatch.
const MAX_PAST_OPERATIONS: usize = 64;

/// The size of a stream's read-ahead buffer. It lets a small message take one call of the
/// transport.
const READ_AHEAD_BYTES: usize = 4096;

/// The maximum number of presence messages to a peer that sends nothing, so that the unread
/// messages take less space than any stream has.
const MAX_UNREAD_PRESENCE: u32 = 64;

/// The maximum number of labelled operations for which this rank queries the peer's label.
const MAX_LABEL_QUERIES: usize = 8;

/// The number of unanswered queries after which this rank sends no more.
const MAX_UNANSWERED_QUERIES: usize = 2;

/// The maximum size of scratch memory that is kept for the next operation.
const MAX_KEPT_SCRATCH: usize = 8 << 20;

/// One past operation.
#[derive(Clone, Copy, Debug)]
struct PastOperation {
    descriptor: Descriptor,
    call_fingerprint: u64,
}

/// The progress of this rank with a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerProgress {
    /// The number of messages posted to the peer, and from it.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The last operation in which the peer was seen ([`Descriptor::order_key`]).
    pub(super) last_seen_moment: u64,
    /// The rank for which the peer had waited when it was first seen in that operation.
    pub(super) blame: Option<BlamedRank>,
    /// The rank that the peer waited for, according to its last presence message.
    pub(super) awaited_rank: Option<Rank>,
    /// The number of presence messages that the peer may not have read.
    pub(super) unread_presence: u32,
}

/// A pending presence message.
#[derive(Debug)]
pub(super) struct PresenceMessage {
    pub(super) peer: Rank,
    pub(super) header: [u8; HEADER_BYTES],
    /// The number of bytes already sent.
    pub(super) done: usize,
}

/// The sender of a message that is not the expected one.
pub(super) struct MismatchedPeer<'a> {
    pub(super) rank: Rank,
    pub(super) name: &'a dyn fmt::Display,
    /// The function [`Endpoint::labels`].
    pub(super) labels: &'a dyn Fn(Rank, u64) -> Vec<Label>,
}

/// The message state of one group on this rank.
#[derive(Debug)]
pub struct PeerHistory {
    rank: Rank,
    call_fingerprint: u64,
    past_operations: VecDeque<PastOperation>,
    pub(super) peers: Vec<PeerProgress>,
    /// Pending presence messages. A partly sent message may outlive its operation; then the rest is
    /// sent before the next message to that peer.
    pub(super) presence_queue: Vec<PresenceMessage>,
    /// The last operation in which this rank has sent presence messages
    /// ([`Descriptor::order_key`]).
    last_presence_moment: u64,
    read_ahead: HashMap<(Rank, u8), ReadAheadBuffer>,
    scratch: Vec<u8>,
}

impl PeerHistory {
    /// Returns the state of rank `rank` at the start of a group of `size` ranks.
    pub fn new(group: GroupId, rank: Rank, size: WorldSize) -> Self {
        Self {
            rank,
            call_fingerprint: fingerprint::seed(group, size),
            past_operations: VecDeque::new(),
            peers: vec![PeerProgress::default(); size],
            presence_queue: Vec::new(),
            last_presence_moment: 0,
            read_ahead: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Enters an operation. Every operation of the group enters here, also an operation for which
    /// this rank exchanges no message.
    pub fn enter(&mut self, descriptor: Descriptor) {
        self.call_fingerprint =
            fingerprint::extend(self.call_fingerprint, &descriptor.encode(), &descriptor.label);
        if self.past_operations.len() == MAX_PAST_OPERATIONS {
            self.past_operations.pop_front();
        }
        self.past_operations
            .push_back(PastOperation { descriptor, call_fingerprint: self.call_fingerprint });
        self.presence_queue.retain(|presence| presence.done > 0);
    }

    /// Queues presence messages to the peers, once per operation. Returns whether there are
    /// messages to send.
    pub(super) fn queue_presence(&mut self, others: &[Rank], header: &CollectiveHeader) -> bool {
        let order_key = header.descriptor.order_key();
        if self.last_presence_moment == order_key {
            return false;
        }
        self.last_presence_moment = order_key;
        let header = header.encode();
        for &peer in others {
            // After a partly sent older presence message, a new one is not needed: the peer reads
            // the older one, or reads nothing.
            let is_partly_sent = self.presence_queue.iter().any(|presence| presence.peer == peer);
            if !is_partly_sent && self.peers[peer].unread_presence < MAX_UNREAD_PRESENCE {
                self.peers[peer].unread_presence += 1;
                self.presence_queue.push(PresenceMessage { peer, header, done: 0 });
            }
        }
        !self.presence_queue.is_empty()
    }

    /// Returns whether a presence message to a peer is partly sent, so that no other message can be
    /// sent before the rest.
    pub(super) fn has_partial_presence(&self, peer: Rank) -> bool {
        self.presence_queue.iter().any(|presence| presence.peer == peer && presence.done > 0)
    }

    /// Returns the call fingerprint of all operations that this rank has issued.
    pub(super) fn call_fingerprint(&self) -> u64 {
        self.call_fingerprint
    }

    /// Returns the read-ahead buffer of a stream.
    pub(super) fn read_ahead(&mut self, peer: Rank, stream: u8) -> &mut ReadAheadBuffer {
        self.read_ahead.entry((peer, stream)).or_default()
    }

    /// Returns scratch memory of at least `bytes` bytes, with arbitrary contents.
    pub(super) fn take_scratch(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let missing = bytes.saturating_sub(scratch.len());
        scratch.try_reserve_exact(missing).map_err(|_| {
            let message =
                format!("cannot allocate {bytes} bytes of scratch space for a collective");
            Error::new(ErrorKind::OutOfMemory, message)
        })?;
        scratch.resize(scratch.len() + missing, 0);
        Ok(scratch)
    }

    /// Keeps scratch memory for the next operation.
    pub(super) fn keep_scratch(&mut self, scratch: Vec<u8>) {
        if scratch.len() <= MAX_KEPT_SCRATCH {
            self.scratch = scratch;
        }
    }

    /// Returns whether the history of a message's sender differs from this rank's history, as far
    /// back as both remember. Returns false for an operation that this rank has forgotten: a
    /// presence message that was not read for long may name one. The fingerprint of every later
    /// message covers that operation.
    pub(super) fn has_different_history(&self, header: &CollectiveHeader) -> bool {
        let theirs = header.descriptor;
        let is_forgotten = |oldest: &PastOperation| {
            let oldest = oldest.descriptor;
            // A whole operation (part 0) is not a forgotten part of an operation that this rank
            // runs in parts.
            let is_whole = theirs.part == 0 && theirs.sequence == oldest.sequence;
            theirs.order_key() < oldest.order_key() && !is_whole
        };
        !self.past_operations.front().is_some_and(is_forgotten)
            && self
                .operation_at(&theirs)
                .is_none_or(|past| past.call_fingerprint != header.call_fingerprint)
    }

    /// Returns this rank's operation with the same order key as another descriptor.
    fn operation_at(&self, other: &Descriptor) -> Option<&PastOperation> {
        self.past_operations.iter().find(|past| past.descriptor.order_key() == other.order_key())
    }

    /// Returns the error text that describes the two different calls. The text contains the
    /// operation of the message, this rank's history, and the last operation in which the two ranks
    /// agreed. Returns `None` if the ranks agree ([`PeerHistory::has_different_history`]).
    pub(super) fn describe_mismatch(
        &self,
        other: &MismatchedPeer<'_>,
        header: &CollectiveHeader,
    ) -> Option<String> {
        if !self.has_different_history(header) {
            return None;
        }
        let theirs = header.descriptor;
        let ours = self.operation_at(&theirs);
        let current = self.past_operations.back().map(|past| past.descriptor);
        let name = other.name;
        let describe_own =
            |ours: Option<Descriptor>| ours.map_or("nothing".to_owned(), |d| d.to_string());
        let labelled = |theirs: Descriptor| match theirs.label.is_none() {
            true => theirs,
            false => {
                theirs.with_label_text((other.labels)(other.rank, theirs.sequence).first().copied())
            }
        };
        match ours {
            Some(past) if past.descriptor.without_label_text() != theirs => {
                let (ours, theirs) = (past.descriptor, labelled(theirs));
                let (own_call, peer_call) =
                    (describe_against(&ours, &theirs), describe_against(&theirs, &ours));
                Some(format!("called {own_call}, but {name} called {peer_call}"))
            }
            Some(past) => self.describe_label_mismatch(past, other).or_else(|| {
                // The labels may differ if the peer's label could not be queried.
                let but_label = if theirs.label.is_none() { "" } else { "its label or " };
                Some(format!(
                    "and {name} agree on {}, but not on {but_label}the calls before it, after #{}",
                    past.descriptor,
                    Descriptor::sequence_from_order_key(self.peers[other.rank].last_seen_moment)
                ))
            }),
            None => Some(format!(
                "called {}, but {name} called {}",
                describe_own(current),
                labelled(theirs)
            )),
        }
    }

    /// Finds the oldest operation up to `last`, among the newest [`MAX_LABEL_QUERIES`] with a
    /// label, that the peer labelled differently.
    fn describe_label_mismatch(
        &self,
        last: &PastOperation,
        MismatchedPeer { rank, name, labels }: &MismatchedPeer<'_>,
    ) -> Option<String> {
        let is_asked = |past: &&PastOperation| {
            let it = past.descriptor;
            !it.label.is_none() && it.part <= 1 && it.order_key() <= last.descriptor.order_key()
        };
        let queried: Vec<&PastOperation> =
            self.past_operations.iter().rev().filter(is_asked).take(MAX_LABEL_QUERIES).collect();
        let mut unanswered = 0;
        for past in queried.into_iter().rev() {
            let ours = past.descriptor;
            let theirs = labels(*rank, ours.sequence);
            let Some(&label) = theirs.first() else {
                // Each unanswered query takes its full timeout.
                unanswered += 1;
                if unanswered == MAX_UNANSWERED_QUERIES {
                    break;
                }
                continue;
            };
            if label == ours.label {
                continue;
            }
            let calls = LabelMismatch::find(&labels(self.rank, ours.sequence), &theirs);
            // For an operation before `last`, this rank knows only the peer's label.
            let theirs = match ours.order_key() == last.descriptor.order_key() {
                true => Descriptor { label, ..ours }.to_string(),
                false => format!("#{} {label}", ours.sequence),
            };
            return Some(format!("called {ours}, but {name} called {theirs}{calls}"));
        }
        None
    }
}

/// Bytes that were read from a stream before a receive consumed them.
#[derive(Debug, Default)]
pub(super) struct ReadAheadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadAheadBuffer {
    /// Reads the bytes that have arrived, as far as the buffer has space.
    pub(super) fn fill(
        &mut self,
        endpoint: &dyn Endpoint,
        from: Rank,
        stream: u8,
    ) -> Result<usize> {
        if self.bytes.is_empty() {
            self.bytes.resize(READ_AHEAD_BYTES, 0);
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = Dst::from(&mut self.bytes[self.end..]);
        let count = endpoint.try_receive(from, Channel::Collective(stream), room)?;
        self.end += count;
        Ok(count)
    }

    /// Returns the next header, after all of it has arrived.
    pub(super) fn header(&self) -> Result<Option<CollectiveHeader>> {
        let bytes = &self.bytes[self.start..self.end];
        bytes.first_chunk::<HEADER_BYTES>().map(CollectiveHeader::decode).transpose()
    }

    /// Consumes the next header.
    pub(super) fn skip_header(&mut self) {
        self.start += HEADER_BYTES;
    }

    /// Moves bytes to their destination. Returns their number.
    pub(super) fn copy_out(&mut self, into: Dst<'_>) -> usize {
        let count = into.len().min(self.end - self.start);
        let bytes = &self.bytes[self.start..self.start + count];
        into.slice(0, count).copy_from(bytes.into());
        self.start += count;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Nonce;
    use crate::transport::collective_header::CollectiveMessageKind;
    use crate::transport::{CountSpec, OpKind};

    fn barrier(sequence: u64) -> Descriptor {
        let (dtype, op, root) = (None, None, None);
        Descriptor {
            kind: OpKind::Barrier,
            dtype,
            op,
            root,
            count_spec: CountSpec::Count(0),
            sequence,
            algorithm: 1,
            part: 0,
            label: Label::NONE,
        }
    }

    fn header(history: &PeerHistory, descriptor: Descriptor) -> CollectiveHeader {
        let (stripe, stripes, epoch, number, len) = (0, 1, 0, 1, 0);
        let fingerprint = history.call_fingerprint();
        CollectiveHeader {
            kind: CollectiveMessageKind::Data,
            stripe,
            stripes,
            epoch,
            message_number: number,
            call_fingerprint: fingerprint,
            descriptor,
            len,
            blame: None,
        }
    }

    const UNLABELLED: MismatchedPeer<'static> =
        MismatchedPeer { rank: 1, name: &"{}", labels: &|_, _| Vec::new() };

    #[test]
    fn differing_labels_are_named_in_the_error() {
        let label = |text| Label::new(text).unwrap();
        let called = |sequence, text| Descriptor { label: label(text), ..barrier(sequence) };
        let new = || PeerHistory::new(Nonce([1; 16]), 0, 2);
        let (mut a, mut b) = (new(), new());
        for (sequence, ours, theirs) in [(1, "x", "x"), (2, "a", "b"), (3, "b", "a")] {
            a.enter(called(sequence, ours));
            b.enter(called(sequence, theirs));
        }
        let theirs = |_: Rank, sequence| match sequence {
            1 => vec![label("x")],
            2 => vec![label("b")],
            _ => vec![label("a")],
        };
        let other = MismatchedPeer { labels: &theirs, ..UNLABELLED };
        let last = header(&b, called(3, "a").without_label_text());
        // The report names the oldest mismatch that the rank can find.
        let report = a.describe_mismatch(&other, &last).unwrap();
        assert_eq!(report, "called barrier #2 \"a\", but {} called #2 \"b\"");
        let first = header(&b, called(3, "a").without_label_text());
        let mut late = new();
        late.enter(called(3, "b"));
        let report = late.describe_mismatch(&other, &first).unwrap();
        assert_eq!(report, "called barrier #3 \"b\", but {} called barrier #3 \"a\"");
        let report = a.describe_mismatch(&UNLABELLED, &last).unwrap();
        assert!(
            report
                .contains("agree on barrier #3 \"b\", but not on its label or the calls before it"),
            "{report}"
        );
        // Only one of the two ranks has a label.
        let last = header(&b, barrier(3));
        let report = a.describe_mismatch(&other, &last).unwrap();
        assert_eq!(report, "called barrier #3 \"b\", but {} called barrier #3");
        let mut same = new();
        for (sequence, text) in [(1, "x"), (2, "a"), (3, "b")] {
            same.enter(called(sequence, text));
        }
        let last = header(&same, called(3, "b").without_label_text());
        assert_eq!(
            a.describe_mismatch(
                &MismatchedPeer { labels: &|_, _| panic!("asked"), ..other },
                &last
            ),
            None
        );
    }

    #[test]
    fn mismatch_report_names_the_first_difference() {
        let new = || PeerHistory::new(Nonce([1; 16]), 0, 2);
        let (mut a, mut b) = (new(), new());
        let other = Descriptor { kind: OpKind::Broadcast, root: Some(1), ..barrier(1) };
        a.enter(barrier(1));
        b.enter(other);
        let first = header(&b, other);
        assert!(
            a.describe_mismatch(&UNLABELLED, &first).unwrap().contains("broadcast #1 (root 1)")
        );
        a.enter(barrier(2));
        b.enter(barrier(2));
        // The report is the same if the header is read one operation later.
        assert!(
            a.describe_mismatch(&UNLABELLED, &first)
                .unwrap()
                .contains("called barrier #1, but {} called broadcast")
        );
        assert!(
            a.describe_mismatch(&UNLABELLED, &header(&b, barrier(2)))
                .unwrap()
                .contains("before it")
        );
        let mut c = new();
        c.enter(barrier(1));
        assert!(a.describe_mismatch(&UNLABELLED, &header(&c, barrier(1))).is_none());
        c.enter(barrier(2));
        c.enter(barrier(3));
        assert!(
            a.describe_mismatch(&UNLABELLED, &header(&c, barrier(3)))
                .unwrap()
                .contains("barrier #3")
        );
    }

    #[test]
    fn parts_of_an_operation_are_distinguished() {
        let new = || PeerHistory::new(Nonce([1; 16]), 0, 2);
        let part = |part| Descriptor { part, ..barrier(1) };
        let (mut parted, mut other, mut whole) = (new(), new(), new());
        for number in 1..=3 {
            parted.enter(part(number));
            let early = header(&parted, part(number));
            other.enter(part(number));
            assert!(other.describe_mismatch(&UNLABELLED, &early).is_none());
        }
        whole.enter(barrier(1));
        let report = parted.describe_mismatch(&UNLABELLED, &header(&whole, barrier(1))).unwrap();
        assert!(report.contains("part 3"), "{report}");
        let report = whole.describe_mismatch(&UNLABELLED, &header(&parted, part(3))).unwrap();
        assert!(report.contains("part 3"), "{report}");
    }

    #[test]
    fn presence_is_sent_once_and_unread_ones_are_bounded() {
        let mut history = PeerHistory::new(Nonce([1; 16]), 0, 3);
        for sequence in 1..=100 {
            history.enter(barrier(sequence));
            let header = CollectiveHeader {
                kind: CollectiveMessageKind::ArrivalNotice,
                ..header(&history, barrier(sequence))
            };
            let marked = history.queue_presence(&[1, 2], &header);
            assert_eq!(marked, !history.presence_queue.is_empty());
            assert!(!history.queue_presence(&[1, 2], &header));
            assert_eq!(
                history.presence_queue.len(),
                if sequence <= 64 { 2 } else { 0 },
                "#{sequence}"
            );
        }
        // A partly sent presence message is kept, an unsent one is dropped.
        history.peers.iter_mut().for_each(|peer| peer.unread_presence = 0);
        let header = CollectiveHeader {
            kind: CollectiveMessageKind::ArrivalNotice,
            ..header(&history, barrier(101))
        };
        assert!(history.queue_presence(&[1, 2], &header));
        history.presence_queue[0].done = 10;
        history.enter(barrier(102));
        assert_eq!(history.presence_queue.len(), 1);
        assert!(history.has_partial_presence(1) && !history.has_partial_presence(2));
    }

    #[test]
    fn forgotten_operations_are_no_mismatch() {
        let mut history = PeerHistory::new(Nonce([1; 16]), 0, 2);
        history.enter(barrier(1));
        let old = header(&history, barrier(1));
        (2..=70).for_each(|sequence| history.enter(barrier(sequence)));
        assert!(history.describe_mismatch(&UNLABELLED, &old).is_none());
        let other = Descriptor { kind: OpKind::Broadcast, root: Some(1), ..barrier(7) };
        assert!(history.describe_mismatch(&UNLABELLED, &header(&history, other)).is_some());
        let other = Descriptor { sequence: 6, ..other };
        assert!(history.describe_mismatch(&UNLABELLED, &header(&history, other)).is_none());
    }
}
