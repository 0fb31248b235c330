//! Random traffic between all ranks, checked against the matching rules.

use super::test_ranks::{
    NODE_SPREADS, TestCompletion, TestRank, allocating_receive, create_ranks, leak_bytes,
    read_bytes, receive_request, run_each_rank, send_request, test_payload,
};
use crate::base::ids::Rank;
use crate::transport::{ReceiveBuffer, ReceiveRequest, SendRequest};
use std::collections::HashMap;
use std::sync::{Arc, Barrier};

const RANKS: usize = 4;
const TAGS: u32 = 3;
const MESSAGES: u64 = 60;

/// Pseudo-random numbers, the same in every run.
struct TestRng(u64);

impl TestRng {
    fn random_below(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// The fields by which receives select messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveSelector {
    SourceAndTag,
    AnySource,
    AnyTag,
    Anything,
}

/// Returns the tag and the length of each message from one rank to another, in order.
fn message_plan(phase: u64, from: Rank, to: Rank) -> Vec<(u32, usize)> {
    let mut rng = TestRng(phase * 1000 + (from * RANKS + to) as u64);
    let mut message = |_| {
        let tag = u32::try_from(rng.random_below(TAGS.into())).unwrap();
        let longest = [16, 2000, 16_500, 150_000][usize::try_from(rng.random_below(4)).unwrap()];
        (tag, usize::try_from(rng.random_below(longest)).unwrap())
    };
    (0..MESSAGES).map(&mut message).collect()
}

fn seed(from: Rank, to: Rank, tag: u32, index: usize) -> u64 {
    (index as u64) << 20 | u64::from(tag) << 10 | (from * RANKS + to) as u64 | 1 << 50
}

/// Runs one rank: posts all sends and receives in some order, and checks the received messages.
fn run_rank(rank: Rank, member: &TestRank, phase: u64, naming: ReceiveSelector) {
    let mut rng = TestRng(phase << 8 | rank as u64);
    let mut counts: HashMap<(Rank, u32), usize> = HashMap::new();
    let mut sends: Vec<SendRequest> = Vec::new();
    let mut receives: Vec<ReceiveRequest> = Vec::new();
    for peer in 0..RANKS {
        for (tag, len) in message_plan(phase, rank, peer) {
            let index = counts.entry((peer, tag)).or_default();
            sends.push(send_request(peer, tag, test_payload(seed(rank, peer, tag, *index), len)));
            *index += 1;
        }
        for (tag, _) in message_plan(phase, peer, rank) {
            let from = matches!(naming, ReceiveSelector::SourceAndTag | ReceiveSelector::AnyTag)
                .then_some(peer);
            let tag = matches!(naming, ReceiveSelector::SourceAndTag | ReceiveSelector::AnySource)
                .then_some(tag);
            let grows = rng.random_below(2) == 0;
            let make = if grows { allocating_receive } else { receive_request };
            receives.push(make(from, tag, 150_000));
        }
    }
    // Shuffle the receives completely. Shuffle the sends such that the order to each rank is kept.
    for last in (1..receives.len()).rev() {
        receives.swap(last, usize::try_from(rng.random_below(last as u64 + 1)).unwrap());
    }
    let mut sent: Vec<Arc<TestCompletion>> = Vec::new();
    let mut got: Vec<(ReceiveRequest, Arc<TestCompletion>)> = Vec::new();
    let (mut sends, mut receives) = (sends.into_iter(), receives.into_iter());
    loop {
        let next = if rng.random_below(2) == 0 { sends.next() } else { None };
        sent.extend(next.map(|message| member.post_send(message)));
        let next = if rng.random_below(2) == 0 { receives.next() } else { None };
        got.extend(next.map(|message| (message, member.post_receive(message))));
        if rng.random_below(16) == 0
            && let Some((_, outcome)) = got.first()
        {
            // A caller makes progress from time to time.
            let over = || outcome.get().is_some();
            member.progress_briefly(&over);
        }
        if sends.len() == 0 && receives.len() == 0 {
            break;
        }
    }
    check(rank, member, phase, &got);
    sent.iter().for_each(|sent| assert!(member.wait_with_progress(sent).is_ok()));
}

/// Checks that each receive has the next message from its sender with its tag.
fn check(rank: Rank, member: &TestRank, phase: u64, got: &[(ReceiveRequest, Arc<TestCompletion>)]) {
    let mut counts: HashMap<(Rank, u32), usize> = HashMap::new();
    for (message, outcome) in got {
        let delivery = member.wait_with_progress(outcome).unwrap();
        let (from, tag) = (delivery.peer, delivery.tag);
        assert!(message.from.is_none_or(|it| it == from) && message.tag.is_none_or(|it| it == tag));
        let index = counts.entry((from, tag)).or_default();
        let sent = message_plan(phase, from, rank);
        let len = sent.iter().filter(|(other, _)| *other == tag).nth(*index).unwrap().1;
        assert_eq!(delivery.bytes, len);
        let bytes = match message.buffer {
            ReceiveBuffer::Borrowed(into) => read_bytes(into.slice(0, len)),
            ReceiveBuffer::Allocated { .. } => outcome.allocated_bytes(),
        };
        assert!(
            bytes == test_payload(seed(from, rank, tag, *index), len),
            "{from} to {rank}, tag {tag}"
        );
        *index += 1;
    }
}

impl TestRank {
    fn progress_briefly(&self, over: &dyn Fn() -> bool) {
        use crate::transport::PointToPoint as _;
        self.engine.progress_until(over, &crate::base::deadline::Deadline::after_ms(1));
    }
}

#[test]
fn random_traffic_follows_the_matching_rules() {
    // This memory must be leaked: a borrowed buffer must outlive the messages.
    assert!(leak_bytes(Vec::new()).is_empty());
    for spread in NODE_SPREADS {
        let barrier = Barrier::new(RANKS);
        run_each_rank(create_ranks(spread, RANKS), |rank, member| {
            let namings = [
                ReceiveSelector::SourceAndTag,
                ReceiveSelector::AnySource,
                ReceiveSelector::AnyTag,
                ReceiveSelector::Anything,
            ];
            for (phase, naming) in (1..).zip(namings) {
                run_rank(rank, member, phase, naming);
                // No receive of one phase may take a message of the next.
                barrier.wait();
            }
        });
    }
}
