//! Rendezvous: the ranks of a new group meet in a store and agree on the group's id.
//!
//! A restarted job may find the keys of its previous attempt in the store. Therefore no rank relies
//! on a key with a fixed name alone. The steps are:
//!
//! 1. Each rank writes an entry with a new random number (nonce) under `rank/<r>`.
//! 2. Rank 0 waits for the entries of all ranks, generates a new group id, and offers the id to
//!    each rank, under a key with the nonce of the rank's entry.
//! 3. A rank that finds an offer under its own nonce writes a confirmation under
//!    `<id>/confirm/<r>`.
//! 4. When all ranks have confirmed, rank 0 writes the verdict `go` for each nonce. The group is
//!    formed.
//!    A rank that dies after its offer ends the attempt. If it dies before, it may be started
//!    again within some seconds.
//! 5. If an entry changes while rank 0 waits for the confirmations, the old entry was stale (from
//!    an earlier attempt), and the current process of this rank has now arrived. Rank 0 writes the
//!    verdict `again` for each nonce, and all ranks continue at step 2.
//!
//! After the verdict `go`, the members use only keys with the group's id. The offers and verdicts
//! for a nonce are numbered from 0. A common number for all ranks would not work, because a late
//! rank does not know how many offers rank 0 has made before.
//!
//! The keys, all under `dist/<group>/`:
//!
//! | key | written by | content |
//! |---|---|---|
//! | `rank/<r>` | rank r | its entry |
//! | `offer/<nonce>/<count>` | rank 0 | the group id, or `error`, a kind's number and a text |
//! | `verdict/<nonce>/<count>` | rank 0 | `go`, `again`, or a refusal |
//! | `heard/<nonce>` | the rank with the nonce | acknowledges a refusal |
//! | `<id>/confirm/<r>` | rank r | confirms the offer of the id |
//! | `<id>/<phase>/<r>` | rank r | its contribution to a phase of the bootstrap exchange |
//! | `<id>/failures` | each rank that fails | the number of failed ranks |
//! | `<id>/failure` | the first rank that fails | the reason |
//! | `<id>/failures/all` | the last rank that fails | all ranks have failed |
//!
//! The protocol uses only the store operations set, get, add, wait, check, multi_set and multi_get.

mod entry;
mod exchange;
mod key_wait;
mod liveness;
pub mod status;
#[cfg(test)]
mod tests;
mod wait_reports;

pub use exchange::StoreExchange;

use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank, WorldSize};
use crate::base::log::LogLevel;
use crate::process::this_process;
use crate::security::SecuritySetting;
use crate::store::Store;
use crate::wait::slow_wait::DisplaySeconds;
use entry::{
    RendezvousEntry, RendezvousPeer, check_all_entries, check_security, check_sizes,
    decode_failure, encode_failure, format_ranks,
};
use key_wait::KeyWait;
pub use liveness::LostMemberFn;
use liveness::{ArrivalWatch, LivenessWatch, has_ended};
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

/// The time of the first wait in the store. Each further wait takes twice as long as the one
/// before.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum time of one wait in the store. Between two waits, a rank checks whether an entry has
/// changed, so it notices a stale entry at most this time after the change.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum time for which rank 0 waits until all ranks have acknowledged its refusal. Rank 0
/// may host the store, and the store may end with its process. Also the timeout of other short
/// accesses to the store.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// The time after the deadline in which a rank may still look up the missing ranks and report its
/// error.
const REPORT_GRACE: Duration = Duration::from_secs(3);

/// The action that the awaited ranks must perform, in words.
#[derive(Clone, Copy)]
struct WaitDescription<'a> {
    /// The infinitive, for error texts: "join".
    action: &'a str,
    /// The participle, for log texts: "joined".
    completed: &'a str,
}

const JOIN: WaitDescription<'static> = WaitDescription { action: "join", completed: "joined" };
const CONFIRM: WaitDescription<'static> = WaitDescription {
    action: "confirm that they participate",
    completed: "confirmed that they participate",
};

/// The start of a refusal. The number of the error's kind and the text follow.
const REFUSAL: &str = "error ";
/// The verdict that the group is formed.
const GO: &[u8] = b"go";
/// The verdict that the ranks must wait for another offer.
const RETRY: &[u8] = b"again";

/// The arguments of one rank for a rendezvous.
#[derive(Debug)]
pub struct Rendezvous<'a> {
    /// The store through which the ranks find each other.
    pub store: Arc<dyn Store>,
    /// The group's name, equal on all ranks.
    pub name: &'a str,
    /// This process's rank.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// The security setting of this process.
    pub security: SecuritySetting,
    /// The reason why this process cannot use its security setting. If all ranks have this setting,
    /// rank 0 refuses the group for its reason.
    pub problem: Option<Error>,
    /// The nonce (random number) of this process for this rendezvous. No other process or attempt
    /// uses the same nonce.
    pub nonce: Nonce,
    /// The process id and the host, for error texts of other processes.
    pub process: String,
    /// The deadline for the creation of the group.
    pub deadline: &'a Deadline,
    /// Finds a member whose death is known outside of the rendezvous.
    pub find_lost_member: LostMemberFn<'a>,
}

impl Rendezvous<'_> {
    /// Runs the rendezvous with the other ranks and returns the id of the group.
    ///
    /// # Errors
    /// `Timeout`, which names the missing ranks; `Mismatch` if ranks have different world sizes or
    /// versions; `InvalidArgument` if two processes have the same rank; `Connection`.
    pub fn meet(&self) -> Result<GroupId> {
        let entry = RendezvousEntry {
            nonce: self.nonce,
            size: self.size,
            security: self.security.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: self.process.clone(),
            process_key: this_process::process_key(),
        };
        self.store.set(self.rank_key(self.rank).as_bytes(), &entry.encode(), self.deadline)?;
        if self.rank == 0 { self.run_coordinator() } else { self.run_member() }
    }

    /// Runs the protocol as rank 0.
    fn run_coordinator(&self) -> Result<GroupId> {
        let mut arrivals = ArrivalWatch::new(self.size);
        let entries = self.read_entries(&mut arrivals).map_err(|error| match error.kind() {
            ErrorKind::PeerFailed => self.refuse(&arrivals.arrived_peers(), error),
            _ => error,
        });
        let mut peers: Vec<RendezvousPeer> =
            entries?.into_iter().map(RendezvousPeer::new).collect();
        loop {
            self.check_versions(&peers).map_err(|error| self.refuse(&peers, error))?;
            let id = this_process::random_nonce()?;
            self.publish(&peers, "offer", id.to_string().as_bytes())?;
            self.store.set(confirm_key(self, id, 0).as_bytes(), b"", self.deadline)?;
            let gathered = self.gather_confirmations(id, &peers, &arrivals).map_err(|error| {
                let is_death = error.kind() == ErrorKind::PeerFailed;
                if is_death { self.refuse(&peers, error) } else { error }
            });
            match gathered? {
                None => {
                    // Sizes and settings are checked only now, because only the confirmations prove
                    // that no entry is stale. A stale entry may have those of an earlier job.
                    check_sizes(&peers, self.size)
                        .and_then(|()| check_security(&peers, self.security))
                        .and_then(|()| self.problem.clone().map_or(Ok(()), Err))
                        .map_err(|error| self.refuse(&peers, error))?;
                    self.publish(&peers, "verdict", GO)?;
                    return Ok(id);
                }
                Some(changed) => {
                    crate::log!(LogLevel::Info, "group {}: a rank joined again", self.name);
                    self.publish(&peers, "verdict", RETRY)?;
                    for (peer, entry) in peers.iter_mut().zip(changed) {
                        peer.update(entry);
                    }
                }
            }
        }
    }

    /// Waits until all ranks have confirmed. If an entry changes during the wait, returns the
    /// current entries; otherwise returns `None`.
    fn gather_confirmations(
        &self,
        id: GroupId,
        peers: &[RendezvousPeer],
        arrivals: &ArrivalWatch,
    ) -> Result<Option<Vec<RendezvousEntry>>> {
        let keys: Vec<String> = (0..self.size).map(|rank| confirm_key(self, id, rank)).collect();
        let mut changed = None;
        let entries = peers.iter().map(|peer| peer.entry.clone()).enumerate();
        let liveness = LivenessWatch::begin_after(arrivals, entries.skip(1));
        self.wait_for_ranks(&keys, CONFIRM, || {
            let now = self.read_entries(&mut ArrivalWatch::new(self.size))?;
            let has_changed = peers.iter().map(|peer| &peer.entry).ne(&now);
            changed = has_changed.then_some(now);
            let find_death = || liveness.find_death().or_else(|| self.find_lost_member.call());
            let death = if has_changed { None } else { find_death() };
            death.map_or(Ok(has_changed), Err)
        })?;
        Ok(changed)
    }

    /// Runs the protocol on a rank other than 0.
    fn run_member(&self) -> Result<GroupId> {
        for count in 0.. {
            let offer = self.await_coordinator_key("offer", count, &self.rank_keys(), JOIN)?;
            let id = std::str::from_utf8(&offer).ok().and_then(Nonce::parse);
            match id {
                Some(id) => {
                    let key = confirm_key(self, id, self.rank);
                    self.store.set(key.as_bytes(), b"", self.deadline)?;
                    let keys: Vec<_> =
                        (0..self.size).map(|rank| confirm_key(self, id, rank)).collect();
                    let verdict = self.await_coordinator_key("verdict", count, &keys, CONFIRM)?;
                    match verdict.as_slice() {
                        GO => return Ok(id),
                        RETRY => {}
                        refusal => return Err(self.refusal_error(refusal)),
                    }
                }
                None => return Err(self.refusal_error(&offer)),
            }
        }
        Err(Error::internal("a rendezvous has no further offer numbers"))
    }

    /// Acknowledges a refusal of rank 0 in the store. Returns the error for the text of the
    /// refusal.
    fn refusal_error(&self, bytes: &[u8]) -> Error {
        let ack_key = self.ack_key(self.nonce);
        if let Err(error) =
            self.store.set(ack_key.as_bytes(), b"", &self.deadline.capped(ACK_TIMEOUT))
        {
            crate::log!(LogLevel::Info, "cannot acknowledge the refusal of rank 0: {error}");
        }
        let text = String::from_utf8_lossy(bytes);
        let (kind, text) = decode_failure(text.strip_prefix(REFUSAL).unwrap_or(&text));
        Error::new(kind, format!("rank 0 refuses the group: {text}"))
    }

    /// Waits for an offer or verdict (`what`) that rank 0 writes for this rank's nonce, and returns
    /// the value. Rank 0 writes it when all ranks have written their keys, which are in `keys`. If
    /// the wait times out, the error names the ranks whose keys are missing.
    fn await_coordinator_key(
        &self,
        what: &str,
        count: u64,
        keys: &[String],
        wait_for: WaitDescription<'_>,
    ) -> Result<Vec<u8>> {
        let key = self.nonce_key(what, self.nonce, count);
        let rank_0 = OnceCell::new();
        let watch_rank_0 = || LivenessWatch::begin(self.entry_of(0).map(|it| (0, it)).into_iter());
        self.wait_for_keys(&[&key], |due_report| {
            self.check_not_replaced()?;
            let watch: &LivenessWatch = rank_0.get_or_init(watch_rank_0);
            let death = watch.find_death().or_else(|| self.find_lost_member.call());
            death.map_or(Ok(()), Err)?;
            due_report.into_iter().for_each(|waited| self.log_wait_for_rank_0(waited));
            Ok(false)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                let absent = self.absent_ranks(keys).unwrap_or_default();
                let (ranks, completed) = (format_ranks(&absent, |_| None), wait_for.completed);
                let missing = match absent.len() {
                    0 => String::new(),
                    1 => format!("{ranks} has not {completed}; "),
                    _ => format!("{ranks} have not {completed}; "),
                };
                error.context(format_args!(
                    "rank {} of group {}: {missing}rank 0 has published no {what} within {} ms \
                     (has rank 0 started, does it use the same store, was the group already \
                     created without this process?)",
                    self.rank,
                    self.name,
                    self.deadline.elapsed().as_millis()
                ))
            }
            _ => error,
        })?;
        self.store.get(key.as_bytes(), self.deadline)
    }

    /// Checks that no second process has the same rank. A second process overwrites the entry of
    /// this rank. The first process, whose entry was overwritten, gets the error.
    fn check_not_replaced(&self) -> Result<()> {
        let bytes = self.store.get(self.rank_key(self.rank).as_bytes(), self.deadline)?;
        let entry = RendezvousEntry::decode(self.rank, &bytes)?;
        if entry.nonce == self.nonce {
            return Ok(());
        }
        let message = format!(
            "rank {} of group {} was taken by another process ({}): two processes have the same rank",
            self.rank, self.name, entry.process
        );
        Err(Error::new(ErrorKind::InvalidArgument, message).with_culprit(self.rank))
    }

    /// Waits until all ranks have published an entry, and returns the entries.
    ///
    /// # Errors
    /// `PeerFailed` if a rank has died before the last one has arrived; `Timeout`, `Connection`.
    fn read_entries(&self, arrivals: &mut ArrivalWatch) -> Result<Vec<RendezvousEntry>> {
        let keys = self.rank_keys();
        self.wait_for_ranks(&keys, JOIN, || {
            let death = arrivals.find_death(|rank| self.entry_of(rank));
            death.or_else(|| self.find_lost_member.call()).map_or(Ok(false), Err)
        })?;
        let values = self.store.multi_get(&as_bytes(&keys), self.deadline)?;
        values
            .iter()
            .enumerate()
            .map(|(rank, bytes)| RendezvousEntry::decode(rank, bytes))
            .collect()
    }

    /// Checks on rank 0 that all ranks run the same version. Called before an offer, because a rank
    /// of another version may not understand the offer.
    fn check_versions(&self, peers: &[RendezvousPeer]) -> Result<()> {
        if peers[0].entry.nonce != self.nonce {
            return self.check_not_replaced();
        }
        let own_version = env!("CARGO_PKG_VERSION");
        check_all_entries(peers, ErrorKind::Mismatch, |entry| {
            (entry.version != own_version)
                .then(|| format!("runs libdist {}, but rank 0 runs {own_version}", entry.version))
        })
    }

    /// Publishes a refusal to all ranks on rank 0, and waits up to [`ACK_TIMEOUT`] for their
    /// acknowledgements, because the store may end with this process. Returns the error.
    fn refuse(&self, peers: &[RendezvousPeer], error: Error) -> Error {
        let text = format!("{REFUSAL}{}", encode_failure(&error));
        // The refusal is written both as an offer and as a verdict, because a rank may wait for
        // either.
        let publish = |what| self.publish(peers, what, text.as_bytes());
        // A dead rank acknowledges nothing.
        let answers =
            |peer: &&RendezvousPeer| peer.entry.nonce != self.nonce && !has_ended(&peer.entry);
        let ack_keys: Vec<String> =
            peers.iter().filter(answers).map(|peer| self.ack_key(peer.entry.nonce)).collect();
        let published = publish("offer").and_then(|()| publish("verdict")).and_then(|()| {
            self.store.wait(&as_bytes(&ack_keys), &self.deadline.capped(ACK_TIMEOUT))
        });
        if let Err(cause) = published {
            crate::log!(
                LogLevel::Info,
                "not all ranks acknowledged the refusal of the group: {cause}"
            );
        }
        error
    }

    /// Writes an offer or verdict (`what`) for the nonce of each rank.
    fn publish(&self, peers: &[RendezvousPeer], what: &str, value: &[u8]) -> Result<()> {
        let key = |peer: &RendezvousPeer| self.nonce_key(what, peer.entry.nonce, peer.prior_offers);
        let keys: Vec<String> = peers.iter().map(key).collect();
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), value)).collect();
        self.store.multi_set(&pairs, self.deadline)
    }

    /// Waits until the key of every rank exists. `keys` has one key for each rank. Calls `on_poll`
    /// periodically, and ends the wait early if `on_poll` returns true.
    fn wait_for_ranks(
        &self,
        keys: &[String],
        wait_for: WaitDescription<'_>,
        mut on_poll: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
        let outcome = self.wait_for_keys(&borrowed, |due_report| {
            if let Some(waited) = due_report {
                self.log_wait(&self.absent_ranks(keys).unwrap_or_default(), wait_for, waited);
            }
            on_poll()
        });
        outcome.map_err(|error| match error.kind() {
            ErrorKind::Timeout => self.absence_error(keys, wait_for),
            _ => error,
        })
    }

    /// Waits until the keys exist, in several waits of at most [`MAX_POLL_INTERVAL`]. Calls
    /// `on_poll` after each of these waits, and ends early if it returns true. If a log line about
    /// a long wait is due, the argument of `on_poll` is the time waited so far.
    fn wait_for_keys(
        &self,
        keys: &[&str],
        mut on_poll: impl FnMut(Option<DisplaySeconds>) -> Result<bool>,
    ) -> Result<()> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        // The reply confirms what this rank has set before. On a busy host, the server may need
        // seconds for it, and a short wait would give up and count the values as lost.
        if self.store.check(&keys, self.deadline)? {
            return Ok(());
        }
        let mut last_report = self.deadline.elapsed();
        let mut slice = FIRST_POLL_INTERVAL;
        let key_wait = KeyWait::begin(self.store.as_ref(), &keys, self.deadline);
        loop {
            if key_wait.wait(slice)? {
                return Ok(());
            }
            slice = (slice * 2).min(MAX_POLL_INTERVAL);
            let waited = self.deadline.elapsed();
            let is_due =
                debug::slow_wait_threshold().is_some_and(|every| waited - last_report >= every);
            if is_due {
                last_report = waited;
            }
            if on_poll(is_due.then_some(DisplaySeconds(waited)))? {
                return Ok(());
            }
        }
    }

    /// Returns the entry of a rank, if the rank has arrived.
    fn entry_of(&self, rank: Rank) -> Option<RendezvousEntry> {
        let (key, limit) = (self.rank_key(rank), Deadline::after(ACK_TIMEOUT));
        let is_here = self.store.check(&[key.as_bytes()], &limit).ok()?;
        let bytes = is_here.then(|| self.store.get(key.as_bytes(), &limit).ok())??;
        RendezvousEntry::decode(rank, &bytes).ok()
    }

    /// Returns the ranks whose keys are missing in the store. `keys` has one key for each rank.
    fn absent_ranks(&self, keys: &[String]) -> Result<Vec<Rank>> {
        let grace = self.report_deadline();
        let mut absent = Vec::new();
        for (rank, key) in keys.iter().enumerate() {
            if !self.store.check(&[key.as_bytes()], &grace)? {
                absent.push(rank);
            }
        }
        Ok(absent)
    }

    /// Returns the deadline for the report of an error, which is [`REPORT_GRACE`] after the
    /// deadline of the rendezvous.
    fn report_deadline(&self) -> Deadline {
        let overrun = self.deadline.elapsed().saturating_sub(self.deadline.timeout());
        Deadline::after(self.deadline.remaining() + REPORT_GRACE.saturating_sub(overrun))
    }

    fn rank_keys(&self) -> Vec<String> {
        (0..self.size).map(|rank| self.rank_key(rank)).collect()
    }

    fn rank_key(&self, rank: Rank) -> String {
        format!("dist/{}/rank/{rank}", self.name)
    }

    fn nonce_key(&self, what: &str, nonce: Nonce, count: u64) -> String {
        format!("dist/{}/{what}/{nonce}/{count}", self.name)
    }

    fn ack_key(&self, nonce: Nonce) -> String {
        format!("dist/{}/heard/{nonce}", self.name)
    }
}

fn confirm_key(rendezvous: &Rendezvous<'_>, id: GroupId, rank: Rank) -> String {
    format!("dist/{}/{id}/confirm/{rank}", rendezvous.name)
}

fn as_bytes(keys: &[String]) -> Vec<&[u8]> {
    keys.iter().map(String::as_bytes).collect()
}
