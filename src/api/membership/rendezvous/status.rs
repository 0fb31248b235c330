//! The status of a rendezvous, computed only from the keys in the store. External programs show the
//! status when a job does not start.
//!
//! The functions are pure. They interpret the keys that [`super`] writes. An entry of a rank may be
//! stale, that is, from an earlier attempt. The keys cannot show this before rank 0 has made its
//! offers.

use super::entry::{RendezvousEntry, decode_failure};
use super::{GO, REFUSAL};
use crate::base::config;
use crate::base::ids::{MAX_WORLD_SIZE, Nonce, Rank, WorldSize};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The rendezvous status of one group.
#[derive(Debug, PartialEq, Eq)]
pub struct RendezvousStatus {
    /// The group's name.
    pub group: String,
    /// The prefix before the group's keys, if the ranks use a store with a prefix.
    pub prefix: String,
    /// The number of ranks according to the entry of rank 0. If rank 0 has no entry, the largest
    /// number of ranks in the other entries.
    pub size: WorldSize,
    /// The ranks that have published an entry, each with the process and host from its entry.
    pub arrived: BTreeMap<Rank, String>,
    /// True if all ranks have published an entry and rank 0 has written the verdict `go` for each.
    pub is_complete: bool,
    /// The problems that the keys show: ranks with different sizes or versions, refusals by rank 0,
    /// and reasons why a rank failed.
    pub problems: Vec<String>,
}

impl RendezvousStatus {
    /// Returns the ranks that have published no entry.
    pub fn missing(&self) -> Vec<Rank> {
        (0..self.size).filter(|rank| !self.arrived.contains_key(rank)).collect()
    }
}

/// Returns whether [`rendezvous_statuses`] needs the value of this key.
pub fn is_rendezvous_key(key: &[u8]) -> bool {
    StoreKey::parse(key).is_some()
}

/// Returns the status of each group that has entries of ranks in a store with these keys and
/// values. The groups are ordered by prefix and name.
pub fn rendezvous_statuses<'a>(
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Vec<RendezvousStatus> {
    let mut groups: BTreeMap<(String, String), StoreRecords> = BTreeMap::new();
    for (key, value) in pairs {
        if let Some((group_key, store_key)) = StoreKey::parse(key) {
            groups.entry(group_key).or_default().add(store_key, value);
        }
    }
    let formed = groups.into_iter().filter(|(_, records)| !records.ranks.is_empty());
    formed.map(|((prefix, group), records)| records.into_status(prefix, group)).collect()
}

/// The kinds of keys that this module interprets.
enum StoreKey {
    Rank(Rank),
    Offer(Nonce),
    Verdict(Nonce),
    Failure(Nonce),
}

impl StoreKey {
    /// Returns the prefix and the group of a key, and the kind of the key. Group names may contain
    /// "/", so the parser starts at the end of the key. For example, `job/dist/world/rank/3` has
    /// the prefix `job`, the group `world` and the kind `Rank(3)`.
    fn parse(key: &[u8]) -> Option<((String, String), Self)> {
        let (group_key, store_key) = Self::parse_suffix(std::str::from_utf8(key).ok()?)?;
        let at = match group_key.starts_with("dist/") {
            true => 0,
            false => group_key.find("/dist/")? + 1,
        };
        let (prefix, group) = group_key.split_at(at);
        let prefix = prefix.trim_end_matches('/').to_owned();
        Some(((prefix, group["dist/".len()..].to_owned()), store_key))
    }

    fn parse_suffix(key: &str) -> Option<(&str, Self)> {
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
            (group_key, "offer") => Some((group_key, Self::Offer(nonce))),
            (group_key, "verdict") => Some((group_key, Self::Verdict(nonce))),
            _ => None,
        }
    }
}

/// The values that one group has in the store.
#[derive(Default)]
struct StoreRecords {
    ranks: BTreeMap<Rank, Vec<u8>>,
    /// The offers and verdicts of rank 0, by the nonce of the recipient.
    coordinator_messages: HashMap<Nonce, Vec<Vec<u8>>>,
    /// The failure reasons, by group id.
    failures: HashMap<Nonce, Vec<u8>>,
}

impl StoreRecords {
    fn add(&mut self, record_key: StoreKey, value: &[u8]) {
        let value = value.to_vec();
        match record_key {
            StoreKey::Rank(rank) => drop(self.ranks.insert(rank, value)),
            StoreKey::Failure(id) => drop(self.failures.insert(id, value)),
            StoreKey::Offer(nonce) | StoreKey::Verdict(nonce) => {
                self.coordinator_messages.entry(nonce).or_default().push(value);
            }
        }
    }

    fn into_status(self, prefix: String, group: String) -> RendezvousStatus {
        let mut problems = Vec::new();
        let (mut arrived, mut entries) = (BTreeMap::new(), BTreeMap::new());
        for (&rank, bytes) in &self.ranks {
            match RendezvousEntry::decode(rank, bytes) {
                Ok(entry) => {
                    arrived.insert(rank, entry.process.clone());
                    entries.insert(rank, entry);
                }
                Err(error) => {
                    arrived.insert(rank, "unknown".to_owned());
                    problems.push(error.to_string());
                }
            }
        }
        let size_at_rank_0 = entries.get(&0).map(|entry| entry.size);
        let largest = entries.values().map(|entry| entry.size).max();
        let size = size_at_rank_0.or(largest).unwrap_or(0).min(MAX_WORLD_SIZE);
        problems.extend(disagreements(&entries, size));
        problems.extend(self.failure_reasons(&entries));
        let was_released =
            |entry: &RendezvousEntry| self.messages_for(entry).any(|text| text == GO);
        let is_complete =
            (0..size).all(|rank| entries.get(&rank).is_some_and(was_released)) && size > 0;
        RendezvousStatus { group, prefix, size, arrived, is_complete, problems }
    }

    /// Returns the offers and verdicts that rank 0 has written for the process with this entry.
    fn messages_for(&self, entry: &RendezvousEntry) -> impl Iterator<Item = &[u8]> {
        self.coordinator_messages.get(&entry.nonce).into_iter().flatten().map(Vec::as_slice)
    }

    /// Returns the reasons why rank 0 refused these ranks, and the reasons why a rank failed to
    /// create the group. Offers and verdicts for earlier processes of the same ranks are ignored.
    fn failure_reasons(&self, entries: &BTreeMap<Rank, RendezvousEntry>) -> Vec<String> {
        let mut reasons = Vec::new();
        let mut known = HashSet::new();
        for text in entries.values().flat_map(|entry| self.messages_for(entry)) {
            if !known.insert(text) {
                continue;
            }
            if let Some(reason) = text.strip_prefix(REFUSAL.as_bytes()) {
                let reason = String::from_utf8_lossy(reason);
                let (_, reason) = decode_failure(&reason);
                reasons.push(format!("rank 0 refuses the group: {reason}"));
            }
            let id = std::str::from_utf8(text).ok().and_then(Nonce::parse);
            if let Some(reason) = id.and_then(|id| self.failures.get(&id)) {
                let reason = String::from_utf8_lossy(reason);
                reasons.push(decode_failure(&reason).1.to_owned());
            }
        }
        reasons
    }
}

/// Describes the ranks whose world size differs from `size`, or whose version or security setting
/// differs from that of the lowest rank.
fn disagreements(entries: &BTreeMap<Rank, RendezvousEntry>, size: WorldSize) -> Vec<String> {
    let Some((first, reference)) = entries.first_key_value() else { return Vec::new() };
    let mut found = Vec::new();
    for (rank, entry) in entries {
        if entry.size != size {
            found.push(format!("rank {rank} has a world size of {}", entry.size));
        }
        if entry.version != reference.version {
            let (own, other) = (&entry.version, &reference.version);
            found.push(format!("rank {rank} runs libdist {own}, but rank {first} runs {other}"));
        }
        if entry.security != reference.security {
            let (own, other) = (&entry.security, &reference.security);
            let name = config::SECURITY.name;
            found.push(format!("rank {rank} has {name}={own}, but rank {first} has {other}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::StoreExchange;
    use super::super::tests::{meet_all, rendezvous};
    use super::*;
    use crate::backend::BootstrapExchange as _;
    use crate::base::deadline::Deadline;
    use crate::base::error::Error;
    use crate::store::{HashStore, PrefixStore, Store};
    use std::sync::Arc;

    fn statuses_in(store: &Arc<dyn Store>) -> Vec<RendezvousStatus> {
        let soon = Deadline::after_ms(10_000);
        let keys = store.list_keys(&soon).unwrap();
        let value = |key: Vec<u8>| (store.get(&key, &soon).unwrap(), key);
        let pairs: Vec<_> = keys.into_iter().map(value).collect();
        rendezvous_statuses(pairs.iter().map(|(value, key)| (key.as_slice(), value.as_slice())))
    }

    fn hash_store() -> Arc<dyn Store> {
        Arc::new(HashStore::new())
    }

    #[test]
    fn complete_group_has_no_missing_ranks() {
        let store = hash_store();
        assert!(meet_all(&store, &[1, 2, 3]).iter().all(Result::is_ok));
        let found = statuses_in(&store);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].group.as_str(), found[0].size, found[0].is_complete), ("t", 3, true));
        assert_eq!(found[0].arrived[&1], "process 2");
        assert!(found[0].missing().is_empty() && found[0].problems.is_empty(), "{found:?}");
    }

    #[test]
    fn absent_ranks_are_listed_behind_a_store_prefix() {
        let store = hash_store();
        let inner: Arc<dyn Store> = Arc::new(PrefixStore::new("job/7", store.clone()));
        let soon = Deadline::after_ms(20);
        rendezvous(&inner, 0, 4, 1, &soon).meet().unwrap_err();
        rendezvous(&inner, 3, 4, 2, &soon).meet().unwrap_err();
        let found = statuses_in(&store);
        assert_eq!((found[0].prefix.as_str(), found[0].group.as_str()), ("job/7", "t"));
        assert_eq!((found[0].missing(), found[0].is_complete), (vec![1, 2], false));
    }

    #[test]
    fn refusals_and_disagreements_are_reported() {
        let store = hash_store();
        let deadline = Deadline::after_ms(20_000);
        std::thread::scope(|scope| {
            let one = scope.spawn(|| rendezvous(&store, 1, 3, 2, &deadline).meet());
            rendezvous(&store, 0, 2, 1, &deadline).meet().unwrap_err();
            one.join().unwrap().unwrap_err();
        });
        let text = statuses_in(&store).remove(0).problems.join("\n");
        assert!(text.contains("rank 1 has a world size of 3"), "{text}");
        assert_eq!(text.matches("rank 0 refuses the group").count(), 1, "{text}");
    }

    #[test]
    fn failed_rank_is_reported_until_it_rejoins() {
        let store = hash_store();
        let deadline = Deadline::after_ms(20_000);
        let id = meet_all(&store, &[1, 2]).remove(0).unwrap();
        let one = rendezvous(&store, 1, 2, 2, &deadline);
        StoreExchange { rendezvous: &one, id }.publish_failure(&Error::invalid("no memory"));
        let text = statuses_in(&store).remove(0).problems.join("\n");
        assert_eq!(text, "rank 1 (process 2) failed to create the group: no memory");
        assert!(meet_all(&store, &[3, 4]).iter().all(Result::is_ok));
        assert!(statuses_in(&store)[0].problems.is_empty());
    }

    #[test]
    fn foreign_keys_are_ignored_and_bad_values_reported() {
        for key in
            [&b"rank/1"[..], b"dist/x/rank/99999999", b"dist/x/rank/-1", b"a/rank/0", b"\xff"]
        {
            assert!(!is_rendezvous_key(key), "{}", key.escape_ascii());
        }
        let found = rendezvous_statuses([(&b"dist/x/rank/0"[..], &b"nonsense"[..])].into_iter());
        assert_eq!((found[0].size, found[0].is_complete), (0, false));
        assert!(found[0].problems[0].contains("the store entry of rank 0"), "{found:?}");
    }
}
