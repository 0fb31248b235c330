//! How large keys, values and calls may be. The same for every store that other processes read
//! from, so that nobody can make them take any amount of memory.

use crate::base::{Error, Result};

/// The longest key.
pub const MAX_KEY_BYTES: usize = 8192;
/// The longest value of one call.
pub const MAX_VALUE_BYTES: usize = 8 << 20;
/// The most keys of one call.
pub const MAX_KEYS: usize = 131_072;
/// The most bytes of keys and values of one call. Torch has no such limit; its lists of many large
/// values could make a server take any amount of memory for one client.
pub const MAX_REQUEST_BYTES: usize = 256 << 20;

/// Refuses a key that is too long.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_key(key: &[u8]) -> Result<()> {
    if key.len() <= MAX_KEY_BYTES {
        return Ok(());
    }
    let message =
        format!("a key of {} bytes is longer than the store's {MAX_KEY_BYTES}", key.len());
    Err(Error::invalid(message))
}

/// Refuses a value that is too long.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    let message =
        format!("a value of {} bytes is longer than the store's {MAX_VALUE_BYTES}", value.len());
    Err(Error::invalid(message))
}

/// Refuses a call with too many keys.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_count(keys: usize) -> Result<()> {
    if keys <= MAX_KEYS {
        return Ok(());
    }
    Err(Error::invalid(format!("{keys} keys in one call are more than the store's {MAX_KEYS}")))
}

/// Refuses a call that is too long in all.
///
/// # Errors
/// `InvalidArgument`.
pub fn check_total(bytes: usize) -> Result<()> {
    if bytes <= MAX_REQUEST_BYTES {
        return Ok(());
    }
    let limit = MAX_REQUEST_BYTES;
    Err(Error::invalid(format!("a call with {bytes} bytes is longer than the store's {limit}")))
}
