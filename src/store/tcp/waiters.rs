//! The pending waits of all connections. A connection waits for keys and queues, or for a barrier.
//! The module knows nothing of values and sockets.
//!
//! Each connection has at most one pending wait. A new wait replaces the pending one. Each wait
//! gets a *ticket*, a number that increases with each wait, so that the waits for one name can be
//! sorted by arrival. This order matters for queues: a new item wakes only the first connection
//! that waits for this queue and for nothing else. The item stays in the queue, and is *offered* to
//! this connection until the connection sends its next request, which usually takes the item. A
//! queue with an item is present, so all waits for it are fulfilled for this name. For example:
//!
//! | request | waits for `a` | waits for `q` | effect |
//! |---|---|---|---|
//! | connection 1: WAIT a, q | 1 | 1 | |
//! | connection 2: WAIT q | 1 | 1, 2 | |
//! | connection 3: push to queue q | 1 | | 2 is woken and gets the offer; 1 waits only for a |
//! | connection 3: SET a | | | connection 1 is woken |

use std::collections::{BTreeMap, HashMap, HashSet};

/// Identifies a connection for the lifetime of the server.
pub(super) type ConnectionId = u64;

/// For each name, the waiting connections, sorted by ticket and so by arrival. No list is empty.
type WaitLists = HashMap<Vec<u8>, BTreeMap<u64, ConnectionId>>;

/// All pending waits.
#[derive(Debug, Default)]
pub(super) struct WaiterQueues {
    key_waits: WaitLists,
    barrier_waits: WaitLists,
    pending: HashMap<ConnectionId, PendingWait>,
    /// The queue whose item is offered to a connection. The entry exists until the connection sends
    /// a request.
    offered: HashMap<ConnectionId, Vec<u8>>,
    next_ticket: u64,
    /// The approximate memory of the keys of all pending waits for keys.
    bytes: usize,
}

/// The approximate memory of one key of a wait, in addition to the bytes of its name. The key has
/// one entry in `key_waits` and one in `pending`.
const WAIT_OVERHEAD_BYTES: usize = 128;

/// One connection's wait.
#[derive(Debug)]
enum PendingWait {
    /// A wait for keys and queues. `missing` contains the names that do not exist yet. It is never
    /// empty.
    Keys { ticket: u64, missing: HashSet<Vec<u8>> },
    /// A wait for the barrier `name` to complete.
    Barrier { ticket: u64, name: Vec<u8> },
}

impl WaiterQueues {
    /// Returns the approximate memory of a wait for these keys.
    pub(super) fn total_cost(missing: &HashSet<Vec<u8>>) -> usize {
        missing.iter().map(|key| key_cost(key)).sum()
    }

    /// Returns the approximate memory of all pending waits for keys.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the connection's wait to `missing`, which is not empty.
    pub(super) fn add_key_wait(&mut self, connection: ConnectionId, missing: HashSet<Vec<u8>>) {
        let ticket = self.take_ticket();
        self.bytes += Self::total_cost(&missing);
        for key in &missing {
            self.key_waits.entry(key.clone()).or_default().insert(ticket, connection);
        }
        self.replace(connection, PendingWait::Keys { ticket, missing });
    }

    /// Sets the connection's wait to a barrier.
    pub(super) fn add_barrier_wait(&mut self, connection: ConnectionId, name: Vec<u8>) {
        let ticket = self.take_ticket();
        self.barrier_waits.entry(name.clone()).or_default().insert(ticket, connection);
        self.replace(connection, PendingWait::Barrier { ticket, name });
    }

    /// Removes the connection's wait, if any, without a reply.
    pub(super) fn cancel_wait(&mut self, connection: ConnectionId) {
        if let Some(pending) = self.pending.remove(&connection) {
            self.remove_wait(&pending);
        }
    }

    /// Removes `key`, which now exists, from all waits. Appends the connections whose wait is now
    /// complete to `woken`.
    pub(super) fn wake_key_waiters(&mut self, key: &[u8], woken: &mut Vec<ConnectionId>) {
        if self.key_waits.is_empty() {
            return;
        }
        for connection in self.key_waits.remove(key).unwrap_or_default().into_values() {
            self.resolve_key(connection, key, woken);
        }
    }

    /// Offers an item of a queue to the first connection that waits for this queue and for nothing
    /// else. Appends this connection to `woken`. Earlier waiters of this queue also wait for other
    /// keys, so they cannot take the item yet. Their waits now count this queue as present.
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

    /// Ends the connection's offer, if it has one, and returns the queue of the offered item.
    pub(super) fn end_offer(&mut self, connection: ConnectionId) -> Option<Vec<u8>> {
        if self.offered.is_empty() {
            return None;
        }
        self.offered.remove(&connection)
    }

    /// Ends all waits for the barrier `name`, which is complete. Appends their connections to
    /// `woken`.
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

    /// Removes a wait from `key_waits` or `barrier_waits`.
    fn remove_wait(&mut self, pending: &PendingWait) {
        match pending {
            PendingWait::Keys { ticket, missing } => {
                self.bytes -= Self::total_cost(missing);
                missing.iter().for_each(|key| remove_ticket(&mut self.key_waits, key, *ticket));
            }
            PendingWait::Barrier { ticket, name } => {
                remove_ticket(&mut self.barrier_waits, name, *ticket)
            }
        }
    }

    /// Removes `key` from the missing keys of a connection's wait. If the wait is now complete,
    /// appends the connection to `woken` and returns true.
    fn resolve_key(
        &mut self,
        connection: ConnectionId,
        key: &[u8],
        woken: &mut Vec<ConnectionId>,
    ) -> bool {
        let Some(PendingWait::Keys { missing, .. }) = self.pending.get_mut(&connection) else {
            return false;
        };
        if missing.remove(key) {
            self.bytes -= key_cost(key);
        }
        if !missing.is_empty() {
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

    /// The caller has checked that the queue has items. Returns true if a connection waits for the
    /// queue, but no connection was offered an item.
    #[cfg(any(test, fuzzing))]
    pub(super) fn has_unserved_waiters(&self, queue: &[u8]) -> bool {
        let was_offered = |(connection, offered): (&ConnectionId, &Vec<u8>)| {
            offered == queue && !self.is_waiting(*connection)
        };
        self.key_waits.contains_key(queue) && !self.offered.iter().any(was_offered)
    }

    /// Returns true if the lists contain exactly the pending waits, and no connection waits for an
    /// existing key.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_consistent(&self, exists: impl Fn(&[u8]) -> bool) -> bool {
        let is_listed = |lists: &WaitLists, key: &[u8], ticket: u64| {
            lists.get(key).is_some_and(|list| list.contains_key(&ticket))
        };
        let all_listed = self.pending.values().all(|pending| match pending {
            PendingWait::Keys { ticket, missing } => {
                !missing.is_empty()
                    && missing
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
                PendingWait::Keys { missing, .. } => missing.len(),
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
