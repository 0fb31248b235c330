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

pub mod attendance;
mod entry;
mod exchange;
#[cfg(test)]
mod tests;

pub use exchange::StoreExchange;

use crate::base::deadline::Deadline;
use crate::base::debug;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::ids::{GroupId, Nonce, Rank, WorldSize};
use crate::base::log::Level;
use crate::process::this;
use crate::store::Store;
use crate::wait::watch::Seconds;
use entry::{Entry, Guest, disagreement};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait in one go before looking around, at first and later; so soon is a leftover
/// nonce noticed.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// How long rank 0, which may host the store, waits until all have heard that it refuses the group.
const HEARING: Duration = Duration::from_secs(1);

/// How long a rank may take, once its deadline has passed, to find out who is missing and to tell
/// others.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// How many ranks a message names.
const RANKS_NAMED: usize = 8;

/// What ranks are waited for to do, in the words of an error, and have not done yet, in those of
/// the log.
#[derive(Clone, Copy)]
struct Awaited<'a> {
    to: &'a str,
    not_yet: &'a str,
}

const JOIN: Awaited<'static> = Awaited { to: "come", not_yet: "joined" };
const CONFIRM: Awaited<'static> =
    Awaited { to: "confirm that they take part", not_yet: "confirmed that they take part in it" };

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

impl Rendezvous<'_> {
    /// Comes together with the other ranks; returns the id of the group.
    ///
    /// # Errors
    /// `Timeout` naming the ranks that did not come, `Mismatch` where ranks disagree about the
    /// world size or the version, `InvalidArgument` where two processes have the same rank,
    /// `Connection`.
    pub fn meet(&self) -> Result<GroupId> {
        let entry = Entry {
            nonce: self.nonce,
            size: self.size,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            who: self.who.clone(),
        };
        self.store.set(self.rank_key(self.rank).as_bytes(), &entry.encode(), self.deadline)?;
        if self.rank == 0 { self.lead() } else { self.follow() }
    }

    /// The part of rank 0.
    fn lead(&self) -> Result<GroupId> {
        let mut guests: Vec<Guest> = self.read_entries()?.into_iter().map(Guest::new).collect();
        loop {
            self.check_versions(&guests).map_err(|error| self.refuse(&guests, error))?;
            let id = this::fresh_nonce()?;
            self.tell(&guests, "offer", id.to_string().as_bytes())?;
            self.store.set(confirm_key(self, id, 0).as_bytes(), b"", self.deadline)?;
            match self.gather_confirmations(id, &guests)? {
                None => {
                    // Only now is it certain that no entry is a leftover.
                    self.check_sizes(&guests).map_err(|error| self.refuse(&guests, error))?;
                    self.tell(&guests, "verdict", GO)?;
                    return Ok(id);
                }
                Some(changed) => {
                    crate::log!(Level::Info, "group {}: a rank has come anew", self.name);
                    self.tell(&guests, "verdict", AGAIN)?;
                    for (guest, entry) in guests.iter_mut().zip(changed) {
                        guest.update(entry);
                    }
                }
            }
        }
    }

    /// Waits until all have confirmed; the entries as they are now, where one has changed
    /// meanwhile.
    fn gather_confirmations(&self, id: GroupId, guests: &[Guest]) -> Result<Option<Vec<Entry>>> {
        let keys: Vec<String> = (0..self.size).map(|rank| confirm_key(self, id, rank)).collect();
        let mut changed = None;
        self.wait_for_ranks(&keys, CONFIRM, || {
            let now = self.read_entries()?;
            let moved = guests.iter().map(|guest| &guest.entry).ne(&now);
            changed = moved.then_some(now);
            Ok(moved)
        })?;
        Ok(changed)
    }

    /// The part of every other rank.
    fn follow(&self) -> Result<GroupId> {
        for count in 0.. {
            let offer = self.await_own("offer", count, &self.rank_keys(), JOIN)?;
            let id = std::str::from_utf8(&offer).ok().and_then(Nonce::parse);
            match id {
                Some(id) => {
                    let key = confirm_key(self, id, self.rank);
                    self.store.set(key.as_bytes(), b"", self.deadline)?;
                    let keys: Vec<_> =
                        (0..self.size).map(|rank| confirm_key(self, id, rank)).collect();
                    let verdict = self.await_own("verdict", count, &keys, CONFIRM)?;
                    match verdict.as_slice() {
                        GO => return Ok(id),
                        AGAIN => {}
                        refusal => return Err(self.refused(refusal)),
                    }
                }
                None => return Err(self.refused(&offer)),
            }
        }
        Err(Error::internal("the offers of a rendezvous have run out"))
    }

    /// What rank 0 has answered instead of an offer; says that it was heard.
    fn refused(&self, bytes: &[u8]) -> Error {
        let heard = self.heard_key(self.nonce);
        if let Err(error) = self.store.set(heard.as_bytes(), b"", &self.deadline.capped(HEARING)) {
            crate::log!(Level::Info, "answering the refusal of rank 0: {error}");
        }
        let text = String::from_utf8_lossy(bytes);
        let text = text.strip_prefix("error ").unwrap_or(&text);
        Error::new(ErrorKind::Mismatch, format!("rank 0 refuses the group: {text}"))
    }

    /// Waits for what rank 0 writes for this rank's nonce, once all ranks have written `keys`.
    fn await_own(
        &self,
        what: &str,
        count: u64,
        keys: &[String],
        before: Awaited<'_>,
    ) -> Result<Vec<u8>> {
        let key = self.own_key(what, self.nonce, count);
        self.wait_for_keys(&[&key], |told| {
            self.check_not_replaced()?;
            told.into_iter().for_each(|lasted| self.tell_of_rank_0(lasted));
            Ok(false)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                let absent = self.absent(keys).unwrap_or_default();
                let missing = match absent.as_slice() {
                    [] => String::new(),
                    [_] => format!("{} has not {}; ", listed(&absent, |_| None), before.not_yet),
                    _ => format!("{} have not {}; ", listed(&absent, |_| None), before.not_yet),
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
        let keys = self.rank_keys();
        self.wait_for_ranks(&keys, JOIN, || Ok(false))?;
        let values = self.store.multi_get(&as_bytes(&keys), self.deadline)?;
        values.iter().enumerate().map(|(rank, bytes)| Entry::decode(rank, bytes)).collect()
    }

    /// What rank 0 checks before it offers. Ranks of another version may not understand an offer.
    fn check_versions(&self, guests: &[Guest]) -> Result<()> {
        if guests[0].entry.nonce != self.nonce {
            return self.check_not_replaced();
        }
        let ours = env!("CARGO_PKG_VERSION");
        disagreement(guests, |entry| {
            (entry.version != ours)
                .then(|| format!("runs libdist {}, but rank 0 {ours}", entry.version))
        })
    }

    /// What rank 0 checks once all have confirmed.
    fn check_sizes(&self, guests: &[Guest]) -> Result<()> {
        disagreement(guests, |Entry { size, .. }| {
            let message = || format!("was told a world size of {size}, but rank 0 {}", self.size);
            (*size != self.size).then(message)
        })
    }

    /// Tells all why there will be no group, and gives them a moment to hear it: the store may end
    /// with this process.
    fn refuse(&self, guests: &[Guest], error: Error) -> Error {
        let text = format!("error {error}");
        // Also as an offer: whoever still waits for one reads it there.
        let tell = |what| self.tell(guests, what, text.as_bytes());
        let heard: Vec<String> =
            guests[1..].iter().map(|guest| self.heard_key(guest.entry.nonce)).collect();
        let told = tell("offer")
            .and_then(|()| tell("verdict"))
            .and_then(|()| self.store.wait(&as_bytes(&heard), &self.deadline.capped(HEARING)));
        if let Err(cause) = told {
            crate::log!(Level::Info, "not all ranks have heard why there is no group: {cause}");
        }
        error
    }

    fn tell(&self, guests: &[Guest], what: &str, value: &[u8]) -> Result<()> {
        let key = |guest: &Guest| self.own_key(what, guest.entry.nonce, guest.offers);
        let keys: Vec<String> = guests.iter().map(key).collect();
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (key.as_bytes(), value)).collect();
        self.store.multi_set(&pairs, self.deadline)
    }

    /// Waits until there is a key for every rank. `look_around` is called now and then and ends the
    /// wait by returning true.
    fn wait_for_ranks(
        &self,
        keys: &[String],
        what: Awaited<'_>,
        mut look_around: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let borrowed: Vec<&str> = keys.iter().map(String::as_str).collect();
        let outcome = self.wait_for_keys(&borrowed, |told| {
            if let Some(lasted) = told {
                self.tell_of(&self.absent(keys).unwrap_or_default(), what, lasted);
            }
            look_around()
        });
        outcome.map_err(|error| match error.kind() {
            ErrorKind::Timeout => {
                let waited_ms = self.deadline.elapsed().as_millis();
                let (who, silence) = match self.absent(keys) {
                    Ok(absent) => (listed(&absent, |_| None), String::new()),
                    Err(_) => {
                        let store = self.store.describe();
                        ("all ranks".to_owned(), format!("; {store} does not answer"))
                    }
                };
                let (rank, name, to) = (self.rank, self.name, what.to);
                let message = format!(
                    "rank {rank} of group {name} waited {waited_ms} ms for {who} to {to}{silence}"
                );
                Error::new(ErrorKind::Timeout, message)
            }
            _ => error,
        })
    }

    /// Waits for keys, a slice at a time; `look_around` ends the wait by returning true. Each time
    /// the wait has lasted for so long that it is to be told, it gets the time.
    fn wait_for_keys(
        &self,
        keys: &[&str],
        mut look_around: impl FnMut(Option<Seconds>) -> Result<bool>,
    ) -> Result<()> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut told = self.deadline.elapsed();
        let mut slice = FIRST_LOOK;
        loop {
            match self.store.wait(&keys, &self.deadline.capped(slice)) {
                Err(error) if error.kind() == ErrorKind::Timeout && !self.deadline.has_passed() => {
                }
                outcome => return outcome,
            }
            slice = (slice * 2).min(LOOK_AROUND);
            let waited = self.deadline.elapsed();
            let is_due = debug::slow_after().is_some_and(|every| waited - told >= every);
            if is_due {
                told = waited;
            }
            if look_around(is_due.then_some(Seconds(waited)))? {
                return Ok(());
            }
        }
    }

    /// A long wait for rank 0, which mostly waits for others itself.
    #[cold]
    fn tell_of_rank_0(&self, lasted: Seconds) {
        let absent = self.absent(&self.rank_keys()).unwrap_or_default();
        match absent.is_empty() {
            false => self.tell_of(&absent, JOIN, lasted),
            true => {
                let name = self.name;
                crate::log!(Level::Warn, "group {name}: rank 0 has not answered for {lasted}");
            }
        }
    }

    /// A long wait for some ranks, for the log.
    #[cold]
    fn tell_of(&self, ranks: &[Rank], what: Awaited<'_>, lasted: Seconds) {
        if ranks.is_empty() {
            // The last one has just done it.
            return;
        }
        let address = self.store.address();
        let place =
            address.map_or_else(|| self.store.describe(), |(host, port)| format!("{host}:{port}"));
        crate::log!(
            Level::Warn,
            "group {}: {} (of {}) {} not {} after {lasted}; the ranks meet at {place}",
            self.name,
            listed(ranks, |rank| self.who(rank)),
            self.size,
            if ranks.len() > 1 { "have" } else { "has" },
            what.not_yet
        );
    }

    /// The process and the host of a rank that has come.
    fn who(&self, rank: Rank) -> Option<String> {
        let (key, soon) = (self.rank_key(rank), Deadline::after(HEARING));
        let is_here = self.store.check(&[key.as_bytes()], &soon).ok()?;
        let bytes = is_here.then(|| self.store.get(key.as_bytes(), &soon).ok())??;
        Some(Entry::decode(rank, &bytes).ok()?.who)
    }

    /// The ranks whose keys are missing, if the store can say so.
    fn absent(&self, keys: &[String]) -> Result<Vec<Rank>> {
        let grace = self.afterwards();
        let mut absent = Vec::new();
        for (rank, key) in keys.iter().enumerate() {
            if !self.store.check(&[key.as_bytes()], &grace)? {
                absent.push(rank);
            }
        }
        Ok(absent)
    }

    /// What is left of the deadline and of the time granted beyond it.
    fn afterwards(&self) -> Deadline {
        let over = self.deadline.elapsed().saturating_sub(self.deadline.allowed());
        Deadline::after(self.deadline.left() + AFTERWARDS.saturating_sub(over))
    }

    fn rank_keys(&self) -> Vec<String> {
        (0..self.size).map(|rank| self.rank_key(rank)).collect()
    }

    fn rank_key(&self, rank: Rank) -> String {
        format!("dist/{}/rank/{rank}", self.name)
    }

    fn own_key(&self, what: &str, nonce: Nonce, count: u64) -> String {
        format!("dist/{}/{what}/{nonce}/{count}", self.name)
    }

    fn heard_key(&self, nonce: Nonce) -> String {
        format!("dist/{}/heard/{nonce}", self.name)
    }
}

/// Ranks as text, each with what there is to say of it.
fn listed(ranks: &[Rank], who: impl Fn(Rank) -> Option<String>) -> String {
    let named = |&rank: &Rank| who(rank).map_or(rank.to_string(), |who| format!("{rank} ({who})"));
    match ranks {
        [] => "the last rank".to_owned(),
        [rank] => format!("rank {}", named(rank)),
        _ => {
            let named: Vec<String> = ranks.iter().take(RANKS_NAMED).map(named).collect();
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
