//! The back end of a plug-in's group. It runs one operation after another, each until its deadline,
//! until the first failure.

use super::communicator::{OperationKinds, replace_message};
use super::compose::{SuboperationRunner, run_composed};
use super::composition_table::{CompositionMethod, CompositionTable};
use super::device_current::BoundCommunicator;
use super::failure_state::PluginFailureState;
use super::messages::PluginMessages;
use super::task::{PluginMessageStatus, PluginRequest, PluginTask, RunOutcome, SubmitOutcome};
use crate::backend::memory::allocate_host_memory;
use crate::backend::{
    AlgorithmRequest, Backend, BackendMemory, BackendProperties, CallArguments, FastPath,
    FastPathKind, FastProgress, GroupFailureState, OpKind, Operation, PointToPoint, RankLocation,
    SupportQuery,
};
use crate::base::deadline::Deadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use crate::base::sync::lock;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The maximum duration of one call of the plug-in's wait function. Between two calls, the library
/// checks for failures that the plug-in does not notice.
const MAX_WAIT_SLICE: Duration = Duration::from_secs(1);

/// The maximum duration of one wait in the plug-in on the fast path.
const FAST_PATH_WAIT: Duration = Duration::from_millis(1);

/// The tolerance for a wait in the plug-in that exceeds its limit. If the wait exceeds the limit by
/// more, an error message mentions this.
const LATE_TOLERANCE: Duration = Duration::from_millis(500);

/// The number of types, plus one for calls without a type.
const DTYPE_SLOTS: usize = DataType::ALL.len() + 1;
/// The number of operators, plus one for calls without an operator.
const OP_SLOTS: usize = ReduceOp::ALL.len() + 1;
const SUPPORT_CELLS: usize = OpKind::ALL.len() * DTYPE_SLOTS * OP_SLOTS;

const SUPPORTED: u8 = 1;

/// The name of a plug-in, this process's rank, and whether rank 0 has the debug level DETAIL.
#[derive(Clone, Copy, Debug)]
pub(super) struct PluginIdentity {
    pub(super) name: &'static str,
    pub(super) rank: Rank,
    pub(super) has_detail_level: bool,
}

/// The back end of one plug-in group.
#[derive(Debug)]
pub(in crate::backend) struct PluginGroup {
    name: &'static str,
    rank: Rank,
    rank_locations: Vec<RankLocation>,
    /// True if rank 0 has the debug level DETAIL and the plug-in has messages, which carry the
    /// arrival check.
    has_arrival_check: bool,
    /// The point-to-point messages. This field is declared before the communicator, because it must
    /// be dropped first.
    messages: Option<PluginMessages>,
    bound: BoundCommunicator,
    compositions: CompositionTable,
    failure_state: Arc<PluginFailureState>,
    /// A cache with one cell for each operation, type and operator. The value [`SUPPORTED`] means
    /// that the plug-in has reported that it supports the call. The library asks the plug-in again
    /// only if the cell does not have this value.
    support_cells: Box<[AtomicU8]>,
    /// The request that the fast path has begun and that the full path must complete. It belongs to
    /// the operation that holds the group's queue.
    pending_fast_call: Mutex<Option<PluginRequest>>,
}

impl PluginGroup {
    pub(super) fn new(
        PluginIdentity { name, rank, has_detail_level }: PluginIdentity,
        places: Vec<RankLocation>,
        bound: BoundCommunicator,
        kinds: OperationKinds,
        state: Arc<PluginFailureState>,
    ) -> Self {
        let messages = kinds
            .has_messages()
            .then(|| PluginMessages::new(name, places.len(), bound.clone(), Arc::clone(&state)));
        Self {
            name,
            rank,
            rank_locations: places,
            has_arrival_check: has_detail_level && messages.is_some(),
            messages,
            bound,
            compositions: CompositionTable::for_kinds(kinds),
            failure_state: state,
            support_cells: (0..SUPPORT_CELLS).map(|_| AtomicU8::new(0)).collect(),
            pending_fast_call: Mutex::default(),
        }
    }

    /// Checks whether the plug-in supports this kind of call without a composition. Uses the cache.
    fn check_direct_support(&self, query: &SupportQuery) -> Result<()> {
        let cell = self.support_cell(query);
        if cell.is_some_and(|known| known.load(Ordering::Relaxed) == SUPPORTED) {
            return Ok(());
        }
        self.bound.communicator.supports(query)?;
        if let Some(cell) = cell {
            cell.store(SUPPORTED, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the cache cell for this kind of call. Calls on device memory and point-to-point
    /// messages have no cell.
    #[inline]
    fn support_cell(&self, query: &SupportQuery) -> Option<&AtomicU8> {
        let kind = query.kind.filter(|_| query.gpu.is_none())? as usize;
        let dtype = query.dtype.map_or(DTYPE_SLOTS - 1, |dtype| dtype as usize);
        let op = query.op.map_or(OP_SLOTS - 1, |op| op as usize);
        self.support_cells.get((kind * DTYPE_SLOTS + dtype) * OP_SLOTS + op)
    }

    /// Returns the error for a call that the plug-in does not support and that cannot be composed.
    fn unsupported_error(&self, query: &SupportQuery) -> Error {
        let message = format!(
            "{query}: the back end {} supports neither this operation nor the operations of which \
             it could be composed",
            self.name
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Runs an operation that the plug-in has.
    fn run_direct(&self, task: &PluginTask<'_>, operation: &Operation<'_>) -> Result<()> {
        let time_left = task.time_left();
        let submitted = match self.bound.run(task, time_left.min(MAX_WAIT_SLICE)) {
            Some(Ok(RunOutcome::DoneQuickly)) => {
                operation.observer.record_short_wait();
                return Ok(());
            }
            Some(Ok(RunOutcome::Done)) => return Ok(()),
            Some(Ok(RunOutcome::Pending(request))) => Ok(SubmitOutcome::Pending(request)),
            Some(Err(error)) if is_refusal(&error) => Err(error),
            Some(Err(error)) => {
                Err(self.annotate_timing(error, task, wait_overrun(task, time_left)))
            }
            None => self.bound.submit(task),
        };
        match submitted {
            Ok(SubmitOutcome::Done(_)) => Ok(()),
            Ok(SubmitOutcome::Pending(request)) => {
                // The wait in `run` has used a part of the time until the deadline.
                let task = &PluginTask { has_full_time: false, ..*task };
                self.wait(request, task)
                    .map(drop)
                    .map_err(|error| self.failure_state.fail_with(error))
            }
            // A refusal is the same on all ranks and does not change the group.
            Err(error) if is_refusal(&error) => Err(error),
            Err(error) => Err(self.failure_state.fail_with(error)),
        }
    }

    /// Locks the request that the fast path passes to the full path.
    fn lock_pending_fast_call(&self) -> MutexGuard<'_, Option<PluginRequest>> {
        lock(&self.pending_fast_call)
    }

    fn wait(&self, request: PluginRequest, task: &PluginTask<'_>) -> Result<PluginMessageStatus> {
        loop {
            // The loop reads the clock only once per iteration, because a read takes a tenth of the
            // time of a short operation.
            let time_left = task.deadline.remaining();
            let outcome = self.bound.wait(request, time_left.min(MAX_WAIT_SLICE));
            if let Ok(Some(received)) = outcome {
                return Ok(received);
            }
            let late = wait_overrun(task, time_left);
            if let Err(error) = outcome {
                return Err(self.annotate_timing(error, task, late));
            }
            let failed = self.failure_state.query_failure();
            if failed.is_some() || task.deadline.has_passed() {
                let error =
                    failed.unwrap_or_else(|| self.annotate_timing(timeout_error(task), task, late));
                return Err(self.release_request(request, error));
            }
        }
    }

    /// Releases a request that will not complete by itself. Returns `error` with the plug-in's
    /// report added.
    fn release_request(&self, request: PluginRequest, error: Error) -> Error {
        match self.bound.release(request) {
            Ok(awaited) => awaited.annotate(error),
            Err(release_error) => {
                let message = format!(
                    "{error}; the back end {} may still use the buffers: {}",
                    self.name,
                    release_error.message()
                );
                let culprit = error.culprit().or(release_error.culprit());
                replace_message(&error, message, culprit)
            }
        }
    }

    /// Adds to an error text that the plug-in's wait ended too late or too early, if this is the
    /// case. `late` is the time by which the wait exceeded its limit.
    fn annotate_timing(
        &self,
        error: Error,
        task: &PluginTask<'_>,
        late: Option<Duration>,
    ) -> Error {
        let timing = match late {
            Some(late) => format!("returned {} ms after its limit", late.as_millis()),
            None if error.kind() == ErrorKind::Timeout && !task.deadline.has_passed() => {
                format!(
                    "timed out {} ms before the deadline",
                    task.deadline.remaining().as_millis()
                )
            }
            None => return error,
        };
        let message = format!("{error} (the wait of back end {} {timing})", self.name);
        replace_message(&error, message, error.culprit())
    }
}

/// Returns true if the error is a refusal, that is, if no rank has begun the operation.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported)
}

/// Returns the time by which a wait in the plug-in exceeded its limit, if this time is longer than
/// [`LATE_TOLERANCE`]. `time_left` is the time that was left until the deadline when the wait
/// began.
fn wait_overrun(task: &PluginTask<'_>, time_left: Duration) -> Option<Duration> {
    let before = task.deadline.timeout().saturating_sub(time_left);
    let waited = task.deadline.elapsed().saturating_sub(before);
    Some(waited.saturating_sub(time_left.min(MAX_WAIT_SLICE))).filter(|&late| late > LATE_TOLERANCE)
}

fn timeout_error(task: &PluginTask<'_>) -> Error {
    let message = format!(
        "{} did not complete within {} ms",
        task.kind.name(),
        task.deadline.elapsed().as_millis()
    );
    Error::new(ErrorKind::Timeout, message)
}

impl SuboperationRunner for PluginGroup {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> usize {
        self.rank_locations.len()
    }

    fn submit(&self, task: &PluginTask<'_>) -> Result<SubmitOutcome> {
        self.bound.submit(task)
    }

    fn finish(&self, request: PluginRequest, task: &PluginTask<'_>) -> Result<PluginMessageStatus> {
        self.wait(request, task)
    }

    fn cancel(&self, request: PluginRequest) {
        if let Err(error) = self.bound.release(request) {
            crate::log!(crate::base::log::LogLevel::Error, "back end {}: {error}", self.name);
        }
    }
}

impl FastPath for PluginGroup {
    fn run_fast_call(
        &self,
        arguments: &CallArguments<'_>,
        sequence: u64,
        deadline: &Deadline,
    ) -> Result<FastProgress> {
        // If the group has failed, the full path reports the reason.
        if self.failure_state.known_failure().is_some()
            || self.compositions.method_for(arguments.kind) != CompositionMethod::Direct
        {
            return Ok(FastProgress::NotStarted);
        }
        let task = PluginTask::from_fast_call(arguments, sequence, deadline);
        match self.bound.communicator.run(&task, task.time_left().min(FAST_PATH_WAIT)) {
            Some(Ok(RunOutcome::DoneQuickly)) => Ok(FastProgress::Done { leaves_sleepers: false }),
            Some(Ok(RunOutcome::Done)) => Ok(FastProgress::DoneAfterWait),
            Some(Ok(RunOutcome::Pending(request))) => {
                *self.lock_pending_fast_call() = Some(request);
                Ok(FastProgress::Accepted)
            }
            Some(Err(error)) if is_refusal(&error) => Err(error),
            Some(Err(error)) => {
                Err(self.failure_state.fail_with(self.annotate_timing(error, &task, None)))
            }
            None => Ok(FastProgress::NotStarted),
        }
    }

    fn finish_fast_call(&self, operation: &Operation<'_>) -> Result<()> {
        let Some(request) = self.lock_pending_fast_call().take() else {
            return self.run(operation);
        };
        let task = PluginTask { has_full_time: false, ..PluginTask::from_operation(operation) };
        self.wait(request, &task).map(drop).map_err(|error| self.failure_state.fail_with(error))
    }
}

impl Backend for PluginGroup {
    fn name(&self) -> &'static str {
        self.name
    }

    fn properties(&self) -> BackendProperties<'_> {
        BackendProperties {
            fast_path: match self.bound.device {
                None if self.bound.communicator.has_fast_path() && !self.has_arrival_check => {
                    FastPathKind::Delegated
                }
                _ => FastPathKind::None,
            },
            can_refuse_calls: true,
            has_arrival_check: self.has_arrival_check,
            ..BackendProperties::default()
        }
    }

    fn check_algorithm_request(
        &self,
        kind: OpKind,
        _: usize,
        wanted: AlgorithmRequest<'_>,
    ) -> Result<()> {
        let what = match wanted.name {
            Some(name) => format!("algorithm \"{name}\""),
            None if wanted.canonical => "DIST_CALL_CANONICAL".to_owned(),
            None => return Ok(()),
        };
        let message = format!(
            "{what} for {}: the back end {} selects its algorithms itself",
            kind.name(),
            self.name
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        // This is the usual case. A cell is set only if the operator is defined for the type and
        // the plug-in supports the call.
        if self.support_cell(query).is_some_and(|known| known.load(Ordering::Relaxed) == SUPPORTED)
            && query
                .kind
                .is_some_and(|kind| self.compositions.method_for(kind) == CompositionMethod::Direct)
        {
            return Ok(());
        }
        if let (Some(op), Some(dtype)) = (query.op, query.dtype) {
            query.check_operator(op, dtype, || self.name)?;
        }
        let Some(kind) = query.kind else {
            return match self.messages {
                Some(_) => self.bound.communicator.supports(query),
                None => Err(self.unsupported_error(query)),
            };
        };
        match self.compositions.method_for(kind) {
            CompositionMethod::Direct => self.check_direct_support(query),
            CompositionMethod::Unavailable => Err(self.unsupported_error(query)),
            method if query.gpu.is_some() => {
                let message = format!(
                    "{query}: with the back end {} the operation is {}, which is possible in host \
                     memory only",
                    self.name,
                    method.describe()
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            method => {
                let check_part = |part: &SupportQuery| match self.check_direct_support(part) {
                    Err(error) => {
                        Err(error.context(format_args!("{query}, {}", method.describe())))
                    }
                    had => had,
                };
                method.queries(query).iter().try_for_each(check_part)
            }
        }
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        if let Some(failure) = self.failure_state.known_failure() {
            return Err(failure.clone());
        }
        operation.observer.record_start(self.name);
        let task = PluginTask::from_operation(operation);
        let method = self.compositions.method_for(operation.descriptor.kind);
        if method == CompositionMethod::Direct {
            return self.run_direct(&task, operation);
        }
        // A sub-operation may begin later than the operation, so not the full timeout is left.
        let task = PluginTask { has_full_time: false, ..task };
        run_composed(method, self, &task).map_err(|error| self.failure_state.fail_with(error))
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        self.messages.as_ref().map(|messages| messages as &dyn PointToPoint)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        match self.bound.communicator.allocate(bytes)? {
            Some(memory) => Ok(memory),
            None => allocate_host_memory(bytes),
        }
    }

    fn abort(&self, reason: &Error) {
        self.failure_state.fail(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.failure_state.failure()
    }

    fn failure_state(&self) -> Option<Arc<dyn GroupFailureState>> {
        Some(Arc::clone(&self.failure_state) as Arc<dyn GroupFailureState>)
    }

    fn rank_locations(&self) -> &[RankLocation] {
        &self.rank_locations
    }

    fn describe(&self) -> Value {
        let descriptions = OpKind::ALL.map(|kind| {
            (kind.name().to_owned(), Value::from(self.compositions.method_for(kind).describe()))
        });
        let mut operations: Map<String, Value> = descriptions.into_iter().collect();
        let messages = if self.messages.is_some() { "own" } else { "none" };
        operations.insert("send, recv".to_owned(), messages.into());
        json!({ "operations": operations, "details": self.bound.communicator.describe() })
    }
}
