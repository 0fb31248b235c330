//! Tests of asynchronous collectives: the states of a work, the order of operations, deadlines,
//! aborts and panics.

use super::*;
use crate::api::runtime::finish_works;
use crate::api::work::callbacks::{self, CallbackKey};
use crate::api::work::handle::WorkKind;
use crate::api::work::queue::MAX_WORKS;
use std::sync::mpsc::channel;
use std::time::Duration;

const KEY: CallbackKey = CallbackKey { function: 0, user: 0 };

#[test]
fn a_work_is_pending_then_done_and_keeps_its_outcome() {
    let (group, fake) = FakeBackend::group("outcome", false);
    let work = issue_barrier(&group);
    assert_eq!(work.wait(&Deadline::after_ms(0)), Ok(WorkProgress::Pending));
    assert_eq!(work.wait(&Deadline::after_ms(5)), Ok(WorkProgress::Pending));
    assert!(!work.is_done() && work.outcome().is_none());
    fake.open_gate();
    for _ in 0..3 {
        assert_eq!(work.wait(&Deadline::never()), Ok(WorkProgress::Done));
    }
    assert_eq!((work.sequence(), work.source(), work.tag()), (Some(1), None, None));
    let elapsed = work.elapsed();
    assert!(elapsed >= Duration::from_millis(5) && work.elapsed() == elapsed);
    // A second end has no effect.
    work.end(Err(Error::internal("again")));
    assert_eq!(work.outcome(), Some(Ok(())));
    // The thread that ended the work decrements the count after the work is done.
    assert!(group.wait_for_works(&long_deadline()));
}

#[test]
fn result_is_visible_when_the_work_is_done() {
    let (group, _fake) = FakeBackend::group("written", true);
    let (from, to) = (Src::from(&*leak_bytes(&[1, 2, 3, 4])), Dst::from(leak_bytes(&[0; 4])));
    let call = Call::all_gather(from, to, DataType::U8);
    let work = group.issue(call, CallOptions::default()).unwrap();
    assert_eq!(work.wait(&Deadline::never()), Ok(WorkProgress::Done));
    let mut seen = [0; 4];
    Dst::from(&mut seen[..]).copy_from(to.as_src());
    assert_eq!(seen, [1, 2, 3, 4]);
    assert_eq!(work.kind(), WorkKind::Collective(OpKind::AllGather));
}

#[test]
fn hundreds_of_works_complete_in_order() {
    let (group, fake) = FakeBackend::group("hundreds", false);
    let works: Vec<_> = (0..500).map(|_| issue_barrier(&group)).collect();
    assert_eq!(group.outstanding_works(), 500);
    fake.open_gate();
    std::thread::scope(|scope| {
        for works in works.chunks(125) {
            scope.spawn(|| {
                for work in works.iter().rev() {
                    assert_eq!(work.wait(&long_deadline()), Ok(WorkProgress::Done));
                }
            });
        }
    });
    let numbers: Vec<_> = works.iter().map(|work| work.sequence().unwrap()).collect();
    assert_eq!(numbers, (1..=500).collect::<Vec<_>>());
    assert_eq!(fake.executed(), numbers);
}

#[test]
fn blocking_and_asynchronous_calls_keep_their_order() {
    let (group, fake) = FakeBackend::group("mixed", true);
    for _ in 0..50 {
        let work = issue_barrier(&group);
        group.run(Call::barrier(), &CallOptions::default()).unwrap();
        // The blocking call was issued after the work.
        assert!(work.is_done() || work.wait(&long_deadline()) == Ok(WorkProgress::Done));
    }
    assert_eq!(fake.executed(), (1..=100).collect::<Vec<_>>());
}

#[test]
fn works_complete_without_a_waiter() {
    let (group, fake) = FakeBackend::group("released", false);
    drop(issue_barrier(&group));
    drop(issue_barrier(&group));
    fake.open_gate();
    assert!(group.wait_for_works(&long_deadline()));
    assert_eq!(fake.executed(), [1, 2]);
}

#[test]
fn pending_works_keep_their_group_alive() {
    let (group, fake) = FakeBackend::group("outlived", false);
    let works = [issue_barrier(&group), issue_barrier(&group)];
    let weak = Arc::downgrade(&group);
    drop(group);
    assert!(weak.upgrade().is_some());
    fake.open_gate();
    for work in &works {
        assert_eq!(work.wait(&long_deadline()), Ok(WorkProgress::Done));
    }
    // When the last work is done, the group is already released.
    assert!(weak.upgrade().is_none());
    assert_eq!((works[1].sequence(), works[1].outcome()), (Some(2), Some(Ok(()))));
}

#[test]
fn timeout_fails_the_operations_behind_it() {
    let (group, _fake) = FakeBackend::group("late", false);
    let first = group.issue(Call::barrier(), timeout(20)).unwrap();
    let second = issue_barrier(&group);
    let error = first.wait(&Deadline::never()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("barrier #1 on group late, rank 0"), "{error}");
    assert_eq!(kind_of(second.wait(&Deadline::never())), ErrorKind::Timeout);
    // Each later wait and each later call returns the same error.
    assert_eq!(kind_of(first.wait(&Deadline::never())), ErrorKind::Timeout);
    assert_eq!(kind_of(issue_barrier(&group).wait(&long_deadline())), ErrorKind::Timeout);
    assert!(group.wait_for_works(&long_deadline()));
}

#[test]
fn deadline_in_the_queue_fails_the_group() {
    let (group, _fake) = FakeBackend::group("overtaken", false);
    let first = issue_barrier(&group);
    let second = issue_barrier(&group);
    let third = group.issue(Call::barrier(), timeout(20)).unwrap();
    let error = third.wait(&Deadline::never()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("waiting for earlier operations"), "{error}");
    assert_eq!(kind_of(first.wait(&long_deadline())), ErrorKind::Timeout);
    assert_eq!(kind_of(second.wait(&long_deadline())), ErrorKind::Timeout);
}

#[test]
fn abort_ends_running_and_queued_operations() {
    let (group, _fake) = FakeBackend::group("aborted", false);
    let works: Vec<_> = (0..4).map(|_| issue_barrier(&group)).collect();
    group.abort("enough");
    for work in works {
        let error = work.wait(&long_deadline()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted);
        assert!(error.message().contains("enough"), "{error}");
    }
}

#[test]
fn finalize_waits_for_works_then_aborts() {
    let (group, fake) = FakeBackend::group("finalized", false);
    let work = issue_barrier(&group);
    std::thread::scope(|scope| {
        scope.spawn(|| fake.open_gate());
        finish_works(&group, &long_deadline());
    });
    assert_eq!(work.outcome(), Some(Ok(())));
    let (group, _shut) = FakeBackend::group("finalized-shut", false);
    let works = [issue_barrier(&group), issue_barrier(&group)];
    finish_works(&group, &Deadline::after_ms(20));
    for work in works {
        let error = work.outcome().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted);
        assert!(error.message().contains("2 asynchronous operations"), "{error}");
    }
}

#[test]
fn panic_in_an_operation_becomes_its_error() {
    let (group, fake) = FakeBackend::group("panic", true);
    fake.panics.store(true, Ordering::Relaxed);
    let work = issue_barrier(&group);
    assert_eq!(kind_of(work.wait(&long_deadline())), ErrorKind::Internal);
    assert_eq!(kind_of(issue_barrier(&group).wait(&long_deadline())), ErrorKind::Internal);
}

#[test]
fn panic_in_a_blocking_call_fails_the_group() {
    let (group, fake) = FakeBackend::group("panic", true);
    let run = || group.run(Call::barrier(), &CallOptions::default()).unwrap_err();
    fake.panics.store(true, Ordering::Relaxed);
    let error = run();
    assert!(error.message().contains("a panic in the operation"), "{error}");
    assert_eq!(group.failure().map(|failure| failure.kind()), Some(ErrorKind::Internal));
    fake.panics.store(false, Ordering::Relaxed);
    assert_eq!(run().kind(), ErrorKind::Internal);
}

#[test]
fn too_many_outstanding_works_are_refused() {
    let (group, fake) = FakeBackend::group("many", false);
    (0..MAX_WORKS).for_each(|_| drop(issue_barrier(&group)));
    let options = CallOptions { timeout_ms: 20, ..CallOptions::default() };
    let refused = group.issue(Call::barrier(), options);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
    // The next call waits until a work has ended, so a faster rank refuses no call.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| issue_barrier(&group));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        fake.open_gate();
        assert_eq!(waiting.join().unwrap().wait(&long_deadline()), Ok(WorkProgress::Done));
    });
    assert!(group.wait_for_works(&long_deadline()));
    assert_eq!(fake.executed().len() as u64, MAX_WORKS + 1);
    assert_eq!(issue_barrier(&group).wait(&long_deadline()), Ok(WorkProgress::Done));
}

#[test]
fn callbacks_run_on_another_thread_in_order() {
    let (group, fake) = FakeBackend::group("callbacks", false);
    let (sender, receiver) = channel();
    let here = std::thread::current().id();
    let works: Vec<_> = (0..10).map(|_| issue_barrier(&group)).collect();
    for (number, work) in works.iter().enumerate().rev() {
        let sender = sender.clone();
        let callback = move |outcome: &Result<()>| {
            let elsewhere = std::thread::current().id() != here;
            sender.send((number, outcome.is_ok(), elsewhere)).unwrap();
        };
        work.on_complete(KEY, callback).unwrap();
    }
    fake.open_gate();
    for number in 0..10 {
        let next = receiver.recv_timeout(Duration::from_millis(LONG_MS)).unwrap();
        assert_eq!(next, (number, true, true));
    }
    // The callback of a completed work also runs on the callback thread, not inside the call.
    let callback =
        move |_: &Result<()>| sender.send((10, true, std::thread::current().id() != here)).unwrap();
    works[0].on_complete(KEY, callback).unwrap();
    assert_eq!(receiver.recv_timeout(Duration::from_millis(LONG_MS)).unwrap(), (10, true, true));
}

#[test]
fn a_callback_may_issue_and_must_not_wait() {
    let (group, _fake) = FakeBackend::group("inside", true);
    let (sender, receiver) = channel();
    let (shut, gate) = FakeBackend::group("inside-shut", false);
    let pending = issue_barrier(&shut);
    let inside = Arc::clone(&group);
    let callback = move |_: &Result<()>| {
        let blocking = inside.run(Call::barrier(), &CallOptions::default()).unwrap_err();
        let looked = pending.wait(&Deadline::after_ms(0));
        let waited = pending.wait(&Deadline::never()).unwrap_err();
        let issued = inside.issue(Call::barrier(), CallOptions::default());
        sender.send((blocking, looked, waited, issued)).unwrap();
    };
    issue_barrier(&group).on_complete(KEY, callback).unwrap();
    let (blocking, looked, waited, issued) =
        receiver.recv_timeout(Duration::from_millis(LONG_MS)).unwrap();
    for error in [blocking, waited] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("callback"), "{error}");
    }
    assert_eq!(looked, Ok(WorkProgress::Pending));
    assert_eq!(issued.unwrap().wait(&long_deadline()), Ok(WorkProgress::Done));
    assert_eq!(callbacks::reject_blocking_in_callback("this thread"), Ok(()));
    gate.open_gate();
    assert!(shut.wait_for_works(&long_deadline()));
}
