//! How the ranks of a group find each other through a store, and tell this attempt from every
//! earlier one.
//!
//! A restarted job may find the keys of the attempt before in its store, so nothing is read under a
//! fixed key alone. Each rank publishes a fresh nonce under its rank. Rank 0 makes a fresh group id
//! and offers it to each nonce; a rank that finds an offer for its own nonce confirms under the id;
//! when all have confirmed, rank 0 tells each nonce to go. If a nonce changes meanwhile (it was a
//! leftover, and its rank has now come), rank 0 calls the attempt off and offers anew. From then on
//! members read only keys under the id. Offers are counted for each nonce, since a rank that comes
//! late does not know how many there were before.
//!
//! Keys, under `dist/<group>/`: `rank/<r>`, `offer/<nonce>/<count>`, `verdict/<nonce>/<count>`,
//! `heard/<nonce>`, `<id>/confirm/<r>`, `<id>/<phase>/<r>`, `<id>/failures`, `<id>/failure`. Only
//! set, get, add, wait, check and their batch forms are used.

mod entry;
mod exchange;
pub mod status;
#[cfg(test)]
mod tests;

pub use exchange::StoreExchange;

use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank, WorldSize};
use crate::base::log::LogLevel;
use crate::process::this_process;
use crate::store::Store;
use crate::wait::slow_wait::DisplaySeconds;
use entry::{RendezvousEntry, RendezvousPeer, check_all_entries};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait in one go before looking around, at first and later; so soon is a leftover
/// nonce noticed.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long rank 0, which may host the store, waits until all have heard that it refuses the group.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a rank may take, once its deadline has passed, to find out who is missing and to tell
/// others.
const REPORT_GRACE: Duration = Duration::from_secs(3);

/// How many ranks a message names.
const MAX_RANKS_LISTED: usize = 8;

/// What ranks are waited for to do, in the words of an error, and have not done yet, in those of
/// the log.
#[derive(Clone, Copy)]
struct WaitDescription<'a> {
    action: &'a str,
    completed: &'a str,
}

const JOIN: WaitDescription<'static> = WaitDescription { action: "come", completed: "joined" };
const CONFIRM: WaitDescription<'static> = WaitDescription {
    action: "confirm that they take part",
    completed: "confirmed that they take part in it",
};

const GO: &[u8] = b"go";
const RETRY: &[u8] = b"again";

/// What a rank needs to take part.
#[derive(Debug)]
pub struct Rendezvous<'a> {
    /// Where the ranks meet.
    pub store: Arc<dyn Store>,
    /// The group's name; all ranks use the same.
    pub name: &'a str,
    /// This process's rank.
    pub rank: Rank,
    /// The number of ranks.
    pub size: WorldSize,
    /// This rank's fresh nonce.
    pub nonce: Nonce,
    /// Process id and host, for the message to somebody who comes under the same rank.
    pub process: String,
    /// When the group must have formed.
    pub deadline: &'a Deadline,
}

impl Rendezvous<'_> {
    /// Comes together with the other ranks; returns the id of the group.
    ///
    /// # Errors
    /// `Timeout` naming the ranks that did not come, `Mismatch` where ranks disagree about the
    /// world size or the version, `InvalidArgument` where two processes have the same rank,
    /// `Connection`.
    pub fn meet(&self) -> Result<GroupId> {
        let entry = RendezvousEntry {
            nonce: self.nonce,
            size: self.size,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: self.process.clone(),
        };
        self.store.set(self.rank_key(self.rank).as_bytes(), &entry.encode(), self.deadline)?;
        if self.rank == 0 { self.run_coordinator() } else { self.run_member() }
    }

    /// The part of rank 0.
    fn run_coordinator(&self) -> Result<GroupId> {
        let mut peers: Vec<RendezvousPeer> =
            self.read_entries()?.into_iter().map(RendezvousPeer::new).collect();
        loop {
            self.check_versions(&peers).map_err(|error| self.refuse(&peers, error))?;
            let id = this_process::random_nonce()?;
            self.publish(&peers, "offer", id.to_string().as_bytes())?;
            self.store.set(confirm_key(self, id, 0).as_bytes(), b"", self.deadline)?;
            match self.gather_confirmations(id, &peers)? {
                None => {
                    // Only now is it certain that no entry is a leftover.
                    self.check_sizes(&peers).map_err(|error| self.refuse(&peers, error))?;
                    self.publish(&peers, "verdict", GO)?;
                    return Ok(id);
                }
                Some(changed) => {
                    crate::log!(LogLevel::Info, "group {}: a rank has come anew", self.name);
                    self.publish(&peers, "verdict", RETRY)?;
                    for (peer, entry) in peers.iter_mut().zip(changed) {
                        peer.update(entry);
                    }
                }
            }
        }
    }

    /// Waits until all have confirmed; the entries as they are now, where one has changed
    /// meanwhile.
    fn gather_confirmations(
        &self,
        id: GroupId,
        peers: &[RendezvousPeer],
    ) -> Result<Option<Vec<RendezvousEntry>>> {
        let keys: Vec<String> = (0..self.size).map(|rank| confirm_key(self, id, rank)).collect();
        let mut changed = None;
        self.wait_for_ranks(&keys, CONFIRM, || {
            let now = self.read_entries()?;
            let has_changed = peers.iter().map(|peer| &peer.entry).ne(&now);
            changed = has_changed.then_some(now);
            Ok(has_changed)
        })?;
        Ok(changed)
    }

    /// The part of every other rank.
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
        Err(Error::internal("the offers of a rendezvous have run out"))
    }

    /// What rank 0 has answered instead of an offer; says that it was heard.
    fn refusal_error(&self, bytes: &[u8]) -> Error {
        let ack_key = self.ack_key(self.nonce);
        if let Err(error) =
            self.store.set(ack_key.as_bytes(), b"", &self.deadline.capped(ACK_TIMEOUT))
        {
            crate::log!(LogLevel::Info, "answering the refusal of rank 0: {error}");
        }
        let text = String::from_utf8_lossy(bytes);
        let text = text.strip_prefix("error ").unwrap_or(&text);
        Error::new(ErrorKind::Mismatch, format!("rank 0 refuses the group: {text}"))
    }

    /// Waits for what rank 0 writes for this rank's nonce, once all ranks have written `keys`.
    fn await_coordinator_key(
        &self,
        what: &str,
        count: u64,
        keys: &[String],
        wait_for: WaitDescription<'_>,
    ) -> Result<Vec<u8>> {
        let key = self.nonce_key(what, self.nonce, count);
        self.wait_for_keys(&[&key], |due_report| {
            self.check_not_replaced()?;
            due_report.into_iter().for_each(|lasted| self.log_wait_for_rank_0(lasted));
            Ok(false)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                let absent = self.absent_ranks(keys).unwrap_or_default();
                let missing = match absent.as_slice() {
                    [] => String::new(),
                    [_] => format!("{} has not {}; ", format_ranks(&absent, |_| None), wait_for.completed),
                    _ => format!("{} have not {}; ", format_ranks(&absent, |_| None), wait_for.completed),
                };
                error.context(format_args!(
                    "rank {} of group {}: {missing}rank 0 has made no {what} within {} ms (has it started, does it \
                     use the same store, has the group formed already without this process?)",
                    self.rank,
                    self.name,
                    self.deadline.elapsed().as_millis()
                ))
            }
            _ => error,
        })?;
        self.store.get(key.as_bytes(), self.deadline)
    }

    /// Two processes with one rank: the first finds the second's entry in place of its own.
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

    /// What all ranks have published; waits for those that have not come yet.
    fn read_entries(&self) -> Result<Vec<RendezvousEntry>> {
        let keys = self.rank_keys();
        self.wait_for_ranks(&keys, JOIN, || Ok(false))?;
        let values = self.store.multi_get(&as_bytes(&keys), self.deadline)?;
        values
            .iter()
            .enumerate()
            .map(|(rank, bytes)| RendezvousEntry::decode(rank, bytes))
            .collect()
    }

    /// What rank 0 checks before it offers. Ranks of another version may not understand an offer.
    fn check_versions(&self, peers: &[RendezvousPeer]) -> Result<()> {
        if peers[0].entry.nonce != self.nonce {
            return self.check_not_replaced();
        }
        let own_version = env!("CARGO_PKG_VERSION");
        check_all_entries(peers, |entry| {
            (entry.version != own_version)
                .then(|| format!("runs libdist {}, but rank 0 {own_version}", entry.version))
        })
    }

    /// What rank 0 checks once all have confirmed.
    fn check_sizes(&self, peers: &[RendezvousPeer]) -> Result<()> {
        check_all_entries(peers, |RendezvousEntry { size, .. }| {
            let message = || format!("was told a world size of {size}, but rank 0 {}", self.size);
            (*size != self.size).then(message)
        })
    }

    /// Tells all why there will be no group, and gives them a moment to hear it: the store may end
    /// with this process.
    fn refuse(&self, peers: &[RendezvousPeer], error: Error) -> Error {
        let text = format!("error {error}");
        // Also as an offer: whoever still waits for one reads it there.
        let publish = |what| self.publish(peers, what, text.as_bytes());
        let ack_keys: Vec<String> =
            peers[1..].iter().map(|peer| self.ack_key(peer.entry.nonce)).collect();
        let published = publish("offer").and_then(|()| publish("verdict")).and_then(|()| {
            self.store.wait(&as_bytes(&ack_keys), &self.deadline.capped(ACK_TIMEOUT))
        });
        if let Err(cause) = published {
            crate::log!(LogLevel::Info, "not all ranks have heard why there is no group: {cause}");
        }
        error
    }

    fn publish(&self, peers: &[RendezvousPeer], what: &str, value: &[u8]) -> Result<()> {
        let key = |peer: &RendezvousPeer| self.nonce_key(what, peer.entry.nonce, peer.prior_offers);
        let keys: Vec<String> = peers.iter().map(key).collect();
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), value)).collect();
        self.store.multi_set(&pairs, self.deadline)
    }

    /// Waits until there is a key for every rank. `on_poll` is called now and then and ends the
    /// wait by returning true.
    fn wait_for_ranks(
        &self,
        keys: &[String],
        wait_for: WaitDescription<'_>,
        mut on_poll: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
        let outcome = self.wait_for_keys(&borrowed, |due_report| {
            if let Some(lasted) = due_report {
                self.log_wait(&self.absent_ranks(keys).unwrap_or_default(), wait_for, lasted);
            }
            on_poll()
        });
        outcome.map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                let waited_ms = self.deadline.elapsed().as_millis();
                let (waited_for, store_state) = match self.absent_ranks(keys) {
                    Ok(absent) => (format_ranks(&absent, |_| None), String::new()),
                    Err(_) => {
                        let store = self.store.describe();
                        ("all ranks".to_owned(), format!("; {store} does not answer"))
                    }
                };
                let (rank, name, action) = (self.rank, self.name, wait_for.action);
                let message = format!(
                    "rank {rank} of group {name} waited {waited_ms} ms for {waited_for} to {action}{store_state}"
                );
                Error::new(ErrorKind::Timeout, message)
            }
            _ => error,
        })
    }

    /// Waits for keys, a slice at a time; `on_poll` ends the wait by returning true. Each time the
    /// wait has lasted for so long that it is to be told, it gets the time.
    fn wait_for_keys(
        &self,
        keys: &[&str],
        mut on_poll: impl FnMut(Option<DisplaySeconds>) -> Result<bool>,
    ) -> Result<()> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut last_report = self.deadline.elapsed();
        let mut slice = FIRST_POLL_INTERVAL;
        loop {
            match self.store.wait(&keys, &self.deadline.capped(slice)) {
                Err(error) if error.kind() == ErrorKind::Timeout && !self.deadline.has_passed() => {
                }
                outcome => return outcome,
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

    /// A long wait for rank 0, which mostly waits for others itself.
    #[cold]
    fn log_wait_for_rank_0(&self, lasted: DisplaySeconds) {
        let absent = self.absent_ranks(&self.rank_keys()).unwrap_or_default();
        match absent.is_empty() {
            false => self.log_wait(&absent, JOIN, lasted),
            true => {
                let name = self.name;
                crate::log!(LogLevel::Warn, "group {name}: rank 0 has not answered for {lasted}");
            }
        }
    }

    /// A long wait for some ranks, for the log.
    #[cold]
    fn log_wait(&self, ranks: &[Rank], wait_for: WaitDescription<'_>, lasted: DisplaySeconds) {
        if ranks.is_empty() {
            // The last one has just done it.
            return;
        }
        let address = self.store.address();
        let place =
            address.map_or_else(|| self.store.describe(), |(host, port)| format!("{host}:{port}"));
        crate::log!(
            LogLevel::Warn,
            "group {}: {} (of {}) {} not {} after {lasted}; the ranks meet at {place}",
            self.name,
            format_ranks(ranks, |rank| self.process_of(rank)),
            self.size,
            if ranks.len() > 1 { "have" } else { "has" },
            wait_for.completed
        );
    }

    /// The process and the host of a rank that has come.
    fn process_of(&self, rank: Rank) -> Option<String> {
        let (key, limit) = (self.rank_key(rank), Deadline::after(ACK_TIMEOUT));
        let is_here = self.store.check(&[key.as_bytes()], &limit).ok()?;
        let bytes = is_here.then(|| self.store.get(key.as_bytes(), &limit).ok())??;
        Some(RendezvousEntry::decode(rank, &bytes).ok()?.process)
    }

    /// The ranks whose keys are missing, if the store can say so.
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

    /// What is left of the deadline and of the time granted beyond it.
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

/// Ranks as text, each with what there is to say of it.
fn format_ranks(ranks: &[Rank], process_of: impl Fn(Rank) -> Option<String>) -> String {
    let named =
        |&rank: &Rank| process_of(rank).map_or(rank.to_string(), |who| format!("{rank} ({who})"));
    match ranks {
        [] => "the last rank".to_owned(),
        [rank] => format!("rank {}", named(rank)),
        _ => {
            let named: Vec<String> = ranks.iter().take(MAX_RANKS_LISTED).map(named).collect();
            let text = format!("ranks {}", named.join(", "));
            match ranks.len() - named.len() {
                0 => text,
                more => format!("{text} and {more} more"),
            }
        }
    }
}

fn confirm_key(rendezvous: &Rendezvous<'_>, id: GroupId, rank: Rank) -> String {
    format!("dist/{}/{id}/confirm/{rank}", rendezvous.name)
}

fn as_bytes(keys: &[String]) -> Vec<&[u8]> {
    keys.iter().map(String::as_bytes).collect()
}
