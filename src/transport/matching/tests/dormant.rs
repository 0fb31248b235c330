//! Engines that are made by the first message, and by nothing else.

use super::world::{PATIENCE_MS, Spread, incoming, outgoing, text, world};
use crate::base::deadline::Deadline;
use crate::base::error::ErrorKind;
use crate::transport::PointToPoint as _;
use crate::transport::matching::{Engine, Inner};
use crate::wait::bell::Bell;
use crate::wait::{Pace, until};
use std::time::Duration;

fn is_made(engine: &Engine) -> bool {
    match &engine.0 {
        Inner::Made(_) => true,
        Inner::Dormant(dormant) => dormant.made().is_some(),
    }
}

/// Waits for what another thread does.
fn wait_until(holds: impl Fn() -> bool) {
    let (never, deadline) = (Bell::default(), Deadline::after_ms(PATIENCE_MS));
    while !holds() {
        let slice = deadline.capped(Duration::from_millis(1));
        drop(until(&never, Pace::PATIENT, &slice, || None, || None::<()>));
        assert!(!deadline.has_passed(), "waited in vain");
    }
}

#[test]
fn the_first_message_makes_two_engines_and_a_knock_none() {
    for spread in [Spread::Together, Spread::Segment] {
        let members = world(spread, 3);
        members[0].domain.knock(1);
        members[0].domain.ring_all();
        assert!(members.iter().all(|member| !is_made(&member.engine)), "{spread:?}");
        let sent = members[0].post_send(outgoing(1, 5, text(9, 100)));
        assert_eq!(sent.wait().unwrap().bytes, 100);
        // Nobody has called anything on rank 1.
        wait_until(|| is_made(&members[1].engine));
        assert!(!is_made(&members[2].engine));
        let got = members[1].post_receive(incoming(Some(0), Some(5), 100));
        assert_eq!(got.wait().unwrap().peer, 0);
    }
}

#[test]
fn what_is_sent_before_a_rank_leaves_is_there_for_one_that_never_had_a_message() {
    let mut members = world(Spread::Together, 2);
    let (one, zero) = (members.pop().unwrap(), members.pop().unwrap());
    zero.post_send(outgoing(1, 1, text(3, 64))).wait().unwrap();
    drop(zero.engine);
    zero.domain.leave();
    assert_eq!(one.receive(0, 1, 64).unwrap(), text(3, 64));
    wait_until(|| one.engine.departed(0).is_some());
    assert_eq!(one.engine.departed(0).unwrap().kind(), ErrorKind::PeerFailed);
}

#[test]
fn a_rank_that_left_without_a_message_has_departed_too() {
    let mut members = world(Spread::Segment, 2);
    let (one, zero) = (members.pop().unwrap(), members.pop().unwrap());
    drop(zero);
    wait_until(|| one.engine.departed(0).is_some());
}
