//! Probes, the messages that they take out of matching, and synchronous sends.

use super::world::{
    Member, PATIENCE_MS, SPREADS, Spread, content, each, go_on_until, growing, incoming,
    leave_alone, lent_to, outgoing, text, with, world,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::transport::matching::Inner;
use crate::transport::{Incoming, Outgoing, PointToPoint, ProbeRequest, ProbedMessage};
use std::sync::Arc;
use std::time::Duration;

/// On both sides of the limit up to which a message goes whole.
const SIZES: [usize; 3] = [0, 100, 300_000];

fn request(from: Option<Rank>, tag: Option<u32>) -> ProbeRequest {
    ProbeRequest { from, tag, takes: true }
}

impl Member {
    /// Waits for a message and takes it out of matching.
    fn probe(&self, from: Option<Rank>, tag: Option<u32>) -> Result<ProbedMessage> {
        let limit = Deadline::after_ms(PATIENCE_MS);
        Ok(self.engine.probe(&request(from, tag), &limit)?.expect("a message"))
    }

    /// Looks once.
    fn glance(&self, from: Option<Rank>, tag: Option<u32>) -> Result<Option<ProbedMessage>> {
        let look = ProbeRequest { takes: false, ..request(from, tag) };
        self.engine.probe(&look, &Deadline::after_ms(0))
    }

    fn receive_probed(&self, probed: ProbedMessage) -> Result<Vec<u8>> {
        let ProbedMessage { envelope, matched } = probed;
        let message = incoming(Some(envelope.from), Some(envelope.tag), envelope.bytes);
        let outcome = Arc::new(super::world::Outcome::default());
        self.engine.receive_matched(matched.unwrap(), message, outcome.clone())?;
        self.attend_to(&outcome)?;
        Ok(content(lent_to(&message)))
    }

    fn buffered(&self) -> usize {
        with(self, |state| state.buffered)
    }
}

fn synchronous(message: Outgoing) -> Outgoing {
    Outgoing { synchronous: true, ..message }
}

#[test]
fn a_probed_message_is_out_of_matching() {
    for (spread, len) in SPREADS.into_iter().flat_map(|spread| SIZES.map(|len| (spread, len))) {
        let members = world(spread, 2);
        // Two of each: the probe takes the first.
        let sent = [1, 2].map(|seed| members[0].post_send(outgoing(1, 7, text(seed, len))));
        let probed = members[1].probe(Some(0), Some(7)).unwrap();
        let envelope = probed.envelope;
        assert_eq!((envelope.from, envelope.tag, envelope.bytes), (0, 7, len));
        assert_eq!(envelope.dtype, DataType::U8);
        assert_eq!(members[1].receive(0, 7, len).unwrap(), text(2, len), "{spread:?}, {len}");
        assert_eq!(members[1].glance(None, None), Ok(None), "{spread:?}, {len}");
        assert_eq!(members[1].receive_probed(probed).unwrap(), text(1, len));
        sent.iter().for_each(|sent| assert_eq!(sent.wait().unwrap().tag, 7));
        assert_eq!(members[1].buffered(), 0);
    }
}

#[test]
fn a_plain_probe_leaves_the_message() {
    for spread in SPREADS {
        let members = world(spread, 2);
        let look = ProbeRequest { takes: false, ..request(None, None) };
        let sent = members[0].post_send(outgoing(1, 3, text(5, 40)));
        let limit = Deadline::after_ms(PATIENCE_MS);
        for _ in 0..2 {
            let found = members[1].engine.probe(&look, &limit).unwrap().unwrap();
            assert_eq!((found.envelope.tag, found.matched), (3, None));
        }
        assert_eq!(members[1].receive(0, 3, 40).unwrap(), text(5, 40));
        sent.wait().unwrap();
    }
}

#[test]
fn a_released_message_keeps_its_place() {
    for (spread, len) in SPREADS.into_iter().flat_map(|spread| SIZES.map(|len| (spread, len))) {
        let members = world(spread, 2);
        let _sent = [1, 2, 3].map(|seed| members[0].post_send(outgoing(1, 7, text(seed, len))));
        let first = members[1].probe(Some(0), Some(7)).unwrap();
        let second = members[1].probe(None, Some(7)).unwrap();
        members[1].engine.release_matched(second.matched.unwrap());
        members[1].engine.release_matched(first.matched.unwrap());
        // Once is enough.
        members[1].engine.release_matched(first.matched.unwrap());
        for seed in [1, 2, 3] {
            assert_eq!(members[1].receive(0, 7, len).unwrap(), text(seed, len), "{spread:?}");
        }
    }
}

#[test]
fn a_released_message_goes_to_a_posted_receive() {
    let members = world(Spread::Together, 2);
    let _sent = members[0].post_send(outgoing(1, 7, text(1, 50)));
    let probed = members[1].probe(Some(0), None).unwrap();
    let message = incoming(None, Some(7), 50);
    let received = members[1].post_receive(message);
    assert!(received.get().is_none());
    members[1].engine.release_matched(probed.matched.unwrap());
    received.wait().unwrap();
    assert_eq!(content(lent_to(&message)), text(1, 50));
}

#[test]
fn a_probe_waits_for_a_message_and_for_its_time() {
    for spread in SPREADS {
        each(world(spread, 2), |rank, member| {
            if rank == 0 {
                // After the other one has begun to wait, most of the time.
                let soon = Deadline::after(Duration::from_millis(30));
                member.engine.attend(&|| false, &soon);
                member.send(1, 9, text(4, 64)).unwrap();
                assert_eq!(member.receive(1, 0, 1).unwrap(), [1]);
                return;
            }
            let limit = Deadline::after_ms(5);
            assert_eq!(member.engine.probe(&request(Some(0), Some(8)), &limit), Ok(None));
            assert!(limit.has_passed());
            let probed = member.probe(Some(0), Some(9)).unwrap();
            assert_eq!(member.receive_probed(probed).unwrap(), text(4, 64));
            member.send(0, 0, vec![1]).unwrap();
        });
    }
}

#[test]
fn a_probe_wakes_for_a_message_to_self() {
    for len in SIZES {
        let members = world(Spread::Together, 1);
        let member = &members[0];
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let waits = thread.spawn_scoped(scope, || member.probe(None, Some(2)).unwrap());
            let waits = waits.unwrap();
            while with(member, |state| state.probing) == 0 {
                std::thread::yield_now();
            }
            // Long enough to sleep.
            std::thread::park_timeout(Duration::from_millis(20));
            let sent = member.post_send(outgoing(0, 2, text(6, len)));
            let probed = waits.join().unwrap();
            assert_eq!(member.receive_probed(probed).unwrap(), text(6, len));
            sent.wait().unwrap();
        });
    }
}

#[test]
fn a_probe_ends_when_its_sender_leaves() {
    for spread in SPREADS {
        let mut members = world(spread, 2);
        let leaving = members.remove(0);
        leaving.send(1, 1, text(1, 10)).unwrap();
        drop(leaving);
        // What it sent before is found.
        let probed = members[0].probe(Some(0), None).unwrap();
        let error = members[0].probe(Some(0), None).unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(0)));
        assert_eq!(members[0].receive_probed(probed).unwrap(), text(1, 10));
    }
}

#[test]
fn an_offered_message_ends_with_its_sender() {
    for spread in SPREADS {
        let mut members = world(spread, 2);
        let leaving = members.remove(0);
        let _sent = leaving.post_send(outgoing(1, 1, text(1, 300_000)));
        let probed = members[0].probe(None, None).unwrap();
        drop(leaving);
        let error = members[0].receive_probed(probed).unwrap_err();
        // A sender that leaves withdraws its messages first, and that may be seen before the end of
        // its stream.
        let kinds = [ErrorKind::PeerFailed, ErrorKind::Aborted];
        assert!(kinds.contains(&error.kind()) && error.culprit() == Some(0), "{error}");
        assert!(with(&members[0], |state| state.receives.is_empty() && state.matched.is_empty()));
        members[0].engine.release_matched(probed.matched.unwrap());
    }
}

#[test]
fn a_withdrawn_message_ends_its_receive() {
    for spread in SPREADS {
        let members = world(spread, 2);
        let deadline = Deadline::after_ms(30);
        let sent = members[0].post_send(Outgoing { deadline, ..outgoing(1, 1, text(1, 300_000)) });
        let probed = members[1].probe(None, None).unwrap();
        assert_eq!(sent.error().0, ErrorKind::Timeout);
        let error = members[1].receive_probed(probed).unwrap_err();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::Aborted, Some(0)), "{error}");
        assert!(error.message().contains("withdrew"), "{error}");
        // The next message is not taken in its place.
        let _next = members[0].post_send(outgoing(1, 1, text(2, 10)));
        assert_eq!(members[1].receive(0, 1, 10).unwrap(), text(2, 10));
    }
}

#[test]
fn a_late_receive_returns_the_message_to_matching() {
    let members = world(Spread::Apart, 2);
    let sent = members[0].post_send(outgoing(1, 1, text(1, 300_000)));
    let ProbedMessage { envelope, matched } = members[1].probe(None, None).unwrap();
    leave_alone(&members[0]);
    let (from, tag) = (Some(envelope.from), Some(envelope.tag));
    let message =
        Incoming { deadline: Deadline::after_ms(20), ..incoming(from, tag, envelope.bytes) };
    let outcome = Arc::new(super::world::Outcome::default());
    members[1].engine.receive_matched(matched.unwrap(), message, outcome.clone()).unwrap();
    assert_eq!(outcome.error().0, ErrorKind::Timeout);
    let again = incoming(None, None, envelope.bytes);
    let received = members[1].post_receive(again);
    go_on_until(&[&members[0], &members[1]], || received.get().is_some());
    assert_eq!(content(lent_to(&again)), text(1, 300_000));
    go_on_until(&[&members[0], &members[1]], || sent.get().is_some());
}

#[test]
fn a_failed_group_ends_probes_and_what_they_took() {
    for spread in SPREADS {
        each(world(spread, 2), |rank, member| {
            if rank == 0 {
                let _sent = member.post_send(outgoing(1, 1, text(1, 300_000)));
                assert_eq!(member.receive(1, 0, 1).unwrap(), [1]);
                let reason = Error::new(ErrorKind::Aborted, "as asked");
                member.domain.fail(&reason);
                member.endpoint.iter().for_each(|endpoint| endpoint.fail(&reason));
                return;
            }
            let probed = member.probe(None, Some(1)).unwrap();
            member.send(0, 0, vec![1]).unwrap();
            let error = member.probe(None, Some(5)).unwrap_err();
            assert!(error.message().contains("as asked"), "{error}");
            let error = member.receive_probed(probed).unwrap_err();
            assert!(error.message().contains("as asked"), "{error}");
            member.engine.release_matched(probed.matched.unwrap());
        });
    }
}

#[test]
fn what_is_held_for_a_probe_stays_bounded() {
    let members = world(Spread::Together, 2);
    let len = 20_000;
    let count = 200;
    let sent: Vec<_> =
        (0..count).map(|seed| members[0].post_send(outgoing(1, 1, text(seed, len)))).collect();
    let probed: Vec<_> = (0..count).map(|_| members[1].probe(Some(0), None).unwrap()).collect();
    let limit = with(&members[1], |state| state.limits.held_bytes);
    assert!(members[1].buffered() > 0 && members[1].buffered() <= limit);
    for (seed, probed) in (0..count).zip(probed) {
        assert_eq!(members[1].receive_probed(probed).unwrap(), text(seed, len));
    }
    sent.iter().for_each(|sent| assert_eq!(sent.wait().unwrap().bytes, len));
    assert_eq!(members[1].buffered(), 0);
}

#[test]
fn a_probe_makes_a_dormant_engine() {
    let members = world(Spread::Together, 2);
    assert!(matches!(members[0].engine.0, Inner::Dormant(_)));
    members[0].engine.release_matched(1);
    assert!(members[0].engine.made().is_none());
    assert_eq!(members[0].glance(Some(1), Some(1)), Ok(None));
    assert!(members[0].engine.made().is_some());
    let error = members[0].glance(Some(2), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_synchronous_send_waits_for_its_receive() {
    for (spread, len) in SPREADS.into_iter().flat_map(|spread| SIZES.map(|len| (spread, len))) {
        let members = world(spread, 2);
        let plain = members[0].post_send(outgoing(1, 1, text(1, 100)));
        plain.wait().unwrap();
        let sent = members[0].post_send(synchronous(outgoing(1, 2, text(2, len))));
        // The receiver has it, and has posted nothing.
        let probed = members[1].probe(Some(0), Some(2)).unwrap();
        assert!(sent.get().is_none(), "{spread:?}, {len}");
        assert_eq!(members[1].receive_probed(probed).unwrap(), text(2, len));
        sent.wait().unwrap();
        assert_eq!(members[1].receive(0, 1, 100).unwrap(), text(1, 100));
        // In memory that the engine makes, and to oneself.
        let sent = members[0].post_send(synchronous(outgoing(1, 2, text(3, len))));
        let grown = members[1].post_receive(growing(Some(0), None, len));
        grown.wait().unwrap();
        assert_eq!(grown.grown(), text(3, len));
        sent.wait().unwrap();
        let own = members[0].post_send(synchronous(outgoing(0, 3, text(4, len))));
        assert!(own.get().is_none());
        assert_eq!(members[0].receive(0, 3, len).unwrap(), text(4, len));
        own.wait().unwrap();
    }
}

#[test]
fn a_synchronous_send_that_nobody_receives_is_late() {
    let members = world(Spread::Segment, 2);
    let deadline = Deadline::after_ms(20);
    let late = Outgoing { deadline, ..synchronous(outgoing(1, 2, text(2, 4))) };
    let sent = members[0].post_send(late);
    assert_eq!(sent.error().0, ErrorKind::Timeout);
    let own = members[0].post_send(Outgoing { to: 0, deadline: Deadline::after_ms(20), ..late });
    let probed = members[0].probe(Some(0), Some(2)).unwrap();
    assert_eq!(own.error().0, ErrorKind::Timeout);
    let error = members[0].receive_probed(probed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
}
