//! A reference model: a second, minimal implementation of the store server. It is simple and slow:
//! it searches lists and recomputes sums. It shares no code with the tested server except the
//! limits and the names of the rejections.

use super::super::proto::{Bytes, StoreRequest};
use super::super::request_handler::ClientRejection;
use super::super::waiters::ConnectionId;
use std::collections::{BTreeMap, BTreeSet};

type KeyName = Vec<u8>;

/// The memory that each key or queued item takes in addition to its bytes.
const ENTRY_OVERHEAD_BYTES: usize = 96;

pub(super) struct StoreModel {
    values: BTreeMap<KeyName, Vec<u8>>,
    queues: BTreeMap<KeyName, Vec<Vec<u8>>>,
    /// The pending waits in order of arrival.
    waits: Vec<ModelWait>,
    /// The connections that were offered an item and have sent no request since.
    offers: BTreeMap<ConnectionId, KeyName>,
    max_bytes: usize,
    woken: Vec<ConnectionId>,
}

struct ModelWait {
    connection: ConnectionId,
    target: WaitTarget,
}

enum WaitTarget {
    Keys(BTreeSet<KeyName>),
    Barrier(KeyName),
}

type ModelAnswer = Result<Vec<u8>, ClientRejection>;

impl StoreModel {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            values: BTreeMap::new(),
            queues: BTreeMap::new(),
            waits: Vec::new(),
            offers: BTreeMap::new(),
            max_bytes,
            woken: Vec::new(),
        }
    }

    /// Returns the reply to a request, and the connections whose WAIT or BARRIER the request
    /// completes, in order.
    pub(super) fn serve(
        &mut self,
        connection: ConnectionId,
        request: &StoreRequest<'_>,
    ) -> (ModelAnswer, Vec<ConnectionId>) {
        if let Some(queue) = self.offers.remove(&connection)
            && !matches!(request, StoreRequest::QueuePop(asked) if **asked == *queue)
        {
            self.offer_item(&queue);
        }
        let answer = self.answer(connection, request);
        (answer, std::mem::take(&mut self.woken))
    }

    /// Removes a client. Returns the connections whose wait this completes.
    pub(super) fn remove_connection(&mut self, connection: ConnectionId) -> Vec<ConnectionId> {
        self.waits.retain(|wait| wait.connection != connection);
        if let Some(queue) = self.offers.remove(&connection) {
            self.offer_item(&queue);
        }
        std::mem::take(&mut self.woken)
    }

    fn answer(&mut self, connection: ConnectionId, request: &StoreRequest<'_>) -> ModelAnswer {
        Ok(match request {
            StoreRequest::Validate(_) => return Err(ClientRejection::ValidatedTwice),
            StoreRequest::Set(key, value) => self.set(key, value)?,
            StoreRequest::CompareSet(key, expected, desired) => {
                self.compare_set(key, expected, desired)?
            }
            StoreRequest::Get(key) => self.get(key),
            StoreRequest::Add(key, amount) => {
                let sum = self.add(key, *amount, ClientRejection::NotANumber)?;
                encode_i64(sum)
            }
            StoreRequest::Check(keys) => {
                vec![u8::from(!keys.iter().all(|key| self.values.contains_key(&**key)))]
            }
            StoreRequest::Wait(keys) => self.wait(connection, keys),
            StoreRequest::NumKeys => encode_i64(len_as_i64(self.values.len())),
            StoreRequest::DeleteKey(key) => {
                encode_i64(i64::from(self.values.remove(&**key).is_some()))
            }
            StoreRequest::Append(key, bytes) => {
                self.check_capacity(key.len() + bytes.len())?;
                let old = self.values.get(&**key).cloned().unwrap_or_default();
                self.set_value(key, [&old, &**bytes].concat())
            }
            StoreRequest::MultiGet(keys) => keys.iter().flat_map(|key| self.get(key)).collect(),
            StoreRequest::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value)?;
                }
                Vec::new()
            }
            StoreRequest::CancelWait => {
                self.waits.retain(|wait| wait.connection != connection);
                vec![1]
            }
            StoreRequest::Ping(nonce) => nonce.to_le_bytes().to_vec(),
            StoreRequest::QueuePush(queue, item) => {
                self.check_capacity(queue.len() + item.len())?;
                self.queues.entry(queue.to_vec()).or_default().push(item.to_vec());
                self.offer_item(queue);
                Vec::new()
            }
            StoreRequest::QueuePop(queue) => self.pop(queue),
            StoreRequest::QueueLen(queue) => encode_i64(len_as_i64(self.queue_len(queue))),
            StoreRequest::ListKeys => {
                let mut answer = encode_i64(len_as_i64(self.values.len()));
                self.values.keys().for_each(|key| answer.extend(encode_bytes(key)));
                answer
            }
            StoreRequest::Barrier(key, size) => self.barrier(connection, key, *size)?,
        })
    }

    /// Rejects a change that exceeds the memory limit.
    fn check_capacity(&self, more: usize) -> Result<(), ClientRejection> {
        let values: usize =
            self.values.iter().map(|(k, v)| k.len() + v.len() + ENTRY_OVERHEAD_BYTES).sum();
        let queue = |(name, items): (&KeyName, &Vec<Vec<u8>>)| {
            items.iter().map(|item| name.len() + item.len() + ENTRY_OVERHEAD_BYTES).sum::<usize>()
        };
        let queues: usize = self.queues.iter().map(queue).sum();
        let fits = values + queues + more <= self.max_bytes;
        if fits { Ok(()) } else { Err(ClientRejection::StoreFull(self.max_bytes)) }
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> ModelAnswer {
        self.check_capacity(key.len() + value.len())?;
        Ok(self.set_value(key, value.to_vec()))
    }

    /// Stores a value, and removes the key from the missing keys of all waits.
    fn set_value(&mut self, key: &[u8], value: Vec<u8>) -> Vec<u8> {
        self.values.insert(key.to_vec(), value);
        for wait in &mut self.waits {
            if let WaitTarget::Keys(missing) = &mut wait.target
                && missing.remove(key)
                && missing.is_empty()
            {
                self.woken.push(wait.connection);
            }
        }
        self.end_waits();
        Vec::new()
    }

    fn end_waits(&mut self) {
        self.waits.retain(|wait| !self.woken.contains(&wait.connection));
    }

    fn compare_set(&mut self, key: &[u8], expected: &[u8], desired: &[u8]) -> ModelAnswer {
        self.check_capacity(key.len() + desired.len())?;
        let current = match self.values.get(key) {
            None if !expected.is_empty() => expected,
            Some(value) if value != expected => value,
            _ => {
                self.set_value(key, desired.to_vec());
                desired
            }
        };
        Ok(encode_bytes(current))
    }

    fn get(&self, key: &[u8]) -> Vec<u8> {
        encode_bytes(self.values.get(key).map_or(b"", Vec::as_slice))
    }

    fn add(
        &mut self,
        key: &[u8],
        amount: i64,
        refusal: ClientRejection,
    ) -> Result<i64, ClientRejection> {
        self.check_capacity(key.len())?;
        let before = match self.values.get(key) {
            None => 0,
            Some(text) => parse_number(text).ok_or(refusal)?,
        };
        let sum = before.wrapping_add(amount);
        self.set_value(key, sum.to_string().into_bytes());
        Ok(sum)
    }

    fn wait(&mut self, connection: ConnectionId, keys: &[Bytes<'_>]) -> Vec<u8> {
        self.waits.retain(|wait| wait.connection != connection);
        let exists = |key: &KeyName| self.values.contains_key(key) || self.queue_len(key) > 0;
        let missing: BTreeSet<_> =
            keys.iter().map(|key| key.to_vec()).filter(|key| !exists(key)).collect();
        if missing.is_empty() {
            return vec![0];
        }
        self.waits.push(ModelWait { connection, target: WaitTarget::Keys(missing) });
        Vec::new()
    }

    fn barrier(&mut self, connection: ConnectionId, key: &[u8], size: i64) -> ModelAnswer {
        self.waits.retain(|wait| wait.connection != connection);
        if self.add(key, 1, ClientRejection::BarrierKeyNotANumber)? < size {
            self.waits.push(ModelWait { connection, target: WaitTarget::Barrier(key.to_vec()) });
            return Ok(Vec::new());
        }
        let is_in_barrier =
            |wait: &ModelWait| matches!(&wait.target, WaitTarget::Barrier(name) if name == key);
        self.woken.extend(
            self.waits.iter().filter(|wait| is_in_barrier(wait)).map(|wait| wait.connection),
        );
        self.waits.retain(|wait| !is_in_barrier(wait));
        Ok(vec![0])
    }

    fn queue_len(&self, queue: &[u8]) -> usize {
        self.queues.get(queue).map_or(0, Vec::len)
    }

    fn pop(&mut self, queue: &[u8]) -> Vec<u8> {
        let mut answer = encode_i64(len_as_i64(self.queue_len(queue)));
        if let Some(items) = self.queues.get_mut(queue).filter(|items| !items.is_empty()) {
            answer.extend(encode_bytes(&items.remove(0)));
        }
        answer
    }

    /// Offers an item of a queue to the first connection that waits for this queue and for nothing
    /// else. Removes the queue from the missing keys of this connection and of the earlier waiters.
    fn offer_item(&mut self, queue: &[u8]) {
        if self.queue_len(queue) == 0 {
            return;
        }
        for wait in &mut self.waits {
            if let WaitTarget::Keys(missing) = &mut wait.target
                && missing.remove(queue)
                && missing.is_empty()
            {
                self.woken.push(wait.connection);
                self.offers.insert(wait.connection, queue.to_vec());
                break;
            }
        }
        self.end_waits();
    }
}

fn encode_i64(number: i64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn len_as_i64(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn encode_bytes(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// Parses a number like C's `strtoll`.
fn parse_number(text: &[u8]) -> Option<i64> {
    let is_blank = |b: &u8| *b == b' ' || (9..=13).contains(b);
    let start = text.iter().position(|b| !is_blank(b))?;
    let (negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    digits.first().filter(|first| first.is_ascii_digit())?;
    let mut number: i128 = 0;
    for digit in digits.iter().take_while(|b| b.is_ascii_digit()) {
        number = (number * 10 + i128::from(digit - b'0')).min(i128::from(u64::MAX));
    }
    i64::try_from(if negative { -number } else { number }).ok()
}
