//! The issue of asynchronous collectives: an operation becomes a task in its group's queue.
//!
//! [`enqueue_task`] wraps a task in a `TaskJob` and puts the job into the group's queue. The job
//! runs the task when its turn comes, and then ends the task's works. The job holds a reference to
//! the group until the works end.

use crate::api::group::process_group::Group;
use crate::api::observe::operation_details::CallSizes;
use crate::api::observe::recorder::{self, OperationRecord};
use crate::api::work::handle::Work;
use crate::api::work::queue::{QueueJob, Turn};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::transport::Descriptor;
use std::sync::Arc;

/// The part of a `TaskJob` that depends on the kind of operation.
pub(in crate::api) trait OperationTask: Send + 'static {
    /// Returns the works that end when the task ends.
    fn works(&self) -> &[Arc<Work>];

    /// Returns the number of operations in the task, each with a sequence number.
    fn operation_count(&self) -> u64 {
        1
    }

    /// Returns the descriptor of the task's first operation, which has this sequence number. The
    /// descriptor must be equal on all ranks.
    fn descriptor(&self, sequence: u64) -> Descriptor;

    /// Returns the sizes of the buffers, if the descriptor does not have them.
    fn sizes(&self, group: &Group) -> CallSizes;

    /// Returns the name of the task for error texts.
    fn title(&self, descriptor: &Descriptor) -> String {
        descriptor.to_string()
    }

    /// Runs the task. The caller has the turn of the group's queue. `record` is the task's record
    /// in the flight recorder.
    fn run(
        &mut self,
        group: &Group,
        first: Descriptor,
        deadline: &Deadline,
        record: &OperationRecord,
    ) -> Result<()>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(OperationTask);

/// Puts a task into its group's queue.
///
/// # Errors
/// `OutOfMemory` if too many works are outstanding until the deadline; `System` if no worker thread
/// can be started. On error, the task was not issued.
pub(in crate::api) fn enqueue_task<T: OperationTask>(
    group: Arc<Group>,
    deadline: Deadline,
    task: T,
) -> Result<()> {
    let queue = Arc::clone(&group.queue);
    let works = task.works().len();
    queue.begin_works_within(works as u64, &deadline)?;
    let enqueued = queue.enqueue(task.operation_count(), |ticket| {
        let descriptor = task.descriptor(ticket.sequence());
        task.works().iter().for_each(|work| work.mark_issued(ticket.sequence(), deadline));
        let record = group.record_collective(&descriptor, deadline.started(), false);
        record.add_sizes(&task.sizes(&group));
        Box::new(TaskJob { group, deadline, descriptor, record, task })
    });
    enqueued.inspect_err(|_| (0..works).for_each(|_| queue.end_work()))
}

/// The job of a task in the group's queue.
#[derive(Debug)]
struct TaskJob<T> {
    group: Arc<Group>,
    deadline: Deadline,
    descriptor: Descriptor,
    record: OperationRecord,
    task: T,
}

impl<T: OperationTask> TaskJob<T> {
    /// Ends the turn, if there is one, and the works.
    fn finish(self, outcome: Result<()>, turn: Option<Turn<'_>>) {
        let Self { group, descriptor, record, task, .. } = self;
        record.end(&outcome);
        let outcome = outcome.map_err(|error| {
            recorder::request_failure_dump();
            let title = task.title(&descriptor);
            group.with_culprit_process(group.with_call_context(error, &title))
        });
        if let Some(turn) = turn {
            turn.end_without_wake();
        }
        if let Err(error) = &outcome {
            group.record_returned_error(error);
        }
        // The group is released before the works end. A caller that sees the end of a work may rely
        // on it that the job holds no reference to the group.
        drop(group);
        task.works().iter().for_each(|work| work.end(outcome.clone().map(|()| None)));
    }
}

impl<T: OperationTask> QueueJob for TaskJob<T> {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn failure(&self) -> Option<Error> {
        self.group.failure()
    }

    fn run(mut self: Box<Self>, turn: Turn<'_>) {
        let Self { group, deadline, descriptor, record, task } = &mut *self;
        let group = &*group;
        record.mark_running();
        let outcome = group.run_catching_panics(|| task.run(group, *descriptor, deadline, record));
        self.finish(outcome, Some(turn));
    }

    fn expire(self: Box<Self>) {
        let error = self.group.fail_expired_call(&self.descriptor, &self.deadline);
        self.finish(Err(error), None);
    }

    fn fail(self: Box<Self>, cause: &Error) {
        self.finish(Err(cause.clone()), None);
    }
}
