//! The scenario of a seed: the number of ranks and their hosts, the steps of the ranks, and the
//! fault with its place and time. Only the seed and the user's choice of a fault determine the
//! scenario, so that each rank and the driver compute the same one.

use crate::fault::draw_injection;
pub(crate) use crate::fault::{INJECTIONS, Injection};
use crate::generator::Random;

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveKind {
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

impl CollectiveKind {
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

    /// Returns true if the call has one block per rank, and false if it has one vector only.
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

/// How the ranks make a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupCreation {
    /// `dist_group_new`: a group of all ranks but the last.
    New,
    /// `dist_group_split`: a group of the even ranks and one of the odd ranks.
    Split,
    /// `dist_group_create`: a group of all ranks, through the store.
    Create,
}

/// A step that all ranks execute.
#[derive(Clone, Debug)]
pub(crate) enum ScenarioStep {
    /// `dist_init`.
    Init,
    /// A collective, `times` times; `ahead` calls are issued before the rank waits for the first.
    Calls { kind: CollectiveKind, count: usize, times: usize, ahead: usize },
    /// Each rank sends to the next and receives from the one before.
    Ring { count: usize, times: usize },
    /// Each even rank sends to the next rank, which answers; each call blocks.
    Pairs { count: usize, times: usize },
    /// Rank `setter` sets a key after `after_ms`; all other ranks wait for the key.
    Store { setter: usize, after_ms: u64 },
    /// Makes groups in this way, with calls in each, `times` times.
    Groups { way: GroupCreation, times: usize },
    /// Calls until rank `aborter` aborts the group; then `dist_group_shrink`, and calls in the new
    /// group. The world group is unusable afterwards.
    Shrink { aborter: usize, after_ms: u64 },
    /// `dist_finalize`.
    Finalize,
}

/// The heartbeat limit (`DIST_HEARTBEAT_LIMIT_MS`) in scenarios that stop or partition ranks. It is
/// longer than any rank waits for a core while several dozen ranks share it.
const HEARTBEAT_LIMIT_MS: u64 = 2000;
/// A deadline that no call reaches, and a deadline that a rank must reach.
const LONG_MS: i64 = 20_000;
pub(crate) const SHORT_MS: i64 = 1500;

/// A complete scenario.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// The text from which [`Scenario::parse`] computes the scenario again; ranks get it in their
    /// environment.
    pub(crate) origin: String,
    pub(crate) size: usize,
    /// The emulated host of each rank.
    pub(crate) hosts: Vec<usize>,
    /// The transport option of the back end.
    pub(crate) transport: &'static str,
    /// If set, a separate process hosts the store; else rank 0 hosts it.
    pub(crate) has_store_process: bool,
    pub(crate) steps: Vec<ScenarioStep>,
    pub(crate) injection: Injection,
    pub(crate) victim: usize,
    /// The rank and the step whose start triggers the fault after `delay_us`.
    pub(crate) trigger: (usize, usize),
    pub(crate) delay_us: u64,
    pub(crate) timeout_ms: i64,
    pub(crate) connect_ms: i64,
    /// The deadline of store calls.
    pub(crate) store_ms: i64,
    pub(crate) heartbeat_limit_ms: u64,
    /// If set, collectives use buffers in library memory, so that peers access large ones directly.
    pub(crate) arena: bool,
}

impl Scenario {
    /// Computes the scenario from the text of [`Scenario::origin`].
    pub(crate) fn parse(origin: &str) -> Self {
        let words: Vec<&str> = origin.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "seed" => Self::of_seed(number(1), words.get(2).copied()),
            "latency" => Self::of_latency(words[1], number(2), number(3)),
            "round" => Self::of_round(number(1)),
            "links" => Self::of_links(number(1)),
            other => panic!("no such scenario: {other}"),
        }
    }

    /// Computes the scenario of a seed, with the fault `only` or a random one.
    pub(crate) fn of_seed(seed: u64, only: Option<&str>) -> Self {
        let mut random = Random::new(seed);
        let injection = draw_injection(&mut random, only);
        let size = 2 + random.below(7);
        let mut victim = random.below(size);
        let two_hosts =
            matches!(injection, Injection::Partition | Injection::Reject) || random.one_in(2);
        let interleaved = random.one_in(3);
        let host = |rank| match (two_hosts, interleaved) {
            (false, _) => 0,
            (true, true) => rank % 2,
            (true, false) => usize::from(rank >= size.div_ceil(2)),
        };
        let hosts: Vec<usize> = (0..size).map(host).collect();
        if injection == Injection::Leave {
            victim = hosts.iter().position(|&host| host == hosts[victim]).unwrap_or(victim);
        }
        let (steps, focus) = draw_steps(&mut random, size, injection);
        let span_us = random.one_of(&[0, 1000, 5000, 20_000]);
        let mut scenario = Self {
            origin: format!("seed {seed}{}", only.map_or(String::new(), |name| format!(" {name}"))),
            size,
            hosts,
            transport: if random.one_in(5) { "tcp" } else { "auto" },
            has_store_process: injection.needs_store_process() || random.one_in(2),
            steps,
            injection,
            victim,
            trigger: (random.below(size), focus),
            delay_us: random.next() % (span_us + 1),
            timeout_ms: LONG_MS,
            connect_ms: LONG_MS,
            store_ms: LONG_MS,
            heartbeat_limit_ms: 10_000,
            arena: random.one_in(3),
        };
        scenario.choose_deadlines();
        scenario
    }

    /// Chooses short deadlines if a rank must reach one.
    fn choose_deadlines(&mut self) {
        match self.injection {
            // No deadline is near: the heartbeat limit ends the calls that wait for the absent
            // ranks.
            Injection::Stop | Injection::Partition | Injection::Reject => {
                self.heartbeat_limit_ms = HEARTBEAT_LIMIT_MS;
            }
            Injection::FullDisk { .. } | Injection::Delay { late: true, .. } => {
                self.timeout_ms = SHORT_MS;
            }
            _ => {}
        }
        // If the victim is lost before it has joined, its peers wait until the connect timeout.
        let is_early = self.trigger.1 == 0;
        let is_harmless = self.is_harmless();
        if (is_early && !is_harmless) || matches!(self.injection, Injection::FullDisk { .. }) {
            self.connect_ms = 2 * SHORT_MS;
        }
        // If the store is unreachable but its connections are open, its clients wait until the
        // deadline.
        if self.injection.separates_hosts()
            || (self.injection == Injection::Stop && self.loses_store())
        {
            self.store_ms = SHORT_MS;
        }
        if matches!(self.steps[self.trigger.1], ScenarioStep::Store { .. }) && !is_harmless {
            // The heartbeat limit must pass before the deadline.
            self.timeout_ms = match self.injection {
                Injection::Stop | Injection::Partition | Injection::Reject => 4 * SHORT_MS,
                _ => SHORT_MS,
            };
        }
    }

    /// Returns how long a shrink waits for ranks: shorter if a rank never joins.
    pub(crate) fn shrink_window_ms(&self) -> i64 {
        match self.injection {
            Injection::Stop
            | Injection::Partition
            | Injection::Reject
            | Injection::Delay { late: true, .. } => 2000,
            _ => 10_000,
        }
    }

    /// Returns true if all calls must succeed in spite of the fault.
    pub(crate) fn is_harmless(&self) -> bool {
        matches!(
            self.injection,
            Injection::Pause { .. }
                | Injection::Delay { late: false, .. }
                | Injection::BadFrames { .. }
        )
    }

    /// Returns true if the fault kills or stops the store's host.
    pub(crate) fn loses_store(&self) -> bool {
        let of_victim = !self.has_store_process && (self.victim == 0 || self.is_killed(0));
        // A rank that leaves keeps its store until its process ends.
        let is_kept = self.injection == Injection::Leave;
        self.injection == Injection::StoreDeath || (of_victim && !is_kept)
    }

    /// Returns true if the fault ends the process of this rank.
    pub(crate) fn is_killed(&self, rank: usize) -> bool {
        let is_second = || rank == (self.victim + 1) % self.size;
        match self.injection {
            Injection::Kill { two } => rank == self.victim || (two && is_second()),
            _ => rank == self.victim && self.injection.ends_victim(),
        }
    }

    /// Computes the scenario for a latency measurement: four ranks repeat one call in an endless
    /// loop.
    fn of_latency(kind: &str, number: u64, limit_ms: u64) -> Self {
        let mut random = Random::new(number);
        let two_hosts =
            matches!(kind, "remote-kill" | "partition") || (kind == "stop" && random.one_in(2));
        let injection = match kind {
            "stop" => Injection::Stop,
            "partition" => Injection::Partition,
            _ => Injection::Kill { two: false },
        };
        let (kind_of_call, count) = random.one_of(&[
            (CollectiveKind::AllReduce, 1),
            (CollectiveKind::AllReduce, 250_000),
            (CollectiveKind::Barrier, 0),
            (CollectiveKind::AllGather, 100),
        ]);
        let calls = ScenarioStep::Calls { kind: kind_of_call, count, times: usize::MAX, ahead: 1 };
        Self {
            origin: format!("latency {kind} {number} {limit_ms}"),
            size: 4,
            hosts: (0..4).map(|rank| if two_hosts { rank / 2 } else { 0 }).collect(),
            transport: "auto",
            has_store_process: true,
            steps: vec![ScenarioStep::Init, calls, ScenarioStep::Finalize],
            injection,
            victim: random.below(4),
            trigger: (random.below(4), 1),
            delay_us: 5000 + random.next() % 10_000,
            timeout_ms: LONG_MS,
            connect_ms: LONG_MS,
            store_ms: SHORT_MS,
            heartbeat_limit_ms: limit_ms,
            arena: false,
        }
    }

    /// Computes a round in which rank 0 is the driver itself, and one or two other ranks are
    /// killed.
    fn of_round(number: u64) -> Self {
        let mut random = Random::new(number);
        let size = 3 + random.below(3);
        let two_hosts = random.one_in(2);
        let kind = random.one_of(&CollectiveKind::ALL);
        let count = random.one_of(&[1, 1000, 50_000]);
        let calls = ScenarioStep::Calls { kind, count, times: usize::MAX, ahead: 1 };
        Self {
            origin: format!("round {number}"),
            size,
            hosts: (0..size).map(|rank| if two_hosts { rank % 2 } else { 0 }).collect(),
            transport: "auto",
            has_store_process: true,
            steps: vec![
                ScenarioStep::Init,
                ScenarioStep::Groups { way: GroupCreation::Split, times: 1 },
                calls,
                ScenarioStep::Finalize,
            ],
            injection: Injection::Kill { two: random.one_in(3) },
            // Neither the victim nor the next rank is the driver.
            victim: 1 + random.below(size - 2),
            trigger: (1 + random.below(size - 1), random.below(3)),
            delay_us: random.next() % 20_000,
            timeout_ms: LONG_MS,
            connect_ms: 2 * SHORT_MS,
            store_ms: LONG_MS,
            heartbeat_limit_ms: 10_000,
            // The leak check would report the arena that the driver's process keeps.
            arena: false,
        }
    }
}

impl Scenario {
    /// Computes a scenario in which connections between two hosts have faults.
    fn of_links(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let size = 2 + random.below(4);
        let interleaved = random.one_in(2);
        let host =
            |rank| if interleaved { rank % 2 } else { usize::from(rank >= size.div_ceil(2)) };
        let mut steps = vec![ScenarioStep::Init];
        for _ in 0..2 + random.below(4) {
            steps.push(match draw_step(&mut random, size, true) {
                // A group that is aborted has other errors.
                ScenarioStep::Shrink { .. } => draw_step(&mut random, size, false),
                step => step,
            });
        }
        steps.push(ScenarioStep::Finalize);
        Self {
            origin: format!("links {seed}"),
            size,
            hosts: (0..size).map(host).collect(),
            transport: "auto",
            has_store_process: true,
            steps,
            injection: Injection::LinkFaults,
            victim: 0,
            trigger: (random.below(size), 1),
            delay_us: random.next() % 20_000,
            timeout_ms: 2 * LONG_MS,
            connect_ms: LONG_MS,
            store_ms: LONG_MS,
            heartbeat_limit_ms: 30_000,
            arena: random.one_in(3),
        }
    }
}

/// Draws the steps of the ranks, and the step in which the fault occurs.
fn draw_steps(
    random: &mut Random,
    size: usize,
    injection: Injection,
) -> (Vec<ScenarioStep>, usize) {
    let mut steps = vec![ScenarioStep::Init];
    for _ in 0..random.below(3) {
        steps.push(draw_step(random, size, false));
    }
    // The fault may also occur in the first or the last step, before or after most calls.
    let focus = match random.below(8) {
        0 => 0,
        1 => steps.len(),
        _ => {
            let in_focus = draw_step(random, size, true);
            steps.push(match injection {
                Injection::KillAtCreation => draw_groups(random, 4),
                _ => in_focus,
            });
            steps.len() - 1
        }
    };
    let is_over = matches!(steps.last(), Some(ScenarioStep::Shrink { .. }));
    if focus != steps.len() && !is_over && random.one_in(2) {
        steps.push(draw_step(random, size, false));
    }
    steps.push(ScenarioStep::Finalize);
    // The victim injects these faults itself, before a call.
    let last_call = steps.len() - 2;
    (steps, if injection.is_by_victim() { focus.min(last_call) } else { focus })
}

fn draw_groups(random: &mut Random, times: usize) -> ScenarioStep {
    let ways = [GroupCreation::New, GroupCreation::Split, GroupCreation::Create];
    ScenarioStep::Groups { way: random.one_of(&ways), times }
}

fn draw_step(random: &mut Random, size: usize, in_focus: bool) -> ScenarioStep {
    let is_large = random.one_in(3);
    let times = match (in_focus, is_large) {
        (false, _) => 1 + random.below(3),
        (true, false) => 20 + random.below(150),
        (true, true) => 3 + random.below(6),
    };
    let small = random.one_of(&[1, 17, 1000]);
    match random.below(13) {
        0 => ScenarioStep::Store { setter: random.below(size), after_ms: random.next() % 30 },
        1 => draw_groups(random, 1),
        2 => ScenarioStep::Ring { count: if is_large { 200_000 } else { small }, times },
        4 if in_focus => {
            ScenarioStep::Shrink { aborter: random.below(size), after_ms: random.next() % 30 }
        }
        3 => ScenarioStep::Pairs { count: if is_large { 200_000 } else { small }, times },
        _ => {
            let kind = random.one_of(&CollectiveKind::ALL);
            let large = if kind.has_blocks() { 30_000 } else { 200_000 };
            let ahead = if random.one_in(3) { 3 } else { 1 };
            ScenarioStep::Calls { kind, count: if is_large { large } else { small }, times, ahead }
        }
    }
}
