//! Key-value stores. The processes of a job use a store to find each other, and a program may keep
//! small shared state in it.
//!
//! [`Store`] is the trait. Its implementations are:
//!
//! - [`HashStore`]: in the memory of one process.
//! - [`TcpStore`]: a server and its clients, which use torch's wire protocol.
//! - [`FileStore`]: a file that processes share.
//! - [`PrefixStore`]: a part of another store's name space.
//!
//! The semantics are those of c10d's stores, with three differences. A deadline bounds every call.
//! A wait that times out names the missing keys. `add` to a value that is not a number returns an
//! error and changes nothing.
//!
//! The code of a store knows nothing of ranks, groups and transports.

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
use crate::security::Secret;
use std::fmt::Write as _;
use std::sync::Arc;

/// The largest number of keys that an error names.
const KEYS_NAMED: usize = 8;

/// The largest number of bytes of a key that an error shows.
const KEY_BYTES_SHOWN: usize = 128;

/// A key-value store. Keys and values are bytes, and both may be empty. Any thread may call any
/// method. A method that waits does not block other callers.
///
/// Every method returns `Timeout` if the deadline passes, and `Connection` if the store cannot be
/// reached. If a method that changes the store returns one of these two errors, the change may or
/// may not have taken place.
pub trait Store: Send + Sync {
    /// Stores `value` under `key`, and replaces any previous value.
    ///
    /// Later calls of this process see the new value. Other processes may see it later: a store may
    /// send the value without waiting for a reply. When this process next calls a method that
    /// returns a value, for example `get`, and that call returns, all processes see the new value.
    /// If the store cannot be reached, this call or the next one returns the error. The same holds
    /// for the other methods that return no value: `append`, `multi_set` and `queue_push`.
    ///
    /// # Errors
    /// See [`Store`].
    fn set(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()>;

    /// Returns the value of `key`, after waiting until the key exists.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` names the key.
    fn get(&self, key: &[u8], deadline: &Deadline) -> Result<Vec<u8>>;

    /// Adds `amount` to the counter `key` and returns the sum. A missing key counts as 0. A counter
    /// is stored as decimal text. A sum that overflows wraps around.
    ///
    /// # Errors
    /// See [`Store`]. If the value is not a number, returns `NotANumber` and changes nothing.
    fn add(&self, key: &[u8], amount: i64, deadline: &Deadline) -> Result<i64>;

    /// Stores `desired` if the value equals `expected`, or if the key is missing and `expected` is
    /// empty. Returns the value that the key has after the call. If the key is missing and
    /// `expected` is not empty, stores nothing and returns `expected`, like c10d.
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

    /// Waits until all keys exist. A queue with items counts as an existing key.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` names the missing keys.
    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()>;

    /// Waits until all keys exist or the slice of a longer wait ends. Returns whether all keys
    /// exist. The keys that are missing at the end of a slice are not an error.
    ///
    /// # Errors
    /// See [`Store`].
    fn wait_slice(&self, keys: &[&[u8]], slice: &Deadline) -> Result<bool> {
        match self.wait(keys, slice) {
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Returns a waiter for one wait, if another thread can end the waits of this store.
    ///
    /// # Errors
    /// See [`Store`].
    fn waiter(&self, _deadline: &Deadline) -> Result<Option<Arc<dyn StoreWaiter>>> {
        Ok(None)
    }

    /// Returns a second client of the same store, if a wait of this client would block the calls of
    /// a second handle.
    ///
    /// # Errors
    /// See [`Store`].
    fn second_client(&self, _deadline: &Deadline) -> Result<Option<Arc<dyn Store>>> {
        Ok(None)
    }

    /// Returns true if all keys exist now.
    ///
    /// # Errors
    /// See [`Store`].
    fn check(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<bool>;

    /// Returns the number of keys in the whole store, including the keys of other processes.
    ///
    /// # Errors
    /// See [`Store`].
    fn num_keys(&self, deadline: &Deadline) -> Result<i64>;

    /// Removes a key. Returns true if it existed.
    ///
    /// # Errors
    /// See [`Store`].
    fn delete_key(&self, key: &[u8], deadline: &Deadline) -> Result<bool>;

    /// Appends bytes to the value of `key`. Creates the key if it is missing.
    ///
    /// # Errors
    /// See [`Store`].
    fn append(&self, key: &[u8], value: &[u8], deadline: &Deadline) -> Result<()>;

    /// Returns the values of several keys in the order of `keys`, after waiting until all exist.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` names the missing keys.
    fn multi_get(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<Vec<Vec<u8>>>;

    /// Stores several values in one call.
    ///
    /// # Errors
    /// See [`Store`].
    fn multi_set(&self, pairs: &[(&[u8], &[u8])], deadline: &Deadline) -> Result<()>;

    /// Returns all keys of the whole store in no particular order, without the store's internal
    /// keys.
    ///
    /// # Errors
    /// See [`Store`]; `Unsupported` if the store cannot list its keys.
    fn list_keys(&self, deadline: &Deadline) -> Result<Vec<Vec<u8>>>;

    /// Appends an item to a queue. Queues have a namespace of their own: a key and a queue may have
    /// the same name. Only the queue methods and `wait` see queues. (Some stores have no queues of
    /// their own and build them from keys that begin with `queue/`. The documentation of such a
    /// store says so.)
    ///
    /// # Errors
    /// See [`Store`].
    fn queue_push(&self, queue: &[u8], item: &[u8], deadline: &Deadline) -> Result<()>;

    /// Takes the first item of a queue, after waiting until there is one. Each item goes to one
    /// caller.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` names the queue.
    fn queue_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Vec<u8>>;

    /// Takes the first item of a queue, or returns `None` if the queue is empty.
    ///
    /// # Errors
    /// See [`Store`].
    fn queue_try_pop(&self, queue: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>>;

    /// Returns the number of items in a queue.
    ///
    /// # Errors
    /// See [`Store`].
    fn queue_len(&self, queue: &[u8], deadline: &Deadline) -> Result<i64>;

    /// Waits until `size` callers have arrived at the barrier `key`. A key serves one barrier only:
    /// when `size` callers have arrived, every later caller passes immediately. A caller that timed
    /// out remains counted.
    ///
    /// # Errors
    /// See [`Store`]; `Timeout` reports how many callers have arrived.
    fn barrier(&self, key: &[u8], size: usize, deadline: &Deadline) -> Result<()>;

    /// Returns the job's secret, if the clients of this store must prove that they hold it.
    fn secret(&self) -> Option<&Secret> {
        None
    }

    /// Returns true if the keys and values travel over connections that are not encrypted.
    fn is_unencrypted(&self) -> bool {
        false
    }

    /// Returns the host and port where other processes reach this store, if it has an address.
    fn address(&self) -> Option<(String, u16)> {
        None
    }

    /// Returns true if the methods call functions of the program, which must not run at its end.
    fn calls_program(&self) -> bool {
        false
    }

    /// Returns the store's name for messages, for example "the store at host:port".
    fn describe(&self) -> String;
}

crate::base::trait_object_debug::impl_debug_of_objects!(Store);

/// A client of a store that waits once, and whose wait another thread can end.
pub trait StoreWaiter: Send + Sync {
    /// Waits until all keys exist, as [`Store::wait`], or until [`StoreWaiter::interrupt`].
    ///
    /// # Errors
    /// See [`Store`]; `Aborted` after an interruption.
    fn wait(&self, keys: &[&[u8]], deadline: &Deadline) -> Result<()>;

    /// Ends the wait, also if it begins later. Does not wait itself.
    fn interrupt(&self);
}

crate::base::trait_object_debug::impl_debug_of_objects!(StoreWaiter);

/// Builds the `Timeout` error of a wait for keys. The error names the first [`KEYS_NAMED`] missing
/// keys and counts the rest.
pub fn missing_keys<K: AsRef<[u8]>>(store: &str, missing: &[K], deadline: &Deadline) -> Error {
    let ms = deadline.elapsed().as_millis();
    let keys = format_keys(missing);
    let text = format!("timed out after {ms} ms waiting for keys of {store}; missing: {keys}");
    Error::new(ErrorKind::Timeout, text)
}

/// Formats keys for a message. Names the first [`KEYS_NAMED`] keys and counts the rest.
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

/// Formats a key for a message: quoted, escaped and shortened.
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

/// Builds the `Timeout` error of a barrier.
fn barrier_incomplete(
    store: &str,
    key: &[u8],
    arrived: Option<i64>,
    size: usize,
    deadline: &Deadline,
) -> Error {
    let ms = deadline.elapsed().as_millis();
    let arrived_text = arrived
        .map_or_else(String::new, |count| format!("; {count} of {size} callers have arrived"));
    let message = format!(
        "timed out after {ms} ms in the barrier {} of {store}{arrived_text}",
        format_key(key)
    );
    Error::new(ErrorKind::Timeout, message)
}

/// Builds the error of [`Store::add`] for a value that is not a number.
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
