//! The full path of blocking collective calls.
//!
//! The steps of a call:
//! 1. This rank checks the arguments, without any other rank.
//! 2. The call takes a ticket, which is its place in the order of the group's collectives.
//! 3. The call waits for its turn, that is, until the collectives with earlier tickets have ended
//!    on this rank.
//! 4. The operation runs on the calling thread.
//!
//! A small call that repeats an earlier call takes the fast path (`fast_path`), which skips most of
//! these steps.

use crate::algo::{AlgorithmRequest, Operation};
use crate::api::collective::call::{Call, CallOptions};
use crate::api::collective::call_observer::CallObserver;
use crate::api::group::process_group::Group;
use crate::api::observe::deadlock::BlockedCallGuard;
use crate::api::observe::debug::in_flight_buffers;
use crate::api::work::queue::{Ticket, Turn};
use crate::backend::SupportQuery;
use crate::base::deadline::LazyDeadline;
use crate::base::error::{ErrorContext as _, Result};
use crate::base::gpu::EnqueuedOperationSlot;
use crate::wait::WaitInterrupt;
use std::sync::Arc;

impl Group {
    /// Runs a blocking call (see [`Group::run_by_reference`]) that does not take the fast path.
    #[inline(never)]
    pub(super) fn run_full_path(&self, call: &mut Call<'_>, options: &CallOptions) -> Result<()> {
        self.check_call(call, options)?;
        let ready_event = self.record_ready_event(call.gpu)?;
        let deadline = LazyDeadline::after_ms(self.effective_timeout_ms(options));
        let ticket = self.queue.issue();
        let _guard = self.blocked_call(ticket.sequence(), options);
        let descriptor = call.descriptor(ticket.sequence(), options.label);
        let observer = CallObserver::new(self, call, &descriptor, &deadline);
        let completion_slot = EnqueuedOperationSlot::new();
        let mut operation = call.operation(descriptor, options, self.name(), &deadline, &observer);
        operation.enqueue_request = call.device_launch(&completion_slot, ready_event.as_deref());
        in_flight_buffers::check_blocking_call(self, &call.kind().name(), |note| {
            call.visit_buffers(note)
        });
        let turn = self.wait_for_turn(&mut operation, &ticket, &observer);
        let outcome = turn.and_then(|_turn| {
            let outcome =
                self.run_catching_panics(|| self.carry_out(&operation, options.nan_check));
            observer.end_turn();
            outcome
        });
        if operation.enqueue_request.is_some() {
            observer.listen_for_device_time(&completion_slot);
        }
        // If the operation runs on a stream of the library, the caller cannot wait for the stream.
        // Therefore this call waits for the device.
        let outcome = match operation.enqueue_request {
            Some(launch) if launch.gpu.stream.is_none() => outcome
                .and_then(|()| self.wait_for_device(&completion_slot, deadline.get_or_start())),
            _ => outcome,
        };
        observer.end(&outcome);
        self.finish_blocking_call(outcome, &descriptor)
    }

    /// Marks that this thread runs a collective that may be blocked.
    pub(super) fn blocked_call(&self, sequence: u64, options: &CallOptions) -> BlockedCallGuard {
        let queue = Arc::as_ptr(&self.queue).addr();
        BlockedCallGuard::collective(queue, sequence, self.effective_timeout_ms(options))
    }

    /// Waits for the turn of a blocking call. If the deadline passes first, the group fails.
    fn wait_for_turn<'g>(
        &'g self,
        operation: &mut Operation<'_>,
        ticket: &Ticket,
        observer: &CallObserver<'_>,
    ) -> Result<Turn<'g>> {
        operation.has_new_deadline = self.queue.has_turn(ticket);
        if !operation.has_new_deadline {
            observer.begin_waiting();
        }
        let turn = match self.queue.wait_turn(ticket, operation.deadline, || self.failure()) {
            Ok(turn) => turn,
            Err(WaitInterrupt::Aborted(error)) => return Err(error),
            Err(WaitInterrupt::Deadline) => {
                return Err(self.fail_expired_call(&operation.descriptor, operation.deadline()));
            }
        };
        observer.begin_running(self.has_arrival_check);
        Ok(turn)
    }

    /// Checks the arguments of a call as far as this rank can without the other ranks.
    pub(in crate::api) fn check_call(
        &self,
        call: &mut Call<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let kind = call.kind();
        self.check_arguments(call, options).context(|| kind.name())
    }

    fn check_arguments(&self, call: &mut Call<'_>, options: &CallOptions) -> Result<()> {
        if self.device.is_some() || options.is_for_device() {
            self.locate_buffers(call, options)?;
        }
        if let Some((op, dtype)) = call.reduction() {
            op.check_defined_for(dtype, || self.backend_name())?;
        }
        call.check(options, self.rank(), self.size())?;
        if self.has_partial_support && !call.is_empty {
            let (kind, dtype, op) = (call.kind(), call.dtype, call.op);
            let gpu = call.gpu.map(|gpu| gpu.device);
            let query = SupportQuery { name: kind.name(), kind: Some(kind), dtype, op, gpu };
            self.backend.supports(&query)?;
        }
        let (name, canonical) = (options.algorithm.as_deref(), options.canonical);
        if name.is_none() && !canonical {
            return Ok(());
        }
        self.backend.check_algorithm_request(
            call.kind(),
            call.bytes(),
            AlgorithmRequest::of(name, canonical, call.dtype, call.op),
        )
    }
}
