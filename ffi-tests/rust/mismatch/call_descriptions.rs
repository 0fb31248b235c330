//! The calls of the mismatch matrix: their arguments, their execution, and the library's
//! description of them.

use crate::ranks::RankUnderTest;
use dist::api::{Call, CallOptions};
use dist::base::buffer::{Dst, Src};
use dist::base::dtype::DataType;
use dist::base::error::Result;
use dist::base::label::Label;
use dist::base::op::ReduceOp;
use dist::transport::OpKind;

/// The deadline of a call; a mismatch must be reported earlier.
const LIMIT_MS: u64 = 15_000;

/// The arguments of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDescription {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    /// The number of elements of a block.
    pub(crate) count: usize,
    pub(crate) algorithm: Option<&'static str>,
    pub(crate) label: &'static str,
}

impl CallDescription {
    /// Returns the usual call, which all ranks but the differing one make.
    pub(crate) fn typical(kind: OpKind, count: usize) -> Self {
        let (dtype, op) = (DataType::F32, ReduceOp::Sum);
        Self { kind, dtype, op, root: 0, count, algorithm: None, label: "" }
    }

    pub(crate) fn has_root(self) -> bool {
        use OpKind::{Broadcast, Gather, GatherV, Reduce, Scatter, ScatterV};
        matches!(self.kind, Broadcast | Reduce | Gather | Scatter | GatherV | ScatterV)
    }

    /// Returns true if all ranks must agree on the block length as one number.
    pub(crate) fn has_count(self) -> bool {
        use OpKind::{AllGatherV, AllToAllV, Barrier, GatherV, ReduceScatterV, ScatterV};
        !matches!(self.kind, Barrier | AllGatherV | AllToAllV | GatherV | ReduceScatterV | ScatterV)
    }

    /// Returns the known part of the description that error messages have for this call at this
    /// sequence number.
    pub(crate) fn error_text(self, sequence: usize) -> String {
        let mut parts = Vec::new();
        if self.kind != OpKind::Barrier {
            parts.push(self.dtype.to_string());
        }
        if self.kind.is_reduction() {
            parts.push(self.op.to_string());
        }
        if self.has_root() {
            parts.push(format!("root {}", self.root));
        }
        if self.has_count() {
            parts.push(format!("count {})", self.count));
        }
        let label = self.quoted_label();
        let name = format!("{} #{sequence}{label}", self.kind.name());
        let algorithm =
            self.algorithm.map_or(String::new(), |name| format!(" with the algorithm \"{name}\""));
        if parts.is_empty() { name } else { format!("{name} ({}{algorithm}", parts.join(", ")) }
    }

    /// The label as errors show it, with a space before it; empty if there is none.
    pub(crate) fn quoted_label(&self) -> String {
        match self.label {
            "" => String::new(),
            label => format!(" \"{label}\""),
        }
    }

    /// Makes the call on a rank.
    pub(crate) fn call(self, rank: &RankUnderTest) -> Result<()> {
        let group = rank.group();
        let (me, size, Self { dtype, op, root, .. }) = (group.rank(), group.size(), self);
        let block = self.count * dtype.size();
        let (input, mut output) = (vec![0; block * size], vec![0; block * size]);
        if self.is_gathering() {
            return self.call_gathering(rank, &input, &mut output);
        }
        let (all, one) = (Src::from(input.as_slice()), Src::from(&input[..block]));
        let recv = Dst::from(&mut output[..block]);
        let is_root = me == root;
        let sends = || (0..size).map(|_| one).collect::<Vec<_>>();
        let call = match self.kind {
            OpKind::Barrier => Call::barrier(),
            OpKind::AllReduce => Call::all_reduce(one, recv, dtype, op),
            OpKind::Broadcast => Call::broadcast(recv, dtype, root, me),
            OpKind::Reduce => {
                Call::reduce(one, if is_root { recv } else { Dst::empty() }, dtype, op, root)
            }
            OpKind::Scan => Call::scan(one, recv, dtype, op),
            OpKind::Exscan => {
                Call::exscan(one, if me == 0 { Dst::empty() } else { recv }, dtype, op)
            }
            OpKind::ReduceScatter => Call::reduce_scatter(all, recv, dtype, op),
            OpKind::ReduceScatterV => Call::reduce_scatter_v(sends(), recv, dtype, op),
            OpKind::Scatter => {
                Call::scatter(if is_root { all } else { Src::empty() }, recv, dtype, root)
            }
            _ => Call::scatter_v(is_root.then(sends), recv, dtype, root),
        };
        group.run(call, &self.options())
    }

    /// Returns true if a rank receives one block per rank.
    fn is_gathering(self) -> bool {
        use OpKind::{AllGather, AllGatherV, AllToAll, AllToAllV, Gather, GatherV};
        matches!(self.kind, AllGather | Gather | AllToAll | AllGatherV | GatherV | AllToAllV)
    }

    fn call_gathering(self, rank: &RankUnderTest, input: &[u8], output: &mut [u8]) -> Result<()> {
        let group = rank.group();
        let (me, size, Self { dtype, root, .. }) = (group.rank(), group.size(), self);
        let block = self.count * dtype.size();
        let (all, one) = (Src::from(input), Src::from(&input[..block]));
        let is_root = me == root;
        let call = match self.kind {
            OpKind::AllGather => Call::all_gather(one, Dst::from(output), dtype),
            OpKind::Gather => {
                let recv = if is_root { Dst::from(output) } else { Dst::empty() };
                Call::gather(one, recv, dtype, root)
            }
            OpKind::AllToAll => Call::all_to_all(all, Dst::from(output), dtype, size),
            kind => {
                let recvs: Vec<Dst<'_>> = output.chunks_mut(block.max(1)).map(Dst::from).collect();
                match kind {
                    OpKind::AllGatherV => Call::all_gather_v(one, recvs, dtype),
                    OpKind::GatherV => Call::gather_v(one, is_root.then_some(recvs), dtype, root),
                    _ => Call::all_to_all_v((0..size).map(|_| one).collect(), recvs, dtype),
                }
            }
        };
        group.run(call, &self.options())
    }

    fn options(self) -> CallOptions {
        let algorithm = self.algorithm.map(str::to_owned);
        let label = Label::new(self.label).unwrap();
        CallOptions { algorithm, timeout_ms: LIMIT_MS, label, ..CallOptions::default() }
    }

    /// Returns true if this rank may complete the call before a rank finds the mismatch. The rank
    /// then only sends, or only receives from a root with the same call.
    pub(crate) fn may_finish_early(self, me: usize, others: &[Self]) -> bool {
        match self.kind {
            OpKind::Broadcast | OpKind::Scatter | OpKind::ScatterV => others[self.root] == self,
            OpKind::Reduce | OpKind::Gather | OpKind::GatherV => me != self.root,
            // In a prefix operation a rank waits for lower ranks only.
            OpKind::Scan | OpKind::Exscan => others[..me].iter().all(|other| *other == self),
            _ => false,
        }
    }
}
