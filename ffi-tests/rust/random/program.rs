//! Random programs that are valid: every rank makes the same collectives in the same order, every
//! message has a receive, and nobody can wait for somebody who waits for it.

pub(crate) use crate::generator::Random;
use crate::values::{Op, Type};

/// What all ranks do.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) size: usize,
    /// What joins the ranks, for the options of a group.
    pub(crate) transport: &'static str,
    /// The host that each rank pretends to be on.
    pub(crate) hosts: Vec<usize>,
    /// For each group, which each rank uses from a thread of its own, what happens in it.
    pub(crate) groups: Vec<Vec<Step>>,
    /// The groups are released before the last works are done.
    pub(crate) leaves_early: bool,
}

/// What happens in a group, on all its ranks.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Collective(Collective),
    Exchange(Exchange),
    /// Issued together.
    Batch(Vec<Collective>, Exchange),
    /// Some of the ranks make a group of their own, and use it from a further thread.
    Team(Team),
    /// Everybody waits for everything.
    Settle,
}

/// A group made from a group.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    pub(crate) id: u64,
    /// Ranks of the other group, in the order of the new one.
    pub(crate) members: Vec<usize>,
    pub(crate) made: Made,
    pub(crate) steps: Vec<Step>,
}

/// How a group is made from a group.
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

/// Messages between ranks, under tags that no other exchange uses.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// In the order in which their senders send them.
    pub(crate) messages: Vec<Message>,
    pub(crate) asked: Asked,
}

/// How receives name what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Exactly,
    FromAnybody,
    /// Nothing else may be under way then.
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

/// How often groups are made from groups.
const DEPTH: usize = 2;

/// Counts of elements: nothing, what fits a line, a slot, several, and what is taken by other ways.
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
            leaves_early: maker.random.once_in(3),
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
    /// `depth` is how often groups may be made from groups.
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
                _ if depth > 0 && self.random.once_in(2) => {
                    steps.push(Step::Team(self.team(depth - 1)));
                }
                _ if self.random.once_in(2) => {
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
        if self.random.once_in(2) { count } else { self.random.below(count + 1) }
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
            in_place: self.random.once_in(2),
        }
    }

    /// Collectives of a batch; some in a row are of one kind, so that they may become one.
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
        // A receive from anybody does not know what it gets, but its type.
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
    /// What a rank sends, in an order of its own that keeps that of messages to one rank under one
    /// tag.
    pub(crate) fn sent_by(&self, rank: usize, random: &mut Random) -> Vec<Message> {
        let own = self.messages.iter().filter(|message| message.from == rank).copied().collect();
        keep_order(own, |message| (message.to, message.tag), random)
    }

    /// What a rank is to receive, in an order of its own that keeps that of messages from one rank
    /// under one tag.
    pub(crate) fn received_by(&self, rank: usize, random: &mut Random) -> Vec<Message> {
        let own = self.messages.iter().filter(|message| message.to == rank).copied().collect();
        keep_order(own, |message| (message.from, message.tag), random)
    }
}

/// Shuffles, but for those with one key.
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
