//! Tests of the run queue: the order of turns, the threads that run jobs, and deadlines of jobs.

use super::*;
use crate::base::error::ErrorKind;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The outcome of a job.
#[derive(Debug, PartialEq, Eq)]
enum JobFate {
    Ran(u64),
    Expired(u64),
    Failed(u64),
}

/// A job that reports its outcome.
#[derive(Debug)]
struct ReportingJob {
    sequence: u64,
    deadline: Deadline,
    failure: Arc<Mutex<Option<Error>>>,
    fates: Sender<JobFate>,
}

impl QueueJob for ReportingJob {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap().clone()
    }

    fn run(self: Box<Self>, turn: Turn<'_>) {
        // The report is sent inside the turn, so that the reports are in the order of the turns.
        self.fates.send(JobFate::Ran(self.sequence)).unwrap();
        drop(turn);
    }

    fn expire(self: Box<Self>) {
        self.fates.send(JobFate::Expired(self.sequence)).unwrap();
    }

    fn fail(self: Box<Self>, _: &Error) {
        self.fates.send(JobFate::Failed(self.sequence)).unwrap();
    }
}

/// A queue with jobs of one group.
struct QueueFixture {
    queue: Arc<RunQueue>,
    failure: Arc<Mutex<Option<Error>>>,
    fates: Sender<JobFate>,
    reported: Receiver<JobFate>,
}

const LONG: u64 = 20_000;

fn long_deadline() -> Deadline {
    Deadline::after_ms(LONG)
}

impl QueueFixture {
    fn new() -> Self {
        let (fates, reported) = channel();
        Self { queue: Arc::default(), failure: Arc::default(), fates, reported }
    }

    /// Creates a queue without a worker thread.
    fn without_worker() -> Self {
        let bench = Self::new();
        bench.queue.lock_jobs().has_worker = true;
        bench
    }

    fn enqueue(&self, deadline: Deadline) -> u64 {
        let mut number = 0;
        let enqueued = self.queue.enqueue(1, |ticket| {
            number = ticket.sequence();
            let (failure, fates) = (Arc::clone(&self.failure), self.fates.clone());
            Box::new(ReportingJob { sequence: number, deadline, failure, fates })
        });
        enqueued.unwrap();
        number
    }

    fn next(&self) -> JobFate {
        self.reported.recv_timeout(Duration::from_millis(LONG)).unwrap()
    }

    fn is_silent(&self) -> bool {
        self.reported.try_recv().is_err()
    }
}

#[test]
fn worker_runs_jobs_without_a_deadline() {
    let bench = QueueFixture::new();
    // During this turn the worker starts to wait for the first job.
    let ticket = bench.queue.issue();
    let turn = bench.queue.wait_turn(&ticket, &long_deadline().into(), || None).unwrap();
    let first = bench.enqueue(Deadline::never());
    let has_queued_job = || (!bench.queue.lock_jobs().waiting.is_empty()).then_some(());
    wait_until(
        &Doorbell::default(),
        WaitPolicy::SLEEP_SOON,
        &long_deadline(),
        || None,
        has_queued_job,
    )
    .unwrap();
    // The worker needs some time to start waiting. If 5 ms are too short, the test only covers
    // less.
    std::thread::sleep(Duration::from_millis(5));
    let second = bench.enqueue(Deadline::never());
    drop(turn);
    assert_eq!([bench.next(), bench.next()], [JobFate::Ran(first), JobFate::Ran(second)]);
}

#[test]
fn turns_come_in_order_of_issue() {
    let queue = Arc::new(RunQueue::default());
    let order = Arc::new(Mutex::new(Vec::new()));
    let tickets: Vec<_> = (0..8).map(|_| queue.issue()).collect();
    std::thread::scope(|scope| {
        for ticket in tickets.into_iter().rev() {
            let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
            scope.spawn(move || {
                let turn = queue.wait_turn(&ticket, &long_deadline().into(), || None).unwrap();
                order.lock().unwrap().push(ticket.sequence());
                drop(turn);
            });
        }
    });
    assert_eq!(*order.lock().unwrap(), (1..=8).collect::<Vec<_>>());
}

#[test]
fn turn_wait_ends_with_the_deadline_or_group_failure() {
    let queue = RunQueue::default();
    let (first, second) = (queue.issue(), queue.issue());
    let turn = queue.wait_turn(&first, &Deadline::never().into(), || None).unwrap();
    let late = queue.wait_turn(&second, &Deadline::after_ms(5).into(), || None);
    assert!(matches!(late, Err(WaitInterrupt::Deadline)));
    let failed = || Some(Error::new(ErrorKind::Aborted, "stop"));
    let halted = queue.wait_turn(&second, &Deadline::never().into(), failed);
    assert!(matches!(halted, Err(WaitInterrupt::Aborted(_))));
    drop(turn);
    assert!(queue.wait_turn(&second, &Deadline::never().into(), || None).is_ok());
}

#[test]
fn immediate_turn_needs_an_idle_queue() {
    let queue = RunQueue::default();
    let (first, turn) = queue.try_issue_with_turn().unwrap();
    assert!(queue.try_issue_with_turn().is_none());
    drop(turn);
    let second = queue.issue();
    assert!(queue.try_issue_with_turn().is_none());
    drop(queue.wait_turn(&second, &long_deadline().into(), || None).unwrap());
    let (third, _turn) = queue.try_issue_with_turn().unwrap();
    assert_eq!([first, second, third].map(|ticket| ticket.sequence()), [1, 2, 3]);
}

#[test]
fn jobs_and_blocking_calls_share_one_order() {
    let bench = QueueFixture::new();
    let (threads, rounds) = (4, 100);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (queue, failure, fates) =
                (Arc::clone(&bench.queue), Arc::clone(&bench.failure), bench.fates.clone());
            scope.spawn(move || {
                for round in 0..rounds {
                    if (thread + round) % 2 == 0 {
                        let (failure, fates) = (Arc::clone(&failure), fates.clone());
                        let enqueued = queue.enqueue(1, |ticket| {
                            let sequence = ticket.sequence();
                            Box::new(ReportingJob {
                                sequence,
                                deadline: long_deadline(),
                                failure,
                                fates,
                            })
                        });
                        enqueued.unwrap();
                    } else {
                        let (ticket, turn) = queue.try_issue_with_turn().unwrap_or_else(|| {
                            let ticket = queue.issue();
                            let turn =
                                queue.wait_turn(&ticket, &long_deadline().into(), || None).unwrap();
                            (ticket, turn)
                        });
                        fates.send(JobFate::Ran(ticket.sequence())).unwrap();
                        drop(turn);
                    }
                }
            });
        }
    });
    let all = threads * rounds;
    for number in 1..=all {
        assert_eq!(bench.next(), JobFate::Ran(number));
    }
    assert_eq!(bench.queue.issued(), all);
}

#[test]
fn a_caller_runs_the_jobs_before_it() {
    let bench = QueueFixture::without_worker();
    (1..=3).for_each(|number| assert_eq!(bench.enqueue(Deadline::after_ms(LONG / 2)), number));
    let ticket = bench.queue.issue();
    assert_eq!(bench.enqueue(long_deadline()), 5);
    drop(bench.queue.wait_turn(&ticket, &long_deadline().into(), || None).unwrap());
    (1..=3).for_each(|number| assert_eq!(bench.next(), JobFate::Ran(number)));
    // The caller does not run the job after it.
    assert!(bench.is_silent());
    assert!(bench.queue.wait_for(
        || bench.queue.first_job.load(Ordering::Relaxed) == NO_JOB,
        &Deadline::never(),
        None
    ));
    assert_eq!(bench.next(), JobFate::Ran(5));
}

#[test]
fn a_wait_takes_no_job_that_may_last_longer() {
    let bench = QueueFixture::without_worker();
    bench.enqueue(long_deadline());
    assert!(!bench.queue.wait_for(|| false, &Deadline::after_ms(5), None));
    assert!(bench.is_silent());
    // A job whose deadline equals the limit is taken.
    let limit = Deadline::after_ms(LONG);
    bench.queue.claim_first_job(Some(&Deadline::never())).unwrap().run();
    assert_eq!(bench.next(), JobFate::Ran(1));
    bench.enqueue(limit);
    bench.queue.claim_first_job(Some(&limit)).unwrap().run();
    assert_eq!(bench.next(), JobFate::Ran(2));
}

#[test]
fn waiter_expires_its_own_late_operation() {
    let bench = QueueFixture::without_worker();
    let _turn = bench.queue.issue();
    bench.enqueue(long_deadline());
    let soon = Deadline::after_ms(5);
    let number = bench.enqueue(soon);
    assert!(!bench.queue.wait_for(|| false, &Deadline::after_ms(20), Some((number, soon))));
    assert_eq!(bench.next(), JobFate::Expired(number));
    // The earlier job stays.
    assert!(bench.is_silent() && bench.queue.lock_jobs().waiting.len() == 1);
}

#[test]
fn worker_expires_a_late_first_job() {
    let bench = QueueFixture::new();
    let _turn = bench.queue.issue();
    let number = bench.enqueue(Deadline::after_ms(5));
    assert_eq!(bench.next(), JobFate::Expired(number));
}

#[test]
fn running_job_does_not_expire() {
    let bench = QueueFixture::without_worker();
    let number = bench.enqueue(Deadline::after_ms(0));
    let claim = bench.queue.claim_first_job(Some(&Deadline::never())).unwrap();
    bench.queue.expire_job(number);
    assert!(bench.is_silent());
    claim.run();
    assert_eq!(bench.next(), JobFate::Ran(number));
}

#[test]
fn jobs_behind_an_abandoned_ticket_end_with_the_group() {
    let bench = QueueFixture::new();
    let _abandoned = bench.queue.issue();
    bench.enqueue(long_deadline());
    bench.enqueue(long_deadline());
    let cause = Error::new(ErrorKind::PeerFailed, "gone");
    *bench.failure.lock().unwrap() = Some(cause);
    // The end of an operation notifies in the same way.
    bench.queue.turns.doorbell.notify();
    assert_eq!((bench.next(), bench.next()), (JobFate::Failed(2), JobFate::Failed(3)));
    // A job that is added later fails too, even if it never gets its turn.
    bench.enqueue(long_deadline());
    assert_eq!(bench.next(), JobFate::Failed(4));
}

#[test]
fn idle_worker_ends_and_is_replaced() {
    let bench = QueueFixture::new();
    for number in 1..=2 {
        bench.enqueue(long_deadline());
        assert_eq!(bench.next(), JobFate::Ran(number));
        // The worker holds the only other reference to the queue.
        let limit = long_deadline();
        while Arc::strong_count(&bench.queue) > 1 {
            assert!(!limit.has_passed(), "the worker stays");
            std::thread::yield_now();
        }
        assert!(!bench.queue.lock_jobs().has_worker);
    }
}

#[test]
fn works_are_bounded() {
    let queue = RunQueue::default();
    (0..MAX_WORKS).for_each(|_| queue.begin_work().unwrap());
    assert_eq!(queue.begin_work().unwrap_err().kind(), ErrorKind::OutOfMemory);
    queue.end_work();
    queue.begin_work().unwrap();
    assert_eq!(queue.outstanding_works(), MAX_WORKS);
    assert!(!queue.wait_for_works(&Deadline::after_ms(1)));
    (0..MAX_WORKS).for_each(|_| queue.end_work());
    assert!(queue.wait_for_works(&Deadline::never()));
}

#[test]
fn enqueued_messages_are_counted_by_peer_and_direction() {
    use crate::api::observe::recorder::IssueCounter as _;
    let queue = RunQueue::default();
    let messages = [(1, true), (1, false), (2, false), (1, false)];
    assert_eq!(queue.count_enqueued_messages(messages.into_iter()), [1, 1, 1, 2]);
    // A second batch is issued before the first one is on its streams.
    assert_eq!(queue.count_enqueued_messages([(1, false)].into_iter()), [0]);
    queue.end_enqueue_of_messages();
    queue.end_enqueue_of_messages();
    assert_eq!(queue.count_enqueued_messages([(1, false), (1, true)].into_iter()), [4, 2]);
    let counts = queue.enqueued_messages();
    assert_eq!((counts.sent_to(1, None), counts.received_from(1, Some(0))), (2, 4));
    assert_eq!((counts.sent_to(2, None), counts.received_from(2, None)), (0, 1));
}
