//! The messages of a group that are enqueued on a device.

use crate::base::ids::Rank;
use crate::transport::MessageCounts;

/// The messages that this rank has issued and that are enqueued on a device. The k-th send to a
/// rank belongs to the k-th receive of that rank.
#[derive(Debug, Default)]
pub(super) struct EnqueuedMessages {
    /// The issued sends and receives. The list of posted receives stays empty.
    pub(super) counts: MessageCounts,
    /// The number of issued group batches that are not on their streams yet.
    pub(super) unfinished_batches: usize,
}

impl EnqueuedMessages {
    /// Counts a message. Returns its position among the messages to or from the same rank, from 1.
    pub(super) fn count(&mut self, peer: Rank, is_outgoing: bool) -> u64 {
        let MessageCounts { sent, received, .. } = &mut self.counts;
        let counts = if is_outgoing { sent } else { received };
        let count = counts.entry((peer, MessageCounts::NO_TAG)).or_default();
        *count += 1;
        *count
    }
}
