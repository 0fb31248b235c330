//! Queues and barriers made of `set`, `get`, `add`, `wait`, `check` and `delete_key`, for stores
//! that have none of their own: a caller's own store, and a server of an older torch.
//!
//! A barrier is c10d's own composition, so that libdist and torch can meet in one: callers count
//! themselves in `<key>/num_members`, and the last one sets `<key>/last_member`, which all wait
//! for.
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
//! Items are taken in order, so that the numbers taken are always 1 to some m, and the head is at
//! most m: where to begin to look. Whoever takes item n deletes it, counts up the head, and deletes
//! its own counter if the head has come to n, since nobody looks there any more. A caller that has
//! read an older head may make that counter 1 anew; but then the item is gone, and it begins again.
//! A caller that dies with an item in its hands takes that item along and holds up nobody, though
//! the later counters then stay. One that dies between taking a number and storing its item holds
//! up the queue: nothing tells it from one that is slow.
//!
//! An item that is missing has not come yet, or has gone. It has gone if its counter is there, or
//! if the head has come to it, and both are looked at after the item, since whoever takes an item
//! makes the counter before and moves the head before it removes the counter. Whoever waits for an
//! item may miss it, if the store looks now and then and another has taken the item in between;
//! therefore a wait is cut into slices, and the row looked at after each.

use super::table::parse_number;
use super::{Store, barrier_incomplete, missing_keys};
use crate::base::{Deadline, ErrorKind, Result};
use std::time::Duration;

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
    wait_and_take(store, &Names(queue), deadline).map_err(|error| match error.kind() {
        ErrorKind::Timeout => missing_keys(&store.describe(), &[queue], deadline),
        _ => error,
    })
}

/// How long a pop waits before it looks at the row anew: at first, and at most.
const SLICES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

fn wait_and_take<S: Store + ?Sized>(
    store: &S,
    names: &Names<'_>,
    deadline: &Deadline,
) -> Result<Vec<u8>> {
    let [mut slice, longest] = SLICES;
    loop {
        let next = match take(store, names, deadline)? {
            Ok(item) => return Ok(item),
            Err(next) => next,
        };
        match store.wait(&[&names.item(next)], &deadline.capped(slice)) {
            Err(error) if error.kind() == ErrorKind::Timeout && !deadline.has_passed() => {
                slice = longest.min(slice * 2);
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
        // Somebody else's, gone, or not there yet: begin again if the row has moved on; where
        // nobody has taken it, it is still to come.
        let is_taken = is_there || store.check(&[&taken], deadline)?;
        let now = number(store, &names.head(), deadline)?;
        if now != head {
            head = now;
            next = head + 1;
        } else if !is_taken {
            return Ok(Err(next));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Error;
    use crate::store::HashStore;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A store with the six functions that everything is composed of. Before its call number `at`,
    /// another caller acts.
    #[derive(Debug)]
    struct Interrupted {
        store: HashStore,
        calls: AtomicUsize,
        at: usize,
        act: fn(&HashStore, usize),
        steps: usize,
    }

    fn soon() -> Deadline {
        Deadline::after_ms(10_000)
    }

    impl Interrupted {
        fn new(at: usize, act: fn(&HashStore, usize), steps: usize) -> Self {
            Self { store: HashStore::new(), calls: AtomicUsize::new(0), at, act, steps }
        }

        fn called(&self) -> &HashStore {
            if self.calls.fetch_add(1, Ordering::Relaxed) == self.at {
                (self.act)(&self.store, self.steps);
            }
            &self.store
        }
    }

    /// The first so many steps of taking the first item.
    fn take_first(store: &HashStore, steps: usize) {
        let names = Names(b"q");
        let (item, taken) = (names.item(1), names.taken(1));
        if !store.check(&[&item], &soon()).unwrap() || store.add(&taken, 1, &soon()).unwrap() > 1 {
            return;
        }
        if steps > 1 {
            assert!(store.delete_key(&item, &soon()).unwrap());
        }
        if steps > 2 {
            assert_eq!(store.add(&names.head(), 1, &soon()).unwrap(), 1);
        }
        if steps > 3 {
            assert!(store.delete_key(&taken, &soon()).unwrap());
        }
    }

    fn no_such_function<T>() -> Result<T> {
        Err(Error::new(ErrorKind::Unsupported, "not one of the six"))
    }

    impl Store for Interrupted {
        fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
            self.called().set(key, value, deadline)
        }

        fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
            self.called().get(key, deadline)
        }

        fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
            self.called().add(key, amount, deadline)
        }

        fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
            self.called().wait(keys, deadline)
        }

        fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
            self.called().check(keys, deadline)
        }

        fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
            self.called().delete_key(key, deadline)
        }

        fn compare_set(&self, _: &[u8], _: &[u8], _: &[u8], _: &Deadline) -> Result<Vec<u8>> {
            no_such_function()
        }

        fn num_keys(&self, _: &Deadline) -> Result<i64> {
            no_such_function()
        }

        fn append(&self, _: &[u8], _: &[u8], _: &Deadline) -> Result<()> {
            no_such_function()
        }

        fn multi_get(&self, _: &[&[u8]], _: &Deadline) -> Result<Vec<Vec<u8>>> {
            no_such_function()
        }

        fn multi_set(&self, _: &[(&[u8], &[u8])], _: &Deadline) -> Result<()> {
            no_such_function()
        }

        fn list_keys(&self, _: &Deadline) -> Result<Vec<Vec<u8>>> {
            no_such_function()
        }
    }

    /// One item, two callers: one gets it, the other learns that the next is number 2, wherever the
    /// other is.
    #[test]
    fn nobody_waits_for_an_item_that_has_gone() {
        let mut taken_by = [0, 0];
        for at in 0..12 {
            for steps in 1..=4 {
                let store = Interrupted::new(at, take_first, steps);
                push(&store.store, b"q", b"item", &soon()).unwrap();
                match take(&store, &Names(b"q"), &soon()).unwrap() {
                    Ok(item) => {
                        assert_eq!(item, b"item");
                        taken_by[0] += 1;
                    }
                    Err(next) => {
                        assert_eq!(next, 2, "after {steps} steps before call {at}");
                        taken_by[1] += 1;
                    }
                }
            }
        }
        assert!(taken_by[0] > 4 && taken_by[1] > 4, "{taken_by:?}");
    }

    /// What a pop waits for, or is about to wait for, comes and goes to another, and the next item
    /// comes.
    #[test]
    fn a_pop_whose_item_went_elsewhere_takes_the_next() {
        // A pop that finds nothing looks at head, counter, item, counter and head; its call number
        // 5 waits.
        for at in 0..=5 {
            let store = Interrupted::new(
                at,
                |store, _| {
                    push(store, b"q", b"first", &soon()).unwrap();
                    assert_eq!(try_pop(store, b"q", &soon()).unwrap().unwrap(), b"first");
                    push(store, b"q", b"second", &soon()).unwrap();
                },
                0,
            );
            assert_eq!(pop(&store, b"q", &soon()).unwrap(), b"second", "before call {at}");
        }
    }
}
