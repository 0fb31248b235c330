//! Who has come to a rendezvous, by the keys in the store alone: for programs that look on from
//! outside when a job does not come up.
//!
//! Pure. It reads what [`super`] writes, and says only what follows from it. An entry may be a
//! leftover of an earlier attempt; whether it is cannot be seen until rank 0 has made its offers.

use super::GO;
use super::entry::Entry;
use crate::base::ids::{MAX_WORLD_SIZE, Nonce, Rank, WorldSize};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The ranks of one group, as far as they have come.
#[derive(Debug, PartialEq, Eq)]
pub struct Attendance {
    /// The group's name.
    pub group: String,
    /// What stands before the group's keys: the prefix of the store that the ranks were given, if
    /// any.
    pub prefix: String,
    /// The number of ranks, as rank 0 was told; where it is missing, the largest that others were
    /// told.
    pub size: WorldSize,
    /// The ranks that have published an entry, and the process and host that each names.
    pub here: BTreeMap<Rank, String>,
    /// All are here, and rank 0 has told each of them to go.
    pub met: bool,
    /// What is wrong: ranks that disagree, and why rank 0 refuses or a rank gave up.
    pub complaints: Vec<String>,
}

impl Attendance {
    /// The ranks that have published nothing.
    pub fn missing(&self) -> Vec<Rank> {
        (0..self.size).filter(|rank| !self.here.contains_key(rank)).collect()
    }
}

/// Whether [`attendance`] wants to know the value of this key.
pub fn concerns(key: &[u8]) -> bool {
    Fact::parse(key).is_some()
}

/// The groups that have begun to form in a store with these keys and values, by name.
pub fn attendance<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<Attendance> {
    let mut groups: BTreeMap<(String, String), Traces> = BTreeMap::new();
    for (key, value) in pairs {
        if let Some((place, fact)) = Fact::parse(key) {
            groups.entry(place).or_default().add(fact, value);
        }
    }
    let formed = groups.into_iter().filter(|(_, traces)| !traces.ranks.is_empty());
    formed.map(|((prefix, group), traces)| traces.sum_up(prefix, group)).collect()
}

/// What a key is about.
enum Fact {
    Rank(Rank),
    Offer(Nonce),
    Verdict(Nonce),
    Failure(Nonce),
}

impl Fact {
    /// Prefix and group, and what the key says of the group. Names may have "/" in them, so that
    /// the end of the key decides.
    fn parse(key: &[u8]) -> Option<((String, String), Self)> {
        let (place, fact) = Self::of_end(std::str::from_utf8(key).ok()?)?;
        let at = match place.starts_with("dist/") {
            true => 0,
            false => place.find("/dist/")? + 1,
        };
        let (prefix, group) = place.split_at(at);
        let prefix = prefix.trim_end_matches('/').to_owned();
        Some(((prefix, group["dist/".len()..].to_owned()), fact))
    }

    fn of_end(key: &str) -> Option<(&str, Self)> {
        let (rest, last) = key.rsplit_once('/')?;
        let (rest, middle) = rest.rsplit_once('/')?;
        if last == "failure" {
            return Some((rest, Self::Failure(Nonce::parse(middle)?)));
        }
        let number = last.parse().ok()?;
        if middle == "rank" {
            return (number < MAX_WORLD_SIZE).then_some((rest, Self::Rank(number)));
        }
        let nonce = Nonce::parse(middle)?;
        match rest.rsplit_once('/')? {
            (place, "offer") => Some((place, Self::Offer(nonce))),
            (place, "verdict") => Some((place, Self::Verdict(nonce))),
            _ => None,
        }
    }
}

/// What a group has left in the store.
#[derive(Default)]
struct Traces {
    ranks: BTreeMap<Rank, Vec<u8>>,
    /// By nonce: what rank 0 has written for it.
    told: HashMap<Nonce, Vec<Vec<u8>>>,
    /// By the group's id.
    failures: HashMap<Nonce, Vec<u8>>,
}

impl Traces {
    fn add(&mut self, fact: Fact, value: &[u8]) {
        let value = value.to_vec();
        match fact {
            Fact::Rank(rank) => drop(self.ranks.insert(rank, value)),
            Fact::Failure(id) => drop(self.failures.insert(id, value)),
            Fact::Offer(nonce) | Fact::Verdict(nonce) => {
                self.told.entry(nonce).or_default().push(value);
            }
        }
    }

    fn sum_up(self, prefix: String, group: String) -> Attendance {
        let mut complaints = Vec::new();
        let (mut here, mut entries) = (BTreeMap::new(), BTreeMap::new());
        for (&rank, bytes) in &self.ranks {
            match Entry::decode(rank, bytes) {
                Ok(entry) => {
                    here.insert(rank, entry.who.clone());
                    entries.insert(rank, entry);
                }
                Err(error) => {
                    here.insert(rank, "unknown".to_owned());
                    complaints.push(error.to_string());
                }
            }
        }
        let told = entries.get(&0).map(|entry| entry.size);
        let largest = entries.values().map(|entry| entry.size).max();
        let size = told.or(largest).unwrap_or(0).min(MAX_WORLD_SIZE);
        complaints.extend(disagreements(&entries, size));
        complaints.extend(self.reasons(&entries));
        let told_to_go = |entry: &Entry| self.told_to(entry).any(|text| text == GO);
        let met = (0..size).all(|rank| entries.get(&rank).is_some_and(told_to_go)) && size > 0;
        Attendance { group, prefix, size, here, met, complaints }
    }

    /// What rank 0 has written for a rank.
    fn told_to(&self, entry: &Entry) -> impl Iterator<Item = &[u8]> {
        self.told.get(&entry.nonce).into_iter().flatten().map(Vec::as_slice)
    }

    /// Why rank 0 refuses these ranks, and why one of them gave up. What was said to earlier
    /// processes of the same ranks does not count.
    fn reasons(&self, entries: &BTreeMap<Rank, Entry>) -> Vec<String> {
        let mut reasons = Vec::new();
        let mut known = HashSet::new();
        for text in entries.values().flat_map(|entry| self.told_to(entry)) {
            if !known.insert(text) {
                continue;
            }
            if let Some(why) = text.strip_prefix(b"error ") {
                let why = String::from_utf8_lossy(why);
                reasons.push(format!("rank 0 refuses the group: {why}"));
            }
            let id = std::str::from_utf8(text).ok().and_then(Nonce::parse);
            if let Some(why) = id.and_then(|id| self.failures.get(&id)) {
                reasons.push(String::from_utf8_lossy(why).into_owned());
            }
        }
        reasons
    }
}

/// The ranks that were told another world size or run another version than the first one.
fn disagreements(entries: &BTreeMap<Rank, Entry>, size: WorldSize) -> Vec<String> {
    let Some((first, reference)) = entries.first_key_value() else { return Vec::new() };
    let mut found = Vec::new();
    for (rank, entry) in entries {
        if entry.size != size {
            found.push(format!("rank {rank} was told a world size of {}", entry.size));
        }
        if entry.version != reference.version {
            let (own, other) = (&entry.version, &reference.version);
            found.push(format!("rank {rank} runs libdist {own}, but rank {first} {other}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::StoreExchange;
    use super::super::tests::{meet_all, rendezvous};
    use super::*;
    use crate::backend::Exchange as _;
    use crate::base::deadline::Deadline;
    use crate::base::error::Error;
    use crate::store::{HashStore, PrefixStore, Store};
    use std::sync::Arc;

    fn of(store: &Arc<dyn Store>) -> Vec<Attendance> {
        let soon = Deadline::after_ms(10_000);
        let keys = store.list_keys(&soon).unwrap();
        let value = |key: Vec<u8>| (store.get(&key, &soon).unwrap(), key);
        let pairs: Vec<_> = keys.into_iter().map(value).collect();
        attendance(pairs.iter().map(|(value, key)| (key.as_slice(), value.as_slice())))
    }

    fn hash() -> Arc<dyn Store> {
        Arc::new(HashStore::new())
    }

    #[test]
    fn a_group_that_has_met_is_complete() {
        let store = hash();
        assert!(meet_all(&store, &[1, 2, 3]).iter().all(Result::is_ok));
        let found = of(&store);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].group.as_str(), found[0].size, found[0].met), ("t", 3, true));
        assert_eq!(found[0].here[&1], "process 2");
        assert!(found[0].missing().is_empty() && found[0].complaints.is_empty(), "{found:?}");
    }

    #[test]
    fn those_who_have_not_come_are_missing_also_behind_a_prefix() {
        let store = hash();
        let inner: Arc<dyn Store> = Arc::new(PrefixStore::new("job/7", store.clone()));
        let soon = Deadline::after_ms(20);
        rendezvous(&inner, 0, 4, 1, &soon).meet().unwrap_err();
        rendezvous(&inner, 3, 4, 2, &soon).meet().unwrap_err();
        let found = of(&store);
        assert_eq!((found[0].prefix.as_str(), found[0].group.as_str()), ("job/7", "t"));
        assert_eq!((found[0].missing(), found[0].met), (vec![1, 2], false));
    }

    #[test]
    fn refusals_and_disagreements_are_told() {
        let store = hash();
        let deadline = Deadline::after_ms(20_000);
        std::thread::scope(|scope| {
            let one = scope.spawn(|| rendezvous(&store, 1, 3, 2, &deadline).meet());
            rendezvous(&store, 0, 2, 1, &deadline).meet().unwrap_err();
            one.join().unwrap().unwrap_err();
        });
        let text = of(&store).remove(0).complaints.join("\n");
        assert!(text.contains("rank 1 was told a world size of 3"), "{text}");
        assert_eq!(text.matches("rank 0 refuses the group").count(), 1, "{text}");
    }

    #[test]
    fn a_rank_that_gave_up_is_told_until_it_comes_anew() {
        let store = hash();
        let deadline = Deadline::after_ms(20_000);
        let id = meet_all(&store, &[1, 2]).remove(0).unwrap();
        let one = rendezvous(&store, 1, 2, 2, &deadline);
        StoreExchange { rendezvous: &one, id }.give_up(&Error::invalid("no memory"));
        let text = of(&store).remove(0).complaints.join("\n");
        assert_eq!(text, "rank 1 (process 2) gave up starting the group: no memory");
        assert!(meet_all(&store, &[3, 4]).iter().all(Result::is_ok));
        assert!(of(&store)[0].complaints.is_empty());
    }

    #[test]
    fn foreign_keys_and_values_are_passed_over_or_complained_about() {
        for key in
            [&b"rank/1"[..], b"dist/x/rank/99999999", b"dist/x/rank/-1", b"a/rank/0", b"\xff"]
        {
            assert!(!concerns(key), "{}", key.escape_ascii());
        }
        let found = attendance([(&b"dist/x/rank/0"[..], &b"nonsense"[..])].into_iter());
        assert_eq!((found[0].size, found[0].met), (0, false));
        assert!(found[0].complaints[0].contains("what rank 0 has published"), "{found:?}");
    }
}
