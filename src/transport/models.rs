//! Loom models of the protocols in memory that processes share. Loom runs each model through the
//! interleavings of its threads: all of them, or those with a limited number of preemptions. It
//! also tries the old values that the orderings of the loads permit, as a processor with weak
//! ordering does.
//!
//! Three of the protocols are small: the revocation of remote writes (`rank_progress.rs`), the
//! exposure of buffers (`exposure.rs`), and the abort record (`abort.rs`). The fourth is the
//! shared-memory sequencer (`algo/shared/sequencer/mod.rs`), by which ranks publish and reuse
//! control slots and data slots.
//!
//! The models of the sequencer check that the contents of a slot do not change while a reader reads
//! them, if both sides keep these rules:
//!
//! - The writer publishes a step in a slot only after every reader has finished the step that the
//!   slot had before. The writer knows this from the reader's `finished_step` word. It also knows
//!   it if the reader has published a later step, because a reader finishes its steps in order.
//! - A reader reads a slot after the slot was published, and before it reports the step as
//!   finished.

use super::abort::AbortRecord;
use super::ctrl_slot::CtrlSlot;
use super::exposure::{ExposureTable, ExposureWords, ProcessCookie};
use super::rank_progress::{RankProgress, RemoteWritePurpose};
use crate::base::error::{Error, ErrorKind};
use crate::base::sync::{AtomicBool, AtomicU64, Ordering};
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

/// The owner of a buffer fails the group, waits until the writer's mark is clear, and reuses the
/// buffer. No write of the writer comes later.
#[test]
fn loom_no_remote_write_follows_its_revocation() {
    loom::model(|| {
        let shared = Arc::new((RankProgress::default(), AbortRecord::default(), AtomicU64::new(0)));
        let of_writer = Arc::clone(&shared);
        let writing = thread::spawn(move || {
            let (progress, failure, buffer) = &*of_writer;
            let _mark = progress.begin_remote_write(RemoteWritePurpose::Collective);
            if !failure.is_set() {
                buffer.store(1, Ordering::Relaxed);
            }
        });
        let (progress, failure, buffer) = &*shared;
        assert!(failure.set(&Error::new(ErrorKind::Timeout, "late")));
        // An owner that still finds the mark would poll again; the model then ends.
        let is_free = (0..3).any(|_| {
            thread::yield_now();
            !progress.is_writing_remotely(RemoteWritePurpose::Collective)
        });
        if is_free {
            buffer.store(2, Ordering::Relaxed);
        }
        writing.join().unwrap();
        assert!(!is_free || buffer.load(Ordering::Relaxed) == 2);
    });
}

#[derive(Default)]
struct Exposure {
    cookie: ProcessCookie,
    words: ExposureWords,
    buffer: AtomicU64,
    /// Whether the owner has written the back half and reported it.
    has_put: AtomicBool,
    /// Whether the reader has asked for the message in another way.
    needs_fragments: AtomicBool,
}

impl Exposure {
    fn table(&self) -> ExposureTable<'_> {
        ExposureTable { cookie: &self.cookie, words: &self.words }
    }
}

/// Either the reader reads the buffer, or the owner withdraws it and overwrites it.
#[test]
fn loom_withdrawn_buffer_is_not_read() {
    loom::model(|| {
        let shared = Arc::new(Exposure::default());
        shared.buffer.store(1, Ordering::Relaxed);
        shared.table().expose(0, 7);
        let of_reader = Arc::clone(&shared);
        let reading = thread::spawn(move || {
            if of_reader.table().begin_read(0, 7) {
                assert_eq!(of_reader.buffer.load(Ordering::Relaxed), 1);
                // The reader cannot read the rest.
                assert!(of_reader.table().cancel_read(0, 7));
            }
        });
        if shared.table().withdraw(0, 7) {
            shared.buffer.store(2, Ordering::Relaxed);
        }
        reading.join().unwrap();
    });
}

/// The reader of a split transfer cannot read its half. It gives the buffer back, at the latest
/// after the report of the owner, and then the owner can withdraw the buffer.
#[test]
fn loom_failed_split_gives_the_buffer_back() {
    loom::model(|| {
        let shared = Arc::new(Exposure::default());
        shared.table().expose(0, 7);
        assert!(shared.table().begin_read(0, 7));
        let of_reader = Arc::clone(&shared);
        let reading = thread::spawn(move || {
            let table = of_reader.table();
            if !table.cancel_read(0, 7) {
                while !of_reader.has_put.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                assert!(table.cancel_split(0, 7));
            }
            of_reader.needs_fragments.store(true, Ordering::Release);
        });
        if shared.table().begin_split(0, 7) {
            shared.has_put.store(true, Ordering::Release);
        }
        while !shared.needs_fragments.load(Ordering::Acquire) {
            thread::yield_now();
        }
        assert!(shared.table().withdraw(0, 7));
        reading.join().unwrap();
    });
}

/// Two ranks report errors at the same time. A reader finds one whole reason, or none yet.
#[test]
fn loom_abort_reason_is_read_completely() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let record = Arc::new(AbortRecord::default());
        let other = Arc::clone(&record);
        let reason = |rank: usize| {
            let kind = if rank == 1 { ErrorKind::PeerFailed } else { ErrorKind::Timeout };
            Error::new(kind, rank.to_string()).with_culprit(rank)
        };
        let setting = thread::spawn(move || other.set(&reason(1)));
        let is_first = record.set(&reason(2));
        // A record that is claimed but not complete yields an error without a reason.
        let found = record.get().unwrap();
        let whole = [reason(1), reason(2)];
        assert!(whole.contains(&found) || found.culprit().is_none(), "{found}");
        assert_ne!(setting.join().unwrap(), is_first);
        assert_eq!(record.get(), Some(reason(if is_first { 2 } else { 1 })));
    });
}
