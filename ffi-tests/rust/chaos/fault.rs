//! The kinds of faults, their names and their weights.

use crate::generator::Random;
use crate::scenario::SHORT_MS;

/// The injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Injection {
    /// The victim is killed with SIGKILL; if `two` is set, the next rank as well.
    Kill { two: bool },
    /// The victim is killed while the ranks make groups, one after another.
    KillAtCreation,
    /// The victim forks a child when it has joined, and is killed. The child lives on.
    KillParent,
    /// The victim is killed, and each other rank ends right after its first error: by `_exit` if
    /// `hard` is set, else by `exit`.
    KillThenExit { hard: bool },
    /// The victim ends by `exit`, without `dist_finalize`: between two calls, or in the middle of a
    /// call of another thread if `in_call` is set.
    Exit { in_call: bool },
    /// The victim, the lowest rank of its host, finalizes while the others go on.
    Leave,
    /// The victim is stopped and resumed before any rank may report an error.
    Pause { ms: u64 },
    /// The victim is stopped, and resumed after all other ranks have given up.
    Stop,
    /// One of the victim's sockets is shut down.
    Close { which: u64 },
    /// The victim sleeps for `ms` before a call. If `late` is set, `ms` exceeds the deadlines of
    /// its peers.
    Delay { ms: u64, late: bool },
    /// The hosts can no longer reach each other: all packets between them are lost.
    Partition,
    /// As [`Self::Partition`], but all connections between the hosts are reset and refused.
    Reject,
    /// The ranks use a file store on a disk of `pages` pages.
    FullDisk { pages: u64 },
    /// The victim's address space may grow by at most `kib` KiB.
    MemoryLimit { kib: u64 },
    /// Garbage data arrives at all listening sockets.
    BadFrames { seed: u64 },
    /// The process that hosts the store is killed.
    StoreDeath,
    /// Connections between the hosts break or carry no data, while all processes live
    /// (`link_faults.rs`).
    LinkFaults,
}

/// The names of the faults for the user, and the weight of each in a random choice.
pub(crate) const INJECTIONS: [(&str, usize); 17] = [
    ("kill", 5),
    ("kill-two", 1),
    ("kill-at-creation", 2),
    ("kill-parent", 2),
    ("kill-then-exit", 2),
    ("exit", 3),
    ("leave", 2),
    ("stop", 2),
    ("pause", 1),
    ("close", 3),
    ("delay", 2),
    ("partition", 1),
    ("reject", 1),
    ("disk", 1),
    ("memory", 2),
    ("frames", 2),
    ("store", 2),
];

impl Injection {
    /// Returns true if the fault ends the process of the victim.
    pub(crate) fn ends_victim(self) -> bool {
        self.is_death() || matches!(self, Self::Exit { .. })
    }

    /// Returns true if a signal kills the victim.
    pub(crate) fn is_death(self) -> bool {
        matches!(
            self,
            Self::Kill { .. } | Self::KillAtCreation | Self::KillParent | Self::KillThenExit { .. }
        )
    }

    /// Returns true if the ranks on different hosts can no longer reach each other.
    pub(crate) fn separates_hosts(self) -> bool {
        matches!(self, Self::Partition | Self::Reject)
    }

    /// Returns true if the fault is about the host of the store, or must not end the store.
    pub(crate) fn needs_store_process(self) -> bool {
        matches!(self, Self::StoreDeath | Self::KillAtCreation | Self::KillThenExit { .. })
    }

    /// Returns true if the victim causes the fault itself, before a call.
    pub(crate) fn is_by_victim(self) -> bool {
        matches!(
            self,
            Self::Delay { .. } | Self::MemoryLimit { .. } | Self::Exit { .. } | Self::Leave
        )
    }
}

/// Draws a fault. `only` is the user's choice.
pub(crate) fn draw_injection(random: &mut Random, only: Option<&str>) -> Injection {
    let all: usize = INJECTIONS.iter().map(|(_, weight)| weight).sum();
    let mut remaining_weight = random.below(all);
    let drawn = INJECTIONS.iter().find(|(_, weight)| {
        let is_it = remaining_weight < *weight;
        remaining_weight = remaining_weight.wrapping_sub(*weight);
        is_it
    });
    let name = only.or(drawn.map(|(name, _)| *name)).unwrap_or("kill");
    let number = random.next();
    match name {
        "kill" => Injection::Kill { two: false },
        "kill-two" => Injection::Kill { two: true },
        "kill-at-creation" => Injection::KillAtCreation,
        "kill-parent" => Injection::KillParent,
        "kill-then-exit" => Injection::KillThenExit { hard: number.is_multiple_of(2) },
        "exit" => Injection::Exit { in_call: number.is_multiple_of(2) },
        "leave" => Injection::Leave,
        "stop" => Injection::Stop,
        "pause" => Injection::Pause { ms: 1 + number % 60 },
        "close" => Injection::Close { which: number },
        "delay" if number.is_multiple_of(2) => Injection::Delay { ms: number % 100, late: false },
        "delay" => Injection::Delay { ms: 2 * SHORT_MS.unsigned_abs(), late: true },
        "partition" => Injection::Partition,
        "reject" => Injection::Reject,
        "disk" => Injection::FullDisk { pages: 1 + number % 12 },
        "memory" => Injection::MemoryLimit { kib: number % 20_000 },
        "frames" => Injection::BadFrames { seed: number },
        "store" => Injection::StoreDeath,
        other => panic!("no such injection: {other}"),
    }
}
