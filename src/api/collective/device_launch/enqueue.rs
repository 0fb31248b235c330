//! Enqueues several group batches on this thread. A group batch has the operations of one group.
//! This file also has the lock that orders threads that take tickets in several queues.
//!
//! The caller has the turns of all group batches. Arrival checks (debug checks that wait for all
//! ranks) run before the enqueue, because the enqueue of an operation may block until other ranks
//! enqueue it.

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

/// Locked while a thread takes tickets in the queues of several groups.
static TICKET_ORDER: Mutex<()> = Mutex::new(());

/// The time after the deadline for which the wait for the arrival checks continues, so that an
/// error of another rank that names a late rank can arrive.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Takes tickets with `take_all`. If `several` is true, `take_all` takes tickets in several queues,
/// and the lock `TICKET_ORDER` is held during the call.
pub(super) fn take_tickets(several: bool, take_all: impl FnOnce()) {
    let order = several.then(|| lock(&TICKET_ORDER));
    take_all();
    drop(order);
}

/// Enqueues the group batches. The caller has their turns. Returns the outcome of each.
pub(super) fn enqueue_group_batches(group_batches: &[&GroupBatch]) -> Vec<Result<()>> {
    let mut outcomes = wait_for_arrivals(group_batches);
    let deadlines: Vec<LazyDeadline> = group_batches
        .iter()
        .map(|group_batch| LazyDeadline::from(*group_batch.deadline()))
        .collect();
    let operations: Vec<Vec<Operation<'_>>> = group_batches
        .iter()
        .zip(&deadlines)
        .map(|(group_batch, deadline)| group_batch.operations(deadline))
        .collect();
    let messages: Vec<_> = group_batches.iter().map(|group_batch| group_batch.messages()).collect();
    let mut bundles = Vec::with_capacity(group_batches.len());
    for (index, group_batch) in
        group_batches.iter().enumerate().filter(|&(position, _)| outcomes[position].is_ok())
    {
        if let Some(enqueuer) = group_batch.enqueuer() {
            let (operations, messages) = (&operations[index][..], &messages[index][..]);
            bundles.push(DeviceBatch {
                enqueuer,
                operations,
                messages,
                deadline: group_batch.deadline(),
            });
        }
    }
    let enqueued = catch_unwind(AssertUnwindSafe(|| enqueue_batches(&bundles)));
    let mut done = enqueued.unwrap_or_else(|_| vec![Err(panic_error()); bundles.len()]).into_iter();
    for (group_batch, outcome) in
        group_batches.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_ok())
    {
        *outcome = done.next().unwrap_or_else(|| Err(panic_error()));
        if let Err(error) = outcome {
            // For most errors, the back end has already failed the group. Then this call has no
            // effect.
            group_batch.group().fail(error);
        }
    }
    outcomes
}

fn panic_error() -> Error {
    Error::internal("a defect in libdist, please report it: a panic while operations were enqueued")
}

/// Runs the arrival checks of the groups that have this check on. Several checks run concurrently,
/// each on its own thread. If they ran one after the other, they could deadlock, because this
/// process may have several ranks of the same group.
fn wait_for_arrivals(group_batches: &[&GroupBatch]) -> Vec<Result<()>> {
    let wanted =
        group_batches.iter().filter(|group_batch| group_batch.group().has_arrival_check).count();
    match wanted {
        0 => return group_batches.iter().map(|_| Ok(())).collect(),
        1 => {
            let check = |group_batch: &&GroupBatch| {
                group_batch.arrival_check().map_or(Ok(()), |run_check| run_check())
            };
            return group_batches.iter().map(check).collect();
        }
        _ => {}
    }
    let outcomes: Arc<Vec<Mutex<Option<Result<()>>>>> =
        Arc::new(group_batches.iter().map(|_| Mutex::new(None)).collect());
    let (left, doorbell) =
        (Arc::new(AtomicUsize::new(group_batches.len())), Arc::<Doorbell>::default());
    for (index, group_batch) in group_batches.iter().enumerate() {
        let (outcomes, left, doorbell) =
            (Arc::clone(&outcomes), Arc::clone(&left), Arc::clone(&doorbell));
        let done = move |outcome: Result<()>| {
            *lock(&outcomes[index]) = Some(outcome);
            left.fetch_sub(1, Ordering::AcqRel);
            doorbell.notify();
        };
        let Some(check) = group_batch.arrival_check() else {
            done(Ok(()));
            continue;
        };
        let failed = done.clone();
        if let Err(error) = thread::start("dist-presence", move || done(check())) {
            group_batch.group().fail(&error);
            failed(Err(error));
        }
    }
    // Each check ends at its own deadline. This limit is later than all these deadlines.
    let longest = group_batches
        .iter()
        .map(|group_batch| group_batch.deadline().remaining())
        .max()
        .unwrap_or_default();
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
