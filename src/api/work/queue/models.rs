//! Loom models of the run queue. They check in all interleavings that only one thread has the turn
//! and that each job runs once.

use super::*;
use crate::base::sync::AtomicU64;
use loom::model::Builder;
use loom::thread;
use std::sync::Arc;

/// A counter that each operation writes in its turn. The accesses are relaxed, so that only the
/// queue orders them.
#[derive(Debug, Default)]
struct SequenceLog(AtomicU64);

impl SequenceLog {
    /// Checks that the counter has the value of the operation before `sequence`, and writes
    /// `sequence`.
    fn write(&self, sequence: u64) {
        assert_eq!(self.0.load(Ordering::Relaxed), sequence - 1);
        self.0.store(sequence, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct WriteJob {
    log: Arc<SequenceLog>,
    sequence: u64,
    deadline: Deadline,
    queue: Arc<RunQueue>,
    done: Arc<AtomicU64>,
}

impl QueueJob for WriteJob {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn failure(&self) -> Option<Error> {
        None
    }

    fn run(self: Box<Self>, turn: Turn<'_>) {
        self.log.write(self.sequence);
        turn.end_without_wake();
        self.done.fetch_add(1, Ordering::Release);
        self.queue.end_work();
    }

    fn expire(self: Box<Self>) {
        panic!("no call of this test expires");
    }

    fn fail(self: Box<Self>, _: &Error) {
        panic!("no call of this test fails");
    }
}

/// A queue without a worker thread. A thread of the model may act as the worker.
struct QueueModel {
    queue: Arc<RunQueue>,
    log: Arc<SequenceLog>,
    done: Arc<AtomicU64>,
}

impl QueueModel {
    fn new() -> Self {
        let queue = RunQueue::default();
        queue.lock_jobs().has_worker = true;
        Self { queue: Arc::new(queue), log: Arc::default(), done: Arc::new(AtomicU64::new(0)) }
    }

    fn enqueue(&self) {
        self.queue.add_work();
        let enqueued = self.queue.enqueue(1, |ticket| {
            Box::new(WriteJob {
                log: Arc::clone(&self.log),
                sequence: ticket.sequence(),
                deadline: Deadline::never(),
                queue: Arc::clone(&self.queue),
                done: Arc::clone(&self.done),
            })
        });
        enqueued.unwrap();
    }

    fn clone(&self) -> Self {
        let Self { queue, log, done } = self;
        Self { queue: Arc::clone(queue), log: Arc::clone(log), done: Arc::clone(done) }
    }

    /// Runs a blocking call.
    fn call(&self) {
        let (ticket, turn) = self.queue.try_issue_with_turn().unwrap_or_else(|| {
            let ticket = self.queue.issue();
            let turn = self.queue.wait_turn(&ticket, &Deadline::never().into(), || None).unwrap();
            (ticket, turn)
        });
        self.log.write(ticket.sequence());
        drop(turn);
    }

    fn wait_for(&self, jobs: u64) {
        let over = || self.done.load(Ordering::Acquire) >= jobs;
        assert!(self.queue.wait_for(over, &Deadline::never(), None));
    }
}

fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

#[test]
fn loom_blocking_calls_take_turns() {
    check(|| {
        let model = QueueModel::new();
        let other = model.clone();
        let calling = thread::spawn(move || other.call());
        model.call();
        calling.join().unwrap();
        assert_eq!(model.log.0.load(Ordering::Relaxed), 2);
    });
}

/// The worker and a waiting thread both try to take the job.
#[test]
fn loom_job_runs_once() {
    check(|| {
        let model = QueueModel::new();
        model.enqueue();
        let worker = model.clone();
        let working = thread::spawn(move || worker.queue.run_jobs());
        model.wait_for(1);
        working.join().unwrap();
        assert_eq!(model.log.0.load(Ordering::Relaxed), 1);
        assert_eq!(model.queue.outstanding_works(), 0);
    });
}

/// A blocking call and an asynchronous call. The waiting threads run the job of the asynchronous
/// call.
#[test]
fn loom_blocking_and_asynchronous_calls_keep_their_order() {
    check(|| {
        let model = QueueModel::new();
        let other = model.clone();
        let calling = thread::spawn(move || other.call());
        model.enqueue();
        model.wait_for(1);
        calling.join().unwrap();
        assert_eq!(model.log.0.load(Ordering::Relaxed), 2);
    });
}
