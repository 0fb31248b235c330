//! How much is kept where: the same on all ranks, since it follows from what all know of the group.

use crate::base::ids::WorldSize;
use crate::transport::RegionGeometry;

/// How many messages a rank may have outstanding; and so how many offers another rank may have made
/// it.
pub(super) const MAX_OUTSTANDING: usize = 1 << 16;

/// What a message costs beside its bytes while it is held for a receiver.
pub(super) const HELD_OVERHEAD: usize = 128;

/// The longest message that goes without being asked for where not all ranks are on one host.
const EAGER_BYTES: usize = 16 << 10;

/// What a rank holds for all others together, and at most for one.
const MAX_HELD_BYTES: usize = 32 << 20;
const MAX_HELD_BYTES_PER_PEER: usize = 1 << 20;

/// What is asked of one rank and held by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatchingLimits {
    /// The longest message that goes without being asked for.
    pub(super) eager_bytes: usize,
    /// What a receiver holds for one sender, [`HELD_OVERHEAD`] included.
    pub(super) held_bytes: usize,
}

impl MatchingLimits {
    /// Of a group of so many. Where all are on one host, the longest message that goes without
    /// being asked for is that of its memory.
    pub(super) fn new(size: WorldSize, shared_geometry: Option<RegionGeometry>) -> Self {
        let held_bytes = (MAX_HELD_BYTES / size.max(1)).min(MAX_HELD_BYTES_PER_PEER);
        let longest = shared_geometry.map_or(EAGER_BYTES, |memory| memory.eager_bytes());
        Self { eager_bytes: longest.min(held_bytes / 4), held_bytes }
    }

    /// What a whole message takes of what is held for its sender.
    pub(super) fn credit_cost(bytes: usize) -> usize {
        bytes.saturating_add(HELD_OVERHEAD)
    }

    /// From how many bytes on it is worth a frame to say that they are not held any more.
    pub(super) fn credit_threshold(&self) -> usize {
        self.held_bytes / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::ReusePolicy;

    #[test]
    fn total_held_bytes_stay_within_the_limit() {
        let memory =
            RegionGeometry { ranks: 8, slot_bytes: 4096, reuse_policy: ReusePolicy::WhileCached };
        for size in [1, 2, 31, 32, 33, 1000, 65_536] {
            let limits = MatchingLimits::new(size, Some(memory));
            assert!(limits.held_bytes * size <= MAX_HELD_BYTES, "{size}");
            assert!(limits.eager_bytes < limits.held_bytes, "{size}");
        }
        for (inside, eager_bytes) in [(Some(memory), 128 << 10), (None, EAGER_BYTES)] {
            let limits = MatchingLimits { eager_bytes, held_bytes: MAX_HELD_BYTES_PER_PEER };
            assert_eq!(MatchingLimits::new(8, inside), limits);
        }
    }
}
