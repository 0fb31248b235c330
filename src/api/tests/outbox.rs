use super::*;
use crate::api::outbox::Outbox;

const TAG: u32 = 9;

/// Keeps what has come.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Vec<u8>>>);

impl Completion for Kept {
    fn complete(&self, outcome: Result<Delivery>) {
        assert!(outcome.is_err(), "a message without its bytes");
    }

    fn complete_grown(&self, _: Delivery, bytes: Vec<u8>) {
        self.0.lock().unwrap().push(bytes);
    }
}

fn listen(fake: &Fake, kept: &Arc<Kept>) {
    let (into, deadline) = (Room::Grows { most: 100 }, Deadline::never());
    let message = Incoming { from: None, tag: Some(TAG), dtype: DataType::U8, into, deadline };
    fake.receive(message, Arc::clone(kept) as Arc<dyn Completion>).unwrap();
}

fn on_their_way(fake: &Fake) -> Vec<usize> {
    fake.posted.lock().unwrap().sends.iter().map(|(message, _)| message.to).collect()
}

#[test]
fn one_is_on_its_way_and_only_the_newest_follows() {
    let (group, fake) = Fake::group("outbox", true);
    let (outbox, kept) = (Arc::new(Outbox::new(TAG)), Arc::new(Kept::default()));
    for word in [&b"first"[..], b"second", b"third"] {
        outbox.say(&group, 1, word).unwrap();
    }
    assert_eq!(on_their_way(&fake), [1]);
    // Ranks do not wait for each other.
    outbox.say(&group, 0, b"other").unwrap();
    assert_eq!(on_their_way(&fake), [1, 0]);
    assert!(!outbox.has_gone(&[0]) && !outbox.has_gone(&[0, 1]) && outbox.has_gone(&[2]));
    for _ in 0..3 {
        listen(&fake, &kept);
    }
    assert_eq!(*kept.0.lock().unwrap(), [&b"first"[..], b"other", b"third"]);
    assert!(outbox.has_gone(&[0, 1]) && on_their_way(&fake).is_empty());
    // And on it goes.
    listen(&fake, &kept);
    outbox.say(&group, 1, b"fourth").unwrap();
    assert!(outbox.has_gone(&[1]));
    assert_eq!(kept.0.lock().unwrap().last().unwrap(), b"fourth");
}

#[test]
fn what_waits_behind_a_message_that_failed_is_dropped() {
    let (group, fake) = Fake::group("outbox-failed", true);
    let outbox = Arc::new(Outbox::new(TAG));
    outbox.say(&group, 1, b"first").unwrap();
    outbox.say(&group, 1, b"second").unwrap();
    let (_, done) = fake.posted.lock().unwrap().sends.pop().unwrap();
    done.complete(Err(Error::new(ErrorKind::PeerFailed, "rank 1 has left")));
    assert!(outbox.has_gone(&[1]) && on_their_way(&fake).is_empty());
}
