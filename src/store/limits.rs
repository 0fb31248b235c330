//! The maximum sizes of keys, values and calls. Every store that several processes share enforces
//! the same limits, so that no process can make a store allocate an unlimited amount of memory.

use crate::base::{Error, Result};

/// The largest number of bytes in a key.
pub const MAX_KEY_BYTES: usize = 8192;
/// The largest number of bytes in a value.
pub const MAX_VALUE_BYTES: usize = 8 << 20;
/// The largest number of keys in one call.
pub const MAX_KEYS: usize = 131_072;
/// The largest number of bytes of keys and values in one call. Torch's server has no such limit: a
/// client that sends a list of many large values can make it allocate an unlimited amount of
/// memory.
pub const MAX_REQUEST_BYTES: usize = 256 << 20;

/// Rejects a key that is too long.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_key(key: &[u8]) -> Result<()> {
    if key.len() <= MAX_KEY_BYTES {
        return Ok(());
    }
    let message = format!(
        "a key of {} bytes is longer than the store's maximum of {MAX_KEY_BYTES} bytes",
        key.len()
    );
    Err(Error::invalid(message))
}

/// Rejects a value that is too long.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    let message = format!(
        "a value of {} bytes is longer than the store's maximum of {MAX_VALUE_BYTES} bytes",
        value.len()
    );
    Err(Error::invalid(message))
}

/// Rejects a call with too many keys.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_count(keys: usize) -> Result<()> {
    if keys <= MAX_KEYS {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{keys} keys in one call are more than the store's maximum of {MAX_KEYS}"
    )))
}

/// Rejects a call whose keys and values are too long in total.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_total(bytes: usize) -> Result<()> {
    if bytes <= MAX_REQUEST_BYTES {
        return Ok(());
    }
    let limit = MAX_REQUEST_BYTES;
    Err(Error::invalid(format!(
        "a call with {bytes} bytes is longer than the store's maximum of {limit} bytes"
    )))
}
