//! Receives whose buffer the engine allocates when a message matches.

use super::test_ranks::{
    NODE_SPREADS, NodeSpread, allocating_receive, borrowed_buffer, create_ranks, leak_bytes,
    read_bytes, receive_request, send_request, test_payload,
};
use crate::base::deadline::Deadline;
use crate::base::error::ErrorKind;
use crate::transport::matching::limits::HELD_OVERHEAD;
use crate::transport::{Delivery, SendRequest};

/// The message sizes: empty, eager, and announced by an RTS with one or several fragments.
const SIZES: [usize; 6] = [0, 1, 16 << 10, 100_000, 300_000, 3 << 20];

#[test]
fn allocating_receive_takes_any_size_in_either_order() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        for (tag, len) in (0..).zip(SIZES) {
            for to in 0..2 {
                let sent = members[0].post_send(send_request(to, tag, test_payload(1, len)));
                let late =
                    members[to].post_receive(allocating_receive(None, Some(tag), usize::MAX));
                let delivery = Delivery { peer: 0, tag, bytes: len };
                assert_eq!(members[to].wait_with_progress(&late), Ok(delivery), "{spread:?}");
                assert!(late.allocated_bytes() == test_payload(1, len), "{spread:?}, {len} bytes");
                members[0].wait_with_progress(&sent).unwrap();
                let early = members[to].post_receive(allocating_receive(Some(0), None, len));
                let sent = members[0].post_send(send_request(to, tag, test_payload(2, len)));
                assert_eq!(early.wait(), Ok(delivery), "{spread:?}");
                assert!(early.allocated_bytes() == test_payload(2, len), "{spread:?}, {len} bytes");
                sent.wait().unwrap();
            }
        }
        assert!(members.iter().all(|member| member.engine.core().unwrap().buffered_bytes() == 0));
    }
}

#[test]
fn message_above_max_bytes_stays_for_the_next_receive() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        for (tag, len) in [(1, 100), (2, 200_000)] {
            let early = members[1].post_receive(allocating_receive(Some(0), Some(tag), len - 1));
            let sent = members[0].post_send(send_request(1, tag, test_payload(4, len)));
            let late = members[1].post_receive(allocating_receive(None, None, len - 1));
            for outcome in [early, late] {
                let (kind, message) = outcome.error();
                assert_eq!(kind, ErrorKind::Mismatch);
                assert!(message.contains(&format!("room for {}", len - 1)), "{message}");
            }
            let fitting = members[1].post_receive(allocating_receive(Some(0), None, len));
            assert_eq!(fitting.wait().unwrap().bytes, len);
            assert!(fitting.allocated_bytes() == test_payload(4, len));
            sent.wait().unwrap();
        }
    }
}

#[test]
fn message_without_memory_stays_for_the_next_receive() {
    // The sender claims more bytes than any memory has, so no receive can take the message. The
    // send then times out.
    for spread in [NodeSpread::OneNode, NodeSpread::NodePerRank] {
        let members = create_ranks(spread, 2);
        for to in [1, 0] {
            let deadline = Deadline::after_ms(300);
            // SAFETY: no byte is ever read, since no receive has room for any byte.
            #[allow(unsafe_code, reason = "a view that is longer than the address space")]
            let bytes = unsafe {
                crate::base::buffer::Src::new(
                    leak_bytes(vec![1]).as_ptr(),
                    usize::MAX / 2 - HELD_OVERHEAD,
                )
            };
            let huge = SendRequest { bytes, deadline, ..send_request(to, 3, Vec::new()) };
            let early = members[to].post_receive(allocating_receive(Some(0), Some(3), usize::MAX));
            let sent = members[0].post_send(huge);
            let late = members[to].post_receive(allocating_receive(None, Some(3), usize::MAX));
            for outcome in [early, late] {
                let (kind, message) = outcome.error();
                assert_eq!(kind, ErrorKind::OutOfMemory, "{spread:?}");
                assert!(message.contains("rank 0") && message.contains("tag 3"), "{message}");
            }
            assert_eq!(sent.error().0, ErrorKind::Timeout);
            // Other messages still work.
            let receive =
                || members[to].post_receive(allocating_receive(Some(0), Some(3), usize::MAX));
            let mut next = receive();
            members[0].post_send(send_request(to, 3, test_payload(5, 50_000)));
            // The frame that cancels the RTS may still be in transit.
            while let Err(error) = next.wait() {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                next = receive();
            }
            assert!(next.allocated_bytes() == test_payload(5, 50_000));
        }
    }
}

#[test]
fn receive_reallocates_after_a_withdrawn_message() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        let deadline = Deadline::after_ms(30);
        let withdrawn = members[0]
            .post_send(SendRequest { deadline, ..send_request(1, 1, test_payload(6, 270_000)) });
        assert_eq!(withdrawn.error().0, ErrorKind::Timeout, "{spread:?}");
        let receive = members[1].post_receive(allocating_receive(Some(0), Some(1), usize::MAX));
        let sent = members[0].post_send(send_request(1, 1, test_payload(7, 20)));
        assert_eq!(receive.wait().unwrap().bytes, 20, "{spread:?}");
        assert_eq!(receive.allocated_bytes(), test_payload(7, 20));
        sent.wait().unwrap();
        // A receive that borrows the caller's memory is not affected.
        let message = receive_request(Some(0), Some(1), 20);
        let receive = members[1].post_receive(message);
        members[0].send(1, 1, test_payload(8, 20)).unwrap();
        receive.wait().unwrap();
        assert_eq!(read_bytes(borrowed_buffer(&message)), test_payload(8, 20));
    }
}
