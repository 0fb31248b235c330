//! The joint enqueue: the way to enqueue a batch on devices if the caller does not wait for it, or
//! if groups have earlier operations in their queues.
//!
//! A group batch has the operations of one group. Each group batch with collectives becomes a job
//! in its group's queue. When the job gets its turn, it keeps the turn until the jobs of all group
//! batches have their turns. Then one of the waiting threads enqueues all group batches and returns
//! each to its job. The states of a group batch are:
//!
//! ```text
//! AwaitingTurn -> Ready -> Enqueuing -> Returned -> (finished)
//!       |           |
//!       +-----------+---> Withdrawn   (failure or deadline before the enqueue)
//! ```
//!
//! The thread that runs a job waits for the other group batches inside the job. The wait ends if
//! the group fails or the deadline passes, as in any other job. Two joint enqueues cannot wait for
//! each other's turns, because tickets are taken in a common order (see [`super`]). Each queue has
//! a worker thread of its own, so no job must wait for a free thread.

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

/// If a group fails or its deadline passes while another thread enqueues its group batch: the
/// interval at which the waiting thread logs an error. Normally the enqueuing thread detects the
/// same failure and returns the group batch earlier.
const ENQUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of a group batch in a joint enqueue.
#[derive(Debug)]
enum GroupBatchState {
    /// The group batch waits for its turn.
    AwaitingTurn,
    /// The group batch waits for the other group batches. Its turn has begun, or it needs no turn.
    Ready(GroupBatch),
    /// A thread is enqueuing the group batch.
    Enqueuing,
    /// The group batch was enqueued, or failed with this error. The job of the group batch can
    /// finish it.
    Returned(GroupBatch, Result<()>),
    /// The group batch no longer takes part: it has finished, or it has failed before the enqueue.
    Withdrawn,
}

/// All group batches of one joint enqueue.
#[derive(Debug)]
struct JointEnqueue {
    states: Mutex<Vec<GroupBatchState>>,
    doorbell: Doorbell,
}

/// The job of a group batch in the group's queue. The job owns the group batch until it gets its
/// turn.
#[derive(Debug)]
struct JointEnqueueJob {
    joint: Arc<JointEnqueue>,
    index: usize,
    group_batch: GroupBatch,
}

/// The next step of a thread that runs a job.
enum JointStep {
    /// All group batches are ready, and this thread enqueues them.
    Enqueue(Vec<(usize, GroupBatch)>),
    /// The job's group batch was returned, and this thread ends its works.
    Finish(GroupBatch, Result<()>),
}

/// Puts the group batches into their queues. If a group batch cannot be queued, its works end with
/// the error.
pub(super) fn enqueue_jointly(group_batches: Vec<GroupBatch>) {
    let states = group_batches.iter().map(|_| GroupBatchState::AwaitingTurn).collect();
    let joint =
        Arc::new(JointEnqueue { states: Mutex::new(states), doorbell: Doorbell::default() });
    let (mut queued, mut idle) = (Vec::with_capacity(group_batches.len()), Vec::new());
    for (index, group_batch) in group_batches.into_iter().enumerate() {
        if group_batch.number_count() > 0 {
            queued.push((index, group_batch))
        } else {
            idle.push((index, group_batch))
        }
    }
    // Group batches that need no turn become ready first. If all jobs then fail, the thread that
    // withdraws the last of them finds these group batches and starts their enqueue.
    for (index, mut group_batch) in idle {
        // A group batch with only messages needs no turn and has no job. The enqueuing thread ends
        // its works.
        group_batch.mark_issued(0);
        joint.set_state(index, GroupBatchState::Ready(group_batch));
    }
    take_tickets(queued.len() > 1, || {
        queued.into_iter().for_each(|(index, group_batch)| joint.enqueue(index, group_batch));
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
    /// enqueues them. The calling thread cannot do this: it may be any thread and must not block.
    fn withdraw_index(self: &Arc<Self>, index: usize) {
        let mut states = self.lock_states();
        states[index] = GroupBatchState::Withdrawn;
        let is_left = |state: &GroupBatchState| match state {
            GroupBatchState::Withdrawn => true,
            GroupBatchState::Ready(group_batch) => group_batch.number_count() == 0,
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
        let group_batches: Vec<_> = left
            .iter()
            .map(|(_, group_batch)| (Arc::clone(group_batch.group()), group_batch.works()))
            .collect();
        if let Err(error) = thread::start("dist-launch", move || joint.enqueue_all(left)) {
            for (group, works) in group_batches {
                group.fail(&error);
                works.iter().for_each(|work| work.end(Err(error.clone())));
            }
        }
    }

    /// Returns the next step for the job of group batch `own_index`, or `None` if the job must
    /// wait. `can_enqueue` is false if this thread must not enqueue.
    fn next_step(&self, own_index: usize, can_enqueue: bool) -> Option<JointStep> {
        let mut states = self.lock_states();
        if let GroupBatchState::Returned(..) = states[own_index]
            && let GroupBatchState::Returned(group_batch, outcome) =
                std::mem::replace(&mut states[own_index], GroupBatchState::Withdrawn)
        {
            return Some(JointStep::Finish(group_batch, outcome));
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

    /// Takes a group batch back and withdraws it, if no thread has started to enqueue it.
    fn take_unenqueued(self: &Arc<Self>, own_index: usize) -> Option<GroupBatch> {
        let mut states = self.lock_states();
        let taken = std::mem::replace(&mut states[own_index], GroupBatchState::Withdrawn);
        let GroupBatchState::Ready(group_batch) = taken else {
            states[own_index] = taken;
            return None;
        };
        drop(states);
        self.withdraw_index(own_index);
        Some(group_batch)
    }

    /// Enqueues these group batches and returns each to its job.
    fn enqueue_all(&self, group_batches: Vec<(usize, GroupBatch)>) {
        let group_batches = self.return_failed(group_batches);
        let outcomes = enqueue_group_batches(
            &group_batches.iter().map(|(_, group_batch)| group_batch).collect::<Vec<_>>(),
        );
        let mut messages = Vec::new();
        let mut states = self.lock_states();
        for ((index, group_batch), outcome) in group_batches.into_iter().zip(outcomes) {
            if group_batch.number_count() == 0 {
                states[index] = GroupBatchState::Withdrawn;
                messages.push((group_batch, outcome));
            } else {
                states[index] = GroupBatchState::Returned(group_batch, outcome);
            }
        }
        drop(states);
        self.doorbell.notify();
        messages.into_iter().for_each(|(group_batch, outcome)| group_batch.finish(&outcome, None));
    }

    /// Returns the group batches of failed groups to their jobs, before the enqueue of the other
    /// group batches may wait. The result has these other group batches.
    fn return_failed(&self, group_batches: Vec<(usize, GroupBatch)>) -> Vec<(usize, GroupBatch)> {
        let mut left = Vec::with_capacity(group_batches.len());
        let mut states = self.lock_states();
        for (index, group_batch) in group_batches {
            match group_batch.group().failure().filter(|_| group_batch.number_count() > 0) {
                Some(failure) => {
                    states[index] = GroupBatchState::Returned(group_batch, Err(failure))
                }
                None => left.push((index, group_batch)),
            }
        }
        drop(states);
        self.doorbell.notify();
        left
    }

    /// Waits until group batch `own_index`, which is ready, is enqueued. Enqueues all group batches
    /// if this thread is the first to see that all are ready.
    fn wait_until_enqueued(
        self: &Arc<Self>,
        own_index: usize,
        group: &Group,
        deadline: &Deadline,
    ) -> (GroupBatch, Result<()>) {
        loop {
            // The enqueue may wait for other ranks, and the thread of a failed group must not wait.
            // Therefore such a thread does not enqueue.
            let step = || self.next_step(own_index, group.failure().is_none());
            let interrupt = match wait_until(
                &self.doorbell,
                WaitPolicy::SLEEP_SOON,
                deadline,
                || group.failure(),
                step,
            ) {
                Ok(JointStep::Enqueue(group_batches)) => {
                    self.enqueue_all(group_batches);
                    continue;
                }
                Ok(JointStep::Finish(group_batch, outcome)) => return (group_batch, outcome),
                Err(interrupt) => interrupt,
            };
            if let Some(group_batch) = self.take_unenqueued(own_index) {
                let error = match interrupt {
                    WaitInterrupt::Aborted(error) => error,
                    WaitInterrupt::Deadline => group_batch.expire(),
                };
                return (group_batch, Err(error));
            }
            // Another thread is enqueuing this group batch. The same failure or deadline ends that
            // enqueue.
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

/// Takes all ready group batches and sets their state to `Enqueuing`.
fn take_ready(states: &mut [GroupBatchState]) -> Vec<(usize, GroupBatch)> {
    let mut all = Vec::with_capacity(states.len());
    for (index, slot) in states.iter_mut().enumerate() {
        match std::mem::replace(slot, GroupBatchState::Enqueuing) {
            GroupBatchState::Ready(group_batch) => all.push((index, group_batch)),
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
        let (group_batch, outcome) = joint.wait_until_enqueued(index, &group, &deadline);
        drop(group);
        group_batch.finish(&outcome, Some(turn));
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
