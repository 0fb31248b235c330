//! The track of a group in a trace: the lines on which a viewer draws the group's operations. A
//! line is called a lane. The spans of a lane nest or follow each other, but do not overlap
//! otherwise.
//!
//! An operation keeps a lane from its issue to its end, so the waits that it records are inside its
//! span. Operations that are outstanding at the same time use different lanes, for example:
//!
//! ```text
//! lane 1  [all_reduce #1        ][broadcast #4]
//! lane 2     [all_reduce #2         ]
//! lane 3        [all_gather #3]
//! ```
//!
//! If a group has a single caller, which makes blocking calls, all its operations use lane 1. There
//! are [`LANES_PER_KIND`] lanes for collectives and as many for messages. If no lane is free, the
//! operation is drawn as an asynchronous span, which may overlap other spans.

use crate::base::ids::{GroupId, Rank};
use crate::base::sync::lock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// The number of lanes per group and kind of operation.
pub(super) const LANES_PER_KIND: u32 = 64;

/// A group in the trace.
#[derive(Debug)]
pub(in crate::api) struct GroupTrack {
    /// A number that distinguishes the groups of this process.
    pub(super) index: u32,
    pub(super) id: GroupId,
    pub(super) name: String,
    /// This process's rank in the group.
    pub(super) rank: Rank,
    /// The rank of each member in the outermost group.
    pub(super) global_ranks: Arc<[Rank]>,
    /// Bit masks of the lanes in use, indexed by [`LaneKind`].
    taken_lanes: [AtomicU64; 2],
    /// The operation that has the turn. Collectives of a group run one after the other, so at most
    /// one has it.
    current_turn: Mutex<Option<TracedTurn>>,
}

/// The kinds of operations that have lanes of their own.
#[derive(Clone, Copy, Debug)]
pub(super) enum LaneKind {
    Collectives = 0,
    Messages = 1,
}

/// The data of the operation that has the turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct TracedTurn {
    pub(super) lane: Option<u32>,
    pub(super) began: Instant,
    pub(super) algorithm: Option<&'static str>,
}

impl GroupTrack {
    /// Creates the track of a group in which this process is `rank`. `ranks` has the rank of each
    /// member in the outermost group.
    pub(in crate::api) fn new(id: GroupId, name: &str, rank: Rank, ranks: &Arc<[Rank]>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self {
            index: NEXT.fetch_add(1, Ordering::Relaxed),
            id,
            name: name.to_owned(),
            rank,
            global_ranks: Arc::clone(ranks),
            taken_lanes: Default::default(),
            current_turn: Mutex::new(None),
        }
    }

    /// Converts a rank of this group to the rank in the outermost group.
    pub(super) fn global_rank(&self, rank: Rank) -> Rank {
        self.global_ranks.get(rank).copied().unwrap_or(rank)
    }

    /// Returns this process's rank in the outermost group.
    pub(super) fn own_global_rank(&self) -> Rank {
        self.global_rank(self.rank)
    }

    /// Records the algorithm of the operation that has the turn.
    pub(in crate::api) fn set_algorithm(&self, algorithm: &'static str) {
        if let Some(turn) = self.lock_turn().as_mut() {
            turn.algorithm = Some(algorithm);
        }
    }

    pub(super) fn lock_turn(&self) -> MutexGuard<'_, Option<TracedTurn>> {
        lock(&self.current_turn)
    }

    /// Takes the lowest free lane. Returns `None` if all lanes are in use.
    pub(super) fn take_lane(&self, kind: LaneKind) -> Option<u32> {
        let taken = &self.taken_lanes[kind as usize];
        let lowest = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let before = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lowest).ok()?;
        Some(before.trailing_ones())
    }

    pub(super) fn release_lane(&self, kind: LaneKind, lane: u32) {
        self.taken_lanes[kind as usize].fetch_and(!(1 << lane), Ordering::Relaxed);
    }
}
