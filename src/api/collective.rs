//! Collective calls: what is checked before anybody else is told, and in what order they run.

use super::activity;
use super::call::{Call, CallOptions};
use super::callbacks;
use super::debug::loans;
use super::ear::Ear;
use super::group::Group;
use super::prompt::Simple;
use super::queue::{Ticket, Turn};
use crate::algo::{Operation, Wanted};
use crate::backend::Query;
use crate::base::deadline::{Deadline, LateDeadline};
use crate::base::error::{Context as _, Error, ErrorKind, Result};
use crate::base::gpu::FlightSlot;
use crate::transport::Descriptor;
use crate::wait::Interrupt;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Group {
    /// Checks a call, takes its place in the order, and runs it on the calling thread.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unsupported` before anything has happened; afterwards `Timeout`,
    /// `PeerFailed`, `Mismatch` or `Aborted`, all of which fail the group.
    #[inline]
    pub fn run(&self, call: Call<'_>, options: &CallOptions) -> Result<()> {
        callbacks::refuse_to_block("a blocking call")?;
        let simple = self.simple(&call, options);
        if let Some(simple) = &simple
            && let Some(outcome) = self.run_promptly(&call, options, simple)
        {
            return outcome;
        }
        self.run_at_length(call, options, simple)
    }

    /// [`Group::run`] for a call that has no shorter way.
    #[inline(never)]
    pub(super) fn run_at_length(
        &self,
        mut call: Call<'_>,
        options: &CallOptions,
        simple: Option<Simple<'_>>,
    ) -> Result<()> {
        self.check_call(&mut call, options)?;
        let ready = self.mark(&call)?;
        let deadline = LateDeadline::after_ms(self.limit_ms(options));
        let ticket = self.queue.issue();
        let descriptor = call.descriptor(ticket.sequence(), options.label);
        let ear = Ear::new(self, &descriptor, &deadline);
        let of = (self.name(), &deadline);
        let flight = FlightSlot::new();
        let mut operation = call.operation(descriptor, options, of, &ear);
        operation.launch = call.launch(&flight, ready.as_deref());
        loans::check(self, &call.kind().name(), |note| call.each_buffer(note));
        let turn = self.await_turn(&mut operation, &ticket, &ear);
        let outcome = turn.and_then(|_turn| {
            self.contain(|| self.carry_out(&operation, options.values))?;
            simple.iter().for_each(|simple| self.rehearse(simple));
            Ok(())
        });
        // On a stream of the library's, the caller could not wait for it.
        let outcome = match operation.launch {
            Some(launch) if launch.gpu.stream.is_none() => {
                outcome.and_then(|()| self.await_device(&flight, deadline.begun()))
            }
            _ => outcome,
        };
        ear.end(&outcome);
        self.conclude(outcome, &descriptor)
    }

    /// Waits for the turn of a blocking call.
    pub(super) fn await_turn<'g>(
        &'g self,
        operation: &mut Operation<'_>,
        ticket: &Ticket,
        ear: &Ear<'_>,
    ) -> Result<Turn<'g>> {
        operation.is_fresh = self.queue.has_turn(ticket);
        if !operation.is_fresh {
            ear.waits_for_turn();
        }
        let turn = match self.queue.wait_turn(ticket, operation.deadline, || self.failure()) {
            Ok(turn) => turn,
            Err(Interrupt::Halted(error)) => return Err(error),
            Err(Interrupt::Deadline) => {
                return Err(self.overtaken(&operation.descriptor, operation.deadline()));
            }
        };
        ear.runs(self.looks_who_is_there);
        Ok(turn)
    }

    /// Waits for the turn of a blocking call that is made of several operations, and runs it, with
    /// an entry in the flight recorder.
    pub(super) fn run_in_turn<T>(
        &self,
        ticket: &Ticket,
        descriptor: &Descriptor,
        deadline: &LateDeadline,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let runs = self.queue.has_turn(ticket);
        let record = self.record(descriptor, deadline.begun().started(), runs);
        let outcome = match self.queue.wait_turn(ticket, deadline, || self.failure()) {
            Ok(_turn) => {
                record.runs();
                self.contain(run)
            }
            Err(Interrupt::Halted(error)) => Err(error),
            Err(Interrupt::Deadline) => Err(self.overtaken(descriptor, deadline.begun())),
        };
        record.end(&outcome.as_ref().map(drop).map_err(Clone::clone));
        outcome
    }

    /// What a blocking call hands to its caller.
    pub(super) fn conclude(&self, outcome: Result<()>, descriptor: &Descriptor) -> Result<()> {
        let outcome = outcome.context(|| format!("{descriptor} on {}", self.whom()));
        outcome.inspect_err(|error| self.hand_out(error))
    }

    /// Runs an operation in its turn. A panic in it fails the group: other ranks may wait for what
    /// does not come.
    pub(super) fn contain<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            let error =
                Error::internal("a defect in libdist, please report it: a panic in the operation");
            self.fail(&error);
            Err(error)
        })
    }

    /// What can be checked alone.
    pub(super) fn check_call(&self, call: &mut Call<'_>, options: &CallOptions) -> Result<()> {
        let kind = call.kind();
        self.check(call, options).context(|| kind.name())
    }

    fn check(&self, call: &mut Call<'_>, options: &CallOptions) -> Result<()> {
        if self.device.is_some() || options.is_placed() {
            self.locate(call, options)?;
        }
        if let Some((op, dtype)) = call.reduction() {
            op.check_defined_for(dtype, || self.backend_name())?;
        }
        call.check(options, self.rank(), self.size())?;
        if self.is_selective && !call.is_empty() {
            let (kind, dtype, op) = (call.kind(), call.dtype(), call.op());
            let gpu = call.gpu().map(|gpu| gpu.device);
            let query = Query { name: kind.name(), kind: Some(kind), dtype, op, gpu };
            self.backend.supports(&query)?;
        }
        let (name, canonical) = (options.algorithm.as_deref(), options.canonical);
        if name.is_none() && !canonical {
            return Ok(());
        }
        self.backend.check_wanted(call.kind(), call.bytes(), Wanted { name, canonical })
    }

    pub(super) fn deadline(&self, options: &CallOptions) -> Deadline {
        Deadline::after_ms(self.limit_ms(options))
    }

    pub(super) fn limit_ms(&self, options: &CallOptions) -> u64 {
        if options.timeout_ms == 0 { self.timeout_ms() } else { options.timeout_ms }
    }

    /// The operations before this one took too long. On other ranks it may run all the same, so
    /// that the group cannot go on.
    pub(super) fn overtaken(&self, descriptor: &Descriptor, deadline: &Deadline) -> Error {
        let ahead = activity::ahead(self.id(), self.rank(), descriptor.sequence);
        let message = format!(
            "{descriptor} of rank {} timed out after {} ms behind earlier operations of this rank{}",
            self.rank(),
            deadline.elapsed().as_millis(),
            ahead.map(|first| format!(", of which {first} is under way")).unwrap_or_default()
        );
        let error = Error::new(ErrorKind::Timeout, message).with_culprit(self.rank());
        self.fail(&error);
        error
    }
}
