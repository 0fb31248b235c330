//! Key-value stores: where the processes of a job meet, and where a program may keep small shared
//! state.
//!
//! [`Store`] is the one trait; the implementations are [`HashStore`] (one process), [`TcpStore`] (a
//! server and its clients, on torch's wire protocol), [`FileStore`] (a file that processes share)
//! and [`PrefixStore`] (a part of another store's name space). Semantics are those of c10d's
//! stores, except that every call is bounded by a deadline, that a wait which ends with it names
//! the missing keys, and that adding to something that is not a number is an error which changes
//! nothing.
//!
//! A store knows nothing of ranks, groups or transports.

pub mod composed;
pub mod file;
mod hash;
pub mod limits;
mod prefix;
mod table;
pub mod tcp;

#[cfg(test)]
mod conformance;

pub use file::FileStore;
pub use hash::HashStore;
pub use prefix::PrefixStore;
pub use tcp::TcpStore;

use crate::base::{Deadline, Error, ErrorKind, Result};
use std::fmt::Write as _;

/// How many keys an error names.
const KEYS_NAMED: usize = 8;

/// How many bytes of a key an error shows.
const KEY_BYTES_SHOWN: usize = 128;

/// A key-value store. Keys and values are bytes, and both may be empty. Every method may be called
/// from any thread; one that waits does not hold up the others.
///
/// All methods return `Timeout` when the deadline passes and `Connection` when the store cannot be
/// reached (any more). After either error of a method that changes something, whether the change
/// took place is unknown.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Stores `value` under `key`, whatever was there before. Whatever this process asks of the
    /// store afterwards finds it there; to others it is visible at the latest when the next call
    /// that gives an answer returns. The same holds for the other methods that give none: `append`,
    /// `multi_set` and `queue_push`. A store that cannot be reached is found out by the method
    /// itself or by the next one.
    ///
    /// # Errors
    /// See [`Store`].
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()>;

    /// The value of `key`; waits until there is one.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` names the key.
    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>>;

    /// Adds `amount` to the counter `key` and returns the sum. A missing key counts as 0. Counters
    /// are stored as decimal text, and wrap around.
    ///
    /// # Errors
    /// See [`Store`]; `NotANumber`, and nothing changed, where the value is not a number.
    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64>;

    /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty.
    /// Returns the value after that; where the key is missing and `expected` is not empty, nothing
    /// is stored and `expected` is returned.
    ///
    /// # Errors
    /// See [`Store`].
    fn compare_set(
        &self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        deadline: &Deadline,
    ) -> Result<Vec<u8>>;

    /// Waits until all keys exist. A queue that is not empty counts as one.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` names the missing keys.
    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()>;

    /// Whether all keys exist now.
    ///
    /// # Errors
    /// See [`Store`].
    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool>;

    /// The number of keys of the whole store, whoever set them.
    ///
    /// # Errors
    /// See [`Store`].
    fn num_keys(&self, deadline: &Deadline) -> Result<i64>;

    /// Removes a key. True where it existed.
    ///
    /// # Errors
    /// See [`Store`].
    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool>;

    /// Adds bytes to the end of the value of `key`, which is made where it is missing.
    ///
    /// # Errors
    /// See [`Store`].
    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()>;

    /// The values of several keys, in their order; waits until all exist.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` names the missing keys.
    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>>;

    /// Stores several values at once.
    ///
    /// # Errors
    /// See [`Store`].
    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()>;

    /// All keys of the whole store, in no order, except those that the store keeps for itself.
    ///
    /// # Errors
    /// See [`Store`]; `Unsupported` where the store cannot tell.
    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>>;

    /// Adds an item to the end of a queue. Queues are beside the keys: the same name may be both,
    /// and only the queue methods and `wait` see queues. (A store without queues of its own
    /// composes them of keys under `queue/`: see the implementation's documentation.)
    ///
    /// # Errors
    /// See [`Store`].
    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()> {
        composed::push(self, queue, item, deadline)
    }

    /// Takes the first item of a queue; waits until there is one. Each item is given to one caller.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` names the queue.
    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>> {
        composed::pop(self, queue, deadline)
    }

    /// Takes the first item of a queue if there is one now.
    ///
    /// # Errors
    /// See [`Store`].
    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        composed::try_pop(self, queue, deadline)
    }

    /// The number of items in a queue.
    ///
    /// # Errors
    /// See [`Store`].
    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64> {
        composed::queue_len(self, queue, deadline)
    }

    /// Waits until `size` callers have come to the barrier `key`. A key serves one barrier: later
    /// callers pass at once, and one that timed out has been counted.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` says how many have come.
    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()> {
        composed::barrier(self, key, size, deadline)
    }

    /// The host and port where other processes reach this store, if they can.
    fn address(&self) -> Option<(String, u16)> {
        None
    }

    /// What this store is, for messages: "the store at host:port".
    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// The `Timeout` error of a wait for keys: names the first missing ones and counts the others.
pub fn missing_keys<K: AsRef<[u8]>>(store: &str, missing: &[K], deadline: &Deadline) -> Error {
    let ms = deadline.elapsed().as_millis();
    let keys = format_keys(missing);
    let text = format!("timed out after {ms} ms waiting for keys of {store}; missing: {keys}");
    Error::new(ErrorKind::Timeout, text)
}

/// Keys as messages show them, as many as a message names.
fn format_keys<K: AsRef<[u8]>>(keys: &[K]) -> String {
    let mut text = String::new();
    for (position, key) in keys.iter().take(KEYS_NAMED).enumerate() {
        if position > 0 {
            text.push_str(", ");
        }
        push_key(&mut text, key.as_ref());
    }
    if keys.len() > KEYS_NAMED {
        // Writing to a String cannot fail.
        let _infallible = write!(text, " and {} more", keys.len() - KEYS_NAMED);
    }
    text
}

/// A key as messages show it: quoted, escaped and cut.
fn format_key(key: &[u8]) -> String {
    let mut text = String::new();
    push_key(&mut text, key);
    text
}

fn push_key(text: &mut String, key: &[u8]) {
    let cut = key.len() > KEY_BYTES_SHOWN;
    let escaped = key[..key.len().min(KEY_BYTES_SHOWN)].escape_ascii();
    // Writing to a String cannot fail.
    let _infallible = write!(text, "\"{escaped}{}\"", if cut { "..." } else { "" });
}

/// The `Timeout` error of a barrier.
fn barrier_incomplete(
    store: &str,
    key: &[u8],
    arrived: Option<i64>,
    size: usize,
    deadline: &Deadline,
) -> Error {
    let ms = deadline.elapsed().as_millis();
    let arrived_text =
        arrived.map_or_else(String::new, |come| format!("; {come} of {size} have come"));
    let message = format!(
        "timed out after {ms} ms in the barrier {} of {store}{arrived_text}",
        format_key(key)
    );
    Error::new(ErrorKind::Timeout, message)
}

/// The error of [`Store::add`] on something else than a number.
fn not_a_number(store: &str, key: &[u8]) -> Error {
    let message = format!("the value of {} in {store} is not a number", format_key(key));
    Error::new(ErrorKind::NotANumber, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_names_eight_keys_and_counts_the_rest() {
        let keys: Vec<_> = (0..11).map(|i| format!("key{i}").into_bytes()).collect();
        let text = missing_keys("the hash store", &keys, &Deadline::after_ms(5)).to_string();
        assert!(
            text.contains("\"key0\", \"key1\"") && text.ends_with("\"key7\" and 3 more"),
            "{text}"
        );
        let text = missing_keys("x", &keys[..1], &Deadline::after_ms(5)).to_string();
        assert!(text.ends_with("missing: \"key0\""), "{text}");
    }

    #[test]
    fn keys_are_escaped_and_cut() {
        assert_eq!(format_key(b"a\"\n\xff"), "\"a\\\"\\n\\xff\"");
        assert!(format_key(&[b'k'; 1000]).len() < 200);
    }
}
