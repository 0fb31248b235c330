//! The staging back end: a device back end that needs no NCCL. It copies device memory to pinned
//! host memory (the *staging buffers*), runs the operation in the group's host back end, and copies
//! the result back to the device. The host back end can be any back end; it serves host memory and
//! owns the failure state of the group ([`super::device_map`]).
//!
//! - A collective is split into pieces that fit in the staging buffers ([`plan`]). The copies of
//!   one piece overlap with the operation on another piece ([`rounds`], [`buffers`]). The ranks
//!   agree on the chunk size (the size of a half of a staging buffer) at the bootstrap.
//! - A worker thread transfers point-to-point messages piece by piece ([`messages`]).
//! - If the host back end supports a call on device memory, it gets the device memory directly
//!   ([`direct`]).
//!
//! Rules:
//!
//! - **The host thread waits for the device; the device never waits for the host.** The only work
//!   that this back end enqueues on the device is copies. An operation begins when the device has
//!   completed the work that was in the caller's stream at the time of the call. It ends when the
//!   whole result is in device memory. Later work in any stream therefore sees the result, and no
//!   copy uses a buffer after the end of its operation, even if the operation fails.
//! - **Part numbers.** The operation that the host back end runs in one round has the sequence
//!   number of the whole operation and its own part number ([`Descriptor::part`]). Ranks that call
//!   different operations therefore detect the mismatch, even if one of them has its buffers in
//!   host memory.
//!
//! This module does not depend on NCCL, on a specific host back end, or on its callers.

mod buffers;
mod direct;
mod host;
mod messages;
mod options;
mod plan;
mod rounds;

use super::device_factory::{
    DeviceBackendCreator, DeviceBackendFactory, DeviceBackendOrReason, DeviceBackendSetup,
    agree_on_device, check_not_capturing, device_context,
};
use super::{
    BackendMemory, CountSpec, Descriptor, DeviceBackend, DevicePointToPoint, OpKind, Operation,
    SupportQuery,
};
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, GpuTarget, StreamMarker};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::base::sync::lock;
use crate::device::driver;
use crate::device::memory::DeviceMemory;
use buffers::{StagingBuffers, StagingWaitLimits};
use direct::DirectDevicePath;
use host::StagingHost;
use messages::StagingMessages;
use options::StagingOptions;
use plan::{CHUNK_ALIGN_BYTES, StagingBlocks, StagingPlan};
use rounds::StagedCollective;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// The query whether the host back end supports the all_reduce that computes the length of the
/// longest block. This all_reduce is necessary if each rank knows only the lengths of its own
/// blocks.
const LONGEST_BLOCK_QUERY: SupportQuery = SupportQuery {
    name: OpKind::AllReduce.name(),
    kind: Some(OpKind::AllReduce),
    dtype: Some(DataType::U64),
    op: Some(ReduceOp::Max),
    gpu: None,
};

/// The factory of the staging back ends.
#[derive(Debug)]
pub(super) struct StagingFactory;

impl DeviceBackendFactory for StagingFactory {
    fn name(&self) -> &'static str {
        "staging"
    }

    fn check(&self) -> Result<()> {
        driver::get_or_load().map(drop)
    }

    fn split_options(&self, options: &str) -> Result<(DeviceBackendCreator, String)> {
        let (options, rest) = options::split_options(options)?;
        Ok((Box::new(move |setup| StagingBackend::create(setup, options)), rest))
    }
}

/// The staging back end of a group.
#[derive(Debug)]
struct StagingBackend {
    rank: Rank,
    size: WorldSize,
    /// The size in bytes of one half of a staging buffer.
    chunk: usize,
    host: StagingHost,
    /// If the group prefers NCCL: the reason why it does not use NCCL.
    nccl_missing: Option<String>,
    /// The staging buffers, which the first collective creates. The running collective holds the
    /// lock.
    buffers: Mutex<Option<StagingBuffers>>,
    messages: StagingMessages,
    direct: DirectDevicePath,
}

impl StagingBackend {
    /// Creates the staging back end of this rank. All ranks must call this function, because it
    /// waits for all ranks. If the device back end is optional and a rank has no device, the
    /// function returns the reason.
    fn create(
        setup: &DeviceBackendSetup<'_>,
        options: StagingOptions,
    ) -> Result<DeviceBackendOrReason> {
        let agreed = agree_on_device(
            setup,
            "staging",
            device_context(setup.context),
            json!({ "chunk": options.chunk_bytes }),
            |fields| fields.integer::<usize>("chunk"),
            |rank, reason| format!("rank {rank} has no device: {reason}"),
        )?;
        let (context, chunks) = match agreed {
            Ok(agreed) => agreed,
            Err(reason) => return Ok(Err(reason)),
        };
        let (rank, size) = (setup.context.rank, setup.context.size);
        let chunk = chunks.into_iter().min();
        let chunk = chunk.ok_or_else(|| Error::internal("no rank sent a chunk size"))?;
        let chunk = chunk.max(CHUNK_ALIGN_BYTES * size).next_multiple_of(CHUNK_ALIGN_BYTES);
        let (backend, failure_state) = (Arc::clone(setup.host), Arc::clone(setup.failure_state));
        let host = StagingHost { context, backend, failure_state };
        Ok(Ok(Box::new(Self {
            rank,
            size,
            chunk,
            nccl_missing: setup.missing_reason.map(str::to_owned),
            buffers: Mutex::default(),
            messages: StagingMessages::new(&host, chunk, size),
            direct: DirectDevicePath::new(&host),
            host,
        })))
    }

    /// Returns the length in bytes of the longest block of all ranks.
    fn longest_block(&self, operation: &Operation<'_>, own_longest: usize) -> Result<usize> {
        if !operation.descriptor.kind.is_pairwise() {
            return Ok(operation.bytes());
        }
        let mut word = (own_longest as u64).to_le_bytes();
        let view = Dst::from(&mut word[..]);
        let descriptor = Descriptor {
            kind: OpKind::AllReduce,
            dtype: Some(DataType::U64),
            op: Some(ReduceOp::Max),
            root: None,
            // No other all_reduce has this count specification, so a mismatch is detected.
            count_spec: CountSpec::Pairwise,
            part: operation.descriptor.part + 1,
            ..operation.descriptor
        };
        let query_operation = Operation {
            count: 1,
            group: operation.group,
            ..Operation::of(descriptor, view.as_src(), view, operation.deadline)
        };
        self.host.backend.run(&query_operation)?;
        let longest = u64::from_le_bytes(word);
        usize::try_from(longest).map_err(|_| {
            Error::internal(format!(
                "a rank reported a block of {longest} bytes, which exceeds the address space"
            ))
        })
    }

    /// Waits until the device has completed the work that was in the caller's stream at the time of
    /// the call.
    fn await_stream(
        &self,
        limits: StagingWaitLimits<'_>,
        request: &EnqueueRequest<'_>,
    ) -> Result<()> {
        let Some(ready) = request.buffers_ready else { return Ok(()) };
        // The culprit of a timeout is this rank, because its own stream is late.
        limits.await_stream(|| ready.is_complete()).map_err(|error| match error.kind() {
            ErrorKind::Timeout => error.with_culprit(self.rank),
            _ => error,
        })
    }

    /// Runs the operation in the host back end, on device memory. The function returns the errors
    /// of the host back end unchanged.
    fn run_direct(&self, operation: &Operation<'_>, request: &EnqueueRequest<'_>) -> Result<()> {
        self.await_stream(self.host.wait_limits(operation.deadline()), request)
            .context(|| format!("from device {}", self.device()))
            .map_err(|error| self.host.failure_state.fail_with(error))?;
        self.host.backend.run(&Operation { has_new_deadline: false, ..*operation })
    }

    fn run_staged(&self, operation: &Operation<'_>, request: &EnqueueRequest<'_>) -> Result<()> {
        operation.observer.record_start("staging");
        let limits = self.host.wait_limits(operation.deadline());
        self.await_stream(limits, request)?;
        let blocks = StagingBlocks::of(operation, self.rank, self.size);
        let longest = self.longest_block(operation, blocks.longest_block())?;
        let kind = operation.descriptor.kind;
        let plan = StagingPlan::new(kind, self.size, self.chunk, longest);
        // The operation may itself be a part of a call.
        let part_before_first = operation.descriptor.part + u16::from(kind.is_pairwise());
        plan.check_part_numbers(part_before_first)?;
        let mut buffers = lock(&self.buffers);
        let buffers = match &mut *buffers {
            Some(existing) => existing,
            none => none.insert(StagingBuffers::new(&self.host.context, self.chunk)?),
        };
        let collective = StagedCollective {
            host: self.host.backend.as_ref(),
            whole: operation,
            blocks,
            plan,
            part_before_first,
        };
        collective.run_rounds(buffers, limits).map_err(|error| buffers.drain(error))
    }
}

impl DeviceBackend for StagingBackend {
    fn name(&self) -> &'static str {
        self.host.backend.name()
    }

    fn device(&self) -> usize {
        self.host.context.device()
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        // A barrier has no buffers.
        if query.kind == Some(OpKind::Barrier) || self.direct.can_run(query) {
            return Ok(());
        }
        let host = &self.host.backend;
        if query.kind.is_some_and(OpKind::is_pairwise) {
            host.supports(&LONGEST_BLOCK_QUERY)
                .context(|| format!("{query}, staged through host memory"))?;
        }
        host.supports(&SupportQuery { gpu: None, ..*query })
    }

    fn part_count(&self, kind: OpKind, block_bytes: usize) -> u16 {
        // The rounds have the part numbers after the part number of the operation itself.
        let rounds = StagingPlan::new(kind, self.size, self.chunk, block_bytes).round_count();
        u16::try_from(rounds + 1).unwrap_or(u16::MAX)
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn run(&self, operation: &Operation<'_>, request: &EnqueueRequest<'_>) -> Result<()> {
        self.host.failure_state.check_failure()?;
        if self.direct.can_run_operation(operation) {
            return self.run_direct(operation, request);
        }
        // Any error fails the group, because other ranks may be in the middle of the operation.
        self.run_staged(operation, request)
            .context(|| format!("staged through host memory, device {}", self.device()))
            .map_err(|error| self.host.failure_state.fail_with(error))
    }

    fn point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        Some(if self.direct.has_messages() { &self.direct } else { &self.messages })
    }

    fn on_group_failure(&self) {
        self.messages.on_group_failure();
    }

    fn check_stream(&self, gpu: GpuTarget) -> Result<()> {
        check_not_capturing(&self.host.context, gpu, self.name())
    }

    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        Ok(Some(Arc::new(self.host.record_event(gpu.stream)?)))
    }

    fn allocate(&self, _: usize, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        Ok(Box::new(DeviceMemory::new(&self.host.context, bytes)?))
    }

    fn describe(&self) -> Value {
        json!({
            "device": self.device(),
            "driver": self.host.context.driver().file(),
            "chunk_bytes": self.chunk,
            "direct": self.direct.supported_names(),
            "nccl_unavailable": self.nccl_missing,
        })
    }
}
