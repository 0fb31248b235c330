//! Device launches: the operations of a batch that run on devices are enqueued on the devices
//! together, for all groups of the batch.
//!
//! One thread may use the groups of several ranks, each with its own device, and several groups may
//! share a stream. If the thread enqueued the operations one after the other, an operation could
//! wait for another operation that the same thread enqueues later. Therefore the operations are
//! divided into group batches (the operations of one group and rank). The group batches are passed
//! to their back ends together ([`enqueue`]), in the order of the groups' ids and ranks. This order
//! is equal on all ranks.
//!
//! # Turns
//! A group batch with collectives takes a ticket, that is, a place in its group's queue, and gets
//! its turn when all earlier tickets have ended. The batch is enqueued when all its tickets have
//! their turns. A lock (`TICKET_ORDER`) makes sure that only one thread at a time takes tickets in
//! several queues. So if two batches share queues, the same batch is first in all of them, and no
//! batch waits for a turn of a batch that waits for it. Messages need no turn.
//!
//! The call that enqueues an operation with NCCL may block until other ranks enqueue it. So the
//! thread that calls it matters. There are two cases:
//! * If the caller will wait for the operations and all queues are idle, the caller's thread takes
//!   all turns and enqueues the operations.
//! * Otherwise the group batches become jobs in the queues, and the thread that gets the last turn
//!   enqueues all of them ([`joint_enqueue`]). If all queues were idle, the caller waits for at
//!   most 100 ms (`ENQUEUE_WAIT`) until the operations are on their streams. Then device work that
//!   the caller enqueues after this call comes after them.
//!
//! This module does not depend on how a batch collects its calls or on NCCL.

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

/// The maximum time for which a caller that will not wait for the end of the operations waits until
/// the operations are on their streams.
const ENQUEUE_WAIT: Duration = Duration::from_millis(100);

/// The poll interval of the wait with the limit `ENQUEUE_WAIT`.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Enqueues the calls together. If a call cannot be enqueued, its work ends with the error.
/// `is_awaited` is true if the calling thread will wait for the end of the calls.
pub(super) fn launch(calls: Vec<DeviceCall>, is_awaited: bool) {
    let mut group_batches: BTreeMap<_, GroupBatch> = BTreeMap::new();
    for call in calls {
        let key = (call.group.id().0, call.group.rank());
        let group_batch = group_batches.entry(key).or_insert_with(|| GroupBatch::new(&call.group));
        group_batch.add(call);
    }
    let ready: Vec<GroupBatch> =
        group_batches.into_values().filter_map(GroupBatch::count_works).collect();
    let mut with_turns =
        ready.iter().filter(|group_batch| group_batch.number_count() > 0).peekable();
    // If there are only messages, no group batch needs a turn, and there is no job that could
    // enqueue them. Then this thread enqueues them.
    let has_turns = with_turns.peek().is_some();
    let can_run_now = with_turns.all(|group_batch| group_batch.group().queue.is_idle());
    if !has_turns || is_awaited && can_run_now {
        return issue_on_this_thread(ready);
    }
    let works: Vec<Arc<Work>> = ready.iter().flat_map(GroupBatch::works).collect();
    joint_enqueue::enqueue_jointly(ready);
    if can_run_now {
        wait_until_enqueued(&works);
    }
}

/// Waits until the operations are on their streams or have failed, but at most for `ENQUEUE_WAIT`.
fn wait_until_enqueued(works: &[Arc<Work>]) {
    let limit = Deadline::after(ENQUEUE_WAIT);
    for work in works {
        while work.device_completion().get().is_none() && !work.is_done() && !limit.has_passed() {
            pause(POLL_INTERVAL, &limit);
        }
    }
}

/// Enqueues the group batches on this thread. The queues were idle, so this thread waits only for
/// the turns of threads that have issued operations at the same time.
fn issue_on_this_thread(mut group_batches: Vec<GroupBatch>) {
    let mut tickets: Vec<Option<Ticket>> = Vec::with_capacity(group_batches.len());
    take_tickets(group_batches.len() > 1, || {
        let ticket = |group_batch: &GroupBatch| match group_batch.number_count() {
            0 => None,
            turns => Some(group_batch.group().queue.issue_several(turns)),
        };
        tickets.extend(group_batches.iter().map(ticket));
    });
    let groups: Vec<Arc<Group>> =
        group_batches.iter().map(|group_batch| Arc::clone(group_batch.group())).collect();
    let mut outcomes: Vec<Result<()>> = Vec::with_capacity(group_batches.len());
    let mut turns: Vec<Option<Turn<'_>>> = Vec::with_capacity(group_batches.len());
    for ((group_batch, ticket), group) in group_batches.iter_mut().zip(&tickets).zip(&groups) {
        group_batch.mark_issued(ticket.as_ref().map_or(0, Ticket::sequence));
        let Some(ticket) = ticket else {
            outcomes.push(Ok(()));
            turns.push(None);
            continue;
        };
        let deadline = LazyDeadline::from(*group_batch.deadline());
        let turn = group.queue.wait_turn(ticket, &deadline, || group.failure());
        let turn = turn.map_err(|interrupt| match interrupt {
            WaitInterrupt::Aborted(error) => error,
            WaitInterrupt::Deadline => group_batch.expire(),
        });
        outcomes.push(turn.as_ref().map(drop).map_err(Clone::clone));
        turns.push(turn.ok());
    }
    let runnable = group_batches.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
    let enqueued =
        enqueue_group_batches(&runnable.map(|(group_batch, _)| group_batch).collect::<Vec<_>>());
    let begun = outcomes.iter_mut().filter(|outcome| outcome.is_ok());
    begun.zip(enqueued).for_each(|(outcome, enqueued)| *outcome = enqueued);
    for ((group_batch, turn), outcome) in group_batches.into_iter().zip(turns).zip(outcomes) {
        group_batch.finish(&outcome, turn);
    }
}
