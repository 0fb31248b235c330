//! The operations of a reducer in the queue of its group.
//!
//! The operations of a group run one at a time, in the order of issue. This order has three
//! consequences:
//!
//! * A bucket can use the sum of the weights, because the operation for the weights was issued
//!   before the bucket.
//! * The buckets can share the scratch memory in which gradients are collected.
//! * The operation with the ballots runs after all buckets are reduced.

use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::observe::operation_details::CallSizes;
use crate::api::observe::recorder::OperationRecord;
use crate::api::work::handle::{Work, WorkKind};
use crate::api::work::issue::{OperationTask, enqueue_task};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::label::Label;
use crate::base::log::LogLevel;
use crate::transport::{Descriptor, OpKind};
use std::sync::Arc;

/// An operation of a reducer. It has one work, and may consist of several collectives.
pub(super) trait ReducerOperation: Send + 'static {
    /// Returns the number of collectives.
    fn collective_count(&self) -> u64 {
        1
    }

    /// Returns the descriptor of the first collective, which has this sequence number and label.
    fn descriptor(&self, sequence: u64, label: Label) -> Descriptor;

    /// Returns the name of the operation in messages.
    fn title(&self, descriptor: &Descriptor) -> String;

    /// Runs the operation in its turn.
    fn run(&mut self, turn: OperationTurn<'_>) -> Result<()>;
}

crate::base::trait_object_debug::impl_debug_of_objects!(ReducerOperation);

/// The turn of an operation: the time in which this operation runs and no other operation of the
/// group runs.
#[derive(Debug)]
pub(super) struct OperationTurn<'t> {
    pub(super) group: &'t Group,
    options: &'t CallOptions,
    /// The descriptor of the first collective of the turn.
    first: Descriptor,
    deadline: &'t Deadline,
    /// The number of collectives that ran in this turn.
    used: u64,
}

impl OperationTurn<'_> {
    /// Runs the next collective of the turn.
    ///
    /// # Errors
    /// The errors of collectives.
    pub(super) fn run(&mut self, call: &Call<'_>) -> Result<()> {
        self.run_with(call, self.options)
    }

    /// Runs the next collective of the turn. `premul_scale` is the factor of the operator
    /// `PREMUL_SUM`.
    ///
    /// # Errors
    /// The errors of collectives.
    pub(super) fn run_scaled(&mut self, call: &Call<'_>, premul_scale: f64) -> Result<()> {
        let options = CallOptions { premul_scale, ..self.options.clone() };
        self.run_with(call, &options)
    }

    fn run_with(&mut self, call: &Call<'_>, options: &CallOptions) -> Result<()> {
        let Descriptor { sequence, label, .. } = self.first;
        let descriptor = call.descriptor(sequence + self.used, label);
        self.used += 1;
        let deadline = LazyDeadline::from(*self.deadline);
        let (group, observer) = (self.group.name(), &self.group.observer);
        let operation = call.operation(descriptor, options, group, &deadline, observer);
        self.group.carry_out(&operation, options.nan_check)
    }
}

/// An operation in the queue.
#[derive(Debug)]
struct QueuedOperation<O> {
    operation: O,
    options: CallOptions,
    works: [Arc<Work>; 1],
}

impl<O: ReducerOperation> OperationTask for QueuedOperation<O> {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn operation_count(&self) -> u64 {
        self.operation.collective_count()
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        self.operation.descriptor(sequence, self.options.label)
    }

    fn sizes(&self, _group: &Group) -> CallSizes {
        CallSizes::default()
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        self.operation.title(descriptor)
    }

    fn run(
        &mut self,
        group: &Group,
        first: Descriptor,
        deadline: &Deadline,
        _record: &OperationRecord,
    ) -> Result<()> {
        let options = &self.options;
        self.operation.run(OperationTurn { group, options, first, deadline, used: 0 })
    }
}

/// Puts an operation into the queue of a group. `work` completes with the operation.
///
/// # Errors
/// The errors of [`enqueue_task`].
pub(super) fn enqueue<O: ReducerOperation>(
    group: &Arc<Group>,
    options: CallOptions,
    work: &Arc<Work>,
    operation: O,
) -> Result<()> {
    let deadline = group.deadline(&options);
    let works = [Arc::clone(work)];
    enqueue_task(Arc::clone(group), deadline, QueuedOperation { operation, options, works })
}

/// Creates a work for an operation of a reducer.
pub(super) fn new_work(group: &Group) -> Arc<Work> {
    Work::new(WorkKind::Collective(OpKind::AllReduce), Arc::clone(&group.queue))
}

/// Fails the group, because other ranks wait for an operation that this rank cannot issue.
pub(super) fn fail(group: &Group, error: Error) -> Error {
    if group.failure().is_none() {
        crate::log!(
            LogLevel::Error,
            "{}: a reducer cannot continue: {error}",
            group.describe_rank()
        );
        group.fail_with_local_blame(error.clone());
    }
    group.failure().unwrap_or(error)
}

/// Returns the error for a call after a failed step, with the error of that step.
pub(super) fn failed_before(error: &Error) -> Error {
    let message = format!(
        "the last step failed ({error}): call dist_group_shrink and dist_reducer_regroup first"
    );
    Error::new(ErrorKind::InvalidArgument, message)
}
