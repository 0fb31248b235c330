//! A call that is nothing but its arguments: what an operation needs that is over with one step.

use super::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::label::Label;
use crate::base::op::ReduceOp;
use crate::kernel::Folding;
use crate::transport::{Descriptor, Extent, OpKind};
use std::num::NonZeroU64;

/// The arguments of a call, checked.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a> {
    /// The operation.
    pub kind: OpKind,
    /// The element type, where it has one.
    pub dtype: Option<DataType>,
    /// The operator, of reductions.
    pub op: Option<ReduceOp>,
    /// The root, of rooted operations.
    pub root: Option<Rank>,
    /// As [`Operation::count`].
    pub count: usize,
    /// As [`Operation::send`].
    pub send: Src<'a>,
    /// As [`Operation::recv`].
    pub recv: Dst<'a>,
    /// As [`Operation::recvs`].
    pub recvs: Option<&'a [Dst<'a>]>,
    /// As [`Operation::factor`].
    pub factor: f64,
    /// The label of the call. It is no part of the key: calls that differ in it alone go the same
    /// way.
    pub label: &'a Label,
}

/// All that a call says beside its buffers, in one word: two calls that have the same key differ in
/// these alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(NonZeroU64);

impl Key {
    /// Among how many places calls are remembered.
    pub const PLACES: usize = 8;

    /// The word.
    pub fn word(self) -> u64 {
        self.0.get()
    }

    /// Which of the places is its own.
    #[inline]
    pub fn place(self) -> usize {
        // Fibonacci hashing (Knuth): the highest bits depend on all.
        let mixed = self.0.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mixed >> (u64::BITS - Self::PLACES.ilog2())).unwrap_or(0)
    }
}

impl<'a> Plain<'a> {
    /// The arguments of an operation.
    pub fn of(operation: &'a Operation<'a>) -> Self {
        let Operation { descriptor, count, send, recv, recvs, factor, .. } = *operation;
        let Descriptor { kind, dtype, op, root, .. } = descriptor;
        let label = &operation.descriptor.label;
        Self { kind, dtype, op, root, count, send, recv, recvs, factor, label }
    }

    /// Its key; none where that would take more than a word.
    #[inline(always)]
    pub fn key(&self) -> Option<Key> {
        const NONE: u64 = 0xff;
        let (dtype, op) =
            (self.dtype.map_or(NONE, |it| it as u64), self.op.map_or(NONE, |it| it as u64));
        let (count, root) = (self.count as u64, self.root.map_or(0, |root| root as u64 + 1));
        let high = (self.kind as u64) << 8 | dtype << 16 | op << 24 | count << 32 | root << 48;
        let fits = count < 1 << 16 && root < 1 << 16;
        NonZeroU64::new(high | 1).filter(|_| fits).map(Key)
    }

    /// What the ranks must agree on.
    pub fn descriptor(&self, sequence: u64) -> Descriptor {
        let Self { kind, dtype, op, root, count, .. } = *self;
        let (extent, label) = (Extent::Count(count as u64), *self.label);
        Descriptor { kind, dtype, op, root, extent, sequence, algorithm: 0, part: 0, label }
    }

    /// The element type; a byte where the operation has none.
    pub fn dtype(&self) -> DataType {
        self.dtype.unwrap_or(DataType::U8)
    }

    /// The operator.
    ///
    /// # Errors
    /// `Internal` for an operation that has none.
    pub fn op(&self) -> Result<ReduceOp> {
        self.op.ok_or_else(|| Error::internal("a reduction without an operator"))
    }

    /// What a reduction does.
    pub fn folding(&self) -> Option<Folding> {
        self.op.map(|op| Folding::of(self.dtype(), op))
    }

    /// The root.
    ///
    /// # Errors
    /// `Internal` for an operation that has none.
    pub fn root(&self) -> Result<Rank> {
        self.root.ok_or_else(|| Error::internal("a rooted operation without a root"))
    }

    /// As [`Operation::bytes`].
    pub fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype().size())
    }

    /// How many bytes a rank has for others at most: the same for all, and as much as fits an
    /// address.
    pub fn bytes_in_all(&self, ranks: WorldSize) -> usize {
        match self.kind {
            OpKind::ReduceScatter | OpKind::AllToAll => self.bytes().saturating_mul(ranks),
            _ => self.bytes(),
        }
    }

    /// As [`Operation::recv_block`].
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
    fn a_key_tells_all_arguments_apart() {
        let plain = Plain {
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
            Plain { kind: OpKind::AllReduce, ..plain },
            Plain { dtype: Some(DataType::I8), ..plain },
            Plain { dtype: None, ..plain },
            Plain { op: Some(ReduceOp::Max), ..plain },
            Plain { op: None, ..plain },
            Plain { root: Some(0), ..plain },
            Plain { root: None, ..plain },
            Plain { count: 4, ..plain },
            Plain { count: 0, ..plain },
        ];
        let mut keys: Vec<_> =
            others.iter().chain([&plain]).map(|it| it.key().unwrap().word()).collect();
        assert!(plain.key().unwrap().place() < Key::PLACES);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 10);
        assert_eq!(Plain { count: 1 << 16, ..plain }.key(), None);
        assert_eq!(Plain { root: Some(usize::from(u16::MAX)), ..plain }.key(), None);
    }
}
