//! Blocking collectives, and the fast path for small calls. A call takes the fast path if a call
//! with the same key (arguments without buffers) has passed all checks, and if the call gets its
//! turn immediately.
//!
//! The first call with a key takes the full path (`blocking`). Later calls with this key skip the
//! checks and the setup of the operation. Most of them complete in the fast path. If a call must
//! wait for a long time for other ranks, it continues on the full path.

use crate::algo::ArgumentsHash;
use crate::api::collective::call::{BufferLocation, Call, CallOptions};
use crate::api::collective::call_observer::{CallObserver, CallRecord};
use crate::api::group::process_group::Group;
use crate::api::observe::recorder::{OperationRecord, RecorderSlot};
use crate::api::work::callbacks;
use crate::api::work::queue::{Ticket, Turn};
use crate::backend::{
    CallArguments, FastCall, FastCallKey, FastPathKind, FastProgress, PROMPT_BYTES,
};
use crate::base::deadline::LazyDeadline;
use crate::base::debug::{self, NanCheck};
use crate::base::error::Result;
use crate::base::log::{self, LogLevel};
use crate::base::progress_observer::ProgressObserver as _;
use crate::base::sync::fence_after_any_rmw;

impl CallOptions {
    /// Returns whether all options except the label and the timeout have their default values.
    #[inline]
    fn has_only_defaults(&self) -> bool {
        let Self { premul_scale, canonical, algorithm, nan_check, location, stream, .. } = self;
        !canonical
            && *premul_scale == 0.0
            && algorithm.is_none()
            && *nan_check == NanCheck::Off
            && *location == BufferLocation::Unspecified
            && stream.is_none()
    }
}

/// A call that may take the fast path, with its arguments and its key.
#[derive(Debug)]
pub(in crate::api) struct SmallCall<'a> {
    arguments: CallArguments<'a>,
    key: FastCallKey,
}

impl Group {
    /// Runs a blocking call like [`Group::run_by_reference`].
    ///
    /// # Errors
    /// The errors of [`Group::run_by_reference`].
    pub fn run(&self, mut call: Call<'_>, options: &CallOptions) -> Result<()> {
        self.run_by_reference(&mut call, options)
    }

    /// Checks a call, takes a ticket, and runs the call in its turn on the calling thread.
    ///
    /// The call is passed by reference, because a copy of it delays a small call. The copy reads
    /// vectors from memory that the caller has just written in words. The processor cannot forward
    /// such stores, so it waits until they have completed.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unsupported`, before the call has had any effect. Later errors fail
    /// the group: `Timeout`, `PeerFailed`, `Mismatch`, `Aborted`.
    #[inline]
    pub fn run_by_reference(&self, call: &mut Call<'_>, options: &CallOptions) -> Result<()> {
        callbacks::reject_blocking_in_callback("a blocking call")?;
        let Some(small_call) = self.small_call(call, options) else {
            return self.run_full_path(call, options);
        };
        if let Some(outcome) = self.run_fast_path(call, options, &small_call) {
            return outcome;
        }
        let outcome = self.run_full_path(call, options);
        let SmallCall { arguments, key } = small_call;
        if outcome.is_ok()
            && self.checked_keys.is_new(key)
            && let Some(has_fast_path) = self.backend.prepare_fast_path(&arguments, key)
        {
            self.checked_keys.insert(key, has_fast_path);
        }
        outcome
    }

    /// Returns the arguments and the key of a call that may take the fast path. Such a call has at
    /// most `PROMPT_BYTES` bytes and default options, and no expensive debug check or trace is on.
    /// The fast path logs nothing, so the log level is below DEBUG.
    #[inline]
    pub(in crate::api) fn small_call<'a>(
        &self,
        call: &Call<'a>,
        options: &'a CallOptions,
    ) -> Option<SmallCall<'a>> {
        let is_eligible = self.fast_path != FastPathKind::None && options.has_only_defaults();
        if !is_eligible || debug::has_expensive_checks() || self.observer.is_tracing_waits() {
            return None;
        }
        if log::enabled(LogLevel::Debug) {
            return None;
        }
        let arguments = call.fast_path_arguments(&options.label)?;
        if arguments.bytes() > PROMPT_BYTES {
            return None;
        }
        Some(SmallCall { arguments, key: arguments.key()? })
    }

    /// Runs a call if its key is in the table and the call gets its turn immediately. Otherwise
    /// returns `None`; then the call has had no effect.
    ///
    /// # Errors
    /// The errors of [`Group::run_by_reference`].
    #[inline]
    pub(in crate::api) fn run_fast_path(
        &self,
        call: &Call<'_>,
        options: &CallOptions,
        SmallCall { arguments, key }: &SmallCall<'_>,
    ) -> Option<Result<()>> {
        if !self.checked_keys.contains(*key) {
            return None;
        }
        if let Err(error) = call.check_overlap(self.rank()) {
            return Some(Err(error.context(call.kind().name())));
        }
        let (ticket, turn) = self.queue.try_issue_with_turn()?;
        let (slot, sequence) = (RecorderSlot::reserve(), ticket.sequence());
        let deadline = LazyDeadline::after_ms(self.effective_timeout_ms(options));
        let mut record = None;
        let mut begin_record = |words: &[u64; 3], hash: ArgumentsHash| {
            self.observer.reset_latest_arrival();
            record = Some(self.observer.record_encoded(slot, words, hash, &options.label));
        };
        let mut started = None;
        let progress = self.run_catching_panics(|| {
            if self.fast_path == FastPathKind::Delegated {
                let words = arguments.descriptor(sequence).encode();
                begin_record(&words, ArgumentsHash::of(&words));
                return self.backend.run_fast_call(arguments, sequence, deadline.get_or_start());
            }
            let Some(state) = self.backend.fast_path_state() else {
                return Ok(FastProgress::NotStarted);
            };
            // The record is written after the payload was published: this rank writes it while the
            // payload travels to the peers.
            started.insert(FastCall::new(state, *key)).run(arguments, sequence, begin_record)
        });
        let (is_quick, leaves_sleepers) = match progress {
            Ok(FastProgress::Done { leaves_sleepers }) => (true, leaves_sleepers),
            Ok(FastProgress::DoneAfterWait) => (false, false),
            progress => {
                let unfinished =
                    UnfinishedCall { ticket, turn, deadline, progress, started, slot, record };
                return Some(self.finish_on_full_path(call, options, unfinished));
            }
        };
        // The call holds a lock that the next operation of the group needs. So it ends before the
        // turn ends.
        let wakeup = started.map(FastCall::into_wakeup);
        match record {
            Some(record) if is_quick => record.end_without_clock(&Ok(())),
            record => record.into_iter().for_each(|record| record.end(&Ok(()))),
        }
        drop(turn);
        if let Some(wakeup) = wakeup.filter(|_| leaves_sleepers) {
            fence_after_any_rmw();
            wakeup.wake_fenced();
        }
        Some(Ok(()))
    }

    /// Continues a call that did not complete in the fast path. The call keeps its turn.
    #[cold]
    fn finish_on_full_path(
        &self,
        call: &Call<'_>,
        options: &CallOptions,
        unfinished: UnfinishedCall<'_>,
    ) -> Result<()> {
        let UnfinishedCall { ticket, turn, deadline, progress, started, slot, record } = unfinished;
        let _guard = self.blocked_call(ticket.sequence(), options);
        let descriptor = call.descriptor(ticket.sequence(), options.label);
        let observer = CallObserver::with_turn(
            self,
            call,
            &descriptor,
            &deadline,
            CallRecord { slot, record },
        );
        let mut operation = call.operation(descriptor, options, self.name(), &deadline, &observer);
        operation.has_new_deadline = true;
        let outcome = progress.and_then(|progress| {
            self.run_catching_panics(|| match (progress, started) {
                (FastProgress::Waiting, Some(started)) => started.wait(&operation),
                (FastProgress::Accepted, _) => self.backend.finish_fast_call(&operation),
                (FastProgress::Done { .. } | FastProgress::DoneAfterWait, _) => Ok(()),
                (FastProgress::NotStarted | FastProgress::Waiting, started) => {
                    // The full path takes the lock that a prepared call holds.
                    drop(started);
                    self.backend.run(&operation)
                }
            })
        });
        observer.end_turn();
        drop(turn);
        observer.end(&outcome);
        self.finish_blocking_call(outcome, &descriptor)
    }
}

/// A call that did not complete in the fast path.
struct UnfinishedCall<'a> {
    ticket: Ticket,
    turn: Turn<'a>,
    deadline: LazyDeadline,
    progress: Result<FastProgress>,
    started: Option<FastCall<'a>>,
    slot: RecorderSlot,
    /// The entry in the flight recorder, if it has been written.
    record: Option<OperationRecord>,
}
