//! The operations of [`Store`] for the client of a TCP store.

use super::capabilities::ServerCapability;
use super::client::TcpStore;
use super::connection::{GRACE_PERIOD, StoreConnection, extend_to_grace_period};
use super::connection_pool::{change, query};
use super::key_encoding::{encode_key, encode_keys};
use super::proto::{Bytes, StoreRequest};
use crate::base::{Deadline, Error, ErrorKind, Result};
use crate::security::Secret;
use crate::store::limits::{check_count, check_total, check_value};
use crate::store::table::parse_number;
use crate::store::{Store, barrier_incomplete, composed, not_a_number};

impl Store for TcpStore {
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        check_value(value)?;
        self.send_one_way("set", &StoreRequest::Set(encode_key(key)?, value.into()), deadline)
    }

    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        let encoded_key = encode_key(key)?;
        if let Some(value) =
            self.fetch_value("get", &encoded_key, &extend_to_grace_period(deadline))?
        {
            return Ok(value);
        }
        let keys = std::slice::from_ref(&encoded_key);
        self.wait_and_fetch(query("get", deadline), keys, &[key], |connection, limit| {
            connection.get(&encoded_key, limit)
        })
    }

    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
        let encoded_key = encode_key(key)?;
        let request = StoreRequest::Add(encoded_key.clone(), amount);
        // If the value is not a number, the server closes the connection, because the protocol has
        // no error reply. So after a lost connection, the client reads the value to find the
        // reason.
        match self.round_trip(change("add", deadline), &request, StoreConnection::read_i64) {
            Err(error)
                if error.kind() == ErrorKind::Connection
                    && self.has_non_number(&encoded_key, deadline) == Ok(true) =>
            {
                Err(not_a_number(&self.describe(), key))
            }
            sum => sum,
        }
    }

    fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Vec<u8>> {
        check_value(expected)?;
        check_value(desired)?;
        let request = StoreRequest::CompareSet(encode_key(key)?, expected.into(), desired.into());
        self.round_trip(change("compare_set", deadline), &request, StoreConnection::read_bytes)
    }

    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
        let encoded_keys = encode_keys(keys)?;
        let check = StoreRequest::Check(encoded_keys.clone());
        let limit = extend_to_grace_period(deadline);
        if self.round_trip(query("wait", &limit), &check, StoreConnection::read_ready)? {
            return Ok(());
        }
        self.wait_and_fetch(query("wait", deadline), &encoded_keys, keys, |_, _| Ok(Some(())))
    }

    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
        let check = StoreRequest::Check(encode_keys(keys)?);
        self.round_trip(query("check", deadline), &check, StoreConnection::read_ready)
    }

    fn num_keys(&self, deadline: &Deadline) -> Result<i64> {
        self.round_trip(
            query("num_keys", deadline),
            &StoreRequest::NumKeys,
            StoreConnection::read_count,
        )
    }

    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
        let request = StoreRequest::DeleteKey(encode_key(key)?);
        Ok(self.round_trip(
            change("delete_key", deadline),
            &request,
            StoreConnection::read_count,
        )? > 0)
    }

    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
        check_value(value)?;
        self.send_one_way("append", &StoreRequest::Append(encode_key(key)?, value.into()), deadline)
    }

    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let encoded_keys = encode_keys(keys)?;
        let limit = extend_to_grace_period(deadline);
        let get = |connection: &mut StoreConnection| connection.multi_get(&encoded_keys, &limit);
        if let Some(values) = self.fetch_if_present("multi_get", &encoded_keys, &limit, get)? {
            return Ok(values);
        }
        self.wait_and_fetch(
            query("multi_get", deadline),
            &encoded_keys,
            keys,
            |connection, limit| connection.multi_get(&encoded_keys, limit),
        )
    }

    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()> {
        check_count(pairs.len())?;
        let mut total = 0;
        let mut encoded_pairs = Vec::with_capacity(pairs.len());
        for &(key, value) in pairs {
            check_value(value)?;
            total += key.len() + 1 + value.len();
            encoded_pairs.push((encode_key(key)?, Bytes::Borrowed(value)));
        }
        check_total(total)?;
        self.send_one_way("multi_set", &StoreRequest::MultiSet(encoded_pairs), deadline)
    }

    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        self.check_deadline("list_keys", deadline)?;
        if !self.has(ServerCapability::KeyList, deadline)? {
            let message = format!(
                "{} cannot list its keys: its server is an older version of torch",
                self.describe()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let list = StoreRequest::ListKeys;
        self.round_trip(query("list_keys", deadline), &list, |connection, deadline| {
            let mut names = connection.read_list(deadline)?;
            // Keys that do not begin with "/" belong to the protocol. Skip them, and remove the "/"
            // of the others.
            names.retain_mut(|name| name.first() == Some(&b'/') && name.remove(0) == b'/');
            Ok(names)
        })
    }

    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()> {
        if !self.has(ServerCapability::Queues, deadline)? {
            return composed::push(self, queue, item, deadline);
        }
        check_value(item)?;
        self.send_one_way(
            "queue_push",
            &StoreRequest::QueuePush(encode_key(queue)?, item.into()),
            deadline,
        )
    }

    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        if !self.has(ServerCapability::Queues, deadline)? {
            return composed::pop(self, queue, deadline);
        }
        if let Some(item) = self.queue_try_pop(queue, &extend_to_grace_period(deadline))? {
            return Ok(item);
        }
        let encoded_key = encode_key(queue)?;
        let keys = std::slice::from_ref(&encoded_key);
        self.wait_and_fetch(change("queue_pop", deadline), keys, &[queue], |connection, limit| {
            connection.pop(&encoded_key, limit)
        })
    }

    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        if !self.has(ServerCapability::Queues, deadline)? {
            return composed::try_pop(self, queue, deadline);
        }
        let encoded_key = encode_key(queue)?;
        self.check_deadline("queue_pop", deadline)?;
        self.pool.round_trip(change("queue_pop", deadline), |connection| {
            connection.pop(&encoded_key, deadline)
        })
    }

    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64> {
        if !self.has(ServerCapability::Queues, deadline)? {
            return composed::queue_len(self, queue, deadline);
        }
        let request = StoreRequest::QueueLen(encode_key(queue)?);
        self.round_trip(query("queue_len", deadline), &request, StoreConnection::read_count)
    }

    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        if !self.has(ServerCapability::Barrier, deadline)? {
            return composed::barrier(self, key, size, deadline);
        }
        let encoded_key = encode_key(key)?;
        self.check_deadline("barrier", deadline)?;
        let count = i64::try_from(size).unwrap_or(i64::MAX);
        let complete =
            self.pool.run_on_side_connection(change("barrier", deadline), |connection| {
                connection.barrier(&encoded_key, count, deadline)
            })?;
        if complete {
            return Ok(());
        }
        let text = self
            .fetch_value("barrier", &encoded_key, &Deadline::after(GRACE_PERIOD))
            .ok()
            .flatten();
        let arrived = text.as_deref().and_then(parse_number);
        Err(barrier_incomplete(&self.describe(), key, arrived, size, deadline))
    }

    fn secret(&self) -> Option<&Secret> {
        self.pool.peer().secret.as_ref()
    }

    fn is_unencrypted(&self) -> bool {
        let peer = self.pool.peer();
        peer.secret.is_none() || !peer.encrypts
    }

    fn address(&self) -> Option<(String, u16)> {
        let peer = self.pool.peer();
        Some((peer.host.clone(), peer.port))
    }

    fn describe(&self) -> String {
        self.pool.describe()
    }
}
