//! Tests of lists of works, withdrawn callbacks, completion events and culprits.

use super::*;
use crate::api::runtime::finish_works;
use crate::api::work::callbacks::CallbackKey;
use crate::api::work::work_list::{AnyWorkDone, wait_all, wait_any};
use crate::base::error::{Culprit, RankFault};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;
use std::time::Duration;

fn list(works: &[&Arc<Work>]) -> Vec<Option<Arc<Work>>> {
    works.iter().map(|&work| Some(Arc::clone(work))).collect()
}

fn receive(group: &Arc<Group>, tag: u32, timeout_ms: u64) -> Arc<Work> {
    let into = Dst::from(leak_bytes(&[0; 4]));
    let prepared = group.receive(into, DataType::U8, None, Some(tag), timeout(timeout_ms)).unwrap();
    let work = Arc::clone(prepared.work());
    prepared.issue().unwrap();
    work
}

fn send(group: &Arc<Group>, tag: u32) {
    let bytes = Src::from(&*leak_bytes(&[7; 4]));
    group.send(bytes, DataType::U8, 0, tag, CallOptions::default()).unwrap().issue().unwrap();
}

#[test]
fn wait_for_any_ends_with_the_first_work_of_each_kind() {
    let (group, fake) = FakeBackend::group("any", false);
    let (other, _) = FakeBackend::group("any-other", false);
    let (first, second) = (issue_barrier(&group), issue_barrier(&group));
    let message = receive(&group, 1, LONG_MS);
    let elsewhere = issue_barrier(&other);
    // Four works of two groups: the wait uses a doorbell.
    let mut works = list(&[&elsewhere, &second, &first, &message]);
    assert_eq!(wait_any(&works, &Deadline::after_ms(5)), Ok(AnyWorkDone::Pending));
    send(&group, 1);
    assert_eq!(wait_any(&works, &long_deadline()), Ok(AnyWorkDone::Done(3, Ok(()))));
    works[3] = None;
    std::thread::scope(|scope| {
        scope.spawn(|| fake.open_gate());
        let Ok(AnyWorkDone::Done(index, Ok(()))) = wait_any(&works, &long_deadline()) else {
            panic!("none")
        };
        assert!(index == 1 || index == 2, "{index}");
    });
    // Both works are of one group: the wait uses the group's queue.
    assert_eq!(wait_all(&list(&[&second, &first]), &long_deadline()), Ok(WorkProgress::Done));
    other.abort("enough");
    let found = wait_any(&works[..1], &long_deadline());
    assert!(
        matches!(&found, Ok(AnyWorkDone::Done(0, Err(e))) if e.message().contains("works[0]")),
        "{found:?}"
    );
    assert_eq!(wait_any(&[None, None], &long_deadline()), Ok(AnyWorkDone::NoWorks));
}

#[test]
#[cfg(not(loom))]
fn wait_any_removes_its_completion_hooks() {
    let (group, fake) = FakeBackend::group("hooks", false);
    let (other, _) = FakeBackend::group("hooks-other", false);
    let (one, two) = (issue_barrier(&group), issue_barrier(&other));
    for _ in 0..3 {
        let works = list(&[&one, &two]);
        assert_eq!(wait_any(&works, &Deadline::after_ms(1)), Ok(AnyWorkDone::Pending));
    }
    assert_eq!((one.hook_count(), two.hook_count()), (0, 0));
    fake.open_gate();
    other.abort("the end");
    finish_works(&group, &long_deadline());
}

#[test]
fn work_deadlines_end_wait_any() {
    // The late work is queued behind a pending operation. The first list has works of one group,
    // the second has works of two groups.
    for other in [None, Some(FakeBackend::group("deadlines-other", false).0)] {
        let (group, fake) = FakeBackend::group("deadlines", false);
        let lasting = issue_barrier(&group);
        let late = group.issue(Call::barrier(), timeout(30)).unwrap();
        let elsewhere = other.as_ref().map_or_else(|| issue_barrier(&group), issue_barrier);
        let works = list(&[&lasting, &elsewhere, &late]);
        let found = wait_any(&works, &long_deadline());
        assert!(matches!(found, Ok(AnyWorkDone::Done(..))), "{found:?}");
        assert_eq!(kind_of(late.wait(&long_deadline())), ErrorKind::Timeout);
        fake.open_gate();
        other.into_iter().for_each(|other| other.abort("the end"));
        finish_works(&group, &long_deadline());
    }
}

#[test]
fn wait_all_returns_the_first_error_in_list_order() {
    let (group, _fake) = FakeBackend::group("errors", true);
    let (bad, _) = FakeBackend::group("errors-bad", false);
    let late = receive(&bad, 3, 20);
    let good = issue_barrier(&group);
    let aborted = issue_barrier(&bad);
    let works = list(&[&good, &late, &aborted]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_all(&works, &long_deadline()));
        assert_eq!(kind_of(late.wait(&long_deadline())), ErrorKind::Timeout);
        bad.abort("enough");
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.message().starts_with("works[1]: "), "{error}");
    });
}

const KEY: CallbackKey = CallbackKey { function: 1, user: 2 };

#[test]
fn withdrawn_callback_is_never_called() {
    let (group, fake) = FakeBackend::group("withdrawn", false);
    let work = issue_barrier(&group);
    let calls = Arc::new(AtomicUsize::new(0));
    let add = || {
        let calls = Arc::clone(&calls);
        work.on_complete(KEY, move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    };
    add();
    add();
    let other = CallbackKey { user: 3, ..KEY };
    assert!(!work.withdraw_callback(other));
    assert!(work.withdraw_callback(KEY));
    // Withdrawing dropped the callback together with its captured values.
    assert_eq!(Arc::strong_count(&calls), 2);
    let (sender, receiver) = channel();
    work.on_complete(other, move |_| sender.send(()).unwrap()).unwrap();
    fake.open_gate();
    receiver.recv_timeout(Duration::from_millis(LONG_MS)).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert!(!work.withdraw_callback(KEY) && !work.withdraw_callback(other));
}

#[test]
fn done_works_with_handles_are_listed_once() {
    let (group, fake) = FakeBackend::group("events", false);
    assert!(group.take_done(8).is_empty());
    let [early, late, nameless, released] = [(); 4].map(|()| issue_barrier(&group));
    for (token, work) in [(5, &early), (6, &late), (7, &released)] {
        work.set_handle(token);
    }
    let known = || vec![Arc::clone(&early), Arc::clone(&late)];
    let descriptor = group.completion_descriptor(known).unwrap();
    assert!(descriptor > 2);
    released.clear_handle();
    fake.open_gate();
    assert_eq!(
        wait_all(&list(&[&early, &late, &nameless, &released]), &long_deadline()),
        Ok(WorkProgress::Done)
    );
    // A work may be added to the list of completion events shortly after the wait for the work has
    // returned.
    let mut taken = Vec::new();
    while taken.len() < 2 {
        taken.extend(group.take_done(1));
    }
    assert_eq!(taken, [5, 6]);
    assert!(group.take_done(8).is_empty());
    assert_eq!(group.completion_descriptor(|| panic!("a second look")), Ok(descriptor));
    group.close_events();
    assert!(group.completion_descriptor(Vec::new).is_err());
}

#[test]
fn works_that_are_done_before_the_descriptor_are_listed() {
    let (group, _fake) = FakeBackend::group("events-early", true);
    let work = issue_barrier(&group);
    work.set_handle(9);
    assert_eq!(work.wait(&long_deadline()), Ok(WorkProgress::Done));
    group.completion_descriptor(|| vec![Arc::clone(&work), Arc::clone(&work)]).unwrap();
    assert_eq!(group.take_done(8), [9]);
}

#[test]
fn culprit_of_an_error_has_its_process() {
    let (group, _fake) = FakeBackend::group("culprit", false);
    let (alone, _) = FakeBackend::group("culprit-none", true);
    let (work, message) = (issue_barrier(&group), receive(&group, 1, LONG_MS));
    assert_eq!((work.culprit(), group.culprit()), (None, None));
    let died = Error::new(ErrorKind::PeerFailed, "rank 1 died").with_culprit(1);
    group.fail(&died.with_fault(RankFault::Died));
    let wanted = Culprit { rank: 1, fault: RankFault::Died, process: Some((1, "h".into())) };
    assert!(work.wait(&long_deadline()).is_err());
    assert_eq!((work.culprit(), group.culprit()), (Some(wanted.clone()), Some(wanted)));
    drop(message);
    let done = issue_barrier(&alone);
    assert_eq!(done.wait(&long_deadline()), Ok(WorkProgress::Done));
    assert_eq!((done.culprit(), alone.culprit()), (None, None));
}

#[test]
fn closed_queue_takes_no_further_work() {
    let (group, _fake) = FakeBackend::group("closed", true);
    assert_eq!(issue_barrier(&group).wait(&long_deadline()), Ok(WorkProgress::Done));
    group.queue.close();
    let refused = group.issue(Call::barrier(), CallOptions::default()).unwrap_err();
    assert_eq!((refused.kind(), group.outstanding_works()), (ErrorKind::NotInitialized, 0));
    assert_eq!(group.collectives_issued(), 1);
    assert_eq!(group.run(Call::barrier(), &CallOptions::default()), Ok(()));
}
