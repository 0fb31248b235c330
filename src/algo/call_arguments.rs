//! The arguments of a call that one-step algorithms need. [`Operation`] also contains the state for
//! longer operations, such as the deadline and the observer.

use super::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::kernel::ResolvedFold;
use crate::transport::{CountSpec, Descriptor, OpKind};
use std::num::NonZeroU64;

/// The checked arguments of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallArguments<'a> {
    /// The operation.
    pub kind: OpKind,
    /// The element type, if the operation has one.
    pub dtype: Option<DataType>,
    /// The operator of a reduction.
    pub op: Option<ReduceOp>,
    /// The root of a rooted operation.
    pub root: Option<Rank>,
    /// The count, as [`Operation::count`].
    pub count: usize,
    /// The send buffer, as [`Operation::send`].
    pub send: Src<'a>,
    /// The receive buffer, as [`Operation::recv`].
    pub recv: Dst<'a>,
    /// The receive blocks, as [`Operation::recvs`].
    pub recvs: Option<&'a [Dst<'a>]>,
    /// The factor, as [`Operation::factor`].
    pub factor: f64,
    /// The label of the call. The [`FastCallKey`] does not contain the label, so calls that differ
    /// only in the label share one fast-path plan.
    pub label: &'a Label,
}

/// All arguments of a call except its buffers and its label, in one word. Two calls with equal keys
/// differ only in their buffers, their labels and their factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCallKey(NonZeroU64);

impl FastCallKey {
    /// The number of slots in the cache of fast-path plans.
    pub const SLOTS: usize = 8;

    /// Returns the word.
    pub fn word(self) -> u64 {
        self.0.get()
    }

    /// Returns the cache slot for this key.
    #[inline]
    pub fn slot(self) -> usize {
        // Fibonacci hashing (Knuth): the highest bits depend on all bits of the word.
        let hash = self.0.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(hash >> (u64::BITS - Self::SLOTS.ilog2())).unwrap_or(0)
    }
}

impl<'a> CallArguments<'a> {
    /// Returns the arguments of an operation.
    pub fn of(operation: &'a Operation<'a>) -> Self {
        let Operation { descriptor, count, send, recv, recvs, factor, .. } = *operation;
        let Descriptor { kind, dtype, op, root, .. } = descriptor;
        let label = &operation.descriptor.label;
        Self { kind, dtype, op, root, count, send, recv, recvs, factor, label }
    }

    /// Returns the key of the call, or `None` if the arguments do not fit in one word.
    #[inline(always)]
    pub fn key(&self) -> Option<FastCallKey> {
        const NONE: u64 = 0xff;
        let (dtype, op) =
            (self.dtype.map_or(NONE, |it| it as u64), self.op.map_or(NONE, |it| it as u64));
        let (count, root) = (self.count as u64, self.root.map_or(0, |root| root as u64 + 1));
        let high = (self.kind as u64) << 8 | dtype << 16 | op << 24 | count << 32 | root << 48;
        let fits = count < 1 << 16 && root < 1 << 16;
        NonZeroU64::new(high | 1).filter(|_| fits).map(FastCallKey)
    }

    /// Returns the operation descriptor, on which the ranks must agree.
    pub fn descriptor(&self, sequence: u64) -> Descriptor {
        let Self { kind, dtype, op, root, count, .. } = *self;
        let (count_spec, label) = (CountSpec::Count(count as u64), *self.label);
        Descriptor { kind, dtype, op, root, count_spec, sequence, algorithm: 0, part: 0, label }
    }

    /// Returns the element type, or `U8` if the operation has none.
    pub fn dtype(&self) -> DataType {
        self.dtype.unwrap_or(DataType::U8)
    }

    /// Returns the operator.
    ///
    /// # Errors
    /// `Internal` for an operation without an operator.
    pub fn op(&self) -> Result<ReduceOp> {
        self.op.ok_or_else(|| Error::internal("the reduction has no operator"))
    }

    /// Returns the fold of a reduction.
    pub fn resolved_fold(&self) -> Option<ResolvedFold> {
        self.op.map(|op| ResolvedFold::resolve(self.dtype(), op))
    }

    /// Returns the root.
    ///
    /// # Errors
    /// `Internal` for an operation without a root.
    pub fn root(&self) -> Result<Rank> {
        self.root.ok_or_else(|| Error::internal("the rooted operation has no root"))
    }

    /// Returns the count in bytes, as [`Operation::bytes`].
    pub fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype().size())
    }

    /// Returns the maximum number of bytes that any rank sends. The result is the same on all
    /// ranks. If the number exceeds `usize::MAX`, the result is `usize::MAX`.
    pub fn total_bytes(&self, ranks: WorldSize) -> usize {
        match self.kind {
            OpKind::ReduceScatter | OpKind::AllToAll => self.bytes().saturating_mul(ranks),
            _ => self.bytes(),
        }
    }

    /// Returns the receive block for a rank, as [`Operation::recv_block`].
    pub fn recv_block(&self, rank: Rank) -> Dst<'a> {
        match self.recvs {
            Some(blocks) => blocks[rank],
            None => self.recv.slice(rank * self.bytes(), self.bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_call_key_differs_for_every_argument() {
        let arguments = CallArguments {
            kind: OpKind::Reduce,
            dtype: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            root: Some(1),
            count: 3,
            send: Src::empty(),
            recv: Dst::empty(),
            recvs: None,
            factor: 1.0,
            label: &Label::NONE,
        };
        let others = [
            CallArguments { kind: OpKind::AllReduce, ..arguments },
            CallArguments { dtype: Some(DataType::I8), ..arguments },
            CallArguments { dtype: None, ..arguments },
            CallArguments { op: Some(ReduceOp::Max), ..arguments },
            CallArguments { op: None, ..arguments },
            CallArguments { root: Some(0), ..arguments },
            CallArguments { root: None, ..arguments },
            CallArguments { count: 4, ..arguments },
            CallArguments { count: 0, ..arguments },
        ];
        let mut keys: Vec<_> =
            others.iter().chain([&arguments]).map(|it| it.key().unwrap().word()).collect();
        assert!(arguments.key().unwrap().slot() < FastCallKey::SLOTS);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 10);
        assert_eq!(CallArguments { count: 1 << 16, ..arguments }.key(), None);
        assert_eq!(CallArguments { root: Some(usize::from(u16::MAX)), ..arguments }.key(), None);
    }
}
