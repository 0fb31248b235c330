//! How the ranks of a group find each other through a store, and tell this attempt from every earlier
//! one.
//!
//! A restarted job may find the keys of the attempt before in its store, so nothing is read under a
//! fixed key alone. Each rank publishes a fresh nonce under its rank. Rank 0 makes a fresh group id and
//! offers it to each nonce; a rank that finds an offer for its own nonce confirms under the id; when all
//! have confirmed, rank 0 tells each nonce to go. If a nonce changes meanwhile (it was a leftover, and
//! its rank has now come), rank 0 calls the attempt off and offers anew. From then on members read only
//! keys under the id. Attempts are counted for each nonce on its own: a rank that comes late looks for its
//! first offer, however many rank 0 has made to leftovers before.
//!
//! Keys, under `dist/<group>/`: `rank/<r>`, `offer/<nonce>/<attempt>`, `verdict/<nonce>/<attempt>`,
//! `<id>/confirm/<r>`, `<id>/<phase>/<r>`. Only set, get, wait, check and their batch forms are used.

use crate::backend::Exchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank, WorldSize};
use crate::base::log::Level;
use crate::process::this;
use crate::store::Store;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait in one go before looking around; also how soon a leftover nonce is noticed.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// How often a long wait is told.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// How many ranks a message names.
const RANKS_NAMED: usize = 8;

const GO: &[u8] = b"go";
const AGAIN: &[u8] = b"again";

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
    pub who: String,
    /// When the group must have formed.
    pub deadline: &'a Deadline,
}

/// What a rank publishes under its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    nonce: Nonce,
    size: WorldSize,
    version: String,
    who: String,
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let Self { nonce, size, version, who } = self;
        json!({ "nonce": nonce.to_string(), "size": size, "version": version, "who": who })
            .to_string()
            .into_bytes()
    }

    fn decode(rank: Rank, bytes: &[u8]) -> Result<Self> {
        let parse = || {
            let entry: Value = serde_json::from_slice(bytes).ok()?;
            Some(Self {
                nonce: Nonce::parse(entry.get("nonce")?.as_str()?)?,
                size: usize::try_from(entry.get("size")?.as_u64()?).ok()?,
                version: entry.get("version")?.as_str()?.to_owned(),
                who: entry.get("who")?.as_str()?.to_owned(),
            })
        };
        parse().ok_or_else(|| {
            let message = format!(
                "what rank {rank} has published in the store is not from libdist {}: all ranks must \
                 run the same version",
                env!("CARGO_PKG_VERSION")
            );
            Error::new(ErrorKind::Mismatch, message).with_culprit(rank)
        })
    }
}

/// One offer of rank 0 to all ranks.
struct Round {
    entries: Vec<Entry>,
    /// For each entry, how many offers its nonce has had before.
    attempts: Vec<u64>,
}

impl Round {
    fn first(entries: Vec<Entry>) -> Self {
        let attempts = vec![0; entries.len()];
        Self { entries, attempts }
    }

    fn next(&self, entries: Vec<Entry>) -> Self {
        let before = self.entries.iter().zip(&self.attempts);
        let attempt = |(now, (then, attempt)): (&Entry, (&Entry, &u64))| {
            if now.nonce == then.nonce { attempt + 1 } else { 0 }
        };
        let attempts = entries.iter().zip(before).map(attempt).collect();
        Self { entries, attempts }
    }
}

impl Rendezvous<'_> {
    /// Comes together with the other ranks; returns the id of the group.
    ///
    /// # Errors
    /// `Timeout` naming the ranks that did not come, `Mismatch` where ranks disagree about the world size
    /// or the version, `InvalidArgument` where two processes have the same rank, `Connection`.
    pub fn meet(&self) -> Result<GroupId> {
        let entry = Entry {
            nonce: self.nonce,
            size: self.size,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            who: self.who.clone(),
        };
        self.store.set(self.rank_key(self.rank).as_bytes(), &entry.encode(), self.deadline)?;
        let id = if self.rank == 0 { self.lead() } else { self.follow() }?;
        // So that the next group of this name finds no leftover, which it would have to outwait. What
        // cannot be removed does no harm.
        drop(self.store.delete_key(self.rank_key(self.rank).as_bytes(), self.deadline));
        Ok(id)
    }

    /// The part of rank 0.
    fn lead(&self) -> Result<GroupId> {
        let mut round = Round::first(self.read_entries()?);
        loop {
            if let Err(error) = self.check(&round.entries) {
                self.send_verdict(&round, format!("error {error}").as_bytes())?;
                return Err(error);
            }
            let id = this::fresh_nonce()?;
            self.tell(&round, "offer", id.to_string().as_bytes())?;
            self.store.set(confirm_key(self, id, 0).as_bytes(), b"", self.deadline)?;
            match self.gather_confirmations(id, &round.entries)? {
                None => {
                    self.send_verdict(&round, GO)?;
                    return Ok(id);
                }
                Some(changed) => {
                    crate::log!(Level::Info, "group {}: a rank has come anew", self.name);
                    self.send_verdict(&round, AGAIN)?;
                    round = round.next(changed);
                }
            }
        }
    }

    /// Waits until all have confirmed; the entries as they are now, where one has changed meanwhile.
    fn gather_confirmations(&self, id: GroupId, entries: &[Entry]) -> Result<Option<Vec<Entry>>> {
        let keys: Vec<String> = (0..self.size).map(|rank| confirm_key(self, id, rank)).collect();
        let mut changed = None;
        self.wait_for_ranks(&keys, "confirm that they take part", |_| {
            let now = self.read_entries()?;
            let moved = now != entries;
            changed = moved.then_some(now);
            Ok(moved)
        })?;
        Ok(changed)
    }

    /// The part of every other rank.
    fn follow(&self) -> Result<GroupId> {
        for attempt in 0.. {
            let offer = self.await_own("offer", attempt)?;
            let id = std::str::from_utf8(&offer).ok().and_then(Nonce::parse);
            match id {
                Some(id) => {
                    let key = confirm_key(self, id, self.rank);
                    self.store.set(key.as_bytes(), b"", self.deadline)?;
                    let verdict = self.await_own("verdict", attempt)?;
                    match verdict.as_slice() {
                        GO => return Ok(id),
                        AGAIN => {}
                        other => return Err(refusal(other)),
                    }
                }
                None => return Err(refusal(&offer)),
            }
        }
        Err(Error::internal("the attempts of a rendezvous have run out"))
    }

    /// Waits for what rank 0 writes for this rank's nonce.
    fn await_own(&self, what: &str, attempt: u64) -> Result<Vec<u8>> {
        let key = self.own_key(what, self.nonce, attempt);
        self.wait_for_keys(&[&key], |waited| {
            self.check_not_replaced()?;
            if waited >= TELL_EVERY {
                crate::log!(Level::Warn, "group {}: rank 0 has not answered for {} s; it waits for \
                    all ranks to come", self.name, waited.as_secs());
            }
            Ok(false)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Timeout => error.context(format_args!(
                "rank {} of group {}: rank 0 has made no {what} within {} ms (has it started, does it \
                 use the same store, has the group formed already without this process?)",
                self.rank,
                self.name,
                self.deadline.elapsed().as_millis()
            )),
            _ => error,
        })?;
        self.store.get(key.as_bytes(), self.deadline)
    }

    /// Two processes with one rank: the first finds the second's entry in place of its own.
    fn check_not_replaced(&self) -> Result<()> {
        let bytes = self.store.get(self.rank_key(self.rank).as_bytes(), self.deadline)?;
        let entry = Entry::decode(self.rank, &bytes)?;
        if entry.nonce == self.nonce {
            return Ok(());
        }
        let message = format!(
            "rank {} of group {} was taken by another process ({}): two processes have the same rank",
            self.rank, self.name, entry.who
        );
        Err(Error::new(ErrorKind::InvalidArgument, message).with_culprit(self.rank))
    }

    /// What all ranks have published; waits for those that have not come yet.
    fn read_entries(&self) -> Result<Vec<Entry>> {
        let keys: Vec<String> = (0..self.size).map(|rank| self.rank_key(rank)).collect();
        self.wait_for_ranks(&keys, "come", |_| Ok(false))?;
        let values = self.store.multi_get(&as_bytes(&keys), self.deadline)?;
        values.iter().enumerate().map(|(rank, bytes)| Entry::decode(rank, bytes)).collect()
    }

    /// What rank 0 checks before it offers.
    fn check(&self, entries: &[Entry]) -> Result<()> {
        if entries[0].nonce != self.nonce {
            return self.check_not_replaced();
        }
        for (rank, entry) in entries.iter().enumerate() {
            let (what, theirs, ours) = if entry.version != entries[0].version {
                ("runs libdist", entry.version.clone(), entries[0].version.clone())
            } else if entry.size != self.size {
                ("was told a world size of", entry.size.to_string(), self.size.to_string())
            } else {
                continue;
            };
            let message = format!("rank {rank} ({}) {what} {theirs}, but rank 0 {ours}", entry.who);
            return Err(Error::new(ErrorKind::Mismatch, message).with_culprit(rank));
        }
        Ok(())
    }

    fn tell(&self, round: &Round, what: &str, value: &[u8]) -> Result<()> {
        let attempts = round.entries.iter().zip(&round.attempts);
        let keys: Vec<String> =
            attempts.map(|(entry, &attempt)| self.own_key(what, entry.nonce, attempt)).collect();
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), value)).collect();
        self.store.multi_set(&pairs, self.deadline)
    }

    /// A refusal is also an offer: whoever still waits for one reads it there.
    fn send_verdict(&self, round: &Round, verdict: &[u8]) -> Result<()> {
        if verdict != GO && verdict != AGAIN {
            self.tell(round, "offer", verdict)?;
        }
        self.tell(round, "verdict", verdict)
    }

    /// Waits until there is a key for every rank. `look_around` is called about every second and ends
    /// the wait by returning true.
    fn wait_for_ranks(
        &self,
        keys: &[String],
        what: &str,
        mut look_around: impl FnMut(Duration) -> Result<bool>,
    ) -> Result<()> {
        let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
        let outcome = self.wait_for_keys(&borrowed, |waited| {
            if waited >= TELL_EVERY {
                crate::log!(
                    Level::Warn,
                    "group {}: waiting since {} s for {} to {what}",
                    self.name,
                    waited.as_secs(),
                    self.absent(keys)
                );
            }
            look_around(waited)
        });
        outcome.map_err(|error| match error.kind() {
            ErrorKind::Timeout => Error::new(
                ErrorKind::Timeout,
                format!(
                    "rank {} of group {} waited {} ms for {} to {what}",
                    self.rank,
                    self.name,
                    self.deadline.elapsed().as_millis(),
                    self.absent(keys)
                ),
            ),
            _ => error,
        })
    }

    /// Waits for keys, a slice at a time; `look_around` gets the time since it last had something to
    /// tell, and ends the wait by returning true.
    fn wait_for_keys(
        &self,
        keys: &[&str],
        mut look_around: impl FnMut(Duration) -> Result<bool>,
    ) -> Result<()> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut told = Duration::ZERO;
        loop {
            match self.store.wait(&keys, &self.deadline.capped(LOOK_AROUND)) {
                Err(error) if error.kind() == ErrorKind::Timeout && !self.deadline.has_passed() => {
                }
                outcome => return outcome,
            }
            let waited = self.deadline.elapsed();
            let tell = waited - told >= TELL_EVERY;
            if look_around(if tell { waited } else { Duration::ZERO })? {
                return Ok(());
            }
            if tell {
                told = waited;
            }
        }
    }

    /// The ranks whose keys are missing, as text.
    fn absent(&self, keys: &[String]) -> String {
        let grace = Deadline::after(Duration::from_secs(5));
        let is_absent =
            |key: &String| !self.store.check(&[key.as_bytes()], &grace).unwrap_or(false);
        let ranks: Vec<Rank> = (0..keys.len()).filter(|&rank| is_absent(&keys[rank])).collect();
        let mut text = match ranks.as_slice() {
            [] => return "the last rank".to_owned(),
            [rank] => return format!("rank {rank}"),
            _ => "ranks ".to_owned(),
        };
        let named: Vec<_> = ranks.iter().take(RANKS_NAMED).map(ToString::to_string).collect();
        text.push_str(&named.join(", "));
        if ranks.len() > RANKS_NAMED {
            text.push_str(&format!(" and {} more", ranks.len() - RANKS_NAMED));
        }
        text
    }

    fn rank_key(&self, rank: Rank) -> String {
        format!("dist/{}/rank/{rank}", self.name)
    }

    fn own_key(&self, what: &str, nonce: Nonce, attempt: u64) -> String {
        format!("dist/{}/{what}/{nonce}/{attempt}", self.name)
    }
}

fn confirm_key(rendezvous: &Rendezvous<'_>, id: GroupId, rank: Rank) -> String {
    format!("dist/{}/{id}/confirm/{rank}", rendezvous.name)
}

fn as_bytes(keys: &[String]) -> Vec<&[u8]> {
    keys.iter().map(String::as_bytes).collect()
}

/// What rank 0 answered instead of an offer.
fn refusal(bytes: &[u8]) -> Error {
    let text = String::from_utf8_lossy(bytes);
    let text = text.strip_prefix("error ").unwrap_or(&text);
    Error::new(ErrorKind::Mismatch, format!("rank 0 refuses the group: {text}"))
}

/// The exchange between the members of a group that has an id.
#[derive(Debug)]
pub struct StoreExchange<'a> {
    /// How they met.
    pub rendezvous: &'a Rendezvous<'a>,
    /// The group's id.
    pub id: GroupId,
}

impl Exchange for StoreExchange<'_> {
    fn all(&self, phase: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let Rendezvous { store, name, rank, size, deadline, .. } = self.rendezvous;
        let key = |rank: Rank| format!("dist/{name}/{}/{phase}/{rank}", self.id);
        store.set(key(*rank).as_bytes(), mine, deadline)?;
        let keys: Vec<String> = (0..*size).map(key).collect();
        let what = format!("finish the phase \"{phase}\" of starting the group");
        self.rendezvous.wait_for_ranks(&keys, &what, |_| Ok(false))?;
        store.multi_get(&as_bytes(&keys), deadline)
    }
}

#[cfg(test)]
mod tests;
