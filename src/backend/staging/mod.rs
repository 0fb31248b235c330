//! Groups on GPUs without NCCL: what lies in a device's memory is copied to pinned host memory,
//! carried by the part for host memory, and copied back; or that part takes it as it is, where it
//! says that it can ([`direct`]).
//!
//! This is the part of a group that serves its device; the other one, which is any back end, serves
//! host memory, and has the group's failure ([`super::map`]). A collective is cut into pieces that
//! fit the staging memory ([`plan`]), whose copies and operations overlap ([`round_count`],
//! [`buffers`]); messages are carried piece by piece by a thread ([`messages`]). The ranks agree on
//! the length of a piece when they meet ([`agreement`]).
//!
//! * **The host waits, not the device.** Nothing is enqueued but copies: an operation begins once
//!   the device has come to where its stream was when it was issued, and ends once the device has
//!   all of the result. So whatever is given to any stream afterwards sees it, and a buffer is
//!   never touched after its operation, whatever became of that.
//! * **Parts of one operation** have its number and one of their own ([`Descriptor::part`]), so
//!   that ranks that do not call the same are told apart, also where one has its buffers in host
//!   memory.
//!
//! Must not know: NCCL, which back end the other part is, who calls.

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
use crate::device::memory::DeviceMemory;
use crate::device::stream::{DEFAULT_STREAM, is_capturing};
use crate::device::{self, CudaEvent};
use buffers::{StagingBuffers, StagingWaitLimits};
use direct::DirectDevicePath;
use messages::StagingMessages;
use plan::{StagingBlocks, StagingPlan};
use rounds::StagedCollective;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// How ranks find the longest block of all, where each knows only its own.
const LONGEST_BLOCK_QUERY: SupportQuery = SupportQuery {
    name: OpKind::AllReduce.name(),
    kind: Some(OpKind::AllReduce),
    dtype: Some(DataType::U64),
    op: Some(ReduceOp::Max),
    gpu: None,
};

/// A group's part on the device.
#[derive(Debug)]
pub(super) struct StagingBackend {
    rank: Rank,
    size: WorldSize,
    /// The bytes of staging memory in a half of one direction.
    chunk: usize,
    context: Arc<device::CudaContext>,
    cpu: Arc<dyn Backend>,
    failure_state: Arc<dyn GroupFailureState>,
    /// Why it is not NCCL, where that was asked for first.
    nccl_missing: Option<String>,
    /// From the first collective on. Held by the one that runs.
    buffers: Mutex<Option<StagingBuffers>>,
    messages: StagingMessages,
    direct: DirectDevicePath,
}

impl StagingBackend {
    /// Makes this rank's part together with the other ranks.
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

    /// The longest block of any rank.
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
            // What no call has.
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
        usize::try_from(longest)
            .map_err(|_| Error::internal(format!("a rank has a block of {longest} bytes")))
    }

    /// Waits until the device has come to where the operation was put.
    fn await_stream(
        &self,
        limits: StagingWaitLimits<'_>,
        launch: &EnqueueRequest<'_>,
    ) -> Result<()> {
        let Some(ready) = launch.buffers_ready else { return Ok(()) };
        let wait = limits.wait(&"what is in the stream before it", || ready.is_complete());
        wait.map_err(|error| self.with_own_culprit(error))
    }

    /// Has the other part carry it as it is, whose errors and whose refusals are its own.
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
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// That nothing comes of this rank's stream is nobody else's fault.
    fn with_own_culprit(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Timeout => error.with_culprit(self.rank),
            _ => error,
        }
    }

    fn fail_group(&self, error: Error) -> Error {
        self.failure_state.fail(&error);
        // The first reason, of which this may be a consequence.
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
                .context(|| format!("{query}, by way of host memory"))?;
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
            outcome.context(|| format!("by way of host memory, device {}", self.device()));
        // Whatever ends an operation early: other ranks may be in the middle of it.
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
