//! Loom models of the protocol of `algo/shared/sequencer/mod.rs` on control slots, data slots and
//! progress. Loom runs them through all interleavings.
//!
//! The checked rule has two parts. The writer publishes a slot only after every reader has finished
//! the slot's previous step; the reader's `finished_step` word or its own later slot proves that. A
//! reader reads a slot only after it was published and before the reader reports its step as
//! finished.

use super::ctrl_slot::CtrlSlot;
use super::rank_progress::RankProgress;
use crate::base::sync::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

/// The number of control slots and of data slots. A real region has more.
const SLOTS: u64 = 2;
const STEPS: u64 = 4;

#[derive(Default)]
struct Writer {
    ctrl_slots: [CtrlSlot; 2],
    /// The data is stored and loaded with relaxed ordering. A load may return any value that no
    /// happens-before relation rules out, so that a race shows in the value.
    slots: [AtomicU64; 2],
    progress: RankProgress,
}

fn index(step: u64) -> usize {
    usize::try_from(step % SLOTS).unwrap()
}

/// The type of the functions that publish a slot.
type PublishFn = fn(&CtrlSlot, u64, u64, &[u64; 3], &[u8]);

fn publish(writer: &Writer, step: u64, publish_fn: PublishFn) {
    writer.slots[index(step)].store(step * 10, Ordering::Relaxed);
    publish_fn(&writer.ctrl_slots[index(step)], step, step * 3, &[1, 2, step], &step.to_le_bytes());
}

fn read(writer: &Writer, step: u64) {
    let slot = &writer.ctrl_slots[index(step)];
    while slot.step() < step {
        thread::yield_now();
    }
    // The writer cannot have overwritten the slot before this reader has reported the step as
    // finished.
    assert_eq!((slot.step(), slot.call_fingerprint()), (step, step * 3));
    let mut payload = [0; 8];
    slot.read_payload(&mut payload);
    assert_eq!(u64::from_le_bytes(payload), step);
    let data = writer.slots[index(step)].load(Ordering::Relaxed);
    assert_eq!(data, step * 10);
}

/// A root runs ahead of its reader by as many steps as it has control slots.
#[test]
fn loom_root_overwrites_only_slots_already_read() {
    loom::model(|| {
        let root = Arc::new(Writer::default());
        let reader = Arc::new(RankProgress::default());
        let (seen, done) = (Arc::clone(&root), Arc::clone(&reader));
        let reading = thread::spawn(move || {
            for step in 1..=STEPS {
                read(&seen, step);
                done.finish_step(step);
            }
        });
        for step in 1..=STEPS {
            while reader.finished_step() < step.saturating_sub(SLOTS) {
                thread::yield_now();
            }
            publish(&root, step, CtrlSlot::publish);
        }
        reading.join().unwrap();
    });
}

/// Two ranks wait for each other in every step. The peer's next slot proves that the peer has read
/// the previous step, whichever function published the slot.
#[test]
fn loom_next_ctrl_slot_proves_previous_step_was_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let ranks = Arc::new([Writer::default(), Writer::default()]);
        let other = Arc::clone(&ranks);
        let run = |ranks: &[Writer; 2], me: usize| {
            for step in 1..=3 {
                let publish_fn =
                    if me == 0 { CtrlSlot::publish_unfenced } else { CtrlSlot::publish };
                publish(&ranks[me], step, publish_fn);
                read(&ranks[1 - me], step);
                ranks[me].progress.finish_step(step);
            }
        };
        let running = thread::spawn(move || run(&other, 1));
        run(&ranks, 0);
        running.join().unwrap();
    });
}
