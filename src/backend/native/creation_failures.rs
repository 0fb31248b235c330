//! Failures while a group is created: which of several errors a rank reports, and when.

use crate::backend::BootstrapExchange;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, ErrorKind, Result};
use crate::transport::SharedDomain;
use crate::wait::doorbell::Doorbell;
use crate::wait::{WaitPolicy, wait_until};
use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// The maximum time for which a rank waits for a published failure after a connection has broken.
const PEER_FAILURE_WAIT: Duration = Duration::from_millis(500);
/// The interval between two checks for a published failure.
const PEER_FAILURE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Replaces a connection error by the death of the peer, or by the failure that a peer has
/// published. A rank that fails closes its connections, and its published reason explains more than
/// the broken connection. A rank that finds a death does not wait, so that the other ranks, which
/// may have lost the connection to this rank, get the reason while they wait.
pub(super) fn prefer_peer_failure(error: Error, exchange: &dyn BootstrapExchange) -> Error {
    if error.kind() != ErrorKind::Connection {
        return error;
    }
    if let Some(death) = error.culprit().and_then(|rank| exchange.death_of(rank)) {
        return death;
    }
    let (limit, never) = (Deadline::after(PEER_FAILURE_WAIT), Doorbell::default());
    loop {
        if let Some(reason) = exchange.peer_failure() {
            return reason;
        }
        if limit.has_passed() {
            return error;
        }
        let slice = limit.capped(PEER_FAILURE_POLL_INTERVAL);
        drop(wait_until(&never, WaitPolicy::SLEEP_SOON, &slice, || None, || None::<()>));
    }
}

/// In the last phase of the creation, a failure of the group counts after this time, and a death at
/// once.
const EARLY_FAILURE_GRACE: Duration = Duration::from_secs(1);

/// The last phase of the creation: the group exists only after all ranks have joined. Until then,
/// the domain detects the death of a rank. Each rank passes the name of its capability. Returns the
/// names of all ranks.
///
/// A rank that has finished this phase may already have called an operation that fails the group.
/// Then all ranks have reached this phase, and the first operation of this rank reports the
/// failure.
pub(super) fn meet_all(
    exchange: &dyn BootstrapExchange,
    domain: &dyn SharedDomain,
    capability: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let failed_since = OnceCell::new();
    let check_failure = || {
        let failure = domain.failure()?;
        let since: &Instant = failed_since.get_or_init(Instant::now);
        let is_death = failure.kind() == ErrorKind::PeerFailed;
        Some(failure).filter(|_| is_death || since.elapsed() >= EARLY_FAILURE_GRACE)
    };
    exchange.all_gather("met", capability, &check_failure)
}
