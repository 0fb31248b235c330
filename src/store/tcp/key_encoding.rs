//! Users' keys as they travel: with "/" before them, which no key of the protocol's own has.

use super::proto::{self, Bytes};
use crate::base::{Error, Result};
use crate::store::limits::{check_count, check_total};

/// A user's key.
///
/// # Errors
/// `InvalidArgument` where it is too long.
pub(super) fn encode_key(key: &[u8]) -> Result<Bytes<'static>> {
    if key.len() >= proto::MAX_KEY_BYTES {
        let limit = proto::MAX_KEY_BYTES - 1;
        let message = format!("a key of {} bytes is longer than the store's {limit}", key.len());
        return Err(Error::invalid(message));
    }
    Ok(Bytes::Owned([b"/", key].concat()))
}

/// Users' keys of one request.
///
/// # Errors
/// `InvalidArgument` where one is too long, or all together are, or there are too many.
pub(super) fn encode_keys(keys: &[&[u8]]) -> Result<Vec<Bytes<'static>>> {
    check_count(keys.len())?;
    check_total(keys.iter().map(|key| key.len() + 1).sum())?;
    keys.iter().map(|key| encode_key(key)).collect()
}
