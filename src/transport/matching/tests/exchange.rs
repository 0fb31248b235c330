//! Messages of all sizes arrive, with or without a waiting caller, and block no other message.

use super::test_ranks::{
    NODE_SPREADS, NodeSpread, borrowed_buffer, create_ranks, read_bytes, receive_request,
    run_each_rank, send_request, test_payload,
};
use crate::transport::Delivery;
use crate::transport::matching::limits::HELD_OVERHEAD;

const SIZES: [usize; 10] = [0, 1, 48, 4096, 16_384, 16_385, 100_000, 300_000, 1 << 20, 3_000_001];

#[test]
fn messages_of_every_size_round_trip() {
    for spread in NODE_SPREADS {
        run_each_rank(create_ranks(spread, 2), |rank, member| {
            for (index, len) in SIZES.into_iter().enumerate() {
                let index = index as u64;
                let other = 1 - rank;
                if rank == 0 {
                    let sent = member.send(other, 1, test_payload(index, len)).unwrap();
                    assert_eq!(sent, Delivery { peer: 1, tag: 1, bytes: len }, "{spread:?}");
                    assert_eq!(
                        member.receive(other, 2, len).unwrap(),
                        test_payload(index + 100, len)
                    );
                } else {
                    assert_eq!(
                        member.receive(other, 1, len + 7).unwrap(),
                        test_payload(index, len)
                    );
                    member.send(other, 2, test_payload(index + 100, len)).unwrap();
                }
            }
        });
    }
}

#[test]
fn messages_arrive_without_a_waiter() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 4);
        for len in SIZES {
            for (from, to) in [(0, 1), (1, 2), (3, 0)] {
                let sent = members[from].post_send(send_request(to, 5, test_payload(9, len)));
                let message = receive_request(Some(from), Some(5), len);
                let got = members[to].post_receive(message);
                assert_eq!(got.wait().unwrap().bytes, len, "{spread:?}");
                assert_eq!(sent.wait().unwrap().peer, to);
                assert_eq!(read_bytes(borrowed_buffer(&message)), test_payload(9, len));
            }
        }
    }
}

#[test]
fn receives_in_reverse_order_do_not_block() {
    for spread in NODE_SPREADS {
        run_each_rank(create_ranks(spread, 2), |rank, member| {
            let tags = 0..200u32;
            let len = |tag: u32| if tag.is_multiple_of(3) { 50_000 } else { 700 };
            if rank == 0 {
                let post = |tag| {
                    member.post_send(send_request(1, tag, test_payload(tag.into(), len(tag))))
                };
                let sent: Vec<_> = tags.map(post).collect();
                sent.iter().for_each(|sent| assert!(member.wait_with_progress(sent).is_ok()));
            } else {
                for tag in tags.rev() {
                    let got = member.receive(0, tag, 50_000).unwrap();
                    assert!(got == test_payload(tag.into(), len(tag)), "{spread:?} {tag}");
                }
            }
        });
    }
}

#[test]
fn both_ranks_send_20_messages_before_receiving() {
    for spread in NODE_SPREADS {
        run_each_rank(create_ranks(spread, 2), |rank, member| {
            let other = 1 - rank;
            let post =
                |index: u64| member.post_send(send_request(other, 0, test_payload(index, 300_000)));
            let sent: Vec<_> = (0..20).map(post).collect();
            for index in 0..20 {
                assert_eq!(
                    member.receive(other, 0, 300_000).unwrap(),
                    test_payload(index, 300_000)
                );
            }
            sent.iter().for_each(|sent| assert!(member.wait_with_progress(sent).is_ok()));
        });
    }
}

#[test]
fn held_bytes_are_bounded_and_all_messages_arrive() {
    const MESSAGES: u64 = 2500;
    const BYTES: usize = 8 << 10;
    for spread in [NodeSpread::OneNode, NodeSpread::NodePerRank] {
        let members = create_ranks(spread, 2);
        let message = |index: u64| send_request(1, 3, test_payload(index % 16, BYTES));
        let sent: Vec<_> =
            (0..MESSAGES).map(|index| members[0].post_send(message(index))).collect();
        // A later message arrives only after the receiver has handled all earlier ones.
        let last = members[0].post_send(send_request(1, 4, vec![1]));
        assert_eq!(members[1].receive(0, 4, 1).unwrap(), [1], "{spread:?}");
        last.wait().unwrap();
        let held = members[1].engine.core().unwrap().buffered_bytes();
        let bound =
            members[1].engine.core().unwrap().with_state(|state| state.peers.limits().held_bytes);
        assert!(held > bound / 2 && held / BYTES * (BYTES + HELD_OVERHEAD) <= bound, "{held}");
        for index in 0..MESSAGES {
            let got = members[1].receive(0, 3, BYTES).unwrap();
            let found = (0..16).find(|&other| got == test_payload(other, BYTES));
            assert_eq!(found, Some(index % 16), "message {index}, {spread:?}");
        }
        sent.iter().for_each(|sent| assert!(sent.wait().is_ok()));
        assert_eq!(members[1].engine.core().unwrap().buffered_bytes(), 0);
    }
}

#[test]
fn a_rank_sends_to_itself() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        let me = &members[1];
        // A send of a small message completes at once; a send of a large one completes when it is
        // received.
        me.send(1, 7, test_payload(1, 100)).unwrap();
        let large = me.post_send(send_request(1, 7, test_payload(2, 1 << 20)));
        assert!(large.get().is_none());
        assert_eq!(me.receive(1, 7, 100).unwrap(), test_payload(1, 100));
        assert_eq!(me.receive(1, 7, 1 << 20).unwrap(), test_payload(2, 1 << 20));
        assert_eq!(large.wait().unwrap().peer, 1);
        let message = receive_request(None, None, 10);
        let got = me.post_receive(message);
        me.send(1, 8, vec![5; 10]).unwrap();
        assert_eq!(got.wait().unwrap(), Delivery { peer: 1, tag: 8, bytes: 10 });
        assert_eq!(read_bytes(borrowed_buffer(&message)), [5; 10]);
    }
}
