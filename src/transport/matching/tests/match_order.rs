//! Tests of the order in which messages and receives match.

use super::test_ranks::{
    NODE_SPREADS, NodeSpread, TestCompletion, TestRank, borrowed_buffer, create_ranks, read_bytes,
    receive_request, send_request, test_payload,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::ErrorKind;
use crate::transport::matching::limits::MAX_OUTSTANDING;
use crate::transport::{LARGEST_TAG, PointToPoint, ReceiveRequest};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn mismatched_message_stays_for_the_next_receive() {
    for spread in NODE_SPREADS {
        let members = create_ranks(spread, 2);
        for (len, tag) in [(100, 1), (200_000, 2)] {
            // Two receives cannot take the message: `short` is posted before the message arrives,
            // and `other`, which has another type, after it.
            let short = receive_request(Some(0), Some(tag), len - 1);
            let other =
                ReceiveRequest { dtype: DataType::F32, ..receive_request(None, Some(tag), len) };
            let early = members[1].post_receive(short);
            let sent = members[0].post_send(send_request(1, tag, test_payload(4, len)));
            let late = members[1].post_receive(other);
            let (kind, text_of) = early.error();
            assert_eq!(kind, ErrorKind::Mismatch);
            for word in ["rank 0", &format!("tag {tag}"), &len.to_string(), &(len - 1).to_string()]
            {
                assert!(text_of.contains(word), "{text_of}");
            }
            let (kind, text_of) = late.error();
            assert!(kind == ErrorKind::Mismatch && text_of.contains("f32"), "{text_of}");
            assert_eq!(read_bytes(borrowed_buffer(&short)), vec![0; len - 1]);
            assert_eq!(read_bytes(borrowed_buffer(&other)), vec![0; len]);
            let fitting = receive_request(Some(0), Some(tag), len + 1);
            assert_eq!(members[1].post_receive(fitting).wait().unwrap().bytes, len);
            assert_eq!(read_bytes(borrowed_buffer(&fitting))[..len], test_payload(4, len));
            sent.wait().unwrap();
            assert_refusal_is_returned_once(&members[0], tag, len);
        }
    }
}

/// Waits until the rank knows of its refused message. Messages with internal tags do not return the
/// error; the next other message does.
fn assert_refusal_is_returned_once(sender: &TestRank, tag: u32, len: usize) {
    let send = |tag| {
        let done = Arc::new(TestCompletion::default());
        sender.engine.send(send_request(1, tag, vec![1]), done)
    };
    let other = || send(tag + 10);
    let limit = Deadline::after(Duration::from_secs(10));
    while sender.engine.refused_messages().unreported.is_none() {
        assert!(!limit.has_passed(), "the sender does not learn of the refused message");
        send(LARGEST_TAG + 1).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    send(LARGEST_TAG + 1).unwrap();
    let error = other().unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Mismatch, Some(1)));
    for word in ["rank 1", &format!("tag {tag}"), &len.to_string(), &(len - 1).to_string()] {
        assert!(error.message().contains(word), "{error}");
    }
    // The receive of another type was refused as well, but it came later.
    let again = std::iter::repeat_with(other).take(20).filter(Result::is_err).count();
    assert!(again <= 1, "{again} errors");
    assert!(sender.engine.refused_messages().is_reported);
}

#[test]
fn messages_and_receives_match_in_order() {
    let members = create_ranks(NodeSpread::TwoPerNode, 3);
    let wanted =
        [(Some(0), Some(1)), (None, Some(1)), (Some(0), None), (None, None), (Some(0), Some(1))];
    let messages = wanted.map(|(from, tag)| receive_request(from, tag, 8));
    let got = messages.map(|message| members[2].post_receive(message));
    for round in 0..5 {
        members[0].post_send(send_request(2, 1, vec![round; 8])).wait().unwrap();
        // Each message has arrived before the next one is sent.
        let receive = usize::from(round);
        assert_eq!(got[receive].wait().unwrap().tag, 1);
        assert_eq!(read_bytes(borrowed_buffer(&messages[receive])), [round; 8]);
    }
    // The other way around: messages before receives.
    for (tag, round) in [(1, 0), (2, 1), (1, 2)] {
        members[0].post_send(send_request(2, tag, vec![round; 8])).wait().unwrap();
    }
    for (tag, round) in [(Some(2), 1), (None, 0), (Some(1), 2)] {
        let message = receive_request(None, tag, 8);
        members[2].post_receive(message).wait().unwrap();
        assert_eq!(read_bytes(borrowed_buffer(&message)), [round; 8]);
    }
}

#[test]
fn invalid_or_excess_requests_are_refused() {
    let members = create_ranks(NodeSpread::OneNode, 2);
    let done = || Arc::new(TestCompletion::default());
    let error = members[0].engine.send(send_request(2, 0, vec![]), done()).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("rank 2"));
    let error = members[0].engine.receive(receive_request(Some(9), None, 0), done()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let message = receive_request(Some(1), Some(0), 1);
    let all: Vec<_> = (0..MAX_OUTSTANDING).map(|_| members[0].post_receive(message)).collect();
    let error = members[0].engine.receive(message, done()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    members[1].send(0, 0, vec![1]).unwrap();
    all[0].wait().unwrap();
    let one_more = members[0].post_receive(message);
    assert!(one_more.get().is_none() && all[1].get().is_none());
}
