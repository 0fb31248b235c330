//! Timeouts, ranks that leave, and groups that fail.

use super::test_ranks::{
    NODE_SPREADS, NodeSpread, TestCompletion, borrowed_buffer, create_ranks, read_bytes,
    receive_request, send_request, test_payload,
};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::matching::frame::MessageFrame;
use crate::transport::matching::gets::CmaAccess;
use crate::transport::matching::link::QueuedItem;
use crate::transport::matching::outstanding::ReceiveStage;
use crate::transport::matching::state::MatchingState;
use crate::transport::{Completion, Delivery, PointToPoint, ReceiveRequest, SendRequest};
use std::sync::{Arc, Barrier};

fn short_deadline() -> Deadline {
    Deadline::after_ms(20)
}

#[test]
fn expired_receive_takes_no_later_message() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        let late =
            ReceiveRequest { deadline: short_deadline(), ..receive_request(Some(0), Some(3), 8) };
        for attended in [false, true] {
            let got = members[1].post_receive(late);
            if attended {
                drop(members[1].wait_with_progress(&got));
            }
            let (kind, text) = got.error();
            assert_eq!(kind, ErrorKind::Timeout);
            assert!(text.contains("rank 0") && text.contains("tag 3"), "{text}");
        }
        let next = receive_request(None, Some(3), 8);
        let got = members[1].post_receive(next);
        members[0].send(1, 3, vec![9; 8]).unwrap();
        got.wait().unwrap();
        assert_eq!(
            (read_bytes(borrowed_buffer(&late)), read_bytes(borrowed_buffer(&next))),
            (vec![0; 8], vec![9; 8])
        );
        assert!(members[0].domain.failure().is_none());
    }
}

/// A completion that meets the test at its barrier twice while it runs.
#[derive(Debug)]
struct BlockingCompletion(Barrier);

impl Completion for BlockingCompletion {
    fn complete(&self, outcome: Result<Delivery>) {
        outcome.unwrap();
        self.0.wait();
        self.0.wait();
    }
}

#[test]
fn completion_in_progress_is_visible_to_other_threads() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        let slow = Arc::new(BlockingCompletion(Barrier::new(2)));
        let message = receive_request(Some(0), Some(3), 8);
        members[1].engine.receive(message, slow.clone()).unwrap();
        assert!(!members[1].engine.is_completing());
        // The service thread receives the message.
        members[0].post_send(send_request(1, 3, test_payload(1, 8)));
        slow.0.wait();
        assert!(members[1].engine.is_completing(), "{spread:?}");
        slow.0.wait();
        while members[1].engine.is_completing() {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn message_present_at_expiry_is_delivered() {
    for spread in NODE_SPREADS {
        for attended in [false, true] {
            let members = create_ranks(spread, 2);
            let late = ReceiveRequest {
                deadline: short_deadline(),
                ..receive_request(Some(0), Some(3), 8)
            };
            let got = Arc::new(TestCompletion::default());
            // No thread polls for the receiver until its deadline has passed.
            members[1].engine.core().unwrap().with_state(|state| {
                state.receive(late, got.clone()).unwrap();
                members[0].post_send(send_request(1, 3, test_payload(1, 8))).wait().unwrap();
                while !late.deadline.has_passed() {
                    std::hint::spin_loop();
                }
            });
            if attended {
                drop(members[1].wait_with_progress(&got));
            }
            assert_eq!(got.wait().unwrap().bytes, 8, "{spread:?}");
        }
    }
}

#[test]
fn unaccepted_rts_is_cancelled_at_the_deadline() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        let late = SendRequest {
            deadline: short_deadline(),
            ..send_request(1, 3, test_payload(1, 300_000))
        };
        let (kind, message) = members[0].post_send(late).error();
        assert_eq!(kind, ErrorKind::Timeout);
        assert!(message.contains("rank 1") && message.contains("300000 bytes"), "{message}");
        // The receiver gets the next message, whether or not it has seen the RTS of the cancelled
        // message.
        let next = receive_request(Some(0), Some(3), 300_000);
        let got = members[1].post_receive(next);
        let sent = members[0].post_send(send_request(1, 3, test_payload(2, 300_000)));
        got.wait().unwrap();
        sent.wait().unwrap();
        assert_eq!(read_bytes(borrowed_buffer(&next)), test_payload(2, 300_000), "{spread:?}");
        assert!(members[1].domain.failure().is_none());
        // The same for a message to the rank itself.
        let own = SendRequest {
            deadline: short_deadline(),
            ..send_request(0, 3, test_payload(1, 300_000))
        };
        assert_eq!(members[0].post_send(own).error().0, ErrorKind::Timeout);
    }
}

#[test]
fn rts_returns_to_matching_after_a_receive_timeout() {
    // Depending on timing, the deadline passes before or after the first fragment arrives. Both
    // cases must work.
    for spread in [NodeSpread::OneSegment, NodeSpread::NodePerRank] {
        let members = create_ranks(spread, 2);
        let sent = members[0].post_send(send_request(1, 3, test_payload(1, 300_000)));
        members[1].engine.core().unwrap().with_state(|state| {
            state.gets.deny_access(0);
        });
        let first = ReceiveRequest {
            deadline: Deadline::after_ms(0),
            ..receive_request(Some(0), Some(3), 600_000)
        };
        let got = members[1].post_receive(first);
        let outcome = got.wait();
        let next = receive_request(Some(0), None, 600_000);
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::Timeout);
            members[1].post_receive(next).wait().unwrap();
            assert_eq!(
                read_bytes(borrowed_buffer(&next).slice(0, 300_000)),
                test_payload(1, 300_000)
            );
        }
        sent.wait().unwrap();
        assert!(members[0].domain.failure().is_none());
    }
}

#[test]
fn fragments_for_an_expired_receive_are_cancelled() {
    // Three cases: the receive expires or not, and after its expiry the message is requested again
    // or not.
    for (is_expired, again) in [(false, false), (true, false), (true, true)] {
        let members = create_ranks(NodeSpread::NodePerRank, 2);
        let [first, second] = std::array::from_fn(|_| Arc::new(TestCompletion::default()));
        let wanted = receive_request(Some(0), Some(1), 30_000);
        // Only this test drains the stream.
        let sent = members[1].engine.core().unwrap().with_state(|state| {
            let sent = members[0].post_send(send_request(1, 1, test_payload(1, 30_000)));
            state.drain_stream(0);
            let number = state.rts.numbers(0)[0];
            let answer = |sender: &mut MatchingState| {
                sender.drain_stream(1);
                sender.flush_all();
                assert!(sender.peers.link(1).is_idle());
            };
            state.receive(wanted, first.clone()).unwrap();
            state.flush_all();
            members[0].engine.core().unwrap().with_state(answer);
            if is_expired {
                let receive = state.requests.receives_where(|_| true)[0];
                state.expire_receive(receive);
            }
            if again {
                state.receive(wanted, second.clone()).unwrap();
                state.flush_all();
            }
            members[0].engine.core().unwrap().with_state(|sender| {
                sender.drain_stream(1);
                sender.expire_send(number);
            });
            sent
        });
        assert_eq!(sent.error().0, ErrorKind::Timeout);
        match is_expired {
            true => assert_eq!(first.error().0, ErrorKind::Timeout),
            false => assert_eq!(first.wait().unwrap().bytes, 30_000),
        }
        if again {
            assert!(second.get().is_none());
        }
        // The next message arrives as usual.
        members[0].post_send(send_request(1, 1, vec![3; 8])).wait().unwrap();
        let next = if again { second.wait() } else { members[1].post_receive(wanted).wait() };
        assert_eq!(next.unwrap().bytes, 8);
        assert!(members[1].domain.failure().is_none());
    }
}

#[test]
fn rendezvous_receive_ends_once_fin_is_in_the_stream() {
    for late in [false, true] {
        let members = create_ranks(NodeSpread::NodePerRank, 2);
        let [sent, got] = std::array::from_fn(|_| Arc::new(TestCompletion::default()));
        // Only this test drains the stream.
        let act = |one: &mut MatchingState, zero: &mut MatchingState| {
            zero.send(send_request(1, 1, test_payload(1, 30_000)), sent.clone()).unwrap();
            one.drain_stream(0);
            one.receive(receive_request(Some(0), Some(1), 30_000), got.clone()).unwrap();
            one.flush_all();
            zero.drain_stream(1);
            zero.flush_all();
            // Send more bytes than the stream holds without a reader.
            for _ in 0..100 {
                let done = Arc::new(TestCompletion::default());
                one.send(send_request(0, 9, test_payload(2, 1000)), done).unwrap();
            }
            one.drain_stream(0);
            one.flush_all();
            let receive = one.requests.receives_where(|_| true)[0];
            let stage = one.requests.receive(receive).unwrap().stage;
            assert!(matches!(stage, ReceiveStage::Delivered(_)));
            if late {
                // The receive expires, but it already has its message, so it succeeds.
                one.expire_receive(receive);
                assert!(one.requests.receive(receive).is_none());
            }
        };
        members[1]
            .engine
            .core()
            .unwrap()
            .with_state(|one| members[0].engine.core().unwrap().with_state(|zero| act(one, zero)));
        assert!(sent.wait().is_ok() && got.wait().is_ok());
        assert!(members[0].domain.failure().is_none());
    }
}

#[test]
fn get_during_a_sender_timeout_is_no_success() {
    for spread in [NodeSpread::OneNode, NodeSpread::OneSegment] {
        let members = create_ranks(spread, 2);
        let got = members[1].post_receive(receive_request(Some(0), Some(1), 3 << 20));
        let sent = Arc::new(TestCompletion::default());
        // No other thread makes progress for the receiver during that time, as if it were stopped.
        members[1].engine.core().unwrap().with_state(|state| {
            members[0]
                .engine
                .send(send_request(1, 1, test_payload(1, 3 << 20)), sent.clone())
                .unwrap();
            state.drain_stream(0);
            if state.gets.access(0) == CmaAccess::Denied {
                return;
            }
            let number = state.rts.numbers(0)[0];
            assert!(state.gets.has_get_of(0, number));
            state.progress_gets();
            // The sender fails the group before it may use its buffer again.
            members[0].engine.core().unwrap().with_state(|sender| sender.expire_send(number));
            assert_eq!(sent.get().unwrap().unwrap_err().kind(), ErrorKind::Timeout);
            assert!(got.get().is_none());
            // The reader notices the failure after its last read, whatever bytes it has read.
            state.progress_gets();
            state.progress_gets();
            assert_eq!(state.gets.counts()[0], 0);
        });
        if members[1].domain.failure().is_some() {
            assert!(got.error().1.contains("in the middle of a message"));
        } else {
            // If memory cannot be read by CMA, the message came in fragments.
            got.wait().unwrap();
        }
    }
}

#[test]
fn queued_get_can_be_cancelled_by_either_side() {
    for spread in [NodeSpread::OneNode, NodeSpread::OneSegment] {
        let members = create_ranks(spread, 2);
        let done: [Arc<TestCompletion>; 6] = std::array::from_fn(|_| Arc::default());
        let [read, late, withdrawn, sent, kept, taken_back] = &done;
        members[1].engine.core().unwrap().with_state(|state| {
            for (tag, done) in [(1, sent), (2, kept), (3, taken_back)] {
                let message = send_request(1, tag, test_payload(tag.into(), 3 << 20));
                members[0].engine.send(message, done.clone()).unwrap();
            }
            state.drain_stream(0);
            let numbers = state.rts.numbers(0);
            // While the first message is read, the others wait for their turn.
            for (tag, done) in [(1, read), (2, late), (3, withdrawn)] {
                state.receive(receive_request(Some(0), Some(tag), 3 << 20), done.clone()).unwrap();
                if state.gets.access(0) == CmaAccess::Denied {
                    return;
                }
                let second = ReceiveStage::Accepted { from: 0, number: numbers[1] };
                let second = state.requests.receives_where(|it| it.stage == second);
                second.into_iter().for_each(|receive| state.expire_receive(receive));
            }
            members[0].engine.core().unwrap().with_state(|sender| sender.expire_send(numbers[2]));
        });
        if late.get().is_none() {
            // If memory cannot be read by CMA, the messages came in fragments.
            continue;
        }
        assert_eq!(late.error().0, ErrorKind::Timeout);
        assert_eq!(taken_back.error().0, ErrorKind::Timeout);
        assert!(read.wait().is_ok() && sent.wait().is_ok());
        // Each side gets its next message.
        members[1].post_receive(receive_request(Some(0), Some(2), 3 << 20)).wait().unwrap();
        kept.wait().unwrap();
        members[0].post_send(send_request(1, 3, vec![1])).wait().unwrap();
        assert_eq!(withdrawn.wait().unwrap().bytes, 1);
        assert!(members[1].domain.failure().is_none());
    }
}

#[test]
fn changed_process_cookie_falls_back_to_fragments() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let wanted = receive_request(Some(0), Some(1), 2 << 20);
    let got = Arc::new(TestCompletion::default());
    let sent = members[1].engine.core().unwrap().with_state(|state| {
        let sent = members[0].post_send(send_request(1, 1, test_payload(1, 2 << 20)));
        state.drain_stream(0);
        state.receive(wanted, got.clone()).unwrap();
        if state.gets.access(0) == CmaAccess::Allowed {
            assert_eq!(state.gets.counts()[0], 1);
            let table = state.domain.region().exposure_table(0);
            table.publish_cookie(table.cookie().unwrap().0, [0, 0]);
            state.progress_gets();
            assert!(got.get().is_none());
            assert_eq!(state.gets.access(0), CmaAccess::Denied);
            assert_eq!(state.rts.get(0, state.rts.numbers(0)[0]).unwrap().attempt, 1);
        }
        sent
    });
    assert_eq!(got.wait().unwrap().bytes, 2 << 20);
    assert_eq!(read_bytes(borrowed_buffer(&wanted)), test_payload(1, 2 << 20));
    sent.wait().unwrap();
}

#[test]
fn departure_drops_offers_and_keeps_eager_messages() {
    for spread in NODE_SPREADS {
        let mut members = create_ranks(spread, 3);
        let departing = members.remove(0);
        let two = &members[1];
        departing.send(2, 1, vec![4; 10]).unwrap();
        let offered = departing.post_send(send_request(2, 2, test_payload(1, 150_000)));
        let to_it = two.post_send(send_request(0, 1, test_payload(1, 150_000)));
        let from_it = two.post_receive(receive_request(Some(0), Some(7), 1));
        let from_any = two.post_receive(receive_request(None, Some(8), 1));
        drop(departing);
        assert_eq!(offered.error().0, ErrorKind::Aborted);
        for outcome in [&to_it, &from_it] {
            let (kind, text) = outcome.error();
            assert_eq!(kind, ErrorKind::PeerFailed, "{spread:?}");
            assert!(text.contains("rank 0") && text.contains("has left"), "{text}");
        }
        assert_eq!(two.receive(0, 1, 10).unwrap(), [4; 10]);
        assert_eq!(two.receive(0, 2, 150_000).unwrap_err().kind(), ErrorKind::PeerFailed);
        assert_eq!(two.send(0, 2, vec![1]).unwrap_err().kind(), ErrorKind::PeerFailed);
        // Another rank is still in the group.
        assert!(from_any.get().is_none());
        members[0].send(2, 8, vec![1]).unwrap();
        assert_eq!(from_any.wait().unwrap().peer, 1);
        let from_any = two.post_receive(receive_request(None, None, 1));
        drop(members.remove(0));
        // No other rank is in the group, only the rank itself.
        members[0].send(2, 9, vec![1]).unwrap();
        assert_eq!(from_any.wait().unwrap().peer, 2);
        assert!(members[0].domain.failure().is_none());
    }
}

#[test]
fn group_failure_ends_every_operation() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 3);
        let done = [
            members[0].post_receive(receive_request(None, None, 1)),
            members[1].post_receive(receive_request(Some(2), Some(1), 1)),
            members[1].post_send(send_request(2, 9, test_payload(1, 300_000))),
            members[2].post_send(send_request(2, 9, test_payload(1, 300_000))),
        ];
        let error = Error::new(ErrorKind::Aborted, "aborted by the test");
        members[2].domain.fail(&error);
        members[2].endpoint.iter().for_each(|endpoint| endpoint.fail(&error));
        for outcome in &done {
            assert_eq!(outcome.error(), (ErrorKind::Aborted, "aborted by the test".to_owned()));
        }
        let done = Arc::new(TestCompletion::default());
        let refused = members[1].engine.send(send_request(0, 0, vec![]), done.clone());
        assert_eq!(refused.unwrap_err(), error);
        assert!(done.get().is_none());
    }
}

#[test]
fn protocol_violation_fails_the_group_and_names_the_peer() {
    let frames: [&dyn Fn() -> MessageFrame; 5] = [
        &|| MessageFrame::Credit { bytes: 1 },
        &|| MessageFrame::Fin { number: 1 << 40 },
        &|| MessageFrame::Cts { number: 1 << 40, attempt: 1 },
        &|| MessageFrame::Fragment { number: 1, attempt: 1, offset: 0, len: 1, is_bulk: false },
        &|| MessageFrame::CancelRts { number: 1 },
    ];
    for spread in [NodeSpread::OneNode, NodeSpread::NodePerRank] {
        for frame in frames {
            let members = create_ranks(spread, 2);
            let got = members[1].post_receive(receive_request(Some(0), None, 1));
            members[0]
                .engine
                .core()
                .unwrap()
                .with_state(|state| state.peers.queue_item(1, QueuedItem::Control(frame())));
            let (kind, text) = got.error();
            assert_eq!(kind, ErrorKind::Internal);
            assert!(text.contains("rank 0"), "{text}");
        }
    }
}

#[test]
fn leaving_ends_outstanding_messages() {
    let mut members = create_ranks(NodeSpread::OneNode, 2);
    let got = members[0].post_receive(receive_request(None, None, 1));
    let sent = members[0].post_send(send_request(1, 0, test_payload(1, 300_000)));
    drop(members.remove(0));
    assert_eq!(got.error().0, ErrorKind::Aborted);
    assert_eq!(sent.error().0, ErrorKind::Aborted);
    assert!(members[0].domain.failure().is_none());
}
