//! The NCCL back end: operations on the memory of one GPU per rank.
//!
//! This is the device back end of a group. The host back end serves host memory, detects dead
//! ranks, and owns the failure state ([`super::device_map`]). The modules, in the order of a
//! group's life:
//!
//! - [`library`] and [`functions`] find libnccl at run time.
//! - [`bootstrap`] creates the communicator of the ranks, and [`comm`] owns it.
//! - [`calls`] and [`types`] translate an operation to NCCL calls.
//! - [`launch`] enqueues the operations of several groups as one batch.
//! - [`watchdog`] is the thread that monitors the [`enqueued`] operations.
//!
//! The back end never reads or writes a buffer. If no operation of the group is queued before an
//! operation, the issuing thread enqueues it. So the operations of several groups on one stream
//! have the order of the program.
//!
//! This module does not depend on other back ends or on its callers.
#![allow(unsafe_code, reason = "calls the functions of NCCL")]

mod bootstrap;
mod calls;
mod comm;
mod enqueued;
mod functions;
mod launch;
pub mod library;
mod memory;
mod options;
mod quiescence;
mod types;
mod watchdog;

pub(super) use bootstrap::{NcclOrReason, NcclRequest};
pub use launch::NcclEnqueuer;
pub(super) use launch::enqueue_batches;
pub(super) use options::{NcclOptions, split_options};

use super::device_backend::{DeviceBackend, DeviceBatch, graph_capture_error};
use super::{
    BackendMemory, BootstrapExchange, DoorbellListener, GroupContext, GroupFailureState, OpKind,
    Operation, RankLocation, SupportQuery,
};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, GpuTarget, StreamMarker};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::device::CudaEvent;
use crate::device::driver::CudaHandle;
use crate::device::stream::is_capturing;
use serde_json::{Value, json};
use std::sync::Arc;
use watchdog::NcclWatchdog;

/// Returns the names of the NCCL functions that libdist requires, and of the optional ones.
pub fn function_names() -> [&'static [&'static std::ffi::CStr]; 2] {
    [functions::NcclFunctions::REQUIRED, functions::NcclFunctions::OPTIONAL]
}

/// Checks whether an NCCL of this version (22703 for 2.27.3) with all optional functions supports a
/// kind of call among `size` ranks, on GPU memory.
///
/// # Errors
/// `Unsupported`.
pub fn check_support(query: &SupportQuery, version: i32, size: WorldSize) -> Result<()> {
    let (Some(op), Some(dtype)) = (query.op, query.dtype) else { return Ok(()) };
    op.check_defined_for(dtype, || "nccl")?;
    if let Some(kind) = query.kind.filter(|kind| kind.is_prefix()) {
        return Err(types::unsupported_prefix(kind));
    }
    types::reduce_elements(dtype, op, (version, size)).map(drop)
}

/// Checks whether a group over NCCL alone supports a kind of call on host memory: only the calls
/// that the group needs itself.
///
/// # Errors
/// `Unsupported`.
pub fn check_host_support(query: &SupportQuery) -> Result<()> {
    if query.kind.is_none_or(|kind| kind == OpKind::Barrier) {
        return Ok(());
    }
    let message = format!(
        "{query} in host memory: the back end nccl supports GPU memory only; use \
         \"cpu:native,cuda:nccl\" for both"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// The NCCL back end of a group.
#[derive(Debug)]
pub(super) struct NcclBackend {
    rank: Rank,
    size: WorldSize,
    /// Recorded on the default stream before an operation goes to the library's own stream.
    default_stream_event: CudaEvent,
    watchdog: Arc<NcclWatchdog>,
}

impl NcclBackend {
    /// Creates the NCCL back end of this rank. All ranks call it together.
    pub(super) fn create(
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
        parts: (&Arc<dyn GroupFailureState>, &[RankLocation]),
        request: &NcclRequest<'_>,
    ) -> Result<NcclOrReason<Self>> {
        let watchdog = match bootstrap::create(context, exchange, parts, request)? {
            Ok(watchdog) => watchdog,
            Err(reason) => return Ok(Err(reason)),
        };
        let (rank, size) = (context.rank, context.size);
        match CudaEvent::new(watchdog.comm.context()) {
            Ok(inputs) => Ok(Ok(Self { rank, size, default_stream_event: inputs, watchdog })),
            Err(error) => {
                watchdog.fail(&error);
                watchdog.close();
                Err(error)
            }
        }
    }

    fn fail_group(&self, error: Error) -> Error {
        self.watchdog.fail(&error);
        // Return the first failure, because this error may be its consequence.
        self.watchdog.failure_state.failure().unwrap_or(error)
    }
}

impl DeviceBackend for NcclBackend {
    fn device(&self) -> usize {
        self.watchdog.comm.context().device()
    }

    fn on_group_failure(&self) {
        self.watchdog.on_doorbell();
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        let library = self.watchdog.comm.library();
        check_support(query, library.version(), self.size).map_err(|error| {
            error.context(format_args!("{query} ({})", library.version_and_file()))
        })?;
        let has_premul_sum = library.functions.create_premul_sum.is_some();
        if query.op == Some(ReduceOp::PremulSum) && !has_premul_sum {
            return Err(calls::missing_premul_sum(library.version_and_file(), ReduceOp::PremulSum));
        }
        Ok(())
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    /// Returns `None`: the order of the stream is sufficient.
    fn record_stream_event(&self, _: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        Ok(None)
    }

    fn run(&self, operation: &Operation<'_>, launch: &EnqueueRequest<'_>) -> Result<()> {
        let operation = Operation { enqueue_request: Some(*launch), ..*operation };
        let (operations, messages) = (&[operation][..], &[][..]);
        let deadline = operation.deadline();
        let enqueuer = NcclEnqueuer(self);
        let bundle = DeviceBatch { enqueuer, operations, messages, deadline };
        enqueue_batches(&[bundle]).into_iter().collect()
    }

    fn enqueuer(&self) -> Option<NcclEnqueuer<'_>> {
        Some(NcclEnqueuer(self))
    }

    fn check_stream(&self, stream: CudaHandle) -> Result<()> {
        let context = self.watchdog.comm.context();
        let _current = context.make_current()?;
        if is_capturing(context, stream)? {
            return Err(graph_capture_error("nccl"));
        }
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        memory::allocate(&self.watchdog, bytes)
    }

    fn describe(&self) -> Value {
        let library = self.watchdog.comm.library();
        let options = &self.watchdog.options;
        json!({
            "version": library.version_text(),
            "library": library.file(),
            "missing": library.missing_functions(),
            "driver": self.watchdog.comm.context().driver().file(),
            "device": self.device(),
            "high_priority": options.high_priority,
            "blocking_wait": options.blocking_wait,
            "windows": options.windows,
            "blocking": self.watchdog.comm.may_block(),
            "async_error_handling": options.handles_errors,
        })
    }
}

impl Drop for NcclBackend {
    fn drop(&mut self) {
        self.watchdog.close();
    }
}
