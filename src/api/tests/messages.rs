//! Tests of asynchronous messages between two ranks, over the fake back end.

use super::*;

fn send(group: &Arc<Group>, bytes: &[u8], tag: u32, options: CallOptions) -> Result<Arc<Work>> {
    let call = group.send(Src::from(&*leak_bytes(bytes)), DataType::U16, 0, tag, options)?;
    let work = Arc::clone(call.work());
    call.issue().map(|()| work)
}

fn receive(
    group: &Arc<Group>,
    capacity: usize,
    tag: Option<u32>,
    options: CallOptions,
) -> Result<Arc<Work>> {
    let into = Dst::from(leak_bytes(&vec![0; capacity]));
    let call = group.receive(into, DataType::U16, None, tag, options)?;
    let work = Arc::clone(call.work());
    call.issue().map(|()| work)
}

#[test]
fn a_message_arrives_with_its_source_tag_and_count() {
    let (group, _fake) = FakeBackend::group("message", true);
    let received = receive(&group, 64, None, CallOptions::default()).unwrap();
    assert_eq!(received.wait(&Deadline::after_ms(2)), Ok(WorkProgress::Pending));
    assert_eq!((received.source(), received.received_count()), (None, None));
    let sent = send(&group, &[1; 10], 7, CallOptions::default()).unwrap();
    assert_eq!(received.wait(&long_deadline()), Ok(WorkProgress::Done));
    assert_eq!(sent.wait(&long_deadline()), Ok(WorkProgress::Done));
    assert_eq!(
        (received.source(), received.tag(), received.received_count()),
        (Some(0), Some(7), Some(5))
    );
    assert_eq!((sent.tag(), sent.received_count()), (Some(7), None));
    // Messages have sequence numbers of their own, independent of collectives.
    assert_eq!((received.sequence(), sent.sequence()), (Some(1), Some(2)));
    assert_eq!(issue_barrier(&group).sequence(), Some(1));
    let record = group.flight_record().to_string();
    assert!(record.contains("\"operation\":\"send\"") && record.contains("\"tag\":7"), "{record}");
}

#[test]
fn messages_do_not_wait_behind_collectives() {
    let (group, fake) = FakeBackend::group("beside", false);
    let collective = issue_barrier(&group);
    let sent = send(&group, &[1, 2], 0, CallOptions::default()).unwrap();
    let received = receive(&group, 2, Some(0), CallOptions::default()).unwrap();
    assert_eq!(received.wait(&long_deadline()), Ok(WorkProgress::Done));
    assert_eq!(sent.wait(&long_deadline()), Ok(WorkProgress::Done));
    assert!(!collective.is_done());
    fake.open_gate();
    assert_eq!(collective.wait(&long_deadline()), Ok(WorkProgress::Done));
}

#[test]
fn message_timeout_names_the_receive_and_fails_alone() {
    let (group, _fake) = FakeBackend::group("alone", true);
    let work = receive(&group, 20, Some(9), timeout(5)).unwrap();
    let error = work.wait(&Deadline::never()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let text =
        "receive from any rank, tag 9 (u16, count 10) on group alone, rank 0: no peer arrived";
    assert_eq!(error.message(), text);
    assert_eq!((work.source(), group.outstanding_works()), (None, 0));
    assert_eq!(issue_barrier(&group).wait(&long_deadline()), Ok(WorkProgress::Done));
}

#[test]
fn invalid_sends_are_refused() {
    let (group, fake) = FakeBackend::group("refused", true);
    let refused = |peer, tag, options| {
        group.send(Src::empty(), DataType::U8, peer, tag, options).unwrap_err().to_string()
    };
    let default = CallOptions::default;
    assert!(refused(2, 0, default()).contains("rank 2 does not exist in a group of 2"));
    assert!(refused(0, 1 << 31, default()).contains("tag 2147483648"));
    let named = CallOptions { algorithm: Some("ring".into()), ..default() };
    assert!(refused(0, 0, named).contains("ring"));
    fake.abort(&Error::new(ErrorKind::PeerFailed, "gone"));
    assert_eq!(receive(&group, 2, None, default()).unwrap_err().kind(), ErrorKind::PeerFailed);
    assert!(group.wait_for_works(&long_deadline()));
}

#[test]
fn a_message_keeps_its_group_until_it_is_done() {
    let (group, fake) = FakeBackend::group("kept", true);
    let work = receive(&group, 2, None, CallOptions::default()).unwrap();
    let weak = Arc::downgrade(&group);
    drop(group);
    assert!(weak.upgrade().is_some());
    let (_, done) = fake.posted.lock().unwrap().receives.remove(0);
    done.complete(Ok(Delivery { peer: 1, tag: 3, bytes: 2 }));
    assert_eq!((work.source(), work.tag(), work.received_count()), (Some(1), Some(3), Some(1)));
    let limit = long_deadline();
    // The callback thread releases the group.
    while weak.strong_count() > 0 {
        assert!(!limit.has_passed());
        std::thread::yield_now();
    }
}
