//! Models of the run queue, run through all interleavings: whose turn it is, and who takes which
//! job.

use super::*;
use crate::base::sync::AtomicU64;
use loom::model::Builder;
use loom::thread;
use std::sync::Arc;

/// What all operations of a group write, one after the other: relaxed, so that nothing but the
/// queue orders it.
#[derive(Debug, Default)]
struct Board(AtomicU64);

impl Board {
    /// Operation `sequence` finds what the one before has left.
    fn write(&self, sequence: u64) {
        assert_eq!(self.0.load(Ordering::Relaxed), sequence - 1);
        self.0.store(sequence, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Write {
    board: Arc<Board>,
    sequence: u64,
    deadline: Deadline,
    queue: Arc<RunQueue>,
    done: Arc<AtomicU64>,
}

impl Job for Write {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn failure(&self) -> Option<Error> {
        None
    }

    fn run(self: Box<Self>, turn: Turn<'_>) {
        self.board.write(self.sequence);
        turn.end_silently();
        self.done.fetch_add(1, Ordering::Release);
        self.queue.work_ends();
    }

    fn overtaken(self: Box<Self>) {
        panic!("nothing is late");
    }

    fn fail(self: Box<Self>, _: &Error) {
        panic!("nothing fails");
    }
}

/// A queue whose worker is one of the model's threads, or nobody.
struct Model {
    queue: Arc<RunQueue>,
    board: Arc<Board>,
    done: Arc<AtomicU64>,
}

impl Model {
    fn new() -> Self {
        let queue = RunQueue::default();
        queue.lock().has_worker = true;
        Self { queue: Arc::new(queue), board: Arc::default(), done: Arc::new(AtomicU64::new(0)) }
    }

    fn enqueue(&self) {
        self.queue.count_work();
        let made = self.queue.enqueue(|ticket| {
            Box::new(Write {
                board: Arc::clone(&self.board),
                sequence: ticket.sequence(),
                deadline: Deadline::never(),
                queue: Arc::clone(&self.queue),
                done: Arc::clone(&self.done),
            })
        });
        made.unwrap();
    }

    fn clone(&self) -> Self {
        let Self { queue, board, done } = self;
        Self { queue: Arc::clone(queue), board: Arc::clone(board), done: Arc::clone(done) }
    }

    /// A blocking call.
    fn call(&self) {
        let (ticket, turn) = self.queue.issue_at_once().unwrap_or_else(|| {
            let ticket = self.queue.issue();
            let turn = self.queue.wait_turn(&ticket, &Deadline::never().into(), || None).unwrap();
            (ticket, turn)
        });
        self.board.write(ticket.sequence());
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
        let model = Model::new();
        let other = model.clone();
        let calling = thread::spawn(move || other.call());
        model.call();
        calling.join().unwrap();
        assert_eq!(model.board.0.load(Ordering::Relaxed), 2);
    });
}

/// The worker and somebody who waits both want the job.
#[test]
fn loom_a_job_runs_once_whoever_takes_it() {
    check(|| {
        let model = Model::new();
        model.enqueue();
        let worker = model.clone();
        let working = thread::spawn(move || worker.queue.serve());
        model.wait_for(1);
        working.join().unwrap();
        assert_eq!(model.board.0.load(Ordering::Relaxed), 1);
        assert_eq!(model.queue.works(), 0);
    });
}

/// A blocking call between asynchronous ones, which are run by whoever waits.
#[test]
fn loom_blocking_and_asynchronous_calls_keep_their_order() {
    check(|| {
        let model = Model::new();
        let other = model.clone();
        let calling = thread::spawn(move || other.call());
        model.enqueue();
        model.wait_for(1);
        calling.join().unwrap();
        assert_eq!(model.board.0.load(Ordering::Relaxed), 2);
    });
}
