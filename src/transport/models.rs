//! Loom models of the shared-memory sequencer (`algo/shared/sequencer/mod.rs`), the protocol by
//! which ranks publish and reuse control slots and data slots. Loom runs each model through the
//! interleavings of its threads: all of them, or those with a limited number of preemptions.
//!
//! The models check that the contents of a slot do not change while a reader reads them, if both
//! sides keep these rules:
//!
//! - The writer publishes a step in a slot only after every reader has finished the step that the
//!   slot had before. The writer knows this from the reader's `finished_step` word. It also knows
//!   it if the reader has published a later step, because a reader finishes its steps in order.
//! - A reader reads a slot after the slot was published, and before it reports the step as
//!   finished.

use super::ctrl_slot::CtrlSlot;
use super::rank_progress::RankProgress;
use crate::base::sync::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

/// The number of control slots, and also of data slots. A real region has more of both.
const SLOTS: u64 = 2;
const STEPS: u64 = 4;

#[derive(Default)]
struct Writer {
    ctrl_slots: [CtrlSlot; 2],
    /// The data slots. They are stored and loaded with relaxed ordering. So if the protocol does
    /// not order a store before a load, loom also tries the old value, and the model fails.
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

/// A root runs ahead of its reader by as many steps as it has control slots. The `finished_step`
/// word of the reader proves that the root may overwrite a slot.
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

/// Two ranks wait for each other in every step. The next slot that the peer publishes proves that
/// the peer has read the previous step, both with `publish` and with `publish_unfenced`.
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
