//! Receives whose memory is made when they have a message.

use super::world::{
    SPREADS, Spread, content, growing, incoming, lent, lent_to, outgoing, text, world,
};
use crate::base::deadline::Deadline;
use crate::base::error::ErrorKind;
use crate::transport::matching::limits::COST;
use crate::transport::{Delivery, Outgoing};

/// Empty, whole, and offered in one piece and in several.
const SIZES: [usize; 6] = [0, 1, 16 << 10, 100_000, 300_000, 3 << 20];

#[test]
fn any_message_fits_whether_it_comes_before_or_after() {
    for spread in SPREADS {
        let members = world(spread, 2);
        for (tag, len) in (0..).zip(SIZES) {
            for to in 0..2 {
                let sent = members[0].post_send(outgoing(to, tag, text(1, len)));
                let late = members[to].post_receive(growing(None, Some(tag), usize::MAX));
                let delivery = Delivery { peer: 0, tag, bytes: len };
                assert_eq!(members[to].attend_to(&late), Ok(delivery), "{spread:?}");
                assert!(late.grown() == text(1, len), "{spread:?}, {len} bytes");
                members[0].attend_to(&sent).unwrap();
                let early = members[to].post_receive(growing(Some(0), None, len));
                let sent = members[0].post_send(outgoing(to, tag, text(2, len)));
                assert_eq!(early.wait(), Ok(delivery), "{spread:?}");
                assert!(early.grown() == text(2, len), "{spread:?}, {len} bytes");
                sent.wait().unwrap();
            }
        }
        assert!(members.iter().all(|member| member.engine.core().unwrap().buffered() == 0));
    }
}

#[test]
fn a_message_beyond_the_bound_stays_for_the_next_receive() {
    for spread in SPREADS {
        let members = world(spread, 2);
        for (tag, len) in [(1, 100), (2, 200_000)] {
            let early = members[1].post_receive(growing(Some(0), Some(tag), len - 1));
            let sent = members[0].post_send(outgoing(1, tag, text(4, len)));
            let late = members[1].post_receive(growing(None, None, len - 1));
            for outcome in [early, late] {
                let (kind, message) = outcome.error();
                assert_eq!(kind, ErrorKind::Mismatch);
                assert!(message.contains(&format!("room for {}", len - 1)), "{message}");
            }
            let fitting = members[1].post_receive(growing(Some(0), None, len));
            assert_eq!(fitting.wait().unwrap().bytes, len);
            assert!(fitting.grown() == text(4, len));
            sent.wait().unwrap();
        }
    }
}

#[test]
fn a_message_for_which_there_is_no_memory_stays_for_the_next_receive() {
    // The sender claims more than any memory has, in a message that nobody can take; then it gives
    // up.
    for spread in [Spread::Together, Spread::Apart] {
        let members = world(spread, 2);
        for to in [1, 0] {
            let deadline = Deadline::after_ms(300);
            // SAFETY: no byte is ever read, since no receive has room for any.
            #[allow(unsafe_code, reason = "a view that is longer than any memory")]
            let bytes = unsafe {
                crate::base::buffer::Src::new(lent(vec![1]).as_ptr(), usize::MAX / 2 - COST)
            };
            let huge = Outgoing { bytes, deadline, ..outgoing(to, 3, Vec::new()) };
            let early = members[to].post_receive(growing(Some(0), Some(3), usize::MAX));
            let sent = members[0].post_send(huge);
            let late = members[to].post_receive(growing(None, Some(3), usize::MAX));
            for outcome in [early, late] {
                let (kind, message) = outcome.error();
                assert_eq!(kind, ErrorKind::OutOfMemory, "{spread:?}");
                assert!(message.contains("rank 0") && message.contains("tag 3"), "{message}");
            }
            assert_eq!(sent.error().0, ErrorKind::Timeout);
            // Nothing else was harmed.
            let receive = || members[to].post_receive(growing(Some(0), Some(3), usize::MAX));
            let mut next = receive();
            members[0].post_send(outgoing(to, 3, text(5, 50_000)));
            // The news that the sender has given up may still be on its way.
            while let Err(error) = next.wait() {
                assert_eq!(error.kind(), ErrorKind::OutOfMemory);
                next = receive();
            }
            assert!(next.grown() == text(5, 50_000));
        }
    }
}

#[test]
fn a_receive_that_waits_again_after_a_withdrawal_makes_its_memory_anew() {
    for spread in SPREADS {
        let members = world(spread, 2);
        let deadline = Deadline::after_ms(30);
        let withdrawn =
            members[0].post_send(Outgoing { deadline, ..outgoing(1, 1, text(6, 270_000)) });
        assert_eq!(withdrawn.error().0, ErrorKind::Timeout, "{spread:?}");
        let receive = members[1].post_receive(growing(Some(0), Some(1), usize::MAX));
        let sent = members[0].post_send(outgoing(1, 1, text(7, 20)));
        assert_eq!(receive.wait().unwrap().bytes, 20, "{spread:?}");
        assert_eq!(receive.grown(), text(7, 20));
        sent.wait().unwrap();
        // One that lends its memory is as before.
        let message = incoming(Some(0), Some(1), 20);
        let receive = members[1].post_receive(message);
        members[0].send(1, 1, text(8, 20)).unwrap();
        receive.wait().unwrap();
        assert_eq!(content(lent_to(&message)), text(8, 20));
    }
}
