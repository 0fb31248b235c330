//! What a seed means: how many ranks on which hosts, what they do, and what goes wrong, where and
//! when. Nothing but the seed, and what the user wants to go wrong, decides; a rank and the driver
//! compute the same.

use crate::generator::Random;

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    Gather,
    Scatter,
    ReduceScatter,
    AllToAll,
    AllGatherV,
    GatherV,
    ScatterV,
    ReduceScatterV,
    AllToAllV,
    Barrier,
    MonitoredBarrier,
}

impl Kind {
    pub(crate) const ALL: [Self; 15] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::Gather,
        Self::Scatter,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::AllGatherV,
        Self::GatherV,
        Self::ScatterV,
        Self::ReduceScatterV,
        Self::AllToAllV,
        Self::Barrier,
        Self::MonitoredBarrier,
    ];

    /// Whether there is a block for each rank, or one that is as long as the whole.
    pub(crate) fn has_blocks(self) -> bool {
        !matches!(
            self,
            Self::AllReduce
                | Self::Reduce
                | Self::Broadcast
                | Self::Barrier
                | Self::MonitoredBarrier
        )
    }
}

/// What all ranks do next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// `dist_init`.
    Init,
    /// A collective so many times; `ahead`: several are issued before any is waited for.
    Calls { kind: Kind, count: usize, times: usize, ahead: usize },
    /// Each rank sends to the next and receives from the one before.
    Ring { count: usize, times: usize },
    /// The even ranks send to the next one, which answers; each call blocks.
    Pairs { count: usize, times: usize },
    /// Rank `setter` sets a key after a while; the others wait for it.
    Store { setter: usize, after_ms: u64 },
    /// Groups of the even and the odd ranks, by `dist_group_split`, or of all but the last, by
    /// `dist_group_new`, with a call in each.
    Groups { split: bool },
    /// Calls until rank `aborter` ends them, and then `dist_group_shrink`, with calls in what is
    /// left. The world is over.
    Shrink { aborter: usize, after_ms: u64 },
    /// `dist_finalize`.
    Finalize,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Injection {
    /// `kill -9` of the victim, and in some cases of the rank behind it.
    Kill { two: bool },
    /// The victim is stopped, and resumed so soon that nobody may complain.
    Pause { ms: u64 },
    /// The victim is stopped, and resumed once all others have given up.
    Stop,
    /// One of the victim's sockets is shut down.
    Close { which: u64 },
    /// The victim computes for so long in the middle of it all; `late` is beyond the others'
    /// deadlines.
    Delay { ms: u64, late: bool },
    /// The hosts do not reach each other any more.
    Partition,
    /// The ranks meet in a file on a disk of so many pages.
    FullDisk { pages: u64 },
    /// The victim may not have more than this much memory beyond what it has.
    MemoryLimit { kib: u64 },
    /// Rubbish comes to all sockets that listen.
    BadFrames { seed: u64 },
    /// The process that hosts the store is killed.
    StoreDeath,
}

/// By which names a user asks for injections, and how often each comes where he does not.
pub(crate) const INJECTIONS: [(&str, usize); 11] = [
    ("kill", 5),
    ("kill-two", 1),
    ("stop", 2),
    ("pause", 1),
    ("close", 3),
    ("delay", 2),
    ("partition", 1),
    ("disk", 1),
    ("memory", 2),
    ("frames", 2),
    ("store", 2),
];

/// How long a stopped rank is given before it counts as gone (`DIST_HEARTBEAT_LIMIT_MS`) where one
/// is stopped: longer than any rank waits for a core while several dozens share it.
const HEARTBEAT_LIMIT_MS: u64 = 2000;
/// A deadline that nothing ever reaches, and one that somebody has to.
const LONG_MS: i64 = 20_000;
const SHORT_MS: i64 = 1500;

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// What makes it again, in the environment of a rank.
    pub(crate) origin: String,
    pub(crate) size: usize,
    /// The host that each rank pretends to be on.
    pub(crate) hosts: Vec<usize>,
    /// What is asked of the back end.
    pub(crate) transport: &'static str,
    /// The store has a process of its own; else rank 0 hosts it.
    pub(crate) keeper: bool,
    pub(crate) steps: Vec<Step>,
    pub(crate) injection: Injection,
    pub(crate) victim: usize,
    /// It goes wrong so long after this rank has begun this step.
    pub(crate) watched: (usize, usize),
    pub(crate) delay_us: u64,
    pub(crate) timeout_ms: i64,
    pub(crate) connect_ms: i64,
    /// The deadline of a call on the store.
    pub(crate) store_ms: i64,
    pub(crate) heartbeat_limit_ms: u64,
    /// Buffers of collectives are the library's, so that large ones go directly.
    pub(crate) arena: bool,
}

impl Scenario {
    /// From the text of [`Scenario::origin`].
    pub(crate) fn parse(origin: &str) -> Self {
        let words: Vec<&str> = origin.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "seed" => Self::of_seed(number(1), words.get(2).copied()),
            "latency" => Self::of_latency(words[1], number(2), number(3)),
            "round" => Self::of_round(number(1)),
            other => panic!("no such scenario: {other}"),
        }
    }

    /// What a seed means, where only this injection is wanted, or any.
    pub(crate) fn of_seed(seed: u64, only: Option<&str>) -> Self {
        let mut random = Random::new(seed);
        let injection = draw_injection(&mut random, only);
        let size = 2 + random.below(7);
        let victim = random.below(size);
        let two_hosts = matches!(injection, Injection::Partition) || random.once_in(2);
        let interleaved = random.once_in(3);
        let host = |rank| match (two_hosts, interleaved) {
            (false, _) => 0,
            (true, true) => rank % 2,
            (true, false) => usize::from(rank >= size.div_ceil(2)),
        };
        let (steps, focus) = draw_steps(&mut random, size, injection);
        let span_us = random.one_of(&[0, 1000, 5000, 20_000]);
        let mut scenario = Self {
            origin: format!("seed {seed}{}", only.map_or(String::new(), |name| format!(" {name}"))),
            size,
            hosts: (0..size).map(host).collect(),
            transport: if random.once_in(5) { "tcp" } else { "auto" },
            keeper: injection == Injection::StoreDeath || random.once_in(2),
            steps,
            injection,
            victim,
            watched: (random.below(size), focus),
            delay_us: random.next() % (span_us + 1),
            timeout_ms: LONG_MS,
            connect_ms: LONG_MS,
            store_ms: LONG_MS,
            heartbeat_limit_ms: 10_000,
            arena: random.once_in(3),
        };
        scenario.choose_deadlines();
        scenario
    }

    /// Deadlines are short where somebody must reach one.
    fn choose_deadlines(&mut self) {
        match self.injection {
            // No deadline is near: they end by the silence of those who are gone.
            Injection::Stop | Injection::Partition => self.heartbeat_limit_ms = HEARTBEAT_LIMIT_MS,
            Injection::FullDisk { .. } | Injection::Delay { late: true, .. } => {
                self.timeout_ms = SHORT_MS;
            }
            _ => {}
        }
        // Who waits for one that is gone before it has come waits until the end.
        let is_early = self.watched.1 == 0;
        let is_harmless = self.is_harmless();
        if (is_early && !is_harmless) || matches!(self.injection, Injection::FullDisk { .. }) {
            self.connect_ms = 2 * SHORT_MS;
        }
        // A store that is there and silent is waited for.
        if self.injection == Injection::Partition
            || (self.injection == Injection::Stop && self.loses_store())
        {
            self.store_ms = SHORT_MS;
        }
        if matches!(self.steps[self.watched.1], Step::Store { .. }) && !is_harmless {
            // Silence is noticed first.
            self.timeout_ms = match self.injection {
                Injection::Stop | Injection::Partition => 4 * SHORT_MS,
                _ => SHORT_MS,
            };
        }
    }

    /// How long a rank may take to come to those that go on: shorter where one does not come at
    /// all.
    pub(crate) fn window_ms(&self) -> i64 {
        match self.injection {
            Injection::Stop | Injection::Partition | Injection::Delay { late: true, .. } => 2000,
            _ => 10_000,
        }
    }

    /// Whether all calls must succeed nevertheless.
    pub(crate) fn is_harmless(&self) -> bool {
        matches!(
            self.injection,
            Injection::Pause { .. }
                | Injection::Delay { late: false, .. }
                | Injection::BadFrames { .. }
        )
    }

    /// Whether the store goes with what is killed or stopped.
    pub(crate) fn loses_store(&self) -> bool {
        let of_victim = !self.keeper && (self.victim == 0 || self.dies(0));
        self.injection == Injection::StoreDeath || of_victim
    }

    /// Whether a rank is to be killed.
    pub(crate) fn dies(&self, rank: usize) -> bool {
        match self.injection {
            Injection::Kill { two } => {
                rank == self.victim || (two && rank == (self.victim + 1) % self.size)
            }
            _ => false,
        }
    }

    /// What a latency is measured in: four ranks in a loop of one call that does not end by itself.
    fn of_latency(kind: &str, number: u64, limit_ms: u64) -> Self {
        let mut random = Random::new(number);
        let two_hosts =
            matches!(kind, "remote-kill" | "partition") || (kind == "stop" && random.once_in(2));
        let injection = match kind {
            "stop" => Injection::Stop,
            "partition" => Injection::Partition,
            _ => Injection::Kill { two: false },
        };
        let (kind_of_call, count) = random.one_of(&[
            (Kind::AllReduce, 1),
            (Kind::AllReduce, 250_000),
            (Kind::Barrier, 0),
            (Kind::AllGather, 100),
        ]);
        let calls = Step::Calls { kind: kind_of_call, count, times: usize::MAX, ahead: 1 };
        Self {
            origin: format!("latency {kind} {number} {limit_ms}"),
            size: 4,
            hosts: (0..4).map(|rank| if two_hosts { rank / 2 } else { 0 }).collect(),
            transport: "auto",
            keeper: true,
            steps: vec![Step::Init, calls, Step::Finalize],
            injection,
            victim: random.below(4),
            watched: (random.below(4), 1),
            delay_us: 5000 + random.next() % 10_000,
            timeout_ms: LONG_MS,
            connect_ms: LONG_MS,
            store_ms: SHORT_MS,
            heartbeat_limit_ms: limit_ms,
            arena: false,
        }
    }

    /// A round in which rank 0 is the driver itself, and some of the others are killed.
    fn of_round(number: u64) -> Self {
        let mut random = Random::new(number);
        let size = 3 + random.below(3);
        let two_hosts = random.once_in(2);
        let kind = random.one_of(&Kind::ALL);
        let count = random.one_of(&[1, 1000, 50_000]);
        let calls = Step::Calls { kind, count, times: usize::MAX, ahead: 1 };
        Self {
            origin: format!("round {number}"),
            size,
            hosts: (0..size).map(|rank| if two_hosts { rank % 2 } else { 0 }).collect(),
            transport: "auto",
            keeper: true,
            steps: vec![Step::Init, Step::Groups { split: true }, calls, Step::Finalize],
            injection: Injection::Kill { two: random.once_in(3) },
            // Neither it nor the one behind it is the driver.
            victim: 1 + random.below(size - 2),
            watched: (1 + random.below(size - 1), random.below(3)),
            delay_us: random.next() % 20_000,
            timeout_ms: LONG_MS,
            connect_ms: 2 * SHORT_MS,
            store_ms: LONG_MS,
            heartbeat_limit_ms: 10_000,
            // What stays of its own arena would be taken for left behind.
            arena: false,
        }
    }
}

fn draw_injection(random: &mut Random, only: Option<&str>) -> Injection {
    let all: usize = INJECTIONS.iter().map(|(_, weight)| weight).sum();
    let mut left = random.below(all);
    let drawn = INJECTIONS.iter().find(|(_, weight)| {
        let is_it = left < *weight;
        left = left.wrapping_sub(*weight);
        is_it
    });
    let name = only.or(drawn.map(|(name, _)| *name)).unwrap_or("kill");
    let number = random.next();
    match name {
        "kill" => Injection::Kill { two: false },
        "kill-two" => Injection::Kill { two: true },
        "stop" => Injection::Stop,
        "pause" => Injection::Pause { ms: 1 + number % 60 },
        "close" => Injection::Close { which: number },
        "delay" if number.is_multiple_of(2) => Injection::Delay { ms: number % 100, late: false },
        "delay" => Injection::Delay { ms: 2 * SHORT_MS.unsigned_abs(), late: true },
        "partition" => Injection::Partition,
        "disk" => Injection::FullDisk { pages: 1 + number % 12 },
        "memory" => Injection::MemoryLimit { kib: number % 20_000 },
        "frames" => Injection::BadFrames { seed: number },
        "store" => Injection::StoreDeath,
        other => panic!("no such injection: {other}"),
    }
}

/// What the ranks do, and which step it goes wrong in.
fn draw_steps(random: &mut Random, size: usize, injection: Injection) -> (Vec<Step>, usize) {
    let mut steps = vec![Step::Init];
    for _ in 0..random.below(3) {
        steps.push(draw_step(random, size, false));
    }
    // Where it may be too early or too late for something else.
    let focus = match random.below(8) {
        0 => 0,
        1 => steps.len(),
        _ => {
            steps.push(draw_step(random, size, true));
            steps.len() - 1
        }
    };
    let is_over = matches!(steps.last(), Some(Step::Shrink { .. }));
    if focus != steps.len() && !is_over && random.once_in(2) {
        steps.push(draw_step(random, size, false));
    }
    steps.push(Step::Finalize);
    // These are the ranks' own doing, in front of a call.
    let last_call = steps.len() - 2;
    let by_itself = matches!(injection, Injection::Delay { .. } | Injection::MemoryLimit { .. });
    (steps, if by_itself { focus.min(last_call) } else { focus })
}

fn draw_step(random: &mut Random, size: usize, in_focus: bool) -> Step {
    let is_large = random.once_in(3);
    let times = match (in_focus, is_large) {
        (false, _) => 1 + random.below(3),
        (true, false) => 20 + random.below(150),
        (true, true) => 3 + random.below(6),
    };
    let small = random.one_of(&[1, 17, 1000]);
    match random.below(13) {
        0 => Step::Store { setter: random.below(size), after_ms: random.next() % 30 },
        1 => Step::Groups { split: random.once_in(2) },
        2 => Step::Ring { count: if is_large { 200_000 } else { small }, times },
        4 if in_focus => Step::Shrink { aborter: random.below(size), after_ms: random.next() % 30 },
        3 => Step::Pairs { count: if is_large { 200_000 } else { small }, times },
        _ => {
            let kind = random.one_of(&Kind::ALL);
            let large = if kind.has_blocks() { 30_000 } else { 200_000 };
            let ahead = if random.once_in(3) { 3 } else { 1 };
            Step::Calls { kind, count: if is_large { large } else { small }, times, ahead }
        }
    }
}
