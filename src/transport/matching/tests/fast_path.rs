//! The fast path: which messages it takes and which it leaves to posted requests, and that no
//! message overtakes another.

use super::test_ranks::{
    NodeSpread, TestCompletion, TestRank, borrowed_buffer, create_ranks, read_bytes,
    receive_request, run_each_rank, send_request, test_payload,
};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind};
use crate::transport::matching::immediate::FastReceive;
use crate::transport::matching::state::MatchingState;
use crate::transport::{
    Delivery, ImmediateMessage, LARGEST_TAG, PointToPoint as _, ReceiveRequest, SendRequest,
};
use std::sync::Arc;

fn immediate_send(message: &SendRequest) -> ImmediateMessage<Src<'static>> {
    let SendRequest { to, tag, dtype, bytes, .. } = *message;
    ImmediateMessage { peer: Some(to), tag: Some(tag), dtype, bytes }
}

fn immediate_receive(message: &ReceiveRequest) -> ImmediateMessage<Dst<'static>> {
    let ReceiveRequest { from: peer, tag, dtype, .. } = *message;
    ImmediateMessage { peer, tag, dtype, bytes: borrowed_buffer(message) }
}

/// Creates two ranks. The first one polls once for a message of the second, and no other thread
/// polls.
fn receive_once(
    request: &ReceiveRequest,
    before: impl FnOnce(&TestRank),
    send: impl FnOnce(&TestRank),
) -> FastReceive {
    let members = create_ranks(NodeSpread::OneNode, 2);
    before(&members[0]);
    members[0].engine.core().unwrap().with_state(|state| {
        send(&members[1]);
        state.try_take_immediate(&immediate_receive(request), 1)
    })
}

fn send_immediate(from: &TestRank, tag: u32, bytes: Vec<u8>) {
    assert!(from.engine.try_send_immediate(&immediate_send(&send_request(0, tag, bytes))));
}

#[test]
fn fast_receive_takes_a_small_message() {
    for len in [0, 1, 4, 1000] {
        let wanted = receive_request(Some(1), Some(3), 1000);
        let found =
            receive_once(&wanted, |_| (), |other| send_immediate(other, 3, test_payload(5, len)));
        assert_eq!(found, FastReceive::Message(Delivery { peer: 1, tag: 3, bytes: len }));
        assert_eq!(read_bytes(borrowed_buffer(&wanted))[..len], test_payload(5, len));
    }
    let any_tag = receive_request(Some(1), None, 8);
    let found = receive_once(&any_tag, |_| (), |other| send_immediate(other, 7, vec![1]));
    assert_eq!(found, FastReceive::Message(Delivery { peer: 1, tag: 7, bytes: 1 }));
    assert_eq!(receive_once(&any_tag, |_| (), |_| ()), FastReceive::Empty { from: 1, taken: 0 });
}

#[test]
fn fast_receive_leaves_other_messages_to_posted_ones() {
    let wanted = || receive_request(Some(1), Some(3), 8);
    let send = |tag, len| move |other: &TestRank| send_immediate(other, tag, test_payload(1, len));
    assert_eq!(
        receive_once(&wanted(), |_| (), send(4, 8)),
        FastReceive::NeedsPosting,
        "another tag"
    );
    assert_eq!(receive_once(&wanted(), |_| (), send(3, 9)), FastReceive::NeedsPosting, "too long");
    let floats = ReceiveRequest { dtype: DataType::F64, ..wanted() };
    assert_eq!(
        receive_once(&floats, |_| (), send(3, 8)),
        FastReceive::NeedsPosting,
        "another type"
    );
    assert_eq!(
        receive_once(&receive_request(None, Some(3), 8), |_| (), send(3, 8)),
        FastReceive::NeedsPosting,
        "any source"
    );
    let internal = receive_request(Some(1), None, 8);
    assert_eq!(
        receive_once(&internal, |_| (), send(LARGEST_TAG + 1, 8)),
        FastReceive::NeedsPosting,
        "an internal tag"
    );
    let offered =
        |other: &TestRank| drop(other.post_send(send_request(0, 3, test_payload(1, 1 << 20))));
    assert_eq!(
        receive_once(&receive_request(Some(1), Some(3), 1 << 20), |_| (), offered),
        FastReceive::NeedsPosting
    );
}

#[test]
fn fast_receive_does_not_overtake_earlier_messages() {
    let posted = Arc::new(TestCompletion::default());
    let post = |me: &TestRank| {
        let core = me.engine.core().unwrap();
        let message = receive_request(Some(1), Some(3), 8);
        core.with_state(|state| state.receive(message, posted.clone())).unwrap();
    };
    let found = receive_once(&receive_request(Some(1), Some(3), 8), post, |other| {
        send_immediate(other, 3, vec![1])
    });
    assert_eq!(found, FastReceive::NeedsPosting);

    let members = create_ranks(NodeSpread::OneNode, 2);
    let second = receive_request(Some(1), Some(3), 8);
    members[0].engine.core().unwrap().with_state(|state| {
        send_immediate(&members[1], 3, vec![1]);
        state.progress();
        send_immediate(&members[1], 3, vec![2]);
        assert_eq!(
            state.try_take_immediate(&immediate_receive(&second), 1),
            FastReceive::NeedsPosting
        );
    });
    assert_eq!(members[0].receive(1, 3, 8).unwrap(), [1]);
    assert_eq!(members[0].receive(1, 3, 8).unwrap(), [2]);
}

#[test]
fn fast_send_is_refused_if_it_would_wait() {
    let members = create_ranks(NodeSpread::OneNode, 2);
    let me = &members[0];
    assert!(
        !me.engine.try_send_immediate(&immediate_send(&send_request(
            1,
            3,
            test_payload(1, 1 << 20)
        ))),
        "incomplete"
    );
    assert!(
        !me.engine.try_send_immediate(&immediate_send(&send_request(0, 3, vec![1]))),
        "to itself"
    );
    let apart = create_ranks(NodeSpread::NodePerRank, 2);
    assert!(
        !apart[0].engine.try_send_immediate(&immediate_send(&send_request(1, 3, vec![1]))),
        "over a network"
    );
    // Send until the receiver buffers as many bytes as it may.
    members[1].engine.core().unwrap().with_state(|_| {
        let sent = (0..100_000).take_while(|_| {
            me.engine.try_send_immediate(&immediate_send(&send_request(1, 3, test_payload(1, 64))))
        });
        assert!((1..100_000).contains(&sent.count()));
    });
    assert_eq!(members[1].receive(0, 3, 64).unwrap(), test_payload(1, 64));
}

#[test]
fn fast_receive_applies_credit_before_a_message() {
    let members = create_ranks(NodeSpread::OneNode, 2);
    let [there, back] =
        [receive_request(Some(0), Some(3), 16_000), receive_request(Some(1), Some(3), 8)];
    let (large, small) = (send_request(1, 3, test_payload(1, 16_000)), send_request(0, 3, vec![7]));
    let both = |zero: &mut MatchingState, one: &mut MatchingState| {
        // Send until the receiver returns credit.
        for _ in 0..20 {
            assert!(zero.try_send_immediate(&immediate_send(&large)));
            assert!(matches!(
                one.try_take_immediate(&immediate_receive(&there), 1),
                FastReceive::Message(_)
            ));
            one.flush_all();
        }
        assert!(one.try_send_immediate(&immediate_send(&small)));
        let used = zero.peers.link(1).used_credit;
        assert!(matches!(
            zero.try_take_immediate(&immediate_receive(&back), 1),
            FastReceive::Empty { from: 1, .. }
        ));
        assert!(zero.peers.link(1).used_credit < used);
        let delivery = Delivery { peer: 1, tag: 3, bytes: 1 };
        assert_eq!(
            zero.try_take_immediate(&immediate_receive(&back), 1),
            FastReceive::Message(delivery)
        );
        assert!(matches!(
            zero.try_take_immediate(&immediate_receive(&back), 1),
            FastReceive::Empty { from: 1, .. }
        ));
    };
    let [zero, one] = [0, 1].map(|rank: usize| members[rank].engine.core().unwrap());
    zero.with_state(|zero| one.with_state(|one| both(zero, one)));
}

#[test]
fn fast_path_is_refused_in_a_failed_group() {
    let members = create_ranks(NodeSpread::OneNode, 2);
    let wanted = receive_request(Some(1), Some(3), 8);
    members[0].engine.core().unwrap().with_state(|state| {
        send_immediate(&members[1], 3, vec![1]);
        members[1].domain.fail(&Error::new(ErrorKind::Aborted, "over"));
        assert_eq!(
            state.try_take_immediate(&immediate_receive(&wanted), 1),
            FastReceive::NeedsPosting
        );
    });
    while members[0].engine.core().unwrap().with_state(|state| state.failure.is_none()) {
        std::thread::yield_now();
    }
    assert!(!members[0].engine.try_send_immediate(&immediate_send(&send_request(1, 3, vec![1]))));
}

#[test]
fn posted_and_immediate_messages_interleave() {
    const TURNS: u64 = 20_000;
    for spread in [NodeSpread::OneNode, NodeSpread::OneSegment] {
        run_each_rank(create_ranks(spread, 2), |rank, member| {
            let other = 1 - rank;
            let send = |seed: u64| {
                let message = send_request(other, 1, test_payload(seed, 40));
                if !member.engine.try_send_immediate(&immediate_send(&message)) {
                    member.send(other, 1, test_payload(seed, 40)).unwrap();
                }
            };
            let receive = |seed: u64| {
                let message = receive_request(Some(other), Some(1), 40);
                let got = match member.engine.try_receive_immediate(&immediate_receive(&message)) {
                    Some(delivery) => {
                        read_bytes(borrowed_buffer(&message))[..delivery.bytes].to_vec()
                    }
                    None => member.receive(other, 1, 40).unwrap(),
                };
                assert_eq!(got, test_payload(seed, 40));
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
