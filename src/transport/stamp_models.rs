//! Loom models of the texts and copies in shared memory that have a stamp
//! ([`SequenceStamp`](crate::base::sequence_stamp::SequenceStamp)), and of the marks of presence.
//! A reader that reads during a write gets nothing, never a mixture of two values.

use super::heartbeat::HeartbeatState;
use super::labels::LabelEntry;
use super::presence::RankPresence;
use crate::base::label::Label;
use crate::base::sequence_stamp::SequenceStamp;
use crate::base::sync::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

/// Two words with a stamp; the words of stamp n are n and 10 n.
#[derive(Default)]
struct StampedPair {
    stamp: SequenceStamp,
    words: [AtomicU64; 2],
}

impl StampedPair {
    fn write(&self, stamp: u64) {
        self.stamp.begin_write(0);
        self.words[0].store(stamp, Ordering::Relaxed);
        self.words[1].store(10 * stamp, Ordering::Relaxed);
        self.stamp.end_write(stamp);
    }

    fn read(&self) -> Option<(u64, [u64; 2])> {
        let stamp = self.stamp.begin_read();
        let words = [0, 1].map(|i: usize| self.words[i].load(Ordering::Relaxed));
        (stamp != 0 && self.stamp.is_unchanged(stamp)).then_some((stamp, words))
    }
}

#[test]
fn loom_stamped_words_are_of_one_write() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let pair = Arc::new(StampedPair::default());
        let of_writer = Arc::clone(&pair);
        let writing = thread::spawn(move || (1..=2).for_each(|stamp| of_writer.write(stamp)));
        for _ in 0..2 {
            if let Some((stamp, words)) = pair.read() {
                assert_eq!(words, [stamp, 10 * stamp]);
            }
        }
        writing.join().unwrap();
        assert_eq!(pair.read(), Some((2, [2, 20])));
    });
}

/// The writer stores labels for two operations that use the same entry.
#[test]
fn loom_label_is_that_of_its_operation() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let label = |sequence: u64| Label::new(&format!("a label with words {sequence}")).unwrap();
        let entry = Arc::new(LabelEntry::default());
        let of_writer = Arc::clone(&entry);
        let writing = thread::spawn(move || {
            [1, 65].into_iter().for_each(|it| of_writer.publish(it, &label(it)));
        });
        for sequence in [1, 65] {
            if let Some(found) = entry.get(sequence) {
                assert_eq!(found, label(sequence));
            }
        }
        writing.join().unwrap();
        assert_eq!((entry.get(1), entry.get(65)), (None, Some(label(65))));
    });
}

/// A rank requests the activity text of its peer. The peer publishes a text in any case, and
/// another one if it has found the request.
#[test]
fn loom_activity_text_is_read_completely() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        const TEXTS: [&str; 3] = ["", "is in barrier", "is idle, has no call"];
        let state = Arc::new(HeartbeatState::default());
        let of_owner = Arc::clone(&state);
        let publishing = thread::spawn(move || {
            of_owner.publish_activity(TEXTS[1]);
            let is_requested = of_owner.take_activity_request();
            if is_requested {
                of_owner.publish_activity(TEXTS[2]);
            }
            is_requested
        });
        let before = state.request_activity();
        let text = state.last_activity();
        assert!(TEXTS.contains(&text.as_str()), "{text}");
        if publishing.join().unwrap() {
            assert_ne!(state.stamp(), before);
            assert_eq!(state.last_activity(), TEXTS[2]);
        } else {
            assert_eq!(state.last_activity(), TEXTS[1]);
        }
    });
}

/// A rank that finds the mark of departure also sees all earlier stores of the departed rank.
#[test]
fn loom_departed_rank_has_stored_everything() {
    loom::model(|| {
        let shared = Arc::new((RankPresence::default(), AtomicU64::new(0)));
        let of_peer = Arc::clone(&shared);
        let leaving = thread::spawn(move || {
            of_peer.1.store(7, Ordering::Relaxed);
            of_peer.0.mark_left();
        });
        if shared.0.has_left() {
            assert_eq!(shared.1.load(Ordering::Relaxed), 7);
        }
        leaving.join().unwrap();
        assert!(shared.0.has_left());
    });
}
