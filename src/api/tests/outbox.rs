//! Tests of the sender that keeps only the newest unsent message for each rank.

use super::*;
use crate::api::work::latest_only_sender::LatestOnlySender;

const TAG: u32 = 9;

/// A completion that collects the received messages.
#[derive(Debug, Default)]
struct ReceivedMessages(Mutex<Vec<Vec<u8>>>);

impl Completion for ReceivedMessages {
    fn complete(&self, outcome: Result<Delivery>) {
        assert!(outcome.is_err(), "a message without its bytes");
    }

    fn complete_allocated(&self, _: Delivery, bytes: Vec<u8>) {
        self.0.lock().unwrap().push(bytes);
    }
}

fn post_receive(fake: &FakeBackend, received: &Arc<ReceivedMessages>) {
    let (into, deadline) = (ReceiveBuffer::Allocated { max_bytes: 100 }, Deadline::never());
    let message =
        ReceiveRequest { from: None, tag: Some(TAG), dtype: DataType::U8, buffer: into, deadline };
    fake.receive(message, Arc::clone(received) as Arc<dyn Completion>).unwrap();
}

fn destinations_in_flight(fake: &FakeBackend) -> Vec<usize> {
    fake.posted.lock().unwrap().sends.iter().map(|(message, _)| message.to).collect()
}

#[test]
fn only_the_newest_queued_message_follows() {
    let (group, fake) = FakeBackend::group("outbox", true);
    let (outbox, received) =
        (Arc::new(LatestOnlySender::new(TAG)), Arc::new(ReceivedMessages::default()));
    for message in [&b"first"[..], b"second", b"third"] {
        outbox.send_latest(&group, 1, message).unwrap();
    }
    assert_eq!(destinations_in_flight(&fake), [1]);
    // The queue of one rank does not delay messages to another rank.
    outbox.send_latest(&group, 0, b"other").unwrap();
    assert_eq!(destinations_in_flight(&fake), [1, 0]);
    assert!(!outbox.is_flushed(&[0]) && !outbox.is_flushed(&[0, 1]) && outbox.is_flushed(&[2]));
    for _ in 0..3 {
        post_receive(&fake, &received);
    }
    assert_eq!(*received.0.lock().unwrap(), [&b"first"[..], b"other", b"third"]);
    assert!(outbox.is_flushed(&[0, 1]) && destinations_in_flight(&fake).is_empty());
    // The sender accepts further messages after a flush.
    post_receive(&fake, &received);
    outbox.send_latest(&group, 1, b"fourth").unwrap();
    assert!(outbox.is_flushed(&[1]));
    assert_eq!(received.0.lock().unwrap().last().unwrap(), b"fourth");
}

#[test]
fn failed_send_drops_the_queued_message() {
    let (group, fake) = FakeBackend::group("outbox-failed", true);
    let outbox = Arc::new(LatestOnlySender::new(TAG));
    outbox.send_latest(&group, 1, b"first").unwrap();
    outbox.send_latest(&group, 1, b"second").unwrap();
    let (_, done) = fake.posted.lock().unwrap().sends.pop().unwrap();
    done.complete(Err(Error::new(ErrorKind::PeerFailed, "rank 1 has left")));
    assert!(outbox.is_flushed(&[1]) && destinations_in_flight(&fake).is_empty());
}
