//! Tests of batches: the order in which their calls are issued, their errors, and their limits.

use super::*;
use crate::api::collective::batch;
use crate::api::collective::prepared_call::PreparedCall;

fn barrier(group: &Arc<Group>) -> PreparedCall {
    group.prepare(Call::barrier(), CallOptions::default()).unwrap()
}

fn send(group: &Arc<Group>, tag: u32) -> PreparedCall {
    group.send(Src::empty(), DataType::U8, 0, tag, CallOptions::default()).unwrap()
}

fn receive(group: &Arc<Group>, tag: u32, options: CallOptions) -> PreparedCall {
    group.receive(Dst::empty(), DataType::U8, None, Some(tag), options).unwrap()
}

fn end_batch() -> Arc<Work> {
    let batch = batch::end().unwrap();
    let work = Arc::clone(batch.work());
    batch.issue(false);
    work
}

#[test]
fn batch_posts_receives_first_and_ends_with_all_calls() {
    let (one, fake) = FakeBackend::group("batch-one", false);
    let (two, other) = FakeBackend::group("batch-two", false);
    batch::begin(None).unwrap();
    let first = barrier(&one);
    let work = Arc::clone(first.work());
    batch::collect_or_issue(first).unwrap();
    batch::collect_or_issue(send(&one, 1)).unwrap();
    batch::collect_or_issue(receive(&one, 1, CallOptions::default())).unwrap();
    batch::collect_or_issue(barrier(&two)).unwrap();
    // No call was issued, and an unissued call cannot be waited for.
    assert_eq!((one.outstanding_works(), work.sequence()), (0, None));
    assert_eq!(kind_of(work.wait(&long_deadline())), ErrorKind::InvalidArgument);
    let whole = end_batch();
    assert_eq!(*fake.post_order.lock().unwrap(), ["receive", "send"]);
    assert_eq!(whole.wait(&Deadline::after_ms(2)), Ok(WorkProgress::Pending));
    // The groups do not wait for each other.
    other.open_gate();
    assert!(two.wait_for_works(&long_deadline()));
    assert!(!whole.is_done());
    fake.open_gate();
    assert_eq!(whole.wait(&long_deadline()), Ok(WorkProgress::Done));
    assert_eq!((work.outcome(), work.sequence()), (Some(Ok(())), Some(1)));
}

#[test]
fn batch_returns_first_error_in_call_order() {
    let (group, _fake) = FakeBackend::group("batch-error", true);
    batch::begin(None).unwrap();
    batch::collect_or_issue(barrier(&group)).unwrap();
    // The second of these receives ends first.
    batch::collect_or_issue(receive(&group, 1, timeout(40))).unwrap();
    batch::collect_or_issue(receive(&group, 2, timeout(5))).unwrap();
    let error = end_batch().wait(&Deadline::never()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("tag 1"), "{error}");
}

#[test]
fn batch_begin_and_end_must_be_paired() {
    assert_eq!(batch::end().unwrap_err().kind(), ErrorKind::InvalidArgument);
    batch::begin(None).unwrap();
    assert_eq!(batch::begin(None).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // An empty batch is done immediately.
    assert_eq!(end_batch().wait(&Deadline::after_ms(0)), Ok(WorkProgress::Done));
    assert!(!batch::is_open());
}

#[test]
fn batch_refuses_a_group_not_named_at_begin() {
    let (mine, _fake) = FakeBackend::group("batch-mine", true);
    let (other, _other) = FakeBackend::group("batch-other", true);
    batch::begin(Some(&[Arc::clone(&mine)])).unwrap();
    let refused = batch::collect_or_issue(barrier(&other)).unwrap_err();
    assert!(refused.message().contains("batch-other"), "{refused}");
    batch::collect_or_issue(barrier(&mine)).unwrap();
    assert_eq!(end_batch().wait(&long_deadline()), Ok(WorkProgress::Done));
    assert_eq!((mine.queue.issued(), other.queue.issued()), (1, 0));
}

#[test]
fn batch_refuses_too_many_calls() {
    let (group, _fake) = FakeBackend::group("batch-bound", true);
    batch::begin(None).unwrap();
    (0..batch::MAX_BATCH_CALLS).for_each(|_| batch::collect_or_issue(barrier(&group)).unwrap());
    let refused = batch::collect_or_issue(barrier(&group)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert_eq!(end_batch().wait(&long_deadline()), Ok(WorkProgress::Done));
}

#[test]
fn batch_of_an_exited_thread_is_dropped() {
    let (group, fake) = FakeBackend::group("batch-dropped", true);
    let work = std::thread::scope(|scope| {
        let collected = scope.spawn(|| {
            batch::begin(None).unwrap();
            let call = barrier(&group);
            let work = Arc::clone(call.work());
            batch::collect_or_issue(call).unwrap();
            work
        });
        collected.join().unwrap()
    });
    assert_eq!(kind_of(work.wait(&long_deadline())), ErrorKind::Aborted);
    assert_eq!((fake.executed(), group.outstanding_works()), (vec![], 0));
}
