//! A run queue as the counter of what the rank has issued in the group: collectives, and messages
//! that are enqueued on a device. The flight recorder and the search for deadlocks read the counts.

use super::RunQueue;
use crate::api::observe::recorder::IssueCounter;
use crate::base::ids::Rank;
use crate::base::sync::unpoisoned;
use crate::transport::MessageCounts;

impl RunQueue {
    /// Counts the messages of a group batch that is issued now: the peer of each, and whether this
    /// rank sends it. Returns the position of each message, or 0 if it is unknown: while another
    /// batch is being enqueued, the device may get the two batches in any order.
    pub(in crate::api) fn count_enqueued_messages(
        &self,
        messages: impl Iterator<Item = (Rank, bool)>,
    ) -> Vec<u64> {
        let mut state = unpoisoned(self.enqueued_messages.get_or_init(Box::default).lock());
        let is_alone = state.unfinished_batches == 0;
        state.unfinished_batches += 1;
        let position = |(peer, is_outgoing)| {
            let position = state.count(peer, is_outgoing);
            if is_alone { position } else { 0 }
        };
        messages.map(position).collect()
    }

    /// Records that the messages of a group batch are on their streams, or that they have failed.
    pub(in crate::api) fn end_enqueue_of_messages(&self) {
        if let Some(messages) = self.enqueued_messages.get() {
            unpoisoned(messages.lock()).unfinished_batches -= 1;
        }
    }
}

impl IssueCounter for RunQueue {
    fn issued(&self) -> u64 {
        Self::issued(self)
    }

    fn is_idle(&self) -> bool {
        Self::is_idle(self)
    }

    fn enqueued_messages(&self) -> MessageCounts {
        let messages = self.enqueued_messages.get();
        messages.map(|it| unpoisoned(it.lock()).counts.clone()).unwrap_or_default()
    }
}
