//! Enqueues the operations of one or several groups as one batch.
//!
//! A thread that drives several devices enqueues on one after the other. NCCL may wait for the
//! other ranks while it launches the first operations of a communicator. If each communicator were
//! launched alone, each launch would wait for calls that the same thread has still to make. So all
//! calls of a batch run between one ncclGroupStart and one ncclGroupEnd, independent of their
//! communicators, streams and kinds. NCCL launches the communicators in the order of their first
//! calls, which the caller makes the same on all ranks.
//!
//! 1. The thread acquires all communicators in the order of the batches, so that two threads cannot
//!    deadlock.
//! 2. It creates the operators that have a factor of this rank.
//! 3. It makes the calls between start and end, each with its own device current.
//! 4. It waits until all communicators have launched, and only then records an event behind the
//!    operations in each stream.
//!
//! An error in step 3 fails all groups: NCCL drops all calls between start and end, and the other
//! ranks may not have dropped theirs.

use super::NcclBackend;
use super::calls::{NcclCaller, NcclReduceOp};
use super::comm::CommGuard;
use super::enqueued::{EnqueuedSummary, NcclEnqueuedOperation};
use super::functions::NcclResult;
use super::quiescence::{self, EnqueueGuard};
use crate::backend::Operation;
use crate::backend::device_backend::{DeviceBatch, DeviceMessage};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::gpu::{EnqueueRequest, EnqueuedOperation, GpuTarget};
use crate::device::driver::CudaHandle;
use std::sync::Arc;

/// The NCCL back end of a group, which enqueues operations together with those of other groups.
#[derive(Clone, Copy, Debug)]
pub struct NcclEnqueuer<'a>(pub(super) &'a NcclBackend);

/// One call of a batch.
#[derive(Clone, Copy)]
enum EnqueuedCall<'a> {
    Collective(&'a Operation<'a>),
    Message(&'a DeviceMessage<'a>),
}

/// One call with its stream and its operator.
struct PlannedCall<'a> {
    kind: EnqueuedCall<'a>,
    launch: EnqueueRequest<'a>,
    stream: CudaHandle,
    reduce_op: Option<NcclReduceOp>,
}

/// The launch of one group; the thread holds its communicator.
struct GroupLaunch<'a> {
    nccl: &'a NcclBackend,
    deadline: &'a Deadline,
    comm: CommGuard<'a>,
    calls: Vec<PlannedCall<'a>>,
    /// Held until the enqueued operations count as in flight.
    _enqueue_guard: EnqueueGuard,
}

/// Enqueues all batches as one, and returns one result per batch. If a group has the option
/// `blocking_wait`, it also waits until the device has completed the group's operations.
pub(in crate::backend) fn enqueue_batches(batches: &[DeviceBatch<'_>]) -> Vec<Result<()>> {
    let mut outcomes: Vec<Result<Vec<Arc<NcclEnqueuedOperation>>>> =
        Vec::with_capacity(batches.len());
    let (mut positions, mut launches) = (Vec::new(), Vec::new());
    for (position, bundle) in batches.iter().enumerate() {
        outcomes.push(GroupLaunch::begin(bundle).map(|launch| {
            positions.push(position);
            launches.push(launch);
            Vec::new()
        }));
    }
    let launched = issue_all(&launches);
    for (position, launch) in positions.into_iter().zip(launches) {
        outcomes[position] = match &launched {
            Ok(code) => launch.finish_launch(*code),
            Err(error) => Err(error.clone()),
        };
    }
    let ended = outcomes.into_iter().zip(batches).map(|(outcome, bundle)| {
        let NcclEnqueuer(nccl) = bundle.enqueuer;
        // Any error fails the group, because other ranks may have enqueued the operation.
        outcome
            .and_then(|flights| nccl.wait_if_blocking(&flights))
            .map_err(|error| nccl.fail_group(error))
    });
    ended.collect()
}

/// Makes all calls between one ncclGroupStart and one ncclGroupEnd.
fn issue_all(launches: &[GroupLaunch<'_>]) -> Result<NcclResult> {
    let Some(first) = launches.first() else { return Ok(0) };
    first.comm.run_grouped(|| {
        launches.iter().try_for_each(|launch| {
            let _current = launch.comm.make_current()?;
            launch.calls.iter().try_for_each(|item| launch.issue(item))
        })
    })
}

impl<'a> GroupLaunch<'a> {
    fn begin(batch: &DeviceBatch<'a>) -> Result<Self> {
        let NcclEnqueuer(nccl) = batch.enqueuer;
        let deadline = batch.deadline;
        let enqueue_guard = quiescence::acquire_enqueue(deadline)?;
        let comm = nccl.watchdog.comm.acquire(Some("ncclGroupEnd"), deadline)?;
        let collectives = batch.operations.iter().map(|operation| {
            let launch = operation
                .enqueue_request
                .ok_or_else(|| Error::internal("the operation has no enqueue request"))?;
            Ok((EnqueuedCall::Collective(operation), launch))
        });
        let messages = batch
            .messages
            .iter()
            .map(|(message, launch)| Ok((EnqueuedCall::Message(message), *launch)));
        let calls = collectives.chain(messages).collect::<Result<Vec<_>>>()?;
        let items = Vec::with_capacity(calls.len());
        let mut member = Self { nccl, deadline, comm, calls: items, _enqueue_guard: enqueue_guard };
        let own_stream = match calls.iter().any(|(_, launch)| launch.gpu.stream.is_none()) {
            true => nccl.own_stream()?,
            false => 0,
        };
        for (what, launch) in calls {
            let stream = stream_of(launch.gpu, own_stream);
            let folding = match what {
                EnqueuedCall::Collective(operation) => {
                    operation.observer.record_start("nccl");
                    member.caller(stream).create_reduce_op(operation)
                }
                EnqueuedCall::Message(_) => Ok(None),
            };
            // On an error, `destroy_reduce_ops` destroys the operators that were created.
            let folding = folding.inspect_err(|_| member.destroy_reduce_ops())?;
            member.calls.push(PlannedCall { kind: what, launch, stream, reduce_op: folding });
        }
        Ok(member)
    }

    fn caller(&self, stream: CudaHandle) -> NcclCaller<'_> {
        let NcclBackend { rank, size, .. } = *self.nccl;
        NcclCaller { comm: &self.comm, stream, deadline: self.deadline, rank, size }
    }

    fn issue(&self, call: &PlannedCall<'_>) -> Result<()> {
        let caller = self.caller(call.stream);
        match call.kind {
            EnqueuedCall::Collective(operation) => {
                caller.issue_collective(operation, call.reduce_op.as_ref())
            }
            EnqueuedCall::Message(message) => {
                caller.issue_message(message.dtype, message.peer, message.transfer)
            }
        }
    }

    fn destroy_reduce_ops(&self) {
        let reduce_ops = self.calls.iter().filter_map(|item| item.reduce_op.as_ref());
        reduce_ops.for_each(|folding| self.caller(0).destroy_reduce_op(folding));
    }

    /// Waits until the communicator has launched, and records an event in each of the group's
    /// streams.
    fn finish_launch(self, code: NcclResult) -> Result<Vec<Arc<NcclEnqueuedOperation>>> {
        let launched = self.comm.await_completion("ncclGroupEnd", code, self.deadline);
        if launched.is_ok() {
            self.destroy_reduce_ops();
        }
        launched?;
        let mut streams: Vec<CudaHandle> = self.calls.iter().map(|item| item.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams.into_iter().map(|stream| self.track_stream(stream)).collect()
    }

    fn track_stream(&self, stream: CudaHandle) -> Result<Arc<NcclEnqueuedOperation>> {
        let NcclBackend { watchdog, .. } = self.nccl;
        let mark = watchdog.event_pool.record_event(watchdog.comm.context(), stream)?;
        let failure_handling =
            (Arc::clone(&watchdog.failure_state), !watchdog.options.handles_errors);
        let enqueued = Arc::new(NcclEnqueuedOperation::new(
            self.summary(),
            *self.deadline,
            mark,
            failure_handling,
        ));
        watchdog.track(Arc::clone(&enqueued));
        for item in self.calls.iter().filter(|item| item.stream == stream) {
            // A slot takes one operation, so a second `set` has no effect.
            drop(
                item.launch.operation_slot.set(Arc::clone(&enqueued) as Arc<dyn EnqueuedOperation>),
            );
        }
        Ok(enqueued)
    }

    /// Summarizes the calls. NCCL launches all calls of a communicator in a group as one operation,
    /// on any streams.
    fn summary(&self) -> EnqueuedSummary {
        let collectives = self.calls.iter().filter_map(|item| match item.kind {
            EnqueuedCall::Collective(operation) => Some(operation.descriptor),
            EnqueuedCall::Message(_) => None,
        });
        let first = collectives.map(|it| (it.kind.name(), it.sequence)).next();
        EnqueuedSummary { first, calls: self.calls.len() }
    }
}

fn stream_of(gpu: GpuTarget, own: CudaHandle) -> CudaHandle {
    gpu.stream.unwrap_or(own)
}

impl NcclBackend {
    /// Returns the library's own stream, for callers that name none. The stream waits for the work
    /// on the default stream.
    fn own_stream(&self) -> Result<CudaHandle> {
        let stream = &self.watchdog.stream;
        self.default_stream_event.record(crate::device::stream::DEFAULT_STREAM)?;
        self.default_stream_event.make_stream_wait(stream.handle())?;
        Ok(stream.handle())
    }

    /// Waits for the device if the group has the option `blocking_wait`.
    fn wait_if_blocking(&self, enqueued: &[Arc<NcclEnqueuedOperation>]) -> Result<()> {
        if !self.watchdog.options.blocking_wait {
            return Ok(());
        }
        enqueued.iter().try_for_each(|flight| match flight.wait(&flight.deadline)? {
            true => Ok(()),
            false => Err(self.watchdog.timeout_error(flight)),
        })
    }
}
