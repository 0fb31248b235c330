use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What became of a job.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Ran(u64),
    Overtaken(u64),
    Failed(u64),
}

/// A job that says what becomes of it.
#[derive(Debug)]
struct Probe {
    sequence: u64,
    deadline: Deadline,
    failure: Arc<Mutex<Option<Error>>>,
    fates: Sender<Fate>,
}

impl Job for Probe {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap().clone()
    }

    fn run(self: Box<Self>, turn: Turn<'_>) {
        // Inside of the turn, so that the order of what is said is that of the turns.
        self.fates.send(Fate::Ran(self.sequence)).unwrap();
        drop(turn);
    }

    fn overtaken(self: Box<Self>) {
        self.fates.send(Fate::Overtaken(self.sequence)).unwrap();
    }

    fn fail(self: Box<Self>, _: &Error) {
        self.fates.send(Fate::Failed(self.sequence)).unwrap();
    }
}

/// A queue with jobs of one group.
struct Bench {
    queue: Arc<RunQueue>,
    failure: Arc<Mutex<Option<Error>>>,
    fates: Sender<Fate>,
    said: Receiver<Fate>,
}

const LONG: u64 = 20_000;

fn long() -> Deadline {
    Deadline::after_ms(LONG)
}

impl Bench {
    fn new() -> Self {
        let (fates, said) = channel();
        Self { queue: Arc::default(), failure: Arc::default(), fates, said }
    }

    /// One whose jobs nobody runs unasked.
    fn without_worker() -> Self {
        let bench = Self::new();
        bench.queue.lock().has_worker = true;
        bench
    }

    fn enqueue(&self, deadline: Deadline) -> u64 {
        let mut number = 0;
        let made = self.queue.enqueue(|ticket| {
            number = ticket.sequence();
            let (failure, fates) = (Arc::clone(&self.failure), self.fates.clone());
            Box::new(Probe { sequence: number, deadline, failure, fates })
        });
        made.unwrap();
        number
    }

    fn next(&self) -> Fate {
        self.said.recv_timeout(std::time::Duration::from_millis(LONG)).unwrap()
    }

    fn is_silent(&self) -> bool {
        self.said.try_recv().is_err()
    }
}

#[test]
fn the_worker_runs_jobs_that_may_last_for_ever() {
    let bench = Bench::new();
    // While its turn lasts, the worker has begun to wait for the first job.
    let ticket = bench.queue.issue();
    let turn = bench.queue.wait_turn(&ticket, &long().into(), || None).unwrap();
    let first = bench.enqueue(Deadline::never());
    let hired = || (!bench.queue.lock().waiting.is_empty()).then_some(());
    until(&Bell::default(), Pace::PATIENT, &long(), || None, hired).unwrap();
    // Time for the worker to have begun; with less, the test only proves less.
    std::thread::sleep(std::time::Duration::from_millis(5));
    let second = bench.enqueue(Deadline::never());
    drop(turn);
    assert_eq!([bench.next(), bench.next()], [Fate::Ran(first), Fate::Ran(second)]);
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
                let turn = queue.wait_turn(&ticket, &long().into(), || None).unwrap();
                order.lock().unwrap().push(ticket.sequence());
                drop(turn);
            });
        }
    });
    assert_eq!(*order.lock().unwrap(), (1..=8).collect::<Vec<_>>());
}

#[test]
fn a_turn_that_does_not_come_ends_with_the_deadline_or_the_group() {
    let queue = RunQueue::default();
    let (first, second) = (queue.issue(), queue.issue());
    let turn = queue.wait_turn(&first, &Deadline::never().into(), || None).unwrap();
    let late = queue.wait_turn(&second, &Deadline::after_ms(5).into(), || None);
    assert!(matches!(late, Err(Interrupt::Deadline)));
    let failed = || Some(Error::new(ErrorKind::Aborted, "stop"));
    let halted = queue.wait_turn(&second, &Deadline::never().into(), failed);
    assert!(matches!(halted, Err(Interrupt::Halted(_))));
    drop(turn);
    assert!(queue.wait_turn(&second, &Deadline::never().into(), || None).is_ok());
}

#[test]
fn a_place_is_had_at_once_where_nothing_is_before_it() {
    let queue = RunQueue::default();
    let (first, turn) = queue.issue_at_once().unwrap();
    assert!(queue.issue_at_once().is_none());
    drop(turn);
    let second = queue.issue();
    assert!(queue.issue_at_once().is_none());
    drop(queue.wait_turn(&second, &long().into(), || None).unwrap());
    let (third, _turn) = queue.issue_at_once().unwrap();
    assert_eq!([first, second, third].map(|ticket| ticket.sequence()), [1, 2, 3]);
}

#[test]
fn jobs_and_blocking_calls_of_many_threads_keep_one_order() {
    let bench = Bench::new();
    let (threads, rounds) = (4, 100);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (queue, failure, fates) =
                (Arc::clone(&bench.queue), Arc::clone(&bench.failure), bench.fates.clone());
            scope.spawn(move || {
                for round in 0..rounds {
                    if (thread + round) % 2 == 0 {
                        let (failure, fates) = (Arc::clone(&failure), fates.clone());
                        let made = queue.enqueue(|ticket| {
                            let sequence = ticket.sequence();
                            Box::new(Probe { sequence, deadline: long(), failure, fates })
                        });
                        made.unwrap();
                    } else {
                        let (ticket, turn) = queue.issue_at_once().unwrap_or_else(|| {
                            let ticket = queue.issue();
                            let turn = queue.wait_turn(&ticket, &long().into(), || None).unwrap();
                            (ticket, turn)
                        });
                        fates.send(Fate::Ran(ticket.sequence())).unwrap();
                        drop(turn);
                    }
                }
            });
        }
    });
    let all = threads * rounds;
    for number in 1..=all {
        assert_eq!(bench.next(), Fate::Ran(number));
    }
    assert_eq!(bench.queue.issued(), all);
}

#[test]
fn a_caller_runs_the_jobs_before_it() {
    let bench = Bench::without_worker();
    (1..=3).for_each(|number| assert_eq!(bench.enqueue(Deadline::after_ms(LONG / 2)), number));
    let ticket = bench.queue.issue();
    assert_eq!(bench.enqueue(long()), 5);
    drop(bench.queue.wait_turn(&ticket, &long().into(), || None).unwrap());
    (1..=3).for_each(|number| assert_eq!(bench.next(), Fate::Ran(number)));
    // What comes after it is none of its business.
    assert!(bench.is_silent());
    assert!(bench.queue.wait_for(
        || bench.queue.first.load(Ordering::Relaxed) == NO_JOB,
        &Deadline::never(),
        None
    ));
    assert_eq!(bench.next(), Fate::Ran(5));
}

#[test]
fn a_wait_takes_no_job_that_may_last_longer() {
    let bench = Bench::without_worker();
    bench.enqueue(long());
    assert!(!bench.queue.wait_for(|| false, &Deadline::after_ms(5), None));
    assert!(bench.is_silent());
    // One that ends with the limit is taken.
    let limit = Deadline::after_ms(LONG);
    bench.queue.claim(Some(&Deadline::never())).unwrap().run();
    assert_eq!(bench.next(), Fate::Ran(1));
    bench.enqueue(limit);
    bench.queue.claim(Some(&limit)).unwrap().run();
    assert_eq!(bench.next(), Fate::Ran(2));
}

#[test]
fn a_waiter_notices_that_its_operation_is_overtaken() {
    let bench = Bench::without_worker();
    let _turn = bench.queue.issue();
    bench.enqueue(long());
    let soon = Deadline::after_ms(5);
    let number = bench.enqueue(soon);
    assert!(!bench.queue.wait_for(|| false, &Deadline::after_ms(20), Some((number, soon))));
    assert_eq!(bench.next(), Fate::Overtaken(number));
    // The one before it stays.
    assert!(bench.is_silent() && bench.queue.lock().waiting.len() == 1);
}

#[test]
fn the_worker_notices_that_the_first_job_is_overtaken() {
    let bench = Bench::new();
    let _turn = bench.queue.issue();
    let number = bench.enqueue(Deadline::after_ms(5));
    assert_eq!(bench.next(), Fate::Overtaken(number));
}

#[test]
fn a_job_that_runs_is_not_overtaken() {
    let bench = Bench::without_worker();
    let number = bench.enqueue(Deadline::after_ms(0));
    let claim = bench.queue.claim(Some(&Deadline::never())).unwrap();
    bench.queue.withdraw(number);
    assert!(bench.is_silent());
    claim.run();
    assert_eq!(bench.next(), Fate::Ran(number));
}

#[test]
fn jobs_behind_an_abandoned_ticket_end_with_the_group() {
    let bench = Bench::new();
    let _abandoned = bench.queue.issue();
    bench.enqueue(long());
    bench.enqueue(long());
    let cause = Error::new(ErrorKind::PeerFailed, "gone");
    *bench.failure.lock().unwrap() = Some(cause);
    // As the end of an operation would ring.
    bench.queue.bell.ring();
    assert_eq!((bench.next(), bench.next()), (Fate::Failed(2), Fate::Failed(3)));
    // And one that comes later too, whether or not its turn would come.
    bench.enqueue(long());
    assert_eq!(bench.next(), Fate::Failed(4));
}

#[test]
fn an_idle_worker_ends_and_another_one_comes() {
    let bench = Bench::new();
    for number in 1..=2 {
        bench.enqueue(long());
        assert_eq!(bench.next(), Fate::Ran(number));
        // The worker is the only other holder of the queue.
        let limit = long();
        while Arc::strong_count(&bench.queue) > 1 {
            assert!(!limit.has_passed(), "the worker stays");
            std::thread::yield_now();
        }
        assert!(!bench.queue.lock().has_worker);
    }
}

#[test]
fn works_are_bounded() {
    let queue = RunQueue::default();
    (0..MOST_WORKS).for_each(|_| queue.work_begins().unwrap());
    assert_eq!(queue.work_begins().unwrap_err().kind(), ErrorKind::OutOfMemory);
    queue.work_ends();
    queue.work_begins().unwrap();
    assert_eq!(queue.works(), MOST_WORKS);
    assert!(!queue.drain(&Deadline::after_ms(1)));
    (0..MOST_WORKS).for_each(|_| queue.work_ends());
    assert!(queue.drain(&Deadline::never()));
}
