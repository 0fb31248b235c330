//! Messages of all sizes arrive, attended or not, blocking nobody.

use super::world::{SPREADS, Spread, content, each, incoming, lent_to, outgoing, text, world};
use crate::transport::Delivery;
use crate::transport::matching::limits::COST;

const SIZES: [usize; 10] = [0, 1, 48, 4096, 16_384, 16_385, 100_000, 300_000, 1 << 20, 3_000_001];

#[test]
fn every_size_goes_there_and_back() {
    for spread in SPREADS {
        each(world(spread, 2), |rank, member| {
            for (turn, len) in SIZES.into_iter().enumerate() {
                let turn = turn as u64;
                let other = 1 - rank;
                if rank == 0 {
                    let sent = member.send(other, 1, text(turn, len)).unwrap();
                    assert_eq!(sent, Delivery { peer: 1, tag: 1, bytes: len }, "{spread:?}");
                    assert_eq!(member.receive(other, 2, len).unwrap(), text(turn + 100, len));
                } else {
                    assert_eq!(member.receive(other, 1, len + 7).unwrap(), text(turn, len));
                    member.send(other, 2, text(turn + 100, len)).unwrap();
                }
            }
        });
    }
}

#[test]
fn nobody_needs_to_attend() {
    for spread in SPREADS {
        let members = world(spread, 4);
        for len in SIZES {
            for (from, to) in [(0, 1), (1, 2), (3, 0)] {
                let sent = members[from].post_send(outgoing(to, 5, text(9, len)));
                let message = incoming(Some(from), Some(5), len);
                let got = members[to].post_receive(message);
                assert_eq!(got.wait().unwrap().bytes, len, "{spread:?}");
                assert_eq!(sent.wait().unwrap().peer, to);
                assert_eq!(content(lent_to(&message)), text(9, len));
            }
        }
    }
}

#[test]
fn receives_in_the_wrong_order_do_not_block() {
    for spread in SPREADS {
        each(world(spread, 2), |rank, member| {
            let tags = 0..200u32;
            let len = |tag: u32| if tag.is_multiple_of(3) { 50_000 } else { 700 };
            if rank == 0 {
                let post = |tag| member.post_send(outgoing(1, tag, text(tag.into(), len(tag))));
                let sent: Vec<_> = tags.map(post).collect();
                sent.iter().for_each(|sent| assert!(member.attend_to(sent).is_ok()));
            } else {
                for tag in tags.rev() {
                    let got = member.receive(0, tag, 50_000).unwrap();
                    assert!(got == text(tag.into(), len(tag)), "{spread:?} {tag}");
                }
            }
        });
    }
}

#[test]
fn both_may_send_much_before_they_receive() {
    for spread in SPREADS {
        each(world(spread, 2), |rank, member| {
            let other = 1 - rank;
            let post = |turn: u64| member.post_send(outgoing(other, 0, text(turn, 300_000)));
            let sent: Vec<_> = (0..20).map(post).collect();
            for turn in 0..20 {
                assert_eq!(member.receive(other, 0, 300_000).unwrap(), text(turn, 300_000));
            }
            sent.iter().for_each(|sent| assert!(member.attend_to(sent).is_ok()));
        });
    }
}

#[test]
fn what_is_held_for_a_receiver_is_bounded_and_all_arrives() {
    const MESSAGES: u64 = 20_000;
    for spread in [Spread::Together, Spread::Apart] {
        let members = world(spread, 2);
        let message = |turn: u64| outgoing(1, 3, text(turn % 16, 1024));
        let sent: Vec<_> = (0..MESSAGES).map(|turn| members[0].post_send(message(turn))).collect();
        // Something that comes after all of them has come only when they have been looked at.
        let last = members[0].post_send(outgoing(1, 4, vec![1]));
        assert_eq!(members[1].receive(0, 4, 1).unwrap(), [1], "{spread:?}");
        last.wait().unwrap();
        let held = members[1].engine.core().unwrap().buffered();
        let bound = members[1].engine.core().unwrap().with(|state| state.limits.held_bytes);
        assert!(held > bound / 2 && held / 1024 * (1024 + COST) <= bound, "{held}");
        for turn in 0..MESSAGES {
            assert_eq!(members[1].receive(0, 3, 1024).unwrap(), text(turn % 16, 1024));
        }
        sent.iter().for_each(|sent| assert!(sent.wait().is_ok()));
        assert_eq!(members[1].engine.core().unwrap().buffered(), 0);
    }
}

#[test]
fn a_rank_sends_to_itself() {
    for spread in SPREADS {
        let members = world(spread, 2);
        let me = &members[1];
        // Small ones are gone at once; large ones when they are received.
        me.send(1, 7, text(1, 100)).unwrap();
        let large = me.post_send(outgoing(1, 7, text(2, 1 << 20)));
        assert!(large.get().is_none());
        assert_eq!(me.receive(1, 7, 100).unwrap(), text(1, 100));
        assert_eq!(me.receive(1, 7, 1 << 20).unwrap(), text(2, 1 << 20));
        assert_eq!(large.wait().unwrap().peer, 1);
        let message = incoming(None, None, 10);
        let got = me.post_receive(message);
        me.send(1, 8, vec![5; 10]).unwrap();
        assert_eq!(got.wait().unwrap(), Delivery { peer: 1, tag: 8, bytes: 10 });
        assert_eq!(content(lent_to(&message)), [5; 10]);
    }
}
