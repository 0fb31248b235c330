//! Collectives on lists of tensors: broadcast, all_reduce, all_gather and reduce_scatter, each on
//! many tensors in place with one call.
//!
//! A call runs in one turn of the group's queue, under one sequence number. Its collectives are
//! called its parts ([`Descriptor::part`]):
//! 1. The ranks compare their lists before any data moves ([`agreement`]). If the lists differ, all
//!    ranks get the same `Mismatch` error, no tensor has changed, and the group continues.
//! 2. All tensors in device memory are reduced or transferred in place. A back end that enqueues
//!    operations gets many of them as one batch.
//! 3. Small tensors in host memory are copied together into a bucket of bounded size, which one
//!    operation processes. Long tensors need no copy: each has an operation of its own ([`plan`]).
//!
//! This module does not depend on C types or on how the parts run.
//!
//! [`Descriptor::part`]: crate::transport::Descriptor::part

mod agreement;
mod check;
mod description;
mod plan;
mod run;
mod tensor;

use crate::api::collective::call::Call;
use crate::api::group::process_group::Group;
use crate::api::observe::operation_details::{CallSizes, flat_sizes};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::gpu::GpuTarget;
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::{Label, LabelSuffix};
use crate::base::op::ReduceOp;
use crate::transport::{CountSpec, Descriptor, OpKind};
use plan::ListPlan;
pub(super) use run::ListTurn;
use tensor::blocks_of;
pub use tensor::{ListTensor, tensor_bytes};

/// The maximum number of tensors in a list.
pub const MAX_LIST_TENSORS: usize = 32_768;

/// The maximum length of a tensor's name in bytes. The limit bounds the memory of a comparison.
pub const MAX_TENSOR_NAME_BYTES: usize = 255;

/// The maximum number of dimensions of a tensor.
pub const MAX_TENSOR_DIMS: usize = 64;

/// The arguments of a collective on a list of tensors.
#[derive(Clone, Debug)]
pub struct ListCall<'a> {
    kind: OpKind,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    tensors: Vec<ListTensor<'a>>,
    /// The GPU and the stream of the tensors in device memory. The check of the call sets it.
    gpu: Option<GpuTarget>,
    /// The parts of the call. The check of the call sets it.
    plan: ListPlan,
}

impl<'a> ListCall<'a> {
    fn new(kind: OpKind, tensors: Vec<ListTensor<'a>>) -> Self {
        Self { kind, op: None, root: None, tensors, gpu: None, plan: ListPlan::default() }
    }

    /// Copies the root's tensors to all ranks.
    pub fn broadcast(tensors: Vec<ListTensor<'a>>, root: Rank) -> Self {
        Self { root: Some(root), ..Self::new(OpKind::Broadcast, tensors) }
    }

    /// Reduces the tensors of all ranks in place.
    pub fn all_reduce(tensors: Vec<ListTensor<'a>>, op: ReduceOp) -> Self {
        Self { op: Some(op), ..Self::new(OpKind::AllReduce, tensors) }
    }

    /// Gathers the blocks of all ranks. Each tensor consists of one block for each rank. Block r is
    /// the contribution of rank r.
    pub fn all_gather(tensors: Vec<ListTensor<'a>>) -> Self {
        Self::new(OpKind::AllGather, tensors)
    }

    /// Reduces the tensors of all ranks. Each tensor consists of one block for each rank. Block r
    /// of rank r gets its part of the result.
    pub fn reduce_scatter(tensors: Vec<ListTensor<'a>>, op: ReduceOp) -> Self {
        Self { op: Some(op), ..Self::new(OpKind::ReduceScatter, tensors) }
    }

    /// Returns the kind of the collective.
    pub(in crate::api) fn kind(&self) -> OpKind {
        self.kind
    }

    /// Returns the GPU and the stream, if a tensor is in device memory.
    pub(super) fn gpu(&self) -> Option<GpuTarget> {
        self.gpu
    }

    /// Calls `visit` for each tensor. The second argument of `visit` is true, because the call
    /// writes all tensors.
    pub(super) fn visit_buffers(&self, visit: &mut dyn FnMut(Src<'_>, bool)) {
        self.tensors.iter().for_each(|tensor| visit(tensor.data.as_src(), true));
    }

    /// Returns the descriptor for the flight recorder. It has only arguments that all ranks know
    /// before they have compared their lists.
    pub(super) fn descriptor(&self, sequence: u64, label: Label) -> Descriptor {
        Descriptor {
            kind: self.kind,
            dtype: None,
            op: self.op,
            root: self.root,
            count_spec: CountSpec::TensorList,
            sequence,
            algorithm: 0,
            part: 0,
            label,
        }
    }

    /// Returns the sizes of the tensors on this rank. An input or an output that is one block of a
    /// tensor has the number of its elements as its size.
    pub(super) fn sizes(&self, group: &Group) -> CallSizes {
        let shape = |tensor: &ListTensor<'_>| {
            tensor.shape.iter().map(|&extent| extent as u64).collect::<Vec<u64>>()
        };
        let tensors = || self.tensors.iter().map(shape).collect::<Vec<_>>();
        let blocks = self.blocks(group.size());
        let elements = |tensor: &ListTensor<'_>| tensor.dtype.elements_in(tensor.data.len());
        let own_blocks = || flat_sizes(self.tensors.iter().map(|it| elements(it) / blocks));
        let (inputs, outputs) = match self.kind {
            OpKind::AllGather => (own_blocks(), tensors()),
            OpKind::ReduceScatter => (tensors(), own_blocks()),
            OpKind::Broadcast if self.root != Some(group.rank()) => (Vec::new(), tensors()),
            _ => (tensors(), tensors()),
        };
        CallSizes { inputs: Some(inputs), outputs: Some(outputs) }
    }

    /// Returns the name of the call with its sequence number and its label, for instance
    /// `broadcast_list #7 "weights"`.
    pub(super) fn title(&self, first: &Descriptor) -> String {
        let Descriptor { sequence, label, .. } = first;
        format!("{}_list #{sequence}{}", self.kind.name(), LabelSuffix(*label))
    }

    /// Returns the number of blocks of each tensor, in a group of `size` ranks.
    fn blocks(&self, size: WorldSize) -> usize {
        blocks_of(self.kind, size)
    }

    /// Returns the collective on one tensor, or on a bucket with the same layout, in place.
    fn call_in_place<'b>(
        &self,
        data: Dst<'b>,
        dtype: DataType,
        rank: Rank,
        size: WorldSize,
    ) -> Result<Call<'b>> {
        let block = data.len() / self.blocks(size);
        let own_block = || data.slice(rank * block, block);
        Ok(match (self.kind, self.op, self.root) {
            (OpKind::Broadcast, _, Some(root)) => Call::broadcast(data, dtype, root, rank),
            (OpKind::AllReduce, Some(op), _) => Call::all_reduce(data.as_src(), data, dtype, op),
            (OpKind::AllGather, ..) => Call::all_gather(own_block().as_src(), data, dtype),
            (OpKind::ReduceScatter, Some(op), _) => {
                Call::reduce_scatter(data.as_src(), own_block(), dtype, op)
            }
            _ => return Err(Error::internal("a call on a list lacks its operator or its root")),
        })
    }
}
