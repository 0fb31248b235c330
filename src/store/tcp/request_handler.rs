//! The effect of each request on the server: it changes the values, manages the pending waits and
//! builds the replies.
//!
//! The module does no I/O. Its input is a request. Its output is the bytes of the reply, and the
//! list of connections whose wait is complete. Each connection has at most one pending WAIT or
//! BARRIER; a new WAIT or BARRIER replaces it.
//!
//! An item that is pushed to a queue wakes only one waiter. The server *offers* the item to this
//! waiter: it tells the waiter that the queue has an item, and expects its QUEUE_POP as the next
//! request.
//!
//! The module differs from torch's server in five points:
//!
//! - CHECK sees only keys. It ignores a queue of the same name.
//! - A failed compare-and-set on a missing key wakes no waiter, because the key is still missing.
//! - A barrier counts its callers in a key. Its first caller creates this key, and so wakes the
//!   connections that wait for a key of this name.
//! - If a waiter does not take the item that it was offered, the server offers the item to the next
//!   waiter. This happens if the waiter disconnects, or if its next request is not QUEUE_POP for
//!   this queue.
//! - If the first waiter of a queue also waits for other keys that are still missing, it cannot
//!   take the item yet. The server then offers the item to the next waiter.

#[cfg(any(test, fuzzing))]
use super::super::table;
use super::super::table::{KeyValueTable, len_as_i64};
use super::handshake;
use super::proto::{self, Bytes, ProtocolViolation, StoreRequest};
use super::waiters::{ConnectionId, WaiterQueues};
use std::collections::HashSet;

/// The limit of the reply bytes that one connection has not read. It is also the limit of one
/// reply.
pub(super) const MAX_PENDING_BYTES: usize = 256 << 20;

/// The limit of the memory for the keys of one WAIT.
const MAX_WAIT_BYTES: usize = 64 << 20;
/// The limit of the memory for the keys of all pending waits.
const MAX_WAITS_BYTES: usize = 512 << 20;

/// The longest value that APPEND may create. The limit is below [`MAX_PENDING_BYTES`], so that GET
/// can always return the value.
const MAX_STORED_BYTES: usize = MAX_PENDING_BYTES / 2;

/// The reasons for disconnecting a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientRejection {
    #[error(transparent)]
    Protocol(#[from] ProtocolViolation),
    #[error(transparent)]
    HandshakeFailed(#[from] handshake::AuthRefusal),
    #[error("its first request is not VALIDATE")]
    NotValidated,
    #[error("it sent the magic number {0:#010x} instead of {expected:#010x}", expected = proto::MAGIC)]
    WrongMagic(u32),
    #[error("it sent VALIDATE twice")]
    ValidatedTwice,
    #[error("it sent ADD for a value that is not a number")]
    NotANumber,
    #[error("it sent BARRIER for a key whose value is not a number")]
    BarrierKeyNotANumber,
    #[error("it sent APPEND for a value that would become longer than {MAX_STORED_BYTES} bytes")]
    ValueTooLong,
    #[error(
        "it waits for keys of {0} bytes; the maximum is {MAX_WAIT_BYTES} bytes, and {MAX_WAITS_BYTES} bytes for all clients"
    )]
    WaitTooLarge(usize),
    #[error("the store has reached its limit of {0} bytes")]
    StoreFull(usize),
    #[error("it left more than {MAX_PENDING_BYTES} bytes of replies unread")]
    AnswersUnread,
    #[error(
        "the server's buffers are full, and this client uses the most: {0} bytes of requests and replies"
    )]
    TooMuchBuffered(usize),
    #[error("it did not send VALIDATE in time")]
    ValidationTimeout,
    #[error("its connection is encrypted already")]
    EncryptedTwice,
    #[error("newer connections took its place before it sent VALIDATE")]
    Evicted,
}

/// The state of a server: the stored values and the pending waits.
#[derive(Debug)]
pub(super) struct RequestHandler {
    table: KeyValueTable,
    waiters: WaiterQueues,
    /// The limit of the table's memory in bytes.
    max_bytes: usize,
}

impl RequestHandler {
    /// Creates the handler of an empty store, whose values may take about `max_bytes` of memory.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { table: KeyValueTable::default(), waiters: WaiterQueues::default(), max_bytes }
    }

    /// Sets a key before clients connect.
    pub(super) fn insert(&mut self, key: Bytes<'_>, value: &[u8]) {
        self.table.set(key.into_owned(), value.to_vec());
    }

    /// Serves one request of a connection. Appends an immediate reply to `answer`. Appends to
    /// `woken` the connections whose WAIT or BARRIER is now complete. The caller sends each of them
    /// [`proto::READY`].
    ///
    /// # Errors
    /// The reason to disconnect the client.
    pub(super) fn serve(
        &mut self,
        from: ConnectionId,
        request: StoreRequest<'_>,
        answer: &mut Vec<u8>,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), ClientRejection> {
        if let Some(queue) = self.waiters.end_offer(from)
            && !matches!(&request, StoreRequest::QueuePop(asked) if **asked == *queue)
        {
            self.offer_next_item(&queue, woken);
        }
        match request {
            StoreRequest::Validate(_) => return Err(ClientRejection::ValidatedTwice),
            StoreRequest::Set(key, value) => self.set(key, value, woken)?,
            StoreRequest::CompareSet(key, expected, desired) => {
                self.check_capacity(key.len() + desired.len())?;
                let outcome = self.table.compare_set(key.to_vec(), &expected, &desired);
                proto::put_bytes(answer, &outcome.value);
                if outcome.stored {
                    self.waiters.wake_key_waiters(&key, woken);
                }
            }
            StoreRequest::Get(key) => self.get(&key, answer)?,
            StoreRequest::Add(key, amount) => {
                let sum = self.add(&key, amount, woken)?;
                proto::put_i64(answer, sum.ok_or(ClientRejection::NotANumber)?);
            }
            StoreRequest::Check(keys) => {
                let ready = keys.iter().all(|key| self.table.contains(key));
                answer.push(if ready { proto::READY } else { proto::NOT_READY });
            }
            StoreRequest::Wait(keys) => self.wait(from, keys, answer)?,
            StoreRequest::NumKeys => proto::put_i64(answer, len_as_i64(self.table.len())),
            StoreRequest::DeleteKey(key) => {
                proto::put_i64(answer, i64::from(self.table.delete(&key)));
            }
            StoreRequest::Append(key, value) => self.append(key, &value, woken)?,
            StoreRequest::MultiGet(keys) => {
                for key in &keys {
                    self.get(key, answer)?;
                }
            }
            StoreRequest::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value, woken)?;
                }
            }
            StoreRequest::CancelWait => {
                self.waiters.cancel_wait(from);
                answer.push(proto::WAIT_CANCELED);
            }
            StoreRequest::Ping(nonce) => answer.extend_from_slice(&nonce.to_le_bytes()),
            StoreRequest::QueuePush(queue, item) => {
                self.check_capacity(queue.len() + item.len())?;
                self.table.push(queue.to_vec(), item.into_owned());
                self.waiters.offer_item(&queue, woken);
            }
            StoreRequest::QueuePop(queue) => self.pop(&queue, answer)?,
            StoreRequest::QueueLen(queue) => {
                proto::put_i64(answer, len_as_i64(self.table.queue_len(&queue)));
            }
            StoreRequest::ListKeys => self.list_keys(answer)?,
            StoreRequest::Barrier(key, size) => self.barrier(from, key, size, answer, woken)?,
        }
        Ok(())
    }

    /// Removes a disconnected client and its wait. If this client was offered an item of a queue,
    /// offers the item to the next waiter.
    pub(super) fn remove_connection(
        &mut self,
        connection: ConnectionId,
        woken: &mut Vec<ConnectionId>,
    ) {
        self.waiters.cancel_wait(connection);
        if let Some(queue) = self.waiters.end_offer(connection) {
            self.offer_next_item(&queue, woken);
        }
    }

    /// Asserts that the table and the pending waits are consistent with each other.
    #[cfg(any(test, fuzzing))]
    pub(super) fn assert_consistent(&self) {
        let table = &self.table;
        assert!(table.has_consistent_size(), "the table's size differs from the sum of its parts");
        let limit = self.max_bytes + table::MAX_ADD_GROWTH_BYTES;
        assert!(table.bytes() <= limit, "{} bytes, {limit} allowed", table.bytes());
        assert!(self.waiters.is_consistent(|key| table.contains(key)), "{:?}", self.waiters);
        for queue in table.queues() {
            assert!(!self.waiters.has_unserved_waiters(queue), "{queue:?}: {:?}", self.waiters);
        }
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn is_waiting(&self, connection: ConnectionId) -> bool {
        self.waiters.is_waiting(connection)
    }

    /// Returns true if there are no pending waits.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_idle(&self) -> bool {
        self.waiters.is_empty()
    }

    fn offer_next_item(&mut self, queue: &[u8], woken: &mut Vec<ConnectionId>) {
        if self.table.queue_len(queue) > 0 {
            self.waiters.offer_item(queue, woken);
        }
    }

    /// Rejects a change that would add `bytes` to the table, if the table would then exceed its
    /// memory limit.
    fn check_capacity(&self, bytes: usize) -> Result<(), ClientRejection> {
        if self.table.bytes().saturating_add(bytes) > self.max_bytes {
            return Err(ClientRejection::StoreFull(self.max_bytes));
        }
        Ok(())
    }

    fn set(
        &mut self,
        key: Bytes<'_>,
        value: Bytes<'_>,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), ClientRejection> {
        self.check_capacity(key.len() + value.len())?;
        self.waiters.wake_key_waiters(&key, woken);
        self.table.set(key.into_owned(), value.into_owned());
        Ok(())
    }

    fn get(&self, key: &[u8], answer: &mut Vec<u8>) -> Result<(), ClientRejection> {
        put_value(answer, self.table.get(key).unwrap_or_default())
    }

    /// Adds to a counter and returns the sum, or `None` if the value is not a number.
    fn add(
        &mut self,
        key: &[u8],
        amount: i64,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<Option<i64>, ClientRejection> {
        self.check_capacity(key.len())?;
        let Ok(sum) = self.table.add(key.to_vec(), amount) else { return Ok(None) };
        self.waiters.wake_key_waiters(key, woken);
        Ok(Some(sum))
    }

    fn pop(&mut self, queue: &[u8], answer: &mut Vec<u8>) -> Result<(), ClientRejection> {
        proto::put_i64(answer, len_as_i64(self.table.queue_len(queue)));
        self.table.pop(queue).map_or(Ok(()), |item| put_value(answer, &item))
    }

    fn list_keys(&self, answer: &mut Vec<u8>) -> Result<(), ClientRejection> {
        let keys = self.table.keys();
        proto::put_i64(answer, len_as_i64(keys.len()));
        keys.into_iter().try_for_each(|key| put_value(answer, key))
    }

    fn append(
        &mut self,
        key: Bytes<'_>,
        bytes: &[u8],
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), ClientRejection> {
        self.check_capacity(key.len() + bytes.len())?;
        if self.table.get(&key).map_or(0, <[u8]>::len) + bytes.len() > MAX_STORED_BYTES {
            return Err(ClientRejection::ValueTooLong);
        }
        self.waiters.wake_key_waiters(&key, woken);
        self.table.append(key.into_owned(), bytes);
        Ok(())
    }

    fn wait(
        &mut self,
        from: ConnectionId,
        keys: Vec<Bytes<'_>>,
        answer: &mut Vec<u8>,
    ) -> Result<(), ClientRejection> {
        self.waiters.cancel_wait(from);
        let missing: HashSet<_> = keys
            .into_iter()
            .filter(|key| !self.table.has_key_or_queue(key))
            .map(Bytes::into_owned)
            .collect();
        if missing.is_empty() {
            answer.push(proto::READY);
            return Ok(());
        }
        let bytes = WaiterQueues::total_cost(&missing);
        if bytes > MAX_WAIT_BYTES || bytes + self.waiters.bytes() > MAX_WAITS_BYTES {
            return Err(ClientRejection::WaitTooLarge(bytes));
        }
        self.waiters.add_key_wait(from, missing);
        Ok(())
    }

    fn barrier(
        &mut self,
        from: ConnectionId,
        key: Bytes<'_>,
        size: i64,
        answer: &mut Vec<u8>,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), ClientRejection> {
        self.waiters.cancel_wait(from);
        let arrived = self.add(&key, 1, woken)?.ok_or(ClientRejection::BarrierKeyNotANumber)?;
        if arrived >= size {
            self.waiters.release_barrier(&key, woken);
            answer.push(proto::READY);
        } else {
            self.waiters.add_barrier_wait(from, key.into_owned());
        }
        Ok(())
    }
}

/// Appends a value to a reply, unless the reply becomes too long.
fn put_value(answer: &mut Vec<u8>, value: &[u8]) -> Result<(), ClientRejection> {
    if answer.len() + value.len() > MAX_PENDING_BYTES {
        return Err(ClientRejection::AnswersUnread);
    }
    proto::put_bytes(answer, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Bytes<'static>> {
        (b'a'..=b'd').prop_map(|letter| Bytes::Owned(vec![letter]))
    }

    fn request() -> impl Strategy<Value = StoreRequest<'static>> {
        let value = || vec(b'0'..=b'9', 0..3).prop_map(Bytes::Owned);
        prop_oneof![
            (key(), value()).prop_map(|(k, v)| StoreRequest::Set(k, v)),
            (key(), value(), value()).prop_map(|(k, e, d)| StoreRequest::CompareSet(k, e, d)),
            (key(), any::<i64>()).prop_map(|(k, n)| StoreRequest::Add(k, n)),
            vec(key(), 0..5).prop_map(StoreRequest::Wait),
            key().prop_map(StoreRequest::DeleteKey),
            (key(), value()).prop_map(|(k, v)| StoreRequest::Append(k, v)),
            vec((key(), value()), 0..3).prop_map(StoreRequest::MultiSet),
            Just(StoreRequest::CancelWait),
            (key(), value()).prop_map(|(k, v)| StoreRequest::QueuePush(k, v)),
            key().prop_map(StoreRequest::QueuePop),
            (key(), 0..3_i64).prop_map(|(k, n)| StoreRequest::Barrier(k, n)),
        ]
    }

    /// Returns the connections that a request wakes.
    fn woken_by(
        session: &mut RequestHandler,
        from: ConnectionId,
        request: StoreRequest<'_>,
    ) -> Vec<u64> {
        let mut woken = Vec::new();
        session.serve(from, request, &mut Vec::new(), &mut woken).unwrap();
        session.assert_consistent();
        woken
    }

    #[test]
    fn queue_item_skips_a_waiter_with_other_missing_keys() {
        let name = |letter: &'static [u8]| Bytes::Borrowed(letter);
        let session = &mut RequestHandler::new(1 << 20);
        // Connection 0 waits for two queues, and connections 1 and 2 for one of them each.
        woken_by(session, 0, StoreRequest::Wait(vec![name(b"a"), name(b"b")]));
        woken_by(session, 1, StoreRequest::Wait(vec![name(b"a")]));
        woken_by(session, 2, StoreRequest::Wait(vec![name(b"b")]));
        let push = |queue| StoreRequest::QueuePush(name(queue), name(b"item"));
        assert_eq!(woken_by(session, 3, push(b"a")), [1]);
        // Connection 0 now waits only for queue b, and it began to wait before connection 2.
        assert_eq!(woken_by(session, 3, push(b"b")), [0]);
        // Connection 0 does not take the item, so connection 2 is woken.
        assert_eq!(woken_by(session, 0, StoreRequest::NumKeys), [2]);
    }

    proptest! {
        #[test]
        fn no_connection_waits_for_existing_keys(script in vec((0_u64..3, request()), 0..60)) {
            let mut session = RequestHandler::new(1 << 20);
            // Whether each connection still waits for a reply to WAIT or BARRIER: at most one each.
            let mut pending = [false; 3];
            for (connection, request) in script {
                let (mut answer, mut woken) = (Vec::new(), Vec::new());
                let index = usize::try_from(connection).unwrap();
                match request {
                    StoreRequest::Wait(_) | StoreRequest::Barrier(..) => pending[index] = true,
                    StoreRequest::CancelWait => pending[index] = false,
                    _ => {}
                }
                let is_wait = matches!(request, StoreRequest::Wait(_) | StoreRequest::Barrier(..));
                let served = session.serve(connection, request, &mut answer, &mut woken);
                let refused = matches!(served, Err(ClientRejection::NotANumber | ClientRejection::BarrierKeyNotANumber));
                prop_assert!(served.is_ok() || refused);
                if refused {
                    session.remove_connection(connection, &mut woken);
                }
                if refused || is_wait && !answer.is_empty() {
                    pending[index] = false;
                }
                for id in woken {
                    let was = &mut pending[usize::try_from(id).unwrap()];
                    prop_assert!(*was, "a connection was woken without waiting, or twice");
                    *was = false;
                }
                session.assert_consistent();
                for (id, waits) in (0..).zip(pending) {
                    prop_assert_eq!(session.is_waiting(id), waits);
                }
            }
            (0..3).for_each(|connection| session.remove_connection(connection, &mut Vec::new()));
            prop_assert!(session.is_idle());
        }
    }
}
