//! What a rank remembers between the operations of a group whose ranks exchange messages: its
//! history, how far it is with each peer, and what has come too early.

use crate::algo::conflict::DifferingCall;
use crate::algo::fingerprint;
use crate::algo::select::beside;
use crate::base::buffer::Dst;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank, WorldSize};
use crate::base::label::Label;
use crate::transport::frame::{Excuse, HEADER_BYTES, Header};
use crate::transport::{Channel, Descriptor, Endpoint};
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// How many operations are remembered, to say where ranks parted.
const HISTORY: usize = 64;

/// What is read ahead of a stream, so that a small message costs one call of the transport.
const AHEAD: usize = 4096;

/// How many marks of presence may be sent to a peer that nothing is heard of, so that those that it
/// does not read take less room than any stream has.
const MARKS: u32 = 64;

/// For how many labelled operations the other side is asked how it labelled them.
const ASKED: usize = 8;

/// After how many questions without an answer no more are asked.
const UNANSWERED: usize = 2;

/// Scratch memory up to this size is kept for the next operation.
const KEPT: usize = 8 << 20;

/// One operation of the past.
#[derive(Clone, Copy, Debug)]
struct Past {
    descriptor: Descriptor,
    chain: u64,
}

/// How far this rank is with another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    /// Messages posted to it, and from it.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The last operation that it was seen in ([`Descriptor::moment`]).
    pub(super) heard: u64,
    /// For whom it had waited when it was first seen there.
    pub(super) excuse: Option<Excuse>,
    /// Whom it waited for when it said last that it was there.
    pub(super) waits_for: Option<Rank>,
    /// Marks of presence that it may not have read.
    pub(super) marks: u32,
}

/// A mark of presence on its way.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) peer: Rank,
    pub(super) header: [u8; HEADER_BYTES],
    /// How much of it has gone.
    pub(super) done: usize,
}

/// The other side of a message that is not the expected one.
pub(super) struct OtherSide<'a> {
    pub(super) rank: Rank,
    pub(super) name: &'a dyn fmt::Display,
    /// [`Endpoint::labels`].
    pub(super) labels: &'a dyn Fn(Rank, u64) -> Vec<Label>,
}

/// The lane of one group.
#[derive(Debug)]
pub struct Lane {
    rank: Rank,
    chain: u64,
    past: VecDeque<Past>,
    pub(super) peers: Vec<Peer>,
    /// Marks of presence that have not gone. One of which a part has may outlast its operation, and
    /// then goes before the next message to that peer.
    pub(super) marks: Vec<Mark>,
    /// The last operation in which this rank has said that it is there ([`Descriptor::moment`]).
    marked: u64,
    ahead: HashMap<(Rank, u8), Ahead>,
    scratch: Vec<u8>,
}

impl Lane {
    /// The state of rank `rank` at the beginning of a group of `size` ranks.
    pub fn new(group: GroupId, rank: Rank, size: WorldSize) -> Self {
        Self {
            rank,
            chain: fingerprint::seed(group, size),
            past: VecDeque::new(),
            peers: vec![Peer::default(); size],
            marks: Vec::new(),
            marked: 0,
            ahead: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Enters an operation. Every operation of the group passes here, also those for which this
    /// rank exchanges no message.
    pub fn enter(&mut self, descriptor: Descriptor) {
        self.chain = fingerprint::extend(self.chain, &descriptor.encode(), &descriptor.label);
        if self.past.len() == HISTORY {
            self.past.pop_front();
        }
        self.past.push_back(Past { descriptor, chain: self.chain });
        self.marks.retain(|mark| mark.done > 0);
    }

    /// Says to the others that this rank is in an operation, once in each; true where something is
    /// to be sent.
    pub(super) fn mark(&mut self, others: &[Rank], header: &Header) -> bool {
        let moment = header.descriptor.moment();
        if self.marked == moment {
            return false;
        }
        self.marked = moment;
        let header = header.encode();
        for &peer in others {
            // Behind the rest of an older one nothing needs to be said: it will be read, or
            // nothing.
            let is_begun = self.marks.iter().any(|mark| mark.peer == peer);
            if !is_begun && self.peers[peer].marks < MARKS {
                self.peers[peer].marks += 1;
                self.marks.push(Mark { peer, header, done: 0 });
            }
        }
        !self.marks.is_empty()
    }

    /// Whether a part of a mark has gone to a peer, so that nothing else can before the rest.
    pub(super) fn has_begun_mark(&self, peer: Rank) -> bool {
        self.marks.iter().any(|mark| mark.peer == peer && mark.done > 0)
    }

    /// The fingerprint of everything that this rank has called.
    pub(super) fn chain(&self) -> u64 {
        self.chain
    }

    /// What has come on a stream and was not asked for yet.
    pub(super) fn ahead(&mut self, peer: Rank, lane: u8) -> &mut Ahead {
        self.ahead.entry((peer, lane)).or_default()
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
        if scratch.len() <= KEPT {
            self.scratch = scratch;
        }
    }

    /// Whether the history of the other side of a message differs from this side's, as far back as
    /// both remember. Returns false for an operation that this side has forgotten: a mark of
    /// presence that was not read for long may name one. The chain of every later message covers
    /// it.
    pub(super) fn differs(&self, header: &Header) -> bool {
        let theirs = header.descriptor;
        let is_forgotten = |oldest: &Past| {
            let oldest = oldest.descriptor;
            // A whole was never among the parts of an operation.
            let is_whole = theirs.part == 0 && theirs.sequence == oldest.sequence;
            theirs.moment() < oldest.moment() && !is_whole
        };
        !self.past.front().is_some_and(is_forgotten)
            && self.past_at(&theirs).is_none_or(|past| past.chain != header.chain)
    }

    /// This side's operation at the moment of another descriptor.
    fn past_at(&self, other: &Descriptor) -> Option<&Past> {
        self.past.iter().find(|past| past.descriptor.moment() == other.moment())
    }

    /// The two different calls, for an error: for the operation that the message belongs to, this
    /// side's history, and the last operation in which the two sides were in agreement. Returns
    /// `None` if the sides agree ([`Lane::differs`]).
    pub(super) fn disagreement(&self, other: &OtherSide<'_>, header: &Header) -> Option<String> {
        if !self.differs(header) {
            return None;
        }
        let theirs = header.descriptor;
        let ours = self.past_at(&theirs);
        let now = self.past.back().map(|past| past.descriptor);
        let name = other.name;
        let said = |ours: Option<Descriptor>| ours.map_or("nothing".to_owned(), |d| d.to_string());
        let labelled = |theirs: Descriptor| match theirs.label.is_none() {
            true => theirs,
            false => theirs.with_text((other.labels)(other.rank, theirs.sequence).first().copied()),
        };
        match ours {
            Some(past) if past.descriptor.without_text() != theirs => {
                let (ours, theirs) = (past.descriptor, labelled(theirs));
                let (we, they) = (beside(&ours, &theirs), beside(&theirs, &ours));
                Some(format!("called {we}, but {name} called {they}"))
            }
            Some(past) => self.differing_label(past, other).or_else(|| {
                // The label of the other side may be another one that could not be asked for.
                let but_label = if theirs.label.is_none() { "" } else { "the label of it or " };
                Some(format!(
                    "and {name} agree on {}, but not on {but_label}what came before it, after #{}",
                    past.descriptor,
                    Descriptor::sequence_at(self.peers[other.rank].heard)
                ))
            }),
            None => Some(format!("called {}, but {name} called {}", said(now), labelled(theirs))),
        }
    }

    /// The oldest operation up to `last`, of the newest [`ASKED`] with a label, that the other side
    /// labelled otherwise.
    fn differing_label(
        &self,
        last: &Past,
        OtherSide { rank, name, labels }: &OtherSide<'_>,
    ) -> Option<String> {
        let is_asked = |past: &&Past| {
            let it = past.descriptor;
            !it.label.is_none() && it.part <= 1 && it.moment() <= last.descriptor.moment()
        };
        let asked: Vec<&Past> = self.past.iter().rev().filter(is_asked).take(ASKED).collect();
        let mut unanswered = 0;
        for past in asked.into_iter().rev() {
            let ours = past.descriptor;
            let theirs = labels(*rank, ours.sequence);
            let Some(&label) = theirs.first() else {
                // Each answer that does not arrive takes its time.
                unanswered += 1;
                if unanswered == UNANSWERED {
                    break;
                }
                continue;
            };
            if label == ours.label {
                continue;
            }
            let calls = DifferingCall::of(&labels(self.rank, ours.sequence), &theirs);
            // Of an operation before the last one, only the label is known.
            let theirs = match ours.moment() == last.descriptor.moment() {
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
pub(super) struct Ahead {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Ahead {
    /// Reads what has come, as far as there is room.
    pub(super) fn fill(&mut self, endpoint: &dyn Endpoint, from: Rank, lane: u8) -> Result<usize> {
        if self.bytes.is_empty() {
            self.bytes.resize(AHEAD, 0);
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = Dst::from(&mut self.bytes[self.end..]);
        let count = endpoint.try_receive(from, Channel::Collective(lane), room)?;
        self.end += count;
        Ok(count)
    }

    /// The header that comes next, once all of it is there.
    pub(super) fn header(&self) -> Result<Option<Header>> {
        let bytes = &self.bytes[self.start..self.end];
        bytes.first_chunk::<HEADER_BYTES>().map(Header::decode).transpose()
    }

    /// Drops that header.
    pub(super) fn skip_header(&mut self) {
        self.start += HEADER_BYTES;
    }

    /// Moves bytes to where they belong; how many.
    pub(super) fn take(&mut self, into: Dst<'_>) -> usize {
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
    use crate::transport::frame::Kind;
    use crate::transport::{Extent, OpKind};

    fn barrier(sequence: u64) -> Descriptor {
        let (dtype, op, root) = (None, None, None);
        Descriptor {
            kind: OpKind::Barrier,
            dtype,
            op,
            root,
            extent: Extent::Count(0),
            sequence,
            algorithm: 1,
            part: 0,
            label: Label::NONE,
        }
    }

    fn header(lane: &Lane, descriptor: Descriptor) -> Header {
        let (stripe, stripes, epoch, number, len) = (0, 1, 0, 1, 0);
        let chain = lane.chain();
        Header {
            kind: Kind::Data,
            stripe,
            stripes,
            epoch,
            number,
            chain,
            descriptor,
            len,
            excuse: None,
        }
    }

    const UNLABELLED: OtherSide<'static> =
        OtherSide { rank: 1, name: &"{}", labels: &|_, _| Vec::new() };

    #[test]
    fn labels_that_differ_are_named() {
        let label = |text| Label::new(text).unwrap();
        let called = |sequence, text| Descriptor { label: label(text), ..barrier(sequence) };
        let new = || Lane::new(Nonce([1; 16]), 0, 2);
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
        let other = OtherSide { labels: &theirs, ..UNLABELLED };
        let last = header(&b, called(3, "a").without_text());
        // The report has the oldest difference that can be known.
        let said = a.disagreement(&other, &last).unwrap();
        assert_eq!(said, "called barrier #2 \"a\", but {} called #2 \"b\"");
        let first = header(&b, called(3, "a").without_text());
        let mut late = new();
        late.enter(called(3, "b"));
        let said = late.disagreement(&other, &first).unwrap();
        assert_eq!(said, "called barrier #3 \"b\", but {} called barrier #3 \"a\"");
        let said = a.disagreement(&UNLABELLED, &last).unwrap();
        assert!(
            said.contains(
                "agree on barrier #3 \"b\", but not on the label of it or what came before"
            ),
            "{said}"
        );
        // One side alone has a label.
        let last = header(&b, barrier(3));
        let said = a.disagreement(&other, &last).unwrap();
        assert_eq!(said, "called barrier #3 \"b\", but {} called barrier #3");
        let mut same = new();
        for (sequence, text) in [(1, "x"), (2, "a"), (3, "b")] {
            same.enter(called(sequence, text));
        }
        let last = header(&same, called(3, "b").without_text());
        assert_eq!(
            a.disagreement(&OtherSide { labels: &|_, _| panic!("asked"), ..other }, &last),
            None
        );
    }

    #[test]
    fn a_disagreement_is_found_where_it_began() {
        let new = || Lane::new(Nonce([1; 16]), 0, 2);
        let (mut a, mut b) = (new(), new());
        let other = Descriptor { kind: OpKind::Broadcast, root: Some(1), ..barrier(1) };
        a.enter(barrier(1));
        b.enter(other);
        let first = header(&b, other);
        assert!(a.disagreement(&UNLABELLED, &first).unwrap().contains("broadcast #1 (root 1)"));
        a.enter(barrier(2));
        b.enter(barrier(2));
        // Also when it is read one operation later.
        assert!(
            a.disagreement(&UNLABELLED, &first)
                .unwrap()
                .contains("called barrier #1, but {} called broadcast")
        );
        assert!(
            a.disagreement(&UNLABELLED, &header(&b, barrier(2))).unwrap().contains("before it")
        );
        let mut c = new();
        c.enter(barrier(1));
        assert!(a.disagreement(&UNLABELLED, &header(&c, barrier(1))).is_none());
        c.enter(barrier(2));
        c.enter(barrier(3));
        assert!(
            a.disagreement(&UNLABELLED, &header(&c, barrier(3))).unwrap().contains("barrier #3")
        );
    }

    #[test]
    fn parts_of_an_operation_are_told_apart() {
        let new = || Lane::new(Nonce([1; 16]), 0, 2);
        let part = |part| Descriptor { part, ..barrier(1) };
        let (mut parted, mut other, mut whole) = (new(), new(), new());
        for number in 1..=3 {
            parted.enter(part(number));
            let early = header(&parted, part(number));
            other.enter(part(number));
            assert!(other.disagreement(&UNLABELLED, &early).is_none());
        }
        whole.enter(barrier(1));
        let said = parted.disagreement(&UNLABELLED, &header(&whole, barrier(1))).unwrap();
        assert!(said.contains("part 3"), "{said}");
        let said = whole.disagreement(&UNLABELLED, &header(&parted, part(3))).unwrap();
        assert!(said.contains("part 3"), "{said}");
    }

    #[test]
    fn marks_are_made_once_and_few_lie_unread() {
        let mut lane = Lane::new(Nonce([1; 16]), 0, 3);
        for sequence in 1..=100 {
            lane.enter(barrier(sequence));
            let header = Header { kind: Kind::Presence, ..header(&lane, barrier(sequence)) };
            let marked = lane.mark(&[1, 2], &header);
            assert_eq!(marked, !lane.marks.is_empty());
            assert!(!lane.mark(&[1, 2], &header));
            assert_eq!(lane.marks.len(), if sequence <= 64 { 2 } else { 0 }, "#{sequence}");
        }
        // What has begun is kept, what has not is forgotten.
        lane.peers.iter_mut().for_each(|peer| peer.marks = 0);
        let header = Header { kind: Kind::Presence, ..header(&lane, barrier(101)) };
        assert!(lane.mark(&[1, 2], &header));
        lane.marks[0].done = 10;
        lane.enter(barrier(102));
        assert_eq!(lane.marks.len(), 1);
        assert!(lane.has_begun_mark(1) && !lane.has_begun_mark(2));
    }

    #[test]
    fn what_is_older_than_memory_is_no_disagreement() {
        let mut lane = Lane::new(Nonce([1; 16]), 0, 2);
        lane.enter(barrier(1));
        let old = header(&lane, barrier(1));
        (2..=70).for_each(|sequence| lane.enter(barrier(sequence)));
        assert!(lane.disagreement(&UNLABELLED, &old).is_none());
        let other = Descriptor { kind: OpKind::Broadcast, root: Some(1), ..barrier(7) };
        assert!(lane.disagreement(&UNLABELLED, &header(&lane, other)).is_some());
        let other = Descriptor { sequence: 6, ..other };
        assert!(lane.disagreement(&UNLABELLED, &header(&lane, other)).is_none());
    }
}
