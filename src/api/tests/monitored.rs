//! Tests of monitored barriers, which name the missing ranks.

use super::ranks::{TRANSPORTS, run};
use super::*;
use crate::api::collective::barrier_messages::{BarrierFailure, BarrierNotice};
use crate::api::collective::prepared_call::PreparedCall;
use crate::transport::LARGEST_TAG;
use std::sync::Barrier;
use std::time::Duration;

const SHORT_TIME: Option<Duration> = Some(Duration::from_millis(150));
const LONG_TIME: Option<Duration> = Some(Duration::from_secs(20));
const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

/// Returns the error kind, the missing ranks, and the message.
fn failure_of(outcome: std::result::Result<(), BarrierFailure>) -> (ErrorKind, Vec<usize>, String) {
    let BarrierFailure { error, missing } = outcome.unwrap_err();
    (error.kind(), missing, error.message().to_owned())
}

#[test]
fn repeated_barriers_succeed() {
    for transport in TRANSPORTS {
        run(transport, 4, |group| {
            for round in 0..20 {
                let outcome = group.monitored_barrier(LONG_TIME, round % 2 == 0);
                assert!(outcome.is_ok(), "{transport}: {outcome:?}");
            }
            // A monitored barrier takes no sequence number of the collectives.
            assert_eq!(group.queue.issued(), 0);
        });
    }
    run("transport=inproc", 1, |group| assert!(group.monitored_barrier(NO_WAIT, true).is_ok()));
}

#[test]
fn missing_ranks_are_reported_to_all_ranks() {
    for transport in TRANSPORTS {
        let (failed, again) = (Barrier::new(4), Barrier::new(4));
        run(transport, 4, |group| {
            for wait_all in [true, false] {
                let missing = if wait_all { vec![1, 3] } else { vec![1] };
                let is_late = [1, 3].contains(&group.rank());
                if is_late {
                    failed.wait();
                }
                let (kind, named, text) = failure_of(group.monitored_barrier(SHORT_TIME, wait_all));
                assert_eq!((kind, &named), (ErrorKind::Timeout, &missing), "{transport}: {text}");
                assert!(text.contains("rank 1 (pid ") && text.contains("150 ms"), "{text}");
                assert_eq!(text.contains("rank 3 (pid "), wait_all && text.contains("rank 3 ("));
                if !is_late {
                    failed.wait();
                }
                again.wait();
                // The group is unchanged, and the ranks are synchronised.
                let outcome = group.monitored_barrier(LONG_TIME, true);
                assert!(outcome.is_ok(), "{transport}: {outcome:?}");
                assert!(group.run(Call::barrier(), &CallOptions::default()).is_ok());
            }
        });
    }
}

/// Issues a call, and waits for its end.
fn finish(call: Result<PreparedCall>) {
    let call = call.unwrap();
    let work = Arc::clone(call.work());
    call.issue().unwrap();
    assert_eq!(work.wait(&long_deadline()), Ok(WorkProgress::Done));
}

#[test]
fn late_rank_0_finds_that_the_others_gave_up() {
    for transport in TRANSPORTS {
        let failed = Barrier::new(3);
        run(transport, 3, |group| {
            if group.rank() == 0 {
                failed.wait();
                // These messages follow the notices of the others.
                for peer in [1, 2] {
                    let options = CallOptions::default();
                    finish(group.receive(Dst::empty(), DataType::U8, Some(peer), Some(5), options));
                }
                let (_, missing, text) = failure_of(group.monitored_barrier(LONG_TIME, true));
                assert_eq!(missing, [1, 2], "{transport}: {text}");
                assert!(text.contains("gave up"), "{text}");
            } else {
                let (kind, missing, text) = failure_of(group.monitored_barrier(SHORT_TIME, true));
                assert_eq!((kind, missing), (ErrorKind::Timeout, vec![0]), "{transport}: {text}");
                assert!(text.contains("rank 0 (pid "), "{text}");
                failed.wait();
                finish(group.send(Src::empty(), DataType::U8, 0, 5, CallOptions::default()));
            }
            assert!(group.monitored_barrier(LONG_TIME, true).is_ok());
        });
    }
}

#[test]
fn zero_timeout_counts_only_arrived_ranks() {
    for transport in ["transport=inproc", "transport=shm"] {
        let round = Barrier::new(2);
        run(transport, 3, |group| {
            if group.rank() == 0 {
                // No rank has sent an arrival yet.
                assert_eq!(failure_of(group.monitored_barrier(NO_WAIT, true)).1, [1, 2]);
            }
            if group.rank() == 2 {
                return;
            }
            round.wait();
            if group.rank() == 1 {
                assert_eq!(failure_of(group.monitored_barrier(LONG_TIME, true)).1, [1, 2]);
            }
            // Repeats until rank 1 arrives before rank 0 checks. Both get the same result each
            // time.
            let wait = if group.rank() == 0 { NO_WAIT } else { LONG_TIME };
            loop {
                round.wait();
                let (_, missing, text) = failure_of(group.monitored_barrier(wait, true));
                if missing == [2] {
                    return;
                }
                assert_eq!(missing, [1, 2], "{text}");
            }
        });
    }
}

#[test]
fn stalled_rank_resynchronises_after_many_barriers() {
    // This is more than the number of notices that the sender keeps for the rank.
    const MANY: usize = 8_000;
    let meet = Barrier::new(2);
    run("transport=inproc", 2, |group| {
        let is_late = group.rank() == 1;
        if is_late {
            meet.wait();
        }
        for _ in 0..MANY {
            let wait = if is_late { LONG_TIME } else { NO_WAIT };
            let (kind, missing, text) = failure_of(group.monitored_barrier(wait, true));
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
fn arrival_at_a_later_barrier_abandons_the_earlier() {
    let (group, fake) = FakeBackend::group("monitored-later", true);
    let (to, tag, dtype, deadline) = (0, LARGEST_TAG + 2, DataType::U8, Deadline::never());
    let bytes = Src::from(&*leak_bytes(&BarrierNotice::Arrived(2).encode()));
    fake.send(
        SendRequest { to, tag, dtype, bytes, deadline, is_synchronous: false },
        Arc::new(IgnoredCompletion),
    )
    .unwrap();
    let (_, missing, text) = failure_of(group.monitored_barrier(LONG_TIME, true));
    assert_eq!(missing, [1], "{text}");
    assert!(text.contains("gave up"), "{text}");
    assert!(group.monitored_barrier(LONG_TIME, true).is_ok());
}

/// A completion that ignores the outcome.
#[derive(Debug)]
struct IgnoredCompletion;

impl Completion for IgnoredCompletion {
    fn complete(&self, _: Result<Delivery>) {}
}

#[test]
fn departed_rank_is_missing_at_once() {
    for transport in TRANSPORTS {
        let left = Barrier::new(2);
        let store = Arc::new(crate::store::HashStore::new());
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (store, left) = (Arc::clone(&store), &left);
                scope.spawn(move || {
                    let group = ranks::create(store, transport, rank, 3);
                    if rank == 2 {
                        return;
                    }
                    let started = std::time::Instant::now();
                    let (kind, missing, text) =
                        failure_of(group.monitored_barrier(LONG_TIME, false));
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
fn concurrent_barriers_need_different_groups() {
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
        let is_refused = |outcome: &std::result::Result<(), BarrierFailure>| matches!(outcome, Err(failed) if failed.error.kind() == ErrorKind::InvalidArgument);
        if group.rank() == 1 {
            // The barriers of this rank fail while the other rank does not wait for them.
            meet.wait();
            while group.monitored_barrier(LONG_TIME, true).is_err() {}
            return;
        }
        std::thread::scope(|scope| {
            // Each of the two threads may find the other thread inside the barrier.
            let first = scope.spawn(|| {
                loop {
                    let outcome = group.monitored_barrier(LONG_TIME, true);
                    if !is_refused(&outcome) {
                        return outcome;
                    }
                }
            });
            let refused = loop {
                let outcome = group.monitored_barrier(NO_WAIT, true);
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
