//! Time-outs, ranks that leave, groups that fail.

use super::world::{Outcome, SPREADS, Spread, content, incoming, lent_to, outgoing, text, world};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::matching::frame::Frame;
use crate::transport::matching::link::{Attach, Item};
use crate::transport::matching::outstanding::ReceiveStage;
use crate::transport::matching::state::State;
use crate::transport::{Completion, Delivery, Incoming, Outgoing, PointToPoint};
use std::sync::{Arc, Barrier};

fn soon() -> Deadline {
    Deadline::after_ms(20)
}

#[test]
fn a_receive_that_comes_to_nothing_is_forgotten() {
    for spread in SPREADS {
        let members = world(spread, 2);
        let late = Incoming { deadline: soon(), ..incoming(Some(0), Some(3), 8) };
        for attended in [false, true] {
            let got = members[1].post_receive(late);
            if attended {
                drop(members[1].attend_to(&got));
            }
            let (kind, text) = got.error();
            assert_eq!(kind, ErrorKind::Timeout);
            assert!(text.contains("rank 0") && text.contains("tag 3"), "{text}");
        }
        let next = incoming(None, Some(3), 8);
        let got = members[1].post_receive(next);
        members[0].send(1, 3, vec![9; 8]).unwrap();
        got.wait().unwrap();
        assert_eq!((content(lent_to(&late)), content(lent_to(&next))), (vec![0; 8], vec![9; 8]));
        assert!(members[0].domain.failure().is_none());
    }
}

/// Meets the test twice while it is being told.
#[derive(Debug)]
struct Slow(Barrier);

impl Completion for Slow {
    fn complete(&self, outcome: Result<Delivery>) {
        outcome.unwrap();
        self.0.wait();
        self.0.wait();
    }
}

#[test]
fn what_another_thread_is_about_to_tell_is_known_of() {
    for spread in SPREADS {
        let members = world(spread, 2);
        let slow = Arc::new(Slow(Barrier::new(2)));
        let message = incoming(Some(0), Some(3), 8);
        members[1].engine.receive(message, slow.clone()).unwrap();
        assert!(!members[1].engine.is_telling());
        // The service thread takes it.
        members[0].post_send(outgoing(1, 3, text(1, 8)));
        slow.0.wait();
        assert!(members[1].engine.is_telling(), "{spread:?}");
        slow.0.wait();
        while members[1].engine.is_telling() {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn a_message_that_is_there_counts_though_the_time_has_passed_before_anybody_looked() {
    for spread in SPREADS {
        for attended in [false, true] {
            let members = world(spread, 2);
            let late = Incoming { deadline: soon(), ..incoming(Some(0), Some(3), 8) };
            let got = Arc::new(Outcome::default());
            // Nobody looks for the receiver until its time has passed.
            members[1].engine.core().unwrap().with(|state| {
                state.receive(late, got.clone()).unwrap();
                members[0].post_send(outgoing(1, 3, text(1, 8))).wait().unwrap();
                while !late.deadline.has_passed() {
                    std::hint::spin_loop();
                }
            });
            if attended {
                drop(members[1].attend_to(&got));
            }
            assert_eq!(got.wait().unwrap().bytes, 8, "{spread:?}");
        }
    }
}

#[test]
fn an_offer_that_nobody_takes_is_withdrawn() {
    for spread in SPREADS {
        let members = world(spread, 2);
        let late = Outgoing { deadline: soon(), ..outgoing(1, 3, text(1, 300_000)) };
        let (kind, message) = members[0].post_send(late).error();
        assert_eq!(kind, ErrorKind::Timeout);
        assert!(message.contains("rank 1") && message.contains("300000 bytes"), "{message}");
        // The receiver may know of it or not: it gets the next one.
        let next = incoming(Some(0), Some(3), 300_000);
        let got = members[1].post_receive(next);
        let sent = members[0].post_send(outgoing(1, 3, text(2, 300_000)));
        got.wait().unwrap();
        sent.wait().unwrap();
        assert_eq!(content(lent_to(&next)), text(2, 300_000), "{spread:?}");
        assert!(members[1].domain.failure().is_none());
        // To itself too.
        let own = Outgoing { deadline: soon(), ..outgoing(0, 3, text(1, 300_000)) };
        assert_eq!(members[0].post_send(own).error().0, ErrorKind::Timeout);
    }
}

#[test]
fn an_offer_that_was_asked_for_in_vain_is_there_for_the_next() {
    // Whether the time passes before the first piece comes is a matter of luck; both are to go
    // well.
    for spread in [Spread::Segment, Spread::Apart] {
        let members = world(spread, 2);
        let sent = members[0].post_send(outgoing(1, 3, text(1, 300_000)));
        members[1].engine.core().unwrap().with(|state| {
            state.links[0].attach = Attach::Refused;
        });
        let first =
            Incoming { deadline: Deadline::after_ms(0), ..incoming(Some(0), Some(3), 600_000) };
        let got = members[1].post_receive(first);
        let outcome = got.wait();
        let next = incoming(Some(0), None, 600_000);
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::Timeout);
            members[1].post_receive(next).wait().unwrap();
            assert_eq!(content(lent_to(&next).slice(0, 300_000)), text(1, 300_000));
        }
        sent.wait().unwrap();
        assert!(members[0].domain.failure().is_none());
    }
}

#[test]
fn a_message_that_was_sent_in_vain_is_withdrawn_whole() {
    // In vain or not, once or twice.
    for (vain, again) in [(false, false), (true, false), (true, true)] {
        let members = world(Spread::Apart, 2);
        let [first, second] = std::array::from_fn(|_| Arc::new(Outcome::default()));
        let wanted = incoming(Some(0), Some(1), 30_000);
        // Whatever is taken is taken here.
        let sent = members[1].engine.core().unwrap().with(|state| {
            let sent = members[0].post_send(outgoing(1, 1, text(1, 30_000)));
            state.drain(0);
            let number = *state.links[0].offers.keys().next().unwrap();
            let answer = |sender: &mut State| {
                sender.drain(1);
                sender.put_all();
                assert!(sender.links[1].is_idle());
            };
            state.receive(wanted, first.clone()).unwrap();
            state.put_all();
            members[0].engine.core().unwrap().with(answer);
            if vain {
                let receive = *state.receives.keys().next().unwrap();
                state.expire_receive(receive);
            }
            if again {
                state.receive(wanted, second.clone()).unwrap();
                state.put_all();
            }
            members[0].engine.core().unwrap().with(|sender| {
                sender.drain(1);
                sender.expire_send(number);
            });
            sent
        });
        assert_eq!(sent.error().0, ErrorKind::Timeout);
        match vain {
            true => assert_eq!(first.error().0, ErrorKind::Timeout),
            false => assert_eq!(first.wait().unwrap().bytes, 30_000),
        }
        if again {
            assert!(second.get().is_none());
        }
        // The next message is the next one.
        members[0].post_send(outgoing(1, 1, vec![3; 8])).wait().unwrap();
        let next = if again { second.wait() } else { members[1].post_receive(wanted).wait() };
        assert_eq!(next.unwrap().bytes, 8);
        assert!(members[1].domain.failure().is_none());
    }
}

#[test]
fn a_receive_of_an_offer_ends_once_its_sender_is_sure_to_hear_of_it() {
    for late in [false, true] {
        let members = world(Spread::Apart, 2);
        let [sent, got] = std::array::from_fn(|_| Arc::new(Outcome::default()));
        // Whatever is taken is taken here.
        let act = |one: &mut State, zero: &mut State| {
            zero.send(outgoing(1, 1, text(1, 30_000)), sent.clone()).unwrap();
            one.drain(0);
            one.receive(incoming(Some(0), Some(1), 30_000), got.clone()).unwrap();
            one.put_all();
            zero.drain(1);
            zero.put_all();
            // More than the stream holds while nobody takes it.
            for _ in 0..100 {
                let done = Arc::new(Outcome::default());
                one.send(outgoing(0, 9, text(2, 1000)), done).unwrap();
            }
            one.drain(0);
            one.put_all();
            let receive = *one.receives.keys().next().unwrap();
            assert!(matches!(one.receives[&receive].stage, ReceiveStage::Delivered(_)));
            if late {
                // Out of time, it has its message all the same.
                one.expire_receive(receive);
                assert!(one.receives.is_empty());
            }
        };
        members[1]
            .engine
            .core()
            .unwrap()
            .with(|one| members[0].engine.core().unwrap().with(|zero| act(one, zero)));
        assert!(sent.wait().is_ok() && got.wait().is_ok());
        assert!(members[0].domain.failure().is_none());
    }
}

#[test]
fn what_is_read_while_its_sender_gives_up_is_no_success() {
    for spread in [Spread::Together, Spread::Segment] {
        let members = world(spread, 2);
        let got = members[1].post_receive(incoming(Some(0), Some(1), 3 << 20));
        let sent = Arc::new(Outcome::default());
        // Nobody else makes progress for the receiver meanwhile: it is as good as stopped.
        members[1].engine.core().unwrap().with(|state| {
            members[0].engine.send(outgoing(1, 1, text(1, 3 << 20)), sent.clone()).unwrap();
            state.drain(0);
            if state.links[0].attach == Attach::Refused {
                return;
            }
            let number = *state.links[0].offers.keys().next().unwrap();
            assert!(state.is_reading(0, number));
            state.read_some();
            // The sender says why before its buffer is its own again.
            members[0].engine.core().unwrap().with(|sender| sender.expire_send(number));
            assert_eq!(sent.get().unwrap().unwrap_err().kind(), ErrorKind::Timeout);
            assert!(got.get().is_none());
            // And the reader finds that after its last read, whatever it has read.
            state.read_some();
            state.read_some();
            assert!(state.readings.is_empty());
        });
        if members[1].domain.failure().is_some() {
            assert!(got.error().1.contains("in the middle of a message"));
        } else {
            // Where memory cannot be read, it went in pieces.
            got.wait().unwrap();
        }
    }
}

#[test]
fn what_is_not_being_read_yet_can_be_given_up_by_either_side() {
    for spread in [Spread::Together, Spread::Segment] {
        let members = world(spread, 2);
        let done: [Arc<Outcome>; 6] = std::array::from_fn(|_| Arc::default());
        let [read, late, withdrawn, sent, kept, taken_back] = &done;
        members[1].engine.core().unwrap().with(|state| {
            for (tag, done) in [(1, sent), (2, kept), (3, taken_back)] {
                let message = outgoing(1, tag, text(tag.into(), 3 << 20));
                members[0].engine.send(message, done.clone()).unwrap();
            }
            state.drain(0);
            let mut numbers: Vec<u64> = state.links[0].offers.keys().copied().collect();
            numbers.sort_unstable();
            // While the first is being read, the others wait for their turn.
            for (tag, done) in [(1, read), (2, late), (3, withdrawn)] {
                state.receive(incoming(Some(0), Some(tag), 3 << 20), done.clone()).unwrap();
                if state.links[0].attach == Attach::Refused {
                    return;
                }
                let second = ReceiveStage::Asked { from: 0, number: numbers[1] };
                let second = state.receives.iter().find(|(_, it)| it.stage == second);
                let second = second.map(|(&receive, _)| receive);
                second.into_iter().for_each(|receive| state.expire_receive(receive));
            }
            members[0].engine.core().unwrap().with(|sender| sender.expire_send(numbers[2]));
        });
        if late.get().is_none() {
            // Where memory cannot be read, they went in pieces.
            continue;
        }
        assert_eq!(late.error().0, ErrorKind::Timeout);
        assert_eq!(taken_back.error().0, ErrorKind::Timeout);
        assert!(read.wait().is_ok() && sent.wait().is_ok());
        // Each side has the next one.
        members[1].post_receive(incoming(Some(0), Some(2), 3 << 20)).wait().unwrap();
        kept.wait().unwrap();
        members[0].post_send(outgoing(1, 3, vec![1])).wait().unwrap();
        assert_eq!(withdrawn.wait().unwrap().bytes, 1);
        assert!(members[1].domain.failure().is_none());
    }
}

#[test]
fn what_was_read_in_a_process_that_has_become_another_comes_in_pieces() {
    let members = world(Spread::Segment, 2);
    let wanted = incoming(Some(0), Some(1), 2 << 20);
    let got = Arc::new(Outcome::default());
    let sent = members[1].engine.core().unwrap().with(|state| {
        let sent = members[0].post_send(outgoing(1, 1, text(1, 2 << 20)));
        state.drain(0);
        state.receive(wanted, got.clone()).unwrap();
        if state.links[0].attach == Attach::Works {
            assert_eq!(state.readings.len(), 1);
            let desk = state.region().desk(0);
            desk.show_mark(desk.mark().unwrap().0, [0, 0]);
            state.read_some();
            assert!(got.get().is_none());
            assert_eq!(state.links[0].attach, Attach::Refused);
            assert_eq!(state.links[0].offers.values().next().unwrap().attempt, 1);
        }
        sent
    });
    assert_eq!(got.wait().unwrap().bytes, 2 << 20);
    assert_eq!(content(lent_to(&wanted)), text(1, 2 << 20));
    sent.wait().unwrap();
}

#[test]
fn a_rank_that_leaves_takes_its_offers_along_and_what_it_sent_stays() {
    for spread in SPREADS {
        let mut members = world(spread, 3);
        let leaver = members.remove(0);
        let two = &members[1];
        leaver.send(2, 1, vec![4; 10]).unwrap();
        let offered = leaver.post_send(outgoing(2, 2, text(1, 150_000)));
        let to_it = two.post_send(outgoing(0, 1, text(1, 150_000)));
        let from_it = two.post_receive(incoming(Some(0), Some(7), 1));
        let from_any = two.post_receive(incoming(None, Some(8), 1));
        drop(leaver);
        assert_eq!(offered.error().0, ErrorKind::Aborted);
        for outcome in [&to_it, &from_it] {
            let (kind, text) = outcome.error();
            assert_eq!(kind, ErrorKind::PeerFailed, "{spread:?}");
            assert!(text.contains("rank 0") && text.contains("has left"), "{text}");
        }
        assert_eq!(two.receive(0, 1, 10).unwrap(), [4; 10]);
        assert_eq!(two.receive(0, 2, 150_000).unwrap_err().kind(), ErrorKind::PeerFailed);
        assert_eq!(two.send(0, 2, vec![1]).unwrap_err().kind(), ErrorKind::PeerFailed);
        // Somebody else is left.
        assert!(from_any.get().is_none());
        members[0].send(2, 8, vec![1]).unwrap();
        assert_eq!(from_any.wait().unwrap().peer, 1);
        let from_any = two.post_receive(incoming(None, None, 1));
        drop(members.remove(0));
        // Nobody else is, but the rank itself.
        members[0].send(2, 9, vec![1]).unwrap();
        assert_eq!(from_any.wait().unwrap().peer, 2);
        assert!(members[0].domain.failure().is_none());
    }
}

#[test]
fn the_failure_of_the_group_ends_everything() {
    for spread in SPREADS {
        let members = world(spread, 3);
        let done = [
            members[0].post_receive(incoming(None, None, 1)),
            members[1].post_receive(incoming(Some(2), Some(1), 1)),
            members[1].post_send(outgoing(2, 9, text(1, 300_000))),
            members[2].post_send(outgoing(2, 9, text(1, 300_000))),
        ];
        let error = Error::new(ErrorKind::Aborted, "somebody said so");
        members[2].domain.fail(&error);
        members[2].endpoint.iter().for_each(|endpoint| endpoint.fail(&error));
        for outcome in &done {
            assert_eq!(outcome.error(), (ErrorKind::Aborted, "somebody said so".to_owned()));
        }
        let done = Arc::new(Outcome::default());
        let refused = members[1].engine.send(outgoing(0, 0, vec![]), done.clone());
        assert_eq!(refused.unwrap_err(), error);
        assert!(done.get().is_none());
    }
}

#[test]
fn whoever_breaks_the_rules_fails_the_group_and_is_named() {
    let frames: [&dyn Fn() -> Frame; 5] = [
        &|| Frame::Credit { bytes: 1 },
        &|| Frame::Taken { number: 1 << 40 },
        &|| Frame::Pull { number: 1 << 40, attempt: 1 },
        &|| Frame::Piece { number: 1, attempt: 1, offset: 0, len: 1, in_lane: false },
        &|| Frame::Withdraw { number: 1 },
    ];
    for spread in [Spread::Together, Spread::Apart] {
        for frame in frames {
            let members = world(spread, 2);
            let got = members[1].post_receive(incoming(Some(0), None, 1));
            members[0].engine.core().unwrap().with(|state| state.queue(1, Item::Say(frame())));
            let (kind, text) = got.error();
            assert_eq!(kind, ErrorKind::Internal);
            assert!(text.contains("rank 0"), "{text}");
        }
    }
}

#[test]
fn leaving_ends_what_is_outstanding() {
    let mut members = world(Spread::Together, 2);
    let got = members[0].post_receive(incoming(None, None, 1));
    let sent = members[0].post_send(outgoing(1, 0, text(1, 300_000)));
    drop(members.remove(0));
    assert_eq!(got.error().0, ErrorKind::Aborted);
    assert_eq!(sent.error().0, ErrorKind::Aborted);
    assert!(members[0].domain.failure().is_none());
}
