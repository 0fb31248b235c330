//! A group over a plug-in: one operation after another, each with its deadline, until the first
//! failure.

use super::super::{
    Backend, Fate, Key, Memory, OpKind, Operation, Place, Plain, PointToPoint, Prompt, Query,
    Wanted,
};
use super::compose::{Parts, Way, Ways};
use super::messages::Messages;
use super::{Communicator, Made, Ran, Received, Request, State, Submitted, Task};
use crate::base::deadline::LateDeadline;
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
const SLICE: Duration = Duration::from_secs(1);

/// For how long it may where the call has not gone the whole way yet.
const MOMENT: Duration = Duration::from_millis(1);

/// How much later than it should a plug-in's wait may return before that is said.
const GRACE: Duration = Duration::from_millis(500);

/// The numbers of types and operators, and one for none.
const DTYPES: usize = DataType::ALL.len() + 1;
const OPS: usize = ReduceOp::ALL.len() + 1;
const QUERIES: usize = OpKind::ALL.len() * DTYPES * OPS;

const YES: u8 = 1;

/// The back end of one group.
#[derive(Debug)]
pub(super) struct PluginGroup {
    name: &'static str,
    rank: Rank,
    places: Vec<Place>,
    /// Before the plug-in's part: it ends first.
    messages: Option<Messages>,
    communicator: Arc<dyn Communicator>,
    ways: Ways,
    state: Arc<State>,
    /// What the plug-in has said that it does: it is asked once for each type and operator.
    supported: Box<[AtomicU8]>,
    /// What the operation that has its turn has begun as on the short way, until it goes on on the
    /// long one.
    begun: Mutex<Option<Request>>,
}

impl PluginGroup {
    pub(super) fn new(
        name: &'static str,
        rank: Rank,
        places: Vec<Place>,
        made: Made,
        state: Arc<State>,
    ) -> Self {
        let Made { communicator, kinds, .. } = made;
        let messages = kinds.has_messages().then(|| {
            Messages::new(name, places.len(), Arc::clone(&communicator), Arc::clone(&state))
        });
        let supported = (0..QUERIES).map(|_| AtomicU8::new(0)).collect();
        let ways = Ways::of(kinds);
        let begun = Mutex::default();
        Self { name, rank, places, messages, communicator, ways, state, supported, begun }
    }

    /// Whether the plug-in does this kind of call by itself.
    fn has(&self, query: &Query) -> Result<()> {
        let known = self.known(query);
        if known.is_some_and(|known| known.load(Ordering::Relaxed) == YES) {
            return Ok(());
        }
        self.communicator.supports(query)?;
        if let Some(known) = known {
            known.store(YES, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Where it is noted that the plug-in does this kind of call, defined as it is.
    #[inline]
    fn known(&self, query: &Query) -> Option<&AtomicU8> {
        let kind = query.kind.filter(|_| query.gpu.is_none())? as usize;
        let dtype = query.dtype.map_or(DTYPES - 1, |dtype| dtype as usize);
        let op = query.op.map_or(OPS - 1, |op| op as usize);
        self.supported.get((kind * DTYPES + dtype) * OPS + op)
    }

    /// An operation that has begun has failed, and the group with it.
    fn fatal(&self, error: Error) -> Error {
        self.state.fail(&error);
        // The first reason, of which this may be a consequence.
        self.state.known_failure().cloned().unwrap_or(error)
    }

    /// Has the plug-in carry out an operation of its own.
    fn carry_out(&self, task: &Task<'_>, operation: &Operation<'_>) -> Result<()> {
        let left = task.left();
        let begun = match self.communicator.run(task, left.min(SLICE)) {
            Some(Ok(Ran::Shortly)) => {
                operation.probe.was_short();
                return Ok(());
            }
            Some(Ok(Ran::Done)) => return Ok(()),
            Some(Ok(Ran::Pending(request))) => Ok(Submitted::Pending(request)),
            Some(Err(error)) if is_refusal(&error) => Err(error),
            Some(Err(error)) => Err(self.doubt(error, task, lateness(task, left))),
            None => self.communicator.submit(task),
        };
        match begun {
            Ok(Submitted::Done(_)) => Ok(()),
            Ok(Submitted::Pending(request)) => {
                // Some of its time has gone.
                let task = &Task { is_fresh: false, ..*task };
                self.wait(request, task).map(drop).map_err(|error| self.fatal(error))
            }
            // A refusal is the same on all ranks and leaves the group as it is.
            Err(error) if is_refusal(&error) => Err(error),
            Err(error) => Err(self.fatal(error)),
        }
    }

    /// What is kept between the short way and the long one.
    fn begun(&self) -> MutexGuard<'_, Option<Request>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, request: Request, task: &Task<'_>) -> Result<Received> {
        loop {
            // The clock is looked at once: that takes a tenth of what a short operation does.
            let left = task.deadline.left();
            let outcome = self.communicator.wait(request, left.min(SLICE));
            if let Ok(Some(received)) = outcome {
                return Ok(received);
            }
            let late = lateness(task, left);
            if let Err(error) = outcome {
                return Err(self.doubt(error, task, late));
            }
            let failed = self.state.ask();
            if failed.is_some() || task.deadline.has_passed() {
                let error = failed.unwrap_or_else(|| self.doubt(expired(task), task, late));
                return Err(self.take_back(request, error));
            }
        }
    }

    /// Ends a request that will not end by itself.
    fn take_back(&self, request: Request, error: Error) -> Error {
        match self.communicator.release(request) {
            Ok(awaited) => awaited.explain(error),
            Err(why) => {
                let message = format!(
                    "{error}; the back end {} may still use the buffers: {}",
                    self.name,
                    why.message()
                );
                let told = Error::new(error.kind(), message);
                error.culprit().map_or(told.clone(), |culprit| told.with_culprit(culprit))
            }
        }
    }

    /// Adds to an error what the plug-in did wrong about its time.
    fn doubt(&self, error: Error, task: &Task<'_>, late: Option<Duration>) -> Error {
        let note = match late {
            Some(late) => format!("returned {} ms after its limit", late.as_millis()),
            None if error.kind() == ErrorKind::Timeout && !task.deadline.has_passed() => {
                format!("gave up {} ms before the deadline", task.deadline.left().as_millis())
            }
            None => return error,
        };
        let (kind, culprit) = (error.kind(), error.culprit());
        let told = Error::new(kind, format!("{error} (the wait of back end {} {note})", self.name));
        match culprit {
            Some(culprit) => told.with_culprit(culprit),
            None => told,
        }
    }
}

/// Whether an operation was not begun, on any rank.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported)
}

/// How much longer than it may a plug-in has just waited, if that is worth telling. `left` was left
/// until the deadline before.
fn lateness(task: &Task<'_>, left: Duration) -> Option<Duration> {
    let before = task.deadline.allowed().saturating_sub(left);
    let waited = task.deadline.elapsed().saturating_sub(before);
    Some(waited.saturating_sub(left.min(SLICE))).filter(|&late| late > GRACE)
}

fn expired(task: &Task<'_>) -> Error {
    let message = format!(
        "{} did not end within {} ms",
        task.what.name(),
        task.deadline.elapsed().as_millis()
    );
    Error::new(ErrorKind::Timeout, message)
}

impl Parts for PluginGroup {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> usize {
        self.places.len()
    }

    fn submit(&self, task: &Task<'_>) -> Result<Submitted> {
        self.communicator.submit(task)
    }

    fn finish(&self, request: Request, task: &Task<'_>) -> Result<Received> {
        self.wait(request, task)
    }

    fn cancel(&self, request: Request) {
        if let Err(error) = self.communicator.release(request) {
            crate::log!(crate::base::log::Level::Error, "back end {}: {error}", self.name);
        }
    }
}

impl Backend for PluginGroup {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check_wanted(&self, kind: OpKind, _: usize, wanted: Wanted<'_>) -> Result<()> {
        let (what, name) = match wanted.name {
            Some(name) => (format!("algorithm \"{name}\""), self.name),
            None if wanted.canonical => ("DIST_CALL_CANONICAL".to_owned(), self.name),
            None => return Ok(()),
        };
        let message = format!("{what} for {}: the back end {name} chooses by itself", kind.name());
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn supports(&self, query: &Query) -> Result<()> {
        // What a call asks, nearly always: nothing is noted that is not defined, or that the
        // plug-in lacks.
        if self.known(query).is_some_and(|known| known.load(Ordering::Relaxed) == YES)
            && query.kind.is_some_and(|kind| self.ways.of_kind(kind) == Way::Own)
        {
            return Ok(());
        }
        if let (Some(op), Some(dtype)) = (query.op, query.dtype) {
            query.check_operator(op, dtype, || self.name)?;
        }
        let Some(kind) = query.kind else {
            return match self.messages {
                Some(_) => self.communicator.supports(query),
                None => Err(self.lacks(query)),
            };
        };
        match self.ways.of_kind(kind) {
            Way::Own => self.has(query),
            Way::None => Err(self.lacks(query)),
            way if query.gpu.is_some() => {
                let message = format!(
                    "{query}: with the back end {} it is {}, in host memory only",
                    self.name,
                    way.describe()
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            way => {
                let has = |part: &Query| match self.has(part) {
                    Err(error) => Err(error.context(format_args!("{query}, {}", way.describe()))),
                    had => had,
                };
                way.queries(query).iter().try_for_each(has)
            }
        }
    }

    fn is_selective(&self) -> bool {
        true
    }

    fn run(&self, operation: &Operation<'_>) -> Result<()> {
        if operation.is_published
            && let Some(request) = self.begun().take()
        {
            let task = Task { is_fresh: false, ..Task::of(operation) };
            return self.wait(request, &task).map(drop).map_err(|error| self.fatal(error));
        }
        if let Some(failure) = self.state.known_failure() {
            return Err(failure.clone());
        }
        operation.probe.begins(self.name);
        let task = Task::of(operation);
        let way = self.ways.of_kind(operation.descriptor.kind);
        if way == Way::Own {
            return self.carry_out(&task, operation);
        }
        // Its parts begin later.
        let task = Task { is_fresh: false, ..task };
        way.run(self, &task).map_err(|error| self.fatal(error))
    }

    fn is_prompt(&self) -> bool {
        self.communicator.is_prompt()
    }

    fn rehearse(&self, plain: &Plain<'_>, _: Key) -> bool {
        self.ways.of_kind(plain.kind) == Way::Own
    }

    fn run_promptly(
        &self,
        (plain, _): (&Plain<'_>, Key),
        (sequence, deadline): (u64, &LateDeadline),
        begins: &mut dyn FnMut(&[u64; 3]),
    ) -> Result<Prompt> {
        // In a group that has failed the long way says why.
        if self.state.known_failure().is_some() {
            return Ok(Prompt::Untouched);
        }
        begins(&plain.descriptor(sequence).encode());
        let task = Task::plain(plain, sequence, deadline.begun());
        match self.communicator.run(&task, task.left().min(MOMENT)) {
            Some(Ok(Ran::Shortly)) => Ok(Prompt::Done),
            Some(Ok(Ran::Done)) => Ok(Prompt::Waited),
            Some(Ok(Ran::Pending(request))) => {
                *self.begun() = Some(request);
                Ok(Prompt::Published)
            }
            Some(Err(error)) if is_refusal(&error) => Err(error),
            Some(Err(error)) => Err(self.fatal(self.doubt(error, &task, None))),
            None => Ok(Prompt::Untouched),
        }
    }

    fn messages(&self) -> Option<&dyn PointToPoint> {
        self.messages.as_ref().map(|messages| messages as &dyn PointToPoint)
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        match self.communicator.allocate(bytes)? {
            Some(memory) => Ok(memory),
            None => super::super::host_memory(bytes),
        }
    }

    fn abort(&self, reason: &Error) {
        self.state.fail(reason);
    }

    fn failure(&self) -> Option<Error> {
        self.state.failure()
    }

    fn fate(&self) -> Option<Arc<dyn Fate>> {
        Some(Arc::clone(&self.state) as Arc<dyn Fate>)
    }

    fn places(&self) -> &[Place] {
        &self.places
    }

    fn describe(&self) -> Value {
        let ways = OpKind::ALL
            .map(|kind| (kind.name().to_owned(), Value::from(self.ways.of_kind(kind).describe())));
        let mut operations: Map<String, Value> = ways.into_iter().collect();
        let messages = if self.messages.is_some() { "own" } else { "none" };
        operations.insert("send, recv".to_owned(), messages.into());
        json!({ "operations": operations, "details": self.communicator.describe() })
    }
}

impl PluginGroup {
    /// Neither the plug-in nor what it has can do a call.
    fn lacks(&self, query: &Query) -> Error {
        let message = format!(
            "{query}: the back end {} does not have it, nor operations to make it of",
            self.name
        );
        Error::new(ErrorKind::Unsupported, message)
    }
}
