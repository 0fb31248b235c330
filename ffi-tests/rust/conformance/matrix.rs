//! The dimensions of the suite as data: operations, sizes, numbers of ranks, transports and
//! algorithms.
//!
//! The matrix is the product of all dimensions. It lacks only the impossible cases and most cases
//! of the two most expensive sizes. For these sizes each combination of all other dimensions runs
//! with every [`VectorSize::pair_stride`]th pair of type and operator.

use dist::algo::{GroupShape, algorithms};
use dist::base::dtype::DataType;
use dist::base::nodes::NodeMap;
use dist::base::op::ReduceOp;
use dist::sys::host;
use dist::transport::{OpKind, cma};
use std::collections::HashSet;
use std::fmt;

/// The numbers of ranks.
pub(crate) const RANKS: [usize; 7] = [1, 2, 3, 4, 5, 7, 8];

/// The slot size in all groups of the suite: the smallest possible one.
pub(crate) const SLOT_BYTES: usize = 4096;
/// The total size of a rank's slots; a longer vector reuses the first slot.
const ALL_SLOTS: usize = 4 * SLOT_BYTES;
/// The maximum payload of a message (`algo::message::SEGMENT`).
const SEGMENT: usize = 256 << 10;
/// The largest size, in elements.
const LARGE: usize = 1_000_003;

/// The size of a call: the count argument, and for the `_v` forms the count of the longest block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum VectorSize {
    Exactly(usize),
    /// The elements that fit a slot, plus this number.
    Slot(isize),
    /// The elements that fit all slots of a rank, plus this number: a chunk in shared memory.
    Slots(isize),
    /// The elements that fit one piece of a message, plus this number: a chunk between nodes.
    Segment(isize),
    /// The largest size; in operations with one block per rank it is the total of all blocks.
    Large,
}

/// All sizes.
pub(crate) const SIZES: [VectorSize; 14] = [
    VectorSize::Exactly(0),
    VectorSize::Exactly(1),
    VectorSize::Exactly(3),
    VectorSize::Exactly(17),
    VectorSize::Slot(-1),
    VectorSize::Slot(0),
    VectorSize::Slot(1),
    VectorSize::Slots(-1),
    VectorSize::Slots(0),
    VectorSize::Slots(1),
    VectorSize::Segment(-1),
    VectorSize::Segment(0),
    VectorSize::Segment(1),
    VectorSize::Large,
];

impl VectorSize {
    pub(crate) fn elements(self, kind: OpKind, dtype: DataType, ranks: usize) -> usize {
        let around = |bytes: usize, more| (bytes / dtype.size()).checked_add_signed(more).unwrap();
        match self {
            Self::Exactly(count) => count,
            Self::Slot(more) => around(SLOT_BYTES, more),
            Self::Slots(more) => around(ALL_SLOTS, more),
            Self::Segment(more) => around(SEGMENT, more),
            Self::Large if has_blocks(kind) => LARGE / ranks,
            Self::Large => LARGE,
        }
    }

    /// Returns n, where each combination of the other dimensions runs with every nth pair of type
    /// and operator.
    fn pair_stride(self) -> usize {
        match self {
            Self::Segment(_) => SEGMENT_PAIR_STRIDE,
            Self::Large => LARGE_PAIR_STRIDE,
            _ => 1,
        }
    }

    /// Returns the slot size of the groups for this size. On two cores, each step of many ranks
    /// costs a thread switch. With the smallest slots, the largest size would spend most of its
    /// time in thousands of equal steps.
    pub(crate) fn slot_bytes(self) -> usize {
        if self == Self::Large { LARGE_SLOT_BYTES } else { SLOT_BYTES }
    }

    pub(crate) fn applies(self, layout: &NodeLayout, ranks: usize) -> bool {
        let between = layout.nodes(ranks).node_count() > 1;
        match self {
            Self::Slots(_) => !between,
            Self::Segment(_) => between,
            _ => true,
        }
    }
}

/// See [`VectorSize::pair_stride`].
const SEGMENT_PAIR_STRIDE: usize = 12;
const LARGE_PAIR_STRIDE: usize = 16;

/// See [`VectorSize::slot_bytes`].
const LARGE_SLOT_BYTES: usize = 64 << 10;

impl fmt::Display for VectorSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::Slot(more) => write!(f, "slot{more:+}"),
            Self::Slots(more) => write!(f, "slots{more:+}"),
            Self::Segment(more) => write!(f, "segment{more:+}"),
            Self::Large => f.write_str("large"),
        }
    }
}

/// Returns true if a rank has one input or output block per rank.
fn has_blocks(kind: OpKind) -> bool {
    !matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast | OpKind::Barrier)
        && !kind.is_prefix()
}

/// Returns the types that are defined for an operation, with the operators if it is a reduction.
pub(crate) fn pairs(kind: OpKind) -> Vec<(DataType, Option<ReduceOp>)> {
    match kind {
        OpKind::Barrier => vec![(DataType::U8, None)],
        _ if !kind.is_reduction() => DataType::ALL.map(|dtype| (dtype, None)).to_vec(),
        _ => {
            let ops = |dtype| defined(dtype).filter(|&op| kind.check_op(op).is_ok());
            DataType::ALL.into_iter().flat_map(|d| ops(d).map(move |o| (d, Some(o)))).collect()
        }
    }
}

/// The operators that are defined for a type.
fn defined(dtype: DataType) -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(move |op| op.is_defined_for(dtype))
}

/// The transport between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Transport {
    Inproc,
    Shm,
    Tcp,
    Mixed,
}

impl Transport {
    pub(crate) const ALL: [Self; 4] = [Self::Inproc, Self::Shm, Self::Tcp, Self::Mixed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inproc => "inproc",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Mixed => "mixed",
        }
    }
}

/// The placement of the ranks on nodes, and the transport between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeLayout {
    pub(crate) transport: Transport,
    /// The transport option of the back end.
    transport_option: &'static str,
    /// Ranks with the same letter are on one node. The letters repeat for more ranks.
    node_letters: &'static str,
}

/// All layouts. The mixed layouts combine shared memory with TCP, and in one case shared memory
/// with queues of one process.
pub(crate) const LAYOUTS: [NodeLayout; 6] = [
    NodeLayout { transport: Transport::Inproc, transport_option: "inproc", node_letters: "a" },
    NodeLayout { transport: Transport::Shm, transport_option: "shm", node_letters: "a" },
    NodeLayout { transport: Transport::Tcp, transport_option: "tcp", node_letters: "abcdefgh" },
    NodeLayout { transport: Transport::Mixed, transport_option: "shm", node_letters: "aab" },
    NodeLayout { transport: Transport::Mixed, transport_option: "inproc", node_letters: "abab" },
    NodeLayout { transport: Transport::Mixed, transport_option: "shm", node_letters: "abcbcc" },
];

impl NodeLayout {
    fn labels(&self, ranks: usize) -> Vec<char> {
        self.node_letters.chars().cycle().take(ranks).collect()
    }

    pub(crate) fn nodes(&self, ranks: usize) -> NodeMap {
        NodeMap::by_label(&self.labels(ranks))
    }

    /// Returns the back-end options of a rank.
    pub(crate) fn options(&self, rank: usize, slot_bytes: usize) -> String {
        let label = self.node_letters.chars().cycle().nth(rank).unwrap_or_default();
        format!("transport={};slot_bytes={slot_bytes};host_id={label}", self.transport_option)
    }

    /// Returns true if `ranks` is large enough for a mixture; with fewer ranks, a mixed layout
    /// equals another layout.
    pub(crate) fn applies(&self, ranks: usize) -> bool {
        self.transport != Transport::Mixed || ranks > 2 || self.node_letters == "abab"
    }
}

impl fmt::Display for NodeLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.transport.name())?;
        if self.transport == Transport::Mixed {
            write!(f, " {}", self.node_letters)
        } else {
            Ok(())
        }
    }
}

/// How the algorithm is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AlgorithmChoice {
    /// The library selects the algorithm.
    Automatic,
    /// The library selects an algorithm whose result does not depend on the placement of the ranks.
    Canonical,
    /// The call selects the algorithm by name.
    Named(&'static str),
}

impl fmt::Display for AlgorithmChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Automatic => f.write_str("own choice"),
            Self::Canonical => f.write_str("canonical"),
            Self::Named(name) => write!(f, "by {name}"),
        }
    }
}

/// The call of all ranks, independent of their placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallScene {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DataType,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) ranks: usize,
    pub(crate) size: VectorSize,
    /// The index of type and operator among the pairs of the operation.
    pub(crate) pair_index: usize,
}

/// The layout, the form and the algorithm of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallVariant {
    pub(crate) layout: NodeLayout,
    pub(crate) in_place: bool,
    pub(crate) choice: AlgorithmChoice,
}

impl fmt::Display for CallScene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.dtype)?;
        if let Some(op) = self.op {
            write!(f, " {op}")?;
        }
        write!(f, ", {}, {} ranks", self.size, self.ranks)
    }
}

impl fmt::Display for CallVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", {}, {}", self.layout, self.choice)?;
        if self.in_place { f.write_str(", in place") } else { Ok(()) }
    }
}

/// Returns true if the operation has a separate form in place.
pub(crate) fn has_in_place(kind: OpKind) -> bool {
    !matches!(kind, OpKind::Broadcast | OpKind::Barrier | OpKind::AllToAll | OpKind::AllToAllV)
}

/// Returns all scenes for this number of ranks, ordered by size.
pub(crate) fn scenes(ranks: usize) -> Vec<CallScene> {
    let mut all = Vec::new();
    for size in SIZES {
        let barrier = size == SIZES[0];
        for kind in OpKind::ALL.into_iter().filter(|&kind| barrier || kind != OpKind::Barrier) {
            let scene =
                |(pair, (dtype, op))| CallScene { kind, dtype, op, ranks, size, pair_index: pair };
            all.extend(pairs(kind).into_iter().enumerate().map(scene));
        }
    }
    all
}

/// Returns the variants of a scene.
pub(crate) fn variants(scene: &CallScene) -> Vec<CallVariant> {
    let mut all = candidates(scene);
    let deal = scene.size.pair_stride();
    let mut pair_offset = scene.pair_index + scene.kind as usize * 3 + scene.ranks;
    all.retain(|variant| {
        // All types count the same list of variants, so a variant that only some types have is
        // always run and not counted.
        if deal > 1 && !is_for_all_types(scene, variant) {
            return true;
        }
        pair_offset += 1;
        pair_offset.is_multiple_of(deal)
    });
    all.retain(|variant| can_reduce(scene, variant));
    all
}

/// Returns true if the algorithm can reduce these elements with this operator. Averages of integers
/// need an algorithm that reduces all vectors at once.
fn can_reduce(scene: &CallScene, variant: &CallVariant) -> bool {
    let AlgorithmChoice::Named(name) = variant.choice else { return true };
    let is_at_once = scene.op == Some(ReduceOp::Avg) && !scene.dtype.is_float();
    !is_at_once || algorithms(scene.kind).any(|row| row.name == name && row.ordered)
}

/// Returns true if all types of the scene have this variant. The size of an element decides which
/// algorithms can run.
fn is_for_all_types(scene: &CallScene, variant: &CallVariant) -> bool {
    let sizes = [DataType::U8, DataType::F16, DataType::F32, DataType::F64, DataType::C128];
    sizes.into_iter().all(|dtype| {
        choices(&CallScene { dtype, ..*scene }, &variant.layout).contains(&variant.choice)
    })
}

/// Returns all possible variants of a scene, and the variants that only its operator excludes.
fn candidates(scene: &CallScene) -> Vec<CallVariant> {
    let CallScene { kind, ranks, size, .. } = *scene;
    let mut all = Vec::new();
    for layout in LAYOUTS {
        if !layout.applies(ranks) || !size.applies(&layout, ranks) {
            continue;
        }
        for choice in choices(scene, &layout) {
            let in_place_values = if has_in_place(kind) { &[false, true][..] } else { &[false] };
            all.extend(in_place_values.iter().map(|&in_place| CallVariant {
                layout,
                in_place,
                choice,
            }));
        }
    }
    all
}

/// Returns the shape of groups with these nodes, as their ranks determine it. A trial shows whether
/// the system allows cross-memory attach between processes.
pub(crate) fn shape_of(nodes: &NodeMap) -> GroupShape {
    let nonce = host::process_nonce().unwrap();
    let address = host::process_nonce_address().unwrap();
    let attached = cma::has_process_cookie(std::process::id(), address, &nonce);
    let reached = attached && cma::can_cma_write();
    GroupShape { has_cma: attached, has_cma_write: reached, ..GroupShape::of(nodes, false) }
}

fn choices(scene: &CallScene, layout: &NodeLayout) -> Vec<AlgorithmChoice> {
    let CallScene { kind, dtype, ranks, size, .. } = *scene;
    let shape = shape_of(&layout.nodes(ranks));
    let bytes = match kind {
        // In these operations not all ranks know all block lengths.
        OpKind::GatherV | OpKind::ScatterV | OpKind::AllToAllV => usize::MAX,
        _ => size.elements(kind, dtype, ranks) * dtype.size(),
    };
    let mut all = vec![AlgorithmChoice::Automatic];
    all.extend(kind.is_reduction().then_some(AlgorithmChoice::Canonical));
    let rows = algorithms(kind).filter(|row| row.can_run(bytes, &shape));
    all.extend(rows.map(|row| AlgorithmChoice::Named(row.name)));
    all
}

#[test]
fn pair_strides_cover_all_pairs_and_combinations() {
    for size in SIZES {
        for kind in OpKind::ALL.into_iter().filter(|&kind| kind != OpKind::Barrier) {
            let scenes =
                || RANKS.into_iter().flat_map(scenes).filter(|s| s.kind == kind && s.size == size);
            let selected_pairs: HashSet<usize> = scenes()
                .filter(|s| !variants(s).is_empty())
                .map(|scene| scene.pair_index)
                .collect();
            assert_eq!(selected_pairs.len(), pairs(kind).len(), "{} {size}", kind.name());
            let possible = |scene: &CallScene| {
                let mut all = candidates(scene);
                all.retain(|variant| can_reduce(scene, variant));
                all
            };
            let combinations = |of: fn(&CallScene) -> Vec<CallVariant>| -> HashSet<String> {
                let text =
                    |scene: &CallScene, variant: &CallVariant| format!("{}{variant}", scene.ranks);
                let all =
                    scenes().flat_map(|s| of(&s).iter().map(|v| text(&s, v)).collect::<Vec<_>>());
                all.collect()
            };
            assert!(combinations(variants) == combinations(possible), "{} {size}", kind.name());
        }
    }
}
