//! The arguments and the context of one collective call, for algorithms and back ends.

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

/// The size in bytes of the smallest data slot (a rank's buffer in shared memory). A call of at
/// most this size is a small call.
pub const EAGER_BYTES: usize = 4096;

/// The algorithm that runs an operation.
#[derive(Clone, Copy, Debug)]
pub struct RunningAlgorithm {
    /// The name of the algorithm, for the progress observer.
    pub name: &'static str,
    /// The number of the algorithm among the algorithms of the operation. The ranks compare this
    /// number.
    pub number: u8,
}

/// The requirements of a call for the selection of its algorithm.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlgorithmRequest<'a> {
    /// The name of the requested algorithm.
    pub name: Option<&'a str>,
    /// Whether the caller requests that the vectors of all ranks are folded at once and in rank
    /// order.
    pub canonical: bool,
    /// Whether the reduction itself requires this ([`ReduceOp::is_integer_average`]).
    pub at_once: bool,
}

impl<'a> AlgorithmRequest<'a> {
    /// Returns the requirements of a call with these options, element type and operator.
    pub fn of(
        name: Option<&'a str>,
        canonical: bool,
        dtype: Option<DataType>,
        op: Option<ReduceOp>,
    ) -> Self {
        let is_integer_average = |(op, dtype): (ReduceOp, DataType)| op.is_integer_average(dtype);
        Self { name, canonical, at_once: op.zip(dtype).is_some_and(is_integer_average) }
    }

    /// Returns whether a call has requirements.
    pub fn has_requirements(&self) -> bool {
        self.name.is_some() || self.needs_ordered_row()
    }

    /// Returns whether only an algorithm that folds the vectors of all ranks at once and in rank
    /// order can run the call.
    pub fn needs_ordered_row(&self) -> bool {
        self.canonical || self.at_once
    }
}

/// The checked arguments of a call, with buffers of the right sizes.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The operation descriptor, on which all ranks agree.
    pub descriptor: Descriptor,
    /// The count argument in elements.
    ///
    /// - If each rank has one vector: the length of the vector.
    /// - If each rank has one block per rank: the length of one block.
    /// - In the `_v` forms, if all ranks know all lengths: the length of the longest block.
    /// - In the `_v` forms otherwise: `usize::MAX`.
    pub count: usize,
    /// The send buffer of this rank. It is empty if this rank sends nothing, or if
    /// [`Operation::sends`] contains the blocks.
    pub send: Src<'a>,
    /// The receive buffer of this rank. It is empty if this rank receives nothing, or if
    /// [`Operation::recvs`] contains the blocks.
    pub recv: Dst<'a>,
    /// The send block for each rank. Only the `_v` forms set it, on ranks that send.
    pub sends: Option<&'a [Src<'a>]>,
    /// The receive block from each rank. Only the `_v` forms set it, on ranks that receive.
    pub recvs: Option<&'a [Dst<'a>]>,
    /// This rank's own factor for `PREMUL_SUM`.
    pub factor: f64,
    /// Whether the algorithm must fold the vectors of all ranks at once and in rank order.
    pub canonical: bool,
    /// The name of the algorithm that the caller requests, if any.
    pub algorithm: Option<&'a str>,
    /// The deadline of the call. The time starts at the first access to the deadline.
    pub deadline: &'a LazyDeadline,
    /// Whether the full timeout is left: the deadline has not started, or has started just now.
    pub has_new_deadline: bool,
    /// The request to enqueue the operation on a stream of a GPU, if the buffers are in GPU memory.
    /// In that case only the back end that enqueues the operation may access the buffers.
    pub enqueue_request: Option<EnqueueRequest<'a>>,
    /// If a batch of calls was merged into this operation and any of the calls has a label: the
    /// labels of the calls. Otherwise empty.
    pub labels: &'a [Label],
    /// The name of the group, for log and error messages.
    pub group: &'a str,
    /// The progress observer of the operation.
    pub observer: &'a dyn ProgressObserver,
}

impl<'a> Operation<'a> {
    /// Returns an operation with these arguments and default options. Its group has no name, and it
    /// has no progress observer.
    pub fn of(
        descriptor: Descriptor,
        send: Src<'a>,
        recv: Dst<'a>,
        deadline: &'a LazyDeadline,
    ) -> Self {
        let count = match descriptor.count_spec {
            CountSpec::Count(count) => usize::try_from(count).unwrap_or(usize::MAX),
            CountSpec::Lengths => 1,
            CountSpec::Counts { .. }
            | CountSpec::Pairwise
            | CountSpec::Operator
            | CountSpec::TensorList => usize::MAX,
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
            enqueue_request: None,
            labels: &[],
            group: "",
            observer: &NoObserver,
        }
    }

    /// Returns the deadline, and starts it at the first access.
    pub fn deadline(&self) -> &'a Deadline {
        self.deadline.get_or_start()
    }

    /// Returns the request for the selection of an algorithm.
    pub fn algorithm_request(&self) -> AlgorithmRequest<'a> {
        let Descriptor { dtype, op, .. } = self.descriptor;
        AlgorithmRequest::of(self.algorithm, self.canonical, dtype, op)
    }

    /// Returns the element type, or `U8` if the operation has none.
    pub fn dtype(&self) -> DataType {
        self.descriptor.dtype.unwrap_or(DataType::U8)
    }

    /// Returns the size of one element in bytes.
    pub fn element_bytes(&self) -> usize {
        self.dtype().size()
    }

    /// Returns the operator.
    ///
    /// # Errors
    /// `Internal` for an operation without an operator.
    pub fn op(&self) -> Result<ReduceOp> {
        self.descriptor.op.ok_or_else(|| Error::internal("the reduction has no operator"))
    }

    /// Returns the root.
    ///
    /// # Errors
    /// `Internal` for an operation without a root.
    pub fn root(&self) -> Result<Rank> {
        self.descriptor.root.ok_or_else(|| Error::internal("the rooted operation has no root"))
    }

    /// Returns the count argument in bytes. If all ranks know the count, the buffers are at least
    /// that long, so the product does not saturate.
    pub fn bytes(&self) -> usize {
        self.count.saturating_mul(self.element_bytes())
    }

    /// Returns the send block for a rank.
    pub fn send_block(&self, rank: Rank) -> Src<'a> {
        match self.sends {
            Some(blocks) => blocks[rank],
            None => self.send.slice(rank * self.bytes(), self.bytes()),
        }
    }

    /// Returns the receive block from a rank.
    pub fn recv_block(&self, rank: Rank) -> Dst<'a> {
        match self.recvs {
            Some(blocks) => blocks[rank],
            None => self.recv.slice(rank * self.bytes(), self.bytes()),
        }
    }
}
