//! The enqueue of several group batches on this thread, and the order in which threads take tickets
//! for them.
//!
//! The group batches hold their turns. Their arrival checks come first, because an enqueued
//! operation may wait for the other ranks.

use super::group_batch::GroupBatch;
use crate::backend::{DeviceBatch, Operation, enqueue_batches};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, Result};
use crate::base::sync::lock;
use crate::process::thread;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Locked while a thread takes tickets in several queues.
static TICKET_ORDER: Mutex<()> = Mutex::new(());

/// The time after the deadline in which the other ranks may still report that a rank is late.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Takes tickets with `take_all`. If it takes tickets in several queues, the order lock is held.
pub(super) fn take_tickets(several: bool, take_all: impl FnOnce()) {
    let order = several.then(|| lock(&TICKET_ORDER));
    take_all();
    drop(order);
}

/// Enqueues group batches that hold their turns.
pub(super) fn enqueue_group_batches(parts: &[&GroupBatch]) -> Vec<Result<()>> {
    let mut outcomes = wait_for_arrivals(parts);
    let deadlines: Vec<LazyDeadline> =
        parts.iter().map(|part| LazyDeadline::from(*part.deadline())).collect();
    let operations: Vec<Vec<Operation<'_>>> =
        parts.iter().zip(&deadlines).map(|(part, deadline)| part.operations(deadline)).collect();
    let messages: Vec<_> = parts.iter().map(|part| part.messages()).collect();
    let mut bundles = Vec::with_capacity(parts.len());
    for (index, part) in
        parts.iter().enumerate().filter(|&(position, _)| outcomes[position].is_ok())
    {
        if let Some(enqueuer) = part.enqueuer() {
            let (operations, messages) = (&operations[index][..], &messages[index][..]);
            bundles.push(DeviceBatch { enqueuer, operations, messages, deadline: part.deadline() });
        }
    }
    let enqueued = catch_unwind(AssertUnwindSafe(|| enqueue_batches(&bundles)));
    let mut done = enqueued.unwrap_or_else(|_| vec![Err(panic_error()); bundles.len()]).into_iter();
    for (part, outcome) in parts.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_ok()) {
        *outcome = done.next().unwrap_or_else(|| Err(panic_error()));
        if let Err(error) = outcome {
            // The back end has already reported most errors to the other ranks.
            part.group().fail(error);
        }
    }
    outcomes
}

fn panic_error() -> Error {
    Error::internal("a defect in libdist, please report it: a panic while operations were enqueued")
}

/// Runs the arrival checks of the groups that have them. Several checks run on separate threads:
/// this process may have several ranks of one group.
fn wait_for_arrivals(parts: &[&GroupBatch]) -> Vec<Result<()>> {
    let wanted = parts.iter().filter(|part| part.group().has_arrival_check).count();
    match wanted {
        0 => return parts.iter().map(|_| Ok(())).collect(),
        1 => {
            let check = |part: &&GroupBatch| part.arrival_check().map_or(Ok(()), |look| look());
            return parts.iter().map(check).collect();
        }
        _ => {}
    }
    let outcomes: Arc<Vec<Mutex<Option<Result<()>>>>> =
        Arc::new(parts.iter().map(|_| Mutex::new(None)).collect());
    let (left, doorbell) = (Arc::new(AtomicUsize::new(parts.len())), Arc::<Doorbell>::default());
    for (index, part) in parts.iter().enumerate() {
        let (outcomes, left, doorbell) =
            (Arc::clone(&outcomes), Arc::clone(&left), Arc::clone(&doorbell));
        let done = move |outcome: Result<()>| {
            *lock(&outcomes[index]) = Some(outcome);
            left.fetch_sub(1, Ordering::AcqRel);
            doorbell.notify();
        };
        let Some(check) = part.arrival_check() else {
            done(Ok(()));
            continue;
        };
        let failed = done.clone();
        if let Err(error) = thread::start("dist-presence", move || done(check())) {
            part.group().fail(&error);
            failed(Err(error));
        }
    }
    // Each check has its own deadline. This limit is later than all of them.
    let longest = parts.iter().map(|part| part.deadline().remaining()).max().unwrap_or_default();
    let limit = Deadline::after(longest.saturating_add(GRACE_PERIOD));
    let ended = || (left.load(Ordering::Acquire) == 0).then_some(());
    let all = wait_until(&doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, ended).is_ok();
    let outcome = |slot: &Mutex<Option<Result<()>>>| {
        let taken = lock(slot).take();
        taken
            .unwrap_or_else(|| Err(if all { panic_error() } else { arrival_check_timeout_error() }))
    };
    outcomes.iter().map(outcome).collect()
}

fn arrival_check_timeout_error() -> Error {
    Error::internal("an arrival check did not end at its deadline")
}
