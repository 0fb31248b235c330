//! What a store's server does, written down a second time and as plainly as possible: lists that
//! are searched, sums that are computed anew. No code is shared with what it is compared to, except
//! the limits and the names of refusals.

use super::super::proto::{Bytes, Request};
use super::super::session::{ConnectionId, Refusal};
use std::collections::{BTreeMap, BTreeSet};

type Name = Vec<u8>;

/// What each entry costs besides its bytes.
const ENTRY: usize = 96;

pub(super) struct Model {
    values: BTreeMap<Name, Vec<u8>>,
    queues: BTreeMap<Name, Vec<Vec<u8>>>,
    /// In the order in which they began.
    waits: Vec<Wait>,
    /// Those who were told of an item and have asked for nothing since.
    offers: BTreeMap<ConnectionId, Name>,
    max_bytes: usize,
    woken: Vec<ConnectionId>,
}

struct Wait {
    who: ConnectionId,
    what: What,
}

enum What {
    Keys(BTreeSet<Name>),
    Barrier(Name),
}

type Answer = Result<Vec<u8>, Refusal>;

impl Model {
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

    /// The answer to a request, and whose WAIT or BARRIER it ends, in order.
    pub(super) fn serve(
        &mut self,
        who: ConnectionId,
        request: &Request<'_>,
    ) -> (Answer, Vec<ConnectionId>) {
        if let Some(queue) = self.offers.remove(&who)
            && !matches!(request, Request::QueuePop(asked) if **asked == *queue)
        {
            self.offer(&queue);
        }
        let answer = self.answer(who, request);
        (answer, std::mem::take(&mut self.woken))
    }

    /// A client leaves. Whose wait ends by that.
    pub(super) fn forget(&mut self, who: ConnectionId) -> Vec<ConnectionId> {
        self.waits.retain(|wait| wait.who != who);
        if let Some(queue) = self.offers.remove(&who) {
            self.offer(&queue);
        }
        std::mem::take(&mut self.woken)
    }

    fn answer(&mut self, who: ConnectionId, request: &Request<'_>) -> Answer {
        Ok(match request {
            Request::Validate(_) => return Err(Refusal::ValidatedTwice),
            Request::Set(key, value) => self.set(key, value)?,
            Request::CompareSet(key, expected, desired) => {
                self.compare_set(key, expected, desired)?
            }
            Request::Get(key) => self.get(key),
            Request::Add(key, amount) => {
                let sum = self.add(key, *amount, Refusal::NotANumber)?;
                number(sum)
            }
            Request::Check(keys) => {
                vec![u8::from(!keys.iter().all(|key| self.values.contains_key(&**key)))]
            }
            Request::Wait(keys) => self.wait(who, keys),
            Request::NumKeys => number(length(self.values.len())),
            Request::DeleteKey(key) => number(i64::from(self.values.remove(&**key).is_some())),
            Request::Append(key, bytes) => {
                self.reserve(key.len() + bytes.len())?;
                let old = self.values.get(&**key).cloned().unwrap_or_default();
                self.store(key, [&old, &**bytes].concat())
            }
            Request::MultiGet(keys) => keys.iter().flat_map(|key| self.get(key)).collect(),
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    self.set(key, value)?;
                }
                Vec::new()
            }
            Request::CancelWait => {
                self.waits.retain(|wait| wait.who != who);
                vec![1]
            }
            Request::Ping(nonce) => nonce.to_le_bytes().to_vec(),
            Request::QueuePush(queue, item) => {
                self.reserve(queue.len() + item.len())?;
                self.queues.entry(queue.to_vec()).or_default().push(item.to_vec());
                self.offer(queue);
                Vec::new()
            }
            Request::QueuePop(queue) => self.pop(queue),
            Request::QueueLen(queue) => number(length(self.items(queue))),
            Request::ListKeys => {
                let mut answer = number(length(self.values.len()));
                self.values.keys().for_each(|key| answer.extend(text(key)));
                answer
            }
            Request::Barrier(key, size) => self.barrier(who, key, *size)?,
        })
    }

    /// Refuses what does not fit.
    fn reserve(&self, more: usize) -> Result<(), Refusal> {
        let values: usize = self.values.iter().map(|(k, v)| k.len() + v.len() + ENTRY).sum();
        let queue = |(name, items): (&Name, &Vec<Vec<u8>>)| {
            items.iter().map(|item| name.len() + item.len() + ENTRY).sum::<usize>()
        };
        let queues: usize = self.queues.iter().map(queue).sum();
        let fits = values + queues + more <= self.max_bytes;
        if fits { Ok(()) } else { Err(Refusal::Full(self.max_bytes)) }
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Answer {
        self.reserve(key.len() + value.len())?;
        Ok(self.store(key, value.to_vec()))
    }

    /// A key gets a value: nobody waits for it any more.
    fn store(&mut self, key: &[u8], value: Vec<u8>) -> Vec<u8> {
        self.values.insert(key.to_vec(), value);
        for wait in &mut self.waits {
            if let What::Keys(lacking) = &mut wait.what
                && lacking.remove(key)
                && lacking.is_empty()
            {
                self.woken.push(wait.who);
            }
        }
        self.end_waits();
        Vec::new()
    }

    fn end_waits(&mut self) {
        self.waits.retain(|wait| !self.woken.contains(&wait.who));
    }

    fn compare_set(&mut self, key: &[u8], expected: &[u8], desired: &[u8]) -> Answer {
        self.reserve(key.len() + desired.len())?;
        let now = match self.values.get(key) {
            None if !expected.is_empty() => expected,
            Some(value) if value != expected => value,
            _ => {
                self.store(key, desired.to_vec());
                desired
            }
        };
        Ok(text(now))
    }

    fn get(&self, key: &[u8]) -> Vec<u8> {
        text(self.values.get(key).map_or(b"", Vec::as_slice))
    }

    fn add(&mut self, key: &[u8], amount: i64, refusal: Refusal) -> Result<i64, Refusal> {
        self.reserve(key.len())?;
        let before = match self.values.get(key) {
            None => 0,
            Some(text) => parse(text).ok_or(refusal)?,
        };
        let sum = before.wrapping_add(amount);
        self.store(key, sum.to_string().into_bytes());
        Ok(sum)
    }

    fn wait(&mut self, who: ConnectionId, keys: &[Bytes<'_>]) -> Vec<u8> {
        self.waits.retain(|wait| wait.who != who);
        let is_there = |key: &Name| self.values.contains_key(key) || self.items(key) > 0;
        let lacking: BTreeSet<_> =
            keys.iter().map(|key| key.to_vec()).filter(|key| !is_there(key)).collect();
        if lacking.is_empty() {
            return vec![0];
        }
        self.waits.push(Wait { who, what: What::Keys(lacking) });
        Vec::new()
    }

    fn barrier(&mut self, who: ConnectionId, key: &[u8], size: i64) -> Answer {
        self.waits.retain(|wait| wait.who != who);
        if self.add(key, 1, Refusal::NoBarrier)? < size {
            self.waits.push(Wait { who, what: What::Barrier(key.to_vec()) });
            return Ok(Vec::new());
        }
        let there = |wait: &Wait| matches!(&wait.what, What::Barrier(name) if name == key);
        self.woken.extend(self.waits.iter().filter(|wait| there(wait)).map(|wait| wait.who));
        self.waits.retain(|wait| !there(wait));
        Ok(vec![0])
    }

    fn items(&self, queue: &[u8]) -> usize {
        self.queues.get(queue).map_or(0, Vec::len)
    }

    fn pop(&mut self, queue: &[u8]) -> Vec<u8> {
        let mut answer = number(length(self.items(queue)));
        if let Some(items) = self.queues.get_mut(queue).filter(|items| !items.is_empty()) {
            answer.extend(text(&items.remove(0)));
        }
        answer
    }

    /// A queue has an item for somebody: all who lack it and more lack it no longer, up to the
    /// first who lacks nothing else.
    fn offer(&mut self, queue: &[u8]) {
        if self.items(queue) == 0 {
            return;
        }
        for wait in &mut self.waits {
            if let What::Keys(lacking) = &mut wait.what
                && lacking.remove(queue)
                && lacking.is_empty()
            {
                self.woken.push(wait.who);
                self.offers.insert(wait.who, queue.to_vec());
                break;
            }
        }
        self.end_waits();
    }
}

fn number(number: i64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn length(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// As C's `strtoll` reads it.
fn parse(text: &[u8]) -> Option<i64> {
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
