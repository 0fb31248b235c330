//! Checks of a call that a rank can do without the other ranks: the root, the operator, and the
//! buffers. The number and the lengths of the buffers must match the arguments. The input and the
//! output must not overlap, or they must be in place, that is, at exactly the addresses that the
//! operation permits.

use super::{Call, CallOptions};
use crate::base::buffer::{Dst, Src};
use crate::base::dtype::DataType;
use crate::base::error::{Error, Result};
use crate::base::ids::{Rank, WorldSize};
use crate::base::op::ReduceOp;
use crate::transport::OpKind;

impl Call<'_> {
    /// Runs the checks that do not depend on a back end. The caller is rank `rank` of a group of
    /// `size` ranks.
    pub(in crate::api) fn check(
        &self,
        options: &CallOptions,
        rank: Rank,
        size: WorldSize,
    ) -> Result<()> {
        if self.op == Some(ReduceOp::PremulSum) && options.premul_scale == 0.0 {
            let message = "PREMUL_SUM needs a nonzero premul_scale in the call's options";
            return Err(Error::invalid(message));
        }
        if let Some(op) = self.op.filter(|_| self.kind.is_prefix()) {
            self.kind.check_op(op)?;
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

    /// Checks a call that has a separate buffer (block) for each rank.
    fn check_blocks(&self, rank: Rank, size: WorldSize) -> Result<()> {
        let lists = [self.sends.as_ref().map(|l| l.len()), self.recvs.as_ref().map(|l| l.len())];
        if let Some(wrong) = lists.into_iter().flatten().find(|&blocks| blocks != size) {
            let message = format!(
                "{wrong} blocks were given in a group of {size}: pass one block for each rank"
            );
            return Err(Error::invalid(message));
        }
        self.check_own_block(rank)?;
        self.check_block_lists(rank)
    }

    /// Checks that the block that this rank sends to itself is as long as the block that it
    /// receives from itself. If there is no list of blocks on one side, `send` or `recv` is the
    /// block. In rooted operations, this check runs only on the root, because only the root has a
    /// list.
    fn check_own_block(&self, rank: Rank) -> Result<()> {
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

    /// Checks that the input and the output are in place or do not overlap.
    #[inline]
    pub(in crate::api) fn check_overlap(&self, rank: Rank) -> Result<()> {
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
        Err(overlap_error(rule))
    }

    /// Checks that the input blocks and the output blocks are in place or do not overlap, and that
    /// no two output blocks overlap.
    fn check_block_lists(&self, rank: Rank) -> Result<()> {
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
        let overlaps_output = |src: Src<'_>, index: Rank| {
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
            Some(blocks) => blocks.iter().enumerate().any(|(i, &block)| overlaps_output(block, i)),
            None => overlaps_output(self.send, rank),
        };
        let rule = match self.kind {
            OpKind::AllToAllV => "",
            OpKind::AllGatherV | OpKind::GatherV => "send == recv[rank]",
            _ => "recv == send[rank]",
        };
        if clashes { Err(overlap_error(rule)) } else { Ok(()) }
    }
}

fn overlap_error(rule: &str) -> Error {
    if rule.is_empty() {
        return Error::invalid("the buffers overlap; this operation cannot run in place");
    }
    Error::invalid(format!(
        "the buffers overlap; pass disjoint buffers, or buffers in place ({rule})"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a view whose memory is never accessed; the checks compare only addresses.
    #[allow(unsafe_code, reason = "the test creates aliasing views and uses only their addresses")]
    fn dst(memory: &mut [u8], from: usize, len: usize) -> Dst<'static> {
        // SAFETY: the view is compared and never dereferenced.
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
        let send_at = |memory: &mut [u8], from: usize| dst(memory, from, 4).as_src();
        let (own, apart) = (send_at(memory, 8), send_at(memory, 40));
        let (other, across) = (send_at(memory, 16), send_at(memory, 10));
        assert_eq!(gather(memory, own), Ok(()));
        assert_eq!(gather(memory, apart), Ok(()));
        assert!(gather(memory, other).unwrap_err().contains("send == recv[rank]"));
        assert!(gather(memory, across).is_err());
        let sends: Vec<Src<'_>> = blocks(memory).iter().map(|block| block.as_src()).collect();
        let exchange = Call::all_to_all_v(sends.clone(), blocks(memory), DataType::U8);
        assert!(check(&exchange).unwrap_err().contains("cannot run in place"));
        let own = dst(memory, 8, 4);
        let scatter = Call::reduce_scatter_v(sends, own, DataType::U8, ReduceOp::Sum);
        assert_eq!(check(&scatter), Ok(()));
    }

    #[test]
    fn output_blocks_are_disjoint_and_one_per_rank() {
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
    fn own_block_has_equal_send_and_receive_lengths() {
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
                    let prefix = format!("{names} differ for rank 1 itself");
                    assert!(error.starts_with(&prefix), "{error}");
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
            // A rank that is not the root does not compare the counts of other ranks.
            assert_eq!(check(&Call::gather_v(send, None, dtype, 0)), Ok(()));
        }
    }
}
