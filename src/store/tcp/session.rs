//! What the server does for each request: the values, who waits for what, and the answers.
//!
//! Pure: a request goes in, the bytes of its answer and the connections that it wakes come out.
//! Each connection has at most one pending WAIT; another one replaces it.
//!
//! Differs from torch's server in one point: a failed compare-and-set on a missing key wakes nobody,
//! since there is still nothing to be had.

use super::super::table::Table;
use super::proto::{self, Bytes, Request, Violation};
use std::collections::{HashMap, HashSet};

/// Names a connection for as long as the server runs.
pub(super) type ConnectionId = u64;

/// The most bytes of answers that a connection may leave unread, and so also the longest answer.
pub(super) const MAX_PENDING_BYTES: usize = 256 << 20;

/// The longest value that APPEND may build, so that a GET can always answer it.
const MAX_STORED_BYTES: usize = MAX_PENDING_BYTES / 2;

/// Why a peer is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("it did not begin as a store client does")]
    NotValidated,
    #[error("it sent the magic number {0:#010x} instead of {expected:#010x}", expected = proto::MAGIC)]
    WrongMagic(u32),
    #[error("it validated twice")]
    ValidatedTwice,
    #[error("it added to a value that is not a number")]
    NotANumber,
    #[error("it appended to a value until that was longer than {MAX_STORED_BYTES} bytes")]
    ValueTooLong,
    #[error("it left more than {MAX_PENDING_BYTES} bytes of answers unread")]
    AnswersUnread,
    #[error("it did not validate in time")]
    Silent,
}

/// The state of a server.
#[derive(Debug, Default)]
pub(super) struct Session {
    table: Table,
    /// By key: the connections that wait for it.
    waiters: HashMap<Vec<u8>, HashSet<ConnectionId>>,
    /// By connection: the keys that its WAIT still lacks. Never empty.
    lacking: HashMap<ConnectionId, HashSet<Vec<u8>>>,
}

impl Session {
    /// Serves one request of a connection: appends the answer, if there is one now, to `answer`, and
    /// the connections whose WAIT is over (each gets a [`proto::READY`]) to `woken`.
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
        match request {
            Request::Validate(_) => return Err(Refusal::ValidatedTwice),
            Request::Set(key, value) => self.set(key, value, woken),
            Request::CompareSet(key, expected, desired) => {
                let done = self.table.compare_set(key.to_vec(), &expected, &desired);
                proto::put_bytes(answer, &done.value);
                if done.stored {
                    self.wake(&key, woken);
                }
            }
            Request::Get(key) => self.get(&key, answer)?,
            Request::Add(key, amount) => {
                let sum = self.table.add(key.to_vec(), amount);
                proto::put_i64(answer, sum.map_err(|_| Refusal::NotANumber)?);
                self.wake(&key, woken);
            }
            Request::Check(keys) => {
                let ready = keys.iter().all(|key| self.table.contains(key));
                answer.push(if ready { proto::READY } else { proto::NOT_READY });
            }
            Request::Wait(keys) => self.wait(from, keys, answer),
            Request::NumKeys => {
                proto::put_i64(answer, i64::try_from(self.table.len()).unwrap_or(i64::MAX));
            }
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
                    self.set(key, value, woken);
                }
            }
            Request::CancelWait => {
                self.forget(from);
                answer.push(proto::WAIT_CANCELED);
            }
            Request::Ping(nonce) => answer.extend_from_slice(&nonce.to_le_bytes()),
        }
        Ok(())
    }

    /// Forgets the pending WAIT of a connection, if it has one.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        for key in self.lacking.remove(&connection).unwrap_or_default() {
            if let Some(waiters) = self.waiters.get_mut(&key) {
                waiters.remove(&connection);
                if waiters.is_empty() {
                    self.waiters.remove(&key);
                }
            }
        }
    }

    fn set(&mut self, key: Bytes<'_>, value: Bytes<'_>, woken: &mut Vec<ConnectionId>) {
        self.wake(&key, woken);
        self.table.set(key.into_owned(), value.into_owned());
    }

    fn get(&self, key: &[u8], answer: &mut Vec<u8>) -> Result<(), Refusal> {
        let value = self.table.get(key).unwrap_or_default();
        if answer.len() + value.len() > MAX_PENDING_BYTES {
            return Err(Refusal::AnswersUnread);
        }
        proto::put_bytes(answer, value);
        Ok(())
    }

    fn append(
        &mut self,
        key: Bytes<'_>,
        bytes: &[u8],
        woken: &mut Vec<ConnectionId>,
    ) -> Result<(), Refusal> {
        if self.table.get(&key).map_or(0, <[u8]>::len) + bytes.len() > MAX_STORED_BYTES {
            return Err(Refusal::ValueTooLong);
        }
        self.wake(&key, woken);
        self.table.append(key.into_owned(), bytes);
        Ok(())
    }

    fn wait(&mut self, from: ConnectionId, keys: Vec<Bytes<'_>>, answer: &mut Vec<u8>) {
        self.forget(from);
        let missing: HashSet<_> = keys
            .into_iter()
            .filter(|key| !self.table.contains(key))
            .map(Bytes::into_owned)
            .collect();
        if missing.is_empty() {
            answer.push(proto::READY);
            return;
        }
        for key in &missing {
            self.waiters.entry(key.clone()).or_default().insert(from);
        }
        self.lacking.insert(from, missing);
    }

    /// The key exists now: crosses it off the lists of those that wait for it.
    fn wake(&mut self, key: &[u8], woken: &mut Vec<ConnectionId>) {
        for connection in self.waiters.remove(key).unwrap_or_default() {
            let Some(lacking) = self.lacking.get_mut(&connection) else { continue };
            lacking.remove(key);
            if lacking.is_empty() {
                self.lacking.remove(&connection);
                woken.push(connection);
            }
        }
    }
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
        ]
    }

    fn is_consistent(session: &Session) -> bool {
        let listed = |key: &Vec<u8>, connection| {
            session.waiters.get(key).is_some_and(|waiters| waiters.contains(connection))
        };
        let lacks = |connection, key: &Vec<u8>| {
            session.lacking.get(connection).is_some_and(|keys| keys.contains(key))
        };
        session.lacking.iter().all(|(connection, keys)| {
            !keys.is_empty() && keys.iter().all(|key| listed(key, connection))
        }) && session.waiters.iter().all(|(key, waiters)| {
            !waiters.is_empty()
                && !session.table.contains(key)
                && waiters.iter().all(|connection| lacks(connection, key))
        })
    }

    proptest! {
        #[test]
        fn nobody_waits_for_what_is_there(script in vec((0_u64..3, request()), 0..60)) {
            let mut session = Session::default();
            // How many answers to WAIT each connection is still to get: at most one.
            let mut pending = [false; 3];
            for (connection, request) in script {
                let (mut answer, mut woken) = (Vec::new(), Vec::new());
                let index = usize::try_from(connection).unwrap();
                match request {
                    Request::Wait(_) => pending[index] = true,
                    Request::CancelWait => pending[index] = false,
                    _ => {}
                }
                let is_wait = matches!(request, Request::Wait(_));
                let served = session.serve(connection, request, &mut answer, &mut woken);
                prop_assert!(matches!(served, Ok(()) | Err(Refusal::NotANumber)));
                if is_wait && !answer.is_empty() {
                    pending[index] = false;
                }
                for id in woken {
                    let was = &mut pending[usize::try_from(id).unwrap()];
                    prop_assert!(*was, "woken without waiting, or twice");
                    *was = false;
                }
                prop_assert!(is_consistent(&session));
                for (id, waits) in (0..).zip(pending) {
                    prop_assert_eq!(session.lacking.contains_key(&id), waits);
                }
            }
            (0..3).for_each(|connection| session.forget(connection));
            prop_assert!(session.waiters.is_empty() && session.lacking.is_empty());
        }
    }
}
