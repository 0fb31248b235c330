//! Queues and barriers made of `set`, `get`, `add`, `wait`, `check` and `delete_key`, for stores that have
//! none of their own: a caller's own store, and a server of an older torch.
//!
//! A barrier is c10d's own composition, so that libdist and torch can meet in one: callers count themselves in
//! `<key>/num_members`, and the last one sets `<key>/last_member`, which all wait for.
//!
//! A queue `q` is a numbered row of items:
//!
//! | key | what it holds |
//! |---|---|
//! | `queue/<q>/tail` | how many items have been pushed; a push takes the next number from it |
//! | `queue/<q>/<n>` | item n |
//! | `queue/<q>/<n>/taken` | a counter; whoever makes it 1 owns item n |
//! | `queue/<q>/head` | how many items have been taken and deleted |
//!
//! Items are taken in order, so that the numbers taken are always 1 to some m, and the head is at most m: where
//! to begin to look. Whoever takes item n deletes it, counts up the head, and deletes its own counter if the head
//! has come to n, since nobody looks there any more. A caller that has read an older head may make that counter 1
//! anew; but then the item is gone, and it begins again. A caller that dies with an item in its hands takes that
//! item along and holds up nobody, though the later counters then stay.

use super::table::parse_number;
use super::{Store, barrier_incomplete, missing_keys};
use crate::base::{Deadline, ErrorKind, Result};

/// [`Store::barrier`] out of keys.
///
/// # Errors
/// As [`Store::barrier`].
pub fn barrier<S: Store + ?Sized>(
    store: &S,
    key: &[u8],
    size: usize,
    deadline: &Deadline,
) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    let members = [key, b"/num_members"].concat();
    let last = [key, b"/last_member"].concat();
    let come = store.add(&members, 1, deadline)?;
    if usize::try_from(come).is_ok_and(|come| come >= size) {
        store.set(&last, b"1", deadline)?;
    }
    match store.wait(&[&last], deadline) {
        Err(error) if error.kind() == ErrorKind::Timeout => {
            let come = number(store, &members, &Deadline::after_ms(GRACE_MS)).ok();
            Err(barrier_incomplete(&store.describe(), key, come, size, deadline))
        }
        outcome => outcome,
    }
}

/// How long the store may take to tell how many have come, once a barrier's deadline has passed.
const GRACE_MS: u64 = 1000;

/// The names of a queue's keys.
struct Names<'a>(&'a [u8]);

impl Names<'_> {
    fn of(&self, what: &str) -> Vec<u8> {
        [b"queue/", self.0, b"/", what.as_bytes()].concat()
    }

    fn tail(&self) -> Vec<u8> {
        self.of("tail")
    }

    fn head(&self) -> Vec<u8> {
        self.of("head")
    }

    fn item(&self, number: i64) -> Vec<u8> {
        self.of(&number.to_string())
    }

    fn taken(&self, number: i64) -> Vec<u8> {
        self.of(&format!("{number}/taken"))
    }
}

/// [`Store::queue_push`] out of keys.
///
/// # Errors
/// As [`Store::queue_push`].
pub fn push<S: Store + ?Sized>(
    store: &S,
    queue: &[u8],
    item: &[u8],
    deadline: &Deadline,
) -> Result<()> {
    let names = Names(queue);
    let number = store.add(&names.tail(), 1, deadline)?;
    store.set(&names.item(number), item, deadline)
}

/// [`Store::queue_len`] out of keys.
///
/// # Errors
/// As [`Store::queue_len`].
pub fn queue_len<S: Store + ?Sized>(store: &S, queue: &[u8], deadline: &Deadline) -> Result<i64> {
    let names = Names(queue);
    let head = number(store, &names.head(), deadline)?;
    Ok((number(store, &names.tail(), deadline)? - head).max(0))
}

/// [`Store::queue_try_pop`] out of keys.
///
/// # Errors
/// As [`Store::queue_try_pop`].
pub fn try_pop<S: Store + ?Sized>(
    store: &S,
    queue: &[u8],
    deadline: &Deadline,
) -> Result<Option<Vec<u8>>> {
    Ok(take(store, &Names(queue), deadline)?.ok())
}

/// [`Store::queue_pop`] out of keys.
///
/// # Errors
/// As [`Store::queue_pop`].
pub fn pop<S: Store + ?Sized>(store: &S, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
    let names = Names(queue);
    loop {
        let next = match take(store, &names, deadline)? {
            Ok(item) => return Ok(item),
            Err(next) => next,
        };
        match store.wait(&[&names.item(next)], deadline) {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                return Err(missing_keys(&store.describe(), &[queue], deadline));
            }
            outcome => outcome?,
        }
    }
}

/// The first item; or, if there is none, the number that the next one will have.
fn take<S: Store + ?Sized>(
    store: &S,
    names: &Names<'_>,
    deadline: &Deadline,
) -> Result<std::result::Result<Vec<u8>, i64>> {
    let mut head = number(store, &names.head(), deadline)?;
    let mut next = head + 1;
    loop {
        let (item, taken) = (names.item(next), names.taken(next));
        if store.check(&[&taken], deadline)? {
            next += 1;
            continue;
        }
        let is_there = store.check(&[&item], deadline)?;
        if is_there && store.add(&taken, 1, deadline)? == 1 {
            if store.check(&[&item], deadline)? {
                let value = store.get(&item, deadline)?;
                store.delete_key(&item, deadline)?;
                if store.add(&names.head(), 1, deadline)? >= next {
                    store.delete_key(&taken, deadline)?;
                }
                return Ok(Ok(value));
            }
            store.delete_key(&taken, deadline)?;
        }
        // Not there, or somebody else's: begin again if the row has moved on, else it ends here.
        let now = number(store, &names.head(), deadline)?;
        if now == head && !is_there {
            return Ok(Err(next));
        }
        if now != head {
            head = now;
            next = head + 1;
        }
    }
}

/// The number under a key; 0 where it is missing.
fn number<S: Store + ?Sized>(store: &S, key: &[u8], deadline: &Deadline) -> Result<i64> {
    if !store.check(&[key], deadline)? {
        return Ok(0);
    }
    Ok(parse_number(&store.get(key, deadline)?).unwrap_or(0))
}
