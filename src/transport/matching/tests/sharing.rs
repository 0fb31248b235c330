//! Long messages that both sides copy: each its part, and one alone where the other does not come
//! to it.

use super::world::{
    Member, Outcome, Spread, content, go_on_until, incoming, leave_alone, lent_to, outgoing, text,
    with, world,
};
use crate::base::error::{Error, ErrorKind};
use crate::transport::matching::attendance::Locked;
use crate::transport::matching::frame::Frame;
use crate::transport::matching::state::State;
use crate::transport::{Delivery, Incoming};
use std::sync::{Arc, MutexGuard};

/// Three turns of the receiver for the front, and as many of the sender for the back.
const LONG: usize = (5 << 20) + 1;
const FRONT: usize = LONG / 2 / 4096 * 4096;

/// A message that its sender waits for, and a receiver that has read the first part of it and asked
/// the sender to write the back; `None` where the system forbids that. Neither goes on by itself.
struct Halfway<'m> {
    sender: MutexGuard<'m, Locked>,
    receiver: MutexGuard<'m, Locked>,
    message: Incoming,
    sent: Arc<Outcome>,
    got: Arc<Outcome>,
}

impl<'m> Halfway<'m> {
    fn of(members: &'m [Member]) -> Option<Self> {
        members.iter().for_each(leave_alone);
        let message = incoming(Some(0), Some(1), LONG);
        let sent = members[0].post_send_and_wait(outgoing(1, 1, text(1, LONG)));
        let sender = members[0].engine.core().unwrap().lock();
        let got = members[1].post_receive_and_wait(message);
        let mut receiver = members[1].engine.core().unwrap().lock();
        receiver.state.progress();
        let shares = receiver.state.is_written_to();
        assert_eq!(shares, receiver.state.may_write);
        shares.then_some(Self { sender, receiver, message, sent, got })
    }

    fn back(&self) -> Vec<u8> {
        content(lent_to(&self.message).slice(FRONT, LONG - FRONT))
    }

    /// Both go on, each on its own thread or here.
    fn end(self, members: &[Member]) {
        let Self { sender, receiver, message, sent, got } = self;
        drop((sender, receiver));
        go_on_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
        assert_eq!(got.wait().unwrap(), Delivery { peer: 0, tag: 1, bytes: LONG });
        assert!(sent.wait().is_ok() && content(lent_to(&message)) == text(1, LONG));
        assert!(members.iter().all(|member| member.domain.failure().is_none()));
        // Nothing is left of it.
        members.iter().for_each(|member| {
            with(member, |state| {
                assert!(state.readings.is_empty() && state.half_read.is_empty());
                assert!(state.writings.is_empty() && !state.is_written_to());
            });
        });
    }
}

fn go_on(state: &mut State, turns: usize) {
    (0..turns).for_each(|_| state.progress());
}

#[test]
fn the_sender_writes_the_back_while_the_receiver_reads_the_front() {
    for spread in [Spread::Segment, Spread::Together] {
        let members = world(spread, 2);
        let Some(mut halfway) = Halfway::of(&members) else { return };
        go_on(&mut halfway.sender.state, 4);
        assert!(halfway.back() == text(1, LONG)[FRONT..]);
        assert!(halfway.got.get().is_none());
        halfway.end(&members);
    }
}

#[test]
fn a_receiver_that_has_read_the_front_waits_for_a_sender_that_writes() {
    let members = world(Spread::Segment, 2);
    let Some(mut halfway) = Halfway::of(&members) else { return };
    go_on(&mut halfway.sender.state, 1);
    go_on(&mut halfway.receiver.state, 9);
    let state = &halfway.receiver.state;
    assert!(state.half_read.len() == 1 && !state.has_more());
    halfway.end(&members);
}

#[test]
fn a_receiver_reads_all_of_it_where_the_sender_does_not_look() {
    let members = world(Spread::Segment, 2);
    let Some(mut halfway) = Halfway::of(&members) else { return };
    go_on(&mut halfway.receiver.state, 9);
    let Halfway { sender, receiver, message, got, .. } = &halfway;
    assert!(receiver.state.readings.is_empty() && !receiver.state.is_written_to());
    assert!(sender.state.writings.is_empty());
    assert!(content(lent_to(message)) == text(1, LONG));
    // The question comes too late, and then the news that the message has been taken.
    assert!(got.get().is_none());
    halfway.end(&members);
}

#[test]
fn what_the_sender_cannot_write_is_read() {
    for wrote in [0, 100_000] {
        let members = world(Spread::Segment, 2);
        let Some(mut halfway) = Halfway::of(&members) else { return };
        let sender = &mut halfway.sender.state;
        go_on(sender, 1);
        let number = *sender.sends.keys().next().unwrap();
        // It has written more than that; what it says counts.
        sender.writings.clear();
        sender.say(1, Frame::Wrote { number, len: wrote });
        lent_to(&halfway.message)
            .slice(FRONT + 100_000, 1 << 20)
            .copy_from(crate::base::buffer::Src::from(vec![0; 1 << 20].as_slice()));
        halfway.end(&members);
    }
}

#[test]
fn a_receiver_that_gives_up_is_not_written_to_any_more() {
    let members = world(Spread::Segment, 2);
    let Some(mut halfway) = Halfway::of(&members) else { return };
    go_on(&mut halfway.sender.state, 1);
    let receiver = &mut halfway.receiver.state;
    let receive = *receiver.receives.keys().next().unwrap();
    receiver.expire_receive(receive);
    assert_eq!(members[1].domain.failure().unwrap().kind(), ErrorKind::Timeout);
    let before = halfway.back();
    go_on(&mut halfway.sender.state, 4);
    assert!(halfway.back() == before && before != text(1, LONG)[FRONT..]);
    let Halfway { sender, receiver, sent, got, .. } = halfway;
    drop((sender, receiver));
    go_on_until(&[&members[0], &members[1]], || sent.get().is_some() && got.get().is_some());
    assert!(got.error().1.contains("in the middle of a message") && sent.wait().is_err());
}

#[test]
fn who_leaves_while_its_receive_is_written_to_fails_the_group() {
    let members = world(Spread::Segment, 2);
    let Some(mut halfway) = Halfway::of(&members) else { return };
    go_on(&mut halfway.sender.state, 1);
    halfway.receiver.state.leave();
    let failure = members[0].domain.failure();
    assert!(failure.is_some_and(|error| error.message().contains("while a message was written")));
    let before = halfway.back();
    go_on(&mut halfway.sender.state, 4);
    assert!(halfway.back() == before);
}

#[test]
fn a_sender_that_is_stopped_in_the_middle_is_named() {
    use crate::transport::progress::Purpose;
    let members = world(Spread::Segment, 2);
    let Some(mut halfway) = Halfway::of(&members) else { return };
    go_on(&mut halfway.sender.state, 1);
    let _stopped = members[0].domain.region().progress(0).reach(Purpose::Message);
    halfway.receiver.state.fail(Error::new(ErrorKind::Aborted, "somebody gave up"));
    let Halfway { sender, receiver, got, .. } = halfway;
    drop((sender, receiver));
    go_on_until(&[&members[1]], || got.get().is_some());
    assert!(got.error().1.contains("may still write there"), "{:?}", got.error());
}

#[test]
fn what_makes_no_sense_fails_the_group() {
    let lies: [fn(&mut State, u64); 4] = [
        |state, number| state.say(1, Frame::Wrote { number, len: LONG as u64 }),
        |state, number| state.say(1, Frame::Wrote { number: number + 7, len: 0 }),
        |state, number| {
            state.say(1, Frame::Wrote { number, len: 0 });
            state.say(1, Frame::Wrote { number, len: 0 });
        },
        |state, _| state.say(1, Frame::Share { number: 99, address: 4096, region: 4096 }),
    ];
    for lie in lies {
        let members = world(Spread::Segment, 2);
        let Some(mut halfway) = Halfway::of(&members) else { return };
        let sender = &mut halfway.sender.state;
        let number = *sender.sends.keys().next().unwrap();
        lie(sender, number);
        sender.put_all();
        go_on(&mut halfway.receiver.state, 9);
        assert_eq!(members[1].domain.failure().unwrap().culprit(), Some(0));
    }
}
