//! The fast path of small blocking calls. A call takes it if its key is cached and if it gets its
//! turn immediately.
//!
//! The first call with a key takes the full path and prepares the fast path for its key. Later
//! calls with this key skip the checks and the operation setup, and most of them complete in the
//! fast path. If a call must wait, it continues on the full path as if it had started there.

use crate::api::collective::call::{BufferLocation, Call, CallOptions};
use crate::api::collective::call_observer::{CallObserver, CallRecord};
use crate::api::group::process_group::Group;
use crate::api::observe::recorder::{OperationRecord, RecorderSlot};
use crate::api::work::queue::{Ticket, Turn};
use crate::backend::{CallArguments, FastCallKey, FastPathOutcome, PROMPT_BYTES};
use crate::base::deadline::LazyDeadline;
use crate::base::debug::{self, NanCheck};
use crate::base::error::Result;
use crate::base::progress_observer::ProgressObserver as _;
use crate::base::sync::fence_after_any_rmw;

impl CallOptions {
    /// Returns whether the options have defaults except for label and timeout.
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

/// The arguments of a call that is eligible for the fast path, with its key.
pub(in crate::api) type FastCall<'a> = (CallArguments<'a>, FastCallKey);

impl Group {
    /// Returns the arguments and the key of a call if it has at most `PROMPT_BYTES` bytes, has
    /// default options, and no expensive debug check or trace is on.
    #[inline]
    pub(in crate::api) fn fast_call<'a>(
        &self,
        call: &Call<'a>,
        options: &'a CallOptions,
    ) -> Option<FastCall<'a>> {
        let is_eligible = self.has_fast_path && options.has_only_defaults();
        if !is_eligible || debug::has_expensive_checks() || self.observer.is_tracing_waits() {
            return None;
        }
        let plain = call
            .fast_path_arguments(&options.label)
            .filter(|plain| plain.bytes() <= PROMPT_BYTES)?;
        Some((plain, plain.key()?))
    }

    /// Prepares the fast path for the next call with this key. This call has passed all checks and
    /// has run, and its turn has not ended.
    pub(in crate::api) fn prepare_fast_path(&self, (plain, key): &FastCall<'_>) {
        if self.fast_path_cache.is_new(*key) {
            self.fast_path_cache.insert(*key, self.backend.prepare_fast_path(plain, *key));
        }
    }

    /// Runs a call whose key is cached, if it gets its turn immediately.
    ///
    /// # Errors
    /// The errors of [`Group::run`].
    #[inline]
    pub(in crate::api) fn run_fast_path(
        &self,
        call: &Call<'_>,
        options: &CallOptions,
        (plain, key): &FastCall<'_>,
    ) -> Option<Result<()>> {
        if !self.fast_path_cache.has_fast_path(*key) {
            return None;
        }
        if let Err(error) = call.check_overlap(self.rank()) {
            return Some(Err(error.context(call.kind().name())));
        }
        let (ticket, turn) = self.queue.try_issue_with_turn()?;
        let slot = RecorderSlot::reserve();
        let mut record = None;
        let mut begin_record = |words: &[u64; 3]| {
            self.observer.reset_latest_arrival();
            record = Some(self.observer.record_encoded(slot, words, &options.label));
        };
        let deadline = LazyDeadline::after_ms(self.effective_timeout_ms(options));
        let sequence_and_deadline = (ticket.sequence(), &deadline);
        let outcome = self.run_catching_panics(|| {
            self.backend.run_fast_path((plain, *key), sequence_and_deadline, &mut begin_record)
        });
        match (outcome, record) {
            (
                Ok(
                    done @ (FastPathOutcome::Done
                    | FastPathOutcome::WakeupPending
                    | FastPathOutcome::DoneAfterWait),
                ),
                Some(record),
            ) => {
                match done {
                    FastPathOutcome::DoneAfterWait => record.end(&Ok(())),
                    _ => record.end_without_clock(&Ok(())),
                }
                drop(turn);
                if done == FastPathOutcome::WakeupPending {
                    fence_after_any_rmw();
                    self.backend.wake_pending_waiters();
                }
                Some(Ok(()))
            }
            (outcome, record) => {
                let unfinished =
                    UnfinishedFastCall { ticket, turn, deadline, slot, outcome, record };
                Some(self.finish_on_full_path(call, options, unfinished))
            }
        }
    }

    /// Continues a call on the full path.
    #[cold]
    fn finish_on_full_path(
        &self,
        call: &Call<'_>,
        options: &CallOptions,
        unfinished: UnfinishedFastCall<'_>,
    ) -> Result<()> {
        let UnfinishedFastCall { ticket, turn, deadline, slot, outcome: fast_outcome, record } =
            unfinished;
        let descriptor = call.descriptor(ticket.sequence(), options.label);
        let observer = CallObserver::with_record(
            &self.observer,
            &descriptor,
            &deadline,
            CallRecord { slot, record },
        );
        let mut operation = call.operation(descriptor, options, self.name(), &deadline, &observer);
        operation.has_new_deadline = true;
        let outcome = fast_outcome.and_then(|found| {
            operation.is_published = found == FastPathOutcome::Published;
            self.run_catching_panics(|| self.backend.run(&operation))
        });
        drop(turn);
        observer.end(&outcome);
        self.finish_blocking_call(outcome, &descriptor)
    }
}

/// The state of a call that did not complete in the fast path.
struct UnfinishedFastCall<'a> {
    ticket: Ticket,
    turn: Turn<'a>,
    deadline: LazyDeadline,
    slot: RecorderSlot,
    outcome: Result<FastPathOutcome>,
    /// The entry in the recorder, if the call has started.
    record: Option<OperationRecord>,
}
