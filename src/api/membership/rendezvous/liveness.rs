//! The processes that live when a rendezvous sees them, and end during the rendezvous.

use super::entry::RendezvousEntry;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::Rank;
use crate::process::this_process;

/// The ranks whose processes were not known to have ended when the watch began. An entry of a
/// process that had ended before is stale: it is from an earlier job, or the rank restarts.
#[derive(Debug)]
pub(super) struct LivenessWatch {
    ranks: Vec<(Rank, RendezvousEntry)>,
}

impl LivenessWatch {
    pub(super) fn begin(entries: impl Iterator<Item = (Rank, RendezvousEntry)>) -> Self {
        let is_alive = |(_, entry): &(Rank, RendezvousEntry)| !has_ended(entry);
        Self { ranks: entries.filter(is_alive).collect() }
    }

    /// Returns the error about the first rank whose process has ended since the watch began.
    pub(super) fn find_death(&self) -> Option<Error> {
        let dead = self.ranks.iter().find(|(_, entry)| has_ended(entry));
        dead.map(|(rank, entry)| death_error(*rank, entry))
    }
}

/// Returns true if the process with this entry has certainly ended.
pub(super) fn has_ended(entry: &RendezvousEntry) -> bool {
    this_process::has_process_ended(&entry.process_key)
}

/// Returns the error about a rank whose process has ended before the group was complete.
pub(super) fn death_error(rank: Rank, entry: &RendezvousEntry) -> Error {
    let message = format!("rank {rank} ({}) died while the group was created", entry.process);
    Error::new(ErrorKind::PeerFailed, message).with_culprit(rank).with_fault(RankFault::Died)
}
