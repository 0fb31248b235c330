//! Queues and barriers that are implemented with keys (`set`, `get`, `add`, `wait`, `check` and
//! `delete_key`). They serve the stores that have no queues and barriers of their own: a store that
//! the caller implements, and the server of an older torch. The hash, file and prefix stores use
//! the barrier too, but not the queue.
//!
//! A barrier uses c10d's key protocol, so that libdist and torch can meet in one barrier. Each
//! caller increments `<key>/num_members`. The last caller sets `<key>/last_member`, and all callers
//! wait for this key.
//!
//! A queue `q` is a numbered sequence of items. Item numbers begin with 1:
//!
//! | key | content |
//! |---|---|
//! | `queue/<q>/tail` | the number of items pushed; a push takes the next number from it |
//! | `queue/<q>/<n>` | item n |
//! | `queue/<q>/<n>/taken` | a counter; the caller that increments it to 1 owns item n |
//! | `queue/<q>/head` | the number of items taken and deleted |
//!
//! **Take.** Callers take items in order of their numbers. So if m items are taken, they have the
//! numbers 1 to m. The head is at most m, because an owner increments it only after it took its
//! item. A caller therefore starts its search at number head + 1, and skips items that have a
//! counter. The caller that owns item n does these steps in this order:
//!
//! 1. It deletes the item.
//! 2. It increments the head.
//! 3. If the head is now at least n, it deletes its own counter, because no caller searches there
//!    any more.
//!
//! For example, callers A, B and C own items 1, 2 and 3, and C is the first to finish. C increments
//! the head to 1. A new caller starts at item 2, finds the counters of items 2 and 3, and continues
//! with item 4. C leaves its counter in place, because 1 is less than 3.
//!
//! A slow caller may have read the head before step 2, and may increment the deleted counter from 0
//! to 1 after step 3. But then the item is missing, and the slow caller deletes the counter and
//! retries.
//!
//! **Missing items.** If a caller finds no item n, then item n was not pushed yet, or another
//! caller has taken it. Item n was taken if its counter exists, or if the head is at least n. A
//! caller first looks for the item, then for the counter, and then reads the head. This order
//! misses no taken item, because the owner creates the counter before it deletes the item, and
//! increments the head before it deletes the counter.
//!
//! **Waits.** A pop waits for the key of the next item. A store that implements waits by polling
//! may miss this key if another caller takes the item between two polls. So a pop waits for a short
//! time (a slice) at most, and then searches the queue from the head again.
//!
//! **Failures.** If a caller dies after it took an item, the item is lost, and other callers
//! continue. The head then stays too small by 1, so the counters of later items are never deleted.
//! If a caller dies during a push, after it took a number and before it stored the item, the queue
//! is blocked. The other callers cannot distinguish the dead caller from a slow one.

use super::table::parse_number;
use super::{Store, barrier_incomplete, missing_keys};
use crate::base::{Deadline, ErrorKind, Result};
use std::time::Duration;

/// Implements [`Store::barrier`] with keys.
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
    let arrived = store.add(&members, 1, deadline)?;
    if usize::try_from(arrived).is_ok_and(|count| count >= size) {
        store.set(&last, b"1", deadline)?;
    }
    match store.wait(&[&last], deadline) {
        Err(error) if error.kind() == ErrorKind::Timeout => {
            let arrived =
                read_counter(store, &members, &Deadline::after_ms(COUNT_QUERY_TIMEOUT_MS)).ok();
            Err(barrier_incomplete(&store.describe(), key, arrived, size, deadline))
        }
        outcome => outcome,
    }
}

/// After a barrier's deadline has passed, one query reads the number of arrived callers for the
/// error text. This is the time limit of that query.
const COUNT_QUERY_TIMEOUT_MS: u64 = 1000;

/// Builds the names of a queue's keys.
struct QueueKeys<'a>(&'a [u8]);

impl QueueKeys<'_> {
    fn key_for(&self, suffix: &str) -> Vec<u8> {
        [b"queue/", self.0, b"/", suffix.as_bytes()].concat()
    }

    fn tail(&self) -> Vec<u8> {
        self.key_for("tail")
    }

    fn head(&self) -> Vec<u8> {
        self.key_for("head")
    }

    fn item(&self, number: i64) -> Vec<u8> {
        self.key_for(&number.to_string())
    }

    fn taken_counter(&self, number: i64) -> Vec<u8> {
        self.key_for(&format!("{number}/taken"))
    }
}

/// Implements [`Store::queue_push`] with keys.
///
/// # Errors
/// As [`Store::queue_push`].
pub fn push<S: Store + ?Sized>(
    store: &S,
    queue: &[u8],
    item: &[u8],
    deadline: &Deadline,
) -> Result<()> {
    let names = QueueKeys(queue);
    let number = store.add(&names.tail(), 1, deadline)?;
    store.set(&names.item(number), item, deadline)
}

/// Implements [`Store::queue_len`] with keys.
///
/// # Errors
/// As [`Store::queue_len`].
pub fn queue_len<S: Store + ?Sized>(store: &S, queue: &[u8], deadline: &Deadline) -> Result<i64> {
    let names = QueueKeys(queue);
    let head = read_counter(store, &names.head(), deadline)?;
    Ok((read_counter(store, &names.tail(), deadline)? - head).max(0))
}

/// Implements [`Store::queue_try_pop`] with keys.
///
/// # Errors
/// As [`Store::queue_try_pop`].
pub fn try_pop<S: Store + ?Sized>(
    store: &S,
    queue: &[u8],
    deadline: &Deadline,
) -> Result<Option<Vec<u8>>> {
    Ok(try_take(store, &QueueKeys(queue), deadline)?.ok())
}

/// Implements [`Store::queue_pop`] with keys.
///
/// # Errors
/// As [`Store::queue_pop`].
pub fn pop<S: Store + ?Sized>(store: &S, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
    wait_and_take(store, &QueueKeys(queue), deadline).map_err(|error| match error.kind() {
        ErrorKind::Timeout => missing_keys(&store.describe(), &[queue], deadline),
        _ => error,
    })
}

/// The first and the longest slice of a pop's wait. The slices double from the first to the
/// longest. After each slice, the pop searches the queue again.
const WAIT_SLICES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

fn wait_and_take<S: Store + ?Sized>(
    store: &S,
    names: &QueueKeys<'_>,
    deadline: &Deadline,
) -> Result<Vec<u8>> {
    let [mut slice, longest] = WAIT_SLICES;
    loop {
        let next = match try_take(store, names, deadline)? {
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

/// Takes the first item and returns it as the inner `Ok`. If the queue is empty, returns the number
/// that the next item will have as the inner `Err`.
fn try_take<S: Store + ?Sized>(
    store: &S,
    names: &QueueKeys<'_>,
    deadline: &Deadline,
) -> Result<std::result::Result<Vec<u8>, i64>> {
    let mut head = read_counter(store, &names.head(), deadline)?;
    let mut next = head + 1;
    loop {
        let (item, taken) = (names.item(next), names.taken_counter(next));
        if store.check(&[&taken], deadline)? {
            next += 1;
            continue;
        }
        let item_exists = store.check(&[&item], deadline)?;
        if item_exists && store.add(&taken, 1, deadline)? == 1 {
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
        // This caller did not get the item. Another caller owns the item, or its owner has deleted
        // it, or it was not pushed yet. If the head has moved, search again from the head. If no
        // caller has taken the item, it was not pushed yet.
        let is_taken = item_exists || store.check(&[&taken], deadline)?;
        let current_head = read_counter(store, &names.head(), deadline)?;
        if current_head != head {
            head = current_head;
            next = head + 1;
        } else if !is_taken {
            return Ok(Err(next));
        }
    }
}

/// Returns the number under a key, and 0 for a missing key.
fn read_counter<S: Store + ?Sized>(store: &S, key: &[u8], deadline: &Deadline) -> Result<i64> {
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

    /// A store that supports only the six operations that queues and barriers need. Before call
    /// number `interrupt_at`, the store runs `interrupt`, which acts as another caller.
    #[derive(Debug)]
    struct InterruptedStore {
        store: HashStore,
        calls: AtomicUsize,
        interrupt_at: usize,
        interrupt: fn(&HashStore, usize),
        steps: usize,
    }

    fn test_deadline() -> Deadline {
        Deadline::after_ms(10_000)
    }

    impl InterruptedStore {
        fn new(at: usize, act: fn(&HashStore, usize), steps: usize) -> Self {
            Self {
                store: HashStore::new(),
                calls: AtomicUsize::new(0),
                interrupt_at: at,
                interrupt: act,
                steps,
            }
        }

        fn count_call(&self) -> &HashStore {
            if self.calls.fetch_add(1, Ordering::Relaxed) == self.interrupt_at {
                (self.interrupt)(&self.store, self.steps);
            }
            &self.store
        }
    }

    /// Runs the first `steps` steps of taking item 1.
    fn run_take_steps(store: &HashStore, steps: usize) {
        let names = QueueKeys(b"q");
        let (item, taken) = (names.item(1), names.taken_counter(1));
        if !store.check(&[&item], &test_deadline()).unwrap()
            || store.add(&taken, 1, &test_deadline()).unwrap() > 1
        {
            return;
        }
        if steps > 1 {
            assert!(store.delete_key(&item, &test_deadline()).unwrap());
        }
        if steps > 2 {
            assert_eq!(store.add(&names.head(), 1, &test_deadline()).unwrap(), 1);
        }
        if steps > 3 {
            assert!(store.delete_key(&taken, &test_deadline()).unwrap());
        }
    }

    fn unsupported<T>() -> Result<T> {
        Err(Error::new(ErrorKind::Unsupported, "this store has only six operations"))
    }

    impl Store for InterruptedStore {
        fn describe(&self) -> String {
            "a store that is interrupted".into()
        }

        fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()> {
            self.count_call().set(key, value, deadline)
        }

        fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
            self.count_call().get(key, deadline)
        }

        fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64> {
            self.count_call().add(key, amount, deadline)
        }

        fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()> {
            self.count_call().wait(keys, deadline)
        }

        fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool> {
            self.count_call().check(keys, deadline)
        }

        fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool> {
            self.count_call().delete_key(key, deadline)
        }

        fn compare_set(&self, _: &[u8], _: &[u8], _: &[u8], _: &Deadline) -> Result<Vec<u8>> {
            unsupported()
        }

        fn num_keys(&self, _: &Deadline) -> Result<i64> {
            unsupported()
        }

        fn append(&self, _: &[u8], _: &[u8], _: &Deadline) -> Result<()> {
            unsupported()
        }

        fn multi_get(&self, _: &[&[u8]], _: &Deadline) -> Result<Vec<Vec<u8>>> {
            unsupported()
        }

        fn multi_set(&self, _: &[(&[u8], &[u8])], _: &Deadline) -> Result<()> {
            unsupported()
        }

        fn list_keys(&self, _: &Deadline) -> Result<Vec<Vec<u8>>> {
            unsupported()
        }

        fn queue_push(&self, _: &[u8], _: &[u8], _: &Deadline) -> Result<()> {
            unsupported()
        }

        fn queue_pop(&self, _: &[u8], _: &Deadline) -> Result<Vec<u8>> {
            unsupported()
        }

        fn queue_try_pop(&self, _: &[u8], _: &Deadline) -> Result<Option<Vec<u8>>> {
            unsupported()
        }

        fn queue_len(&self, _: &[u8], _: &Deadline) -> Result<i64> {
            unsupported()
        }

        fn barrier(&self, _: &[u8], _: usize, _: &Deadline) -> Result<()> {
            unsupported()
        }
    }

    /// Two callers compete for one item. At any interleaving, one caller gets it and the other
    /// learns that the next item has number 2.
    #[test]
    fn try_take_skips_an_item_taken_concurrently() {
        let mut taken_by = [0, 0];
        for at in 0..12 {
            for steps in 1..=4 {
                let store = InterruptedStore::new(at, run_take_steps, steps);
                push(&store.store, b"q", b"item", &test_deadline()).unwrap();
                match try_take(&store, &QueueKeys(b"q"), &test_deadline()).unwrap() {
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

    /// Another caller pushes and takes the item that a pop waits for or is about to wait for. The
    /// pop then returns the next item.
    #[test]
    fn pop_that_loses_its_item_takes_the_next() {
        // A pop on an empty queue checks head, counter, item, counter and head. Its call number 5
        // waits.
        for at in 0..=5 {
            let store = InterruptedStore::new(
                at,
                |store, _| {
                    push(store, b"q", b"first", &test_deadline()).unwrap();
                    assert_eq!(try_pop(store, b"q", &test_deadline()).unwrap().unwrap(), b"first");
                    push(store, b"q", b"second", &test_deadline()).unwrap();
                },
                0,
            );
            assert_eq!(pop(&store, b"q", &test_deadline()).unwrap(), b"second", "before call {at}");
        }
    }
}
