//! Tests of control messages over a fake engine. The engine delivers a rank's messages to the rank
//! itself. It can simulate that it is full and that a receive fails.

use super::control_channel::ControlChannel;
use super::message::{ExchangeKey, SubgroupMessage};
use super::send_window::MAX_FRAGMENTS_IN_FLIGHT;
use crate::api::group::process_group::Group;
use crate::api::membership::bootstrap::BootstrapMessage;
use crate::api::tests::FakeBackend;
use crate::backend::Backend as _;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ID: ExchangeKey = ExchangeKey::Id(Nonce([3; 16]));

fn long_deadline() -> Deadline {
    Deadline::after_ms(20_000)
}

fn short_deadline() -> Deadline {
    Deadline::after_ms(1)
}

fn contribution(len: usize) -> SubgroupMessage {
    SubgroupMessage::Bootstrap(BootstrapMessage::Contribution {
        phase: "p".into(),
        bytes: vec![7; len],
    })
}

fn test_channel() -> (Arc<ControlChannel>, Arc<Group>, Arc<FakeBackend>) {
    let (group, fake) = FakeBackend::group("letters", true);
    (ControlChannel::new(&group), group, fake)
}

fn next_message(
    channel: &ControlChannel,
    group: &Group,
    limit: &Deadline,
) -> Result<Option<(Rank, SubgroupMessage)>> {
    channel.next_message(group, &ID, limit, &|| Ok(()))
}

fn posted_receive_count(fake: &FakeBackend) -> usize {
    fake.posted.lock().unwrap().receives.len()
}

/// Fails the posted receive of the control channel.
fn fail_receive(fake: &FakeBackend, kind: ErrorKind) {
    let (_, done) = fake.posted.lock().unwrap().receives.pop().unwrap();
    done.complete(Err(Error::new(kind, "as asked")));
}

#[test]
fn send_window_bounds_fragments_in_flight() {
    let (channel, group, fake) = test_channel();
    let message = contribution(2 * MAX_FRAGMENTS_IN_FLIGHT * 4096);
    let error = channel.send(&group, &[1], &ID, &message, &short_deadline()).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Timeout, Some(1)), "{error}");
    assert!(error.message().contains("rank 1 of group"), "{error}");
    {
        let sends = &fake.posted.lock().unwrap().sends;
        assert_eq!(sends.len(), MAX_FRAGMENTS_IN_FLIGHT);
        // The fragments do not expire with the parent's operations.
        let never = Deadline::never().timeout();
        assert!(sends.iter().all(|(send, _)| send.deadline.timeout() == never));
    }
    channel.open();
    assert_eq!(fake.posted.lock().unwrap().sends.len(), 0);
    // The fragments of a message that was sent only in part do not block other messages.
    assert_eq!(channel.try_take(&ID), None);
    let sent = channel.send(&group, &[1], &ID, &message, &long_deadline()).unwrap();
    channel.await_sent(&group, &sent, &long_deadline()).unwrap();
    assert_eq!(channel.try_take(&ID), Some((0, message)));
}

#[test]
fn sender_waits_while_too_much_is_outstanding() {
    let (channel, group, fake) = test_channel();
    channel.open();
    fake.is_full.store(true, Ordering::Release);
    let error = channel.send(&group, &[1], &ID, &contribution(1), &short_deadline()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    std::thread::scope(|scope| {
        let writer =
            scope.spawn(|| channel.send(&group, &[1], &ID, &contribution(1), &long_deadline()));
        fake.is_full.store(false, Ordering::Release);
        assert!(writer.join().unwrap().is_ok());
    });
    assert_eq!(
        next_message(&channel, &group, &long_deadline()).unwrap(),
        Some((0, contribution(1)))
    );
}

#[test]
fn channel_retries_a_receive_that_was_refused() {
    let (channel, group, fake) = test_channel();
    fake.is_full.store(true, Ordering::Release);
    channel.open();
    let error = next_message(&channel, &group, &short_deadline()).unwrap_err();
    assert_eq!((error.kind(), posted_receive_count(&fake)), (ErrorKind::OutOfMemory, 0));
    fake.is_full.store(false, Ordering::Release);
    drop(channel.send(&group, &[1], &ID, &contribution(1), &long_deadline()).unwrap());
    assert_eq!(
        next_message(&channel, &group, &long_deadline()).unwrap(),
        Some((0, contribution(1)))
    );
    assert_eq!(posted_receive_count(&fake), 1);
}

#[test]
fn departed_sender_does_not_stop_the_channel() {
    let (channel, group, fake) = test_channel();
    channel.open();
    for kind in [ErrorKind::PeerFailed, ErrorKind::Connection] {
        fail_receive(&fake, kind);
        assert_eq!(posted_receive_count(&fake), 1);
    }
    // An error that a retry cannot fix is reported. Only the next creation of a group retries.
    fail_receive(&fake, ErrorKind::Mismatch);
    assert_eq!(posted_receive_count(&fake), 0);
    assert_eq!(
        next_message(&channel, &group, &long_deadline()).unwrap_err().kind(),
        ErrorKind::Mismatch
    );
    channel.open();
    channel.open();
    assert_eq!(posted_receive_count(&fake), 1);
    assert_eq!(next_message(&channel, &group, &short_deadline()).unwrap(), None);
}

#[test]
fn failed_group_posts_no_receive() {
    let (channel, group, fake) = test_channel();
    channel.open();
    fake.abort(&Error::new(ErrorKind::Aborted, "the end"));
    fail_receive(&fake, ErrorKind::PeerFailed);
    assert_eq!(posted_receive_count(&fake), 0);
    assert_eq!(
        next_message(&channel, &group, &long_deadline()).unwrap_err().kind(),
        ErrorKind::Aborted
    );
}
