//! How much is kept where: the same on all ranks, since it follows from what all know of the group.

use crate::base::ids::WorldSize;
use crate::transport::Geometry;

/// How many messages a rank may have outstanding; and so how many offers another rank may have made
/// it.
pub(super) const MAX_OUTSTANDING: usize = 1 << 16;

/// What a message costs beside its bytes while it is held for a receiver.
pub(super) const COST: usize = 128;

/// The longest message that goes without being asked for where not all ranks are on one host.
const EAGER_BYTES: usize = 16 << 10;

/// What a rank holds for all others together, and at most for one.
const HELD_BYTES: usize = 32 << 20;
const HELD_FOR_ONE: usize = 1 << 20;

/// What is asked of one rank and held by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The longest message that goes without being asked for.
    pub(super) eager_bytes: usize,
    /// What a receiver holds for one sender, [`COST`] included.
    pub(super) held_bytes: usize,
}

impl Limits {
    /// Of a group of so many. Where all are on one host, the longest message that goes without
    /// being asked for is that of its memory.
    pub(super) fn new(size: WorldSize, inside: Option<Geometry>) -> Self {
        let held_bytes = (HELD_BYTES / size.max(1)).min(HELD_FOR_ONE);
        let longest = inside.map_or(EAGER_BYTES, |memory| memory.eager_bytes());
        Self { eager_bytes: longest.min(held_bytes / 4), held_bytes }
    }

    /// What a whole message takes of what is held for its sender.
    pub(super) fn cost(bytes: usize) -> usize {
        bytes.saturating_add(COST)
    }

    /// From how many bytes on it is worth a frame to say that they are not held any more.
    pub(super) fn worth_telling(&self) -> usize {
        self.held_bytes / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Reuse;

    #[test]
    fn all_senders_together_stay_within_the_bound() {
        let memory = Geometry { ranks: 8, slot_bytes: 4096, reuse: Reuse::Soon };
        for size in [1, 2, 31, 32, 33, 1000, 65_536] {
            let limits = Limits::new(size, Some(memory));
            assert!(limits.held_bytes * size <= HELD_BYTES, "{size}");
            assert!(limits.eager_bytes < limits.held_bytes, "{size}");
        }
        for (inside, eager_bytes) in [(Some(memory), 128 << 10), (None, EAGER_BYTES)] {
            let limits = Limits { eager_bytes, held_bytes: HELD_FOR_ONE };
            assert_eq!(Limits::new(8, inside), limits);
        }
    }
}
