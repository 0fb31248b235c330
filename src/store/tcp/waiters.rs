//! Who waits for what: keys, items of queues, barriers. Knows nothing of values or sockets.
//!
//! Each connection has at most one pending wait; another one replaces it. Waits are kept in the
//! order in which they came, since an item of a queue wakes one waiter only: the first.

use super::request_handler::ConnectionId;
use std::collections::{BTreeMap, HashMap, HashSet};

/// By name: the connections that wait for it, by ticket, and so in order of arrival. None is empty.
type WaitLists = HashMap<Vec<u8>, BTreeMap<u64, ConnectionId>>;

/// All pending waits.
#[derive(Debug, Default)]
pub(super) struct WaiterQueues {
    key_waits: WaitLists,
    barrier_waits: WaitLists,
    pending: HashMap<ConnectionId, PendingWait>,
    /// Connections that were told of an item and have not asked for anything since, and its queue.
    offered: HashMap<ConnectionId, Vec<u8>>,
    next_ticket: u64,
    /// What the keys of all pending waits take, roughly.
    bytes: usize,
}

/// What a key costs besides its bytes, roughly: it is in two tables.
const WAIT_OVERHEAD_BYTES: usize = 128;

/// One connection's wait.
#[derive(Debug)]
enum PendingWait {
    /// For these keys. Never empty.
    Keys { ticket: u64, lacking: HashSet<Vec<u8>> },
    /// For the others to come to this barrier.
    Barrier { ticket: u64, name: Vec<u8> },
}

impl WaiterQueues {
    /// What a wait for these keys takes, roughly.
    pub(super) fn total_cost(lacking: &HashSet<Vec<u8>>) -> usize {
        lacking.iter().map(|key| key_cost(key)).sum()
    }

    /// What all pending waits for keys take, roughly.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// `connection` waits for these keys, of which there is at least one, and for nothing else.
    pub(super) fn add_key_wait(&mut self, connection: ConnectionId, lacking: HashSet<Vec<u8>>) {
        let ticket = self.take_ticket();
        self.bytes += Self::total_cost(&lacking);
        for key in &lacking {
            self.key_waits.entry(key.clone()).or_default().insert(ticket, connection);
        }
        self.replace(connection, PendingWait::Keys { ticket, lacking });
    }

    /// `connection` waits in a barrier, and for nothing else.
    pub(super) fn add_barrier_wait(&mut self, connection: ConnectionId, name: Vec<u8>) {
        let ticket = self.take_ticket();
        self.barrier_waits.entry(name.clone()).or_default().insert(ticket, connection);
        self.replace(connection, PendingWait::Barrier { ticket, name });
    }

    /// The connection's wait, if it has one, is over without an answer.
    pub(super) fn cancel_wait(&mut self, connection: ConnectionId) {
        if let Some(pending) = self.pending.remove(&connection) {
            self.remove_wait(&pending);
        }
    }

    /// A key exists now. Adds those whose wait is over to `woken_clients`.
    pub(super) fn wake_key_waiters(&mut self, key: &[u8], woken: &mut Vec<ConnectionId>) {
        if self.key_waits.is_empty() {
            return;
        }
        for connection in self.key_waits.remove(key).unwrap_or_default().into_values() {
            self.resolve_key(connection, key, woken);
        }
    }

    /// A queue has got an item: offers it to the first who waits for nothing but it, and adds that
    /// connection to `woken_clients`. Those before it lack the queue no longer, but could not take
    /// the item, since they lack more.
    pub(super) fn offer_item(&mut self, queue: &[u8], woken: &mut Vec<ConnectionId>) {
        while let Some(list) = self.key_waits.get_mut(queue) {
            let first = list.pop_first();
            if list.is_empty() {
                self.key_waits.remove(queue);
            }
            let Some((_, connection)) = first else { return };
            if self.resolve_key(connection, queue, woken) {
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

    /// A barrier is complete. Adds those who were in it to `woken_clients`.
    pub(super) fn release_barrier(&mut self, name: &[u8], woken: &mut Vec<ConnectionId>) {
        for connection in self.barrier_waits.remove(name).unwrap_or_default().into_values() {
            self.pending.remove(&connection);
            woken.push(connection);
        }
    }

    fn take_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn replace(&mut self, connection: ConnectionId, pending: PendingWait) {
        if let Some(old) = self.pending.insert(connection, pending) {
            self.remove_wait(&old);
        }
    }

    /// Takes a wait off the lists.
    fn remove_wait(&mut self, pending: &PendingWait) {
        match pending {
            PendingWait::Keys { ticket, lacking } => {
                self.bytes -= Self::total_cost(lacking);
                lacking.iter().for_each(|key| remove_ticket(&mut self.key_waits, key, *ticket));
            }
            PendingWait::Barrier { ticket, name } => {
                remove_ticket(&mut self.barrier_waits, name, *ticket)
            }
        }
    }

    /// The connection lacks `key` no longer. True where that ended its wait; then it is added to
    /// `woken_clients`.
    fn resolve_key(
        &mut self,
        connection: ConnectionId,
        key: &[u8],
        woken: &mut Vec<ConnectionId>,
    ) -> bool {
        let Some(PendingWait::Keys { lacking, .. }) = self.pending.get_mut(&connection) else {
            return false;
        };
        if lacking.remove(key) {
            self.bytes -= key_cost(key);
        }
        if !lacking.is_empty() {
            return false;
        }
        self.pending.remove(&connection);
        woken.push(connection);
        true
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn is_waiting(&self, connection: ConnectionId) -> bool {
        self.pending.contains_key(&connection)
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn is_empty(&self) -> bool {
        self.key_waits.is_empty()
            && self.barrier_waits.is_empty()
            && self.pending.is_empty()
            && self.offered.is_empty()
            && self.bytes == 0
    }

    /// Whether connections wait for a queue, which is not empty, while none has been told that it
    /// may take an item.
    #[cfg(any(test, fuzzing))]
    pub(super) fn has_unserved_waiters(&self, queue: &[u8]) -> bool {
        let was_offered = |(connection, offered): (&ConnectionId, &Vec<u8>)| {
            offered == queue && !self.is_waiting(*connection)
        };
        self.key_waits.contains_key(queue) && !self.offered.iter().any(was_offered)
    }

    /// Whether lists and waits say the same, and nobody waits for a key that `exists`.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_consistent(&self, exists: impl Fn(&[u8]) -> bool) -> bool {
        let is_listed = |lists: &WaitLists, key: &[u8], ticket: u64| {
            lists.get(key).is_some_and(|list| list.contains_key(&ticket))
        };
        let all_listed = self.pending.values().all(|pending| match pending {
            PendingWait::Keys { ticket, lacking } => {
                !lacking.is_empty()
                    && lacking
                        .iter()
                        .all(|key| is_listed(&self.key_waits, key, *ticket) && !exists(key))
            }
            PendingWait::Barrier { ticket, name } => is_listed(&self.barrier_waits, name, *ticket),
        });
        let lists = || self.key_waits.values().chain(self.barrier_waits.values());
        let entries: usize = self
            .pending
            .values()
            .map(|pending| match pending {
                PendingWait::Keys { lacking, .. } => lacking.len(),
                PendingWait::Barrier { .. } => 1,
            })
            .sum();
        let none_empty = lists().all(|list| !list.is_empty());
        all_listed && none_empty && lists().map(BTreeMap::len).sum::<usize>() == entries
    }
}

fn key_cost(key: &[u8]) -> usize {
    2 * key.len() + WAIT_OVERHEAD_BYTES
}

fn remove_ticket(lists: &mut WaitLists, key: &[u8], ticket: u64) {
    if let Some(list) = lists.get_mut(key) {
        list.remove(&ticket);
        if list.is_empty() {
            lists.remove(key);
        }
    }
}
