//! One step of an operation: an operation of an inner group.
//!
//! An inner group that enqueues its operations on the device returns before the device has run
//! them. The next step of the same inner group follows in the same stream. Before a step of the
//! other inner group, the host waits for the device ([`StepRunner::settle`]).

use super::inner_group::{InnerGroup, InnerGroups, Level};
use crate::backend::linked_failures::renumber_outwards;
use crate::backend::{CountSpec, Descriptor, OpKind, Operation};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::error::{Error, ErrorContext as _, ErrorKind, Result};
use crate::base::gpu::{EnqueueRequest, EnqueuedOperation, EnqueuedOperationSlot, GpuTarget};
use crate::base::ids::Rank;
use crate::base::label::LabelledName;
use crate::base::op::ReduceOp;
use crate::base::progress_observer::ProgressObserver;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time for which the host waits for the device after a failure.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// The time by which the deadline of a step is later for each stage.
///
/// If a rank is late, a rank in a later step may wait for a rank that waits for the late rank. The
/// rank that waits for the late rank itself must report first, because its error names the late
/// rank.
const STAGE_GRACE: Duration = Duration::from_millis(500);

/// The number of steps after which all further steps are one stage later.
const FIRST_STEPS: u32 = 2;

/// The arguments of a step. The lists have one block for each rank of the inner group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    pub(super) kind: OpKind,
    pub(super) op: Option<ReduceOp>,
    /// The factor of this rank, for `PREMUL_SUM`.
    pub(super) factor: f64,
    /// The root, as a rank of the inner group.
    pub(super) root: Option<Rank>,
    pub(super) send: Src<'a>,
    pub(super) recv: Dst<'a>,
    pub(super) sends: Option<&'a [Src<'a>]>,
    pub(super) recvs: Option<&'a [Dst<'a>]>,
    /// The number of earlier steps for which the ranks of this step may wait. See [`STAGE_GRACE`].
    pub(super) stage: u32,
}

impl<'a> Step<'a> {
    /// Returns a step without an operator, a root and lists.
    pub(super) fn of(kind: OpKind, send: Src<'a>, recv: Dst<'a>) -> Self {
        let (op, factor, root, sends, recvs, stage) = (None, 1.0, None, None, None, 0);
        Self { kind, op, factor, root, send, recv, sends, recvs, stage }
    }

    /// Returns the step with a root.
    pub(super) fn rooted(self, root: Rank) -> Self {
        Self { root: Some(root), ..self }
    }

    /// Returns the step with a stage.
    pub(super) fn at_stage(self, stage: u32) -> Self {
        Self { stage, ..self }
    }

    /// Returns the count argument and the counts that the ranks compare.
    fn counts(&self, element: usize) -> (usize, CountSpec) {
        let elements = |bytes: usize| bytes / element;
        let lengths: Option<Vec<usize>> = match self.kind {
            OpKind::ReduceScatterV => {
                self.sends.map(|blocks| blocks.iter().map(|block| elements(block.len())).collect())
            }
            OpKind::AllGatherV => {
                self.recvs.map(|blocks| blocks.iter().map(|block| elements(block.len())).collect())
            }
            _ => None,
        };
        if let Some(lengths) = lengths {
            let longest = lengths.iter().copied().max().unwrap_or(0);
            return (longest, CountSpec::of_counts(lengths));
        }
        let bytes = match self.kind {
            OpKind::ReduceScatter | OpKind::Scatter => self.recv.len(),
            OpKind::Broadcast => self.send.len().max(self.recv.len()),
            _ => self.send.len(),
        };
        let count = elements(bytes);
        (count, CountSpec::Count(count as u64))
    }
}

/// Returns the part number of the steps of a call. It differs between calls of other kinds or with
/// other roots, so that an inner group that compares descriptors does not confuse their steps.
fn call_mark(call: &Descriptor) -> u16 {
    let root = call.root.map_or(0, |root| root + 1);
    let mark = 1 + (call.kind as usize | root << 4);
    u16::try_from(mark & usize::from(u16::MAX)).unwrap_or(0)
}

/// Runs the steps of one operation.
pub(super) struct StepRunner<'a> {
    pub(super) groups: &'a InnerGroups,
    pub(super) whole: &'a Operation<'a>,
    /// The device of the buffers; `None` for host memory.
    device: Option<usize>,
    /// The operations that an inner group has enqueued, and for which the host has not waited.
    enqueued: RefCell<Vec<(Level, Arc<dyn EnqueuedOperation>)>>,
    /// The number of steps that this rank has run.
    steps_run: Cell<u32>,
}

impl<'a> StepRunner<'a> {
    pub(super) fn new(
        groups: &'a InnerGroups,
        whole: &'a Operation<'a>,
        device: Option<usize>,
    ) -> Self {
        Self { groups, whole, device, enqueued: RefCell::default(), steps_run: Cell::new(0) }
    }

    /// Runs a step among the ranks of this host.
    pub(super) fn inside(&self, step: &Step<'_>) -> Result<()> {
        self.run(&self.groups.inside, step)
    }

    /// Runs a step between hosts. Does nothing on a rank that has no inner group between hosts.
    pub(super) fn between(&self, step: &Step<'_>) -> Result<()> {
        self.groups.between.as_ref().map_or(Ok(()), |group| self.run(group, step))
    }

    /// Waits until the device has run the steps of the other level.
    fn settle(&self, next: Option<Level>) -> Result<()> {
        let mut enqueued = self.enqueued.borrow_mut();
        if enqueued.last().is_none_or(|(level, _)| Some(*level) == next) {
            return Ok(());
        }
        for (level, operation) in enqueued.drain(..) {
            let deadline = self.whole.deadline();
            if !operation.wait(deadline).map_err(|error| self.renumber(level, error))? {
                let message = format!(
                    "{}: the device did not complete the step {level} within {} ms",
                    self.whole.descriptor,
                    deadline.elapsed().as_millis()
                );
                return Err(Error::new(ErrorKind::Timeout, message));
            }
        }
        Ok(())
    }

    /// Waits until the device has run all steps.
    pub(super) fn finish(&self) -> Result<()> {
        self.settle(None)
    }

    /// Waits until the device no longer uses the buffers, after the group has failed.
    pub(super) fn drain(&self) {
        for (_, operation) in self.enqueued.borrow_mut().drain(..) {
            // The group has failed, so the wait ends with an error when the device is done.
            drop(operation.wait(&Deadline::after(DRAIN_WAIT)));
        }
    }

    fn renumber(&self, level: Level, error: Error) -> Error {
        let group = self.groups.groups().find(|group| group.level == level);
        group.map_or(error.clone(), |group| renumber_outwards(error, &group.ranks))
    }

    /// Returns the deadline of a step.
    fn deadline_of(&self, step: &Step<'_>) -> LazyDeadline {
        let earlier = self.steps_run.replace(self.steps_run.get().saturating_add(1));
        let stage = step.stage + u32::from(earlier >= FIRST_STEPS);
        LazyDeadline::from(self.whole.deadline().extended(STAGE_GRACE * stage))
    }

    fn run(&self, group: &InnerGroup, step: &Step<'_>) -> Result<()> {
        self.settle(Some(group.level))?;
        let deadline = self.deadline_of(step);
        let (whole, slot) = (self.whole, EnqueuedOperationSlot::new());
        let (count, count_spec) = step.counts(whole.element_bytes());
        let enqueue_request = self.device.map(|device| EnqueueRequest {
            gpu: GpuTarget { device, stream: None },
            operation_slot: &slot,
            buffers_ready: None,
        });
        let observer = StepObserver {
            whole: whole.observer,
            sequence: whole.descriptor.sequence,
            ranks: &group.ranks,
        };
        let operation = Operation {
            descriptor: Descriptor {
                kind: step.kind,
                dtype: whole.descriptor.dtype,
                op: step.op,
                root: step.root,
                count_spec,
                sequence: group.next_sequence(),
                algorithm: 0,
                part: call_mark(&whole.descriptor),
                label: whole.descriptor.label,
            },
            count,
            send: step.send,
            recv: step.recv,
            sends: step.sends,
            recvs: step.recvs,
            factor: step.factor,
            canonical: false,
            algorithm: None,
            deadline: &deadline,
            has_new_deadline: false,
            enqueue_request,
            labels: whole.labels,
            group: whole.group,
            observer: &observer,
        };
        group
            .backend
            .run(&operation)
            .context(|| format!("{}, {} {}", whole.descriptor, step.kind.name(), group.level))
            .map_err(|error| renumber_outwards(error, &group.ranks))?;
        let enqueued = slot.into_inner().map(|operation| (group.level, operation));
        self.enqueued.borrow_mut().extend(enqueued);
        Ok(())
    }
}

/// Forwards the observations of a step to the observer of the operation, with the numbers of the
/// ranks in the two-level group.
#[derive(Debug)]
struct StepObserver<'a> {
    whole: &'a dyn ProgressObserver,
    /// The sequence number of the operation in the two-level group.
    sequence: u64,
    ranks: &'a [Rank],
}

impl ProgressObserver for StepObserver<'_> {
    fn is_tracing_waits(&self) -> bool {
        self.whole.is_tracing_waits()
    }

    /// Does nothing, because the operation has already started.
    fn record_start(&self, _: &'static str) {}

    fn record_wait(&self, rank: Rank, wait_start: Instant, wait_end: Instant) {
        if let Some(&rank) = self.ranks.get(rank) {
            self.whole.record_wait(rank, wait_start, wait_end);
        }
    }

    fn record_late_rank(
        &self,
        operation: LabelledName,
        rank: Rank,
        skew: Duration,
        exclusive_wait: Duration,
    ) {
        if let Some(&rank) = self.ranks.get(rank) {
            self.whole.record_late_rank(operation, rank, skew, exclusive_wait);
        }
    }

    fn record_awaited(&self, _: u64, ranks: &[Rank]) {
        let ranks: Vec<Rank> =
            ranks.iter().filter_map(|&rank| self.ranks.get(rank).copied()).collect();
        self.whole.record_awaited(self.sequence, &ranks);
    }

    fn latest_rank(&self) -> Option<(Rank, Duration)> {
        let (latest, skew) = self.whole.latest_rank()?;
        Some((self.ranks.iter().position(|&rank| rank == latest)?, skew))
    }
}
