//! One collective call, as algorithms and back ends see it.

use super::select::AlgorithmRequest;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::{Deadline, LazyDeadline};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::gpu::EnqueueRequest;
use crate::base::ids::Rank;
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::base::progress_observer::{NoObserver, ProgressObserver};
use crate::transport::{CountSpec, Descriptor};

/// The arguments of a call, checked, with buffers of the right sizes.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// What all ranks agree on.
    pub descriptor: Descriptor,
    /// The count argument in elements: of a vector, or of a block where there is one for each rank.
    /// Of the `_v` forms the longest block, where all ranks know them all, else `usize::MAX`.
    pub count: usize,
    /// What this rank contributes; empty where it contributes nothing, or [`Operation::sends`] has
    /// it.
    pub send: Src<'a>,
    /// Where this rank's result goes; empty where it gets none, or [`Operation::recvs`] has it.
    pub recv: Dst<'a>,
    /// In the `_v` forms: what this rank has for each rank, where it has any.
    pub sends: Option<&'a [Src<'a>]>,
    /// In the `_v` forms: where what each rank has goes, where this rank gets it.
    pub recvs: Option<&'a [Dst<'a>]>,
    /// This rank's own factor, for `PREMUL_SUM`.
    pub factor: f64,
    /// Vectors are folded in the order of ranks at once, whatever the algorithm.
    pub canonical: bool,
    /// The algorithm asked for by name, if any.
    pub algorithm: Option<&'a str>,
    /// When the call must have ended, which begins with the first look at it.
    pub deadline: &'a LazyDeadline,
    /// Its deadline has just begun, or begins now: nothing has come before it.
    pub has_new_deadline: bool,
    /// It has begun on the short way: this rank has published its line of it
    /// ([`run`](super::shared::steps::prompt::Routine::run)), or a plug-in has it.
    pub is_published: bool,
    /// Where it is enqueued, if its buffers are in the memory of a GPU: nobody else may touch them.
    pub enqueue_request: Option<EnqueueRequest<'a>>,
    /// The labels of the calls that became this operation, if there are several and any has one;
    /// else empty.
    pub labels: &'a [Label],
    /// The group's name, for what is told of the call.
    pub group: &'a str,
    /// Who hears what happens in it.
    pub observer: &'a dyn ProgressObserver,
}

impl<'a> Operation<'a> {
    /// A call with these arguments, and nothing special, in a group without a name, that nobody
    /// listens to.
    pub fn of(
        descriptor: Descriptor,
        send: Src<'a>,
        recv: Dst<'a>,
        deadline: &'a LazyDeadline,
    ) -> Self {
        let count = match descriptor.count_spec {
            CountSpec::Count(count) => usize::try_from(count).unwrap_or(usize::MAX),
            CountSpec::Lengths => 1,
            CountSpec::Counts { .. } | CountSpec::Pairwise | CountSpec::Operator => usize::MAX,
        };
        let (sends, recvs, factor, canonical, algorithm) = (None, None, 1.0, false, None);
        Self {
            descriptor,
            count,
            send,
            recv,
            sends,
            recvs,
            factor,
            canonical,
            algorithm,
            deadline,
            has_new_deadline: false,
            is_published: false,
            enqueue_request: None,
            labels: &[],
            group: "",
            observer: &NoObserver,
        }
    }

    /// When it must have ended.
    pub fn deadline(&self) -> &'a Deadline {
        self.deadline.get_or_start()
    }

    /// What it asks of the choice among algorithms.
    pub fn algorithm_request(&self) -> AlgorithmRequest<'a> {
        AlgorithmRequest { name: self.algorithm, canonical: self.canonical }
    }

    /// The element type; a byte where the operation has none.
    pub fn dtype(&self) -> DataType {
        self.descriptor.dtype.unwrap_or(DataType::U8)
    }

    /// The size of one element.
    pub fn element_bytes(&self) -> usize {
        self.dtype().size()
    }

    /// The operator.
    ///
    /// # Errors
    /// `Internal` for an operation that has none.
    pub fn op(&self) -> Result<ReduceOp> {
        self.descriptor.op.ok_or_else(|| Error::internal("a reduction without an operator"))
    }

    /// The root.
    ///
    /// # Errors
    /// `Internal` for an operation that has none.
    pub fn root(&self) -> Result<Rank> {
        self.descriptor.root.ok_or_else(|| Error::internal("a rooted operation without a root"))
    }

    /// The count argument of the call, in bytes. Where all ranks know it, the buffers, which exist,
    /// are at least as long.
    pub fn bytes(&self) -> usize {
        self.count.saturating_mul(self.element_bytes())
    }

    /// What this rank has for a rank.
    pub fn send_block(&self, rank: Rank) -> Src<'a> {
        match self.sends {
            Some(blocks) => blocks[rank],
            None => self.send.slice(rank * self.bytes(), self.bytes()),
        }
    }

    /// Where what a rank has goes.
    pub fn recv_block(&self, rank: Rank) -> Dst<'a> {
        match self.recvs {
            Some(blocks) => blocks[rank],
            None => self.recv.slice(rank * self.bytes(), self.bytes()),
        }
    }
}
