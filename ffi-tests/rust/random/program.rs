//! Random valid programs: every rank makes the same collectives in the same order, every message
//! has a receive, and no two ranks can wait for each other.

pub(crate) use crate::generator::Random;
use crate::values::{ElementType, ReductionOperator};

/// The program of all ranks.
#[derive(Debug)]
pub(crate) struct RandomProgram {
    pub(crate) seed: u64,
    pub(crate) size: usize,
    /// The transport option of the groups.
    pub(crate) transport: &'static str,
    /// The emulated host of each rank.
    pub(crate) hosts: Vec<usize>,
    /// The steps in each group; each rank uses each group from a separate thread.
    pub(crate) groups: Vec<Vec<ProgramStep>>,
    /// If set, the groups are released before the last works have completed.
    pub(crate) leaves_early: bool,
}

/// A step of all ranks of a group.
#[derive(Clone, Debug)]
pub(crate) enum ProgramStep {
    Collective(CollectiveCall),
    Exchange(MessageExchange),
    /// Collectives and messages in one batch.
    Batch(Vec<CollectiveCall>, MessageExchange),
    /// Some of the ranks create a subgroup and use it from a further thread.
    Subgroup(SubgroupPlan),
    /// All ranks wait for all operations.
    Synchronise,
}

/// A subgroup.
#[derive(Clone, Debug)]
pub(crate) struct SubgroupPlan {
    pub(crate) id: u64,
    /// The members as ranks of the parent group, in the order of the new group.
    pub(crate) members: Vec<usize>,
    pub(crate) creation: SubgroupCreation,
    pub(crate) steps: Vec<ProgramStep>,
}

/// How a subgroup is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubgroupCreation {
    All,
    Members,
    Split,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveKind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Barrier,
    Gather,
    Scatter,
    AllToAll,
    AllGatherV,
    GatherV,
    ScatterV,
    ReduceScatterV,
    AllToAllV,
    BroadcastBytes,
    AllGatherBytes,
    GatherBytes,
    ScatterBytes,
    MonitoredBarrier,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectiveCall {
    pub(crate) id: u64,
    pub(crate) kind: CollectiveKind,
    pub(crate) dtype: ElementType,
    pub(crate) op: ReductionOperator,
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) in_place: bool,
}

/// Messages between ranks, with tags that no other exchange uses.
#[derive(Clone, Debug)]
pub(crate) struct MessageExchange {
    /// The messages in the order in which their senders send them.
    pub(crate) messages: Vec<PlannedMessage>,
    pub(crate) matching: ReceiveMatching,
}

/// How receives select their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveMatching {
    Exactly,
    AnySource,
    /// Any source and any tag; no other message may be outstanding.
    AnySourceAnyTag,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedMessage {
    pub(crate) id: u64,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) tag: i32,
    pub(crate) dtype: ElementType,
    pub(crate) count: usize,
}

/// The maximum depth of nested subgroups.
const MAX_NESTING: usize = 2;

/// Element counts: none, up to a control slot, up to a data slot, several slots, and sizes for the
/// other protocols.
const COUNTS: &[usize] = &[0, 1, 3, 12, 13, 100, 1023, 1025, 4097, 20_000, 70_001];

impl RandomProgram {
    pub(crate) fn generate(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let size = random.one_of(&[1, 2, 2, 3, 3, 4, 5, 6]);
        let hosts = match random.below(4) {
            0 => vec![0; size],
            hosts => (0..size).map(|_| random.below(hosts + 1)).collect(),
        };
        let groups = random.one_of(&[1, 1, 2, 3]);
        let mut maker = ProgramGenerator { random, size, next_id: seed << 20, next_tag: 0 };
        Self {
            seed,
            size,
            transport: maker.random.one_of(&["inproc", "inproc", "shm", "auto", "tcp"]),
            hosts,
            groups: (0..groups).map(|_| maker.steps(MAX_NESTING)).collect(),
            leaves_early: maker.random.one_in(3),
        }
    }
}

struct ProgramGenerator {
    random: Random,
    size: usize,
    next_id: u64,
    next_tag: i32,
}

impl ProgramGenerator {
    /// Returns random steps; `depth` is the allowed depth of nested subgroups.
    fn steps(&mut self, depth: usize) -> Vec<ProgramStep> {
        let mut steps = Vec::new();
        for _ in 0..5 + self.random.below(20) {
            match self.random.below(10) {
                0..=4 => steps.push(ProgramStep::Collective(self.collective())),
                5..=6 => {
                    let matching =
                        self.random.one_of(&[ReceiveMatching::Exactly, ReceiveMatching::AnySource]);
                    steps.push(ProgramStep::Exchange(self.exchange(matching)));
                }
                7..=8 => {
                    let together = self.batchable_collectives();
                    steps.push(ProgramStep::Batch(
                        together,
                        self.exchange(ReceiveMatching::Exactly),
                    ));
                }
                _ if depth > 0 && self.random.one_in(2) => {
                    steps.push(ProgramStep::Subgroup(self.subgroup(depth - 1)));
                }
                _ if self.random.one_in(2) => {
                    let exchange = self.exchange(ReceiveMatching::AnySourceAnyTag);
                    steps.extend([
                        ProgramStep::Synchronise,
                        ProgramStep::Exchange(exchange),
                        ProgramStep::Synchronise,
                    ]);
                }
                _ => steps.push(ProgramStep::Synchronise),
            }
        }
        steps
    }

    fn subgroup(&mut self, depth: usize) -> SubgroupPlan {
        let mut members: Vec<usize> = (0..self.size).collect();
        self.random.shuffle(&mut members);
        members.truncate(1 + self.random.below(self.size));
        let made = self.random.one_of(&[
            SubgroupCreation::All,
            SubgroupCreation::Members,
            SubgroupCreation::Split,
        ]);
        let size = std::mem::replace(&mut self.size, members.len());
        let steps = self.steps(depth);
        self.size = size;
        SubgroupPlan { id: self.id(), members, creation: made, steps }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn count(&mut self) -> usize {
        let count = self.random.one_of(COUNTS);
        if self.random.one_in(2) { count } else { self.random.below(count + 1) }
    }

    fn collective(&mut self) -> CollectiveCall {
        let dtype = self.random.one_of(ElementType::ALL);
        CollectiveCall {
            id: self.id(),
            kind: self.random.one_of(&[
                CollectiveKind::AllReduce,
                CollectiveKind::AllReduce,
                CollectiveKind::Reduce,
                CollectiveKind::Broadcast,
                CollectiveKind::AllGather,
                CollectiveKind::ReduceScatter,
                CollectiveKind::Barrier,
                CollectiveKind::Gather,
                CollectiveKind::Scatter,
                CollectiveKind::AllToAll,
                CollectiveKind::AllGatherV,
                CollectiveKind::GatherV,
                CollectiveKind::ScatterV,
                CollectiveKind::ReduceScatterV,
                CollectiveKind::AllToAllV,
                CollectiveKind::BroadcastBytes,
                CollectiveKind::AllGatherBytes,
                CollectiveKind::GatherBytes,
                CollectiveKind::ScatterBytes,
                CollectiveKind::MonitoredBarrier,
            ]),
            dtype,
            op: self.random.one_of(dtype.ops(self.size)),
            count: self.count(),
            root: self.random.below(self.size),
            in_place: self.random.one_in(2),
        }
    }

    /// Returns the collectives of a batch; some consecutive calls are of one kind, so that the
    /// library may fuse them.
    fn batchable_collectives(&mut self) -> Vec<CollectiveCall> {
        let mut calls = Vec::new();
        for _ in 0..self.random.below(4) {
            let first = self.collective();
            for _ in 0..self.random.one_of(&[1, 1, 2, 5]) {
                let (id, count) = (self.id(), self.count().min(2000));
                calls.push(CollectiveCall { id, count, ..first });
            }
        }
        calls
    }

    fn exchange(&mut self, asked: ReceiveMatching) -> MessageExchange {
        let tags = 1 + self.random.below(3);
        let first = self.next_tag;
        self.next_tag += i32::try_from(tags).unwrap();
        // All messages have one type, since a receive from any source must know the type of its
        // message.
        let dtype = self.random.one_of(ElementType::ALL);
        let messages = (0..self.random.below(3 * self.size + 1))
            .map(|_| PlannedMessage {
                id: self.id(),
                from: self.random.below(self.size),
                to: self.random.below(self.size),
                tag: first + i32::try_from(self.random.below(tags)).unwrap(),
                dtype: if asked == ReceiveMatching::Exactly {
                    self.random.one_of(ElementType::ALL)
                } else {
                    dtype
                },
                count: self.count(),
            })
            .collect();
        MessageExchange { messages, matching: asked }
    }
}

impl MessageExchange {
    /// Returns the messages that a rank sends, in random order. Messages to the same rank with the
    /// same tag keep their order.
    pub(crate) fn sent_by(&self, rank: usize, random: &mut Random) -> Vec<PlannedMessage> {
        let own = self.messages.iter().filter(|message| message.from == rank).copied().collect();
        keep_order(own, |message| (message.to, message.tag), random)
    }

    /// Returns the messages that a rank receives, in random order. Messages from the same rank with
    /// the same tag keep their order.
    pub(crate) fn received_by(&self, rank: usize, random: &mut Random) -> Vec<PlannedMessage> {
        let own = self.messages.iter().filter(|message| message.to == rank).copied().collect();
        keep_order(own, |message| (message.from, message.tag), random)
    }
}

/// Shuffles a list, but keeps the order of messages with the same key.
fn keep_order(
    list: Vec<PlannedMessage>,
    key: impl Fn(&PlannedMessage) -> (usize, i32),
    random: &mut Random,
) -> Vec<PlannedMessage> {
    let mut keys: Vec<_> = list.iter().map(&key).collect();
    random.shuffle(&mut keys);
    let mut remaining = list;
    keys.iter()
        .map(|wanted| {
            let first = remaining.iter().position(|message| key(message) == *wanted).unwrap();
            remaining.remove(first)
        })
        .collect()
}
