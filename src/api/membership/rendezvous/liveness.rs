//! The processes that live when a rendezvous sees them, and end during the rendezvous.

use super::entry::{RendezvousEntry, RendezvousPeer};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, RankFault};
use crate::base::ids::{Nonce, Rank, WorldSize};
use crate::process::this_process;
use std::fmt;
use std::time::Duration;

/// The time in which a launcher may start a rank again that has died before the last rank has
/// arrived.
const RESTART_TIMEOUT: Duration = Duration::from_secs(3);

/// The maximum number of ranks that have not arrived and that [`ArrivalWatch::find_death`] looks up
/// in the store, except in the first call.
const MAX_LOOKUPS: usize = 64;

/// Returns the error about a member whose death is known outside of the rendezvous, if any.
#[derive(Clone, Copy)]
pub struct LostMemberFn<'a>(pub &'a (dyn Fn() -> Option<Error> + Sync));

impl LostMemberFn<'_> {
    pub(super) fn call(&self) -> Option<Error> {
        (self.0)()
    }
}

impl fmt::Debug for LostMemberFn<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LostMemberFn")
    }
}

/// The ranks whose processes were not known to have ended when the rendezvous or the watch began.
/// An entry of a process that had ended before is stale: it is from an earlier job, or the rank
/// restarts.
#[derive(Debug)]
pub(super) struct LivenessWatch {
    ranks: Vec<(Rank, RendezvousEntry)>,
}

impl LivenessWatch {
    pub(super) fn begin(entries: impl Iterator<Item = (Rank, RendezvousEntry)>) -> Self {
        Self { ranks: entries.filter(|(_, entry)| !has_ended(entry)).collect() }
    }

    /// As [`LivenessWatch::begin`], for ranks that `arrivals` has watched before.
    pub(super) fn begin_after(
        arrivals: &ArrivalWatch,
        entries: impl Iterator<Item = (Rank, RendezvousEntry)>,
    ) -> Self {
        let is_awaited = |(rank, entry): &(Rank, RendezvousEntry)| {
            arrivals.saw_arrival(*rank, entry) || !has_ended(entry)
        };
        Self { ranks: entries.filter(is_awaited).collect() }
    }

    /// Returns the error about the first rank whose process has ended since the watch began.
    pub(super) fn find_death(&self) -> Option<Error> {
        let dead = self.ranks.iter().find(|(_, entry)| has_ended(entry));
        dead.map(|(rank, entry)| death_error(*rank, entry))
    }
}

/// The ranks that have arrived while rank 0 waits for all ranks.
#[derive(Debug)]
pub(super) struct ArrivalWatch {
    arrivals: Vec<Arrival>,
    /// The rank with which the next lookups of absent ranks begin.
    next_lookup: Rank,
    is_first_call: bool,
    restart_timeout: Duration,
}

/// The arrival of one rank.
#[derive(Debug)]
enum Arrival {
    Absent,
    /// The process of the entry had ended before the watch began, so the entry is stale.
    Stale(Nonce),
    Arrived {
        entry: RendezvousEntry,
        /// The time at which another process must have replaced this one, which has ended.
        restart_limit: Option<Deadline>,
    },
}

impl ArrivalWatch {
    pub(super) fn new(size: WorldSize) -> Self {
        Self {
            arrivals: (0..size).map(|_| Arrival::Absent).collect(),
            next_lookup: 1,
            is_first_call: true,
            restart_timeout: RESTART_TIMEOUT,
        }
    }

    /// Returns the error about a rank whose process ended [`RESTART_TIMEOUT`] ago and was not
    /// replaced by another one. `entry_of` looks up the entry of a rank.
    pub(super) fn find_death(
        &mut self,
        entry_of: impl Fn(Rank) -> Option<RendezvousEntry>,
    ) -> Option<Error> {
        let size = self.arrivals.len();
        let (begin, is_first) = (self.next_lookup, self.is_first_call);
        self.is_first_call = false;
        let restart_timeout = self.restart_timeout;
        let mut lookups = if is_first { size } else { MAX_LOOKUPS };
        for rank in (0..size).map(|offset| (begin + offset) % size).filter(|&rank| rank != 0) {
            if let Arrival::Arrived { entry, restart_limit } = &mut self.arrivals[rank] {
                if !has_ended(entry) {
                    continue;
                }
                let limit = *restart_limit.get_or_insert_with(|| Deadline::after(restart_timeout));
                match entry_of(rank) {
                    Some(now) if now.nonce != entry.nonce => {
                        self.arrivals[rank] = Arrival::Arrived { entry: now, restart_limit: None };
                    }
                    _ if limit.has_passed() => return Some(death_error(rank, entry)),
                    _ => {}
                }
            } else if lookups > 0 {
                lookups -= 1;
                self.next_lookup = (rank + 1) % size;
                self.look_up(rank, entry_of(rank), is_first);
            }
        }
        None
    }

    /// Returns whether this entry is from a process that lived, or had not arrived yet, when the
    /// watch began.
    fn saw_arrival(&self, rank: Rank, entry: &RendezvousEntry) -> bool {
        !self.is_first_call && !self.is_known_stale(rank, entry)
    }

    fn is_known_stale(&self, rank: Rank, entry: &RendezvousEntry) -> bool {
        matches!(&self.arrivals[rank], Arrival::Stale(nonce) if *nonce == entry.nonce)
    }

    /// Records the entry of a rank that has not arrived so far.
    fn look_up(&mut self, rank: Rank, entry: Option<RendezvousEntry>, is_first: bool) {
        let Some(entry) = entry else { return };
        if self.is_known_stale(rank, &entry) {
            return;
        }
        self.arrivals[rank] = match is_first && has_ended(&entry) {
            true => Arrival::Stale(entry.nonce),
            false => Arrival::Arrived { entry, restart_limit: None },
        };
    }

    /// Returns the ranks that have arrived, for a refusal.
    pub(super) fn arrived_peers(&self) -> Vec<RendezvousPeer> {
        let entries = self.arrivals.iter().filter_map(|arrival| match arrival {
            Arrival::Arrived { entry, .. } => Some(entry.clone()),
            _ => None,
        });
        entries.map(RendezvousPeer::new).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(nonce: u8, process_key: &str) -> RendezvousEntry {
        RendezvousEntry {
            nonce: Nonce([nonce; 16]),
            size: 3,
            security: "none".into(),
            version: "1".into(),
            process: "p".into(),
            process_key: process_key.into(),
        }
    }

    /// The key of a process that has ended: it has the id of this process and another start time.
    fn ended_key() -> String {
        let own_key = this_process::process_key();
        let mut parts = own_key.splitn(3, '/');
        let (pid, namespace) = (parts.next().unwrap(), parts.nth(1).unwrap());
        format!("{pid}/1/{namespace}")
    }

    fn watch() -> ArrivalWatch {
        ArrivalWatch { restart_timeout: Duration::ZERO, ..ArrivalWatch::new(3) }
    }

    #[test]
    fn death_of_an_arrived_rank_is_reported() {
        let (own, ended) = (this_process::process_key(), ended_key());
        let mut watch = watch();
        assert!(watch.find_death(|rank| (rank == 1).then(|| entry(1, &own))).is_none());
        assert_eq!(watch.arrived_peers().len(), 1);
        // A rank that arrives and ends between two calls.
        assert!(watch.find_death(|rank| (rank == 2).then(|| entry(7, &ended))).is_none());
        let error = watch.find_death(|_| None).unwrap();
        assert_eq!((error.kind(), error.culprit()), (ErrorKind::PeerFailed, Some(2)), "{error}");
    }

    #[test]
    fn death_between_arrival_and_confirmation_is_reported() {
        let ended = ended_key();
        let death = |arrivals: &ArrivalWatch| {
            let entries = [(1, entry(1, &ended))].into_iter();
            LivenessWatch::begin_after(arrivals, entries).find_death()
        };
        // Rank 0 has not looked, so the entry may be stale.
        let mut arrivals = watch();
        assert!(death(&arrivals).is_none());
        assert!(arrivals.find_death(|_| None).is_none());
        assert_eq!(death(&arrivals).unwrap().culprit(), Some(1));
        // The entry is older than the rendezvous.
        let mut arrivals = watch();
        assert!(arrivals.find_death(|rank| (rank == 1).then(|| entry(1, &ended))).is_none());
        assert!(death(&arrivals).is_none());
    }

    #[test]
    fn stale_and_replaced_entries_are_no_deaths() {
        let (own, ended) = (this_process::process_key(), ended_key());
        let mut watch = watch();
        let stale = |rank: Rank| (rank == 2).then(|| entry(9, &ended));
        (0..3).for_each(|_| assert!(watch.find_death(stale).is_none()));
        assert!(watch.arrived_peers().is_empty());
        // The process that had written the entry ends, and another one replaces it.
        assert!(watch.find_death(|rank| (rank == 1).then(|| entry(1, &ended))).is_none());
        assert!(watch.find_death(|rank| (rank == 1).then(|| entry(2, &own))).is_none());
        assert!(watch.find_death(|_| None).is_none());
    }
}
