//! The deadline of a call, and the steps from the call's ticket to its end. A call takes a ticket
//! in the group's queue, waits for its turn (until the collectives with earlier tickets have
//! ended), and runs its operation.
//!
//! If a debug check is on, the operation runs with checks before and after it. Blocking calls on
//! byte strings and blocking calls with an operator of the caller share [`Group::run_in_turn`].

use crate::algo::Operation;
use crate::api::collective::call::{Call, CallOptions};
use crate::api::group::process_group::Group;
use crate::api::observe::operation_details::CallSizes;
use crate::api::observe::recorder::OperationRecord;
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::debug::{self, NanCheck};
use crate::base::error::Result;
use crate::transport::Descriptor;
use crate::wait::WaitInterrupt;

impl Group {
    pub(in crate::api) fn deadline(&self, options: &CallOptions) -> Deadline {
        Deadline::after_ms(self.effective_timeout_ms(options))
    }

    pub(super) fn effective_timeout_ms(&self, options: &CallOptions) -> u64 {
        if options.timeout_ms == 0 { self.timeout_ms() } else { options.timeout_ms }
    }

    /// Runs an operation on the back end, with the debug checks that are on. The caller has the
    /// turn.
    pub(in crate::api) fn carry_out(
        &self,
        operation: &Operation<'_>,
        nan_check: NanCheck,
    ) -> Result<()> {
        let nan_check = nan_check.max(debug::nan_check());
        if nan_check == NanCheck::Off && !self.has_arrival_check {
            return self.backend.run(operation);
        }
        self.carry_out_with_checks(operation, nan_check)
    }

    #[cold]
    fn carry_out_with_checks(&self, operation: &Operation<'_>, nan_check: NanCheck) -> Result<()> {
        let Operation { descriptor, send, recv, sends, recvs, .. } = *operation;
        self.await_all_arrivals(&descriptor, operation.deadline())?;
        let operation = &Operation { has_new_deadline: false, ..*operation };
        let title = |index: usize, role: &str| match index {
            0 => format!("{descriptor}: {role}"),
            block => format!("{descriptor}: block {} of the {role}", block - 1),
        };
        let inputs = [send].into_iter().chain(sends.into_iter().flatten().copied());
        if operation.enqueue_request.is_some() {
            // The buffers are in device memory, which the CPU cannot read. So they are not checked.
            return self.backend.run(operation);
        }
        self.check_for_nan(operation.dtype(), nan_check, inputs, |index| title(index, "input"))?;
        self.backend.run(operation)?;
        let blocks = recvs.into_iter().flatten();
        let results = [recv].into_iter().chain(blocks.copied()).map(|block| block.as_src());
        self.check_for_nan(operation.dtype(), nan_check, results, |index| title(index, "result"))
    }

    /// Runs a collective on the back end that is one step of a call that has the turn. For example,
    /// a call on byte strings exchanges lengths with it.
    pub(super) fn run_part(
        &self,
        call: &Call<'_>,
        descriptor: Descriptor,
        deadline: &LazyDeadline,
    ) -> Result<()> {
        self.run_part_with(call, descriptor, &CallOptions::DEFAULT, deadline)
    }

    /// Runs a collective like [`Self::run_part`], with options of the caller.
    pub(super) fn run_part_with(
        &self,
        call: &Call<'_>,
        descriptor: Descriptor,
        options: &CallOptions,
        deadline: &LazyDeadline,
    ) -> Result<()> {
        let group = self.name();
        self.backend.run(&call.operation(descriptor, options, group, deadline, &self.observer))
    }

    /// Takes a ticket for a blocking call of `operation_count` operations, waits for the turn, runs
    /// `run`, and records the call in the flight recorder. `describe` returns the descriptor of the
    /// first operation. `sizes` has the sizes of the buffers, if the descriptor does not have them.
    /// `title` returns the name of the call for error texts.
    pub(in crate::api) fn run_in_turn<T>(
        &self,
        operation_count: u64,
        options: &CallOptions,
        describe: impl FnOnce(u64) -> Descriptor,
        sizes: &CallSizes,
        title: impl FnOnce(&Descriptor) -> String,
        run: impl FnOnce(&Descriptor, &LazyDeadline, &OperationRecord) -> Result<T>,
    ) -> Result<T> {
        let deadline = LazyDeadline::from(self.deadline(options));
        let ticket = self.queue.issue_several(operation_count);
        let descriptor = describe(ticket.sequence());
        let (issued, runs) = (deadline.get_or_start().started(), self.queue.has_turn(&ticket));
        let record = self.record_collective(&descriptor, issued, runs);
        record.add_sizes(sizes);
        let outcome = match self.queue.wait_turn(&ticket, &deadline, || self.failure()) {
            Ok(_turn) => {
                record.mark_running();
                self.run_catching_panics(|| run(&descriptor, &deadline, &record))
            }
            Err(WaitInterrupt::Aborted(error)) => Err(error),
            Err(WaitInterrupt::Deadline) => {
                Err(self.fail_expired_call(&descriptor, deadline.get_or_start()))
            }
        };
        record.end(&outcome.as_ref().map(drop).map_err(Clone::clone));
        let outcome = outcome.map_err(|error| self.with_call_context(error, &title(&descriptor)));
        outcome.inspect_err(|error| self.report_to_caller(error))
    }

    /// Adds the name of the operation to the error of a blocking call, and reports the error before
    /// the call returns it.
    pub(super) fn finish_blocking_call(
        &self,
        outcome: Result<()>,
        descriptor: &Descriptor,
    ) -> Result<()> {
        let outcome =
            outcome.map_err(|error| self.with_call_context(error, &descriptor.to_string()));
        outcome.inspect_err(|error| self.report_to_caller(error))
    }
}
