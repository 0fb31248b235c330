//! Bootstrap exchange through the store, for the ranks of a group that have completed their
//! rendezvous. In each phase, every rank writes its contribution under a key with the group's id,
//! and reads the contributions of all ranks.

use super::entry::{decode_failure, encode_failure};
use super::{ACK_TIMEOUT, Rendezvous, WaitDescription, as_bytes, liveness};
use crate::api::membership::bootstrap::log_unreported_failure;
use crate::backend::BootstrapExchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Rank};
use std::time::Duration;

/// The time after which a rank checks whether the processes of the ranks that it waits for live.
const LIVENESS_CHECK_DELAY: Duration = Duration::from_millis(100);

/// The maximum number of ranks whose processes are checked at a time.
const MAX_CHECKED_RANKS: usize = 64;

/// The bootstrap exchange between the members of a group through the store.
#[derive(Debug)]
pub struct StoreExchange<'a> {
    /// The completed rendezvous of this rank.
    pub rendezvous: &'a Rendezvous<'a>,
    /// The group's id.
    pub id: GroupId,
}

impl StoreExchange<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("dist/{}/{}/{suffix}", self.rendezvous.name, self.id)
    }

    /// Returns the error about a rank of this host that has died before it has written its key.
    /// `keys` has one key for each rank. The other hosts learn of it by the published failure.
    fn find_death(&self, keys: &[String]) -> Option<Error> {
        let absent = self.rendezvous.absent_ranks(keys).ok()?;
        absent.into_iter().take(MAX_CHECKED_RANKS).find_map(|rank| self.death_of(rank))
    }
}

impl BootstrapExchange for StoreExchange<'_> {
    fn all_gather(
        &self,
        phase: &str,
        mine: &[u8],
        over: &dyn Fn() -> Option<Error>,
    ) -> Result<Vec<Vec<u8>>> {
        let Rendezvous { store, rank, size, deadline, .. } = self.rendezvous;
        let key = |rank: Rank| self.key(&format!("{phase}/{rank}"));
        store.set(key(*rank).as_bytes(), mine, deadline)?;
        let keys: Vec<String> = (0..*size).map(key).collect();
        let to = format!("finish the phase \"{phase}\" of the creation of the group");
        let not_yet = format!("finished the phase \"{phase}\" of its creation");
        let wait_for = WaitDescription { action: &to, completed: &not_yet };
        let began = Deadline::never();
        self.rendezvous.wait_for_ranks(&keys, wait_for, || {
            let lost_member = || self.rendezvous.find_lost_member.call();
            let failure = over().or_else(|| self.peer_failure()).or_else(lost_member);
            let is_late = began.elapsed() >= LIVENESS_CHECK_DELAY;
            let failure = failure.or_else(|| is_late.then(|| self.find_death(&keys)).flatten());
            failure.map_or(Ok(false), Err)
        })?;
        store.multi_get(&as_bytes(&keys), deadline)
    }

    fn publish_failure(&self, reason: &Error) {
        let Rendezvous { store, rank, size, process, .. } = self.rendezvous;
        // The report may take some time after the deadline, because the reason may be that the
        // deadline has passed.
        let limit = self.rendezvous.report_deadline().capped(5 * ACK_TIMEOUT);
        // The other ranks keep the kind `Auth`, because the cause may be their own secret.
        let kind = match reason.kind() {
            ErrorKind::Auth => ErrorKind::Auth,
            _ => ErrorKind::PeerFailed,
        };
        let text = format!("rank {rank} ({process}) failed to create the group: {reason}");
        let text = encode_failure(&Error::new(kind, text));
        let publish_failure = || {
            let count = store.add(self.key("failures").as_bytes(), 1, &limit)?;
            if count == 1 {
                store.set(self.key("failure").as_bytes(), text.as_bytes(), &limit)?;
            }
            let acks_key = self.key("failures/all");
            if usize::try_from(count) == Ok(*size) {
                store.set(acks_key.as_bytes(), b"", &limit)
            } else if *rank == 0 {
                // Rank 0 may host the store, and the other ranks must read the reason from the
                // store. So rank 0 waits until all ranks have counted themselves as failed.
                store.wait(&[acks_key.as_bytes()], &limit.capped(ACK_TIMEOUT))
            } else {
                Ok(())
            }
        };
        if let Err(error) = publish_failure() {
            log_unreported_failure(&error);
        }
    }

    fn death_of(&self, rank: Rank) -> Option<Error> {
        let entry = self.rendezvous.entry_of(rank).filter(liveness::has_ended)?;
        Some(liveness::death_error(rank, &entry))
    }

    fn peer_failure(&self) -> Option<Error> {
        let store = &self.rendezvous.store;
        let (key, limit) = (self.key("failure"), Deadline::after(ACK_TIMEOUT));
        if !store.check(&[key.as_bytes()], &limit).ok()? {
            return None;
        }
        let text = store.get(key.as_bytes(), &limit).ok()?;
        let text = String::from_utf8_lossy(&text);
        let (kind, text) = decode_failure(&text);
        Some(Error::new(kind, text))
    }
}
