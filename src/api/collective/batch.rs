//! Batches: a thread collects several calls and then issues them together.
//!
//! Between [`begin`] and [`end`], each call of the thread is checked and collected.
//! [`Batch::issue`] then issues the calls in this order:
//! 1. operations that are enqueued on devices, all together
//!    ([`crate::api::collective::device_launch`]);
//! 2. receives;
//! 3. sends;
//! 4. collectives, in the order in which the program has called them, across all groups.
//!
//! With this order, the ranks cannot deadlock if they call sends and receives, or collectives of
//! several groups, in different orders. Small collectives of the same kind are fused to one
//! operation ([`crate::api::collective::fusion`]). No collective may use a buffer that another
//! collective of the batch writes ([`crate::api::collective::batch_overlap`]). Each call has a work
//! (the handle of an asynchronous operation), and the batch has a work of its own. The batch's work
//! ends when the works of all calls have ended. If several calls fail, it has the error of the
//! first of them, in the order of the calls.

use crate::api::collective::batch_overlap;
use crate::api::collective::fusion::{self, FusionCandidate};
use crate::api::collective::prepared_call::{self, PreparedCall};
use crate::api::group::process_group::Group;
use crate::api::work::handle::{Work, WorkKind};
use crate::api::work::queue::RunQueue;
use crate::api::work::work_outcome::CompletionAction;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::GroupId;
use crate::base::sync::lock;
use crate::process::thread::THREAD_FLAGS;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The maximum number of calls in a batch.
pub const MAX_BATCH_CALLS: usize = 65_536;

thread_local! {
    static BATCH: RefCell<Option<Batch>> = const { RefCell::new(None) };
}

/// The collected calls. If the batch is dropped before it is issued, the works of its calls end
/// with an error.
#[derive(Debug)]
pub struct Batch {
    /// The groups that the batch may use; `None` permits any group.
    groups: Option<Vec<GroupId>>,
    calls: Vec<PreparedCall>,
    work: Arc<Work>,
}

/// Counts the works of a batch's calls that have not ended. Ends the batch's work when the last of
/// them ends.
struct BatchCompletion {
    pending: AtomicUsize,
    /// The error of the failed call with the lowest index, and this index.
    first_error: Mutex<Option<(usize, Error)>>,
    work: Arc<Work>,
}

/// Returns true while the calling thread has an open batch.
#[inline]
pub fn is_open() -> bool {
    THREAD_FLAGS.with(|flags| flags.in_batch.get())
}

/// Opens a batch on the calling thread. The batch may use only the given groups; `None` permits any
/// group.
///
/// # Errors
/// `InvalidArgument` if a batch is open.
pub fn begin(groups: Option<&[Arc<Group>]>) -> Result<()> {
    if is_open() {
        let message = "this thread already has an open batch: end it with dist_batch_end first";
        return Err(Error::invalid(message));
    }
    let groups = groups.map(|groups| groups.iter().map(|group| group.id()).collect());
    let work = Work::new(WorkKind::Batch, Arc::new(RunQueue::default()));
    BATCH.set(Some(Batch { groups, calls: Vec::new(), work }));
    THREAD_FLAGS.with(|flags| flags.in_batch.set(true));
    Ok(())
}

/// Adds a call to the open batch of the calling thread, or issues it if no batch is open.
///
/// # Errors
/// `InvalidArgument` for a group that the batch may not use, `OutOfMemory` for too many calls; the
/// errors of [`PreparedCall::issue`].
pub fn collect_or_issue(call: PreparedCall) -> Result<()> {
    if !is_open() {
        return call.issue();
    }
    BATCH.with_borrow_mut(|open| match open {
        Some(batch) => batch.collect(call),
        None => {
            Err(Error::internal("the thread is marked as inside a batch, but no batch is open"))
        }
    })
}

/// Closes the batch of the calling thread and returns it. The caller then issues it with
/// [`Batch::issue`].
///
/// # Errors
/// `InvalidArgument` if no batch is open.
pub fn end() -> Result<Batch> {
    THREAD_FLAGS.with(|flags| flags.in_batch.set(false));
    BATCH
        .take()
        .ok_or_else(|| Error::invalid("this thread has no open batch: call dist_batch_begin first"))
}

impl Batch {
    fn collect(&mut self, call: PreparedCall) -> Result<()> {
        if let Some(groups) = &self.groups
            && !groups.contains(&call.group().id())
        {
            let name = call.group().name();
            let message = format!(
                "group {name} is not in the list of groups that was passed to \
                                   dist_batch_begin"
            );
            return Err(Error::invalid(message));
        }
        if self.calls.len() >= MAX_BATCH_CALLS {
            let message = format!(
                "the batch has {MAX_BATCH_CALLS} calls, which is the maximum: end it and begin another batch"
            );
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
        self.calls.push(call);
        Ok(())
    }

    /// Returns the work of the batch.
    pub fn work(&self) -> &Arc<Work> {
        &self.work
    }

    /// Issues all calls. If a call cannot be issued, its work ends with the error. `is_awaited` is
    /// true if the calling thread will wait for the batch.
    pub fn issue(mut self, is_awaited: bool) {
        let calls = std::mem::take(&mut self.calls);
        let work = Arc::clone(&self.work);
        let mut queues = calls.iter().map(|call| &call.group().queue);
        if let Some(first) = queues.next()
            && queues.all(|queue| Arc::ptr_eq(queue, first))
        {
            work.set_single_group_queue(Arc::clone(first));
        }
        work.mark_issued_as_batch(calls.iter().map(|call| Arc::clone(call.work())).collect());
        if calls.is_empty() {
            return work.end(Ok(None));
        }
        let (left, first) = (AtomicUsize::new(calls.len()), Mutex::new(None));
        let completion = Arc::new(BatchCompletion { pending: left, first_error: first, work });
        for (index, call) in calls.iter().enumerate() {
            let completion = Arc::clone(&completion);
            // For a call on a device, the batch's work needs the call's work, to wait for the
            // device. The hook drops its reference to the call's work when it has run.
            let member = call.gpu().map(|_| Arc::clone(call.work()));
            let hook = move |outcome: &Result<()>| {
                member.iter().for_each(|member| completion.work.add_member_completion(member));
                completion.complete_member(index, outcome);
            };
            call.work().add_completion_action(CompletionAction::Hook(0, Box::new(hook)));
        }
        // The check comes before the calls are issued: it fails the groups of overlapping calls,
        // and then their calls fail at the issue.
        batch_overlap::fail_overlapping_calls(&calls);
        let (enqueued, mut ordered): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(PreparedCall::is_device_enqueued);
        // Device operations are issued first, because their turns are shorter than the turns of the
        // other calls: a device operation is only enqueued.
        prepared_call::issue_on_devices(enqueued, is_awaited);
        // The sort is stable, so calls with the same batch order stay in the order of the calls.
        ordered.sort_by_key(PreparedCall::batch_order);
        let fusion_runs = fusion::plan_fusion(
            &ordered.iter().map(FusionCandidate::from_call).collect::<Vec<_>>(),
        );
        let mut ordered: Vec<Option<PreparedCall>> = ordered.into_iter().map(Some).collect();
        for fusion_run in fusion_runs {
            fusion::issue_fusion_run(
                fusion_run.into_iter().filter_map(|index| ordered[index].take()).collect(),
            );
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let message = "the batch was dropped before it was issued: its thread exited, or dist_batch_end failed";
        let abandoned = Error::new(ErrorKind::Aborted, message);
        self.calls.iter().for_each(|call| call.work().end(Err(abandoned.clone())));
    }
}

impl BatchCompletion {
    fn complete_member(&self, index: usize, outcome: &Result<()>) {
        if let Err(error) = outcome {
            let mut first = lock(&self.first_error);
            if first.as_ref().is_none_or(|(earlier, _)| index < *earlier) {
                *first = Some((index, error.clone()));
            }
        }
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            let first = lock(&self.first_error).take();
            self.work.end(first.map_or(Ok(None), |(_, error)| Err(error)));
        }
    }
}
