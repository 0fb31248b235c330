//! The limits of buffered bytes and outstanding messages. All ranks compute the same limits from
//! properties of the group that every rank knows.
//!
//! A sender counts the *credit* that its eager messages use: their cost in the buffers of the
//! receiver, until the receiver returns it. Examples for ranks of one node, where the shared memory
//! permits eager messages of 128 KiB:
//!
//! | ranks | credit per sender | longest eager message | receiver returns credit from |
//! |---|---|---|---|
//! | 4 | 1 MiB | 128 KiB | 256 KiB |
//! | 256 | 128 KiB | 32 KiB | 32 KiB |

use crate::base::ids::WorldSize;
use crate::transport::RegionGeometry;

/// The maximum number of messages that a rank may have posted and not completed. This also limits
/// the number of RTS frames of one rank that another rank has to store.
pub(super) const MAX_OUTSTANDING: usize = 1 << 16;

/// The cost of a buffered message in addition to the cost of its bytes.
pub(super) const HELD_OVERHEAD: usize = 128;

/// The longest eager message in a group with several hosts.
const EAGER_BYTES: usize = 16 << 10;

/// The maximum number of bytes that a rank buffers for all its peers together.
const MAX_HELD_BYTES: usize = 32 << 20;
/// The maximum number of bytes that a rank buffers for one peer.
const MAX_HELD_BYTES_PER_PEER: usize = 1 << 20;

/// The limits between a sender and a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatchingLimits {
    /// The length of the longest eager message.
    pub(super) eager_bytes: usize,
    /// The bytes that a receiver buffers for one sender: the sender's credit. A message costs its
    /// length and [`HELD_OVERHEAD`].
    pub(super) held_bytes: usize,
}

impl MatchingLimits {
    /// Computes the limits of a group of this size. If all ranks are on one host, the longest eager
    /// message follows from the geometry of their shared memory.
    pub(super) fn new(size: WorldSize, shared_geometry: Option<RegionGeometry>) -> Self {
        let held_bytes = (MAX_HELD_BYTES / size.max(1)).min(MAX_HELD_BYTES_PER_PEER);
        let longest = shared_geometry.map_or(EAGER_BYTES, |memory| memory.eager_bytes());
        Self { eager_bytes: longest.min(held_bytes / 4), held_bytes }
    }

    /// Returns the credit that an eager message of this length uses.
    pub(super) fn credit_cost(bytes: usize) -> usize {
        bytes.saturating_add(HELD_OVERHEAD)
    }

    /// Returns the owed credit at which the receiver sends a credit frame, in bytes.
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
        let memory = RegionGeometry::within_host(8, 4096, ReusePolicy::WhileCached);
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
