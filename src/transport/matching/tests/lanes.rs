//! Long messages in lanes: one receiver at a time, none kept waiting by another, and none that
//! waits for a sender in vain.

use super::world::{
    Member, Outcome, Spread, content, go_on_until, incoming, leave_alone, lent_to, outgoing, text,
    with, world,
};
use crate::base::ids::Rank;
use crate::transport::matching::link::Attach;
use crate::transport::matching::state::State;
use crate::transport::{Delivery, Incoming, PointToPoint as _, Small};
use std::sync::Arc;
use std::time::Duration;

const LONG: usize = 700_001;

fn refuse_to_read(member: &Member, from: Rank) {
    with(member, |state| state.links[from].attach = Attach::Refused);
}

#[test]
fn whoever_does_not_read_its_message_keeps_no_other_waiting() {
    let members = world(Spread::Together, 3);
    [1, 2].iter().for_each(|&rank: &Rank| refuse_to_read(&members[rank], 0));
    let stuck = incoming(Some(0), Some(1), LONG);
    let sent = members[0].post_send(outgoing(1, 1, text(1, LONG)));
    // Rank 1 asks for its message and stands still.
    let got = Arc::new(Outcome::default());
    let mut standstill = members[1].engine.core().unwrap().lock();
    standstill.state.receive(stuck, got.clone()).unwrap();
    standstill.state.progress();
    go_on_until(&[&members[0]], || with(&members[0], |state| state.lane_user) == Some(1));
    let other = incoming(Some(0), Some(1), LONG);
    let (sent_too, got_too) =
        (members[0].post_send(outgoing(2, 1, text(2, LONG))), members[2].post_receive(other));
    go_on_until(&[&members[0], &members[2]], || got_too.get().is_some());
    assert_eq!(content(lent_to(&other)), text(2, LONG));
    assert!(got.get().is_none() && sent.get().is_none());
    drop(standstill);
    assert_eq!(got.wait().unwrap().bytes, LONG);
    assert_eq!(content(lent_to(&stuck)), text(1, LONG));
    [sent, sent_too].iter().for_each(|sent| assert!(sent.wait().is_ok()));
    // The lane is free again.
    let again = incoming(Some(0), Some(1), LONG);
    let (sent, got) =
        (members[0].post_send(outgoing(2, 1, text(3, LONG))), members[2].post_receive(again));
    go_on_until(&[&members[0], &members[2]], || got.get().is_some());
    sent.wait().unwrap();
    assert_eq!(with(&members[0], |state| state.lane_user), Some(2));
}

/// A sender that waits, and looks or not, and a receiver that waits: whether that may read the
/// sender's memory at all.
fn offer_and_ask(
    members: &[Member],
    message: Incoming,
    patience: Duration,
) -> (Arc<Outcome>, Arc<Outcome>, bool) {
    members.iter().for_each(leave_alone);
    with(&members[1], |state| (state.patience, state.may_write) = (patience, false));
    let sent = members[0].post_send_and_wait(outgoing(1, 1, text(1, LONG)));
    let got = members[1].post_receive_and_wait(message);
    let may_read = with(&members[1], |state| {
        state.progress();
        state.links[0].attach == Attach::Works
    });
    (sent, got, may_read)
}

#[test]
fn a_sender_that_waits_is_asked_and_sends() {
    let members = world(Spread::Segment, 2);
    let message = incoming(Some(0), Some(1), LONG);
    let (sent, got, may_read) = offer_and_ask(&members, message, Duration::from_mins(1));
    assert_eq!(with(&members[1], |state| state.asked.len()), usize::from(may_read));
    go_on_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
    sent.wait().unwrap();
    assert_eq!(content(lent_to(&message)), text(1, LONG));
    assert_eq!(with(&members[0], |state| state.lane_user), Some(1));
    assert_eq!(with(&members[1], |state| state.asked.len()), 0);
}

#[test]
fn a_sender_that_does_not_answer_is_read() {
    let members = world(Spread::Segment, 2);
    let message = incoming(Some(0), Some(1), LONG);
    let (sent, got, may_read) = offer_and_ask(&members, message, Duration::ZERO);
    if may_read {
        // It does nothing at all.
        let standstill = members[0].engine.core().unwrap().lock();
        go_on_until(&[&members[1]], || got.get().is_some());
        assert_eq!(standstill.state.lane_user, None);
    }
    // The question comes too late, and is followed by the news that the message has been taken.
    go_on_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
    assert_eq!(sent.wait().unwrap(), Delivery { peer: 1, tag: 1, bytes: LONG });
    assert_eq!(content(lent_to(&message)), text(1, LONG));
    assert!(members[1].domain.failure().is_none());
}

#[test]
fn a_sender_that_sends_meanwhile_is_not_read() {
    let members = world(Spread::Segment, 2);
    let message = incoming(Some(0), Some(1), LONG);
    let (sent, got, _) = offer_and_ask(&members, message, Duration::from_millis(1));
    // It has taken its buffer back and begun; the receiver's patience ends meanwhile.
    let standstill = members[1].engine.core().unwrap().lock();
    with(&members[0], State::progress);
    std::thread::sleep(Duration::from_millis(2));
    drop(standstill);
    go_on_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
    sent.wait().unwrap();
    assert_eq!(content(lent_to(&message)), text(1, LONG));
    assert!(members[1].domain.failure().is_none());
}

/// Whether a message with tag 1 went without being posted.
fn send_at_once(from: &Member, to: Rank, body: Vec<u8>) -> bool {
    let message = outgoing(to, 1, body);
    let (tag, dtype, bytes) = (Some(message.tag), message.dtype, message.bytes);
    from.engine.send_at_once(&Small { peer: Some(to), tag, dtype, bytes })
}

#[test]
fn where_rings_are_short_a_whole_message_goes_in_the_lane() {
    let members = world(Spread::Together, 8);
    let len = 100_000;
    let at_once = |to, seed| send_at_once(&members[1], to, text(seed, len));
    // It holds two, and serves nobody else until they are taken.
    let standstill = members[0].engine.core().unwrap().lock();
    assert!(at_once(0, 1) && at_once(0, 2));
    assert!(!at_once(0, 3) && !at_once(2, 4));
    drop(standstill);
    let third = members[1].post_send(outgoing(0, 1, text(3, len)));
    let other = members[1].post_send(outgoing(2, 1, text(4, len)));
    for seed in 1..=3 {
        assert_eq!(members[0].receive(1, 1, len).unwrap(), text(seed, len));
    }
    assert_eq!(members[2].receive(1, 1, len).unwrap(), text(4, len));
    [third, other].iter().for_each(|sent| assert!(sent.wait().is_ok()));
    go_on_until(&[&members[2]], || at_once(2, 5));
    assert_eq!(members[2].receive(1, 1, len).unwrap(), text(5, len));
}

#[test]
fn what_is_not_long_goes_in_the_ring_while_the_lane_serves_another() {
    let members = world(Spread::Together, 8);
    let len = 5_000;
    let at_once = |to, seed| send_at_once(&members[1], to, text(seed, len));
    let lane_user = || with(&members[1], |state| state.lane_user);
    // It reads nothing meanwhile.
    let standstill = members[0].engine.core().unwrap().lock();
    assert!(at_once(0, 1) && at_once(2, 2) && at_once(0, 3) && at_once(3, 4));
    assert_eq!(lane_user(), Some(0));
    drop(standstill);
    for (to, seed) in [(3, 4), (2, 2), (0, 1), (0, 3)] {
        assert_eq!(members[to].receive(1, 1, len).unwrap(), text(seed, len));
    }
    assert!(at_once(2, 5));
    assert_eq!(lane_user(), Some(2));
    assert_eq!(members[2].receive(1, 1, len).unwrap(), text(5, len));
}

#[test]
fn whoever_sleeps_is_told_of_the_head_and_of_what_lies_in_the_lane() {
    let members = world(Spread::Together, 8);
    // Rank 0 has gone to sleep, and neither its threads nor the service thread look.
    let standstill = members[0].engine.core().unwrap().lock();
    let bell = members[0].domain.region().message_bell(0);
    bell.prepare_to_sleep();
    let before = bell.rings();
    assert!(send_at_once(&members[1], 0, text(1, 100_000)));
    assert_eq!(bell.rings() - before, 2);
    bell.awake();
    drop(standstill);
    assert_eq!(members[0].receive(1, 1, 100_000).unwrap(), text(1, 100_000));
}
