use super::ranks::{PLACES, run};
use super::*;
use crate::api::monitored::Failed;
use crate::api::verdict::Word;
use crate::transport::LARGEST_TAG;
use std::sync::Barrier;
use std::time::Duration;

const SOON: Option<Duration> = Some(Duration::from_millis(150));
const LONG_TIME: Option<Duration> = Some(Duration::from_secs(20));
const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

/// The kind of error and who was missing.
fn told(outcome: std::result::Result<(), Failed>) -> (ErrorKind, Vec<usize>, String) {
    let Failed { error, missing } = outcome.unwrap_err();
    (error.kind(), missing, error.message().to_owned())
}

#[test]
fn all_come_again_and_again() {
    for place in PLACES {
        run(place, 4, |group| {
            for round in 0..20 {
                let outcome = group.monitored_barrier(LONG_TIME, round % 2 == 0);
                assert!(outcome.is_ok(), "{place}: {outcome:?}");
            }
            // It has no number among the collectives.
            assert_eq!(group.queue.issued(), 0);
        });
    }
    run("transport=inproc", 1, |group| assert!(group.monitored_barrier(AT_ONCE, true).is_ok()));
}

#[test]
fn the_missing_are_named_to_all_and_learn_of_it_when_they_come() {
    for place in PLACES {
        let (failed, again) = (Barrier::new(4), Barrier::new(4));
        run(place, 4, |group| {
            for wait_all in [true, false] {
                let missing = if wait_all { vec![1, 3] } else { vec![1] };
                let is_late = [1, 3].contains(&group.rank());
                if is_late {
                    failed.wait();
                }
                let (kind, named, text) = told(group.monitored_barrier(SOON, wait_all));
                assert_eq!((kind, &named), (ErrorKind::Timeout, &missing), "{place}: {text}");
                assert!(text.contains("rank 1 (pid ") && text.contains("150 ms"), "{text}");
                assert_eq!(text.contains("rank 3 (pid "), wait_all && text.contains("rank 3 ("));
                if !is_late {
                    failed.wait();
                }
                again.wait();
                // The group is as it was, and the ranks are in step.
                let outcome = group.monitored_barrier(LONG_TIME, true);
                assert!(outcome.is_ok(), "{place}: {outcome:?}");
                assert!(group.run(Call::barrier(), &CallOptions::default()).is_ok());
            }
        });
    }
}

#[test]
fn the_first_rank_is_missed_and_does_not_count_on_those_who_gave_up() {
    for place in PLACES {
        let failed = Barrier::new(3);
        run(place, 3, |group| {
            if group.rank() == 0 {
                failed.wait();
                let (_, missing, text) = told(group.monitored_barrier(LONG_TIME, true));
                assert_eq!(missing, [1, 2], "{place}: {text}");
                assert!(text.contains("given up"), "{text}");
            } else {
                let (kind, missing, text) = told(group.monitored_barrier(SOON, true));
                assert_eq!((kind, missing), (ErrorKind::Timeout, vec![0]), "{place}: {text}");
                assert!(text.contains("rank 0 (pid "), "{text}");
                failed.wait();
            }
            assert!(group.monitored_barrier(LONG_TIME, true).is_ok());
        });
    }
}

#[test]
fn without_a_wait_only_those_count_who_are_there_already() {
    for place in ["transport=inproc", "transport=shm"] {
        let round = Barrier::new(2);
        run(place, 3, |group| {
            if group.rank() == 0 {
                // Nobody has said anything yet.
                assert_eq!(told(group.monitored_barrier(AT_ONCE, true)).1, [1, 2]);
            }
            if group.rank() == 2 {
                return;
            }
            round.wait();
            if group.rank() == 1 {
                assert_eq!(told(group.monitored_barrier(LONG_TIME, true)).1, [1, 2]);
            }
            // Until rank 1 is there before rank 0 looks; both are told the same each time.
            let wait = if group.rank() == 0 { AT_ONCE } else { LONG_TIME };
            loop {
                round.wait();
                let (_, missing, text) = told(group.monitored_barrier(wait, true));
                if missing == [2] {
                    return;
                }
                assert_eq!(missing, [1, 2], "{text}");
            }
        });
    }
}

#[test]
fn a_rank_that_hangs_gets_in_step_again_however_many_verdicts_it_was_not_told() {
    // More than are held for it.
    const MANY: usize = 8_000;
    let meet = Barrier::new(2);
    run("transport=inproc", 2, |group| {
        let is_late = group.rank() == 1;
        if is_late {
            meet.wait();
        }
        for _ in 0..MANY {
            let wait = if is_late { LONG_TIME } else { AT_ONCE };
            let (kind, missing, text) = told(group.monitored_barrier(wait, true));
            assert_eq!((kind, missing), (ErrorKind::Timeout, vec![1]), "{text}");
        }
        if !is_late {
            meet.wait();
        }
        let outcome = group.monitored_barrier(LONG_TIME, true);
        assert!(outcome.is_ok(), "{outcome:?}");
    });
}

#[test]
fn who_has_come_to_a_later_one_has_given_up_the_earlier() {
    let (group, fake) = Fake::group("monitored-later", true);
    let (to, tag, dtype, deadline) = (0, LARGEST_TAG + 2, DataType::U8, Deadline::never());
    let bytes = Src::from(&*lent(&Word::Arrived(2).encode()));
    fake.send(Outgoing { to, tag, dtype, bytes, deadline, synchronous: false }, Arc::new(Unheard))
        .unwrap();
    let (_, missing, text) = told(group.monitored_barrier(LONG_TIME, true));
    assert_eq!(missing, [1], "{text}");
    assert!(text.contains("given up"), "{text}");
    assert!(group.monitored_barrier(LONG_TIME, true).is_ok());
}

/// Nobody is told.
#[derive(Debug)]
struct Unheard;

impl Completion for Unheard {
    fn complete(&self, _: Result<Delivery>) {}
}

#[test]
fn who_has_left_is_missing_at_once() {
    for place in PLACES {
        let left = Barrier::new(2);
        let store = Arc::new(crate::store::HashStore::new());
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (store, left) = (Arc::clone(&store), &left);
                scope.spawn(move || {
                    let group = ranks::create(store, place, rank, 3);
                    if rank == 2 {
                        return;
                    }
                    let started = std::time::Instant::now();
                    let (kind, missing, text) = told(group.monitored_barrier(LONG_TIME, false));
                    assert_eq!((kind, missing), (ErrorKind::PeerFailed, vec![2]), "{text}");
                    assert!(text.contains("rank 2 (pid "), "{text}");
                    assert!(started.elapsed() < Duration::from_secs(10));
                    left.wait();
                });
            }
        });
    }
}

#[test]
fn threads_wait_on_different_groups_and_not_on_one() {
    let meet = Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                run("transport=inproc", 3, |group| {
                    for _ in 0..50 {
                        assert!(group.monitored_barrier(LONG_TIME, true).is_ok());
                    }
                });
            });
        }
    });
    run("transport=inproc", 2, |group| {
        let is_refused = |outcome: &std::result::Result<(), Failed>| matches!(outcome, Err(failed) if failed.error.kind() == ErrorKind::InvalidArgument);
        if group.rank() == 1 {
            // Those that the other rank does not wait for fail first.
            meet.wait();
            while group.monitored_barrier(LONG_TIME, true).is_err() {}
            return;
        }
        std::thread::scope(|scope| {
            // Each of the two may find the other one inside.
            let first = scope.spawn(|| {
                loop {
                    let outcome = group.monitored_barrier(LONG_TIME, true);
                    if !is_refused(&outcome) {
                        return outcome;
                    }
                }
            });
            let refused = loop {
                let outcome = group.monitored_barrier(AT_ONCE, true);
                if is_refused(&outcome) {
                    break outcome;
                }
                std::thread::yield_now();
            };
            let message = refused.unwrap_err().error.to_string();
            assert!(message.contains("another thread"), "{message}");
            meet.wait();
            assert!(first.join().unwrap().is_ok());
        });
    });
}
