//! Tests of the message state of a group: the reports of a mismatch, and the presence messages.

use super::mismatch::MismatchedPeer;
use super::peer_history::PeerHistory;
use crate::algo::table::algorithm_name;
use crate::base::ids::{Nonce, Rank};
use crate::base::label::Label;
use crate::transport::collective_header::{CollectiveHeader, CollectiveMessageKind};
use crate::transport::{CountSpec, Descriptor, OpKind};

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
    let (stripe, stripes, number, len) = (0, 1, 1, 0);
    let fingerprint = history.call_fingerprint();
    CollectiveHeader {
        kind: CollectiveMessageKind::Data,
        stripe,
        stripes,
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
    let new = || PeerHistory::new(Nonce([1; 16]), 0, 2, algorithm_name);
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
        report.contains("agree on barrier #3 \"b\", but not on its label or the calls before it"),
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
        a.describe_mismatch(&MismatchedPeer { labels: &|_, _| panic!("asked"), ..other }, &last),
        None
    );
}

#[test]
fn mismatch_report_names_the_first_difference() {
    let new = || PeerHistory::new(Nonce([1; 16]), 0, 2, algorithm_name);
    let (mut a, mut b) = (new(), new());
    let other = Descriptor { kind: OpKind::Broadcast, root: Some(1), ..barrier(1) };
    a.enter(barrier(1));
    b.enter(other);
    let first = header(&b, other);
    assert!(a.describe_mismatch(&UNLABELLED, &first).unwrap().contains("broadcast #1 (root 1)"));
    a.enter(barrier(2));
    b.enter(barrier(2));
    // The report is the same if the header is read one operation later.
    assert!(
        a.describe_mismatch(&UNLABELLED, &first)
            .unwrap()
            .contains("called barrier #1, but {} called broadcast")
    );
    assert!(
        a.describe_mismatch(&UNLABELLED, &header(&b, barrier(2))).unwrap().contains("before it")
    );
    let mut c = new();
    c.enter(barrier(1));
    assert!(a.describe_mismatch(&UNLABELLED, &header(&c, barrier(1))).is_none());
    c.enter(barrier(2));
    c.enter(barrier(3));
    assert!(
        a.describe_mismatch(&UNLABELLED, &header(&c, barrier(3))).unwrap().contains("barrier #3")
    );
}

#[test]
fn parts_of_an_operation_are_distinguished() {
    let new = || PeerHistory::new(Nonce([1; 16]), 0, 2, algorithm_name);
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
fn forgotten_operations_are_no_mismatch() {
    let mut history = PeerHistory::new(Nonce([1; 16]), 0, 2, algorithm_name);
    history.enter(barrier(1));
    let old = header(&history, barrier(1));
    (2..=70).for_each(|sequence| history.enter(barrier(sequence)));
    assert!(history.describe_mismatch(&UNLABELLED, &old).is_none());
    let other = Descriptor { kind: OpKind::Broadcast, root: Some(1), ..barrier(7) };
    assert!(history.describe_mismatch(&UNLABELLED, &header(&history, other)).is_some());
    let other = Descriptor { sequence: 6, ..other };
    assert!(history.describe_mismatch(&UNLABELLED, &header(&history, other)).is_none());
}

#[test]
fn presence_is_sent_once_and_unread_ones_are_bounded() {
    let mut history = PeerHistory::new(Nonce([1; 16]), 0, 3, algorithm_name);
    for sequence in 1..=100 {
        history.enter(barrier(sequence));
        let header = CollectiveHeader {
            kind: CollectiveMessageKind::ArrivalNotice,
            ..header(&history, barrier(sequence))
        };
        let marked = history.queue_presence(&[1, 2], &header);
        assert_eq!(marked, !history.presence_queue.is_empty());
        assert!(!history.queue_presence(&[1, 2], &header));
        assert_eq!(history.presence_queue.len(), if sequence <= 64 { 2 } else { 0 }, "#{sequence}");
    }
    // A partly sent presence message is kept, and a presence message that is not partly sent is
    // dropped.
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
fn rank_seen_in_the_earliest_operation_is_named() {
    let mut history = PeerHistory::new(Nonce([1; 16]), 2, 5, algorithm_name);
    let seen = |history: &mut PeerHistory, rank: Rank, sequence, awaited| {
        history.peers[rank].record_seen(barrier(sequence).order_key(), None, awaited);
    };
    seen(&mut history, 0, 5, Some(1));
    seen(&mut history, 1, 4, None);
    seen(&mut history, 3, 4, None);
    seen(&mut history, 4, 6, Some(2));
    assert_eq!(history.latest_rank(&[]), None);
    assert_eq!(history.latest_rank(&[0, 1]), Some(1), "rank 0 waits for rank 1");
    assert_eq!(history.latest_rank(&[0]), Some(1), "the rank that rank 0 waits for");
    assert_eq!(history.latest_rank(&[3, 1]), Some(3), "the first of equally late ranks");
    assert_eq!(history.latest_rank(&[4]), Some(4), "rank 4 waits for this rank");
    seen(&mut history, 1, 4, Some(0));
    assert_eq!(history.latest_rank(&[0]), Some(1), "ranks that wait for each other");
}
