use super::*;
use crate::api::callbacks::{self, CallbackKey};
use crate::api::queue::MOST_WORKS;
use crate::api::runtime::finish_works;
use crate::api::work::WorkKind;
use std::sync::mpsc::channel;
use std::time::Duration;

const KEY: CallbackKey = CallbackKey { function: 0, user: 0 };

#[test]
fn a_work_is_pending_then_done_and_keeps_its_outcome() {
    let (group, fake) = Fake::group("outcome", false);
    let work = issue(&group);
    assert_eq!(work.wait(&Deadline::after_ms(0)), Ok(Progress::Pending));
    assert_eq!(work.wait(&Deadline::after_ms(5)), Ok(Progress::Pending));
    assert!(!work.is_done() && work.outcome().is_none());
    fake.open();
    for _ in 0..3 {
        assert_eq!(work.wait(&Deadline::never()), Ok(Progress::Done));
    }
    assert_eq!((work.sequence(), work.source(), work.tag()), (Some(1), None, None));
    let elapsed = work.elapsed();
    assert!(elapsed >= Duration::from_millis(5) && work.elapsed() == elapsed);
    // A second end changes nothing.
    work.end(Err(Error::internal("again")));
    assert_eq!(work.outcome(), Some(Ok(())));
    // Whoever has ended it counts it off a moment later.
    assert!(group.drain(&long()));
}

#[test]
fn what_an_operation_wrote_is_there_when_its_work_is_done() {
    let (group, _fake) = Fake::group("written", true);
    let (from, to) = (Src::from(&*lent(&[1, 2, 3, 4])), Dst::from(lent(&[0; 4])));
    let call = Call::all_gather(from, to, DataType::U8);
    let work = group.issue(call, CallOptions::default()).unwrap();
    assert_eq!(work.wait(&Deadline::never()), Ok(Progress::Done));
    let mut seen = [0; 4];
    Dst::from(&mut seen[..]).copy_from(to.as_src());
    assert_eq!(seen, [1, 2, 3, 4]);
    assert_eq!(work.kind(), WorkKind::Collective(OpKind::AllGather));
}

#[test]
fn hundreds_outstanding_end_in_order() {
    let (group, fake) = Fake::group("hundreds", false);
    let works: Vec<_> = (0..500).map(|_| issue(&group)).collect();
    assert_eq!(group.outstanding(), 500);
    fake.open();
    std::thread::scope(|scope| {
        for works in works.chunks(125) {
            scope.spawn(|| {
                for work in works.iter().rev() {
                    assert_eq!(work.wait(&long()), Ok(Progress::Done));
                }
            });
        }
    });
    let numbers: Vec<_> = works.iter().map(|work| work.sequence().unwrap()).collect();
    assert_eq!(numbers, (1..=500).collect::<Vec<_>>());
    assert_eq!(fake.ran(), numbers);
}

#[test]
fn blocking_and_asynchronous_calls_keep_their_order() {
    let (group, fake) = Fake::group("mixed", true);
    for _ in 0..50 {
        let work = issue(&group);
        group.run(Call::barrier(), &CallOptions::default()).unwrap();
        // The blocking call came after it.
        assert!(work.is_done() || work.wait(&long()) == Ok(Progress::Done));
    }
    assert_eq!(fake.ran(), (1..=100).collect::<Vec<_>>());
}

#[test]
fn nobody_needs_to_wait_for_a_work() {
    let (group, fake) = Fake::group("released", false);
    drop(issue(&group));
    drop(issue(&group));
    fake.open();
    assert!(group.drain(&long()));
    assert_eq!(fake.ran(), [1, 2]);
}

#[test]
fn works_keep_their_group_while_they_are_pending_and_outlive_it() {
    let (group, fake) = Fake::group("outlived", false);
    let works = [issue(&group), issue(&group)];
    let weak = Arc::downgrade(&group);
    drop(group);
    assert!(weak.upgrade().is_some());
    fake.open();
    for work in &works {
        assert_eq!(work.wait(&long()), Ok(Progress::Done));
    }
    // Whoever has seen the last one done finds the group gone.
    assert!(weak.upgrade().is_none());
    assert_eq!((works[1].sequence(), works[1].outcome()), (Some(2), Some(Ok(()))));
}

#[test]
fn a_late_operation_times_out_and_those_behind_it_fail() {
    let (group, _fake) = Fake::group("late", false);
    let first = group.issue(Call::barrier(), timeout(20)).unwrap();
    let second = issue(&group);
    let error = first.wait(&Deadline::never()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("barrier #1 on group late, rank 0"), "{error}");
    assert_eq!(kind_of(second.wait(&Deadline::never())), ErrorKind::Timeout);
    // Again and again, and for what comes later.
    assert_eq!(kind_of(first.wait(&Deadline::never())), ErrorKind::Timeout);
    assert_eq!(kind_of(issue(&group).wait(&long())), ErrorKind::Timeout);
    assert!(group.drain(&long()));
}

#[test]
fn a_work_whose_deadline_passes_in_the_queue_fails_the_group() {
    let (group, _fake) = Fake::group("overtaken", false);
    let first = issue(&group);
    let second = issue(&group);
    let third = group.issue(Call::barrier(), timeout(20)).unwrap();
    let error = third.wait(&Deadline::never()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("behind earlier operations"), "{error}");
    assert_eq!(kind_of(first.wait(&long())), ErrorKind::Timeout);
    assert_eq!(kind_of(second.wait(&long())), ErrorKind::Timeout);
}

#[test]
fn an_abort_ends_what_runs_and_what_waits() {
    let (group, _fake) = Fake::group("aborted", false);
    let works: Vec<_> = (0..4).map(|_| issue(&group)).collect();
    group.abort("enough");
    for work in works {
        let error = work.wait(&long()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted);
        assert!(error.message().contains("enough"), "{error}");
    }
}

#[test]
fn finalize_lets_works_end_and_aborts_what_does_not() {
    let (group, fake) = Fake::group("finalized", false);
    let work = issue(&group);
    std::thread::scope(|scope| {
        scope.spawn(|| fake.open());
        finish_works(&group, &long());
    });
    assert_eq!(work.outcome(), Some(Ok(())));
    let (group, _shut) = Fake::group("finalized-shut", false);
    let works = [issue(&group), issue(&group)];
    finish_works(&group, &Deadline::after_ms(20));
    for work in works {
        let error = work.outcome().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted);
        assert!(error.message().contains("2 asynchronous operations"), "{error}");
    }
}

#[test]
fn a_panic_in_an_operation_is_its_error() {
    let (group, fake) = Fake::group("panic", true);
    fake.panics.store(true, Ordering::Relaxed);
    let work = issue(&group);
    assert_eq!(kind_of(work.wait(&long())), ErrorKind::Internal);
    assert_eq!(kind_of(issue(&group).wait(&long())), ErrorKind::Internal);
}

#[test]
fn a_panic_in_a_call_that_blocks_fails_the_group_too() {
    let (group, fake) = Fake::group("panic", true);
    let run = || group.run(Call::barrier(), &CallOptions::default()).unwrap_err();
    fake.panics.store(true, Ordering::Relaxed);
    let error = run();
    assert!(error.message().contains("a panic in the operation"), "{error}");
    assert_eq!(group.failure().map(|failure| failure.kind()), Some(ErrorKind::Internal));
    fake.panics.store(false, Ordering::Relaxed);
    assert_eq!(run().kind(), ErrorKind::Internal);
}

#[test]
fn too_many_outstanding_are_refused() {
    let (group, fake) = Fake::group("many", false);
    (0..MOST_WORKS).for_each(|_| drop(issue(&group)));
    let refused = group.issue(Call::barrier(), CallOptions::default());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
    fake.open();
    assert!(group.drain(&long()));
    assert_eq!(fake.ran().len() as u64, MOST_WORKS);
    assert_eq!(issue(&group).wait(&long()), Ok(Progress::Done));
}

#[test]
fn callbacks_run_elsewhere_in_the_order_of_completion() {
    let (group, fake) = Fake::group("callbacks", false);
    let (said, heard) = channel();
    let here = std::thread::current().id();
    let works: Vec<_> = (0..10).map(|_| issue(&group)).collect();
    for (number, work) in works.iter().enumerate().rev() {
        let said = said.clone();
        let callback = move |outcome: &Result<()>| {
            let elsewhere = std::thread::current().id() != here;
            said.send((number, outcome.is_ok(), elsewhere)).unwrap();
        };
        work.on_complete(KEY, callback).unwrap();
    }
    fake.open();
    for number in 0..10 {
        let next = heard.recv_timeout(Duration::from_millis(LONG)).unwrap();
        assert_eq!(next, (number, true, true));
    }
    // Of a work that is done already: soon, and not inside the call.
    let callback =
        move |_: &Result<()>| said.send((10, true, std::thread::current().id() != here)).unwrap();
    works[0].on_complete(KEY, callback).unwrap();
    assert_eq!(heard.recv_timeout(Duration::from_millis(LONG)).unwrap(), (10, true, true));
}

#[test]
fn a_callback_may_issue_and_must_not_wait() {
    let (group, _fake) = Fake::group("inside", true);
    let (said, heard) = channel();
    let (shut, gate) = Fake::group("inside-shut", false);
    let pending = issue(&shut);
    let inside = Arc::clone(&group);
    let callback = move |_: &Result<()>| {
        let blocking = inside.run(Call::barrier(), &CallOptions::default()).unwrap_err();
        let looked = pending.wait(&Deadline::after_ms(0));
        let waited = pending.wait(&Deadline::never()).unwrap_err();
        let issued = inside.issue(Call::barrier(), CallOptions::default());
        said.send((blocking, looked, waited, issued)).unwrap();
    };
    issue(&group).on_complete(KEY, callback).unwrap();
    let (blocking, looked, waited, issued) =
        heard.recv_timeout(Duration::from_millis(LONG)).unwrap();
    for error in [blocking, waited] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("callback"), "{error}");
    }
    assert_eq!(looked, Ok(Progress::Pending));
    assert_eq!(issued.unwrap().wait(&long()), Ok(Progress::Done));
    assert_eq!(callbacks::refuse_to_block("this thread"), Ok(()));
    gate.open();
    assert!(shut.drain(&long()));
}
