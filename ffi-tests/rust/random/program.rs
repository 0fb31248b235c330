//! Random valid programs: every rank makes the same collectives in the same order, every message
//! has a receive, and no two ranks can wait for each other.

pub(crate) use crate::generator::Random;
use crate::values::{Op, Type};

/// The program of all ranks.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) size: usize,
    /// The transport option of the groups.
    pub(crate) transport: &'static str,
    /// The emulated host of each rank.
    pub(crate) hosts: Vec<usize>,
    /// The steps in each group; each rank uses each group from a separate thread.
    pub(crate) groups: Vec<Vec<Step>>,
    /// If set, the groups are released before the last works have completed.
    pub(crate) leaves_early: bool,
}

/// A step of all ranks of a group.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Collective(Collective),
    Exchange(Exchange),
    /// Collectives and messages in one batch.
    Batch(Vec<Collective>, Exchange),
    /// Some of the ranks create a subgroup and use it from a further thread.
    Team(Team),
    /// All ranks wait for all operations.
    Settle,
}

/// A subgroup.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    pub(crate) id: u64,
    /// The members as ranks of the parent group, in the order of the new group.
    pub(crate) members: Vec<usize>,
    pub(crate) made: Made,
    pub(crate) steps: Vec<Step>,
}

/// How a subgroup is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    All,
    Members,
    Split,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
pub(crate) struct Collective {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) dtype: Type,
    pub(crate) op: Op,
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) in_place: bool,
}

/// Messages between ranks, with tags that no other exchange uses.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// The messages in the order in which their senders send them.
    pub(crate) messages: Vec<Message>,
    pub(crate) asked: Asked,
}

/// How receives select their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Exactly,
    FromAnybody,
    /// Any source and any tag; no other message may be outstanding.
    Anything,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) id: u64,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) tag: i32,
    pub(crate) dtype: Type,
    pub(crate) count: usize,
}

/// The maximum depth of nested subgroups.
const DEPTH: usize = 2;

/// Element counts: none, up to a control slot, up to a data slot, several slots, and sizes for the
/// other protocols.
const COUNTS: &[usize] = &[0, 1, 3, 12, 13, 100, 1023, 1025, 4097, 20_000, 70_001];

impl Program {
    pub(crate) fn generate(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let size = random.one_of(&[1, 2, 2, 3, 3, 4, 5, 6]);
        let hosts = match random.below(4) {
            0 => vec![0; size],
            hosts => (0..size).map(|_| random.below(hosts + 1)).collect(),
        };
        let groups = random.one_of(&[1, 1, 2, 3]);
        let mut maker = Maker { random, size, next_id: seed << 20, next_tag: 0 };
        Self {
            seed,
            size,
            transport: maker.random.one_of(&["inproc", "inproc", "shm", "auto", "tcp"]),
            hosts,
            groups: (0..groups).map(|_| maker.steps(DEPTH)).collect(),
            leaves_early: maker.random.one_in(3),
        }
    }
}

struct Maker {
    random: Random,
    size: usize,
    next_id: u64,
    next_tag: i32,
}

impl Maker {
    /// Returns random steps; `depth` is the allowed depth of nested subgroups.
    fn steps(&mut self, depth: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        for _ in 0..5 + self.random.below(20) {
            match self.random.below(10) {
                0..=4 => steps.push(Step::Collective(self.collective())),
                5..=6 => {
                    let asked = self.random.one_of(&[Asked::Exactly, Asked::FromAnybody]);
                    steps.push(Step::Exchange(self.exchange(asked)));
                }
                7..=8 => {
                    let together = self.together();
                    steps.push(Step::Batch(together, self.exchange(Asked::Exactly)));
                }
                _ if depth > 0 && self.random.one_in(2) => {
                    steps.push(Step::Team(self.team(depth - 1)));
                }
                _ if self.random.one_in(2) => {
                    let exchange = self.exchange(Asked::Anything);
                    steps.extend([Step::Settle, Step::Exchange(exchange), Step::Settle]);
                }
                _ => steps.push(Step::Settle),
            }
        }
        steps
    }

    fn team(&mut self, depth: usize) -> Team {
        let mut members: Vec<usize> = (0..self.size).collect();
        self.random.shuffle(&mut members);
        members.truncate(1 + self.random.below(self.size));
        let made = self.random.one_of(&[Made::All, Made::Members, Made::Split]);
        let size = std::mem::replace(&mut self.size, members.len());
        let steps = self.steps(depth);
        self.size = size;
        Team { id: self.id(), members, made, steps }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn count(&mut self) -> usize {
        let count = self.random.one_of(COUNTS);
        if self.random.one_in(2) { count } else { self.random.below(count + 1) }
    }

    fn collective(&mut self) -> Collective {
        let dtype = self.random.one_of(Type::ALL);
        Collective {
            id: self.id(),
            kind: self.random.one_of(&[
                Kind::AllReduce,
                Kind::AllReduce,
                Kind::Reduce,
                Kind::Broadcast,
                Kind::AllGather,
                Kind::ReduceScatter,
                Kind::Barrier,
                Kind::Gather,
                Kind::Scatter,
                Kind::AllToAll,
                Kind::AllGatherV,
                Kind::GatherV,
                Kind::ScatterV,
                Kind::ReduceScatterV,
                Kind::AllToAllV,
                Kind::BroadcastBytes,
                Kind::AllGatherBytes,
                Kind::GatherBytes,
                Kind::ScatterBytes,
                Kind::MonitoredBarrier,
            ]),
            dtype,
            op: self.random.one_of(dtype.ops()),
            count: self.count(),
            root: self.random.below(self.size),
            in_place: self.random.one_in(2),
        }
    }

    /// Returns the collectives of a batch; some consecutive calls are of one kind, so that the
    /// library may fuse them.
    fn together(&mut self) -> Vec<Collective> {
        let mut calls = Vec::new();
        for _ in 0..self.random.below(4) {
            let first = self.collective();
            for _ in 0..self.random.one_of(&[1, 1, 2, 5]) {
                let (id, count) = (self.id(), self.count().min(2000));
                calls.push(Collective { id, count, ..first });
            }
        }
        calls
    }

    fn exchange(&mut self, asked: Asked) -> Exchange {
        let tags = 1 + self.random.below(3);
        let first = self.next_tag;
        self.next_tag += i32::try_from(tags).unwrap();
        // All messages have one type, since a receive from any source must know the type of its
        // message.
        let dtype = self.random.one_of(Type::ALL);
        let messages = (0..self.random.below(3 * self.size + 1))
            .map(|_| Message {
                id: self.id(),
                from: self.random.below(self.size),
                to: self.random.below(self.size),
                tag: first + i32::try_from(self.random.below(tags)).unwrap(),
                dtype: if asked == Asked::Exactly { self.random.one_of(Type::ALL) } else { dtype },
                count: self.count(),
            })
            .collect();
        Exchange { messages, asked }
    }
}

impl Exchange {
    /// Returns the messages that a rank sends, in random order. Messages to the same rank with the
    /// same tag keep their order.
    pub(crate) fn sent_by(&self, rank: usize, random: &mut Random) -> Vec<Message> {
        let own = self.messages.iter().filter(|message| message.from == rank).copied().collect();
        keep_order(own, |message| (message.to, message.tag), random)
    }

    /// Returns the messages that a rank receives, in random order. Messages from the same rank with
    /// the same tag keep their order.
    pub(crate) fn received_by(&self, rank: usize, random: &mut Random) -> Vec<Message> {
        let own = self.messages.iter().filter(|message| message.to == rank).copied().collect();
        keep_order(own, |message| (message.from, message.tag), random)
    }
}

/// Shuffles a list, but keeps the order of messages with the same key.
fn keep_order(
    list: Vec<Message>,
    key: impl Fn(&Message) -> (usize, i32),
    random: &mut Random,
) -> Vec<Message> {
    let mut keys: Vec<_> = list.iter().map(&key).collect();
    random.shuffle(&mut keys);
    let mut left = list;
    keys.iter()
        .map(|wanted| {
            let first = left.iter().position(|message| key(message) == *wanted).unwrap();
            left.remove(first)
        })
        .collect()
}
