//! A wait for keys that is told in the log while it lasts, with the keys that are missing.
//!
//! Where nobody wants to hear of it, it is one wait.

use super::client::TcpStore;
use super::connection::{Connection, Failure};
use super::proto::Bytes;
use crate::base::deadline::Deadline;
use crate::base::log::Level;
use crate::store::{Store as _, listed};
use crate::wait::watch::Watch;

/// True once all keys exist, false when the deadline passes first. `shown` are the keys as the user
/// knows them.
pub(super) fn wait(
    connection: &mut Connection,
    store: &TcpStore,
    what: &str,
    (keys, shown): (&[Bytes<'_>], &[&[u8]]),
    deadline: &Deadline,
) -> Result<bool, Failure> {
    let mut watch = Watch::default();
    loop {
        let mut told = None;
        let most = watch.look(|lasted| told = Some(lasted));
        if let Some(lasted) = told {
            let missing = connection.missing(keys)?;
            let missing: Vec<&[u8]> = missing.into_iter().map(|place| shown[place]).collect();
            let (store, missing) = (store.describe(), listed(&missing));
            crate::log!(Level::Warn, "{what} of {store} has waited {lasted} for {missing}");
        }
        let slice = most.map_or(*deadline, |most| deadline.capped(most));
        if connection.wait(keys, &slice)? {
            return Ok(true);
        }
        if deadline.has_passed() {
            return Ok(false);
        }
    }
}
