use super::ranks::{PLACES, run};
use super::*;
use crate::api::monitored::Failed;
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
        let (sent, looked) = (Barrier::new(2), Barrier::new(2));
        run(place, 3, |group| match group.rank() {
            0 => {
                // Nobody has said anything yet.
                assert_eq!(told(group.monitored_barrier(AT_ONCE, true)).1, [1, 2]);
                looked.wait();
                sent.wait();
                assert_eq!(told(group.monitored_barrier(AT_ONCE, true)).1, [2]);
            }
            1 => {
                looked.wait();
                assert_eq!(told(group.monitored_barrier(LONG_TIME, true)).1, [1, 2]);
                let group = Arc::clone(group);
                let entered =
                    std::thread::spawn(move || told(group.monitored_barrier(LONG_TIME, true)).1);
                // Rank 0 looks once its word is there: a message behind it.
                std::thread::sleep(Duration::from_millis(200));
                sent.wait();
                assert_eq!(entered.join().unwrap(), [2]);
            }
            _ => {}
        });
    }
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
        if group.rank() == 0 {
            let waits = Arc::clone(group);
            let first = std::thread::spawn(move || waits.monitored_barrier(LONG_TIME, true));
            // It is inside as soon as a second one is refused.
            let refused = loop {
                match group.monitored_barrier(AT_ONCE, true) {
                    Err(failed) if failed.error.kind() == ErrorKind::InvalidArgument => {
                        break failed;
                    }
                    _ => return meet_again(&meet, first),
                }
            };
            assert!(refused.error.message().contains("another thread"), "{refused:?}");
            meet.wait();
            assert!(first.join().unwrap().is_ok());
        } else {
            meet.wait();
            drop(group.monitored_barrier(LONG_TIME, true));
        }
    });
}

/// The second barrier came first, and failed alone; the first one ends after the other rank's.
fn meet_again(meet: &Barrier, first: std::thread::JoinHandle<std::result::Result<(), Failed>>) {
    meet.wait();
    drop(first.join().unwrap());
}
