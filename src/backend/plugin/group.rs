//! A group over a plug-in: one operation after another, each with its deadline, until the first
//! failure.

use super::super::{
    AlgorithmRequest, Backend, BackendMemory, CallArguments, FastCallKey, FastPathOutcome,
    GroupFailureState, OpKind, Operation, PointToPoint, RankLocation, SupportQuery,
};
use super::compose::{CompositionMethod, CompositionTable, SuboperationRunner};
use super::messages::PluginMessages;
use super::{
    Communicator, CreatedCommunicator, PluginFailureState, PluginMessageStatus, PluginRequest,
    PluginTask, RunOutcome, SubmitOutcome,
};
use crate::base::deadline::LazyDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::Rank;
use crate::base::op::ReduceOp;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For how long the plug-in may wait in one call, so that a failure which it does not notice is
/// noticed all the same.
const MAX_WAIT_SLICE: Duration = Duration::from_secs(1);

/// For how long it may where the call has not gone the whole way yet.
const FAST_PATH_WAIT: Duration = Duration::from_millis(1);

/// How much later than it should a plug-in's wait may return before that is said.
const LATE_TOLERANCE: Duration = Duration::from_millis(500);

/// The numbers of types and operators, and one for none.
const DTYPE_SLOTS: usize = DataType::ALL.len() + 1;
const OP_SLOTS: usize = ReduceOp::ALL.len() + 1;
const SUPPORT_CELLS: usize = OpKind::ALL.len() * DTYPE_SLOTS * OP_SLOTS;

const SUPPORTED: u8 = 1;

/// The back end of one group.
#[derive(Debug)]
pub(super) struct PluginGroup {
    name: &'static str,
    rank: Rank,
    rank_locations: Vec<RankLocation>,
    /// Before the plug-in's part: it ends first.
    messages: Option<PluginMessages>,
    communicator: Arc<dyn Communicator>,
    compositions: CompositionTable,
    failure_state: Arc<PluginFailureState>,
    /// What the plug-in has said that it does: it is asked once for each type and operator.
    support_cells: Box<[AtomicU8]>,
    /// What the operation that has its turn has begun as on the short way, until it goes on on the
    /// long one.
    pending_fast_call: Mutex<Option<PluginRequest>>,
}

impl PluginGroup {
    pub(super) fn new(
        name: &'static str,
        rank: Rank,
        places: Vec<RankLocation>,
        created: CreatedCommunicator,
        state: Arc<PluginFailureState>,
    ) -> Self {
        let CreatedCommunicator { communicator, kinds, .. } = created;
        let messages = kinds.has_messages().then(|| {
            PluginMessages::new(name, places.len(), Arc::clone(&communicator), Arc::clone(&state))
        });
        let supported = (0..SUPPORT_CELLS).map(|_| AtomicU8::new(0)).collect();
        let compositions = CompositionTable::for_kinds(kinds);
        let pending_fast_call = Mutex::default();
        Self {
            name,
            rank,
            rank_locations: places,
            messages,
            communicator,
            compositions,
            failure_state: state,
            support_cells: supported,
            pending_fast_call,
        }
    }

    /// Whether the plug-in does this kind of call by itself.
    fn check_direct_support(&self, query: &SupportQuery) -> Result<()> {
        let cell = self.support_cell(query);
        if cell.is_some_and(|known| known.load(Ordering::Relaxed) == SUPPORTED) {
            return Ok(());
        }
        self.communicator.supports(query)?;
        if let Some(cell) = cell {
            cell.store(SUPPORTED, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Where it is noted that the plug-in does this kind of call, defined as it is.
    #[inline]
    fn support_cell(&self, query: &SupportQuery) -> Option<&AtomicU8> {
        let kind = query.kind.filter(|_| query.gpu.is_none())? as usize;
        let dtype = query.dtype.map_or(DTYPE_SLOTS - 1, |dtype| dtype as usize);
        let op = query.op.map_or(OP_SLOTS - 1, |op| op as usize);
        self.support_cells.get((kind * DTYPE_SLOTS + dtype) * OP_SLOTS + op)
    }

    /// An operation that has begun has failed, and the group with it.
    fn fail_group(&self, error: Error) -> Error {
        self.failure_state.fail(&error);
        // The first reason, of which this may be a consequence.
        self.failure_state.known_failure().cloned().unwrap_or(error)
    }

    /// Has the plug-in carry out an operation of its own.
    fn run_direct(&self, task: &PluginTask<'_>, operation: &Operation<'_>) -> Result<()> {
        let time_left = task.time_left();
        let submitted = match self.communicator.run(task, time_left.min(MAX_WAIT_SLICE)) {
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
            None => self.communicator.submit(task),
        };
        match submitted {
            Ok(SubmitOutcome::Done(_)) => Ok(()),
            Ok(SubmitOutcome::Pending(request)) => {
                // Some of its time has gone.
                let task = &PluginTask { has_full_time: false, ..*task };
                self.wait(request, task).map(drop).map_err(|error| self.fail_group(error))
            }
            // A refusal is the same on all ranks and leaves the group as it is.
            Err(error) if is_refusal(&error) => Err(error),
            Err(error) => Err(self.fail_group(error)),
        }
    }

    /// What is kept between the short way and the long one.
    fn lock_pending_fast_call(&self) -> MutexGuard<'_, Option<PluginRequest>> {
        self.pending_fast_call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, request: PluginRequest, task: &PluginTask<'_>) -> Result<PluginMessageStatus> {
        loop {
            // The clock is looked at once: that takes a tenth of what a short operation does.
            let time_left = task.deadline.remaining();
            let outcome = self.communicator.wait(request, time_left.min(MAX_WAIT_SLICE));
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

    /// Ends a request that will not end by itself.
    fn release_request(&self, request: PluginRequest, error: Error) -> Error {
        match self.communicator.release(request) {
            Ok(awaited) => awaited.annotate(error),
            Err(release_error) => {
                let message = format!(
                    "{error}; the back end {} may still use the buffers: {}",
                    self.name,
                    release_error.message()
                );
                let annotated = Error::new(error.kind(), message);
                error.culprit().map_or(annotated.clone(), |culprit| annotated.with_culprit(culprit))
            }
        }
    }

    /// Adds to an error what the plug-in did wrong about its time.
    fn annotate_timing(
        &self,
        error: Error,
        task: &PluginTask<'_>,
        late: Option<Duration>,
    ) -> Error {
        let timing = match late {
            Some(late) => format!("returned {} ms after its limit", late.as_millis()),
            None if error.kind() == ErrorKind::Timeout && !task.deadline.has_passed() => {
                format!("gave up {} ms before the deadline", task.deadline.remaining().as_millis())
            }
            None => return error,
        };
        let (kind, culprit) = (error.kind(), error.culprit());
        let annotated =
            Error::new(kind, format!("{error} (the wait of back end {} {timing})", self.name));
        match culprit {
            Some(culprit) => annotated.with_culprit(culprit),
            None => annotated,
        }
    }
}

/// Whether an operation was not begun, on any rank.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported)
}

/// How much longer than it may a plug-in has just waited, if that is worth telling. `time_left` was
/// left until the deadline before.
fn wait_overrun(task: &PluginTask<'_>, time_left: Duration) -> Option<Duration> {
    let before = task.deadline.timeout().saturating_sub(time_left);
    let waited = task.deadline.elapsed().saturating_sub(before);
    Some(waited.saturating_sub(time_left.min(MAX_WAIT_SLICE))).filter(|&late| late > LATE_TOLERANCE)
}

fn timeout_error(task: &PluginTask<'_>) -> Error {
    let message = format!(
        "{} did not end within {} ms",
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
        self.communicator.submit(task)
    }

    fn finish(&self, request: PluginRequest, task: &PluginTask<'_>) -> Result<PluginMessageStatus> {
        self.wait(request, task)
    }

    fn cancel(&self, request: PluginRequest) {
        if let Err(error) = self.communicator.release(request) {
            crate::log!(crate::base::log::LogLevel::Error, "back end {}: {error}", self.name);
        }
    }
}

impl Backend for PluginGroup {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check_algorithm_request(
        &self,
        kind: OpKind,
        _: usize,
        wanted: AlgorithmRequest<'_>,
    ) -> Result<()> {
        let (what, name) = match wanted.name {
            Some(name) => (format!("algorithm \"{name}\""), self.name),
            None if wanted.canonical => ("DIST_CALL_CANONICAL".to_owned(), self.name),
            None => return Ok(()),
        };
        let message = format!("{what} for {}: the back end {name} chooses by itself", kind.name());
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        // What a call asks, nearly always: nothing is noted that is not defined, or that the
        // plug-in lacks.
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
                Some(_) => self.communicator.supports(query),
                None => Err(self.unsupported_error(query)),
            };
        };
        match self.compositions.method_for(kind) {
            CompositionMethod::Direct => self.check_direct_support(query),
            CompositionMethod::Unavailable => Err(self.unsupported_error(query)),
            method if query.gpu.is_some() => {
                let message = format!(
                    "{query}: with the back end {} it is {}, in host memory only",
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

    fn can_refuse_calls(&self) -> bool {
        true
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        if operation.is_published
            && let Some(request) = self.lock_pending_fast_call().take()
        {
            let task = PluginTask { has_full_time: false, ..PluginTask::from_operation(operation) };
            return self.wait(request, &task).map(drop).map_err(|error| self.fail_group(error));
        }
        if let Some(failure) = self.failure_state.known_failure() {
            return Err(failure.clone());
        }
        operation.observer.record_start(self.name);
        let task = PluginTask::from_operation(operation);
        let method = self.compositions.method_for(operation.descriptor.kind);
        if method == CompositionMethod::Direct {
            return self.run_direct(&task, operation);
        }
        // Its parts begin later.
        let task = PluginTask { has_full_time: false, ..task };
        method.run(self, &task).map_err(|error| self.fail_group(error))
    }

    fn has_fast_path(&self) -> bool {
        self.communicator.has_fast_path()
    }

    fn prepare_fast_path(&self, plain: &CallArguments<'_>, _: FastCallKey) -> bool {
        self.compositions.method_for(plain.kind) == CompositionMethod::Direct
    }

    fn run_fast_path(
        &self,
        (plain, _): (&CallArguments<'_>, FastCallKey),
        (sequence, deadline): (u64, &LazyDeadline),
        begins: &mut dyn FnMut(&[u64; 3]),
    ) -> Result<FastPathOutcome> {
        // In a group that has failed the long way says why.
        if self.failure_state.known_failure().is_some() {
            return Ok(FastPathOutcome::NotStarted);
        }
        begins(&plain.descriptor(sequence).encode());
        let task = PluginTask::from_fast_call(plain, sequence, deadline.get_or_start());
        match self.communicator.run(&task, task.time_left().min(FAST_PATH_WAIT)) {
            Some(Ok(RunOutcome::DoneQuickly)) => Ok(FastPathOutcome::Done),
            Some(Ok(RunOutcome::Done)) => Ok(FastPathOutcome::DoneAfterWait),
            Some(Ok(RunOutcome::Pending(request))) => {
                *self.lock_pending_fast_call() = Some(request);
                Ok(FastPathOutcome::Published)
            }
            Some(Err(error)) if is_refusal(&error) => Err(error),
            Some(Err(error)) => Err(self.fail_group(self.annotate_timing(error, &task, None))),
            None => Ok(FastPathOutcome::NotStarted),
        }
    }

    fn point_to_point(&self) -> Option<&dyn PointToPoint> {
        self.messages.as_ref().map(|messages| messages as &dyn PointToPoint)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        match self.communicator.allocate(bytes)? {
            Some(memory) => Ok(memory),
            None => super::super::allocate_host_memory(bytes),
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
        json!({ "operations": operations, "details": self.communicator.describe() })
    }
}

impl PluginGroup {
    /// Neither the plug-in nor what it has can do a call.
    fn unsupported_error(&self, query: &SupportQuery) -> Error {
        let message = format!(
            "{query}: the back end {} does not have it, nor operations to make it of",
            self.name
        );
        Error::new(ErrorKind::Unsupported, message)
    }
}
