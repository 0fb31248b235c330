//! Detects the operations that not every store server supports.
//!
//! The protocol has no query for the capabilities of a server. If a server of an older torch does
//! not know an operation, it closes the connection or ignores the request. So when the client needs
//! such an operation for the first time, it probes the server: it sends a harmless request of this
//! kind on a separate connection. The probe leaves no state on the server.

use super::connection::{GRACE_PERIOD, StoreConnection};
use super::connection_pool::ConnectionPool;
use super::proto::{Bytes, StoreRequest};
use super::request_failure::RequestResult;
use crate::base::{Deadline, Result};
use std::sync::atomic::{AtomicU8, Ordering};

/// The key of the probes. It equals no key of a user, because those begin with "/" on the wire.
const PROBE_KEY: Bytes<'static> = Bytes::Borrowed(b"libdist/probe");

/// A feature that some servers lack. Torch added `Queues`, `KeyList` and `Barrier` in one version.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServerCapability {
    /// Operations 14 to 16.
    Queues,
    /// Operation 17.
    KeyList,
    /// Operation 18.
    Barrier,
    /// The server replies to GET and `MULTI_GET` of a missing key with an empty value. Torch's
    /// older server closes the connection instead.
    MissingKeyGets,
}

const UNKNOWN: u8 = 0;
const PRESENT: u8 = 1;
const ABSENT: u8 = 2;

/// The known capabilities of one server. The index is the [`ServerCapability`], and the value is
/// `UNKNOWN`, `PRESENT` or `ABSENT`.
#[derive(Debug, Default)]
pub(super) struct ServerCapabilities([AtomicU8; 4]);

impl ServerCapabilities {
    /// Returns the capabilities of a libdist server, which has all capabilities.
    pub(super) fn all() -> Self {
        Self([PRESENT; 4].map(AtomicU8::new))
    }

    /// Returns whether the server has this capability, or `None` if unknown.
    pub(super) fn cached(&self, capability: ServerCapability) -> Option<bool> {
        match self.0[capability as usize].load(Ordering::Relaxed) {
            UNKNOWN => None,
            state => Some(state == PRESENT),
        }
    }

    /// Records whether the server has this capability.
    pub(super) fn record(&self, capability: ServerCapability, is_present: bool) {
        let state = if is_present { PRESENT } else { ABSENT };
        self.0[capability as usize].store(state, Ordering::Relaxed);
    }

    /// Returns whether the server behind `pool` has this capability. Probes it at the first call.
    ///
    /// # Errors
    /// The connection error, if the server cannot be reached.
    pub(super) fn has(
        &self,
        capability: ServerCapability,
        pool: &ConnectionPool,
        deadline: &Deadline,
    ) -> Result<bool> {
        if let Some(known) = self.cached(capability) {
            return Ok(known);
        }
        let mut connection = pool.connect_new(deadline)?;
        let limit = Deadline::after(deadline.remaining().min(GRACE_PERIOD));
        let is_present = probe(capability, &mut connection, &limit).is_ok();
        // If the caller's deadline ended the probe, nothing is known about the server.
        if is_present || !deadline.has_passed() {
            self.record(capability, is_present);
        }
        Ok(is_present)
    }
}

fn probe(
    capability: ServerCapability,
    connection: &mut StoreConnection,
    deadline: &Deadline,
) -> RequestResult<i64> {
    match capability {
        ServerCapability::Queues => {
            connection.send(&[StoreRequest::QueueLen(PROBE_KEY)], deadline)?;
            connection.read_i64(deadline)
        }
        // Read only the number of keys. The caller closes the connection, so the keys that follow
        // need not be read.
        ServerCapability::KeyList => {
            connection.send(&[StoreRequest::ListKeys], deadline)?;
            connection.read_i64(deadline)
        }
        ServerCapability::Barrier => {
            connection.barrier(&PROBE_KEY, 0, deadline)?;
            connection.send(&[StoreRequest::DeleteKey(PROBE_KEY)], deadline)?;
            connection.read_i64(deadline)
        }
        ServerCapability::MissingKeyGets => {
            connection.send(&[StoreRequest::Get(PROBE_KEY)], deadline)?;
            connection.read_bytes(deadline).map(|_| 0)
        }
    }
}
