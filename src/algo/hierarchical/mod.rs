//! Operations between nodes whose ranks share memory: inside, between, inside.
//!
//! Small vectors go through one rank of each node, its *leader*. Large ones go in *lanes*: they are
//! cut into as many slices as the smallest node has ranks, the n-th ranks of all nodes take care of
//! the n-th slice, and so each rank of a node talks to the other nodes, about a part. Nodes may
//! have different numbers of ranks, and any ranks of the group.

/// Everybody's block to everybody.
pub mod all_gather {
    pub mod split_rail;
}
pub mod all_reduce;
/// Nobody leaves before all have come.
pub mod barrier {
    pub mod two_level;
}
/// The root's vector to everybody.
pub mod broadcast {
    pub mod two_level;
}
/// Everybody's block to the root.
pub mod gather {
    pub mod two_level;
}
/// The fold of all vectors to the root.
pub mod reduce {
    pub mod two_level;
}
/// To everybody its block of the fold of all vectors.
pub mod reduce_scatter {
    pub mod split_rail;
}
/// The root's blocks, one to each.
pub mod scatter {
    pub mod two_level;
}

use super::message::MessageOperation;
use super::pattern::slices::owned_slice;
use super::shared::ShmSequencer;
use crate::base::buffer::Dst;
use crate::base::error::Result;
use crate::base::ids::Rank;
use crate::base::nodes::NodeMap;
use std::ops::Range;
use std::time::Duration;

/// For how long a rank that cannot name who is late lets others report first: longer than ranks of
/// other nodes take ([`crate::algo::message`]), on a busy machine too.
pub const HIERARCHICAL_REPORT_GRACE: Duration = Duration::from_secs(1);

/// Slices begin on multiples of this, so that elements stay whole.
const SLICE_ALIGNMENT: usize = 64;

/// Of how many bytes a root holds copies at a time, about, before it sends them to the leaders of
/// other nodes or after they came from there.
const ROOT_BUFFER_BYTES: usize = 4 << 20;

/// The least of each rank's block that goes at a time where there is so much.
const MIN_BLOCK_CHUNK: usize = 4 << 10;

/// One operation on its way: through steps inside the node, and messages between nodes.
#[derive(Debug)]
pub struct HierarchicalOperation<'a> {
    /// Inside this rank's node.
    pub sequencer: ShmSequencer<'a>,
    /// Between any ranks.
    pub messages: MessageOperation<'a>,
    /// Which ranks are where.
    pub nodes: &'a NodeMap,
}

impl HierarchicalOperation<'_> {
    /// How many lanes there are.
    fn rail_count(&self) -> usize {
        self.nodes.min_ranks_per_node().min(self.sequencer.slot_bytes() / SLICE_ALIGNMENT)
    }

    /// The lane that this rank takes care of, if any.
    fn own_rail(&self) -> Option<usize> {
        Some(self.sequencer.rank()).filter(|&lane| lane < self.rail_count())
    }

    /// This rank's node.
    fn node(&self) -> usize {
        self.nodes.node_of(self.messages.rank())
    }

    /// The ranks, one of each node, that take care of a lane.
    fn rail_owners(&self, rail: usize) -> Vec<Rank> {
        (0..self.nodes.node_count()).map(|node| self.nodes.members(node)[rail]).collect()
    }

    /// The leader of each node; of the root's, the root.
    fn node_leaders(&self, root: Rank) -> Vec<Rank> {
        let mut leaders: Vec<Rank> = self.nodes.leaders().collect();
        leaders[self.nodes.node_of(root)] = root;
        leaders
    }

    /// The place of this node's leader within it.
    fn local_leader(&self, root: Rank) -> Rank {
        if self.nodes.node_of(root) == self.node() { self.nodes.local_rank(root) } else { 0 }
    }

    /// All ranks, node by node.
    fn in_node_order(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.nodes.node_count()).flat_map(|node| self.nodes.members(node).iter().copied())
    }

    /// Which of the ranks in that order a node has.
    fn node_span(&self, node: usize) -> Range<usize> {
        let before: usize = (0..node).map(|node| self.nodes.members(node).len()).sum();
        before..before + self.nodes.members(node).len()
    }

    /// The same for every node.
    fn node_spans(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let span = |node: usize| {
            let start = end;
            end += self.nodes.members(node).len();
            start..end
        };
        (0..self.nodes.node_count()).map(span).collect()
    }

    /// How much of each rank's block fits a slot together with those of all others.
    fn chunk_bytes(&self, element: usize) -> usize {
        (self.sequencer.slot_bytes() / self.nodes.rank_count() / element).max(1) * element
    }

    /// The blocks of a node within `node_blocks`, which holds `len` bytes for each rank in node
    /// order.
    fn node_blocks<'d>(&self, packed: Dst<'d>, node: usize, len: usize) -> Dst<'d> {
        let span = self.node_span(node);
        packed.slice(span.start * len, span.len() * len)
    }
}

/// How much of each rank's block goes to or from a root at a time, where `room` bytes of it fit a
/// slot: whole elements, and not so much that the root would hold more than [`ROOT_BUFFER_BYTES`]
/// for all `rank_count` of them, if that can be.
fn root_chunk_bytes(room: usize, ranks: usize, element: usize) -> usize {
    let together = (ROOT_BUFFER_BYTES / ranks).max(MIN_BLOCK_CHUNK);
    (room.min(together) / element).max(1) * element
}

/// The slice of a vector that a lane takes care of.
fn rail_slice(bytes: usize, rails: usize, rail: usize) -> Range<usize> {
    owned_slice(bytes, rails, rail)
}

/// What a part of a slice, from `part.start` on, is in the whole vector; it may be less, or
/// nothing.
fn clip_to_slice(slice: &Range<usize>, part: &Range<usize>) -> Range<usize> {
    let at = |offset: usize| (slice.start + offset).min(slice.end);
    at(part.start)..at(part.end)
}

/// Runs `body` on scratch memory.
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
            // What a scatter has where a slot holds one element for each rank of the largest node.
            assert_eq!(root_chunk_bytes(16, 256, element), 16);
            for (room, ranks) in [(1365, 3), (100, 41), (256 << 10, 59), (16 << 10, 1000)] {
                let chunk = root_chunk_bytes(room, ranks, element);
                assert!(chunk > 0 && chunk <= room && chunk.is_multiple_of(element));
                assert!(chunk * ranks <= ROOT_BUFFER_BYTES.max(MIN_BLOCK_CHUNK * ranks));
            }
        }
    }
}
