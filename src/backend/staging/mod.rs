//! The staging back end: groups on GPUs without NCCL. It copies device memory to pinned host
//! memory, runs the operation in the host back end, and copies the result back. If the host back
//! end supports a call on device memory, it gets the device memory directly ([`direct`]).
//!
//! This is the device back end of a group. The host back end can be any back end; it serves host
//! memory and owns the failure state ([`super::device_map`]). A collective is split into pieces
//! that fit the staging buffers ([`plan`]). The copies of one piece overlap with the operation on
//! another ([`rounds`], [`buffers`]). A worker thread transfers messages piece by piece
//! ([`messages`]). The ranks agree on the chunk size at the bootstrap ([`agreement`]).
//!
//! * **The host waits, not the device.** Only copies are enqueued. An operation begins when the
//!   device has completed the work that was in the stream at the call. It ends when the device has
//!   all of the result. So later work in any stream sees the result, and no copy uses a buffer
//!   after the end of its operation, even if the operation failed.
//! * **Sub-operations** have the sequence number of their operation and their own part number
//!   ([`Descriptor::part`]). So ranks detect different calls, even if one rank has its buffers in
//!   host memory.
//!
//! This module does not depend on NCCL, on a specific host back end, or on its callers.

mod agreement;
mod buffers;
mod direct;
mod messages;
mod options;
mod plan;
mod rounds;

pub(super) use agreement::StagingRequest;
pub(super) use options::{StagingOptions, split_options};

use super::device_backend::{
    DeviceBackend, DevicePointToPoint, graph_capture_error, needs_no_device_memory,
};
use super::{
    Backend, BackendMemory, BootstrapExchange, CountSpec, Descriptor, GroupContext,
    GroupFailureState, OpKind, Operation, SupportQuery,
};
use crate::base::buffer::Dst;
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, GpuTarget, StreamMarker};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::base::sync::lock;
use crate::device::memory::DeviceMemory;
use crate::device::stream::{DEFAULT_STREAM, is_capturing};
use crate::device::{self, CudaEvent};
use buffers::{StagingBuffers, StagingWaitLimits};
use direct::DirectDevicePath;
use messages::StagingMessages;
use plan::{StagingBlocks, StagingPlan};
use rounds::StagedCollective;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// The query for the all_reduce that computes the maximum block length, if each rank knows only its
/// own blocks.
const LONGEST_BLOCK_QUERY: SupportQuery = SupportQuery {
    name: OpKind::AllReduce.name(),
    kind: Some(OpKind::AllReduce),
    dtype: Some(DataType::U64),
    op: Some(ReduceOp::Max),
    gpu: None,
};

/// The staging back end of a group.
#[derive(Debug)]
pub(super) struct StagingBackend {
    rank: Rank,
    size: WorldSize,
    /// The size in bytes of one half of a staging buffer.
    chunk: usize,
    context: Arc<device::CudaContext>,
    cpu: Arc<dyn Backend>,
    failure_state: Arc<dyn GroupFailureState>,
    /// The reason why NCCL is not used, if it was requested first.
    nccl_missing: Option<String>,
    /// The staging buffers, created by the first collective. The running collective holds the lock.
    buffers: Mutex<Option<StagingBuffers>>,
    messages: StagingMessages,
    direct: DirectDevicePath,
}

impl StagingBackend {
    /// Creates the staging back end of this rank. All ranks call it together.
    pub(super) fn create(
        context: &GroupContext<'_>,
        exchange: &dyn BootstrapExchange,
        (cpu, failure_state): (&Arc<dyn Backend>, &Arc<dyn GroupFailureState>),
        request: &StagingRequest<'_>,
    ) -> Result<std::result::Result<Self, String>> {
        let agreed = match agreement::agree_on_staging(context, exchange, failure_state, request)? {
            Ok(agreed) => agreed,
            Err(reason) => return Ok(Err(reason)),
        };
        let parts = (cpu, failure_state);
        let messages = StagingMessages::new(&agreed.context, agreed.chunk, context.size, parts);
        let direct = DirectDevicePath::new(&agreed.context, parts);
        Ok(Ok(Self {
            rank: context.rank,
            size: context.size,
            chunk: agreed.chunk,
            context: agreed.context,
            cpu: Arc::clone(cpu),
            failure_state: Arc::clone(failure_state),
            nccl_missing: request.nccl_missing.clone(),
            buffers: Mutex::default(),
            messages,
            direct,
        }))
    }

    /// Returns the maximum block length of all ranks in bytes.
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
            // No other all_reduce has this value.
            count_spec: CountSpec::Pairwise,
            part: 1,
            ..operation.descriptor
        };
        let query_operation = Operation {
            count: 1,
            group: operation.group,
            ..Operation::of(descriptor, view.as_src(), view, operation.deadline)
        };
        self.cpu.run(&query_operation)?;
        let longest = u64::from_le_bytes(word);
        usize::try_from(longest).map_err(|_| {
            Error::internal(format!(
                "a rank reported a block of {longest} bytes, which exceeds the address space"
            ))
        })
    }

    /// Waits until the device has completed the work that was in the stream at the call.
    fn await_stream(
        &self,
        limits: StagingWaitLimits<'_>,
        launch: &EnqueueRequest<'_>,
    ) -> Result<()> {
        let Some(ready) = launch.buffers_ready else { return Ok(()) };
        let wait = limits.wait(&"the earlier work of the stream", || ready.is_complete());
        wait.map_err(|error| self.with_own_culprit(error))
    }

    /// Runs the operation in the host back end on device memory. Its errors and refusals stay
    /// unchanged.
    fn run_direct(&self, operation: &Operation<'_>, launch: &EnqueueRequest<'_>) -> Result<()> {
        let check_failure = || self.failure_state.failure();
        let limits =
            StagingWaitLimits { deadline: operation.deadline(), check_failure: &check_failure };
        let ready = self.await_stream(limits, launch);
        ready
            .context(|| format!("from device {}", self.device()))
            .map_err(|error| self.fail_group(error))?;
        self.cpu.run(&Operation { has_new_deadline: false, ..*operation })
    }

    fn run_staged(&self, operation: &Operation<'_>, launch: &EnqueueRequest<'_>) -> Result<()> {
        operation.observer.record_start("staging");
        let check_failure = || self.failure_state.failure();
        let limits =
            StagingWaitLimits { deadline: operation.deadline(), check_failure: &check_failure };
        self.await_stream(limits, launch)?;
        let blocks = StagingBlocks::of(operation, self.rank, self.size);
        let longest = self.longest_block(operation, blocks.longest_block())?;
        let kind = operation.descriptor.kind;
        let (plan, part_before_first) =
            (StagingPlan::new(kind, self.size, self.chunk, longest), u16::from(kind.is_pairwise()));
        plan.check_part_numbers(part_before_first)?;
        let mut buffers = lock(&self.buffers);
        let buffers = match &mut *buffers {
            Some(desk) => desk,
            none => none.insert(StagingBuffers::new(&self.context, self.chunk)?),
        };
        let collective = StagedCollective {
            cpu: self.cpu.as_ref(),
            whole: operation,
            blocks,
            plan,
            part_before_first,
        };
        collective.run_rounds(buffers, limits).map_err(|error| buffers.drain(error))
    }

    /// Names this rank as the culprit of a timeout, because its own stream is late.
    fn with_own_culprit(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Timeout => error.with_culprit(self.rank),
            _ => error,
        }
    }

    fn fail_group(&self, error: Error) -> Error {
        self.failure_state.fail(&error);
        // Return the first failure, because this error may be its consequence.
        self.failure_state.failure().unwrap_or(error)
    }
}

impl DeviceBackend for StagingBackend {
    fn device(&self) -> usize {
        self.context.device()
    }

    fn supports(&self, query: &SupportQuery) -> Result<()> {
        if needs_no_device_memory(query) || self.direct.can_run(query) {
            return Ok(());
        }
        if query.kind.is_some_and(OpKind::is_pairwise) {
            self.cpu
                .supports(&LONGEST_BLOCK_QUERY)
                .context(|| format!("{query}, staged through host memory"))?;
        }
        self.cpu.supports(&SupportQuery { gpu: None, ..*query })
    }

    fn is_stream_ordered(&self) -> bool {
        false
    }

    fn run(&self, operation: &Operation<'_>, launch: &EnqueueRequest<'_>) -> Result<()> {
        if let Some(failure) = self.failure_state.failure() {
            return Err(failure);
        }
        if self.direct.can_run_operation(operation) {
            return self.run_direct(operation, launch);
        }
        let outcome = self.run_staged(operation, launch);
        let outcome =
            outcome.context(|| format!("staged through host memory, device {}", self.device()));
        // Any early end fails the group, because other ranks may be within the operation.
        outcome.map_err(|error| self.fail_group(error))
    }

    fn device_point_to_point(&self) -> Option<&dyn DevicePointToPoint> {
        Some(if self.direct.has_messages() { &self.direct } else { &self.messages })
    }

    fn on_group_failure(&self) {
        self.messages.on_group_failure();
    }

    fn check_stream(&self, stream: usize) -> Result<()> {
        let _current = self.context.make_current()?;
        match is_capturing(&self.context, stream)? {
            true => Err(graph_capture_error(self.cpu.name())),
            false => Ok(()),
        }
    }

    fn record_stream_event(&self, gpu: GpuTarget) -> Result<Option<Arc<dyn StreamMarker>>> {
        let event = CudaEvent::new(&self.context)?;
        event.record(gpu.stream.unwrap_or(DEFAULT_STREAM))?;
        Ok(Some(Arc::new(event)))
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn BackendMemory>> {
        Ok(Box::new(DeviceMemory::new(&self.context, bytes)?))
    }

    fn describe(&self) -> Value {
        json!({
            "device": self.device(),
            "driver": self.context.driver().file(),
            "chunk_bytes": self.chunk,
            "direct": self.direct.supported_names(),
            "nccl_unavailable": self.nccl_missing,
        })
    }
}
