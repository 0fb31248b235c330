//! The wire form of a user's key: "/" followed by the key. Keys that the protocol itself uses do
//! not begin with "/", so the two kinds of keys cannot collide.

use super::proto::{self, Bytes};
use crate::base::{Error, Result};
use crate::store::limits::{check_count, check_total};

/// Encodes one key of a user.
///
/// # Errors
/// `InvalidArgument` if the key is too long.
pub(super) fn encode_key(key: &[u8]) -> Result<Bytes<'static>> {
    if key.len() >= proto::MAX_KEY_BYTES {
        let limit = proto::MAX_KEY_BYTES - 1;
        let message = format!(
            "a key of {} bytes is longer than the store's maximum of {limit} bytes",
            key.len()
        );
        return Err(Error::invalid(message));
    }
    Ok(Bytes::Owned([b"/", key].concat()))
}

/// Encodes all keys of one request.
///
/// # Errors
/// `InvalidArgument` if a key is too long, if there are too many keys, or if the keys are too long
/// in total.
pub(super) fn encode_keys(keys: &[&[u8]]) -> Result<Vec<Bytes<'static>>> {
    check_count(keys.len())?;
    check_total(keys.iter().map(|key| key.len() + 1).sum())?;
    keys.iter().map(|key| encode_key(key)).collect()
}
