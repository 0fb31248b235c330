//! What matches what.

use super::world::{SPREADS, Spread, content, incoming, lent_to, outgoing, text, world};
use crate::base::dtype::DataType;
use crate::base::error::ErrorKind;
use crate::transport::matching::limits::MAX_OUTSTANDING;
use crate::transport::{Incoming, PointToPoint};
use std::sync::Arc;

#[test]
fn a_message_that_does_not_fit_stays_for_the_next_receive() {
    for spread in SPREADS {
        let members = world(spread, 2);
        for (len, tag) in [(100, 1), (200_000, 2)] {
            // Posted before and after it comes; too short, and of another type.
            let short = incoming(Some(0), Some(tag), len - 1);
            let other = Incoming { dtype: DataType::F32, ..incoming(None, Some(tag), len) };
            let early = members[1].post_receive(short);
            let sent = members[0].post_send(outgoing(1, tag, text(4, len)));
            let late = members[1].post_receive(other);
            let (kind, text_of) = early.error();
            assert_eq!(kind, ErrorKind::Mismatch);
            for word in ["rank 0", &format!("tag {tag}"), &len.to_string(), &(len - 1).to_string()]
            {
                assert!(text_of.contains(word), "{text_of}");
            }
            let (kind, text_of) = late.error();
            assert!(kind == ErrorKind::Mismatch && text_of.contains("f32"), "{text_of}");
            assert_eq!(content(lent_to(&short)), vec![0; len - 1]);
            assert_eq!(content(lent_to(&other)), vec![0; len]);
            let fitting = incoming(Some(0), None, len + 1);
            assert_eq!(members[1].post_receive(fitting).wait().unwrap().bytes, len);
            assert_eq!(content(lent_to(&fitting))[..len], text(4, len));
            sent.wait().unwrap();
        }
    }
}

#[test]
fn a_message_takes_the_first_receive_and_a_receive_the_first_message() {
    let members = world(Spread::Pairs, 3);
    let wanted =
        [(Some(0), Some(1)), (None, Some(1)), (Some(0), None), (None, None), (Some(0), Some(1))];
    let messages = wanted.map(|(from, tag)| incoming(from, tag, 8));
    let got = messages.map(|message| members[2].post_receive(message));
    for turn in 0..5 {
        members[0].post_send(outgoing(2, 1, vec![turn; 8])).wait().unwrap();
        // It is there before the next one is sent.
        let receive = usize::from(turn);
        assert_eq!(got[receive].wait().unwrap().tag, 1);
        assert_eq!(content(lent_to(&messages[receive])), [turn; 8]);
    }
    // And the other way around: messages first.
    for (tag, turn) in [(1, 0), (2, 1), (1, 2)] {
        members[0].post_send(outgoing(2, tag, vec![turn; 8])).wait().unwrap();
    }
    for (tag, turn) in [(Some(2), 1), (None, 0), (Some(1), 2)] {
        let message = incoming(None, tag, 8);
        members[2].post_receive(message).wait().unwrap();
        assert_eq!(content(lent_to(&message)), [turn; 8]);
    }
}

#[test]
fn what_cannot_be_posted_is_refused() {
    let members = world(Spread::Together, 2);
    let done = || Arc::new(super::world::Outcome::default());
    let error = members[0].engine.send(outgoing(2, 0, vec![]), done()).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("rank 2"));
    let error = members[0].engine.receive(incoming(Some(9), None, 0), done()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let message = incoming(Some(1), Some(0), 1);
    let all: Vec<_> = (0..MAX_OUTSTANDING).map(|_| members[0].post_receive(message)).collect();
    let error = members[0].engine.receive(message, done()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    members[1].send(0, 0, vec![1]).unwrap();
    all[0].wait().unwrap();
    let one_more = members[0].post_receive(message);
    assert!(one_more.get().is_none() && all[1].get().is_none());
}
