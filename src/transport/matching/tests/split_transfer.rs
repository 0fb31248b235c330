//! Split transfers: each side copies its half, or one side copies everything if the other does not
//! reach its half.

use super::test_ranks::{
    NodeSpread, TestCompletion, TestRank, borrowed_buffer, create_ranks, progress_until,
    read_bytes, receive_request, send_request, stop_service, test_payload, with_state,
};
use crate::base::error::{Error, ErrorKind};
use crate::transport::matching::frame::MessageFrame;
use crate::transport::matching::progress_owner::LockedEngine;
use crate::transport::matching::state::MatchingState;
use crate::transport::{Delivery, ReceiveRequest};
use std::sync::{Arc, MutexGuard};

/// The receiver needs three chunks for the front half, and the sender three for the back half.
const LONG: usize = (5 << 20) + 1;
const FRONT: usize = LONG / 2 / 4096 * 4096;

/// A half-done split transfer. The sender waits. The receiver has read the first chunk and sent its
/// split put request. Neither rank makes progress unless the test calls it.
struct HalfDoneSplit<'m> {
    sender: MutexGuard<'m, LockedEngine>,
    receiver: MutexGuard<'m, LockedEngine>,
    message: ReceiveRequest,
    sent: Arc<TestCompletion>,
    got: Arc<TestCompletion>,
}

impl<'m> HalfDoneSplit<'m> {
    /// Starts a split transfer. Returns `None` if the system forbids writes by CMA.
    fn start(members: &'m [TestRank]) -> Option<Self> {
        members.iter().for_each(stop_service);
        let message = receive_request(Some(0), Some(1), LONG);
        let sent = members[0].post_awaited_send(send_request(1, 1, test_payload(1, LONG)));
        let sender = members[0].engine.core().unwrap().lock();
        let got = members[1].post_awaited_receive(message);
        let mut receiver = members[1].engine.core().unwrap().lock();
        receiver.state.progress();
        let is_split = receiver.state.rts.has_requested_puts();
        assert_eq!(is_split, receiver.state.puts.can_write(0));
        is_split.then_some(Self { sender, receiver, message, sent, got })
    }

    fn back_bytes(&self) -> Vec<u8> {
        read_bytes(borrowed_buffer(&self.message).slice(FRONT, LONG - FRONT))
    }

    /// Both sides make progress, each on its own thread or on this one.
    fn finish(self, members: &[TestRank]) {
        let Self { sender, receiver, message, sent, got } = self;
        drop((sender, receiver));
        progress_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
        assert_eq!(got.wait().unwrap(), Delivery { peer: 0, tag: 1, bytes: LONG });
        assert!(
            sent.wait().is_ok() && read_bytes(borrowed_buffer(&message)) == test_payload(1, LONG)
        );
        assert!(members.iter().all(|member| member.domain.failure().is_none()));
        // No state of the transfer is left.
        members.iter().for_each(|member| {
            with_state(member, |state| {
                assert_eq!((state.gets.counts()[0], state.gets.counts()[2]), (0, 0));
                assert!(!state.puts.has_runnable() && !state.rts.has_requested_puts());
            });
        });
    }
}

fn progress_times(state: &mut MatchingState, times: usize) {
    (0..times).for_each(|_| state.progress());
}

#[test]
fn sender_puts_the_back_while_receiver_gets_the_front() {
    for spread in [NodeSpread::OneSegment, NodeSpread::OneNode] {
        let members = create_ranks(spread, 2);
        let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
        progress_times(&mut halfway.sender.state, 4);
        assert!(halfway.back_bytes() == test_payload(1, LONG)[FRONT..]);
        assert!(halfway.got.get().is_none());
        halfway.finish(&members);
    }
}

#[test]
fn receiver_waits_for_the_put_after_reading_the_front() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
    progress_times(&mut halfway.sender.state, 1);
    progress_times(&mut halfway.receiver.state, 9);
    let state = &halfway.receiver.state;
    assert!(state.gets.counts()[2] == 1 && !state.has_runnable_work());
    halfway.finish(&members);
}

#[test]
fn receiver_gets_everything_if_the_sender_is_idle() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
    progress_times(&mut halfway.receiver.state, 9);
    let HalfDoneSplit { sender, receiver, message, got, .. } = &halfway;
    assert!(receiver.state.gets.counts()[0] == 0 && !receiver.state.rts.has_requested_puts());
    assert!(!sender.state.puts.has_runnable());
    assert!(read_bytes(borrowed_buffer(message)) == test_payload(1, LONG));
    // The split put request arrives too late, and the FIN follows it.
    assert!(got.get().is_none());
    halfway.finish(&members);
}

#[test]
fn receiver_gets_what_the_sender_cannot_put() {
    for wrote in [0, 100_000] {
        let members = create_ranks(NodeSpread::OneSegment, 2);
        let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
        let sender = &mut halfway.sender.state;
        progress_times(sender, 1);
        let number = sender.requests.sends_where(|_| true)[0];
        // The sender has written more bytes than it reports; the report counts.
        sender.puts.drop_puts(|_| true);
        sender.peers.queue_control(1, MessageFrame::PutDone { number, len: wrote });
        borrowed_buffer(&halfway.message)
            .slice(FRONT + 100_000, 1 << 20)
            .copy_from(crate::base::buffer::Src::from(vec![0; 1 << 20].as_slice()));
        halfway.finish(&members);
    }
}

#[test]
fn expired_receive_gets_no_further_puts() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
    progress_times(&mut halfway.sender.state, 1);
    let receiver = &mut halfway.receiver.state;
    let receive = receiver.requests.receives_where(|_| true)[0];
    receiver.expire_receive(receive);
    assert_eq!(members[1].domain.failure().unwrap().kind(), ErrorKind::Timeout);
    let before = halfway.back_bytes();
    progress_times(&mut halfway.sender.state, 4);
    assert!(halfway.back_bytes() == before && before != test_payload(1, LONG)[FRONT..]);
    let HalfDoneSplit { sender, receiver, sent, got, .. } = halfway;
    drop((sender, receiver));
    progress_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
    assert!(got.error().1.contains("in the middle of a message") && sent.wait().is_err());
}

#[test]
fn leaving_during_a_put_fails_the_group() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
    progress_times(&mut halfway.sender.state, 1);
    halfway.receiver.state.leave();
    let failure = members[0].domain.failure();
    assert!(failure.is_some_and(|error| error.message().contains("while a peer wrote a message")));
    let before = halfway.back_bytes();
    progress_times(&mut halfway.sender.state, 4);
    assert!(halfway.back_bytes() == before);
}

#[test]
fn sender_stopped_during_a_put_is_named() {
    use crate::transport::rank_progress::RemoteWritePurpose;
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
    progress_times(&mut halfway.sender.state, 1);
    let _stopped =
        members[0].domain.region().progress(0).begin_remote_write(RemoteWritePurpose::Message);
    halfway.receiver.state.fail(Error::new(ErrorKind::Aborted, "aborted by the test"));
    let HalfDoneSplit { sender, receiver, got, .. } = halfway;
    drop((sender, receiver));
    progress_until(&[&members[1]], || got.get().is_some());
    assert!(got.error().1.contains("may still write to it"), "{:?}", got.error());
}

#[test]
fn invalid_put_frames_fail_the_group() {
    let violations: [fn(&mut MatchingState, u64); 4] = [
        |state, number| {
            state.peers.queue_control(1, MessageFrame::PutDone { number, len: LONG as u64 })
        },
        |state, number| {
            state.peers.queue_control(1, MessageFrame::PutDone { number: number + 7, len: 0 })
        },
        |state, number| {
            state.peers.queue_control(1, MessageFrame::PutDone { number, len: 0 });
            state.peers.queue_control(1, MessageFrame::PutDone { number, len: 0 });
        },
        |state, _| {
            state.peers.queue_control(
                1,
                MessageFrame::SplitPut { number: 99, address: 4096, region_address: 4096 },
            )
        },
    ];
    for lie in violations {
        let members = create_ranks(NodeSpread::OneSegment, 2);
        let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
        let sender = &mut halfway.sender.state;
        let number = sender.requests.sends_where(|_| true)[0];
        lie(sender, number);
        sender.flush_all();
        progress_times(&mut halfway.receiver.state, 9);
        assert_eq!(members[1].domain.failure().unwrap().culprit(), Some(0));
    }
}

#[test]
fn failed_read_during_a_put_requests_fragments() {
    let members = create_ranks(NodeSpread::OneSegment, 2);
    let Some(mut halfway) = HalfDoneSplit::start(&members) else { return };
    // The sender has claimed the back half.
    progress_times(&mut halfway.sender.state, 1);
    // The receiver does not find the sender's process cookie from now on, so its reads fail.
    members[0].domain.region().exposure_table(0).publish_cookie(16, [1, 2]);
    halfway.finish(&members);
}
