//! Letters over an engine that carries a rank's messages to itself, and is full or fails when a
//! test says so.

use super::dispatch::WINDOW;
use super::letter::{Key, Letter};
use super::mailbox::Mailbox;
use crate::api::group::Group;
use crate::api::tests::Fake;
use crate::backend::Backend as _;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{Nonce, Rank};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ID: Key = Key::Id(Nonce([3; 16]));

fn long() -> Deadline {
    Deadline::after_ms(20_000)
}

fn soon() -> Deadline {
    Deadline::after_ms(1)
}

fn part(len: usize) -> Letter {
    Letter::Part { phase: "p".into(), bytes: vec![7; len] }
}

fn mailbox() -> (Arc<Mailbox>, Arc<Group>, Arc<Fake>) {
    let (group, fake) = Fake::group("letters", true);
    (Mailbox::new(&group), group, fake)
}

fn next(mailbox: &Mailbox, group: &Group, limit: &Deadline) -> Result<Option<(Rank, Letter)>> {
    mailbox.next(group, &ID, limit, &|| Ok(()))
}

fn receives(fake: &Fake) -> usize {
    fake.posted.lock().unwrap().receives.len()
}

/// Ends the receive of the mailbox.
fn end_receive(fake: &Fake, kind: ErrorKind) {
    let (_, done) = fake.posted.lock().unwrap().receives.pop().unwrap();
    done.complete(Err(Error::new(kind, "as asked")));
}

#[test]
fn only_so_much_of_a_letter_is_on_its_way() {
    let (mailbox, group, fake) = mailbox();
    let letter = part(2 * WINDOW * 4096);
    let error = mailbox.send(&group, &[1], &ID, &letter, &soon()).unwrap_err();
    assert_eq!((error.kind(), error.culprit()), (ErrorKind::Timeout, Some(1)), "{error}");
    assert!(error.message().contains("rank 1 of group"), "{error}");
    {
        let sends = &fake.posted.lock().unwrap().sends;
        assert_eq!(sends.len(), WINDOW);
        // They do not expire with the parent's operations.
        let never = Deadline::never().allowed();
        assert!(sends.iter().all(|(send, _)| send.deadline.allowed() == never));
    }
    mailbox.open();
    assert_eq!(fake.posted.lock().unwrap().sends.len(), 0);
    // What lies there of a letter that was given up does not keep others from coming.
    assert_eq!(mailbox.take(&ID), None);
    let sent = mailbox.send(&group, &[1], &ID, &letter, &long()).unwrap();
    mailbox.await_gone(&group, &sent, &long()).unwrap();
    assert_eq!(mailbox.take(&ID), Some((0, letter)));
}

#[test]
fn a_writer_waits_while_too_much_is_outstanding() {
    let (mailbox, group, fake) = mailbox();
    mailbox.open();
    fake.is_full.store(true, Ordering::Release);
    let error = mailbox.send(&group, &[1], &ID, &part(1), &soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| mailbox.send(&group, &[1], &ID, &part(1), &long()));
        fake.is_full.store(false, Ordering::Release);
        assert!(writer.join().unwrap().is_ok());
    });
    assert_eq!(next(&mailbox, &group, &long()).unwrap(), Some((0, part(1))));
}

#[test]
fn a_mailbox_that_could_not_listen_tries_again() {
    let (mailbox, group, fake) = mailbox();
    fake.is_full.store(true, Ordering::Release);
    mailbox.open();
    let error = next(&mailbox, &group, &soon()).unwrap_err();
    assert_eq!((error.kind(), receives(&fake)), (ErrorKind::OutOfMemory, 0));
    fake.is_full.store(false, Ordering::Release);
    drop(mailbox.send(&group, &[1], &ID, &part(1), &long()).unwrap());
    assert_eq!(next(&mailbox, &group, &long()).unwrap(), Some((0, part(1))));
    assert_eq!(receives(&fake), 1);
}

#[test]
fn a_rank_that_leaves_in_the_middle_of_a_letter_does_not_keep_others_from_writing() {
    let (mailbox, group, fake) = mailbox();
    mailbox.open();
    for kind in [ErrorKind::PeerFailed, ErrorKind::Connection] {
        end_receive(&fake, kind);
        assert_eq!(receives(&fake), 1);
    }
    // What is no better the next time is told, and tried again only by whoever makes the next
    // group.
    end_receive(&fake, ErrorKind::Mismatch);
    assert_eq!(receives(&fake), 0);
    assert_eq!(next(&mailbox, &group, &long()).unwrap_err().kind(), ErrorKind::Mismatch);
    mailbox.open();
    mailbox.open();
    assert_eq!(receives(&fake), 1);
    assert_eq!(next(&mailbox, &group, &soon()).unwrap(), None);
}

#[test]
fn nothing_is_listened_for_once_the_group_has_failed() {
    let (mailbox, group, fake) = mailbox();
    mailbox.open();
    fake.abort(&Error::new(ErrorKind::Aborted, "the end"));
    end_receive(&fake, ErrorKind::PeerFailed);
    assert_eq!(receives(&fake), 0);
    assert_eq!(next(&mailbox, &group, &long()).unwrap_err().kind(), ErrorKind::Aborted);
}
