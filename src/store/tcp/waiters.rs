//! Who waits for what: keys, items of queues, barriers. Knows nothing of values or sockets.
//!
//! Each connection has at most one pending wait; another one replaces it. Waits are kept in the
//! order in which they came, since an item of a queue wakes one waiter only: the first.

use super::session::ConnectionId;
use std::collections::{BTreeMap, HashMap, HashSet};

/// By name: the connections that wait for it, by ticket, and so in order of arrival. None is empty.
type Lists = HashMap<Vec<u8>, BTreeMap<u64, ConnectionId>>;

/// All pending waits.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    for_keys: Lists,
    in_barriers: Lists,
    pending: HashMap<ConnectionId, Pending>,
    /// Connections that were told of an item and have not asked for anything since, and its queue.
    offered: HashMap<ConnectionId, Vec<u8>>,
    next_ticket: u64,
    /// What the keys of all pending waits take, roughly.
    bytes: usize,
}

/// What a key costs besides its bytes, roughly: it is in two tables.
const OVERHEAD_BYTES: usize = 128;

/// One connection's wait.
#[derive(Debug)]
enum Pending {
    /// For these keys. Never empty.
    Keys { ticket: u64, lacking: HashSet<Vec<u8>> },
    /// For the others to come to this barrier.
    Barrier { ticket: u64, name: Vec<u8> },
}

impl Waiters {
    /// What a wait for these keys takes, roughly.
    pub(super) fn cost(lacking: &HashSet<Vec<u8>>) -> usize {
        lacking.iter().map(|key| cost(key)).sum()
    }

    /// What all pending waits for keys take, roughly.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// `connection` waits for these keys, of which there is at least one, and for nothing else.
    pub(super) fn wait(&mut self, connection: ConnectionId, lacking: HashSet<Vec<u8>>) {
        let ticket = self.ticket();
        self.bytes += Self::cost(&lacking);
        for key in &lacking {
            self.for_keys.entry(key.clone()).or_default().insert(ticket, connection);
        }
        self.replace(connection, Pending::Keys { ticket, lacking });
    }

    /// `connection` waits in a barrier, and for nothing else.
    pub(super) fn join(&mut self, connection: ConnectionId, name: Vec<u8>) {
        let ticket = self.ticket();
        self.in_barriers.entry(name.clone()).or_default().insert(ticket, connection);
        self.replace(connection, Pending::Barrier { ticket, name });
    }

    /// The connection's wait, if it has one, is over without an answer.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        if let Some(pending) = self.pending.remove(&connection) {
            self.strike(&pending);
        }
    }

    /// A key exists now. Adds those whose wait is over to `woken`.
    pub(super) fn key_exists(&mut self, key: &[u8], woken: &mut Vec<ConnectionId>) {
        if self.for_keys.is_empty() {
            return;
        }
        for connection in self.for_keys.remove(key).unwrap_or_default().into_values() {
            self.cross_off(connection, key, woken);
        }
    }

    /// A queue has got an item: offers it to the first who waits for nothing but it, and adds that
    /// connection to `woken`. Those before it lack the queue no longer, but could not take the
    /// item, since they lack more.
    pub(super) fn offer(&mut self, queue: &[u8], woken: &mut Vec<ConnectionId>) {
        while let Some(list) = self.for_keys.get_mut(queue) {
            let first = list.pop_first();
            if list.is_empty() {
                self.for_keys.remove(queue);
            }
            let Some((_, connection)) = first else { return };
            if self.cross_off(connection, queue, woken) {
                self.offered.insert(connection, queue.to_vec());
                return;
            }
        }
    }

    /// The queue of which the connection was offered an item; the offer ends.
    pub(super) fn end_offer(&mut self, connection: ConnectionId) -> Option<Vec<u8>> {
        if self.offered.is_empty() {
            return None;
        }
        self.offered.remove(&connection)
    }

    /// A barrier is complete. Adds those who were in it to `woken`.
    pub(super) fn release(&mut self, name: &[u8], woken: &mut Vec<ConnectionId>) {
        for connection in self.in_barriers.remove(name).unwrap_or_default().into_values() {
            self.pending.remove(&connection);
            woken.push(connection);
        }
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn replace(&mut self, connection: ConnectionId, pending: Pending) {
        if let Some(old) = self.pending.insert(connection, pending) {
            self.strike(&old);
        }
    }

    /// Takes a wait off the lists.
    fn strike(&mut self, pending: &Pending) {
        match pending {
            Pending::Keys { ticket, lacking } => {
                self.bytes -= Self::cost(lacking);
                lacking.iter().for_each(|key| strike(&mut self.for_keys, key, *ticket));
            }
            Pending::Barrier { ticket, name } => strike(&mut self.in_barriers, name, *ticket),
        }
    }

    /// The connection lacks `key` no longer. True where that ended its wait; then it is added to
    /// `woken`.
    fn cross_off(
        &mut self,
        connection: ConnectionId,
        key: &[u8],
        woken: &mut Vec<ConnectionId>,
    ) -> bool {
        let Some(Pending::Keys { lacking, .. }) = self.pending.get_mut(&connection) else {
            return false;
        };
        if lacking.remove(key) {
            self.bytes -= cost(key);
        }
        if !lacking.is_empty() {
            return false;
        }
        self.pending.remove(&connection);
        woken.push(connection);
        true
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn waits(&self, connection: ConnectionId) -> bool {
        self.pending.contains_key(&connection)
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn is_empty(&self) -> bool {
        self.for_keys.is_empty()
            && self.in_barriers.is_empty()
            && self.pending.is_empty()
            && self.offered.is_empty()
            && self.bytes == 0
    }

    /// Whether connections wait for a queue, which is not empty, while none has been told that it
    /// may take an item.
    #[cfg(any(test, fuzzing))]
    pub(super) fn are_kept_from(&self, queue: &[u8]) -> bool {
        let told = |(connection, offered): (&ConnectionId, &Vec<u8>)| {
            offered == queue && !self.waits(*connection)
        };
        self.for_keys.contains_key(queue) && !self.offered.iter().any(told)
    }

    /// Whether lists and waits say the same, and nobody waits for a key that `exists`.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_consistent(&self, exists: impl Fn(&[u8]) -> bool) -> bool {
        let listed = |lists: &Lists, key: &[u8], ticket: u64| {
            lists.get(key).is_some_and(|list| list.contains_key(&ticket))
        };
        let all_listed = self.pending.values().all(|pending| match pending {
            Pending::Keys { ticket, lacking } => {
                !lacking.is_empty()
                    && lacking
                        .iter()
                        .all(|key| listed(&self.for_keys, key, *ticket) && !exists(key))
            }
            Pending::Barrier { ticket, name } => listed(&self.in_barriers, name, *ticket),
        });
        let lists = || self.for_keys.values().chain(self.in_barriers.values());
        let entries: usize = self
            .pending
            .values()
            .map(|pending| match pending {
                Pending::Keys { lacking, .. } => lacking.len(),
                Pending::Barrier { .. } => 1,
            })
            .sum();
        let none_empty = lists().all(|list| !list.is_empty());
        all_listed && none_empty && lists().map(BTreeMap::len).sum::<usize>() == entries
    }
}

fn cost(key: &[u8]) -> usize {
    2 * key.len() + OVERHEAD_BYTES
}

fn strike(lists: &mut Lists, key: &[u8], ticket: u64) {
    if let Some(list) = lists.get_mut(key) {
        list.remove(&ticket);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}
