//! Algorithms for several nodes whose ranks share memory. Each algorithm reduces within the nodes,
//! exchanges messages between the nodes, and distributes the result within the nodes.
//!
//! Small vectors go through one rank of each node, the *leader* of the node. Large vectors use
//! *rails*: the vector is cut into as many slices as the smallest node has ranks. The n-th rank of
//! each node owns rail n: it communicates with the n-th ranks of the other nodes about the n-th
//! slice. Several ranks of a node thus communicate at the same time. The nodes may have different
//! numbers of ranks, and a node may contain any ranks of the group.
//!
//! ```text
//! node     ranks      leader   owner of rail 0   owner of rail 1
//! 0        0, 1, 2    0        0                 1
//! 1        3, 4       3        3                 4
//! ```

/// All-gather: each rank receives the blocks of all ranks.
pub mod all_gather {
    pub mod split_rail;
}
pub mod all_reduce;
/// Barrier: no rank leaves before all ranks have entered.
pub mod barrier {
    pub mod two_level;
}
/// Broadcast: each rank receives the root's vector.
pub mod broadcast {
    pub mod two_level;
}
/// Gather: the root receives the blocks of all ranks.
pub mod gather {
    pub mod two_level;
}
/// Reduce: the root receives the fold of all vectors.
pub mod reduce {
    pub mod two_level;
}
/// Reduce-scatter: each rank receives its block of the fold of all vectors.
pub mod reduce_scatter {
    pub mod split_rail;
}
/// Scatter: each rank receives one block of the root.
pub mod scatter {
    pub mod two_level;
}

use super::message::MessageOperation;
use super::operation::Operation;
use super::pattern::slices::chunks;
use super::shared::ShmSequencer;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::nodes::NodeMap;
use std::ops::Range;
use std::time::Duration;

/// The report grace period between nodes: the time for which a rank that cannot name the late rank
/// waits, after its deadline, for the report of another rank. Even on a busy machine, it is longer
/// than the ranks of other nodes need for their report ([`crate::algo::message`]).
pub const HIERARCHICAL_REPORT_GRACE: Duration = Duration::from_secs(1);

/// The alignment of slices in bytes. Every element size divides it, so no element is cut.
const SLICE_ALIGNMENT: usize = 64;

/// The approximate number of bytes, for all ranks together, that a root handles at a time. The root
/// of a scatter copies them before it sends them to the other node leaders. The root of a gather
/// receives them before it copies them.
const ROOT_BUFFER_BYTES: usize = 4 << 20;

/// The minimum number of bytes of a chunk of each rank's block. It does not apply to shorter
/// blocks.
const MIN_BLOCK_CHUNK: usize = 4 << 10;

/// One hierarchical operation: steps within the node, and messages between nodes.
#[derive(Debug)]
pub struct HierarchicalOperation<'a> {
    /// The sequencer of this rank's node.
    pub sequencer: ShmSequencer<'a>,
    /// The messages between all ranks of the group.
    pub messages: MessageOperation<'a>,
    /// The ranks of each node.
    pub nodes: &'a NodeMap,
}

impl HierarchicalOperation<'_> {
    /// Returns the number of rails.
    fn rail_count(&self) -> usize {
        self.nodes.min_ranks_per_node().min(self.sequencer.slot_bytes() / SLICE_ALIGNMENT)
    }

    /// Returns the rail that this rank owns, or `None` if this rank owns no rail.
    fn own_rail(&self) -> Option<usize> {
        Some(self.sequencer.rank()).filter(|&rail| rail < self.rail_count())
    }

    /// Returns this rank's node.
    fn node(&self) -> usize {
        self.nodes.node_of(self.messages.rank())
    }

    /// Returns the ranks, one of each node, that own a rail.
    fn rail_owners(&self, rail: usize) -> Vec<Rank> {
        (0..self.nodes.node_count()).map(|node| self.nodes.members(node)[rail]).collect()
    }

    /// Returns the leader of each node. The root is the leader of its own node.
    fn node_leaders(&self, root: Rank) -> Vec<Rank> {
        let mut leaders: Vec<Rank> = self.nodes.leaders().collect();
        leaders[self.nodes.node_of(root)] = root;
        leaders
    }

    /// Returns the local rank of this node's leader.
    fn local_leader(&self, root: Rank) -> Rank {
        if self.nodes.node_of(root) == self.node() { self.nodes.local_rank(root) } else { 0 }
    }

    /// Iterates over all ranks, node by node.
    fn in_node_order(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.nodes.node_count()).flat_map(|node| self.nodes.members(node).iter().copied())
    }

    /// Returns, for each node, the range of its ranks in node order.
    fn node_spans(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let span = |node: usize| {
            let start = end;
            end += self.nodes.members(node).len();
            start..end
        };
        (0..self.nodes.node_count()).map(span).collect()
    }

    /// Returns the chunk size at which the chunks of the blocks of all ranks fit together in one
    /// data slot.
    fn chunk_bytes(&self, element: usize) -> usize {
        (self.sequencer.slot_bytes() / self.nodes.rank_count() / element).max(1) * element
    }

    /// Returns, for each node, the range of `packed` that contains the blocks of the node. `packed`
    /// contains a block of `len` bytes for each rank, in node order.
    fn node_blocks<'d>(&self, packed: Dst<'d>, len: usize) -> Vec<Dst<'d>> {
        let spans = self.node_spans().into_iter();
        spans.map(|span| packed.slice(span.start * len, span.len() * len)).collect()
    }
}

/// Returns the chunk size of each rank's block in an operation with a root, if `room` bytes of a
/// block fit in a data slot. The chunk is a whole number of elements. It is so small that the
/// chunks of all `ranks` ranks have at most [`ROOT_BUFFER_BYTES`] together, except that it is not
/// smaller than [`MIN_BLOCK_CHUNK`].
fn root_chunk_bytes(room: usize, ranks: usize, element: usize) -> usize {
    let together = (ROOT_BUFFER_BYTES / ranks).max(MIN_BLOCK_CHUNK);
    (room.min(together) / element).max(1) * element
}

/// Converts `part`, a range within a slice, to a range within the whole vector, and clips it to the
/// end of the slice. The result may be shorter than `part`, or empty.
fn clip_to_slice(slice: &Range<usize>, part: &Range<usize>) -> Range<usize> {
    let at = |offset: usize| (slice.start + offset).min(slice.end);
    at(part.start)..at(part.end)
}

/// The blocks of the nodes in the memory of a node leader, in a rooted operation.
struct LeaderBlocks {
    /// The leader of each node.
    leaders: Vec<Rank>,
    /// On the root, which handles the blocks of all ranks: for each node, the range of its blocks
    /// in node order. On any other leader, which handles only the blocks of its own node: empty.
    spans: Vec<Range<usize>>,
}

impl LeaderBlocks {
    /// Returns the range of `memory` that contains the blocks of a node. `memory` contains `len`
    /// bytes for each rank whose block this leader handles.
    fn of_node<'d>(&self, memory: Dst<'d>, node: usize, node_size: usize, len: usize) -> Dst<'d> {
        let span = self.spans.get(node).cloned().unwrap_or(0..node_size);
        memory.slice(span.start * len, span.len() * len)
    }
}

/// A function that moves one chunk of every block, on a node leader.
type LeaderChunkFn = fn(
    &mut HierarchicalOperation<'_>,
    &Operation<'_>,
    &LeaderBlocks,
    &Range<usize>,
    Dst<'_>,
) -> Result<()>;

/// Runs a rooted operation on a node leader, for chunks of at most `max_chunk` bytes.
fn run_on_leader(
    levels: &mut HierarchicalOperation<'_>,
    operation: &Operation<'_>,
    max_chunk: usize,
    run_chunk: LeaderChunkFn,
) -> Result<()> {
    let root = operation.root()?;
    let is_root = levels.messages.rank() == root;
    let spans = if is_root { levels.node_spans() } else { Vec::new() };
    let blocks = if is_root { levels.nodes.rank_count() } else { levels.sequencer.size() };
    let leader_blocks = LeaderBlocks { leaders: levels.node_leaders(root), spans };
    with_scratch(levels, blocks * max_chunk.min(operation.bytes()), |levels, memory| {
        chunks(operation.bytes(), max_chunk)
            .try_for_each(|chunk| run_chunk(levels, operation, &leader_blocks, &chunk, memory))
    })
}

/// Runs `body` with scratch memory.
fn with_scratch<'a, T>(
    levels: &mut HierarchicalOperation<'a>,
    bytes: usize,
    body: impl FnOnce(&mut HierarchicalOperation<'a>, Dst<'_>) -> Result<T>,
) -> Result<T> {
    let mut scratch = levels.messages.scratch(bytes)?;
    let outcome = body(levels, Dst::from(scratch.as_mut_slice()))?;
    levels.messages.return_scratch(scratch);
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_chunk_fills_a_slot_up_to_the_root_buffer_limit() {
        for element in [1, 2, 4, 8, 16] {
            assert_eq!(root_chunk_bytes(256 << 10, 16, element), 256 << 10);
            assert_eq!(root_chunk_bytes(256 << 10, 64, element), 64 << 10);
            assert_eq!(root_chunk_bytes(256 << 10, 60_000, element), 4 << 10);
            assert_eq!(root_chunk_bytes(4096, 256, element), 4096);
            // This is a scatter whose data slot holds one element for each rank of the largest
            // node.
            assert_eq!(root_chunk_bytes(16, 256, element), 16);
            for (room, ranks) in [(1365, 3), (100, 41), (256 << 10, 59), (16 << 10, 1000)] {
                let chunk = root_chunk_bytes(room, ranks, element);
                assert!(chunk > 0 && chunk <= room && chunk.is_multiple_of(element));
                assert!(chunk * ranks <= ROOT_BUFFER_BYTES.max(MIN_BLOCK_CHUNK * ranks));
            }
        }
    }
}
