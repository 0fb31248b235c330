//! Messages that are not posted: what goes at once, what does not, and that nothing is overtaken.

use super::world::{
    Member, Outcome, Spread, content, each, incoming, lent_to, outgoing, text, world,
};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind};
use crate::transport::matching::prompt::Found;
use crate::transport::matching::state::State;
use crate::transport::{Delivery, Incoming, LARGEST_TAG, Outgoing, PointToPoint as _, Small};
use std::sync::Arc;

fn leaving(message: &Outgoing) -> Small<Src<'static>> {
    let Outgoing { to, tag, dtype, bytes, .. } = *message;
    Small { peer: Some(to), tag: Some(tag), dtype, bytes }
}

fn coming(message: &Incoming) -> Small<Dst<'static>> {
    let Incoming { from: peer, tag, dtype, .. } = *message;
    Small { peer, tag, dtype, bytes: lent_to(message) }
}

/// Two ranks, of which the first looks for a message of the second's while nobody else looks.
fn look(wanted: &Incoming, before: impl FnOnce(&Member), send: impl FnOnce(&Member)) -> Found {
    let members = world(Spread::Together, 2);
    before(&members[0]);
    members[0].engine.core().unwrap().with(|state| {
        send(&members[1]);
        state.take_at_once(&coming(wanted), 1)
    })
}

fn send_at_once(from: &Member, tag: u32, bytes: Vec<u8>) {
    assert!(from.engine.send_at_once(&leaving(&outgoing(0, tag, bytes))));
}

#[test]
fn a_small_message_is_taken_out_of_the_ring() {
    for len in [0, 1, 4, 1000] {
        let wanted = incoming(Some(1), Some(3), 1000);
        let found = look(&wanted, |_| (), |other| send_at_once(other, 3, text(5, len)));
        assert_eq!(found, Found::Message(Delivery { peer: 1, tag: 3, bytes: len }));
        assert_eq!(content(lent_to(&wanted))[..len], text(5, len));
    }
    let any_tag = incoming(Some(1), None, 8);
    let found = look(&any_tag, |_| (), |other| send_at_once(other, 7, vec![1]));
    assert_eq!(found, Found::Message(Delivery { peer: 1, tag: 7, bytes: 1 }));
    assert_eq!(look(&any_tag, |_| (), |_| ()), Found::Nothing { from: 1, taken: 0 });
}

#[test]
fn whatever_else_lies_there_is_left_to_a_posted_receive() {
    let wanted = || incoming(Some(1), Some(3), 8);
    let send = |tag, len| move |other: &Member| send_at_once(other, tag, text(1, len));
    assert_eq!(look(&wanted(), |_| (), send(4, 8)), Found::Else, "another tag");
    assert_eq!(look(&wanted(), |_| (), send(3, 9)), Found::Else, "too long");
    let floats = Incoming { dtype: DataType::F64, ..wanted() };
    assert_eq!(look(&floats, |_| (), send(3, 8)), Found::Else, "another type");
    assert_eq!(look(&incoming(None, Some(3), 8), |_| (), send(3, 8)), Found::Else, "any source");
    let internal = incoming(Some(1), None, 8);
    assert_eq!(look(&internal, |_| (), send(LARGEST_TAG + 1, 8)), Found::Else, "the library's own");
    let offered = |other: &Member| drop(other.post_send(outgoing(0, 3, text(1, 1 << 20))));
    assert_eq!(look(&incoming(Some(1), Some(3), 1 << 20), |_| (), offered), Found::Else);
}

#[test]
fn nothing_is_overtaken() {
    let posted = Arc::new(Outcome::default());
    let post = |me: &Member| {
        let core = me.engine.core().unwrap();
        let message = incoming(Some(1), Some(3), 8);
        core.with(|state| state.receive(message, posted.clone())).unwrap();
    };
    let found = look(&incoming(Some(1), Some(3), 8), post, |other| send_at_once(other, 3, vec![1]));
    assert_eq!(found, Found::Else);

    let members = world(Spread::Together, 2);
    let second = incoming(Some(1), Some(3), 8);
    members[0].engine.core().unwrap().with(|state| {
        send_at_once(&members[1], 3, vec![1]);
        state.progress();
        send_at_once(&members[1], 3, vec![2]);
        assert_eq!(state.take_at_once(&coming(&second), 1), Found::Else);
    });
    assert_eq!(members[0].receive(1, 3, 8).unwrap(), [1]);
    assert_eq!(members[0].receive(1, 3, 8).unwrap(), [2]);
}

#[test]
fn a_send_that_would_wait_is_posted() {
    let members = world(Spread::Together, 2);
    let me = &members[0];
    assert!(!me.engine.send_at_once(&leaving(&outgoing(1, 3, text(1, 1 << 20)))), "not whole");
    assert!(!me.engine.send_at_once(&leaving(&outgoing(0, 3, vec![1]))), "to itself");
    let apart = world(Spread::Apart, 2);
    assert!(!apart[0].engine.send_at_once(&leaving(&outgoing(1, 3, vec![1]))), "over a network");
    // Until the receiver holds all that it may.
    members[1].engine.core().unwrap().with(|_| {
        let sent = (0..100_000)
            .take_while(|_| me.engine.send_at_once(&leaving(&outgoing(1, 3, text(1, 64)))));
        assert!((1..100_000).contains(&sent.count()));
    });
    assert_eq!(members[1].receive(0, 3, 64).unwrap(), text(1, 64));
}

#[test]
fn what_is_given_back_is_taken_on_the_way_to_a_message() {
    let members = world(Spread::Together, 2);
    let [there, back] = [incoming(Some(0), Some(3), 16_000), incoming(Some(1), Some(3), 8)];
    let (large, small) = (outgoing(1, 3, text(1, 16_000)), outgoing(0, 3, vec![7]));
    let both = |zero: &mut State, one: &mut State| {
        // Until it is worth telling.
        for _ in 0..20 {
            assert!(zero.send_at_once(&leaving(&large)));
            assert!(matches!(one.take_at_once(&coming(&there), 1), Found::Message(_)));
            one.put_all();
        }
        assert!(one.send_at_once(&leaving(&small)));
        let used = zero.links[1].used;
        assert!(matches!(zero.take_at_once(&coming(&back), 1), Found::Nothing { from: 1, .. }));
        assert!(zero.links[1].used < used);
        let delivery = Delivery { peer: 1, tag: 3, bytes: 1 };
        assert_eq!(zero.take_at_once(&coming(&back), 1), Found::Message(delivery));
        assert!(matches!(zero.take_at_once(&coming(&back), 1), Found::Nothing { from: 1, .. }));
    };
    let [zero, one] = [0, 1].map(|rank: usize| members[rank].engine.core().unwrap());
    zero.with(|zero| one.with(|one| both(zero, one)));
}

#[test]
fn nothing_goes_in_a_group_that_has_failed() {
    let members = world(Spread::Together, 2);
    let wanted = incoming(Some(1), Some(3), 8);
    members[0].engine.core().unwrap().with(|state| {
        send_at_once(&members[1], 3, vec![1]);
        members[1].domain.fail(&Error::new(ErrorKind::Aborted, "over"));
        assert_eq!(state.take_at_once(&coming(&wanted), 1), Found::Else);
    });
    while members[0].engine.core().unwrap().with(|state| state.failed.is_none()) {
        std::thread::yield_now();
    }
    assert!(!members[0].engine.send_at_once(&leaving(&outgoing(1, 3, vec![1]))));
}

#[test]
fn messages_that_are_posted_and_that_are_not_go_there_and_back() {
    const TURNS: u64 = 20_000;
    for spread in [Spread::Together, Spread::Segment] {
        each(world(spread, 2), |rank, member| {
            let other = 1 - rank;
            let send = |seed: u64| {
                let message = outgoing(other, 1, text(seed, 40));
                if !member.engine.send_at_once(&leaving(&message)) {
                    member.send(other, 1, text(seed, 40)).unwrap();
                }
            };
            let receive = |seed: u64| {
                let message = incoming(Some(other), Some(1), 40);
                let got = match member.engine.receive_at_once(&coming(&message)) {
                    Some(delivery) => content(lent_to(&message))[..delivery.bytes].to_vec(),
                    None => member.receive(other, 1, 40).unwrap(),
                };
                assert_eq!(got, text(seed, 40));
            };
            for seed in 0..TURNS {
                if rank == 0 {
                    send(seed);
                    receive(seed + TURNS);
                } else {
                    receive(seed);
                    send(seed + TURNS);
                }
            }
        });
    }
}
