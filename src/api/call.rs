//! A collective call with its arguments, before it has a number: which, with what memory, and what can be checked
//! without anybody else.
//!
//! Must not know: groups, the order of calls, back ends.

pub use super::call_options::{CallOptions, Where};

use crate::algo::Operation;
use crate::base::buffer::{Dst, Src};
use crate::base::deadline::LateDeadline;
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::gpu::{FlightSlot, Gpu, Launch, Mark};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::base::probe::Probe;
use crate::transport::{Descriptor, Extent, OpKind};

/// One collective, before it has a sequence number.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    kind: OpKind,
    dtype: Option<DataType>,
    op: Option<ReduceOp>,
    root: Option<Rank>,
    extent: Extent,
    count: usize,
    send: Src<'a>,
    recv: Dst<'a>,
    sends: Option<Box<[Src<'a>]>>,
    recvs: Option<Box<[Dst<'a>]>>,
    /// Where its buffers lie, if on a device.
    gpu: Option<Gpu>,
    /// It was looked at where they lie, and there is nothing in them.
    is_empty: bool,
}

/// The bytes of `blocks` times `count` elements.
///
/// # Errors
/// `InvalidArgument` where no memory could hold them.
pub fn buffer_bytes(count: usize, dtype: DataType, blocks: usize) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size()).and_then(|bytes| bytes.checked_mul(blocks));
    bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| {
        let message =
            format!("{blocks} x {count} elements of {dtype} do not fit the address space");
        Error::invalid(message)
    })
}

impl<'a> Call<'a> {
    fn new(kind: OpKind, dtype: Option<DataType>, count: usize) -> Self {
        let extent = Extent::Count(count as u64);
        let (send, recv) = (Src::empty(), Dst::empty());
        let (op, root, sends, recvs, gpu) = (None, None, None, None, None);
        let is_empty = false;
        Self { kind, dtype, op, root, extent, count, send, recv, sends, recvs, gpu, is_empty }
    }

    /// Reduces `send` of all ranks into `recv` of all ranks.
    pub fn all_reduce(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp) -> Self {
        let count = send.len() / dtype.size();
        Self { op: Some(op), send, recv, ..Self::new(OpKind::AllReduce, Some(dtype), count) }
    }

    /// Reduces `send` of all ranks into `recv` of the root; `recv` is empty elsewhere.
    pub fn reduce(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp, root: Rank) -> Self {
        let (op, root, count) = (Some(op), Some(root), send.len() / dtype.size());
        Self { op, root, send, recv, ..Self::new(OpKind::Reduce, Some(dtype), count) }
    }

    /// Copies `buf` of the root into `buf` of all ranks; `rank` is the caller's.
    pub fn broadcast(buf: Dst<'a>, dtype: DataType, root: Rank, rank: Rank) -> Self {
        let count = buf.len() / dtype.size();
        let (send, recv) =
            if root == rank { (buf.as_src(), Dst::empty()) } else { (Src::empty(), buf) };
        let root = Some(root);
        Self { root, send, recv, ..Self::new(OpKind::Broadcast, Some(dtype), count) }
    }

    /// Puts `send` of every rank into `recv` of all ranks, in rank order.
    pub fn all_gather(send: Src<'a>, recv: Dst<'a>, dtype: DataType) -> Self {
        let count = send.len() / dtype.size();
        Self { send, recv, ..Self::new(OpKind::AllGather, Some(dtype), count) }
    }

    /// Puts `send` of every rank into `recv` of the root, in rank order; `recv` is empty elsewhere.
    pub fn gather(send: Src<'a>, recv: Dst<'a>, dtype: DataType, root: Rank) -> Self {
        let (root, count) = (Some(root), send.len() / dtype.size());
        Self { root, send, recv, ..Self::new(OpKind::Gather, Some(dtype), count) }
    }

    /// Gives each rank its block of the root's `send`, which is empty elsewhere.
    pub fn scatter(send: Src<'a>, recv: Dst<'a>, dtype: DataType, root: Rank) -> Self {
        let (root, count) = (Some(root), recv.len() / dtype.size());
        Self { root, send, recv, ..Self::new(OpKind::Scatter, Some(dtype), count) }
    }

    /// Reduces `send` of all ranks, one block per rank, and gives each rank its block in `recv`.
    pub fn reduce_scatter(send: Src<'a>, recv: Dst<'a>, dtype: DataType, op: ReduceOp) -> Self {
        let (op, count) = (Some(op), recv.len() / dtype.size());
        Self { op, send, recv, ..Self::new(OpKind::ReduceScatter, Some(dtype), count) }
    }

    /// Gives each of `size` ranks its block of `send`, and puts what they have for this one into `recv`.
    pub fn all_to_all(send: Src<'a>, recv: Dst<'a>, dtype: DataType, size: WorldSize) -> Self {
        let count = recv.len() / dtype.size() / size;
        Self { send, recv, ..Self::new(OpKind::AllToAll, Some(dtype), count) }
    }

    /// As [`Call::all_gather`], with a block of its own length and place for each rank.
    pub fn all_gather_v(send: Src<'a>, recvs: Vec<Dst<'a>>, dtype: DataType) -> Self {
        let counts = counts(recvs.iter().map(|block| block.len()), dtype);
        let recvs = Some(recvs.into_boxed_slice());
        Self { send, recvs, ..Self::new(OpKind::AllGatherV, Some(dtype), 0) }.with_counts(&counts)
    }

    /// As [`Call::gather`], with a block of its own length and place for each rank; `recvs` is `None` but on the root.
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

    /// As [`Call::scatter`], with a block of its own length and place for each rank; `sends` is `None` but on the root.
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

    /// As [`Call::reduce_scatter`], with a block of its own length and place for each rank.
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

    /// As [`Call::all_to_all`], with a block of its own length and place for every two ranks.
    pub fn all_to_all_v(sends: Vec<Src<'a>>, recvs: Vec<Dst<'a>>, dtype: DataType) -> Self {
        let (sends, recvs) = (Some(sends.into_boxed_slice()), Some(recvs.into_boxed_slice()));
        Self { sends, recvs, ..Self::pairwise(OpKind::AllToAllV, dtype) }
    }

    /// Ends when all ranks have called it.
    pub fn barrier() -> Self {
        Self::new(OpKind::Barrier, None, 0)
    }

    fn pairwise(kind: OpKind, dtype: DataType) -> Self {
        let (extent, count) = (Extent::Pairwise, usize::MAX);
        Self { extent, count, ..Self::new(kind, Some(dtype), 0) }
    }

    fn with_counts(self, counts: &[usize]) -> Self {
        let extent = Extent::of_counts(counts.iter().copied());
        Self { extent, count: counts.iter().copied().max().unwrap_or(0), ..self }
    }

    /// Which operation.
    pub fn kind(&self) -> OpKind {
        self.kind
    }

    pub(super) fn dtype(&self) -> Option<DataType> {
        self.dtype
    }

    pub(super) fn op(&self) -> Option<ReduceOp> {
        self.op
    }

    pub(super) fn root(&self) -> Option<Rank> {
        self.root
    }

    /// The count argument, of forms that have one.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Where its buffers lie, if on a device.
    pub(super) fn gpu(&self) -> Option<Gpu> {
        self.gpu
    }

    /// Whether all its buffers are known to be empty.
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    pub(super) fn set_place(&mut self, gpu: Option<Gpu>, is_empty: bool) {
        self.gpu = gpu;
        self.is_empty = is_empty;
    }

    /// How it is enqueued, if its buffers lie on a device.
    pub(super) fn launch<'s>(
        &self,
        flight: &'s FlightSlot,
        ready: Option<&'s dyn Mark>,
    ) -> Option<Launch<'s>> {
        self.gpu.map(|gpu| Launch { gpu, flight, ready })
    }

    /// What this rank contributes, in one piece.
    pub(super) fn send(&self) -> Src<'a> {
        self.send
    }

    /// Where its result goes, in one piece.
    pub(super) fn recv(&self) -> Dst<'a> {
        self.recv
    }

    /// Tells of all memory of the call, and whether it is written; that of a broadcast is, on the root too.
    pub(super) fn each_buffer(&self, note: &mut dyn FnMut(Src<'_>, bool)) {
        note(self.send, self.kind == OpKind::Broadcast);
        note(self.recv.as_src(), true);
        self.sends.iter().flatten().for_each(|&block| note(block, false));
        self.recvs.iter().flatten().for_each(|block| note(block.as_src(), true));
    }

    /// The same operation on other buffers, of other lengths, in a group of `size`. Not for the `_v` forms.
    pub(super) fn with_buffers<'b>(
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

    /// What the ranks must agree on.
    pub(super) fn descriptor(&self, sequence: u64) -> Descriptor {
        let Self { kind, dtype, op, root, extent, .. } = *self;
        Descriptor { kind, dtype, op, root, extent, sequence, algorithm: 0, part: 0 }
    }

    /// The call as a back end sees it.
    pub(super) fn operation<'o>(
        &'o self,
        descriptor: Descriptor,
        options: &'o CallOptions,
        (group, deadline): (&'o str, &'o LateDeadline),
        probe: &'o dyn Probe,
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
            is_fresh: false,
            is_published: false,
            launch: None,
            probe,
            group,
        }
    }

    /// The count argument in bytes, as [`Operation::bytes`].
    pub(super) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype.map_or(1, DataType::size))
    }

    /// Checks what does not depend on a back end, for rank `rank` of `size`.
    pub(super) fn check(&self, options: &CallOptions, rank: Rank, size: WorldSize) -> Result<()> {
        if self.op == Some(ReduceOp::PremulSum) && options.premul_scale == 0.0 {
            let message = "PREMUL_SUM needs premul_scale in the call's options, and not 0";
            return Err(Error::invalid(message));
        }
        if let Some(root) = self.root
            && root >= size
        {
            return Err(Error::invalid(format!("root {root} does not exist in a group of {size}")));
        }
        if self.sends.is_none() && self.recvs.is_none() {
            return self.check_overlap(rank);
        }
        self.check_blocks(rank, size)
    }

    /// What is given in blocks, one for each rank.
    fn check_blocks(&self, rank: Rank, size: WorldSize) -> Result<()> {
        let lists = [self.sends.as_ref().map(|l| l.len()), self.recvs.as_ref().map(|l| l.len())];
        if let Some(wrong) = lists.into_iter().flatten().find(|&blocks| blocks != size) {
            let message =
                format!("{wrong} blocks were given in a group of {size}: one for each rank");
            return Err(Error::invalid(message));
        }
        self.check_own(rank)?;
        self.check_lists(rank)
    }

    /// What a rank has for itself is as long as what it expects of itself. `sends` and `recvs` are there only where
    /// they count, on the root of rooted forms.
    fn check_own(&self, rank: Rank) -> Result<()> {
        let sent = self.sends.as_ref().map_or(self.send, |blocks| blocks[rank]).len();
        let expected = self.recvs.as_ref().map_or(self.recv, |blocks| blocks[rank]).len();
        if sent == expected {
            return Ok(());
        }
        let element = self.dtype.map_or(1, DataType::size);
        let names = match self.kind {
            OpKind::AllToAllV => "send_counts[rank] and recv_counts[rank]",
            _ => "count and counts[rank]",
        };
        Err(Error::invalid(format!(
            "{names} differ for rank {rank} itself: it sends {} elements and expects {}",
            sent / element,
            expected / element
        )))
    }

    /// The operator and the type, for who knows whether they go together.
    pub(super) fn reduction(&self) -> Option<(ReduceOp, DataType)> {
        self.op.zip(self.dtype)
    }

    /// Input and output are the same place, or have nothing in common.
    fn check_overlap(&self, rank: Rank) -> Result<()> {
        let Self { kind, send, recv, .. } = self;
        if send.is_empty() || recv.is_empty() {
            return Ok(());
        }
        let (from, to) = (send.as_ptr().addr(), recv.as_mut_ptr().addr());
        let disjoint = from + send.len() <= to || to + recv.len() <= from;
        let (in_place, rule) = match kind {
            OpKind::AllGather | OpKind::Gather => {
                (from == to + rank * send.len(), "send == recv + rank * count")
            }
            OpKind::ReduceScatter | OpKind::Scatter => {
                (to == from + rank * recv.len(), "recv == send + rank * count")
            }
            OpKind::AllToAll => (false, ""),
            _ => (from == to, "send == recv"),
        };
        if disjoint || in_place {
            return Ok(());
        }
        Err(overlap(rule))
    }

    /// The same for lists of blocks; and no two outputs have anything in common.
    fn check_lists(&self, rank: Rank) -> Result<()> {
        let mut outputs: Vec<(usize, usize, usize)> = match &self.recvs {
            Some(blocks) => {
                let span =
                    |(i, block): (usize, &Dst<'_>)| (block.as_mut_ptr().addr(), block.len(), i);
                blocks.iter().enumerate().map(span).collect()
            }
            None => vec![(self.recv.as_mut_ptr().addr(), self.recv.len(), rank)],
        };
        outputs.retain(|&(_, len, _)| len > 0);
        outputs.sort_unstable();
        if let Some(pair) = outputs.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            let message =
                format!("the blocks of recv for ranks {} and {} overlap", pair[0].2, pair[1].2);
            return Err(Error::invalid(message));
        }
        let clash = |src: Src<'_>, index: Rank| {
            let (from, len) = (src.as_ptr().addr(), src.len());
            let end = outputs.partition_point(|&(to, ..)| to < from + len);
            let before =
                outputs[..end].last().filter(|&&(to, size, _)| len > 0 && to + size > from);
            let in_place = |&&(to, size, block): &&(usize, usize, usize)| {
                self.kind != OpKind::AllToAllV
                    && (index, block) == (rank, rank)
                    && (to, size) == (from, len)
            };
            before.is_some_and(|span| !in_place(&span))
        };
        let clashes = match &self.sends {
            Some(blocks) => blocks.iter().enumerate().any(|(i, &block)| clash(block, i)),
            None => clash(self.send, rank),
        };
        let rule = match self.kind {
            OpKind::AllToAllV => "",
            OpKind::AllGatherV | OpKind::GatherV => "send == recv[rank]",
            _ => "recv == send[rank]",
        };
        if clashes { Err(overlap(rule)) } else { Ok(()) }
    }
}

fn counts(bytes: impl Iterator<Item = usize>, dtype: DataType) -> Vec<usize> {
    bytes.map(|bytes| bytes / dtype.size()).collect()
}

fn overlap(rule: &str) -> Error {
    if rule.is_empty() {
        return Error::invalid("the buffers overlap; this operation has no form in place");
    }
    Error::invalid(format!("the buffers overlap; they may be apart, or in place ({rule})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece of memory that nobody touches: only its place is looked at.
    #[allow(unsafe_code, reason = "views that alias, of which only the places count")]
    fn dst(memory: &mut [u8], from: usize, len: usize) -> Dst<'static> {
        // SAFETY: the view is compared and never used.
        unsafe { Dst::new(memory[from..from + len].as_mut_ptr(), len) }
    }

    fn check(call: &Call<'_>) -> std::result::Result<(), String> {
        call.check(&CallOptions::default(), 1, 3).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn lists_may_be_in_place_for_the_own_rank_only() {
        let memory = &mut [0; 64];
        let blocks =
            |memory: &mut [u8]| vec![dst(memory, 0, 8), dst(memory, 8, 4), dst(memory, 16, 8)];
        let gather = |memory: &mut [u8], send: Src<'static>| {
            check(&Call::all_gather_v(send, blocks(memory), DataType::U8))
        };
        let at = |memory: &mut [u8], from: usize| dst(memory, from, 4).as_src();
        let (own, apart) = (at(memory, 8), at(memory, 40));
        let (other, across) = (at(memory, 16), at(memory, 10));
        assert_eq!(gather(memory, own), Ok(()));
        assert_eq!(gather(memory, apart), Ok(()));
        assert!(gather(memory, other).unwrap_err().contains("send == recv[rank]"));
        assert!(gather(memory, across).is_err());
        let sends: Vec<Src<'_>> = blocks(memory).iter().map(|block| block.as_src()).collect();
        let exchange = Call::all_to_all_v(sends.clone(), blocks(memory), DataType::U8);
        assert!(check(&exchange).unwrap_err().contains("no form in place"));
        let own = dst(memory, 8, 4);
        let scatter = Call::reduce_scatter_v(sends, own, DataType::U8, ReduceOp::Sum);
        assert_eq!(check(&scatter), Ok(()));
    }

    #[test]
    fn outputs_are_apart_and_there_is_one_for_each_rank() {
        let memory = &mut [0; 64];
        let send = dst(memory, 60, 4).as_src();
        let close = vec![dst(memory, 0, 8), dst(memory, 7, 4), dst(memory, 16, 8)];
        let error = check(&Call::all_gather_v(send, close, DataType::U8)).unwrap_err();
        assert!(error.contains("ranks 0 and 1 overlap"), "{error}");
        let few = vec![dst(memory, 0, 8), dst(memory, 8, 4)];
        let error = check(&Call::all_gather_v(send, few, DataType::U8)).unwrap_err();
        assert!(error.contains("2 blocks"), "{error}");
        let empty = vec![dst(memory, 0, 8), dst(memory, 4, 0), dst(memory, 8, 0)];
        let nothing = Src::empty();
        assert_eq!(check(&Call::gather_v(nothing, Some(empty), DataType::U8, 1)), Ok(()));
    }

    #[test]
    fn what_a_rank_has_for_itself_has_one_length() {
        let memory = &mut [0; 64];
        let blocks = |memory: &mut [u8], own| {
            vec![dst(memory, 0, 4), dst(memory, 8, own), dst(memory, 16, 4)]
        };
        let sources = |memory: &mut [u8], own| {
            vec![
                dst(memory, 32, 2).as_src(),
                dst(memory, 40, own).as_src(),
                dst(memory, 48, 6).as_src(),
            ]
        };
        let dtype = DataType::I16;
        for own in [0, 2, 6] {
            let expected = |call: Call<'_>, names: &str| match (own, check(&call)) {
                (2, checked) => assert_eq!(checked, Ok(())),
                (_, checked) => {
                    let error = checked.unwrap_err();
                    let said = format!("{names} differ for rank 1 itself");
                    assert!(error.starts_with(&said), "{error}");
                    assert!(error.contains(&format!("{} elements", own / 2)), "{error}");
                }
            };
            let (sends, recvs) = (sources(memory, own), blocks(memory, 2));
            expected(
                Call::all_to_all_v(sends.clone(), recvs.clone(), dtype),
                "send_counts[rank] and recv_counts[rank]",
            );
            let (send, recv) = (sends[1], recvs[1]);
            let counts = "count and counts[rank]";
            expected(Call::all_gather_v(send, recvs.clone(), dtype), counts);
            expected(Call::gather_v(send, Some(recvs), dtype, 1), counts);
            expected(Call::scatter_v(Some(sends.clone()), recv, dtype, 1), counts);
            expected(Call::reduce_scatter_v(sends, recv, dtype, ReduceOp::Sum), counts);
            // Not the root: the counts of others are theirs to compare.
            assert_eq!(check(&Call::gather_v(send, None, dtype, 0)), Ok(()));
        }
    }
}
