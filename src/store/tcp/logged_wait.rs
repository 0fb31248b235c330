//! A wait for keys that logs the missing keys periodically. If the log level suppresses these
//! lines, it is a single wait.

use super::client::TcpStore;
use super::connection::{RequestFailure, StoreConnection};
use super::proto::Bytes;
use crate::base::deadline::Deadline;
use crate::base::log::LogLevel;
use crate::store::{Store as _, format_keys};
use crate::wait::slow_wait::SlowWaitWatch;

/// Waits for `keys`. Returns true once all keys exist, and false if the deadline passes first.
/// `user_keys` are the names of the keys for the log.
pub(super) fn wait_with_log(
    connection: &mut StoreConnection,
    store: &TcpStore,
    op_name: &str,
    (keys, user_keys): (&[Bytes<'_>], &[&[u8]]),
    deadline: &Deadline,
) -> Result<bool, RequestFailure> {
    let mut watch = SlowWaitWatch::default();
    loop {
        let mut waited = None;
        let time_to_next_log = watch.check(|lasted| waited = Some(lasted));
        if let Some(lasted) = waited {
            let missing = connection.find_missing(keys)?;
            let missing: Vec<&[u8]> = missing.into_iter().map(|index| user_keys[index]).collect();
            let (store, missing) = (store.describe(), format_keys(&missing));
            crate::log!(LogLevel::Warn, "{op_name} of {store} has waited {lasted} for {missing}");
        }
        let slice = time_to_next_log.map_or(*deadline, |limit| deadline.capped(limit));
        if connection.wait(keys, &slice)? {
            return Ok(true);
        }
        if deadline.has_passed() {
            return Ok(false);
        }
    }
}
