//! Device launches: the operations of one batch that are enqueued on devices, over all their
//! groups, are enqueued jointly.
//!
//! One thread may have the groups of several ranks, each with its own device, and several groups
//! may share a stream. If they were enqueued one after the other, each could wait for another one
//! that the same thread enqueues later. Therefore they are passed to their back ends together
//! ([`enqueue`]), in the order of the groups' ids and ranks, which is equal on all ranks.
//!
//! # Turns
//! Collectives take tickets in the queues of all their groups, and are enqueued when the turns of
//! all these tickets have begun. Only one thread at a time takes tickets in several queues
//! (`TICKET_ORDER`). Of two batches, the same one is first in all queues that they share, so
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

mod enqueue;
mod group_batch;
mod joint_enqueue;

pub(super) use group_batch::{DeviceCall, DeviceOperation};

use crate::api::group::process_group::Group;
use crate::api::work::handle::Work;
use crate::api::work::queue::{Ticket, Turn};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::Result;
use crate::wait::{WaitInterrupt, pause};
use enqueue::{enqueue_group_batches, take_tickets};
use group_batch::GroupBatch;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The maximum time for which a caller that does not await the operations waits until they are in
/// their streams.
const ENQUEUE_WAIT: Duration = Duration::from_millis(100);

/// The poll interval of that wait.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Enqueues calls jointly. If a call cannot be enqueued, its work ends with the reason.
/// `is_awaited` is true if the caller waits for the calls.
pub(super) fn launch(calls: Vec<DeviceCall>, is_awaited: bool) {
    let mut group_batches: BTreeMap<_, GroupBatch> = BTreeMap::new();
    for call in calls {
        let key = (call.group.id().0, call.group.rank());
        let part = group_batches.entry(key).or_insert_with(|| GroupBatch::new(&call.group));
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
