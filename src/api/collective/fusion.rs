//! Fusion of small collectives of a batch: several calls become one operation on a staging buffer,
//! into which the vectors of all calls are copied.
//!
//! [`plan_fusion`] selects the calls to fuse. All ranks must fuse the same calls. Therefore the
//! plan uses only properties of the calls that must be equal on all ranks. If the batches of two
//! ranks differ, the ranks detect this, because the fused operation compares the list of the calls'
//! counts. Ranks with different lists get `Mismatch`, never the data of a wrong call. Properties
//! that may differ between ranks must not influence the plan:
//! * The plan ignores timeouts. The fused operation has the shortest timeout of its calls. At this
//!   time, the first of the separate calls would have failed the group.
//! * Calls with `PREMUL_SUM` are not fused, because each rank has its own factor for each call.
//! * A call that names an algorithm is not fused, because the caller chose the algorithm for the
//!   size of the single call.
//!
//! A fused operation reads all inputs before it writes any output. If one call read the output of
//! another call, fusion would change the result. [`crate::api::collective::batch_overlap`] makes
//! sure that a batch has no such calls.
//!
//! This module does not depend on threads or on how a batch collects its calls.

use crate::algo::Operation;
use crate::api::collective::call::{Call, CallOptions};
use crate::api::collective::prepared_call::PreparedCall;
use crate::api::group::process_group::Group;
use crate::api::observe::operation_details::CallSizes;
use crate::api::observe::recorder::OperationRecord;
use crate::api::work::handle::Work;
use crate::api::work::issue::{OperationTask, enqueue_task};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::debug::{self, NanCheck};
use crate::base::dtype::DataType;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::base::plural::Plural;
use crate::kernel;
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum size of a call that is fused, in bytes of the longer of its two buffers. For longer
/// calls, the copies to and from the staging buffer cost more than fusion saves.
const MAX_FUSED_CALL_BYTES: usize = 16 << 10;

/// The maximum total size in bytes of the calls that are fused to one operation.
const MAX_FUSED_BYTES: usize = 256 << 10;

/// The maximum number of labels that an error of a fused operation names.
const MAX_NAMED_LABELS: usize = 8;

/// The properties that calls must share to be fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FusionKey {
    kind: OpKind,
    dtype: DataType,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    canonical: bool,
}

/// The properties of a call that the fusion plan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FusionCandidate {
    /// The group and the rank of the call in this group. A process may have several ranks of a
    /// group, and one thread may call for each of them.
    group: (GroupId, Rank),
    /// The fusion key and the size in bytes. `None` for a call that must not be fused.
    fusion_key: Option<(FusionKey, usize)>,
}

impl FusionCandidate {
    /// Returns the candidate of a prepared call.
    pub(super) fn from_call(prepared: &PreparedCall) -> Self {
        let group = prepared.group();
        let fusion_key = prepared
            .collective()
            .and_then(|(call, options)| fusion_key_and_bytes(call, options, group.size()));
        Self { group: (group.id(), group.rank()), fusion_key }
    }
}

fn fusion_key_and_bytes(
    call: &Call<'_>,
    options: &CallOptions,
    size: usize,
) -> Option<(FusionKey, usize)> {
    let kind = call.kind();
    let blocks = match kind {
        OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast => 1,
        OpKind::AllGather | OpKind::ReduceScatter => size,
        _ => return None,
    };
    // Calls on device memory are not fused, because the CPU cannot copy device memory.
    let is_excluded = options.algorithm.is_some() || call.gpu.is_some();
    if call.op == Some(ReduceOp::PremulSum) || is_excluded {
        return None;
    }
    let (op, root, canonical) = (call.op, call.root, options.canonical);
    let key = FusionKey { kind, dtype: call.dtype?, op, root, canonical };
    Some((key, call.bytes().saturating_mul(blocks)))
}

/// Divides the calls into runs, which are lists of indices. The calls of a run are fused; a run
/// with a single call is not fused. Each list is in the order of the calls, and the lists are in
/// the order of their first calls.
///
/// A run has consecutive small calls of one group with equal keys, up to the size limit. Calls of
/// other groups may be between them, because each group has its own order. For example, if A and B
/// are groups:
///
/// | index | 0 | 1 | 2 | 3 | 4 |
/// |---|---|---|---|---|---|
/// | call | A: all-reduce | B: all-reduce | A: all-reduce | A: barrier | A: all-reduce |
///
/// The runs are `[0, 2]`, `[1]`, `[3]`, `[4]`.
pub(super) fn plan_fusion(calls: &[FusionCandidate]) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    // For each group: the index of the run to which calls can be added, its key, and its size.
    let mut open_runs: HashMap<(GroupId, Rank), (usize, FusionKey, usize)> = HashMap::new();
    for (index, &FusionCandidate { group, fusion_key: key }) in calls.iter().enumerate() {
        let Some((fusion_key, bytes)) = key.filter(|&(_, bytes)| bytes <= MAX_FUSED_CALL_BYTES)
        else {
            open_runs.remove(&group);
            runs.push(vec![index]);
            continue;
        };
        match open_runs.get_mut(&group) {
            Some((run, open_key, sum))
                if *open_key == fusion_key && *sum + bytes <= MAX_FUSED_BYTES =>
            {
                runs[*run].push(index);
                *sum += bytes;
            }
            _ => {
                open_runs.insert(group, (runs.len(), fusion_key, bytes));
                runs.push(vec![index]);
            }
        }
    }
    runs
}

/// Issues the calls of one run. On error, the works of all these calls end with the error.
pub(super) fn issue_fusion_run(calls: Vec<PreparedCall>) {
    let works: Vec<Arc<Work>> = calls.iter().map(|call| Arc::clone(call.work())).collect();
    let outcome = match calls.len() {
        1 => calls.into_iter().try_for_each(PreparedCall::issue),
        _ => enqueue_fused(calls),
    };
    if let Err(error) = outcome {
        works.iter().for_each(|work| work.end(Err(error.clone())));
    }
}

fn enqueue_fused(calls: Vec<PreparedCall>) -> Result<()> {
    let Some(group) = calls.first().map(|call| Arc::clone(call.group())) else { return Ok(()) };
    let deadlines = calls.iter().filter_map(|call| Some(group.deadline(call.collective()?.1)));
    let deadline = deadlines.min_by_key(Deadline::timeout).unwrap_or_else(Deadline::never);
    let works = calls.iter().map(|call| Arc::clone(call.work())).collect();
    let parts = calls.iter().filter_map(|call| call.collective().map(|(call, _)| call.clone()));
    let options = || calls.iter().filter_map(|call| Some(call.collective()?.1));
    let canonical = options().any(|options| options.canonical);
    let nan_check = options().map(|options| options.nan_check).max().unwrap_or_default();
    calls.iter().for_each(PreparedCall::register_in_flight_buffers);
    let mut labels: Vec<Label> = options().map(|options| options.label).collect();
    let label = Label::of_calls(&labels);
    if label.is_none() {
        labels.clear();
    }
    let task = FusedTask { calls: parts.collect(), works, canonical, nan_check, label, labels };
    enqueue_task(group, deadline, task)
}

/// A fused operation: several calls that run as one operation in one turn.
#[derive(Debug)]
struct FusedTask {
    calls: Vec<Call<'static>>,
    works: Vec<Arc<Work>>,
    canonical: bool,
    nan_check: NanCheck,
    /// The label that represents all labels of the calls. The ranks compare it.
    label: Label,
    /// The labels of the calls. Empty if no call has a label.
    labels: Vec<Label>,
}

impl OperationTask for FusedTask {
    fn works(&self) -> &[Arc<Work>] {
        &self.works
    }

    fn descriptor(&self, sequence: u64) -> Descriptor {
        let first_call = self.calls[0].descriptor(sequence, self.label);
        let extent = CountSpec::of_counts(self.calls.iter().map(|call| call.count));
        Descriptor { count_spec: extent, ..first_call }
    }

    fn sizes(&self, group: &Group) -> CallSizes {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for call in &self.calls {
            let descriptor = call.descriptor(0, Label::NONE);
            let sizes = CallSizes::derive(&descriptor, group.rank(), Some(group.size()));
            inputs.extend(sizes.inputs.into_iter().flatten());
            outputs.extend(sizes.outputs.into_iter().flatten());
        }
        CallSizes { inputs: Some(inputs), outputs: Some(outputs) }
    }

    fn title(&self, descriptor: &Descriptor) -> String {
        let calls = format!("{descriptor} for {} of a batch", Plural(self.calls.len(), "call"));
        if self.labels.is_empty() {
            return calls;
        }
        let named: Vec<String> =
            self.labels.iter().take(MAX_NAMED_LABELS).map(Label::to_string).collect();
        let more = if self.labels.len() > MAX_NAMED_LABELS { ", ..." } else { "" };
        format!("{calls} ({}{more})", named.join(", "))
    }

    fn run(
        &mut self,
        group: &Group,
        first: Descriptor,
        deadline: &Deadline,
        _record: &OperationRecord,
    ) -> Result<()> {
        group.await_all_arrivals(&first, deadline)?;
        let nan_check = self.nan_check.max(debug::nan_check());
        self.inspect_buffers(group, &first, nan_check, "input", |part| part.send)?;
        let of_all = |bytes: fn(&Call<'_>) -> usize| self.calls.iter().map(bytes).sum();
        let staged = zeroed_buffer(of_all(|part| part.send.len()))
            .and_then(|send| Ok((send, zeroed_buffer(of_all(|part| part.recv.len()))?)));
        // Other ranks wait for this rank, so an error here must fail the group.
        let (mut send, mut recv) = staged.inspect_err(|error| group.fail(error))?;
        let (send_staging, from) = (Dst::from(send.as_mut_slice()), Dst::from(recv.as_mut_slice()));
        let blocks = |wanted: OpKind| if first.kind == wanted { group.size() } else { 1 };
        let sends = self.calls.iter().map(|part| part.send);
        for (offset, part) in staged_blocks(sends, blocks(OpKind::ReduceScatter)) {
            kernel::copy(send_staging.slice(offset, part.len()), part);
        }
        let options = CallOptions { canonical: self.canonical, ..CallOptions::default() };
        let fused_call = self.calls[0].with_buffers(send_staging.as_src(), from, group.size());
        let deadline = LazyDeadline::from(*deadline);
        let operation =
            fused_call.operation(first, &options, group.name(), &deadline, &group.observer);
        group.backend.run(&Operation { labels: &self.labels, ..operation })?;
        let recvs: Vec<Dst<'_>> = self.calls.iter().map(|part| part.recv).collect();
        let targets = recvs.iter().map(|recv| recv.as_src());
        let blocks = blocks(OpKind::AllGather);
        // The outputs have the same layout in the staging buffer. The loop iterates over `Src`
        // views, which do not permit writes. Therefore it selects the output buffer by the index.
        for (index, (offset, part)) in staged_blocks(targets, blocks).enumerate() {
            let (block, recv) = (index / recvs.len(), recvs[index % recvs.len()]);
            let to = recv.slice(block * part.len(), part.len());
            kernel::copy(to, from.as_src().slice(offset, part.len()));
        }
        self.inspect_buffers(group, &first, nan_check, "result", |part| part.recv.as_src())
    }
}

impl FusedTask {
    /// Checks a buffer of each call for NaN.
    fn inspect_buffers(
        &self,
        group: &Group,
        first: &Descriptor,
        nan_check: NanCheck,
        buffer_name: &str,
        buffer: fn(&Call<'static>) -> Src<'static>,
    ) -> Result<()> {
        let dtype = first.dtype.unwrap_or(DataType::U8);
        group.check_for_nan(dtype, nan_check, self.calls.iter().map(buffer), |index| {
            format!("{}: {buffer_name} of call {index}", self.title(first))
        })
    }
}

/// Returns the blocks of all buffers in the order of the staging buffer, each with its offset
/// there. Each buffer consists of `blocks` blocks. The staging buffer first has block 0 of all
/// buffers, then block 1 of all buffers, and so on. For example, buffers `a` and `b` with 3 blocks
/// each (one block for each of 3 ranks):
///
/// ```text
/// | a0 b0 | a1 b1 | a2 b2 |
/// ```
///
/// So the part for each rank is contiguous, as the fused operation needs it.
fn staged_blocks<'a>(
    buffers: impl Iterator<Item = Src<'a>> + Clone,
    blocks: usize,
) -> impl Iterator<Item = (usize, Src<'a>)> {
    let piece = move |(block, buffer): (usize, Src<'a>)| {
        let len = buffer.len() / blocks;
        buffer.slice(block * len, len)
    };
    let pieces = (0..blocks).flat_map(move |block| buffers.clone().map(move |it| (block, it)));
    pieces.map(piece).scan(0, |end, piece| {
        let offset = *end;
        *end += piece.len();
        Some((offset, piece))
    })
}

/// Allocates a zeroed buffer.
fn zeroed_buffer(bytes: usize) -> Result<Vec<u8>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(bytes).map_err(|_| {
        let message =
            format!("cannot allocate {bytes} bytes for the fused call of small collectives");
        Error::new(ErrorKind::OutOfMemory, message)
    })?;
    memory.resize(bytes, 0);
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Nonce;

    const ONE: (GroupId, Rank) = (Nonce([1; 16]), 0);
    const TWO: (GroupId, Rank) = (Nonce([2; 16]), 0);
    const OTHER_RANK: (GroupId, Rank) = (Nonce([1; 16]), 1);

    fn fusable(kind: OpKind, op: Option<ReduceOp>, bytes: usize) -> Option<(FusionKey, usize)> {
        let (dtype, root, canonical) = (DataType::F32, None, false);
        Some((FusionKey { kind, dtype, op, root, canonical }, bytes))
    }

    fn all_reduce_sum(group: (GroupId, Rank), bytes: usize) -> FusionCandidate {
        FusionCandidate {
            group,
            fusion_key: fusable(OpKind::AllReduce, Some(ReduceOp::Sum), bytes),
        }
    }

    #[test]
    fn consecutive_calls_with_equal_keys_are_fused() {
        let max = FusionCandidate {
            group: ONE,
            fusion_key: fusable(OpKind::AllReduce, Some(ReduceOp::Max), 4),
        };
        let alone = FusionCandidate { group: ONE, fusion_key: None };
        let calls = [
            all_reduce_sum(ONE, 4),
            all_reduce_sum(ONE, 0),
            max,
            all_reduce_sum(ONE, 8),
            alone,
            all_reduce_sum(ONE, 8),
            all_reduce_sum(ONE, 12),
        ];
        assert_eq!(plan_fusion(&calls), [vec![0, 1], vec![2], vec![3], vec![4], vec![5, 6]]);
        assert_eq!(plan_fusion(&[]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn fusion_order_is_per_group() {
        let alone = FusionCandidate { group: TWO, fusion_key: None };
        let calls = [
            all_reduce_sum(ONE, 4),
            all_reduce_sum(TWO, 4),
            all_reduce_sum(ONE, 4),
            alone,
            all_reduce_sum(ONE, 4),
            all_reduce_sum(TWO, 4),
        ];
        assert_eq!(plan_fusion(&calls), [vec![0, 2, 4], vec![1], vec![3], vec![5]]);
        // One thread may call for several ranks of a group.
        let calls = [
            all_reduce_sum(ONE, 4),
            all_reduce_sum(OTHER_RANK, 4),
            all_reduce_sum(ONE, 4),
            all_reduce_sum(OTHER_RANK, 4),
        ];
        assert_eq!(plan_fusion(&calls), [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn large_calls_stay_unfused_and_fused_size_is_bounded() {
        let calls = [
            all_reduce_sum(ONE, 4),
            all_reduce_sum(ONE, MAX_FUSED_CALL_BYTES + 1),
            all_reduce_sum(ONE, 4),
            all_reduce_sum(ONE, 4),
        ];
        assert_eq!(plan_fusion(&calls), [vec![0], vec![1], vec![2, 3]]);
        let fit = MAX_FUSED_BYTES / MAX_FUSED_CALL_BYTES;
        let runs = plan_fusion(&vec![all_reduce_sum(ONE, MAX_FUSED_CALL_BYTES); fit + 2]);
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [fit, 2]);
    }

    #[test]
    fn premul_sum_and_named_algorithms_are_not_fused() {
        let empty = || (Src::empty(), Dst::empty());
        let call = |op| Call::all_reduce(empty().0, empty().1, DataType::F32, op);
        let options = CallOptions::default();
        assert!(fusion_key_and_bytes(&call(ReduceOp::Sum), &options, 2).is_some());
        assert!(fusion_key_and_bytes(&call(ReduceOp::PremulSum), &options, 2).is_none());
        let late = CallOptions { timeout_ms: 1, ..CallOptions::default() };
        assert_eq!(
            fusion_key_and_bytes(&call(ReduceOp::Sum), &late, 2),
            fusion_key_and_bytes(&call(ReduceOp::Sum), &options, 2)
        );
        let named = CallOptions { algorithm: Some("ring".into()), ..CallOptions::default() };
        assert!(fusion_key_and_bytes(&call(ReduceOp::Sum), &named, 2).is_none());
        let canonical = CallOptions { canonical: true, ..CallOptions::default() };
        assert_ne!(
            fusion_key_and_bytes(&call(ReduceOp::Sum), &canonical, 2),
            fusion_key_and_bytes(&call(ReduceOp::Sum), &late, 2)
        );
        assert!(fusion_key_and_bytes(&Call::barrier(), &late, 2).is_none());
    }

    #[test]
    fn blocks_are_ordered_by_rank_then_by_call() {
        let (a, b) = ([1, 2, 3, 4], [5, 6]);
        let buffers = [Src::from(&a[..]), Src::from(&b[..]), Src::empty()];
        let found: Vec<(usize, usize)> = staged_blocks(buffers.into_iter(), 2)
            .map(|(offset, piece)| (offset, piece.len()))
            .collect();
        assert_eq!(found, [(0, 2), (2, 1), (3, 0), (3, 2), (5, 1), (6, 0)]);
    }
}
