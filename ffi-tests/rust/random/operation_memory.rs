//! The buffers of an operation of a random program, and its expected result.

use crate::block_moves::{self, BlockLists};
use crate::byte_strings::{self, ExpectedStrings};
use crate::program::{CollectiveCall, CollectiveKind};
use crate::values::{contribution, reduction};

/// The guard bytes before and after every buffer that a call writes.
const GUARD: [u8; 32] = [0xa5; 32];
/// The content of an output before the call.
pub(crate) const OUTPUT_FILL_BYTE: u8 = 0x77;

/// A buffer between guard bytes.
pub(crate) struct GuardedBuffer(Vec<u8>);

impl GuardedBuffer {
    pub(crate) fn new(content: &[u8]) -> Self {
        Self([&GUARD[..], content, &GUARD[..]].concat())
    }

    pub(crate) fn at(&mut self, offset: usize) -> *mut u8 {
        self.0[GUARD.len() + offset..].as_mut_ptr()
    }

    /// Checks the guards and returns the content; the operation must have completed.
    pub(crate) fn content(&self, what: &str) -> &[u8] {
        let (before, rest) = self.0.split_at(GUARD.len());
        let (content, after) = rest.split_at(rest.len() - GUARD.len());
        assert!(before == GUARD && after == GUARD, "{what}: wrote outside the buffer");
        content
    }
}

/// The buffers of an operation and its expected result.
pub(crate) struct OperationMemory {
    pub(crate) description: String,
    /// The input, which the library only reads.
    pub(crate) input: Vec<u8>,
    pub(crate) output: GuardedBuffer,
    pub(crate) offset: usize,
    pub(crate) expected: Vec<u8>,
    /// The blocks of a collective with one block per rank.
    pub(crate) block_lists: BlockLists,
    /// The expected byte strings, which arrive in memory of the library.
    pub(crate) strings: Option<ExpectedStrings>,
}

impl OperationMemory {
    pub(crate) fn check(&self) {
        self.strings.iter().for_each(|strings| strings.check(&self.description));
        let got = &self.output.content(&self.description)[self.offset..][..self.expected.len()];
        if got != self.expected {
            let at = got.iter().zip(&self.expected).position(|(a, b)| a != b);
            panic!("{}: first wrong byte at {at:?} of {}", self.description, got.len());
        }
    }

    /// Returns the offset of the input in the output for an all-gather in place.
    pub(crate) fn send_offset(&self, call: &CollectiveCall, rank: usize) -> usize {
        rank * call.count * call.dtype.size()
    }
}

/// Returns the buffers of a collective on one rank.
pub(crate) fn prepare(
    seed: u64,
    call: &CollectiveCall,
    rank: usize,
    size: usize,
) -> OperationMemory {
    let CollectiveCall { id, kind, dtype, op, count, root, in_place } = *call;
    let bytes = count * dtype.size();
    let what = format!("seed {seed}, rank {rank} of {size}: {call:?}");
    let own = |count| contribution(id, rank, dtype, 0, count);
    let of_all = |from| reduction(id, size, (dtype, op), from, count);
    let rubbish = |len| vec![OUTPUT_FILL_BYTE; len];
    // The values: the input if it is separate, the initial output, and the offset and the content
    // of the expected result.
    let (input, output, offset, expected) = match kind {
        CollectiveKind::AllReduce if in_place => (Vec::new(), own(count), 0, of_all(0)),
        CollectiveKind::AllReduce => (own(count), rubbish(bytes), 0, of_all(0)),
        CollectiveKind::Reduce if rank != root => (own(count), Vec::new(), 0, Vec::new()),
        CollectiveKind::Reduce if in_place => (Vec::new(), own(count), 0, of_all(0)),
        CollectiveKind::Reduce => (own(count), rubbish(bytes), 0, of_all(0)),
        CollectiveKind::Broadcast => {
            let held = if rank == root { own(count) } else { rubbish(bytes) };
            (Vec::new(), held, 0, contribution(id, root, dtype, 0, count))
        }
        CollectiveKind::AllGather => {
            let blocks = (0..size).flat_map(|rank| contribution(id, rank, dtype, 0, count));
            let mut held = rubbish(size * bytes);
            if in_place {
                held[rank * bytes..][..bytes].copy_from_slice(&own(count));
            }
            (if in_place { Vec::new() } else { own(count) }, held, 0, blocks.collect())
        }
        CollectiveKind::ReduceScatter if in_place => {
            (Vec::new(), own(size * count), rank * bytes, of_all(rank * count))
        }
        CollectiveKind::ReduceScatter => {
            (own(size * count), rubbish(bytes), 0, of_all(rank * count))
        }
        CollectiveKind::Barrier | CollectiveKind::MonitoredBarrier => {
            (Vec::new(), Vec::new(), 0, Vec::new())
        }
        CollectiveKind::BroadcastBytes
        | CollectiveKind::AllGatherBytes
        | CollectiveKind::GatherBytes
        | CollectiveKind::ScatterBytes => {
            return byte_strings::prepare(what, call, rank, size);
        }
        _ => return block_moves::prepare(what, call, rank, size),
    };
    let lists = BlockLists::default();
    OperationMemory {
        description: what,
        input,
        output: GuardedBuffer::new(&output),
        offset,
        expected,
        block_lists: lists,
        strings: None,
    }
}
