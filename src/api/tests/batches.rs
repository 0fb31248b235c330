use super::*;
use crate::api::batch;
use crate::api::issue::Prepared;

fn barrier(group: &Arc<Group>) -> Prepared {
    group.prepare(Call::barrier(), CallOptions::default()).unwrap()
}

fn send(group: &Arc<Group>, tag: u32) -> Prepared {
    group.send(Src::empty(), DataType::U8, 0, tag, CallOptions::default()).unwrap()
}

fn receive(group: &Arc<Group>, tag: u32, options: CallOptions) -> Prepared {
    group.receive(Dst::empty(), DataType::U8, None, Some(tag), options).unwrap()
}

fn end() -> Arc<Work> {
    let batch = batch::end().unwrap();
    let work = Arc::clone(batch.work());
    batch.issue(false);
    work
}

#[test]
fn a_batch_posts_receives_first_and_ends_with_all_of_it() {
    let (one, fake) = Fake::group("batch-one", false);
    let (two, other) = Fake::group("batch-two", false);
    batch::begin(None).unwrap();
    let first = barrier(&one);
    let work = Arc::clone(first.work());
    batch::collect_or_issue(first).unwrap();
    batch::collect_or_issue(send(&one, 1)).unwrap();
    batch::collect_or_issue(receive(&one, 1, CallOptions::default())).unwrap();
    batch::collect_or_issue(barrier(&two)).unwrap();
    // Nothing has been issued, and what has not cannot be waited for.
    assert_eq!((one.outstanding(), work.sequence()), (0, None));
    assert_eq!(kind_of(work.wait(&long())), ErrorKind::InvalidArgument);
    let whole = end();
    assert_eq!(*fake.order.lock().unwrap(), ["receive", "send"]);
    assert_eq!(whole.wait(&Deadline::after_ms(2)), Ok(Progress::Pending));
    // The groups do not wait for each other.
    other.open();
    assert!(two.drain(&long()));
    assert!(!whole.is_done());
    fake.open();
    assert_eq!(whole.wait(&long()), Ok(Progress::Done));
    assert_eq!((work.outcome(), work.sequence()), (Some(Ok(())), Some(1)));
}

#[test]
fn the_first_error_in_the_order_of_the_calls_is_the_batchs() {
    let (group, _fake) = Fake::group("batch-error", true);
    batch::begin(None).unwrap();
    batch::collect_or_issue(barrier(&group)).unwrap();
    // The later of these two ends first.
    batch::collect_or_issue(receive(&group, 1, timeout(40))).unwrap();
    batch::collect_or_issue(receive(&group, 2, timeout(5))).unwrap();
    let error = end().wait(&Deadline::never()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("tag 1"), "{error}");
}

#[test]
fn begin_and_end_come_in_pairs() {
    assert_eq!(batch::end().unwrap_err().kind(), ErrorKind::InvalidArgument);
    batch::begin(None).unwrap();
    assert_eq!(batch::begin(None).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // An empty one is done at once.
    assert_eq!(end().wait(&Deadline::after_ms(0)), Ok(Progress::Done));
    assert!(!batch::is_open());
}

#[test]
fn a_batch_uses_the_groups_that_it_was_begun_with() {
    let (mine, _fake) = Fake::group("batch-mine", true);
    let (other, _other) = Fake::group("batch-other", true);
    batch::begin(Some(&[Arc::clone(&mine)])).unwrap();
    let refused = batch::collect_or_issue(barrier(&other)).unwrap_err();
    assert!(refused.message().contains("batch-other"), "{refused}");
    batch::collect_or_issue(barrier(&mine)).unwrap();
    assert_eq!(end().wait(&long()), Ok(Progress::Done));
    assert_eq!((mine.queue.issued(), other.queue.issued()), (1, 0));
}

#[test]
fn a_batch_has_a_bound() {
    let (group, _fake) = Fake::group("batch-bound", true);
    batch::begin(None).unwrap();
    (0..batch::MOST_CALLS).for_each(|_| batch::collect_or_issue(barrier(&group)).unwrap());
    let refused = batch::collect_or_issue(barrier(&group)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert_eq!(end().wait(&long()), Ok(Progress::Done));
}

#[test]
fn the_batch_of_a_thread_that_ends_is_dropped() {
    let (group, fake) = Fake::group("batch-dropped", true);
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
    assert_eq!(kind_of(work.wait(&long())), ErrorKind::Aborted);
    assert_eq!((fake.ran(), group.outstanding()), (vec![], 0));
}
