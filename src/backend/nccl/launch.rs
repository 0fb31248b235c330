//! Enqueues the operations of one or several groups together.
//!
//! One thread may drive several devices, each with its own group and communicator. NCCL may wait
//! for the other ranks while it launches the first operations of a communicator. If the thread
//! launched its communicators one after another, the first launch could wait for a call of another
//! communicator that the same thread has not made yet: a deadlock. All calls therefore run between
//! one ncclGroupStart and one ncclGroupEnd, whatever their communicators, streams and kinds are.
//! NCCL launches the communicators in the order of their first calls. The caller must use the same
//! order of the batches on all ranks.
//!
//! 1. The thread acquires all communicators in the order of the batches. The same order on all
//!    threads prevents a deadlock between two threads.
//! 2. The thread creates the NCCL operators that contain a factor of this rank.
//! 3. The thread makes the calls between ncclGroupStart and ncclGroupEnd. For each call, the device
//!    of the call is current.
//! 4. The thread waits until all communicators have launched. Then it records an event behind the
//!    operations in each stream.
//!
//! An error in step 3 fails all groups, because NCCL drops all calls of this thread between
//! ncclGroupStart and ncclGroupEnd, while other ranks may have enqueued their calls.

use super::calls::{NcclCaller, NcclReduceOp};
use super::comm::CommGuard;
use super::concurrent_groups;
use super::device_timing::DeviceTiming;
use super::enqueued::{EnqueuedSummary, NcclEnqueuedOperation};
use super::event_pool::PooledEvent;
use super::functions::NcclResult;
use super::group::{NAME, NcclBackend};
use super::quiescence::{self, EnqueueGuard};
use crate::backend::{DeviceBatch, DeviceMessage, JointEnqueuer, Operation};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::base::gpu::{EnqueueRequest, EnqueuedOperation};
use crate::base::ids::Rank;
use crate::device::driver::CudaHandle;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One call of a batch.
#[derive(Clone, Copy)]
enum EnqueuedCall<'a> {
    Collective(&'a Operation<'a>),
    Message(&'a DeviceMessage<'a>),
}

/// One call with its enqueue request, its stream and its operator.
struct PlannedCall<'a> {
    kind: EnqueuedCall<'a>,
    launch: EnqueueRequest<'a>,
    stream: CudaHandle,
    reduce_op: Option<NcclReduceOp>,
}

/// The calls that one group launches. The thread holds the communicator of the group.
struct GroupLaunch<'a> {
    nccl: &'a NcclBackend,
    deadline: &'a Deadline,
    comm: CommGuard<'a>,
    calls: Vec<PlannedCall<'a>>,
    /// The event before the calls in each stream, if the device time is measured.
    start_events: Vec<(CudaHandle, PooledEvent)>,
    /// The right to enqueue. It is held until the enqueued operations count as in flight.
    _enqueue_guard: EnqueueGuard,
}

impl JointEnqueuer for NcclBackend {
    /// Enqueues all batches together. For a group with the option `blocking_wait`, also waits until
    /// the device has completed the operations of the group.
    fn enqueue_batches(&self, batches: &[DeviceBatch<'_>]) -> Vec<Result<()>> {
        let mut outcomes: Vec<Result<Vec<Arc<NcclEnqueuedOperation>>>> =
            Vec::with_capacity(batches.len());
        let (mut positions, mut launches) = (Vec::new(), Vec::new());
        for (position, batch) in batches.iter().enumerate() {
            outcomes.push(GroupLaunch::begin(batch).map(|launch| {
                positions.push(position);
                launches.push(launch);
                Vec::new()
            }));
        }
        for launch in &launches {
            let streams = launch.calls.iter().map(|item| item.stream);
            concurrent_groups::warn_if_concurrent(&launch.nccl.watchdog, streams);
        }
        let launched = issue_all(&launches);
        for (position, launch) in positions.into_iter().zip(launches) {
            outcomes[position] = match &launched {
                Ok(code) => launch.finish_launch(*code),
                Err(error) => Err(error.clone()),
            };
        }
        let ended = outcomes.into_iter().zip(batches).map(|(outcome, batch)| {
            let nccl = backend_of(batch)?;
            // Any error fails the group, because other ranks may have enqueued the operations.
            outcome
                .and_then(|enqueued| nccl.wait_if_blocking(&enqueued))
                .map_err(|error| nccl.watchdog.fail_with(error))
        });
        ended.collect()
    }

    fn message_restriction(&self, peer: Option<Rank>, tag: Option<u32>) -> Option<&'static str> {
        if peer.is_none() {
            return Some("NCCL cannot receive from any rank: specify the source rank");
        }
        let has_tag = tag.is_some_and(|tag| tag != 0);
        has_tag.then_some(
            "NCCL has no tags and delivers the messages between two ranks in order: use tag 0",
        )
    }
}

/// Returns the NCCL back end of a batch.
fn backend_of<'a>(batch: &DeviceBatch<'a>) -> Result<&'a NcclBackend> {
    let enqueuer: &dyn Any = batch.enqueuer;
    enqueuer
        .downcast_ref()
        .ok_or_else(|| Error::internal("a batch of another device back end was passed to NCCL"))
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
        let nccl = backend_of(batch)?;
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
        let (items, start_events) = (Vec::with_capacity(calls.len()), Vec::new());
        let mut member = Self {
            nccl,
            deadline,
            comm,
            calls: items,
            start_events,
            _enqueue_guard: enqueue_guard,
        };
        let own_stream = match calls.iter().any(|(_, launch)| launch.gpu.stream.is_none()) {
            true => nccl.own_stream()?,
            false => 0,
        };
        for (what, launch) in calls {
            let stream = launch.gpu.stream.unwrap_or(own_stream);
            let reduce_op = match what {
                EnqueuedCall::Collective(operation) => {
                    operation.observer.record_start(NAME);
                    member.caller(stream).create_reduce_op(operation)
                }
                EnqueuedCall::Message(_) => Ok(None),
            };
            // On an error, the operators of the earlier calls are destroyed.
            let reduce_op = reduce_op.inspect_err(|_| member.destroy_reduce_ops())?;
            member.calls.push(PlannedCall { kind: what, launch, stream, reduce_op });
        }
        if nccl.watchdog.measures_time() {
            member.record_start_events().inspect_err(|_| member.destroy_reduce_ops())?;
        }
        Ok(member)
    }

    /// Records an event in each stream before the calls.
    fn record_start_events(&mut self) -> Result<()> {
        let NcclBackend { watchdog, .. } = self.nccl;
        for stream in self.streams() {
            let context = watchdog.comm.context();
            let event = watchdog.timed_event_pool.record_event(context, stream)?;
            self.start_events.push((stream, event));
        }
        Ok(())
    }

    /// Returns the streams of the calls, each once.
    fn streams(&self) -> Vec<CudaHandle> {
        let mut streams: Vec<CudaHandle> = self.calls.iter().map(|item| item.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
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
        reduce_ops.for_each(|reduce_op| self.caller(0).destroy_reduce_op(reduce_op));
    }

    /// Waits until the communicator has launched the calls, and records an event in each stream of
    /// the group. Returns one operation for each stream.
    fn finish_launch(mut self, code: NcclResult) -> Result<Vec<Arc<NcclEnqueuedOperation>>> {
        let launched = self.comm.await_completion("ncclGroupEnd", code, self.deadline);
        if launched.is_ok() {
            self.destroy_reduce_ops();
        }
        launched?;
        let mut start_events = std::mem::take(&mut self.start_events);
        let mut track = |stream| {
            let start = start_events.iter().position(|(of, _)| *of == stream);
            let start_event = start.map(|index| start_events.swap_remove(index).1);
            self.track_stream(stream, start_event)
        };
        self.streams().into_iter().map(&mut track).collect()
    }

    fn track_stream(
        &self,
        stream: CudaHandle,
        start_event: Option<PooledEvent>,
    ) -> Result<Arc<NcclEnqueuedOperation>> {
        let NcclBackend { watchdog, .. } = self.nccl;
        let pool = match start_event {
            Some(_) => &watchdog.timed_event_pool,
            None => &watchdog.event_pool,
        };
        let end_event = pool.record_event(watchdog.comm.context(), stream)?;
        let enqueued = Arc::new(NcclEnqueuedOperation {
            summary: self.summary(),
            deadline: *self.deadline,
            end_event,
            timing: start_event.map(DeviceTiming::new),
            is_done: AtomicBool::new(false),
            failure_state: Arc::clone(&watchdog.failure_state),
            fails_waiter_only: !watchdog.options.handles_errors,
        });
        watchdog.track(Arc::clone(&enqueued));
        concurrent_groups::record(watchdog, stream, &enqueued);
        for item in self.calls.iter().filter(|item| item.stream == stream) {
            // A slot accepts one operation, so a second `set` has no effect.
            drop(
                item.launch.operation_slot.set(Arc::clone(&enqueued) as Arc<dyn EnqueuedOperation>),
            );
        }
        Ok(enqueued)
    }

    /// Summarizes all calls of the group. The summary covers the calls on all streams, because NCCL
    /// launches all calls of a communicator between ncclGroupStart and ncclGroupEnd as one
    /// operation.
    fn summary(&self) -> EnqueuedSummary {
        let collectives = self.calls.iter().filter_map(|item| match item.kind {
            EnqueuedCall::Collective(operation) => Some(operation.descriptor),
            EnqueuedCall::Message(_) => None,
        });
        let first = collectives.map(|it| (it.kind.name(), it.sequence)).next();
        EnqueuedSummary { first, calls: self.calls.len() }
    }
}
