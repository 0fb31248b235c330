//! A collective call with its arguments. A call gets a sequence number later, when it is issued.
//! `checks` has the checks that this rank can do without the other ranks.
//!
//! This module does not depend on groups, on the order in which calls run, or on back ends.

mod checks;

pub use crate::api::collective::call_options::{BufferLocation, CallOptions};

use crate::algo::{CallArguments, Operation};
use crate::api::observe::operation_details::{CallSizes, flat_sizes};
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LazyDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::gpu::{EnqueueRequest, EnqueuedOperationSlot, GpuTarget, StreamMarker};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::base::progress_observer::ProgressObserver;
use crate::transport::{CountSpec, Descriptor, OpKind};

/// The arguments of a collective.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    kind: OpKind,
    pub(super) dtype: Option<DataType>,
    pub(super) op: Option<ReduceOp>,
    pub(super) root: Option<Rank>,
    /// The count or the counts that the ranks compare.
    extent: CountSpec,
    /// The count argument. In operations with a count for each rank, the maximum of the counts, or
    /// `usize::MAX` if this rank does not know all counts.
    pub(super) count: usize,
    /// This rank's contiguous input. Empty in operations with a list of input blocks.
    pub(super) send: Src<'a>,
    /// This rank's contiguous output. Empty in operations with a list of output blocks.
    pub(super) recv: Dst<'a>,
    /// The input blocks, one for each rank, in operations with such a list.
    sends: Option<Box<[Src<'a>]>>,
    /// The output blocks, one for each rank, in operations with such a list.
    recvs: Option<Box<[Dst<'a>]>>,
    /// The GPU and the stream of the buffers, if the buffers are in device memory.
    pub(super) gpu: Option<GpuTarget>,
    /// True if the location of the buffers was determined and all buffers are empty.
    pub(super) is_empty: bool,
}

/// Returns the size in bytes of `blocks` times `count` elements.
///
/// # Errors
/// `InvalidArgument` if the size exceeds the address space.
#[inline]
pub fn buffer_bytes(count: usize, dtype: DataType, blocks: usize) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size()).and_then(|bytes| bytes.checked_mul(blocks));
    bytes
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| too_many_elements_error(count, dtype, blocks))
}

#[cold]
fn too_many_elements_error(count: usize, dtype: DataType, blocks: usize) -> Error {
    Error::invalid(format!("{blocks} x {count} elements of {dtype} do not fit the address space"))
}

impl<'a> Call<'a> {
    fn new(kind: OpKind, dtype: Option<DataType>, count: usize) -> Self {
        let extent = CountSpec::Count(count as u64);
        let (send, recv) = (Src::empty(), Dst::empty());
        let (op, root, sends, recvs, gpu) = (None, None, None, None, None);
        let is_empty = false;
        Self { kind, dtype, op, root, extent, count, send, recv, sends, recvs, gpu, is_empty }
    }

    /// Reduces `send` of all ranks into `recv` of all ranks.
    pub fn all_reduce(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp) -> Self {
        let count = dtype.elements_in(send.len());
        Self { op: Some(op), send, recv, ..Self::new(OpKind::AllReduce, Some(dtype), count) }
    }

    /// Reduces `send` of all ranks into `recv` of the root. `recv` is empty on the other ranks.
    pub fn reduce(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp, root: Rank) -> Self {
        let (op, root, count) = (Some(op), Some(root), dtype.elements_in(send.len()));
        Self { op, root, send, recv, ..Self::new(OpKind::Reduce, Some(dtype), count) }
    }

    /// Copies `buf` of the root into `buf` of all ranks. `rank` is the caller's rank.
    pub fn broadcast(buf: Dst<'a>, dtype: DataType, root: Rank, rank: Rank) -> Self {
        let count = dtype.elements_in(buf.len());
        let (send, recv) =
            if root == rank { (buf.as_src(), Dst::empty()) } else { (Src::empty(), buf) };
        let root = Some(root);
        Self { root, send, recv, ..Self::new(OpKind::Broadcast, Some(dtype), count) }
    }

    /// Gathers `send` of every rank into `recv` of all ranks, in rank order.
    pub fn all_gather(send: Src<'a>, recv: Dst<'a>, dtype: DataType) -> Self {
        let count = dtype.elements_in(send.len());
        Self { send, recv, ..Self::new(OpKind::AllGather, Some(dtype), count) }
    }

    /// Gathers `send` of every rank into `recv` of the root, in rank order. `recv` is empty on the
    /// other ranks.
    pub fn gather(send: Src<'a>, recv: Dst<'a>, dtype: DataType, root: Rank) -> Self {
        let (root, count) = (Some(root), dtype.elements_in(send.len()));
        Self { root, send, recv, ..Self::new(OpKind::Gather, Some(dtype), count) }
    }

    /// Scatters the root's `send`, which has one block for each rank: rank r gets block r in
    /// `recv`. `send` is empty on the other ranks.
    pub fn scatter(send: Src<'a>, recv: Dst<'a>, dtype: DataType, root: Rank) -> Self {
        let (root, count) = (Some(root), dtype.elements_in(recv.len()));
        Self { root, send, recv, ..Self::new(OpKind::Scatter, Some(dtype), count) }
    }

    /// Reduces `send` of all ranks. `send` has one block for each rank. Rank r gets the reduction
    /// of block r in `recv`.
    pub fn reduce_scatter(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp) -> Self {
        let (op, count) = (Some(op), dtype.elements_in(recv.len()));
        Self { op, send, recv, ..Self::new(OpKind::ReduceScatter, Some(dtype), count) }
    }

    /// Reduces `send` of the ranks from 0 to this rank, including this rank, into `recv`.
    pub fn scan(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp) -> Self {
        let count = dtype.elements_in(send.len());
        Self { op: Some(op), send, recv, ..Self::new(OpKind::Scan, Some(dtype), count) }
    }

    /// Reduces `send` of the ranks below this rank into `recv`. `recv` is empty on rank 0.
    pub fn exscan(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp) -> Self {
        Self { kind: OpKind::Exscan, ..Self::scan(send, recv, dtype, op) }
    }

    /// Sends block r of `send` to rank r, for each of the `size` ranks. Block r of `recv` gets the
    /// block from rank r.
    pub fn all_to_all(send: Src<'a>, recv: Dst<'a>, dtype: DataType, size: WorldSize) -> Self {
        let count = dtype.elements_in(recv.len()) / size;
        Self { send, recv, ..Self::new(OpKind::AllToAll, Some(dtype), count) }
    }

    /// Like [`Call::all_gather`], with a separate length and buffer for each rank.
    pub fn all_gather_v(send: Src<'a>, recvs: Vec<Dst<'a>>, dtype: DataType) -> Self {
        let counts = counts(recvs.iter().map(|block| block.len()), dtype);
        let recvs = Some(recvs.into_boxed_slice());
        Self { send, recvs, ..Self::new(OpKind::AllGatherV, Some(dtype), 0) }.with_counts(&counts)
    }

    /// Creates a [`Call::all_gather_v`] with these counts and without buffers. The caller uses only
    /// its descriptor.
    pub(in crate::api) fn all_gather_v_without_buffers(counts: &[usize], dtype: DataType) -> Self {
        Self::new(OpKind::AllGatherV, Some(dtype), 0).with_counts(counts)
    }

    /// Like [`Call::gather`], with a separate length and buffer for each rank. `recvs` is `None`
    /// except on the root.
    pub fn gather_v(
        send: Src<'a>,
        recvs: Option<Vec<Dst<'a>>>,
        dtype: DataType,
        root: Rank,
    ) -> Self {
        let recvs = recvs.map(Vec::into_boxed_slice);
        let root = Some(root);
        Self { root, send, recvs, ..Self::pairwise(OpKind::GatherV, dtype) }
    }

    /// Like [`Call::scatter`], with a separate length and buffer for each rank. `sends` is `None`
    /// except on the root.
    pub fn scatter_v(
        sends: Option<Vec<Src<'a>>>,
        recv: Dst<'a>,
        dtype: DataType,
        root: Rank,
    ) -> Self {
        let sends = sends.map(Vec::into_boxed_slice);
        let root = Some(root);
        Self { root, sends, recv, ..Self::pairwise(OpKind::ScatterV, dtype) }
    }

    /// Like [`Call::reduce_scatter`], with a separate length and buffer for each rank.
    pub fn reduce_scatter_v(
        sends: Vec<Src<'a>>,
        recv: Dst<'a>,
        dtype: DataType,
        op: ReduceOp,
    ) -> Self {
        let counts = counts(sends.iter().map(|block| block.len()), dtype);
        let (op, sends) = (Some(op), Some(sends.into_boxed_slice()));
        Self { op, sends, recv, ..Self::new(OpKind::ReduceScatterV, Some(dtype), 0) }
            .with_counts(&counts)
    }

    /// Like [`Call::all_to_all`], with a separate length and buffer for each pair of ranks.
    pub fn all_to_all_v(sends: Vec<Src<'a>>, recvs: Vec<Dst<'a>>, dtype: DataType) -> Self {
        let (sends, recvs) = (Some(sends.into_boxed_slice()), Some(recvs.into_boxed_slice()));
        Self { sends, recvs, ..Self::pairwise(OpKind::AllToAllV, dtype) }
    }

    /// Creates a barrier, which ends when all ranks have called it.
    pub fn barrier() -> Self {
        Self::new(OpKind::Barrier, None, 0)
    }

    /// Creates a call in which only the two ranks of each pair know the count of their transfer.
    fn pairwise(kind: OpKind, dtype: DataType) -> Self {
        let (extent, count) = (CountSpec::Pairwise, usize::MAX);
        Self { extent, count, ..Self::new(kind, Some(dtype), 0) }
    }

    fn with_counts(self, counts: &[usize]) -> Self {
        let extent = CountSpec::of_counts(counts.iter().copied());
        Self { extent, count: counts.iter().copied().max().unwrap_or(0), ..self }
    }

    /// Returns the call without its built-in operator.
    pub(in crate::api) fn without_operator(self) -> Self {
        Self { op: None, ..self }
    }

    /// Returns the input blocks, one for each rank, in operations with such a list.
    pub(in crate::api) fn sends(&self) -> Option<&[Src<'a>]> {
        self.sends.as_deref()
    }

    /// Returns the kind of operation.
    pub fn kind(&self) -> OpKind {
        self.kind
    }

    /// Returns the request to enqueue the operation on a device, if the buffers are in device
    /// memory.
    pub(in crate::api) fn device_launch<'s>(
        &self,
        completion: &'s EnqueuedOperationSlot,
        ready_event: Option<&'s dyn StreamMarker>,
    ) -> Option<EnqueueRequest<'s>> {
        self.gpu.map(|gpu| EnqueueRequest {
            gpu,
            operation_slot: completion,
            buffers_ready: ready_event,
        })
    }

    /// Returns the sizes of the buffers, if the descriptor does not have them: in operations with a
    /// count for each rank.
    pub(in crate::api) fn recorded_sizes(&self) -> CallSizes {
        self.sizes_in_elements(self.dtype.map_or(1, DataType::size))
    }

    /// Returns the sizes like [`Self::recorded_sizes`], for elements of this size in bytes.
    pub(in crate::api) fn sizes_in_elements(&self, element_bytes: usize) -> CallSizes {
        if !self.kind.has_per_rank_counts() {
            return CallSizes::default();
        }
        // A rank that is not the root has neither a list nor the buffer of the root.
        let has_input = self.kind != OpKind::ScatterV && self.sends.is_none();
        let has_output = self.kind != OpKind::GatherV && self.recvs.is_none();
        let inputs = self.sends.iter().flatten().map(|block| block.len());
        let inputs = inputs.chain(has_input.then(|| self.send.len()));
        let outputs = self.recvs.iter().flatten().map(|block| block.len());
        let outputs = outputs.chain(has_output.then(|| self.recv.len()));
        CallSizes {
            inputs: Some(flat_sizes(inputs.map(|bytes| bytes / element_bytes))),
            outputs: Some(flat_sizes(outputs.map(|bytes| bytes / element_bytes))),
        }
    }

    /// Calls `visit` for each buffer. The second argument of `visit` is true if the operation
    /// writes the buffer. The buffer of a broadcast counts as written even on the root, which only
    /// reads it.
    pub(in crate::api) fn visit_buffers(&self, visit: &mut dyn FnMut(Src<'_>, bool)) {
        visit(self.send, self.kind == OpKind::Broadcast);
        visit(self.recv.as_src(), true);
        self.sends.iter().flatten().for_each(|&block| visit(block, false));
        self.recvs.iter().flatten().for_each(|block| visit(block.as_src(), true));
    }

    /// Returns the same operation on other buffers, which may have other lengths, in a group of
    /// `size` ranks. Must not be called for operations with a list of blocks.
    pub(in crate::api) fn with_buffers<'b>(
        &self,
        send: Src<'b>,
        recv: Dst<'b>,
        size: WorldSize,
    ) -> Call<'b> {
        let Self { kind, dtype, op, root, .. } = *self;
        let bytes = match kind {
            OpKind::ReduceScatter => recv.len(),
            OpKind::AllGather => recv.len() / size,
            _ => send.len().max(recv.len()),
        };
        let count = bytes / dtype.map_or(1, DataType::size);
        Call { op, root, send, recv, ..Call::new(kind, dtype, count) }
    }

    /// Returns the descriptor, which must be equal on all ranks.
    pub(in crate::api) fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        let Self { kind, dtype, op, root, extent, .. } = *self;
        Descriptor {
            kind,
            dtype,
            op,
            root,
            count_spec: extent,
            sequence,
            algorithm: 0,
            part: 0,
            label,
        }
    }

    /// Returns the arguments for the fast path. Returns `None` if the call has further arguments (a
    /// count for each rank, or a device).
    #[inline]
    pub(in crate::api) fn fast_path_arguments<'p>(
        &self,
        label: &'p Label,
    ) -> Option<CallArguments<'p>>
    where
        'a: 'p,
    {
        let Self { kind, dtype, op, root, count, send, recv, .. } = *self;
        let (recvs, factor) = (None, 0.0);
        let plain =
            CallArguments { kind, dtype, op, root, count, send, recv, recvs, factor, label };
        (!kind.has_per_rank_counts() && self.gpu.is_none()).then_some(plain)
    }

    /// Returns the operation for a back end.
    pub(in crate::api) fn operation<'o>(
        &'o self,
        descriptor: Descriptor,
        options: &'o CallOptions,
        group: &'o str,
        deadline: &'o LazyDeadline,
        observer: &'o dyn ProgressObserver,
    ) -> Operation<'o> {
        Operation {
            descriptor,
            count: self.count,
            send: self.send,
            recv: self.recv,
            sends: self.sends.as_deref(),
            recvs: self.recvs.as_deref(),
            factor: options.premul_scale,
            canonical: options.canonical,
            algorithm: options.algorithm.as_deref(),
            deadline,
            has_new_deadline: false,
            enqueue_request: None,
            labels: &[],
            observer,
            group,
        }
    }

    /// Returns the count argument in bytes, like [`Operation::bytes`].
    pub(in crate::api) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype.map_or(1, DataType::size))
    }

    /// Returns the operator and the element type of a reduction.
    pub(in crate::api) fn reduction(&self) -> Option<(ReduceOp, DataType)> {
        self.op.zip(self.dtype)
    }
}

fn counts(bytes: impl Iterator<Item = usize>, dtype: DataType) -> Vec<usize> {
    bytes.map(|bytes| dtype.elements_in(bytes)).collect()
}
