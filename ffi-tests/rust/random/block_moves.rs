//! Collectives with one block per rank: of equal length or, in the `_v` forms, of any length.

use crate::operation_memory::{GuardedBuffer, OUTPUT_FILL_BYTE, OperationMemory};
use crate::program::{CollectiveCall, CollectiveKind};
use crate::values::{contribution, reduction};

/// The number of bytes between the blocks of a `_v` form; the library must not change them.
const GAP_BYTES: usize = 5;

/// The blocks of a call, each with its byte offset in the input or output and its number of
/// elements.
#[derive(Debug, Default)]
pub(crate) struct BlockLists {
    /// If set, the call is in place and the send blocks are in the output.
    pub(crate) sends_output: bool,
    pub(crate) sends: Vec<(usize, usize)>,
    pub(crate) recvs: Vec<(usize, usize)>,
}

impl CollectiveCall {
    /// Returns the number of elements that one rank sends to another.
    fn block(&self, from: usize, to: usize) -> usize {
        let block_len_class = |i: usize| match (usize::try_from(self.id % 4).unwrap() + i) % 4 {
            0 => self.count,
            1 => 0,
            2 => self.count / 3,
            _ => self.count + i,
        };
        match self.kind {
            CollectiveKind::AllGatherV | CollectiveKind::GatherV => block_len_class(from),
            CollectiveKind::ScatterV | CollectiveKind::ReduceScatterV => block_len_class(to),
            CollectiveKind::AllToAllV => block_len_class(3 * from + to),
            _ => self.count,
        }
    }

    /// Returns the content that a rank sends to another. In a gather every receiver gets the same
    /// content from a rank.
    fn content(&self, from: usize, to: usize) -> Vec<u8> {
        let to_one = matches!(
            self.kind,
            CollectiveKind::AllGatherV | CollectiveKind::GatherV | CollectiveKind::Gather
        );
        let index = if to_one { 0 } else { to << 20 };
        contribution(self.id, from, self.dtype, index, self.block(from, to))
    }

    fn result(&self, rank: usize, size: usize) -> Vec<u8> {
        let count = self.block(0, rank);
        reduction(self.id, size, (self.dtype, self.op), rank << 20, count)
    }

    fn gap(&self) -> usize {
        match self.kind {
            CollectiveKind::Gather | CollectiveKind::Scatter | CollectiveKind::AllToAll => 0,
            _ => GAP_BYTES,
        }
    }
}

/// Places blocks one after another with gaps, and returns the bytes and the offsets.
fn concatenate_blocks(
    call: &CollectiveCall,
    blocks: impl Iterator<Item = Vec<u8>>,
) -> (Vec<u8>, Vec<(usize, usize)>) {
    let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
    for block in blocks {
        offsets.push((bytes.len(), block.len() / call.dtype.size()));
        bytes.extend(block);
        bytes.resize(bytes.len() + call.gap(), OUTPUT_FILL_BYTE);
    }
    (bytes, offsets)
}

/// Returns the buffers of such a collective on one rank of `size`.
pub(crate) fn prepare(
    what: String,
    call: &CollectiveCall,
    rank: usize,
    size: usize,
) -> OperationMemory {
    let is_root = rank == call.root;
    let gathers = matches!(
        call.kind,
        CollectiveKind::Gather | CollectiveKind::GatherV | CollectiveKind::AllGatherV
    );
    let scatters = matches!(
        call.kind,
        CollectiveKind::Scatter | CollectiveKind::ScatterV | CollectiveKind::ReduceScatterV
    );
    let gets_all = !scatters && (is_root || !gathers || call.kind == CollectiveKind::AllGatherV);
    let has_all = !gathers
        && (is_root || !matches!(call.kind, CollectiveKind::Scatter | CollectiveKind::ScatterV));
    let in_place = call.in_place && (gets_all && gathers || has_all && scatters);
    let (input, sends) = match (gathers, has_all) {
        (true, _) => concatenate_blocks(call, std::iter::once(call.content(rank, call.root))),
        (false, true) => concatenate_blocks(call, (0..size).map(|to| call.content(rank, to))),
        (false, false) => (Vec::new(), Vec::new()),
    };
    let own = || match call.kind {
        CollectiveKind::ReduceScatterV => call.result(rank, size),
        _ => call.content(call.root, rank),
    };
    let (expected, recvs) = match (scatters, gets_all) {
        (true, _) => concatenate_blocks(call, std::iter::once(own())),
        (false, true) => concatenate_blocks(call, (0..size).map(|from| call.content(from, rank))),
        (false, false) => (Vec::new(), Vec::new()),
    };
    let memory = |input, output: &[u8], offset, expected, block_lists| OperationMemory {
        description: what,
        input,
        output: GuardedBuffer::new(output),
        offset,
        expected,
        block_lists,
        strings: None,
    };
    let rubbish = vec![OUTPUT_FILL_BYTE; expected.len()];
    if !in_place {
        let lists = BlockLists { sends_output: false, sends, recvs };
        return memory(input, &rubbish, 0, expected, lists);
    }
    if gathers {
        // In place, the own block is already at its position in the output.
        let (mut held, (offset, count)) = (rubbish, recvs[rank]);
        let len = count * call.dtype.size();
        held[offset..offset + len].copy_from_slice(&input[..len]);
        let lists = BlockLists { sends_output: true, sends: vec![(offset, count)], recvs };
        return memory(Vec::new(), &held, 0, expected, lists);
    }
    // The result replaces the own block; the content of the other blocks is undefined.
    let own_block = sends[rank];
    let lists = BlockLists { sends_output: true, sends, recvs: vec![own_block] };
    memory(Vec::new(), &input, own_block.0, own(), lists)
}
