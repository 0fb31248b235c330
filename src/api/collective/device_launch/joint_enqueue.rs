//! The joint enqueue of a batch whose groups have earlier operations in their queues.
//!
//! Each group batch is a job of its group's queue. The job keeps its turn until the jobs of all
//! group batches have theirs. Then one of the threads enqueues for all and returns the batches to
//! their jobs:
//!
//! ```text
//! AwaitingTurn -> Ready -> Enqueuing -> Returned -> (finished)
//!       |           |
//!       +-----------+---> Withdrawn   (failure or deadline before the enqueue)
//! ```
//!
//! The thread that runs such a job waits in it, so the group's failure and the deadline end the job
//! like any other. No two batches wait for each other (see [`super`]). Each queue has its own
//! worker, so no job waits for a thread.

use super::enqueue::{enqueue_group_batches, take_tickets};
use super::group_batch::{GroupBatch, abandon_works};
use crate::api::group::process_group::Group;
use crate::api::work::queue::{QueueJob, Turn};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::sync::lock;
use crate::process::thread;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitInterrupt, WaitPolicy, wait_until};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The time for which a thread with a failed group batch waits for the enqueuing thread, which
/// checks the same failure.
const ENQUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of a group batch.
#[derive(Debug)]
enum GroupBatchState {
    /// It waits for its turn.
    AwaitingTurn,
    /// It holds its turn, or needs none, and waits for the other group batches.
    Ready(GroupBatch),
    /// A thread is enqueuing it.
    Enqueuing,
    /// It was enqueued, or failed with this error.
    Returned(GroupBatch, Result<()>),
    /// It no longer takes part.
    Withdrawn,
}

/// All group batches of one joint enqueue.
#[derive(Debug)]
struct JointEnqueue {
    states: Mutex<Vec<GroupBatchState>>,
    doorbell: Doorbell,
}

/// The queue job of a group batch. It owns the group batch until its turn.
#[derive(Debug)]
struct JointEnqueueJob {
    joint: Arc<JointEnqueue>,
    index: usize,
    group_batch: GroupBatch,
}

/// The next step of a thread with a group batch.
enum JointStep {
    /// All group batches are ready, and this thread enqueues them.
    Enqueue(Vec<(usize, GroupBatch)>),
    Finish(GroupBatch, Result<()>),
}

/// Puts the group batches into their queues. If a group batch cannot be queued, its works end with
/// the reason.
pub(super) fn enqueue_jointly(parts: Vec<GroupBatch>) {
    let states = parts.iter().map(|_| GroupBatchState::AwaitingTurn).collect();
    let joint =
        Arc::new(JointEnqueue { states: Mutex::new(states), doorbell: Doorbell::default() });
    let (mut queued, mut idle) = (Vec::with_capacity(parts.len()), Vec::new());
    for (index, part) in parts.into_iter().enumerate() {
        if part.number_count() > 0 { queued.push((index, part)) } else { idle.push((index, part)) }
    }
    // Group batches without a turn are set first, so that the last thread that withdraws finds
    // them.
    for (index, mut part) in idle {
        // Messages wait for no turn. The enqueuing thread ends their works.
        part.mark_issued(0);
        joint.set_state(index, GroupBatchState::Ready(part));
    }
    take_tickets(queued.len() > 1, || {
        queued.into_iter().for_each(|(index, part)| joint.enqueue(index, part));
    });
}

impl JointEnqueue {
    fn enqueue(self: &Arc<Self>, index: usize, mut group_batch: GroupBatch) {
        let (group, works) = (Arc::clone(group_batch.group()), group_batch.works());
        let joint = Arc::clone(self);
        let enqueued = group.queue.enqueue(group_batch.number_count(), move |ticket| {
            group_batch.mark_issued(ticket.sequence());
            Box::new(JointEnqueueJob { joint, index, group_batch })
        });
        if let Err(error) = enqueued {
            self.withdraw_index(index);
            abandon_works(&group, &works, works.len(), &error);
        }
    }

    fn lock_states(&self) -> MutexGuard<'_, Vec<GroupBatchState>> {
        lock(&self.states)
    }

    fn set_state(&self, index: usize, state: GroupBatchState) {
        self.lock_states()[index] = state;
        self.doorbell.notify();
    }

    /// Withdraws a group batch. If only group batches without a turn are left, a new thread
    /// enqueues them: the calling thread may be any thread and must not block.
    fn withdraw_index(self: &Arc<Self>, index: usize) {
        let mut states = self.lock_states();
        states[index] = GroupBatchState::Withdrawn;
        let is_left = |state: &GroupBatchState| match state {
            GroupBatchState::Withdrawn => true,
            GroupBatchState::Ready(part) => part.number_count() == 0,
            _ => false,
        };
        let left = match states.iter().all(is_left) {
            true => take_ready(&mut states),
            false => Vec::new(),
        };
        drop(states);
        self.doorbell.notify();
        if left.is_empty() {
            return;
        }
        let joint = Arc::clone(self);
        let parts: Vec<_> =
            left.iter().map(|(_, part)| (Arc::clone(part.group()), part.works())).collect();
        if let Err(error) = thread::start("dist-launch", move || joint.enqueue_all(left)) {
            for (group, works) in parts {
                group.fail(&error);
                works.iter().for_each(|work| work.end(Err(error.clone())));
            }
        }
    }

    /// Returns the next step for a group batch, if there is one.
    fn next_step(&self, own_index: usize, can_enqueue: bool) -> Option<JointStep> {
        let mut states = self.lock_states();
        if let GroupBatchState::Returned(..) = states[own_index]
            && let GroupBatchState::Returned(part, outcome) =
                std::mem::replace(&mut states[own_index], GroupBatchState::Withdrawn)
        {
            return Some(JointStep::Finish(part, outcome));
        }
        let is_ready = |state: &GroupBatchState| {
            matches!(state, GroupBatchState::Ready(_) | GroupBatchState::Withdrawn)
        };
        let is_here = can_enqueue && matches!(states[own_index], GroupBatchState::Ready(_));
        if !is_here || !states.iter().all(is_ready) {
            return None;
        }
        Some(JointStep::Enqueue(take_ready(&mut states)))
    }

    /// Takes a group batch back if no thread has started to enqueue it.
    fn take_unenqueued(self: &Arc<Self>, own_index: usize) -> Option<GroupBatch> {
        let mut states = self.lock_states();
        let taken = std::mem::replace(&mut states[own_index], GroupBatchState::Withdrawn);
        let GroupBatchState::Ready(part) = taken else {
            states[own_index] = taken;
            return None;
        };
        drop(states);
        self.withdraw_index(own_index);
        Some(part)
    }

    /// Enqueues all group batches and returns each to its job.
    fn enqueue_all(&self, parts: Vec<(usize, GroupBatch)>) {
        let parts = self.return_failed(parts);
        let outcomes =
            enqueue_group_batches(&parts.iter().map(|(_, part)| part).collect::<Vec<_>>());
        let mut messages = Vec::new();
        let mut states = self.lock_states();
        for ((index, part), outcome) in parts.into_iter().zip(outcomes) {
            if part.number_count() == 0 {
                states[index] = GroupBatchState::Withdrawn;
                messages.push((part, outcome));
            } else {
                states[index] = GroupBatchState::Returned(part, outcome);
            }
        }
        drop(states);
        self.doorbell.notify();
        messages.into_iter().for_each(|(part, outcome)| part.finish(&outcome, None));
    }

    /// Returns the group batches of failed groups to their jobs, before the enqueue waits for
    /// anything.
    fn return_failed(&self, parts: Vec<(usize, GroupBatch)>) -> Vec<(usize, GroupBatch)> {
        let mut left = Vec::with_capacity(parts.len());
        let mut states = self.lock_states();
        for (index, part) in parts {
            match part.group().failure().filter(|_| part.number_count() > 0) {
                Some(failure) => states[index] = GroupBatchState::Returned(part, Err(failure)),
                None => left.push((index, part)),
            }
        }
        drop(states);
        self.doorbell.notify();
        left
    }

    /// Waits with a ready group batch until it is enqueued.
    fn wait_until_enqueued(
        self: &Arc<Self>,
        own_index: usize,
        group: &Group,
        deadline: &Deadline,
    ) -> (GroupBatch, Result<()>) {
        loop {
            // The enqueue may wait for other ranks. A thread whose group has failed must not wait
            // for them.
            let step = || self.next_step(own_index, group.failure().is_none());
            let interrupt = match wait_until(
                &self.doorbell,
                WaitPolicy::SLEEP_SOON,
                deadline,
                || group.failure(),
                step,
            ) {
                Ok(JointStep::Enqueue(parts)) => {
                    self.enqueue_all(parts);
                    continue;
                }
                Ok(JointStep::Finish(part, outcome)) => return (part, outcome),
                Err(interrupt) => interrupt,
            };
            if let Some(part) = self.take_unenqueued(own_index) {
                let error = match interrupt {
                    WaitInterrupt::Aborted(error) => error,
                    WaitInterrupt::Deadline => part.expire(),
                };
                return (part, Err(error));
            }
            // Another thread is enqueuing it, and the same failure or deadline ends that.
            let limit = Deadline::after(ENQUEUE_TIMEOUT);
            let is_returned = || {
                matches!(self.lock_states()[own_index], GroupBatchState::Returned(..)).then_some(())
            };
            if wait_until(&self.doorbell, WaitPolicy::SLEEP_SOON, &limit, || None, is_returned)
                .is_err()
            {
                crate::log!(
                    crate::base::log::LogLevel::Error,
                    "{} has failed, but some of its operations are still being enqueued",
                    group.describe_rank()
                );
            }
        }
    }
}

/// Takes all ready group batches and marks them as being enqueued.
fn take_ready(states: &mut [GroupBatchState]) -> Vec<(usize, GroupBatch)> {
    let mut all = Vec::with_capacity(states.len());
    for (index, slot) in states.iter_mut().enumerate() {
        match std::mem::replace(slot, GroupBatchState::Enqueuing) {
            GroupBatchState::Ready(part) => all.push((index, part)),
            other => *slot = other,
        }
    }
    all
}

impl QueueJob for JointEnqueueJob {
    fn deadline(&self) -> &Deadline {
        self.group_batch.deadline()
    }

    fn failure(&self) -> Option<Error> {
        self.group_batch.group().failure()
    }

    fn run(self: Box<Self>, turn: Turn<'_>) {
        let Self { joint, index, group_batch } = *self;
        let (group, deadline) = (Arc::clone(group_batch.group()), *group_batch.deadline());
        joint.set_state(index, GroupBatchState::Ready(group_batch));
        let (part, outcome) = joint.wait_until_enqueued(index, &group, &deadline);
        drop(group);
        part.finish(&outcome, Some(turn));
    }

    fn expire(self: Box<Self>) {
        let error = self.group_batch.expire();
        self.fail(&error);
    }

    fn fail(self: Box<Self>, cause: &Error) {
        let Self { joint, index, group_batch } = *self;
        joint.withdraw_index(index);
        group_batch.finish(&Err(cause.clone()), None);
    }
}
