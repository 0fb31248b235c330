//! Device launches: the operations of one batch that are enqueued on devices, over all their
//! groups, are enqueued jointly.
//!
//! One thread may have the groups of several ranks, each with its own device, and several groups
//! may share a stream. If they were enqueued one after the other, each could wait for another one
//! that the same thread enqueues later. Therefore they are passed to their back ends together
//! ([`enqueue_batches`]), in the order of the groups' ids and ranks, which is equal on all ranks.
//!
//! # Turns
//! Collectives take tickets in the queues of all their groups, and are enqueued when the turns of
//! all these tickets have begun. Only one thread at a time takes tickets in several queues
//! ([`TICKET_ORDER`]). Of two batches, the same one is first in all queues that they share, so
//! neither waits for a turn that the other holds. Messages have no turn.
//!
//! Until NCCL has launched an operation, it may wait for other ranks. There are two cases:
//! * If the caller waits for the operations and the queues are idle, the caller enqueues on its own
//!   thread and holds all the turns.
//! * Otherwise the operations become jobs of the queues, and the thread that gets the last turn
//!   enqueues them ([`joint_enqueue`]). If the queues were idle, the caller waits up to 100 ms
//!   (`ENQUEUE_WAIT`) for that, so that the operations are on their streams in program order.
//!
//! This module does not depend on the collection of a batch or on NCCL.

mod group_batch;
mod joint_enqueue;

use super::group::Group;
use super::issue::PreparedCall;
use super::queue::{Ticket, Turn};
use super::work::Work;
use crate::backend::{DeviceBatch, Operation, enqueue_batches};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, Result};
use crate::base::sync::lock;
use crate::process::thread;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitInterrupt, WaitPolicy, pause, wait_until};
use group_batch::GroupBatch;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Locked while a thread takes tickets in several queues.
static TICKET_ORDER: Mutex<()> = Mutex::new(());

/// The maximum time for which a caller that does not await the operations waits until they are in
/// their streams.
const ENQUEUE_WAIT: Duration = Duration::from_millis(100);

/// The poll interval of that wait.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// The time after the deadline in which the other ranks may still report that a rank is late.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Issues enqueued calls jointly. If a call cannot be enqueued, its work ends with the reason.
/// `is_awaited` is true if the caller waits for the calls.
pub(super) fn issue_on_devices(calls: Vec<PreparedCall>, is_awaited: bool) {
    let mut group_batches: BTreeMap<_, GroupBatch> = BTreeMap::new();
    for call in calls {
        let group = call.group();
        let key = (group.id().0, group.rank());
        let part = group_batches.entry(key).or_insert_with(|| GroupBatch::new(group));
        part.add(call);
    }
    let ready: Vec<GroupBatch> =
        group_batches.into_values().filter_map(GroupBatch::count_works).collect();
    let mut with_turns = ready.iter().filter(|part| part.number_count() > 0).peekable();
    // A batch with only messages has no queue in which it could be a job.
    let has_turns = with_turns.peek().is_some();
    let can_run_now = with_turns.all(|part| part.group().queue.is_idle());
    if !has_turns || is_awaited && can_run_now {
        return issue_on_this_thread(ready);
    }
    let works: Vec<Arc<Work>> = ready.iter().flat_map(GroupBatch::works).collect();
    joint_enqueue::enqueue_jointly(ready);
    if can_run_now {
        wait_until_enqueued(&works);
    }
}

/// Waits up to `ENQUEUE_WAIT` until the operations are in their streams.
fn wait_until_enqueued(works: &[Arc<Work>]) {
    let limit = Deadline::after(ENQUEUE_WAIT);
    for work in works {
        while work.device_completion().get().is_none() && !work.is_done() && !limit.has_passed() {
            pause(POLL_INTERVAL, &limit);
        }
    }
}

/// Takes tickets with `take_all`. If it takes tickets in several queues, the order lock is held.
fn take_tickets(several: bool, take_all: impl FnOnce()) {
    let order = several.then(|| lock(&TICKET_ORDER));
    take_all();
    drop(order);
}

/// Enqueues on this thread. It waits only for the turns of threads that issued concurrently.
fn issue_on_this_thread(mut parts: Vec<GroupBatch>) {
    let mut tickets: Vec<Option<Ticket>> = Vec::with_capacity(parts.len());
    take_tickets(parts.len() > 1, || {
        let ticket = |part: &GroupBatch| match part.number_count() {
            0 => None,
            turns => Some(part.group().queue.issue_several(turns)),
        };
        tickets.extend(parts.iter().map(ticket));
    });
    let groups: Vec<Arc<Group>> = parts.iter().map(|part| Arc::clone(part.group())).collect();
    let mut outcomes: Vec<Result<()>> = Vec::with_capacity(parts.len());
    let mut turns: Vec<Option<Turn<'_>>> = Vec::with_capacity(parts.len());
    for ((part, ticket), group) in parts.iter_mut().zip(&tickets).zip(&groups) {
        part.mark_issued(ticket.as_ref().map_or(0, Ticket::sequence));
        let Some(ticket) = ticket else {
            outcomes.push(Ok(()));
            turns.push(None);
            continue;
        };
        let deadline = LazyDeadline::from(*part.deadline());
        let turn = group.queue.wait_turn(ticket, &deadline, || group.failure());
        let turn = turn.map_err(|interrupt| match interrupt {
            WaitInterrupt::Aborted(error) => error,
            WaitInterrupt::Deadline => part.expire(),
        });
        outcomes.push(turn.as_ref().map(drop).map_err(Clone::clone));
        turns.push(turn.ok());
    }
    let runnable = parts.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
    let enqueued = enqueue_group_batches(&runnable.map(|(part, _)| part).collect::<Vec<_>>());
    let begun = outcomes.iter_mut().filter(|outcome| outcome.is_ok());
    begun.zip(enqueued).for_each(|(outcome, enqueued)| *outcome = enqueued);
    for ((part, turn), outcome) in parts.into_iter().zip(turns).zip(outcomes) {
        part.finish(&outcome, turn);
    }
}

/// Enqueues group batches that hold their turns.
fn enqueue_group_batches(parts: &[&GroupBatch]) -> Vec<Result<()>> {
    let mut outcomes = wait_for_arrivals(parts);
    let deadlines: Vec<LazyDeadline> =
        parts.iter().map(|part| LazyDeadline::from(*part.deadline())).collect();
    let operations: Vec<Vec<Operation<'_>>> =
        parts.iter().zip(&deadlines).map(|(part, deadline)| part.operations(deadline)).collect();
    let mut messages = Vec::with_capacity(parts.len());
    for (part, outcome) in parts.iter().zip(&mut outcomes) {
        let described = part.messages();
        if let (Ok(()), Err(error)) = (&outcome, &described) {
            *outcome = Err(error.clone());
        }
        messages.push(described.unwrap_or_default());
    }
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
