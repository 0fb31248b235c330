//! The inputs and the expected results of each rank: the naive oracle.
//!
//! In every operation a rank has a list of input blocks and a list of output blocks. An output
//! block is a copy of one input block, or the reduction of one input block per rank in rank order.
//! [`BlockLayout`] gives the lists and [`sources`] gives the input blocks of an output block; the
//! other code here does not depend on the operation.

use crate::error_bound::ReferenceValues;
use crate::input_values::{self, ElementPosition, InputKind, factor, mix_bits};
use crate::matrix::{CallScene, VectorSize};
use crate::oracle;
use dist::base::op::ReduceOp;
use dist::transport::OpKind;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// Blocks repeat after this number of elements, so that the oracle computes less. The number is
/// prime, so that chunks begin at different elements of the period.
const BLOCK_PERIOD: usize = 1009;

/// The number of elements in each input block and each output block of a rank.
#[derive(Debug)]
pub(crate) struct BlockLayout {
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
    /// In place: the indices of the input block and of the output block that share memory.
    pub(crate) shared: Option<(usize, usize)>,
    /// If set, the blocks of a list are contiguous and are one argument of the call.
    pub(crate) is_contiguous: bool,
}

/// The lengths of the blocks of a call.
#[derive(Clone, Copy, Debug)]
struct BlockLengths {
    count: usize,
    ranks: usize,
    /// The rank with the longest block, if the lengths differ.
    turn: usize,
}

impl BlockLengths {
    /// Returns the length of the block at this distance from the longest one; some lengths are 0.
    fn by_distance(&self, distance: usize) -> usize {
        let count = self.count;
        [count, 0, count / 2, count.saturating_sub(1), count, 0, count / 3][distance % 7]
    }

    /// Returns the length of the block of a rank in the `_v` forms.
    fn of(&self, rank: usize) -> usize {
        self.by_distance((rank + self.ranks - self.turn) % self.ranks)
    }

    /// Returns the length of the block from one rank to another in `all_to_all_v`. With three ranks
    /// or more, one rank sends nothing.
    fn between(&self, from: usize, to: usize) -> usize {
        let Self { ranks, turn, .. } = *self;
        let from = (from + ranks - turn) % ranks;
        let to = (to + ranks - turn) % ranks;
        match (ranks, from) {
            (1, _) => self.count,
            (_, 2) => 0,
            _ => self.by_distance(from * 3 + to + 6),
        }
    }
}

impl BlockLayout {
    fn new(scene: &CallScene, rank: usize, root: usize) -> Self {
        let CallScene { kind, dtype, ranks, size, .. } = *scene;
        let count = size.elements(kind, dtype, ranks);
        let lengths = BlockLengths { count, ranks, turn: (root + 1) % ranks };
        let (one, each, none) = (vec![count], vec![count; ranks], Vec::new());
        let own = vec![lengths.of(rank)];
        let all: Vec<usize> = (0..ranks).map(|rank| lengths.of(rank)).collect();
        let is_root = rank == root;
        let (inputs, outputs) = match kind {
            OpKind::Barrier => (none, Vec::new()),
            OpKind::AllReduce | OpKind::Scan => (one.clone(), one),
            OpKind::Exscan => (one.clone(), if rank == 0 { none } else { one }),
            OpKind::Reduce => (one.clone(), if is_root { one } else { none }),
            OpKind::Broadcast if is_root => (one, none),
            OpKind::Broadcast => (none, one),
            OpKind::AllGather => (one, each),
            OpKind::Gather => (one, if is_root { each } else { none }),
            OpKind::Scatter => (if is_root { each } else { none }, one),
            OpKind::ReduceScatter => (each, one),
            OpKind::AllToAll => (each.clone(), each),
            OpKind::AllGatherV => (own, all),
            OpKind::GatherV => (own, if is_root { all } else { none }),
            OpKind::ScatterV => (if is_root { all } else { none }, own),
            OpKind::ReduceScatterV => (all, own),
            OpKind::AllToAllV => (
                (0..ranks).map(|to| lengths.between(rank, to)).collect(),
                (0..ranks).map(|from| lengths.between(from, rank)).collect(),
            ),
        };
        let shared = match (inputs.len(), outputs.len()) {
            (0, _) | (_, 0) => None,
            (1, 1) => Some((0, 0)),
            (1, _) => Some((0, rank)),
            (_, 1) => Some((rank, 0)),
            _ => None,
        };
        Self { inputs, outputs, shared, is_contiguous: !has_block_lengths(kind) }
    }
}

/// Returns true if the operation has a separate length and address per block.
pub(crate) fn has_block_lengths(kind: OpKind) -> bool {
    use OpKind::{AllGatherV, AllToAllV, GatherV, ReduceScatterV, ScatterV};
    matches!(kind, AllGatherV | GatherV | ScatterV | ReduceScatterV | AllToAllV)
}

/// Returns the input blocks, as pairs of rank and index, for a rank's output block.
fn sources(
    kind: OpKind,
    rank: usize,
    block: usize,
    ranks: usize,
    root: usize,
) -> Vec<(usize, usize)> {
    use OpKind::*;
    match kind {
        Barrier => Vec::new(),
        Scan | Exscan => (0..kind.prefix_len(rank)).map(|from| (from, 0)).collect(),
        AllReduce | Reduce => (0..ranks).map(|from| (from, 0)).collect(),
        ReduceScatter | ReduceScatterV => (0..ranks).map(|from| (from, rank)).collect(),
        Broadcast => vec![(root, 0)],
        AllGather | AllGatherV | Gather | GatherV => vec![(block, 0)],
        Scatter | ScatterV => vec![(root, rank)],
        AllToAll | AllToAllV => vec![(block, rank)],
    }
}

/// A block whose elements repeat after a period.
#[derive(Clone, Debug)]
pub(crate) struct PeriodicBlock {
    period: Arc<[u8]>,
    bytes: usize,
}

impl PeriodicBlock {
    fn new(count: usize, width: usize, element: impl FnMut(usize) -> Vec<u8>) -> Self {
        let period = (0..count.min(BLOCK_PERIOD)).flat_map(element).collect();
        Self { period, bytes: count * width }
    }

    /// Fills memory of the same length.
    pub(crate) fn write(&self, memory: &mut [u8]) {
        assert_eq!(memory.len(), self.bytes);
        let mut filled = self.period.len();
        memory[..filled].copy_from_slice(&self.period);
        while filled < memory.len() {
            let more = filled.min(memory.len() - filled);
            let (before, rest) = memory.split_at_mut(filled);
            rest[..more].copy_from_slice(&before[..more]);
            filled += more;
        }
    }

    fn at(&self, index: usize, width: usize) -> &[u8] {
        &self.period[index * width..][..width]
    }
}

/// An output block, and its reference if only an error bound is known.
type ExpectedOutput = (PeriodicBlock, Option<Arc<ReferenceValues>>);

/// The inputs and expected outputs of one rank.
#[derive(Debug)]
pub(crate) struct RankBlocks {
    pub(crate) block_layout: BlockLayout,
    pub(crate) inputs: Vec<PeriodicBlock>,
    pub(crate) outputs: Vec<PeriodicBlock>,
    /// One reference per output block if only an error bound is known.
    pub(crate) references: Vec<Arc<ReferenceValues>>,
}

/// The inputs and expected outputs of a scene, computed once for all ranks and variants.
#[derive(Debug)]
pub(crate) struct PreparedScene {
    pub(crate) inputs: InputKind,
    pub(crate) root: usize,
    pub(crate) parts: Vec<RankBlocks>,
    /// The number of barrier calls that have begun.
    pub(crate) arrived: AtomicUsize,
    /// The hash of the result of each variant, from the first rank that finished; all ranks must
    /// have the same result.
    pub(crate) digest_by_case: Mutex<HashMap<usize, u64>>,
}

impl PreparedScene {
    pub(crate) fn new(scene: &CallScene, inputs: InputKind) -> Self {
        let CallScene { kind, dtype, op, ranks, .. } = *scene;
        let root = root(scene);
        let width = dtype.size();
        let mut parts: Vec<RankBlocks> = Vec::with_capacity(ranks);
        for rank in 0..ranks {
            let sides = BlockLayout::new(scene, rank, root);
            let block = |(block, &count): (usize, &usize)| {
                let at = |index| ElementPosition { rank, ranks, block, index };
                PeriodicBlock::new(count, width, |index| {
                    input_values::element(inputs, dtype, op, at(index))
                })
            };
            let inputs = sides.inputs.iter().enumerate().map(block).collect();
            parts.push(RankBlocks {
                block_layout: sides,
                inputs,
                outputs: Vec::new(),
                references: Vec::new(),
            });
        }
        // Output blocks with the same sources share one computed block.
        let mut known: HashMap<Vec<(usize, usize)>, ExpectedOutput> = HashMap::new();
        for rank in 0..ranks {
            let counts = parts[rank].block_layout.outputs.clone();
            for (block, count) in counts.into_iter().enumerate() {
                let from = sources(kind, rank, block, ranks, root);
                let blocks: Vec<(usize, &PeriodicBlock)> =
                    from.iter().map(|&(rank, block)| (rank, &parts[rank].inputs[block])).collect();
                let (output, reference) = known.entry(from.clone()).or_insert_with(|| {
                    let output =
                        PeriodicBlock::new(count, width, |index| fold(scene, &blocks, index));
                    let reference = (inputs == InputKind::OrderDependent).then(|| {
                        Arc::new(ReferenceValues::new(scene, count.min(BLOCK_PERIOD), &blocks))
                    });
                    (output, reference)
                });
                assert_eq!(output.bytes, count * width, "{scene}: rank {rank}, block {block}");
                let (output, reference) = (output.clone(), reference.clone());
                parts[rank].outputs.push(output);
                parts[rank].references.extend(reference);
            }
        }
        let (arrived, agreed) = (AtomicUsize::new(0), Mutex::default());
        Self { inputs, root, parts, arrived, digest_by_case: agreed }
    }
}

/// Returns the root of a scene; over all scenes every rank is the root.
fn root(scene: &CallScene) -> usize {
    let CallScene { kind, dtype, op, ranks, size, .. } = *scene;
    let count = if size == VectorSize::Large { 7 } else { size.elements(kind, dtype, ranks) };
    let op = op.map_or(0, |op| op as u64 + 1);
    let word = mix_bits((count as u64) << 16 | op << 8 | dtype as u64);
    usize::try_from(word % ranks as u64).unwrap()
}

/// Returns the elements of an output block's sources, scaled if the operator scales.
pub(crate) fn elements(
    scene: &CallScene,
    blocks: &[(usize, &PeriodicBlock)],
    index: usize,
) -> Vec<Vec<u8>> {
    let element = |&(rank, block): &(usize, &PeriodicBlock)| {
        let element = block.at(index, scene.dtype.size());
        match scene.op {
            Some(ReduceOp::PremulSum) => oracle::scale_element(scene.dtype, factor(rank), element),
            _ => element.to_vec(),
        }
    };
    blocks.iter().map(element).collect()
}

/// Computes one element of an output block.
fn fold(scene: &CallScene, blocks: &[(usize, &PeriodicBlock)], index: usize) -> Vec<u8> {
    let elements = elements(scene, blocks, index);
    match scene.op {
        None => elements.concat(),
        Some(op) => {
            let borrowed: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
            oracle::fold_element(scene.dtype, op, &borrowed)
        }
    }
}
