//! What a rank remembers between the operations of a group whose ranks exchange messages: its
//! history, how far it is with each peer, and what has come too early.

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

/// How many operations are remembered, to say where ranks parted.
const MAX_PAST_OPERATIONS: usize = 64;

/// What is read ahead of a stream, so that a small message costs one call of the transport.
const READ_AHEAD_BYTES: usize = 4096;

/// How many marks of presence may be sent to a peer that nothing is heard of, so that those that it
/// does not read take less room than any stream has.
const MAX_UNREAD_PRESENCE: u32 = 64;

/// For how many labelled operations the other side is asked how it labelled them.
const MAX_LABEL_QUERIES: usize = 8;

/// After how many questions without an answer no more are asked.
const MAX_UNANSWERED_QUERIES: usize = 2;

/// Scratch memory up to this size is kept for the next operation.
const MAX_KEPT_SCRATCH: usize = 8 << 20;

/// One operation of the past.
#[derive(Clone, Copy, Debug)]
struct PastOperation {
    descriptor: Descriptor,
    call_fingerprint: u64,
}

/// How far this rank is with another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerProgress {
    /// Messages posted to it, and from it.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The last operation that it was seen in ([`Descriptor::order_key`]).
    pub(super) last_seen_moment: u64,
    /// For whom it had waited when it was first seen there.
    pub(super) blame: Option<BlamedRank>,
    /// Whom it waited for when it said last that it was there.
    pub(super) awaited_rank: Option<Rank>,
    /// Marks of presence that it may not have read.
    pub(super) unread_presence: u32,
}

/// A mark of presence on its way.
#[derive(Debug)]
pub(super) struct PresenceMessage {
    pub(super) peer: Rank,
    pub(super) header: [u8; HEADER_BYTES],
    /// How much of it has gone.
    pub(super) done: usize,
}

/// The other side of a message that is not the expected one.
pub(super) struct MismatchedPeer<'a> {
    pub(super) rank: Rank,
    pub(super) name: &'a dyn fmt::Display,
    /// [`Endpoint::labels`].
    pub(super) labels: &'a dyn Fn(Rank, u64) -> Vec<Label>,
}

/// The lane of one group.
#[derive(Debug)]
pub struct PeerHistory {
    rank: Rank,
    call_fingerprint: u64,
    past_operations: VecDeque<PastOperation>,
    pub(super) peers: Vec<PeerProgress>,
    /// Marks of presence that have not gone. One of which a part has may outlast its operation, and
    /// then goes before the next message to that peer.
    pub(super) presence_queue: Vec<PresenceMessage>,
    /// The last operation in which this rank has said that it is there ([`Descriptor::order_key`]).
    last_presence_moment: u64,
    read_ahead: HashMap<(Rank, u8), ReadAheadBuffer>,
    scratch: Vec<u8>,
}

impl PeerHistory {
    /// The state of rank `rank` at the beginning of a group of `size` ranks.
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

    /// Enters an operation. Every operation of the group passes here, also those for which this
    /// rank exchanges no message.
    pub fn enter(&mut self, descriptor: Descriptor) {
        self.call_fingerprint =
            fingerprint::extend(self.call_fingerprint, &descriptor.encode(), &descriptor.label);
        if self.past_operations.len() == MAX_PAST_OPERATIONS {
            self.past_operations.pop_front();
        }
        self.past_operations
            .push_back(PastOperation { descriptor, call_fingerprint: self.call_fingerprint });
        self.presence_queue.retain(|mark| mark.done > 0);
    }

    /// Says to the others that this rank is in an operation, once in each; true where something is
    /// to be sent.
    pub(super) fn queue_presence(&mut self, others: &[Rank], header: &CollectiveHeader) -> bool {
        let moment = header.descriptor.order_key();
        if self.last_presence_moment == moment {
            return false;
        }
        self.last_presence_moment = moment;
        let header = header.encode();
        for &peer in others {
            // Behind the rest of an older one nothing needs to be said: it will be read, or
            // nothing.
            let is_partly_sent = self.presence_queue.iter().any(|mark| mark.peer == peer);
            if !is_partly_sent && self.peers[peer].unread_presence < MAX_UNREAD_PRESENCE {
                self.peers[peer].unread_presence += 1;
                self.presence_queue.push(PresenceMessage { peer, header, done: 0 });
            }
        }
        !self.presence_queue.is_empty()
    }

    /// Whether a part of a mark has gone to a peer, so that nothing else can before the rest.
    pub(super) fn has_partial_presence(&self, peer: Rank) -> bool {
        self.presence_queue.iter().any(|mark| mark.peer == peer && mark.done > 0)
    }

    /// The fingerprint of everything that this rank has called.
    pub(super) fn call_fingerprint(&self) -> u64 {
        self.call_fingerprint
    }

    /// What has come on a stream and was not asked for yet.
    pub(super) fn read_ahead(&mut self, peer: Rank, stream: u8) -> &mut ReadAheadBuffer {
        self.read_ahead.entry((peer, stream)).or_default()
    }

    /// Scratch memory of that many bytes, with anything in it.
    pub(super) fn take_scratch(&mut self, bytes: usize) -> Result<Vec<u8>> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let missing = bytes.saturating_sub(scratch.len());
        scratch.try_reserve_exact(missing).map_err(|_| {
            let message = format!("no memory for {bytes} bytes of scratch space of a collective");
            Error::new(ErrorKind::OutOfMemory, message)
        })?;
        scratch.resize(scratch.len() + missing, 0);
        Ok(scratch)
    }

    /// Gives scratch memory back.
    pub(super) fn keep_scratch(&mut self, scratch: Vec<u8>) {
        if scratch.len() <= MAX_KEPT_SCRATCH {
            self.scratch = scratch;
        }
    }

    /// Whether the history of the other side of a message differs from this side's, as far back as
    /// both remember. Returns false for an operation that this side has forgotten: a mark of
    /// presence that was not read for long may name one. The chain of every later message covers
    /// it.
    pub(super) fn has_different_history(&self, header: &CollectiveHeader) -> bool {
        let theirs = header.descriptor;
        let is_forgotten = |oldest: &PastOperation| {
            let oldest = oldest.descriptor;
            // A whole was never among the parts of an operation.
            let is_whole = theirs.part == 0 && theirs.sequence == oldest.sequence;
            theirs.order_key() < oldest.order_key() && !is_whole
        };
        !self.past_operations.front().is_some_and(is_forgotten)
            && self
                .operation_at(&theirs)
                .is_none_or(|past| past.call_fingerprint != header.call_fingerprint)
    }

    /// This side's operation at the moment of another descriptor.
    fn operation_at(&self, other: &Descriptor) -> Option<&PastOperation> {
        self.past_operations.iter().find(|past| past.descriptor.order_key() == other.order_key())
    }

    /// The two different calls, for an error: for the operation that the message belongs to, this
    /// side's history, and the last operation in which the two sides were in agreement. Returns
    /// `None` if the sides agree ([`PeerHistory::has_different_history`]).
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
                // The label of the other side may be another one that could not be asked for.
                let but_label = if theirs.label.is_none() { "" } else { "the label of it or " };
                Some(format!(
                    "and {name} agree on {}, but not on {but_label}what came before it, after #{}",
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

    /// The oldest operation up to `last_completed_peer`, of the newest [`MAX_LABEL_QUERIES`] with a
    /// label, that the other side labelled otherwise.
    fn describe_label_mismatch(
        &self,
        last: &PastOperation,
        MismatchedPeer { rank, name, labels }: &MismatchedPeer<'_>,
    ) -> Option<String> {
        let is_asked = |past: &&PastOperation| {
            let it = past.descriptor;
            !it.label.is_none() && it.part <= 1 && it.order_key() <= last.descriptor.order_key()
        };
        let asked: Vec<&PastOperation> =
            self.past_operations.iter().rev().filter(is_asked).take(MAX_LABEL_QUERIES).collect();
        let mut unanswered = 0;
        for past in asked.into_iter().rev() {
            let ours = past.descriptor;
            let theirs = labels(*rank, ours.sequence);
            let Some(&label) = theirs.first() else {
                // Each answer that does not arrive takes its time.
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
            // Of an operation before the last one, only the label is known.
            let theirs = match ours.order_key() == last.descriptor.order_key() {
                true => Descriptor { label, ..ours }.to_string(),
                false => format!("#{} {label}", ours.sequence),
            };
            return Some(format!("called {ours}, but {name} called {theirs}{calls}"));
        }
        None
    }
}

/// Bytes that were read from a stream before they were asked for.
#[derive(Debug, Default)]
pub(super) struct ReadAheadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadAheadBuffer {
    /// Reads what has come, as far as there is room.
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

    /// The header that comes next, once all of it is there.
    pub(super) fn header(&self) -> Result<Option<CollectiveHeader>> {
        let bytes = &self.bytes[self.start..self.end];
        bytes.first_chunk::<HEADER_BYTES>().map(CollectiveHeader::decode).transpose()
    }

    /// Drops that header.
    pub(super) fn skip_header(&mut self) {
        self.start += HEADER_BYTES;
    }

    /// Moves bytes to where they belong; how many.
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

    fn header(lane: &PeerHistory, descriptor: Descriptor) -> CollectiveHeader {
        let (stripe, stripes, epoch, number, len) = (0, 1, 0, 1, 0);
        let chain = lane.call_fingerprint();
        CollectiveHeader {
            kind: CollectiveMessageKind::Data,
            stripe,
            stripes,
            epoch,
            message_number: number,
            call_fingerprint: chain,
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
        // The report has the oldest difference that can be known.
        let said = a.describe_mismatch(&other, &last).unwrap();
        assert_eq!(said, "called barrier #2 \"a\", but {} called #2 \"b\"");
        let first = header(&b, called(3, "a").without_label_text());
        let mut late = new();
        late.enter(called(3, "b"));
        let said = late.describe_mismatch(&other, &first).unwrap();
        assert_eq!(said, "called barrier #3 \"b\", but {} called barrier #3 \"a\"");
        let said = a.describe_mismatch(&UNLABELLED, &last).unwrap();
        assert!(
            said.contains(
                "agree on barrier #3 \"b\", but not on the label of it or what came before"
            ),
            "{said}"
        );
        // One side alone has a label.
        let last = header(&b, barrier(3));
        let said = a.describe_mismatch(&other, &last).unwrap();
        assert_eq!(said, "called barrier #3 \"b\", but {} called barrier #3");
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
        // Also when it is read one operation later.
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
        let said = parted.describe_mismatch(&UNLABELLED, &header(&whole, barrier(1))).unwrap();
        assert!(said.contains("part 3"), "{said}");
        let said = whole.describe_mismatch(&UNLABELLED, &header(&parted, part(3))).unwrap();
        assert!(said.contains("part 3"), "{said}");
    }

    #[test]
    fn presence_is_sent_once_and_unread_ones_are_bounded() {
        let mut lane = PeerHistory::new(Nonce([1; 16]), 0, 3);
        for sequence in 1..=100 {
            lane.enter(barrier(sequence));
            let header = CollectiveHeader {
                kind: CollectiveMessageKind::ArrivalNotice,
                ..header(&lane, barrier(sequence))
            };
            let marked = lane.queue_presence(&[1, 2], &header);
            assert_eq!(marked, !lane.presence_queue.is_empty());
            assert!(!lane.queue_presence(&[1, 2], &header));
            assert_eq!(
                lane.presence_queue.len(),
                if sequence <= 64 { 2 } else { 0 },
                "#{sequence}"
            );
        }
        // What has begun is kept, what has not is forgotten.
        lane.peers.iter_mut().for_each(|peer| peer.unread_presence = 0);
        let header = CollectiveHeader {
            kind: CollectiveMessageKind::ArrivalNotice,
            ..header(&lane, barrier(101))
        };
        assert!(lane.queue_presence(&[1, 2], &header));
        lane.presence_queue[0].done = 10;
        lane.enter(barrier(102));
        assert_eq!(lane.presence_queue.len(), 1);
        assert!(lane.has_partial_presence(1) && !lane.has_partial_presence(2));
    }

    #[test]
    fn forgotten_operations_are_no_mismatch() {
        let mut lane = PeerHistory::new(Nonce([1; 16]), 0, 2);
        lane.enter(barrier(1));
        let old = header(&lane, barrier(1));
        (2..=70).for_each(|sequence| lane.enter(barrier(sequence)));
        assert!(lane.describe_mismatch(&UNLABELLED, &old).is_none());
        let other = Descriptor { kind: OpKind::Broadcast, root: Some(1), ..barrier(7) };
        assert!(lane.describe_mismatch(&UNLABELLED, &header(&lane, other)).is_some());
        let other = Descriptor { sequence: 6, ..other };
        assert!(lane.describe_mismatch(&UNLABELLED, &header(&lane, other)).is_none());
    }
}
