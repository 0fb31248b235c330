//! Models of what `algo/shared/steps/mod.rs` does with lines, slots and progress, run through all
//! interleavings.
//!
//! The rule that is checked: a line is published only when every reader has finished the step that
//! it held before, which its `done` word or its own later line proves; a slot is read only between
//! the two.

use super::line::Line;
use super::progress::Progress;
use crate::base::sync::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

/// How many lines and slots there are, of which a real region has more.
const LINES: u64 = 2;
const STEPS: u64 = 4;

#[derive(Default)]
struct Writer {
    lines: [Line; 2],
    /// Relaxed: whatever no happens-before rules out may be read, so that a race shows in the
    /// value.
    slots: [AtomicU64; 2],
    progress: Progress,
}

fn index(step: u64) -> usize {
    usize::try_from(step % LINES).unwrap()
}

/// One of the ways of a line.
type Way = fn(&Line, u64, u64, &[u64; 3], &[u8]);

fn publish(writer: &Writer, step: u64, way: Way) {
    writer.slots[index(step)].store(step * 10, Ordering::Relaxed);
    way(&writer.lines[index(step)], step, step * 3, &[1, 2, step], &step.to_le_bytes());
}

fn read(writer: &Writer, step: u64) {
    let line = &writer.lines[index(step)];
    while line.step() < step {
        thread::yield_now();
    }
    // It cannot have been overwritten before this reader has said that it is done.
    assert_eq!((line.step(), line.chain()), (step, step * 3));
    let mut payload = [0; 8];
    line.read_payload(&mut payload);
    assert_eq!(u64::from_le_bytes(payload), step);
    let slot = writer.slots[index(step)].load(Ordering::Relaxed);
    assert_eq!(slot, step * 10);
}

/// A root that runs ahead of its reader as far as its lines reach.
#[test]
fn loom_a_root_overwrites_only_what_was_read() {
    loom::model(|| {
        let root = Arc::new(Writer::default());
        let reader = Arc::new(Progress::default());
        let (seen, done) = (Arc::clone(&root), Arc::clone(&reader));
        let reading = thread::spawn(move || {
            for step in 1..=STEPS {
                read(&seen, step);
                done.pass(step);
            }
        });
        for step in 1..=STEPS {
            while reader.done() < step.saturating_sub(LINES) {
                thread::yield_now();
            }
            publish(&root, step, Line::publish);
        }
        reading.join().unwrap();
    });
}

/// Two ranks that wait for each other in every step need no other proof than the peer's next line,
/// in whichever way it was published.
#[test]
fn loom_a_later_line_proves_that_the_step_before_was_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let ranks = Arc::new([Writer::default(), Writer::default()]);
        let other = Arc::clone(&ranks);
        let run = |ranks: &[Writer; 2], me: usize| {
            for step in 1..=3 {
                let way = if me == 0 { Line::put } else { Line::publish };
                publish(&ranks[me], step, way);
                read(&ranks[1 - me], step);
                ranks[me].progress.pass(step);
            }
        };
        let running = thread::spawn(move || run(&other, 1));
        run(&ranks, 0);
        running.join().unwrap();
    });
}
