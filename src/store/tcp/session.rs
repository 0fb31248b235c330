//! What the server does for each request: the values, who waits for what, and the answers.
//!
//! Pure: a request goes in, the bytes of its answer and the connections that it wakes come out.
//! Each connection has at most one pending WAIT or BARRIER; another one replaces it.
//!
//! Differs from torch's server in five points. CHECK sees keys only, and not a queue of that name.
//! A failed compare-and-set on a missing key wakes nobody, since there is still nothing to be had.
//! The first to come to a barrier wakes those who wait for a key of that name, since it exists from
//! then on. And an item of a queue that was offered to a waiter who then does not take it (its wait
//! was cancelled, it has gone, it asks for something else) is offered to the next; and so is one
//! whose first waiter could not take it now, since it waits for other keys as well.

#[cfg(any(test, fuzzing))]
use super::super::table;
use super::super::table::{Table, count};
use super::handshake;
use super::proto::{self, Bytes, Request, Violation};
use super::waiters::Waiters;
use std::collections::HashSet;

/// Names a connection for as long as the server runs.
pub(super) type ConnectionId = u64;

/// The most bytes of answers that a connection may leave unread, and so also the longest answer.
pub(super) const MAX_PENDING_BYTES: usize = 256 << 20;

/// The most that the keys of one WAIT, and those of all pending ones, may take.
const MAX_WAIT_BYTES: usize = 64 << 20;
const MAX_WAITS_BYTES: usize = 512 << 20;

/// The longest value that APPEND may build, so that a GET can always answer it.
const MAX_STORED_BYTES: usize = MAX_PENDING_BYTES / 2;

/// Why a peer is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error(transparent)]
    NotAdmitted(#[from] handshake::Refusal),
    #[error("it did not begin as a store client does")]
    NotValidated,
    #[error("it sent the magic number {0:#010x} instead of {expected:#010x}", expected = proto::MAGIC)]
    WrongMagic(u32),
    #[error("it validated twice")]
    ValidatedTwice,
    #[error("it added to a value that is not a number")]
    NotANumber,
    #[error("it came to a barrier under a key whose value is not a number")]
    NoBarrier,
    #[error("it appended to a value until that was longer than {MAX_STORED_BYTES} bytes")]
    ValueTooLong,
    #[error(
        "it waits for keys of {0} bytes; {MAX_WAIT_BYTES} are allowed, and {MAX_WAITS_BYTES} for all clients"
    )]
    WaitTooLarge(usize),
    #[error("the store's {0} bytes are full")]
    Full(usize),
    #[error("it left more than {MAX_PENDING_BYTES} bytes of answers unread")]
    AnswersUnread,
    #[error("{0} bytes of its requests and answers were waiting, the most of all clients")]
    TooMuchHeld(usize),
    #[error("it did not validate in time")]
    Silent,
}

/// The state of a server.
#[derive(Debug)]
pub(super) struct Session {
    table: Table,
    waiters: Waiters,
    /// The most that the table may take.
    max_bytes: usize,
}

impl Session {
    /// A server without values, which will keep about `max_bytes` at most.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { table: Table::default(), waiters: Waiters::default(), max_bytes }
    }

    /// Serves one request of a connection: appends the answer, if there is one now, to `answer`,
    /// and the connections whose WAIT or BARRIER is over (each gets a [`proto::READY`]) to `woken`.
    ///
    /// # Errors
    /// The connection is to be dropped.
    pub(super) fn serve(
        &mut self,
        from: ConnectionId,
        request: Request<'_>,
        answer: &mut Vec<u8>,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), Refusal> {
        if let Some(queue) = self.waiters.end_offer(from)
            && !matches!(&request, Request::QueuePop(asked) if **asked == *queue)
        {
            self.offer(&queue, woken);
        }
        match request {
            Request::Validate(_) => return Err(Refusal::ValidatedTwice),
            Request::Set(key, value) => self.set(key, value, woken)?,
            Request::CompareSet(key, expected, desired) => {
                self.reserve(key.len() + desired.len())?;
                let done = self.table.compare_set(key.to_vec(), &expected, &desired);
                proto::put_bytes(answer, &done.value);
                if done.stored {
                    self.waiters.key_exists(&key, woken);
                }
            }
            Request::Get(key) => self.get(&key, answer)?,
            Request::Add(key, amount) => {
                let sum = self.add(&key, amount, woken)?;
                proto::put_i64(answer, sum.ok_or(Refusal::NotANumber)?);
            }
            Request::Check(keys) => {
                let ready = keys.iter().all(|key| self.table.contains(key));
                answer.push(if ready { proto::READY } else { proto::NOT_READY });
            }
            Request::Wait(keys) => self.wait(from, keys, answer)?,
            Request::NumKeys => proto::put_i64(answer, count(self.table.len())),
            Request::DeleteKey(key) => {
                proto::put_i64(answer, i64::from(self.table.delete(&key)));
            }
            Request::Append(key, value) => self.append(key, &value, woken)?,
            Request::MultiGet(keys) => {
                for key in &keys {
                    self.get(key, answer)?;
                }
            }
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value, woken)?;
                }
            }
            Request::CancelWait => {
                self.waiters.forget(from);
                answer.push(proto::WAIT_CANCELED);
            }
            Request::Ping(nonce) => answer.extend_from_slice(&nonce.to_le_bytes()),
            Request::QueuePush(queue, item) => {
                self.reserve(queue.len() + item.len())?;
                self.table.push(queue.to_vec(), item.into_owned());
                self.waiters.offer(&queue, woken);
            }
            Request::QueuePop(queue) => {
                proto::put_i64(answer, count(self.table.queue_len(&queue)));
                if let Some(item) = self.table.pop(&queue) {
                    put_value(answer, &item)?;
                }
            }
            Request::QueueLen(queue) => {
                proto::put_i64(answer, count(self.table.queue_len(&queue)));
            }
            Request::ListKeys => {
                let keys = self.table.keys();
                proto::put_i64(answer, count(keys.len()));
                for key in keys {
                    put_value(answer, key)?;
                }
            }
            Request::Barrier(key, size) => self.barrier(from, key, size, answer, woken)?,
        }
        Ok(())
    }

    /// The connection has gone, and with it what it waited for. What it was offered goes to the
    /// next.
    pub(super) fn forget(&mut self, connection: ConnectionId, woken: &mut Vec<ConnectionId>) {
        self.waiters.forget(connection);
        if let Some(queue) = self.waiters.end_offer(connection) {
            self.offer(&queue, woken);
        }
    }

    /// Panics where the parts contradict each other.
    #[cfg(any(test, fuzzing))]
    pub(super) fn check(&self) {
        let table = &self.table;
        assert!(table.is_counted(), "its size is not that of its parts");
        let limit = self.max_bytes + table::LARGEST_ADDITION_BYTES;
        assert!(table.bytes() <= limit, "{} bytes, {limit} allowed", table.bytes());
        assert!(self.waiters.is_consistent(|key| table.contains(key)), "{:?}", self.waiters);
        for queue in table.queues() {
            assert!(!self.waiters.are_kept_from(queue), "{queue:?}: {:?}", self.waiters);
        }
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn has_waiting(&self, connection: ConnectionId) -> bool {
        self.waiters.waits(connection)
    }

    /// Whether nobody waits for anything.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_idle(&self) -> bool {
        self.waiters.is_empty()
    }

    fn offer(&mut self, queue: &[u8], woken: &mut Vec<ConnectionId>) {
        if self.table.queue_len(queue) > 0 {
            self.waiters.offer(queue, woken);
        }
    }

    /// Refuses what would make the table too large.
    fn reserve(&self, bytes: usize) -> Result<(), Refusal> {
        if self.table.bytes().saturating_add(bytes) > self.max_bytes {
            return Err(Refusal::Full(self.max_bytes));
        }
        Ok(())
    }

    fn set(
        &mut self,
        key: Bytes<'_>,
        value: Bytes<'_>,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), Refusal> {
        self.reserve(key.len() + value.len())?;
        self.waiters.key_exists(&key, woken);
        self.table.set(key.into_owned(), value.into_owned());
        Ok(())
    }

    fn get(&self, key: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        put_value(answer, self.table.get(key).unwrap_or_default())
    }

    /// The sum; `None` where the value is not a number.
    fn add(
        &mut self,
        key: &[u8],
        amount: i64,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<Option<i64>, Refusal> {
        self.reserve(key.len())?;
        let Ok(sum) = self.table.add(key.to_vec(), amount) else { return Ok(None) };
        self.waiters.key_exists(key, woken);
        Ok(Some(sum))
    }

    fn append(
        &mut self,
        key: Bytes<'_>,
        bytes: &[u8],
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), Refusal> {
        self.reserve(key.len() + bytes.len())?;
        if self.table.get(&key).map_or(0, <[u8]>::len) + bytes.len() > MAX_STORED_BYTES {
            return Err(Refusal::ValueTooLong);
        }
        self.waiters.key_exists(&key, woken);
        self.table.append(key.into_owned(), bytes);
        Ok(())
    }

    fn wait(
        &mut self,
        from: ConnectionId,
        keys: Vec<Bytes<'_>>,
        answer: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        self.waiters.forget(from);
        let missing: HashSet<_> = keys
            .into_iter()
            .filter(|key| !self.table.is_there(key))
            .map(Bytes::into_owned)
            .collect();
        if missing.is_empty() {
            answer.push(proto::READY);
            return Ok(());
        }
        let bytes = Waiters::cost(&missing);
        if bytes > MAX_WAIT_BYTES || bytes + self.waiters.bytes() > MAX_WAITS_BYTES {
            return Err(Refusal::WaitTooLarge(bytes));
        }
        self.waiters.wait(from, missing);
        Ok(())
    }

    fn barrier(
        &mut self,
        from: ConnectionId,
        key: Bytes<'_>,
        size: i64,
        answer: &mut Vec<u8>,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), Refusal> {
        self.waiters.forget(from);
        let come = self.add(&key, 1, woken)?.ok_or(Refusal::NoBarrier)?;
        if come >= size {
            self.waiters.release(&key, woken);
            answer.push(proto::READY);
        } else {
            self.waiters.join(from, key.into_owned());
        }
        Ok(())
    }
}

/// Appends a value to an answer, unless the answer becomes too long.
fn put_value(answer: &mut Vec<u8>, value: &[u8]) -> Result<(), Refusal> {
    if answer.len() + value.len() > MAX_PENDING_BYTES {
        return Err(Refusal::AnswersUnread);
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

    fn request() -> impl Strategy<Value = Request<'static>> {
        let value = || vec(b'0'..=b'9', 0..3).prop_map(Bytes::Owned);
        prop_oneof![
            (key(), value()).prop_map(|(k, v)| Request::Set(k, v)),
            (key(), value(), value()).prop_map(|(k, e, d)| Request::CompareSet(k, e, d)),
            (key(), any::<i64>()).prop_map(|(k, n)| Request::Add(k, n)),
            vec(key(), 0..5).prop_map(Request::Wait),
            key().prop_map(Request::DeleteKey),
            (key(), value()).prop_map(|(k, v)| Request::Append(k, v)),
            vec((key(), value()), 0..3).prop_map(Request::MultiSet),
            Just(Request::CancelWait),
            (key(), value()).prop_map(|(k, v)| Request::QueuePush(k, v)),
            key().prop_map(Request::QueuePop),
            (key(), 0..3_i64).prop_map(|(k, n)| Request::Barrier(k, n)),
        ]
    }

    /// The connections that a request wakes.
    fn woken_by(session: &mut Session, from: ConnectionId, request: Request<'_>) -> Vec<u64> {
        let mut woken = Vec::new();
        session.serve(from, request, &mut Vec::new(), &mut woken).unwrap();
        session.check();
        woken
    }

    #[test]
    fn an_item_goes_past_a_waiter_who_lacks_more_than_that() {
        let name = |letter: &'static [u8]| Bytes::Borrowed(letter);
        let session = &mut Session::new(1 << 20);
        // The first waits for two queues and the others for one of them each.
        woken_by(session, 0, Request::Wait(vec![name(b"a"), name(b"b")]));
        woken_by(session, 1, Request::Wait(vec![name(b"a")]));
        woken_by(session, 2, Request::Wait(vec![name(b"b")]));
        let push = |queue| Request::QueuePush(name(queue), name(b"item"));
        assert_eq!(woken_by(session, 3, push(b"a")), [1]);
        // Now the first lacks nothing, and came before the third.
        assert_eq!(woken_by(session, 3, push(b"b")), [0]);
        // It does not take the item, so the next may.
        assert_eq!(woken_by(session, 0, Request::NumKeys), [2]);
    }

    proptest! {
        #[test]
        fn nobody_waits_for_what_is_there(script in vec((0_u64..3, request()), 0..60)) {
            let mut session = Session::new(1 << 20);
            // How many answers to WAIT or BARRIER each connection is still to get: at most one.
            let mut pending = [false; 3];
            for (connection, request) in script {
                let (mut answer, mut woken) = (Vec::new(), Vec::new());
                let index = usize::try_from(connection).unwrap();
                match request {
                    Request::Wait(_) | Request::Barrier(..) => pending[index] = true,
                    Request::CancelWait => pending[index] = false,
                    _ => {}
                }
                let is_wait = matches!(request, Request::Wait(_) | Request::Barrier(..));
                let served = session.serve(connection, request, &mut answer, &mut woken);
                let refused = matches!(served, Err(Refusal::NotANumber | Refusal::NoBarrier));
                prop_assert!(served.is_ok() || refused);
                if refused {
                    session.forget(connection, &mut woken);
                }
                if refused || is_wait && !answer.is_empty() {
                    pending[index] = false;
                }
                for id in woken {
                    let was = &mut pending[usize::try_from(id).unwrap()];
                    prop_assert!(*was, "woken without waiting, or twice");
                    *was = false;
                }
                session.check();
                for (id, waits) in (0..).zip(pending) {
                    prop_assert_eq!(session.has_waiting(id), waits);
                }
            }
            (0..3).for_each(|connection| session.forget(connection, &mut Vec::new()));
            prop_assert!(session.is_idle());
        }
    }
}
