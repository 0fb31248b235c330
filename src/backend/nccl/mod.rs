//! Groups over NCCL: operations on the memory of one GPU for each rank.
//!
//! This is the part of a group that serves its device; the other one serves host memory, finds out
//! who lives, and has the group's failure ([`super::map`]). libnccl is found at run time
//! ([`library`], [`functions`]). The ranks' communicator is made in [`bootstrap`] and kept in
//! [`comm`], a call becomes NCCL's in [`calls`] and [`types`], those of several groups are enqueued
//! as one in [`enqueue_request`], and what was enqueued ([`enqueued`]) is looked after by a thread
//! ([`watchdog`]).
//!
//! Nothing here reads or writes a buffer. Operations are enqueued on the thread that issues them
//! where nothing of their group is before them, so that those of several groups on one stream are
//! there in the program's order.
//!
//! Must not know: other back ends, who calls.
#![allow(unsafe_code, reason = "this is where NCCL is called")]

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

/// The functions that are used, which an NCCL must have, and which it may have.
pub fn function_names() -> [&'static [&'static std::ffi::CStr]; 2] {
    [functions::NcclFunctions::REQUIRED, functions::NcclFunctions::OPTIONAL]
}

/// Whether an NCCL of this version (22703 for 2.27.3) with all its functions can do a kind of call
/// among so many ranks, on the memory of a GPU.
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

/// Whether a group over NCCL alone does a kind of call on host memory: only what it needs itself.
///
/// # Errors
/// `Unsupported`.
pub fn check_host_support(query: &SupportQuery) -> Result<()> {
    if query.kind.is_none_or(|kind| kind == OpKind::Barrier) {
        return Ok(());
    }
    let message = format!(
        "{query} in host memory: the back end nccl is for the memory of GPUs; \"cpu:native,cuda:nccl\" serves both"
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// A group's part on the device.
#[derive(Debug)]
pub(super) struct NcclBackend {
    rank: Rank,
    size: WorldSize,
    /// What is on the default stream when an operation is put into that one.
    default_stream_event: CudaEvent,
    watchdog: Arc<NcclWatchdog>,
}

impl NcclBackend {
    /// Makes this rank's part together with the other ranks.
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
        // The first reason, of which this may be a consequence.
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

    /// Its place in the stream is all that there is to it.
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
