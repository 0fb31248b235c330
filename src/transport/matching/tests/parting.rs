//! Ranks that leave while messages are on their way.

use super::world::{Outcome, PATIENCE_MS, Spread, incoming, outgoing, text, world};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind};
use std::sync::Arc;

#[test]
fn what_a_leaver_sent_arrives_though_nothing_can_be_sent_to_it() {
    const MESSAGES: u64 = 40;
    let mut members = world(Spread::Apart, 2);
    let leaver = members.remove(1);
    let me = &members[0];
    let (first, answer) = (Arc::new(Outcome::default()), Arc::new(Outcome::default()));
    // It does all this before anybody looks.
    me.engine.core().unwrap().with(|state| {
        for turn in 0..MESSAGES {
            leaver.send(0, 1, text(turn, 1000)).unwrap();
        }
        drop(leaver);
        state.send(outgoing(1, 2, vec![1]), answer.clone()).unwrap();
        state.receive(incoming(Some(1), Some(1), 1000), first.clone()).unwrap();
    });
    first.wait().unwrap();
    for turn in 1..MESSAGES {
        assert_eq!(me.receive(1, 1, 1000).unwrap(), text(turn, 1000));
    }
    let (kind, text) = answer.error();
    assert!(kind == ErrorKind::PeerFailed && text.contains("has left"), "{text}");
    assert_eq!(me.receive(1, 1, 1000).unwrap_err().kind(), ErrorKind::PeerFailed);
    assert!(me.domain.failure().is_none());
}

#[test]
fn the_reason_may_come_after_a_rank_has_left() {
    for is_sent_to in [false, true] {
        let mut members = world(Spread::Apart, 3);
        let leaver = members.remove(1);
        let me = &members[0];
        let posted = [Arc::new(Outcome::default()), Arc::new(Outcome::default())];
        me.engine.core().unwrap().with(|state| {
            state.receive(incoming(Some(1), Some(1), 8), posted[0].clone()).unwrap();
            state.send(outgoing(1, 1, text(1, 150_000)), posted[1].clone()).unwrap();
            drop(leaver);
            if is_sent_to {
                let refused = Arc::new(Outcome::default());
                state.send(outgoing(1, 1, vec![1]), refused.clone()).unwrap();
                assert!(refused.get().is_none());
            }
            state.progress();
            me.domain.fail(&Error::new(ErrorKind::Aborted, "somebody said so"));
            state.progress();
        });
        for outcome in posted {
            assert_eq!(outcome.error(), (ErrorKind::Aborted, "somebody said so".to_owned()));
        }
    }
}

#[test]
fn a_receive_from_any_rank_survives_one_that_leaves_before_it_has_sent_what_was_asked_for() {
    let mut members = world(Spread::Apart, 3);
    let leaver = members.remove(1);
    let me = &members[0];
    let (any, bound) = (Arc::new(Outcome::default()), Arc::new(Outcome::default()));
    me.engine.core().unwrap().with(|state| {
        let offered = [1, 2].map(|tag| leaver.post_send(outgoing(0, tag, text(1, 150_000))));
        state.drain(1);
        state.receive(incoming(None, Some(1), 150_000), any.clone()).unwrap();
        state.receive(incoming(Some(1), Some(2), 150_000), bound.clone()).unwrap();
        drop(leaver);
        offered.iter().for_each(|it| assert_eq!(it.error().0, ErrorKind::Aborted));
    });
    assert_eq!(bound.error().0, ErrorKind::PeerFailed);
    assert!(any.get().is_none());
    let sent = members[1].post_send(outgoing(0, 1, text(2, 140_000)));
    let delivery = any.wait().unwrap();
    assert_eq!((delivery.peer, delivery.bytes), (2, 140_000));
    sent.wait().unwrap();
}

#[test]
fn one_that_is_there_and_cannot_be_reached_fails_the_group() {
    let members = world(Spread::Apart, 3);
    let me = &members[0];
    let waiting = Arc::new(Outcome::default());
    let refused = me.engine.core().unwrap().with(|state| {
        state.receive(incoming(Some(2), Some(1), 8), waiting.clone()).unwrap();
        let error = Error::new(ErrorKind::Connection, "no way").with_culprit(1);
        state.broken_out(1, error);
        state.send(outgoing(1, 5, vec![1]), Arc::new(Outcome::default())).unwrap_err()
    });
    for (kind, text) in [waiting.error(), (refused.kind(), refused.message().to_owned())] {
        assert!(kind == ErrorKind::Connection && text.ends_with("no way"), "{text}");
    }
    // The one that nothing reaches learns it, too.
    let limit = Deadline::after_ms(PATIENCE_MS);
    let error = loop {
        assert!(!limit.has_passed(), "nobody is told");
        match members[1].domain.failure() {
            Some(error) => break error,
            None => std::thread::yield_now(),
        }
    };
    assert!(error.kind() == ErrorKind::Connection && error.culprit() == Some(1), "{error}");
}
